"""What seals a part of a topic on another machine, and puts the files with its rows into a bucket from there.

    topic ─▶ `Sealer` ─▶ this machine's temporary folder ─▶ segments/<offsets>/<attempt>-<file>     no reader looks
                                                        └─▶ the manifest, as text, to the one who asked

It can be sent to another process, with the keys to the store in it. Where that machine finds keys by itself (its
environment, its role), there need be none.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cdcflow.changelog.layout import segment_name
from cdcflow.changelog.records import Message
from cdcflow.changelog.segment import Segment
from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.stores import StoreAddress
from cdcflow.sinks.history import TOPIC_END, Sealer
from cdcflow.sinks.layer import storing

NAMES = {"log.objects.url": "log.kafka.history", "log.objects": "log.kafka.objects"}
"""What the settings of a log in files are called where the history of a log in Kafka is meant."""


@dataclass(frozen=True, slots=True)
class StoreSealer:
    """Puts what a topic has behind the history's end into a bucket, and tells what was put."""

    sealer: Sealer
    url: str
    address: StoreAddress

    def __call__(self, messages: Iterable[Message]) -> Iterator[str]:
        """Segments whose files are in the bucket, in order: manifest and place as JSON. `messages` begin at a topic
        range's head.

        Files get names that no other attempt has: of two that seal the same, neither can replace what is the other's.

        Raises:
            InvariantViolated: something is missing, or it is another log.
            SinkUnavailable: no room, or the store is away.
            ConfigurationError: the store refuses, or its client library is not on this machine.
        """
        try:
            from cdcflow.sinks.objects.bucket import AlreadyThere, Bucket
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"sealing into {self.url}: the package {error.name} is not installed on the machine that seals",
                remedy="pip install 'cdcflow[objects]' on every machine of the cluster",
                runbook="package-missing",
            ) from None
        bucket = Bucket.at(self.url, lambda _: self.address, NAMES)
        # Spark names its disks to the processes that it starts, and removes what they leave there.
        disk = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
        with storing(f"making a folder for sealing topic {self.sealer.topic}"):
            room = tempfile.TemporaryDirectory(prefix="cdcflow-", dir=disk)
        with room:
            attempt = replace(self.sealer, segments=Path(room.name), prefix=f"{uuid.uuid4().hex[:12]}-")
            for name in attempt(messages):
                directory = Path(room.name) / name
                text = (directory / "segment.json").read_bytes()
                segment = Segment.from_json(text)
                folder = f"segments/{segment_name((segment.first_offset, segment.last_offset))}"
                for file in segment.files:
                    try:
                        bucket.put_new(f"{folder}/{file.path}", directory / file.path)
                    except AlreadyThere:
                        # A request that was made again after its answer was lost. Its content has our sha256.
                        if bucket.hash_of(f"{folder}/{file.path}") != file.sha256:
                            raise InvariantViolated(
                                f"writing {self.url}/{folder}/{file.path}: it exists already", runbook="log-damaged"
                            ) from None
                place = json.loads((directory / TOPIC_END).read_bytes())
                shutil.rmtree(directory)
                yield json.dumps({"segment": text.decode(), "place": place})


__all__ = ["NAMES", "StoreSealer"]
