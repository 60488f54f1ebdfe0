"""What peers promise and what a majority of them proves: the rules of the replicated journal. Pure.

    writer of epoch 7                  peers                       writer of epoch 8
    ── append, sync ──▶ a  b  c  ◀── fence 8 ──  (1) a majority promises to refuse older epochs
    ◀── durable ───────  majority      ── report ─▶  (2) then it reports what it has
                                       ◀─ install ─  (3) the longest is copied to a majority, which counts from then on

A change is acknowledged once a majority of the peers has it on disk. Two majorities share a peer, and that is the whole
argument: the peers that report to epoch 8 include one that has everything epoch 7 acknowledged, and none of them stores
anything of epoch 7 after it promised. The order of the steps matters: reports from before a majority had
promised could miss what the others stored in between.

A peer that lost its disk has forgotten what it stored and what it promised. It is blank, and proves nothing:

* It never counts among those that report, except when every peer is blank: then nothing was ever acknowledged.
* The writer copies everything to it. It counts again once a majority *of all peers, without it*, has confirmed the
  writer's epoch after the copy: otherwise the promise that it forgot could have been the one that fenced this writer.

This is the recovery of BookKeeper's ledgers and of Viewstamped Replication, with one writer per epoch and a fixed set
of peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdcflow.model.position import Epoch

NO_EPOCH = Epoch(0)


class WriterRefused(Exception):
    """Raised when a peer refuses a writer's request. `promise`: the promise that it follows instead."""

    def __init__(self, promise: Promise, why: str) -> None:
        super().__init__(why)
        self.promise = promise
        self.why = why


@dataclass(frozen=True, slots=True)
class Promise:
    """What a peer has stored about its writers; it is durable before any answer that depends on it.

    `group` is the id of the set of peers ("" if the peer is blank), `promised` the highest epoch that it follows and
    `writer` the process that began it, `accepted` the epoch whose writer installed what the peer has (0: nothing yet).
    `peers` is the number of peers that this writer had: a later one with fewer needs as many to prove anything.
    """

    group: str = ""
    promised: Epoch = NO_EPOCH
    writer: str = ""
    accepted: Epoch = NO_EPOCH
    peers: int = 0

    @property
    def is_blank(self) -> bool:
        return not self.group


@dataclass(frozen=True, slots=True)
class EpochWriter:
    """A writer as peers know it: a set of peers and their number, an epoch, and a random id of the process that began
    it."""

    group: str
    epoch: Epoch
    id: str
    peers: int = 3


@dataclass(frozen=True, order=True, slots=True)
class JournalExtent:
    """How far a peer's journals go: the number of the last whole cut, then the latest journal (epoch, first offset).

    Journals of one epoch are written by one writer, so of two peers with the same `accepted` the one with the larger
    extent has everything that the other has.
    """

    cut: int = 0
    epoch: int = 0
    first_offset: int = 0


@dataclass(frozen=True, slots=True)
class PeerReport:
    """The answer of a peer after a majority had promised."""

    peer: str
    promise: Promise
    extent: JournalExtent


# ── a peer ──────────────────────────────────────────────────────────────────────────────────────────────────


def founding_promise(promise: Promise, writer: EpochWriter) -> Promise:
    """Return the new promise of a peer that joins a new group, or is fenced in the group that it has."""
    if promise.is_blank:
        return Promise(writer.group, writer.epoch, writer.id)
    return fencing_promise(promise, writer)


def fencing_promise(promise: Promise, writer: EpochWriter) -> Promise:
    """Return the new promise of a peer that a new writer fences. Raises WriterRefused."""
    if promise.is_blank:
        raise WriterRefused(promise, "it has nothing: its disk is new, or was lost")
    _check_group(promise, writer)
    if not _may_follow(promise, writer):
        raise WriterRefused(promise, f"it promised epoch {promise.promised} to another writer")
    return replace(promise, promised=writer.epoch, writer=writer.id)


def check_append(promise: Promise, writer: EpochWriter) -> None:
    """Raise WriterRefused unless the peer follows this very writer, and has its installed image."""
    if promise.is_blank:
        raise WriterRefused(promise, "it has nothing: its disk is new, or was lost")
    _check_group(promise, writer)
    if (promise.promised, promise.writer) != (writer.epoch, writer.id):
        raise WriterRefused(promise, f"it promised epoch {promise.promised} to another writer")
    if promise.accepted != writer.epoch:
        raise WriterRefused(promise, f"it has what epoch {promise.accepted} installed")


def installing_promise(promise: Promise, writer: EpochWriter) -> Promise:
    """The promise of a peer that has everything of a writer: a blank one joins the group. Raises WriterRefused."""
    if promise.is_blank:
        promise = Promise(writer.group)
    return replace(fencing_promise(promise, writer), accepted=writer.epoch, peers=writer.peers)


def _check_group(promise: Promise, writer: EpochWriter) -> None:
    if promise.group != writer.group:
        raise WriterRefused(promise, "it belongs to another log's peers")


def _may_follow(promise: Promise, writer: EpochWriter) -> bool:
    if promise.promised == writer.epoch:
        return promise.writer == writer.id
    return promise.promised < writer.epoch


# ── a writer ────────────────────────────────────────────────────────────────────────────────────────────────


def majority(peers: int) -> int:
    return peers // 2 + 1


def next_epoch(known: Sequence[Promise], at_least: Epoch) -> Epoch:
    """Return the epoch for a new writer, given the peers' promises and the epoch that its own folder has."""
    return Epoch(max([at_least, *(promise.promised for promise in known)]) + 1)


def proves_new(known: Sequence[Promise], peers: int) -> bool:
    """Whether nothing was ever acknowledged: every peer answered, and none has anything installed.

    A writer founds all peers before it installs anything on one.
    """
    return len(known) == peers and all(not promise.accepted for promise in known)


def may_take_over(following: Sequence[bool], peers: int) -> bool:
    """Whether a new writer may fence. `following`: for each peer that answered, whether it follows a writer that is
    alive.

    A writer that a majority no longer follows acknowledges nothing. This check spares a running writer from a second
    process that was started by mistake; the promise alone is what makes two writers harmless.
    """
    return sum(not follows for follows in following) >= majority(peers)


def longest(reports: Sequence[PeerReport], writer: EpochWriter, peers: int) -> PeerReport | None:
    """Return the report of the peer from which a new writer recovers; None if too few reports prove anything.

    Only peers count that still promise this writer when they report. If there were more peers before, a majority of
    that number is needed.
    """
    proving = [r for r in reports if (r.promise.promised, r.promise.writer) == (writer.epoch, writer.id)]
    if not proving or len(proving) < majority(max(peers, *(report.promise.peers for report in proving))):
        return None
    return max(proving, key=lambda report: (report.promise.accepted, report.extent))


def acknowledged_sync(durable: Sequence[int], peers: int) -> int:
    """Return the latest sync that a majority of the peers has, given the latest one of each peer that counts; 0 if
    none."""
    needed = majority(peers)
    return sorted(durable, reverse=True)[needed - 1] if len(durable) >= needed else 0


def counts_again(confirmed: int, peers: int) -> bool:
    """Whether a peer that was blank counts: `confirmed` others have confirmed the writer's epoch after the copy."""
    return confirmed >= majority(peers)
