"""A real SSH server: OpenSSH's, installed or unpacked from Debian's package, for tests of `source.ssh`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.servers import debian
from tests.servers.processes import Server

from cdcflow.demo.servers import cached
from cdcflow.demo.servers.processes import OrdinaryUser


@cache
def _program() -> tuple[str, ...]:
    installed = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if installed is not None:
        return (installed,)
    loader, *rest = cached.command(debian.unpacked("openssh-server", "bookworm"), "usr/sbin/sshd")
    return (loader, "--argv0", rest[-1], *rest)


class SshServer(Server):
    """An SSH server on loopback that lets the holder of `key` forward connections, and nothing else.

    It runs as an ordinary user, which is the one to log in as.
    """

    def __init__(self) -> None:
        super().__init__()
        self._user = OrdinaryUser.choose("sshd")
        self.folder.chmod(0o755)
        self.key, self.host_key = self.folder / "id", self.folder / "host"
        self.known_hosts = self.folder / "known_hosts"
        for path in (self.key, self.host_key):
            generate_key(path)
        self.trust(self.host_key)
        self._user.own(self.host_key)
        self.authorized = self.folder / "authorized_keys"
        shutil.copy(self.key.with_suffix(".pub"), self.authorized)

    @property
    def settings(self) -> dict[str, Any]:
        """`source.ssh` for this server."""
        found = {"host": "127.0.0.1", "port": self.port, "user": self._user.name}
        return {**found, "key_file": str(self.key), "known_hosts": str(self.known_hosts)}

    def trust(self, host_key: Path) -> None:
        """Write `known_hosts`: this key is the server's."""
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {host_key.with_suffix('.pub').read_text()}")

    def command(self) -> Sequence[str]:
        options = {
            "Port": self.port,
            "ListenAddress": "127.0.0.1",
            "HostKey": self.host_key,
            "AuthorizedKeysFile": self.authorized,
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "AllowTcpForwarding": "local",
            "LogLevel": "VERBOSE",
        }
        (self.folder / "config").write_text("".join(f"{name} {value}\n" for name, value in options.items()))
        return [*_program(), "-r", "-D", "-e", "-f", str(self.folder / "config")]

    def process_options(self) -> Mapping[str, Any]:
        return self._user.process()

    def end_connections(self) -> int:
        """Kill the processes that serve connections; returns how many there were. The server accepts new ones."""
        assert self._process is not None
        serving = _descendants(self._process.pid)
        for child in serving:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        return len(serving)

    def stop(self) -> None:
        """It answers no more, and its connections end."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)  # so that it accepts none in between
            self.end_connections()
        super().stop()

    @property
    def logins(self) -> int:
        """How many logins it has accepted."""
        return self._log.read_text(errors="replace").count("Accepted publickey")


def generate_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path], check=True)


def _descendants(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    children = [int(child) for child in found.read_text().split()] if found.exists() else []
    return [each for child in children for each in (child, *_descendants(child))]


__all__ = ["SshServer", "generate_key"]
