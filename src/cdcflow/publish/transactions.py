"""BEGIN and END of each transaction, in a separate topic."""

from __future__ import annotations

import pyarrow as pa

from cdcflow.publish import envelope
from cdcflow.publish.connect import Schema
from cdcflow.publish.events import Messages, TransactionGroup
from cdcflow.publish.formats import MessageFormat
from cdcflow.publish.message_columns import render

_COLLECTIONS = pa.list_(pa.struct([("data_collection", pa.string()), ("event_count", pa.int64())]))


class TransactionEvents:
    """Makes the messages of the transaction topic."""

    def __init__(self, prefix: str, form: MessageFormat) -> None:
        self.topic = envelope.topic_name(prefix, "transaction")
        self._writer = form.writer
        self._key_frame = form.frame(self.topic, "key", envelope.TRANSACTION_KEY)
        self._value_frame = form.frame(self.topic, "value", envelope.TRANSACTION_VALUE)

    def messages(self, group: TransactionGroup) -> Messages:
        """The messages of the transactions with an event, in order.

        Backfill chunks are no transactions of the source.
        """
        transactions = group.transactions
        read = transactions.is_read
        found = [i for i in sorted(group.counts) if not read[i]]
        ms = transactions.commit_us // 1000
        rows: list[tuple[str, str, int | None, list[dict[str, object]] | None, int]] = []
        for i in found:
            name, when = group.positions[i].id, int(ms[i])
            counts = group.counts[i]
            tables = [{"data_collection": str(t), "event_count": n} for t, n in counts.items()]
            rows.append(("BEGIN", name, None, None, when))
            rows.append(("END", name, sum(counts.values()), tables, when))
        status, names, event_counts, collections, times = zip(*rows, strict=True) if rows else ((),) * 5
        ids = pa.array(names, pa.string())
        columns = [
            pa.array(status, pa.string()),
            ids,
            pa.array(event_counts, pa.int64()),
            pa.array(collections, _COLLECTIONS),
            pa.array(times, pa.int64()),
        ]
        return Messages(
            self.topic,
            self._record([ids], envelope.TRANSACTION_KEY),
            self._record(columns, envelope.TRANSACTION_VALUE),
            self._key_frame,
            self._value_frame,
        )

    def _record(self, columns: list[pa.Array], schema: Schema) -> list[bytes | None]:
        cells = [render(c, s, self._writer) for c, (_, s) in zip(columns, schema.fields, strict=True)]
        found: list[bytes | None] = self._writer.record(cells, schema).to_pylist()
        return found
