"""Seals a part of a topic on another machine, and uploads the files with its rows to a bucket from there.

    topic ─▶ `Sealer` ─▶ this machine's temporary folder ─▶ segments/<offsets>/<attempt>-<file>     readers ignore it
                                                        └─▶ the manifest, as text, to the caller

A `StoreSealer` can be sent to another process. It contains the keys to the store, unless that machine finds keys itself
(environment, role).
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from cdcflow.log.files.layout import segment_name
from cdcflow.log.format.records import Message
from cdcflow.log.format.segment import Segment
from cdcflow.model.stores import StoreAddress
from cdcflow.sinks.files.history import TOPIC_END, Sealer
from cdcflow.sinks.objects.remote_access import bucket_at, room_for

NAMES = {"log.objects.url": "log.kafka.history", "log.objects": "log.kafka.objects"}
"""Names of the settings of a log in files, and the corresponding ones for the history of a log in Kafka."""


@dataclass(frozen=True, slots=True)
class StoreSealer:
    """Uploads the part of a topic after the history's end to a bucket, and yields what was uploaded."""

    sealer: Sealer
    url: str
    address: StoreAddress

    def __call__(self, messages: Iterable[Message]) -> Iterator[str]:
        """Upload the files of whole segments to the bucket, and yield manifest and topic position of each as JSON, in
        order.

        `messages` begin at the head of a topic range. Files get names that no other attempt uses: of two attempts that
        seal the same, neither can replace a file of the other.

        Raises:
            InvariantViolated: something is missing, or it is another log.
            SinkUnavailable: no room, or the store is unavailable.
            ConfigurationError: the store refuses, or its client library is not on this machine.
        """
        doing = f"sealing topic {self.sealer.topic} into {self.url}"
        bucket = bucket_at(self.url, self.address, doing, NAMES)
        from cdcflow.sinks.objects.upload import put_file

        with room_for(doing) as room:
            attempt = replace(self.sealer, segments=room, prefix=f"{uuid.uuid4().hex[:12]}-")
            for name in attempt(messages):
                directory = room / name
                text = (directory / "segment.json").read_bytes()
                segment = Segment.from_json(text)
                folder = f"segments/{segment_name((segment.first_offset, segment.last_offset))}"
                for file in segment.files:
                    put_file(bucket, f"{folder}/{file.path}", directory / file.path, file.sha256)
                place = json.loads((directory / TOPIC_END).read_bytes())
                shutil.rmtree(directory)
                yield json.dumps({"segment": text.decode(), "place": place})
