"""Carries out the machine's requests to the source outside the stream: plans, marks, chunks, snapshots, on a few
threads.

Each answer is an input for the machine. A task that fails is an answer too (`ChunkFailed`): the machine abandons the
window and continues; only a contradiction in cdcflow itself ends the attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue

from cdcflow.capture.interleave.messages import (
    ChunkFailed,
    Input,
    MarkWritten,
    PlanTable,
    ReadChunk,
    SnapshotTaken,
    TakeSnapshot,
    WriteMark,
)
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.threads import Threads
from cdcflow.errors import ConfigurationError, RightMissing, SourceUnavailable
from cdcflow.model.table import TableId, word

SourceTask = PlanTable | WriteMark | ReadChunk | TakeSnapshot


class SourceTasks:
    """Runs tasks on threads; `answers` are taken by the loop."""

    def __init__(
        self, chunks: ChunkSource, count: int, wake: Callable[[], None], threads: Threads | None = None
    ) -> None:
        self._chunks = chunks
        self._wake = wake
        self._answers: SimpleQueue[Input | BaseException] = SimpleQueue()
        self._pool = (threads or Threads()).pool("cdcflow-source-task", count)

    def send(self, task: SourceTask) -> None:
        self._pool.submit(self._answer, lambda: self._run(task), _table_of(task))

    def call(self, work: Callable[[], Input | None]) -> None:
        """Run other work that needs a connection (a heartbeat); it may return an input for the machine, or None."""
        self._pool.submit(self._answer, work, None)

    def answers(self) -> list[Input]:
        """Return the answers since the last call. Raises an error that no answer can express."""
        found: list[Input] = []
        while True:
            try:
                answer = self._answers.get_nowait()
            except Empty:
                return found
            if isinstance(answer, BaseException):
                raise answer
            found.append(answer)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._chunks.close()
        self._pool.shutdown(wait=True)

    def _answer(self, work: Callable[[], Input | None], table: TableId | None) -> None:
        answer: Input | BaseException | None
        try:
            answer = work()
        except (SourceUnavailable, RightMissing) as error:
            # A revoked right may be granted again: nothing is wrong with what was read so far.
            answer = ChunkFailed(table, str(error), retry=True)
        except ConfigurationError as error:
            answer = ChunkFailed(table, _of_backfill(str(error), table), retry=False) if table else error
        except BaseException as error:  # noqa: BLE001 - raised again by the loop's thread, in `answers`
            answer = error
        if answer is not None:
            self._give(answer)

    def _give(self, answer: Input | BaseException) -> None:
        self._answers.put(answer)
        self._wake()

    def _run(self, task: SourceTask) -> Input | None:
        match task:
            case PlanTable(table, generation, keys_only):
                planned = self._chunks.plan(table, 0 if keys_only else generation)
                return replace(planned, generation=generation)
            case WriteMark(token, reads):
                self._chunks.write_mark(token)
                self._give(MarkWritten(token))
                for read in reads:
                    self.send(read)
                return None
            case ReadChunk(chunk):
                return self._chunks.read_chunk(chunk)
            case TakeSnapshot():
                return SnapshotTaken(self._chunks.snapshot())


def _of_backfill(reason: str, table: TableId) -> str:
    """Return an error's text, with the remedy that fits a table whose backfill fails because of the error.

    The capture continues, and a start reads the table again only if a setting for its values was changed.
    """
    return reason.replace(
        "then start again",
        "then start again or run `cdcflow apply`; where you changed the table or its rows, "
        f"`cdcflow backfill {word(table)}`",
    )


def _table_of(task: SourceTask) -> TableId | None:
    match task:
        case PlanTable(table):
            return table
        case ReadChunk(chunk):
            return chunk.table
        case _:
            return None
