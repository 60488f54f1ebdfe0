"""The keys of persons in a file: the same after kills, and gone after an erasure, for every process that uses it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdcflow.errors import ConfigurationError, InvariantViolated, SinkUnavailable
from cdcflow.sources.privacy import key_file
from cdcflow.sources.privacy.kernels import to_base64
from cdcflow.sources.privacy.key_file import KeyFile
from cdcflow.sources.privacy.person_keys import PersonEncryption
from cdcflow.sources.privacy.secret_keys import PolicyKey, decrypt_with

KEY = PolicyKey("k1", b"5e8ff9bf55ba3508199d22e984129be6")
MAKER = KEY.person_keys()


def persons(*values: object) -> list[str]:
    return MAKER.persons(pa.array([str(value).encode() for value in values]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "log" / "person-keys"
    KeyFile(made).create()
    return made


def used(path: Path | KeyFile, *names: str) -> list[bytes | None]:
    file = path if isinstance(path, KeyFile) else KeyFile(path)
    with file.use(names, MAKER.wrapped_key) as found:
        return [found[name] for name in names]


def test_person_keeps_a_key_and_the_file_grows_with_persons_only(path: Path) -> None:
    first = used(path, *persons("ada", "bob"))
    assert len({*first, None}) == 3
    size = path.stat().st_size
    assert used(path, *persons("bob", "ada")) == first[::-1]
    assert path.stat().st_size == size == 3 * 128
    assert b"ada" not in path.read_bytes()
    assert KeyFile(path).identity() == KeyFile(path).identity() != ""


def test_many_persons_are_found_again_among_new_ones(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most are in a sorted array, and the most recent are not yet."""
    monkeypatch.setattr(key_file, "_RECENT_MAX", 7)
    names, file = persons(*range(60)), KeyFile(path)
    keys = [used(file, name)[0] for name in names]
    assert used(file, *names) == used(path, *names) == keys
    file.erase(names[:50:7])
    for one in (file, KeyFile(path)):
        assert used(one, *names) == [None if n in range(0, 50, 7) else key for n, key in enumerate(keys)]
    assert file.makers() == {KEY.fingerprint}


def test_key_is_durable_before_it_is_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    write, sync = os.pwrite, os.fsync

    def written(fd: int, data: Any, at: int) -> int:
        done.append("write")
        return write(fd, data[:50], at)  # as much as one call takes

    def synced(fd: int) -> None:
        done.append("sync")
        sync(fd)

    monkeypatch.setattr(os, "pwrite", written)
    monkeypatch.setattr(os, "fsync", synced)
    with KeyFile(path).use(persons("ada"), MAKER.wrapped_key):
        done.append("use")
    assert done[-5:] == ["write", "write", "write", "sync", "use"]


def test_key_that_another_process_wrote_is_durable_before_it_is_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been killed between its write and its fsync."""
    file, synced = KeyFile(path), list[int]()
    used(file, *persons("ada"))
    used(path, *persons("bob"))
    monkeypatch.setattr(os, "fsync", synced.append)
    used(file, *persons("bob"))
    assert len(synced) == 1
    used(file, *persons("bob"))
    assert len(synced) == 1


def test_writer_that_was_killed_anywhere_leaves_a_file_that_continues(path: Path) -> None:
    [ada] = used(path, *persons("ada"))
    whole = path.read_bytes()
    used(path, *persons("bob"))
    longer = path.read_bytes()
    for end in range(len(whole), len(longer) + 1, 9):
        for rest in (b"", b"\0" * (len(longer) - end), b"\0" * 700):
            path.write_bytes(longer[:end] + rest)
            file = KeyFile(path)
            assert used(file, *persons("ada")) == [ada]
            [bob] = used(file, *persons("bob"))
            [eve] = used(file, *persons("eve"))
            assert used(path, *persons("bob", "ada", "eve")) == [bob, ada, eve]


def test_damaged_record_stops_everything(path: Path) -> None:
    """A person whose record is skipped would get another key, or be read again after an erasure."""
    used(path, *persons("ada"))
    used(path, *persons("bob"))
    content = bytearray(path.read_bytes())
    content[128:132] = b"\0" * 4
    path.write_bytes(content)
    with pytest.raises(InvariantViolated, match="a record is damaged"):
        used(path, *persons("bob"))


def test_erased_person_has_no_key_in_the_file_nor_in_any_process(path: Path) -> None:
    running = KeyFile(path)
    ada, bob = used(running, *persons("ada", "bob"))
    assert ada is not None
    KeyFile(path).erase(persons("ada"))
    assert to_base64(ada).encode() not in path.read_bytes()
    assert used(running, *persons("ada", "bob")) == used(path, *persons("ada", "bob")) == [None, bob]
    size = path.stat().st_size
    KeyFile(path).erase(persons("ada"))
    assert path.stat().st_size == size
    assert KeyFile(path).find(persons("ada")[0]) is None
    with pytest.raises(KeyError):
        KeyFile(path).find(persons("eve")[0])


def test_person_who_is_erased_before_anything_is_known_of_them_gets_no_key(path: Path) -> None:
    running = KeyFile(path)
    used(running, *persons("bob"))
    KeyFile(path).erase(persons("ada"))
    assert used(running, *persons("ada")) == used(path, *persons("ada")) == [None]
    assert path.stat().st_size == 3 * 128


@pytest.mark.parametrize("failing", range(4))
def test_erasure_that_ends_anywhere_is_repeated_or_continued(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Steps: write and sync the mark, overwrite the key, sync. After the mark the next writer does the rest."""
    [ada] = used(path, *persons("ada"))
    assert ada is not None
    left = failing
    write, sync = os.pwrite, os.fsync

    def step(call: Any) -> Any:
        def run(*args: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(5, "no")
            return call(*args)

        return run

    file = KeyFile(path)
    assert used(file, *persons("ada")) == [ada]
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", step(write))
        patched.setattr(os, "fsync", step(sync))
        with pytest.raises((SinkUnavailable, InvariantViolated)):
            file.erase(persons("ada"))
    assert used(path, *persons("ada")) == ([ada] if failing == 0 else [None])
    if failing:
        assert to_base64(ada).encode() not in path.read_bytes()
    file.erase(persons("ada"))
    assert to_base64(ada).encode() not in path.read_bytes()


def test_erasure_waits_for_the_batch_that_is_being_encrypted(path: Path) -> None:
    file = KeyFile(path)
    used(file, *persons("ada"))
    with file.use(persons("ada"), MAKER.wrapped_key), path.open("rb+") as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    with path.open("rb+") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_file_that_is_removed_or_replaced_while_it_is_used_stops_its_user(path: Path) -> None:
    """Keys that are appended to a file without a name are lost, and with them what they encrypt."""
    file = KeyFile(path)
    used(file, *persons("ada"))
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(ConfigurationError, match="removed or replaced") as stopped:
        used(file, *persons("ada"))
    assert "restore the file" in str(stopped.value.remedy)
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="removed or replaced"):
        used(file, *persons("bob"))
    assert used(path, *persons("ada")) != [None]
    path.unlink()
    assert KeyFile(path).identity() == ""
    with pytest.raises(ConfigurationError, match="are not in"):
        used(path, *persons("ada"))


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def encryption(path: Path) -> Iterator[PersonEncryption]:
    file = KeyFile(path)
    yield PersonEncryption(KEY, file)
    file.close()


def test_values_are_equal_for_equal_values_of_a_person_and_read_with_their_key(
    path: Path, encryption: PersonEncryption
) -> None:
    values = pa.array(["x", "y", None, "x", "x", "x"])
    owners = pa.array([1, 1, 1, 2, 1, None], pa.int64())
    found = encryption.convert(values, owners).to_pylist()
    assert found[0] == found[4] != found[3]
    assert found[2] is None
    assert len(set(found)) == 5
    assert KEY.decrypt(found[5]) == b"x"
    assert KEY.person_in(found[5]) is None
    for value, owner, plain in zip(found[:2] + found[3:5], (1, 1, 2, 1), (b"x", b"y", b"x", b"x"), strict=True):
        [person] = persons(owner)
        assert KEY.person_in(value) == person
        wrapped = KeyFile(path).find(person)
        assert wrapped is not None
        assert decrypt_with(MAKER.unwrap(person, wrapped), value) == plain
        with pytest.raises(ValueError, match="damaged"):
            MAKER.unwrap(persons(3)[0], wrapped)
    again = PersonEncryption(KEY, KeyFile(path)).convert(values, owners.cast(pa.string()))
    assert again.to_pylist() == found


def test_erased_persons_values_are_null_also_with_a_cipher_in_memory(path: Path, encryption: PersonEncryption) -> None:
    values, owners = pa.array(["x", "y", "z"]), pa.array(["ada", "bob", "ada"])
    before = encryption.convert(values, owners).to_pylist()
    KeyFile(path).erase(persons("ada"))
    assert encryption.convert(values, owners).to_pylist() == [None, before[1], None]
    assert {*encryption._ciphers._known, *encryption._data_keys._known} == set(persons("bob"))


def test_values_in_slices_and_of_no_rows_are_the_same(encryption: PersonEncryption) -> None:
    values = pa.array(["a", None, "b", "a"])
    owners = pa.array(["p", "q", None, "q"])
    found = encryption.convert(values, owners)
    for first in range(4):
        assert encryption.convert(values[first:], owners[first:]).equals(found[first:])
    assert len(encryption.convert(values[:0], owners[:0])) == 0
    assert encryption.convert(values[1:2], owners[1:2]).null_count == 1
