"""Opens the stream of a slot: near the log's end, or with windows first if there is a large backlog."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.stream import Stream
from cdcflow.config import Postgres
from cdcflow.sources.postgres import slot
from cdcflow.sources.postgres.catalog import Catalog
from cdcflow.sources.postgres.catch_up import CatchingUp, Windows, backlog_of
from cdcflow.sources.postgres.chunks import mark_prefix
from cdcflow.sources.postgres.connection import Connector
from cdcflow.sources.postgres.fences import StandbyRun
from cdcflow.sources.postgres.hidden_changes import HiddenChanges
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.pgoutput import OnCommits, PgoutputDecoder, Relation
from cdcflow.sources.postgres.replay_fences import DeliveredCommits
from cdcflow.sources.postgres.replay_marks import PlacedMarks
from cdcflow.sources.postgres.rewrites import RowVersions
from cdcflow.sources.postgres.slot import Slot
from cdcflow.sources.postgres.stream import NeedsText, PostgresStream
from cdcflow.sources.postgres.timeline_watch import TimelineWatch
from cdcflow.sources.postgres.types import DescribedTable
from cdcflow.sources.postgres.unbroken import no_slot


@dataclass(frozen=True, slots=True)
class StreamStart:
    """The requirements for opening a stream: how it decodes, and which connections it uses.

    `standby`: None at a primary. `commits`: remembers delivered commits for chunks that are read from a primary's
    standby.
    """

    connector: Connector
    catalog: Catalog
    row_versions: RowVersions
    settings: Postgres
    windows: Windows
    slot: str
    publication: str
    open_spool: OpenSpool
    standby: StandbyRun | None = None
    commits: DeliveredCommits | None = None

    def open(self, position: Lsn, *, binary: bool) -> Stream:
        """Open a stream of everything after `position`. `binary`: all captured tables have a binary form."""
        if self.settings.catch_up == "never" or self.standby is not None:
            return self._stream(position, position, binary)
        # The server does not send changes of a failover slot that a standby lacks, but it would send them for a
        # temporary copy of the slot.
        if self._whole_slot(position).failover:
            return self._stream(position, position, binary)
        backlog = self.catalog.ask(f"checking slot {self.slot}", lambda c: backlog_of(c, self.slot))
        if not backlog.pays(self.windows):
            return self._stream(position, position, binary)
        return CatchingUp(
            self.connector,
            slot=self.slot,
            publication=self.publication,
            position=position,
            binary=binary,
            make_decoder=partial(self._decoder, on_commits=self._on_commits),
            check_slot=self._whole_slot,
            open_stream=self._stream,
            windows=self.windows,
        )

    def _stream(self, position: Lsn, acknowledged: Lsn, binary: bool) -> Stream:
        run = self.standby
        marks = None if run is None else PlacedMarks(run.marks, run.commits, position)
        return PostgresStream(
            self.connector,
            slot=self.slot,
            publication=self.publication,
            position=position,
            acknowledged=acknowledged,
            binary=binary,
            streaming=self.settings.streaming,
            make_decoder=partial(self._decoder, on_commits=self._on_commits if marks is None else marks.add),
            check_slot=self._whole_slot,
            marks=marks,
            watch=None if run is None else TimelineWatch(self.connector, run.timeline),
        )

    @property
    def _on_commits(self) -> OnCommits | None:
        return None if self.commits is None else self.commits.add

    def _decoder(self, after: Lsn, binary: bool, on_commits: OnCommits | None = None) -> PgoutputDecoder:
        return PgoutputDecoder(
            describe=self._describe_binary if binary else self.catalog.describe,
            open_spool=self.open_spool,
            spool_bytes_max=self.settings.spool_bytes_max,
            binary=binary,
            skip_until=after.value,
            mark_prefix=mark_prefix(self.slot),
            changed=self.row_versions.changed_version,
            captures=self.catalog.lives.captures,
            hidden=HiddenChanges(self.catalog).tables,
            less_sent=self.catalog.less_sent,
            take_refused=self.catalog.take_refused,
            on_commits=on_commits,
        )

    def _describe_binary(self, relation: Relation) -> DescribedTable | None:
        described = self.catalog.describe(relation)
        if described is not None and not described.has_binary:
            raise NeedsText
        return described

    def _whole_slot(self, position: Lsn) -> Slot:
        """Return the slot, after checking that it still has everything since `position`."""
        found = self.catalog.ask(f"checking slot {self.slot}", lambda c: slot.read(c, self.slot))
        if found is None:
            raise no_slot(self.slot)
        found.check_whole(position)
        return found
