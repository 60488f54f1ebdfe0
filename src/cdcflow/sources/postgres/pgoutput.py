"""skeleton"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdcflow.ports import OpenSpool, StreamEvent
from cdcflow.sources.postgres.types import DescribedTable


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """One column as a Relation message names it; `in_identity`: old rows carry it."""

    name: str
    type_oid: int
    type_modifier: int
    in_identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A Relation message. `identity` is `pg_class.relreplident`: d default, n nothing, f full, i index."""

    oid: int
    namespace: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


Describe = Callable[[Relation], DescribedTable]


class PgoutputDecoder:
    def __init__(
        self,
        *,
        describe: Describe,
        open_spool: OpenSpool,
        spool_bytes_max: int,
        binary: bool,
        skip_until: int,
        mark_prefix: str = "cdcflow",
    ) -> None:
        raise NotImplementedError

    @property
    def idle(self) -> bool:
        """No transaction is half here: neither an open one nor a streamed one."""
        raise NotImplementedError

    def decode(self, messages: Sequence[bytes]) -> list[StreamEvent]:
        """Each message is one XLogData with its header."""
        raise NotImplementedError
