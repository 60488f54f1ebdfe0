"""Gives every row event of a stream a second opinion, not only a sample."""

from __future__ import annotations

from typing import Any

from tests.support.mysql.controlled_source import MySQLCapture

from cdcflow.capture.ports.source import EventComparison
from cdcflow.sources.mysql.event_samples import EventGroup, EventSample, EventSamples, sample_of
from cdcflow.sources.mysql.opinion_exclusions import can_read
from cdcflow.sources.mysql.second_opinion import compare
from cdcflow.sources.mysql.tables import DescribedTable


class AllSamples(EventSamples):
    """Keeps each row event that the library can read."""

    def __init__(self) -> None:
        super().__init__(can_read)
        self.kept: list[EventSample] = []

    def wants(self, described: DescribedTable) -> bool:
        return can_read(described)

    def keep(self, group: EventGroup) -> None:
        found = (sample_of(group, nth) for nth in range(len(group.at)))
        self.kept += [sample for sample in found if sample is not None]


def sampling_all(capture: MySQLCapture) -> AllSamples:
    """Have the capture's stream keep all row events. Before it is opened."""
    samples = AllSamples()
    capture.source._samples = samples
    return samples


def differences(samples: AllSamples, flavor: Any) -> list[EventComparison]:
    """What differs between the decoders and the library."""
    return [found for sample in samples.kept if not (found := compare(sample, flavor)).is_equal]
