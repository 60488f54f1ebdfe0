"""A standby of a private PostgreSQL server: copied with `pg_basebackup`, and streaming from it."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import threading
from collections.abc import Iterator, Mapping

from tests.servers.postgres import PostgresServer
from tests.support.polling import wait_until

SNAPSHOT_EACH_S = 0.2
FOLLOWS: Mapping[str, str] = {"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s"}
_numbers = itertools.count(1)


class Standby(PostgresServer):
    """Follows `primary` through a separate physical slot. A context manager, as its primary."""

    def __init__(self, primary: PostgresServer, **settings: str) -> None:
        self.primary = primary
        self.slot = f"standby_{next(_numbers)}"
        address = f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres"
        follows = {"primary_conninfo": address, "primary_slot_name": self.slot, **FOLLOWS}
        super().__init__(primary.bin_directory, settings={**follows, **settings})
        primary.execute(f"SELECT pg_create_physical_replication_slot('{self.slot}', true)")
        self._user.own(self.directory)
        subprocess.run(
            [self.bin_directory / "pg_basebackup", "-d", address, "-D", self.data, "-X", "stream", "-c", "fast"],
            check=True,
            capture_output=True,
            cwd="/",
            **self._user.process(),
        )
        (self.data / "standby.signal").touch()

    def promote(self) -> None:
        """Make it a primary, and wait until it is one."""
        self.execute("SELECT pg_promote(wait => true)")

    def wait_for_replay(self) -> None:
        """Wait until it has replayed all that its primary has written so far."""
        ((end,),) = self.primary.execute("SELECT pg_current_wal_insert_lsn()")
        self.primary.execute("SELECT pg_switch_wal()")  # also what no commit has flushed
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
        wait_until(lambda: self.execute(replayed) == [(True,)], "the standby to replay its log", more=self.log_tail)

    @contextlib.contextmanager
    def snapshots(self) -> Iterator[None]:
        """Inside, the primary logs its running transactions often, as an operator does for a slot's creation."""
        done = threading.Event()

        def log_them() -> None:
            with self.primary.connect(autocommit=True) as connection:
                while not done.wait(SNAPSHOT_EACH_S):
                    connection.execute("SELECT pg_log_standby_snapshot()")

        thread = threading.Thread(target=log_them)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
