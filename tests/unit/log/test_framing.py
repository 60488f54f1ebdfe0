"""Frames: only whole ones of the right file, in the right place, are accepted."""

from __future__ import annotations

import contextlib
import io
import random

import pytest

from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.log.format import framing
from cdcflow.log.format.framing import (
    FRAME_BYTES_MAX,
    MAGIC,
    Damaged,
    FileKind,
    Frame,
    FrameKind,
    Framer,
    Header,
    encode_header,
    frame_bytes,
    frames,
    frames_beyond,
    read_header,
)


def made(payloads: list[bytes], *, epoch: int = 1) -> bytes:
    head, seed = encode_header(FileKind.JOURNAL, {"log_id": "x", "epoch": epoch})
    framer = Framer(seed)
    kinds = [FrameKind.CUT if p.startswith(b"cut") else FrameKind.ROWS for p in payloads]
    return head + b"".join(b"".join(framer.frame(k, p)) for k, p in zip(kinds, payloads, strict=True))


def found(content: bytes) -> list[bytes]:
    """The payloads of the whole frames before the first that is not."""
    file = io.BytesIO(content)
    payloads: list[bytes] = []
    with contextlib.suppress(Damaged, ConfigurationError):  # a version that rotted is refused as well
        payloads.extend(frame.payload for frame in frames(file, read_header(file, FileKind.JOURNAL, "x")))
    return payloads


PAYLOADS = [b"a", b"", b"cut 1", bytes(range(200)), b"cut 2"]


def test_frames_are_read_back_in_order() -> None:
    """The journal is nothing but its frames."""
    assert found(made(PAYLOADS)) == PAYLOADS


def test_no_byte_can_change_unnoticed() -> None:
    """A torn or rotten block anywhere must end what counts there, not become data (hard cases L01, L03)."""
    content = made(PAYLOADS)
    padding = [i for i in range(len(content)) if found(content[:i] + b"\xee" + content[i + 1 :]) == PAYLOADS]
    # Only the zeros between two frames may differ: they carry nothing.
    assert all(content[i] == 0 for i in padding)
    assert len(padding) < 8 * (len(PAYLOADS) + 1)


def test_file_truncated_anywhere_returns_the_frames_before() -> None:
    """A crash may leave any length (hard case L01)."""
    content = made(PAYLOADS)
    counts = [len(found(content[:size])) for size in range(len(content) + 1)]
    assert counts == sorted(counts)
    assert set(counts) == set(range(len(PAYLOADS) + 1))
    for size in range(len(content)):
        assert found(content[:size]) == PAYLOADS[: counts[size]]


def test_stale_frame_of_another_epoch_does_not_pass() -> None:
    """A reused block can hold a perfect frame of an older file at just this place (hard case L03)."""
    mine, other = made([b"mine", b"later"], epoch=2), made([b"mine", b"other"], epoch=1)
    at = mine.index(b"later") - 16
    assert found(mine[:at] + other[at:]) == [b"mine"]


def test_frame_at_another_place_in_the_sequence_does_not_pass() -> None:
    """A block written twice must not deliver its rows twice."""
    content = made([b"12345678", b"12345678"])
    first, second = content.index(b"12345678") - 16, content.rindex(b"12345678") - 16
    assert found(content[:second] + content[first : first + 24]) == [b"12345678"]


def test_huge_length_is_refused_without_reading_it() -> None:
    """A crafted file must not make the reader take all memory (hard case L28)."""
    content = bytearray(made([b"a"]))
    at = content.rindex(b"\xcdcf")
    content[at + 4 : at + 8] = b"\xff\xff\xff\xff"
    assert found(bytes(content)) == []


def test_other_format_is_refused_with_an_error_that_names_it() -> None:
    """After a downgrade nothing may be guessed from a newer file, nor from an older one (hard case L24)."""
    content = bytearray(made([b"a"]))
    for version, which in ((9, "newer"), (1, "older")):
        content[len(MAGIC)] = version
        with pytest.raises(ConfigurationError, match=rf"some-journal.*{which}.*format {version}"):
            read_header(io.BytesIO(bytes(content)), FileKind.JOURNAL, "some-journal")


def test_whole_frames_after_damage_are_found_at_any_distance() -> None:
    """Recovery judges damage by the cuts after it; if it misses one, durable data is discarded silently."""
    chance = random.Random(3)
    filler = chance.randbytes((1 << 20) - 150)
    for shift in range(0, 200, 8):
        content = made([b"a", filler + bytes(shift), b"cut 1", b"\xcdcf\x05" * 20, b"cut 2"])
        file = io.BytesIO(content)
        header = read_header(file, FileKind.JOURNAL, "x")
        beyond: list[Frame] = list(frames_beyond(file, header, header.end + 1, FrameKind.CUT))
        assert [frame.payload for frame in beyond] == [b"cut 1", b"cut 2"]
        assert beyond[-1].end == len(content)


@pytest.mark.parametrize(("more", "reason"), [(0, "torn"), (1, "checksum")])
def test_a_length_that_no_frame_may_have_is_damage_and_not_an_unfinished_end(more: int, reason: str) -> None:
    """A file that ends in a frame may only have been cut off there; recovery must not read a gigabyte to find out."""
    head, seed = encode_header(FileKind.JOURNAL, {"log_id": "x"})
    frame = bytearray(b"".join(Framer(seed).frame(FrameKind.ROWS, b"payload!")))
    frame[4:8] = (FRAME_BYTES_MAX + more).to_bytes(4, "little")
    file = io.BytesIO(head + bytes(frame))
    header = read_header(file, FileKind.JOURNAL, "x")
    with pytest.raises(Damaged) as damaged:
        list(frames(file, header))
    assert (damaged.value.reason, damaged.value.at) == (reason, len(head))
    assert frame_bytes(FRAME_BYTES_MAX) > FRAME_BYTES_MAX
    with pytest.raises(InvariantViolated, match="framing"):
        frame_bytes(FRAME_BYTES_MAX + 1)


@pytest.mark.parametrize("bytes_max", [63, 64])
def test_a_frame_may_be_as_long_as_the_longest_and_no_longer(bytes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading in order and searching after damage agree: recovery must not miss a cut that a reader takes."""
    content = made([b"a", b"cut" + bytes(61)])
    file = io.BytesIO(content)
    header = read_header(file, FileKind.JOURNAL, "x")
    monkeypatch.setattr(framing, "FRAME_BYTES_MAX", bytes_max)
    fits = bytes_max == 64
    assert len(found(content)) == 1 + fits
    assert len(list(frames_beyond(file, header, header.end, FrameKind.CUT))) == fits


def test_frames_have_the_same_bounds_read_skipped_or_found_after_damage() -> None:
    """A reader continues after a frame that it skipped, and recovery counts the bytes up to a cut."""
    content = made([b"cut" + bytes(size) for size in range(30)])
    file = io.BytesIO(content)
    header = read_header(file, FileKind.JOURNAL, "x")
    read = list(frames(file, header))
    assert [frame.at for frame in read] == [header.end, *(frame.end for frame in read[:-1])]
    assert read[-1].end == len(content)
    assert list(frames_beyond(file, header, header.end, FrameKind.CUT)) == read
    file.seek(header.end)
    skipped = list(frames(file, header, skip=[FrameKind.CUT]))
    assert skipped == [frame._replace(payload=b"") for frame in read]
    for number, frame in enumerate(read):
        file.seek(frame.at)
        rest = header if not number else Header(header.value, header.seed, frame.at)
        assert list(frames(file, rest, sequence=number)) == read[number:]
        file.seek(header.end)
        assert list(frames(file, header, end=frame.end)) == read[: number + 1]
