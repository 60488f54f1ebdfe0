"""Peers, writers and a network for the rules of the replicated journal (`cdcflow.sinks.quorum.promises`), stepped by a
seed.

Peers crash, lose what they had not synced, lose their disks, and start again. Links deliver late and break. Writers are
begun at any time, halted for any time, and then continue. A writer acknowledges what the rules
allow; whatever was acknowledged must be the beginning of everything that is acknowledged later, by any writer.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cdcflow.model.position import Epoch
from cdcflow.sinks.quorum import promises
from cdcflow.sinks.quorum.promises import EpochWriter, JournalExtent, PeerReport, Promise, WriterRefused

PEERS = 3


class Lost(AssertionError):
    """Something that was acknowledged is not in the log, or something else is in its place."""


@dataclass
class Rules:
    """The rules in use; a planted bug replaces one."""

    acknowledged: Callable[..., int] = promises.acknowledged_sync
    longest: Callable[..., PeerReport | None] = promises.longest
    check_append: Callable[..., None] = promises.check_append
    fencing_promise: Callable[..., Promise] = promises.fencing_promise
    counts_again: Callable[..., bool] = promises.counts_again
    proves_new: Callable[..., bool] = promises.proves_new
    reports_before_the_majority: bool = False
    blank_report: bool = False


@dataclass
class Peer:
    """`items` is on its disk up to `synced`; `session` is the link that may change it."""

    name: str
    promise: Promise = field(default_factory=Promise)
    items: list[int] = field(default_factory=list)
    synced: int = 0
    is_up: bool = True
    session: tuple[Link, EpochWriter] | None = None

    def crash(self, dice: random.Random) -> None:
        self.is_up = False
        self.session = None
        del self.items[dice.randint(min(self.synced, len(self.items)), len(self.items)) :]
        self.synced = len(self.items)

    def lose_disk(self) -> None:
        self.promise, self.items, self.synced, self.session = Promise(), [], 0, None


@dataclass
class Link:
    """A connection of a writer to a peer: what is under way in both directions, in order."""

    peer: Peer
    to_peer: deque[tuple[str, Any]] = field(default_factory=deque)
    to_writer: deque[tuple[str, Any]] = field(default_factory=deque)
    is_installed: bool = False
    acked: int = 0
    awaits: int | None = None


class SimulatedWriter:
    """One process that fences the others and writes."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.writer: EpochWriter | None = None
        self.links: dict[str, Link] = {}
        self.answers: dict[str, Any] = {}
        self.phase = "state"
        self.items: list[int] = []
        self.synced = 0
        self.at_sync: dict[int, int] = {}
        self.acknowledged = 0
        self.is_over = False

    # ── what it does ────────────────────────────────────────────────────────────────────────────────────────

    def step(self, dice: random.Random) -> None:
        self._connect()
        if self.phase == "writing":
            self._write(dice)
            return
        expected = {"state": "state", "fence": "promised", "report": "report"}[self.phase]
        enough = PEERS if self.phase == "fence" and self.is_founding else promises.majority(PEERS)
        found = {name: value for name, (kind, value) in self.answers.items() if kind == expected}
        if len(found) >= enough and (len(found) == PEERS or dice.random() < 0.3):
            getattr(self, f"_after_{self.phase}")(found)

    is_founding = False

    def _connect(self) -> None:
        for peer in self.world.peers:
            if peer.name not in self.links and peer.is_up and self.phase != "over":
                link = self.links[peer.name] = Link(peer)
                if self.phase == "state":
                    link.to_peer.append(("state", None))
                elif self.phase == "writing":
                    self._install(link)

    def _after_state(self, found: dict[str, Promise]) -> None:
        known = list(found.values())
        groups = {p.group for p in known if p.group}
        self.writer = EpochWriter(next(iter(groups), "group"), promises.next_epoch(known, Epoch(0)), f"w{self.number}")
        self.is_founding = self.world.rules.proves_new(known, PEERS)
        self._ask("fence", "found" if self.is_founding else "fence", found)

    def _after_fence(self, found: dict[str, Any]) -> None:
        if self.world.rules.reports_before_the_majority:
            self._recover(found)
            return
        self._ask("report", "report", found)

    def _after_report(self, found: dict[str, Any]) -> None:
        self._recover(found)

    def _recover(self, found: dict[str, tuple[PeerReport, list[int]]]) -> None:
        assert self.writer is not None
        best = self.world.rules.longest([report for report, _ in found.values()], self.writer, PEERS)
        if best is None:
            self.is_over = True
            return
        self.items = list(found[best.peer][1])
        self.phase = "writing"
        for link in self.links.values():
            self._install(link)

    def _install(self, link: Link) -> None:
        link.acked = self.synced
        link.to_peer.append(("install", (self.writer, list(self.items))))

    def _ask(self, phase: str, request: str, found: dict[str, Any]) -> None:
        self.phase, self.answers = phase, {}
        for name in found:
            if name in self.links:
                self.links[name].to_peer.append((request, self.writer))

    def _write(self, dice: random.Random) -> None:
        if dice.random() < 0.5 and len(self.items) - self.acknowledged < 5:
            item = self.world.next_item()
            self.items.append(item)
            self._send("append", item)
        if dice.random() < 0.6:
            self.synced += 1
            self.at_sync[self.synced] = len(self.items)
            self._send("sync", self.synced)
        self._count()

    def _send(self, kind: str, value: int) -> None:
        for link in self.links.values():
            link.to_peer.append((kind, value))

    def _count(self) -> None:
        rules = self.world.rules
        ready = [link for link in self.links.values() if link.is_installed]
        for link in ready:
            if link.awaits is not None:
                others = [o for o in ready if o is not link and o.awaits is None and o.acked >= link.awaits]
                if rules.counts_again(len(others), PEERS):
                    link.awaits = None
        durable = [link.acked for link in ready if link.awaits is None]
        number = rules.acknowledged(durable, PEERS)
        size = self.at_sync.get(number, 0)
        if size > self.acknowledged:
            self.acknowledged = size
            self.world.acknowledge(self.items[:size], self)

    # ── what it gets ────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, link: Link) -> None:
        kind, value = link.to_writer.popleft()
        if kind == "durable":
            link.acked = value
        elif kind == "installed":
            link.is_installed = True
            if value:
                link.awaits = self.synced + 1
        elif kind == "refused":
            self.drop(link)
        else:
            self.answers[link.peer.name] = (kind, value)

    def drop(self, link: Link) -> None:
        self.links.pop(link.peer.name, None)
        if self.phase != "writing":
            self.is_over = True


class World:
    def __init__(self, seed: int, rules: Rules) -> None:
        self.dice = random.Random(seed)
        self.rules = rules
        self.peers = [Peer(name) for name in "abc"]
        self.writers: list[SimulatedWriter] = []
        self.acknowledged: list[int] = []
        self._items = 0

    def next_item(self) -> int:
        self._items += 1
        return self._items

    def acknowledge(self, items: list[int], by: SimulatedWriter) -> None:
        known = min(len(items), len(self.acknowledged))
        if items[:known] != self.acknowledged[:known]:
            raise Lost(f"writer {by.number} acknowledged {items}, and {self.acknowledged} was acknowledged before")
        if len(items) > len(self.acknowledged):
            self.acknowledged = items

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        dice = self.dice
        chance = dice.random()
        if chance < 0.015 or not self.writers:
            self.writers.append(SimulatedWriter(self, len(self.writers)))
        elif chance < 0.025:
            self._fail(dice.choice(self.peers))
        elif chance < 0.06:
            for peer in self.peers:
                peer.is_up = peer.is_up or dice.random() < 0.6
        elif chance < 0.08:
            self._break_link()
        else:
            self._advance()

    def _fail(self, peer: Peer) -> None:
        """One disk at a time: the next is lost after the first one has everything again."""
        peer.crash(self.dice)
        for writer in self.writers:
            if peer.name in writer.links:
                writer.drop(writer.links[peer.name])
        others = [one for one in self.peers if one is not peer]
        if self.dice.random() < 0.4 and all(not one.promise.is_blank for one in others):
            peer.lose_disk()

    def _break_link(self) -> None:
        links = [(writer, link) for writer in self.writers for link in writer.links.values()]
        if links:
            writer, link = self.dice.choice(links)
            writer.drop(link)

    def _advance(self) -> None:
        writers = [writer for writer in self.writers[-4:] if not writer.is_over]
        if not writers:
            return
        writer = self.dice.choice(writers)
        links = list(writer.links.values())
        link = self.dice.choice(links) if links else None
        chance = self.dice.random()
        if link is not None and chance < 0.45 and link.to_peer and link.peer.is_up:
            self._deliver(link)
        elif link is not None and chance < 0.8 and link.to_writer:
            writer.receive(link)
        else:
            writer.step(self.dice)

    # ── a peer ──────────────────────────────────────────────────────────────────────────────────────────────

    def _deliver(self, link: Link) -> None:
        kind, value = link.to_peer.popleft()
        try:
            answer = getattr(self, f"_{kind}")(link, link.peer, value)
        except WriterRefused:
            answer = ("refused", None)
        if answer is not None:
            link.to_writer.append(answer)

    def _state(self, link: Link, peer: Peer, value: None) -> tuple[str, Any]:
        return "state", peer.promise

    def _found(self, link: Link, peer: Peer, writer: EpochWriter) -> tuple[str, Any]:
        peer.promise = promises.founding_promise(peer.promise, writer)
        return "promised", self._report_of(peer)

    def _fence(self, link: Link, peer: Peer, writer: EpochWriter) -> tuple[str, Any]:
        if not (peer.promise.is_blank and self.rules.blank_report):
            peer.promise = self.rules.fencing_promise(peer.promise, writer)
        else:
            peer.promise = promises.founding_promise(peer.promise, writer)
        return "promised", self._report_of(peer)

    def _report(self, link: Link, peer: Peer, writer: EpochWriter) -> tuple[str, Any]:
        return "report", self._report_of(peer)

    def _report_of(self, peer: Peer) -> tuple[PeerReport, list[int]]:
        return PeerReport(peer.name, peer.promise, JournalExtent(len(peer.items))), list(peer.items)

    def _install(self, link: Link, peer: Peer, value: tuple[EpochWriter, list[int]]) -> tuple[str, Any]:
        writer, items = value
        was_blank = peer.promise.is_blank
        peer.promise = promises.installing_promise(peer.promise, writer)
        peer.session = (link, writer)
        peer.items, peer.synced = list(items), len(items)
        return "installed", was_blank

    def _append(self, link: Link, peer: Peer, item: int) -> None:
        self._check(link, peer)
        peer.items.append(item)

    def _sync(self, link: Link, peer: Peer, number: int) -> tuple[str, Any]:
        self._check(link, peer)
        peer.synced = len(peer.items)
        return "durable", number

    def _check(self, link: Link, peer: Peer) -> None:
        if peer.session is None or peer.session[0] is not link:
            raise WriterRefused(peer.promise, "a later connection writes to it")
        self.rules.check_append(peer.promise, peer.session[1])
