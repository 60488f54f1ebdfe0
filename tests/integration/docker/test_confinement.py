"""What prevents the stack's processes from writing anywhere else."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.docker.confinement import confinement


def test_confined_process_writes_only_where_it_may(tmp_path: Path) -> None:
    """A service that writes outside of its volumes works everywhere but in a container with a read-only root. Where
    Linux does not allow namespaces, nothing is confined, and this reports it.
    """
    (tmp_path / "volume").mkdir()
    before = confinement([tmp_path / "volume"])
    if not before:
        for way in (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]):
            assert subprocess.run([*way, "mount", "-o", "remount,bind,ro", "/"], check=False).returncode != 0
        return
    script = (
        f"touch {tmp_path}/volume/may && ! touch {tmp_path}/never && ! touch /never && grep CapEff /proc/self/status"
    )
    done = subprocess.run([*before, "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Read-only file system") == 2
    assert int(done.stdout.split()[1], 16) == 0
