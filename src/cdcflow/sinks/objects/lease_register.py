"""The records of a lease in an object store: one small object for each renewal, written only if it does not exist.

That condition is all that the store must support. A record is removed when it is much older than the lease's duration:
a daemon that was suspended before it wrote one finds the object, or knows by its clock that its answer proves nothing.
"""

from __future__ import annotations

from cdcflow.sinks.objects.upload import put_first
from cdcflow.stores.bucket import AlreadyThere, Bucket

FOLDER = "lease"
KEPT = 20
"""How many of the latest records are kept: far more than are written in the duration of a lease."""
REMOVED_AT_ONCE = 10


class BucketRegister:
    """Implements `cdcflow.capture.ports.lease.Register`."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._oldest: int | None = None
        self._is_checked = False

    def latest(self) -> tuple[int, bytes] | None:
        names = sorted(self._bucket.list_objects(FOLDER))
        if not names:
            return None
        self._oldest = int(names[0])
        try:
            return int(names[-1]), self._bucket.get(f"{FOLDER}/{names[-1]}")
        except FileNotFoundError:  # removed since it was listed, because there are newer ones
            return self.latest()

    def add(self, number: int, content: bytes) -> bool:
        if not self._put(_name(number), content):
            return False
        self._remove_old(number)
        return True

    def _put(self, name: str, content: bytes) -> bool:
        """Write a record. Return false if it exists. The first call checks that the store supports conditional
        writes."""
        if not self._is_checked:
            self._is_checked = put_first(self._bucket, name, content)
            return self._is_checked
        try:
            self._bucket.put_new(name, content)
        except AlreadyThere:
            return False
        return True

    def close(self) -> None:
        """Do nothing: no connection is held."""

    def _remove_old(self, number: int) -> None:
        oldest = number if self._oldest is None else self._oldest
        self._oldest = oldest
        if number - oldest >= KEPT + REMOVED_AT_ONCE:
            self._bucket.delete([_name(old) for old in range(oldest, number - KEPT)])
            self._oldest = number - KEPT


def _name(number: int) -> str:
    return f"{FOLDER}/{number:020d}"
