"""Makes this process the writer of a log whose journals are on several machines.

    fence ─▶ report ─▶ fetch the longest ─▶ complete the folder from the store ─▶ install on a majority ─▶ open

The peers decide what the log is. The folder here is a copy: its journals are replaced by the peers', and segments that
were sealed and uploaded by another machine are fetched from the object store. After that the log is opened as always:
recovery drops what follows the last whole cut, and begins a journal of the new epoch.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, SinkUnavailable, WriterReplaced
from cdcflow.log.disk.layer import OS_LAYER, FileLayer, storing, write_file
from cdcflow.log.disk.lease import Lease, read_epoch
from cdcflow.log.files.layout import Layout, LogFile
from cdcflow.model.position import Epoch
from cdcflow.sinks.quorum import image
from cdcflow.sinks.quorum.image import ImageFile
from cdcflow.sinks.quorum.layer import ReplicatedLayer
from cdcflow.sinks.quorum.links import PeerLink, PeerTls, promise_of
from cdcflow.sinks.quorum.messages import MessageKind
from cdcflow.sinks.quorum.promises import (
    EpochWriter,
    JournalExtent,
    PeerReport,
    Promise,
    WriterRefused,
    longest,
    majority,
    may_take_over,
    next_epoch,
    proves_new,
)
from cdcflow.sinks.quorum.replicas import Replicas
from cdcflow.sinks.quorum.stored import StoredPart, complete_from_store

MARK = "replicated.json"
"""The file in the log's folder that records to which peers it belongs, and the last epoch that this machine wrote."""
STATUS = "peers.json"
"""The file in the log's folder that records how far each peer is, for operators."""
GRACE_S = 0.5
"""How long the slower peers may take to answer once a majority has."""
STATUS_COUNTS_S = 15.0
"""A record of the peers that is older than this is ignored."""
ALIVE_WAIT_S = 4.0
"""How long a start waits for the log's writer to end, which may just have been stopped."""
LOOK_EVERY_S = 0.1

_PROCESS = uuid.uuid4().hex[:16]
"""The prefix of the ids of all writers in this process."""

Found = TypeVar("Found")
_log = structlog.get_logger("cdcflow")


@dataclass(frozen=True, slots=True)
class Mark:
    """The content of the file `MARK`: the id of the set of peers, and the last epoch that this machine wrote."""

    group: str = ""
    epoch: int = 0

    @classmethod
    def read(cls, layout: Layout) -> Mark:
        try:
            return cls(**json.loads((layout.root / MARK).read_bytes()))
        except FileNotFoundError:
            return cls()
        except (ValueError, TypeError):
            raise InvariantViolated(
                f"reading {layout.root / MARK}: cdcflow did not write it", runbook="log-damaged"
            ) from None


class ReplicatedJournals:
    """The journals of one log on its peers, for one opening of the log. Implements `sinks.files.log.Replication`."""

    def __init__(
        self,
        peers: Sequence[str],
        tls: PeerTls | None,
        *,
        timeout_s: float,
        stored: StoredPart,
        was_open: bool = False,
    ) -> None:
        """`was_open`: this process wrote the log before, and ends if a different one has written it since."""
        self._was_open = was_open
        self._peers = tuple(peers)
        self._tls = tls
        self._timeout_s = timeout_s
        self._stored = stored
        self._replicas: Replicas | None = None
        self._telling = threading.Lock()

    def begin(self, layout: Layout, lease: Lease) -> FileLayer:
        """Fence earlier writers, bring the folder to the state of the peers, and return the operations that write to
        both.

        The caller holds the folder's lock.

        Raises:
            SinkUnavailable: a majority of the peers, or the store, does not answer; or a process writes the log.
            WriterReplaced: another process has begun to write it since this one had it open.
            ConfigurationError: the peers have another log, or lost this one.
            InvariantViolated: data that was durable is damaged.
        """
        began = time.monotonic()
        links, problems = self._each(self._peers, self._connect)
        try:
            writer = self._recover(layout, links, problems)
        finally:
            for link in links.values():
                link.close()
        for folder in (layout.journals, layout.spools):
            folder.mkdir(exist_ok=True)
        layer = self._start(layout, writer)
        _log.info("peers fenced", epoch=writer.epoch, seconds=round(time.monotonic() - began, 2))
        return layer

    def check(self) -> None:
        """Confirm that no other process has taken the log over. Raises as `Replicas.wait`."""
        if self._replicas is not None:
            self._replicas.check()

    def close(self) -> None:
        if self._replicas is not None:
            self._replicas.close()

    def check_last_writer(self, layout: Layout) -> None:
        """Check that this machine wrote the log last, for work on the store that no daemon needs to do.

        Raises:
            SinkUnavailable: another machine did, or a majority of the peers does not answer.
        """
        links, problems = self._each(self._peers, self._connect)
        try:
            states, silent = self._each(links, lambda peer: links[peer].ask(MessageKind.STATE))
        finally:
            for link in links.values():
                link.close()
        if len(states) < majority(len(self._peers)):
            raise self._too_few(f"{len(states)} of {len(self._peers)} answered", {**problems, **silent})
        latest = max(int(state["promised"]) for state in states.values())
        if latest != Mark.read(layout).epoch:
            raise SinkUnavailable(
                f"working on the log {layout.root} in its store: another machine has written it since",
                remedy="run this on the machine whose daemon writes the log",
                runbook="two-daemons",
            )

    def doctor(self) -> dict[str, str]:
        """Return for each peer why it does not answer; "" if it does."""
        links, problems = self._each(self._peers, self._connect)
        states, silent = self._each(links, lambda peer: links[peer].ask(MessageKind.STATE))
        for link in links.values():
            link.close()
        return {peer: "" if peer in states else problems.get(peer) or silent[peer] for peer in self._peers}

    # ── fencing ─────────────────────────────────────────────────────────────────────────────────────────────

    def _recover(self, layout: Layout, links: Mapping[str, PeerLink], problems: Mapping[str, str]) -> EpochWriter:
        mark = Mark.read(layout)
        known = self._read_promises(links, problems)
        writer = self._writer(layout, mark, known)
        if is_new := proves_new(list(known.values()), len(self._peers)):
            self._check_new(layout, mark)
        kind = MessageKind.FOUND if is_new else MessageKind.FENCE
        fenced, refusals = self._each(links, lambda peer: links[peer].ask(kind, asdict(writer)))
        if is_new and len(fenced) < len(self._peers):
            raise self._too_few(f"{len(fenced)} of {len(self._peers)} founded; the first start needs all", refusals)
        # Only now: what a peer has is final once a majority has promised.
        reports, silent = self._each(fenced, lambda peer: _report(peer, links[peer]))
        best = longest(list(reports.values()), writer, len(self._peers))
        if best is None:
            raise self._too_few(f"{len(reports)} of {len(self._peers)} answered", {**problems, **refusals, **silent})
        if not best.promise.accepted:
            self._check_new(layout, mark)
        else:
            self._fetch(layout, links[best.peer])
            if best.promise.accepted != mark.epoch:
                complete_from_store(layout, self._stored)
        return writer

    def _connect(self, peer: str) -> PeerLink:
        return PeerLink(peer, self._tls, self._timeout_s)

    def _read_promises(self, links: Mapping[str, PeerLink], problems: Mapping[str, str]) -> dict[str, Promise]:
        """Return what each peer has promised so far; wait a while for a writer that has just ended."""
        deadline = time.monotonic() + ALIVE_WAIT_S
        while True:
            states, silent = self._each(links, lambda peer: links[peer].ask(MessageKind.STATE))
            if len(states) < majority(len(self._peers)):
                raise self._too_few(f"{len(states)} of {len(self._peers)} answered", {**problems, **silent})
            self._check_replaced([promise_of(state) for state in states.values()])
            if may_take_over([state["follows"] for state in states.values()], len(self._peers)):
                return {peer: promise_of(state) for peer, state in states.items()}
            if time.monotonic() > deadline:
                raise SinkUnavailable(
                    "opening the log: a process on this or a different machine writes it, as its peers report",
                    remedy="a log has one writer: this process continues when the other one has ended",
                    runbook="two-daemons",
                )
            time.sleep(LOOK_EVERY_S)

    def _check_replaced(self, promises: Sequence[Promise]) -> None:
        latest = max(promises, key=lambda promise: promise.promised)
        if self._was_open and latest.writer and not latest.writer.startswith(_PROCESS):
            raise WriterReplaced(
                f"opening the log: another process began epoch {latest.promised} since this one had it open, and took "
                "the log over; nothing that this one wrote since then counts"
            )

    def _writer(self, layout: Layout, mark: Mark, known: Mapping[str, Promise]) -> EpochWriter:
        groups = {promise.group for promise in known.values() if promise.group} | ({mark.group} - {""})
        if len(groups) > 1:
            raise ConfigurationError(
                f"opening the log {layout.root}: the peers in log.replicate.quorum store the journals of different "
                "logs",
                remedy="each log has its own peers: correct log.replicate.quorum, or empty the folder of the peer that "
                "stored another log before",
                runbook="quorum-lost",
            )
        group = groups.pop() if groups else uuid.uuid4().hex
        at_least = Epoch(max(int(read_epoch(layout.epoch)), mark.epoch))
        return EpochWriter(group, next_epoch(list(known.values()), at_least), _writer_id(), len(self._peers))

    def _check_new(self, layout: Layout, mark: Mark) -> None:
        """Raise an error if the peers are empty but the log may be stored elsewhere."""
        if mark.group:
            raise ConfigurationError(
                f"opening the log {layout.root}: all of its peers are empty, and they stored it up to epoch "
                f"{mark.epoch}: what they acknowledged later than this folder has is lost",
                remedy="restore the folders of the peers; or, if this machine wrote the log last, remove "
                f"{layout.root / MARK} and start again: the peers then get what this folder has",
                runbook="quorum-lost",
            )
        if not layout.log_json.exists() and layout.exists():
            raise ConfigurationError(
                f"opening the log {layout.root}: the store has this log, and neither this folder nor a peer has its "
                "journals",
                remedy="start cdcflow once on the machine whose log.path has the log: it copies it to the peers",
                runbook="quorum-lost",
            )

    # ── the folder ──────────────────────────────────────────────────────────────────────────────────────────

    def _fetch(self, layout: Layout, link: PeerLink) -> None:
        """Replace the journals here by those of a peer. Files that are equal stay."""
        wanted = [ImageFile(**file) for file in link.ask(MessageKind.LIST)["files"]]
        _check_log(layout, link, wanted)
        with storing(f"fetching the journals of {layout.root}"):
            for folder in image.FOLDERS:
                (layout.root / folder).mkdir(parents=True, exist_ok=True)
            for name in set(image.names(layout.root)) - {file.name for file in wanted}:
                (layout.root / name).unlink()
            for file in wanted:
                path = layout.root / image.check_name(file.name)
                if not (image.has(path, file) and path.stat().st_size == file.bytes):
                    _fetch_file(link, file, path)
            layout.newest.unlink(missing_ok=True)  # the peers know the latest journal

    def _start(self, layout: Layout, writer: EpochWriter) -> FileLayer:
        replicas = Replicas(self._peers, self._tls, writer, self._timeout_s)
        self._replicas = replicas
        layer = ReplicatedLayer(layout, replicas, self._stored.offset)
        replicas.start(layer.snapshot, lambda: self._write_status(layout, replicas))
        with storing(f"beginning epoch {writer.epoch} of the log {layout.root}"):
            # The log begins the epoch after the one in its folder. So the folder gets the epoch before this writer's.
            write_file(OS_LAYER, layout.epoch, f"{writer.epoch - 1}\n".encode())
            mark = json.dumps(asdict(Mark(writer.group, int(writer.epoch))))
            write_file(OS_LAYER, layout.root / MARK, mark.encode())
        return layer

    def _write_status(self, layout: Layout, replicas: Replicas) -> None:
        value = json.dumps({"epoch": replicas.writer.epoch, "at": time.time(), "peers": replicas.status()})
        with self._telling, contextlib.suppress(OSError):
            temporary = layout.root / f"{STATUS}.tmp"
            temporary.write_text(value)
            temporary.rename(layout.root / STATUS)

    # ── asking several peers ────────────────────────────────────────────────────────────────────────────────

    def _each(self, peers: Iterable[str], work: Callable[[str], Found]) -> tuple[dict[str, Found], dict[str, str]]:
        """Do something with each peer at the same time; return the results, and by peer why it has no result.

        Once a majority has answered, the others have `GRACE_S` left.
        """
        answers: queue.SimpleQueue[tuple[str, Found | None, str]] = queue.SimpleQueue()
        peers = list(peers)
        for peer in peers:
            threading.Thread(target=_answer_into, args=(answers, peer, work), daemon=True).start()
        found: dict[str, Found] = {}
        problems = dict.fromkeys(peers, "no answer yet")
        deadline = time.monotonic() + self._timeout_s
        while len(found) + sum(why != "no answer yet" for why in problems.values()) < len(peers):
            try:
                peer, result, why = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if why:
                problems[peer] = why
            else:
                found[peer] = result  # type: ignore[assignment]  # `work` returned it
                del problems[peer]
            if len(found) == majority(len(self._peers)):
                deadline = min(deadline, time.monotonic() + GRACE_S)
        return found, problems

    def _too_few(self, found: str, problems: Mapping[str, str]) -> SinkUnavailable:
        reasons = "; ".join(f"{peer}: {why}" for peer, why in sorted(problems.items()))
        return SinkUnavailable(
            f"recovering the log from its peers: {found}, and {majority(len(self._peers))} of them are needed"
            + (f" ({reasons})" if reasons else ""),
            remedy="start the peers that are missing, or restore the network to them; nothing is lost",
            runbook="quorum-lost",
        )


def _writer_id() -> str:
    return _PROCESS + uuid.uuid4().hex[len(_PROCESS) :]


def status(layout: Layout, peers: Sequence[str]) -> dict[str, object]:
    """Return how far the peers of a log are, as its writer recorded it a moment ago: which count (1 or 0), and what
    each lacks.

    Of a peer that is not connected the lag is unknown, and of all of them while no process writes the log.
    """
    try:
        found = json.loads((layout.root / STATUS).read_bytes())
    except (FileNotFoundError, ValueError):
        found = {"at": 0.0, "peers": {}}
    known = found["peers"] if time.time() - found["at"] < STATUS_COUNTS_S else {}
    following = {peer: int(known.get(peer, {}).get("counts", False)) for peer in peers}
    return {
        "peers_following": following,
        "peers_needed": majority(len(peers)),
        "peers_lag_bytes": {peer: one["lag_bytes"] for peer, one in known.items() if one["lag_bytes"] is not None},
        "peers_problem": "; ".join(f"{peer}: {one['problem']}" for peer, one in known.items() if one["problem"]),
    }


def _answer_into(
    answers: queue.SimpleQueue[tuple[str, Found | None, str]], peer: str, work: Callable[[str], Found]
) -> None:
    try:
        answers.put((peer, work(peer), ""))
    except WriterRefused as refusal:
        answers.put((peer, None, refusal.why))
    except CdcflowError as error:
        answers.put((peer, None, str(error).splitlines()[0]))


def _report(peer: str, link: PeerLink) -> PeerReport:
    value = link.ask(MessageKind.REPORT)
    return PeerReport(peer, promise_of(value), JournalExtent(**value["extent"]))


def _check_log(layout: Layout, link: PeerLink, wanted: Sequence[ImageFile]) -> None:
    """Raise ConfigurationError if the folder has another log than the peers."""
    if not layout.log_json.exists() or image.LOG_FILE not in {file.name for file in wanted}:
        return
    theirs = LogFile.from_json(_content(link, image.LOG_FILE), f"log.json of the peer {link.peer}")
    ours = layout.log_file()
    if theirs.log_id != ours.log_id:
        raise ConfigurationError(
            f"opening the log {layout.root}: it is the log {ours.log_id}, and its peers store the log {theirs.log_id}",
            remedy="correct log.path or log.replicate.quorum; each log has its own peers",
            runbook="other-log",
        )


def _fetch_file(link: PeerLink, file: ImageFile, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.fetched")
    with temporary.open("wb") as target:
        link.send(MessageKind.FETCH, file.name)
        while block := link.content():
            target.write(block)
        target.flush()
        os.fsync(target.fileno())
    if image.sha256(temporary) != file.sha256:
        temporary.unlink()
        raise SinkUnavailable(f"fetching {file.name} from the peer {link.peer}: it changed while it was read")
    temporary.rename(path)


def _content(link: PeerLink, name: str) -> bytes:
    link.send(MessageKind.FETCH, name)
    parts = []
    while block := link.content():
        parts.append(block)
    return b"".join(parts)
