"""Connections to a source through an SSH server (`source.ssh`), each by a separate process of the system's ssh.

    client library ── a socket of this process ──▶ ssh -W database:port ══ encrypted ══▶ SSH server ──▶ database

ssh gets the other end of the socket as its input and output, so no row passes through Python, and nothing needs to be
supervised: a connection whose ssh ends is a connection that broke, and the next one starts its own ssh.

In the opposite case ssh would keep running: if its input closes, it only passes that on to the database, and a server
that sends a binary log does not listen. So ssh is killed when the client library closes its socket, and all ssh
processes are killed by a shell (`_Watcher`) if this process dies.

The trust decisions are on the command line, where no file can change them: the host key must be in
`source.ssh.known_hosts`, only the key in `key_file` is offered, and nothing is prompted for. No argument of ssh is a
secret. The user's and the machine's ssh_config are not read.

libpq cannot use an open socket. For it a port on loopback accepts connections while it connects, and closes. The
server's name in its certificate is still compared with the host in `source.url`, not with the address that was
connected to.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from cdcflow.config import Ssh
from cdcflow.errors import CdcflowError, ConfigurationError, RightMissing, SourceUnavailable

PROGRAM = "ssh"
CONNECT_TIMEOUT_S = 8
"""The timeout of ssh, in seconds. It is shorter than the libraries' timeouts, so that ssh reports which of the two
servers does not answer."""
ALIVE_EVERY_S, ALIVE_TIMES = 10, 3
"""ssh sends a silent server a message this often. After this many without an answer, the link counts as broken. Other
connections get the same time."""
LOGINS_AT_ONCE = 4
"""At most this many logins run at the same time: an SSH server refuses some of more than ten (`MaxStartups`)."""
ENDS_WITHIN_S = 1.0
WORDS_MAX = 4096
LOOK_EVERY_S = 0.05

_CLOSED = getattr(select, "POLLRDHUP", select.POLLHUP)

_logins = threading.BoundedSemaphore(LOGINS_AT_ONCE)


@dataclass(frozen=True, slots=True)
class Tunnel:
    """The way to one database through an SSH server. `host`: the database's host name, as the SSH server
    resolves it."""

    ssh: Ssh
    host: str
    port: int

    @contextlib.contextmanager
    def loopback_port(self) -> Iterator[int]:
        """Provide a port on loopback that leads to the database, for connections that are opened inside the block.

        Raises:
            SourceUnavailable, RightMissing, ConfigurationError: ssh failed; this error replaces the one inside the
                block.
        """
        with _logins, contextlib.closing(_Listener(self)) as listener, self._explaining(listener):
            yield listener.port

    @contextlib.contextmanager
    def connected_socket(self) -> Iterator[socket.socket]:
        """Provide a socket that leads to the database. The caller closes it.

        Raises:
            SourceUnavailable: as `loopback_port`.
        """
        with _logins:
            mine, other = socket.socketpair()
            with other:
                link = _Link(self, other)
            with self._explaining(link):
                yield mine

    @contextlib.contextmanager
    def _explaining(self, link: _Link | _Listener) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if (error := link.failure()) is not None:
                raise error from None
            raise

    def command(self) -> list[str]:
        """Return the command whose input and output are the connection."""
        return [
            *(PROGRAM, "-F", "none", "-T", "-a", "-x"),
            *("-p", str(self.ssh.port), "-l", self.ssh.user, "-i", _without_tokens(str(self.ssh.key_file))),
            *(part for name, value in self._options().items() for part in ("-o", f"{name}={value}")),
            *("-W", f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"),
            *("--", self.ssh.host),
        ]

    def _options(self) -> dict[str, object]:
        return {
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": f'"{_without_tokens(str(self.ssh.known_hosts))}"',
            "GlobalKnownHostsFile": "none",
            "UpdateHostKeys": "no",
            "VerifyHostKeyDNS": "no",
            "PreferredAuthentications": "publickey",
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "BatchMode": "yes",
            "ControlPath": "none",
            "ConnectTimeout": CONNECT_TIMEOUT_S,
            "ServerAliveInterval": ALIVE_EVERY_S,
            "ServerAliveCountMax": ALIVE_TIMES,
            "LogLevel": "INFO",  # below it ssh does not print why a database is out of reach
        }

    def check_key(self) -> None:
        """Check that ssh can use the key file and the file with host keys.

        Raises:
            ConfigurationError: a file does not exist, or every user of the machine may read the key.
        """
        for setting, path in (("key_file", self.ssh.key_file), ("known_hosts", self.ssh.known_hosts)):
            try:
                with path.open("rb") as file:
                    mode = os.fstat(file.fileno()).st_mode
            except OSError as error:
                raise ConfigurationError(
                    f"source.ssh.{setting} {path} cannot be read: {error.strerror}",
                    remedy=_add_host_key(self.ssh) if setting == "known_hosts" else None,
                    runbook="ssh-tunnel",
                ) from None
            if setting == "key_file" and mode & stat.S_IROTH:
                raise ConfigurationError(
                    f"every user of this machine can read the private key in {path}",
                    remedy=f"chmod 600 {path}",
                    runbook="ssh-tunnel",
                )


def _without_tokens(text: str) -> str:
    """Escape a path for ssh, which would otherwise replace %h and the like in it."""
    return text.replace("%", "%%")


class _Watcher:
    """Kills the ssh processes if this process dies, however that happens. They are in its process group."""

    def __init__(self) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", "read -r word; kill -9 0"], stdin=subprocess.PIPE, process_group=0
        )

    @property
    def group(self) -> int:
        return self._shell.pid

    @property
    def is_alive(self) -> bool:
        return self._shell.poll() is None


_watcher_lock = threading.Lock()
_watchers: list[_Watcher] = []


def _watched_group() -> int:
    """Return the process group for ssh. It is not the terminal's, where Ctrl-C would end the connections before the
    capture."""
    with _watcher_lock:
        if not _watchers or not _watchers[-1].is_alive:
            _watchers.append(_Watcher())
        return _watchers[-1].group


class _Link:
    """One process of ssh, whose input and output are `end`. A thread waits for it, so that no process is left over."""

    def __init__(self, tunnel: Tunnel, end: socket.socket) -> None:
        self._tunnel = tunnel
        self._words = b""
        tunnel.check_key()
        # Shows when the client closes its socket. It is closed when ssh has ended, so that the client sees that.
        self._end = end.dup()
        try:
            self._process = subprocess.Popen(  # noqa: S603  the system's ssh, without a shell
                tunnel.command(),
                stdin=end.fileno(),
                stdout=end.fileno(),
                stderr=subprocess.PIPE,
                process_group=_watched_group(),
            )
        except FileNotFoundError:
            self._end.close()
            raise ConfigurationError(
                "source.ssh needs the program ssh, which is not installed",
                remedy="install OpenSSH's client (Debian: apt install openssh-client)",
                runbook="ssh-tunnel",
            ) from None
        self._thread = threading.Thread(target=self._wait, name="ssh", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        assert self._process.stderr is not None  # noqa: S101  it is a pipe
        with self._process.stderr as pipe, self._end:
            events = select.poll()
            events.register(pipe, select.POLLIN)
            events.register(self._end, _CLOSED)
            while self._has_more(events, pipe.fileno()):
                pass
            self._process.wait()

    def _has_more(self, events: select.poll, pipe: int) -> bool:
        """Wait for the next event: output of ssh, or the client closing its socket. Return False if ssh has ended."""
        ready = {descriptor for descriptor, _ in events.poll()}
        if self._end.fileno() in ready:
            events.unregister(self._end)
            threading.Timer(ENDS_WITHIN_S, self._process.kill).start()
        if pipe not in ready:
            return True
        words = os.read(pipe, WORDS_MAX)
        self._words = (self._words + words)[-WORDS_MAX:]
        return bool(words)

    def failure(self) -> CdcflowError | None:
        """Wait for ssh to end, killing it if necessary, and return why it failed; None if it did not fail."""
        self._thread.join(ENDS_WITHIN_S)
        if self._thread.is_alive():
            self._process.kill()
            self._thread.join()
            return None
        if not self._process.returncode:
            return None
        return error_of(self._tunnel, self._words.decode("utf-8", "replace"))


class _Listener:
    """Passes each connection to a listening socket on to ssh, until it is closed. libpq may open a second connection,
    with or without TLS."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1)
        self._socket.settimeout(LOOK_EVERY_S)
        self._link: _Link | None = None
        self._error: CdcflowError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="ssh-accept", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def _accept(self) -> None:
        try:
            while not self._stop.is_set():
                with contextlib.suppress(TimeoutError):
                    end, _ = self._socket.accept()
                    with end:
                        self._link = _Link(self._tunnel, end)
        except CdcflowError as error:
            self._error = error

    def failure(self) -> CdcflowError | None:
        """Close the socket, and return why the last connection failed; None if it did not."""
        self.close()
        return self._error if self._link is None else self._link.failure()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────

_CHANGED_KEY = re.compile(r"HOST IDENTIFICATION HAS CHANGED|host key .* revoked", re.IGNORECASE)
_UNKNOWN_KEY = re.compile(r"No \S+ host key is known|Host key verification failed")
_KEY_FILE = re.compile(r"UNPROTECTED PRIVATE KEY|bad permissions|Load key|invalid format|No user exists")


def error_of(tunnel: Tunnel, words: str) -> CdcflowError:
    """Return the error for the text that ssh printed before it failed."""
    ssh = tunnel.ssh
    attempted = f"connecting to {tunnel.host}:{tunnel.port} through the SSH server {ssh}"
    said = _last_line(words)
    if _CHANGED_KEY.search(words):
        return ConfigurationError(
            f"{attempted}: the server's host key is not the one in {ssh.known_hosts}. It was replaced, or this is "
            "another server",
            remedy=f"find out why; if the key was replaced, run ssh-keygen -f {ssh.known_hosts} -R "
            f"{_name_in_known_hosts(ssh)}\n{_add_host_key(ssh)}",
            runbook="ssh-tunnel",
        )
    if _UNKNOWN_KEY.search(words):
        return ConfigurationError(
            f"{attempted}: {ssh.known_hosts} has no host key of this server",
            remedy=_add_host_key(ssh),
            runbook="ssh-tunnel",
        )
    if _KEY_FILE.search(words):
        return ConfigurationError(
            f"{attempted}: the private key in {ssh.key_file} cannot be used: {said}",
            remedy="source.ssh.key_file must be a private key without a passphrase, which only the daemon's user may "
            "read (chmod 600)",
            runbook="ssh-tunnel",
        )
    if "Permission denied" in words or "Too many authentication failures" in words:
        return SourceUnavailable(
            f"{attempted}: the server refuses user {ssh.user} with the key in {ssh.key_file}",
            remedy=f"add the public key (ssh-keygen -y -f {ssh.key_file}) to the authorized_keys of {ssh.user} there",
            runbook="ssh-tunnel",
        )
    if "administratively prohibited" in words:
        return RightMissing(
            f"{attempted}: {ssh.user} may not forward connections to this address",
            remedy="allow it in the server's sshd_config: AllowTcpForwarding local, and if PermitOpen is set, also "
            f"{tunnel.host}:{tunnel.port} there",
            runbook="ssh-tunnel",
        )
    return SourceUnavailable(f"{attempted}: {said}", runbook="ssh-tunnel")


def _last_line(words: str) -> str:
    """Return the last line that explains something; ssh's very last one often repeats that forwarding failed."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    reasons = [line for line in lines if "stdio forwarding failed" not in line]
    return (reasons or lines or ["ssh ended without a message"])[-1]


def _name_in_known_hosts(ssh: Ssh) -> str:
    return ssh.host if ssh.port == 22 else f"[{ssh.host}]:{ssh.port}"


def _add_host_key(ssh: Ssh) -> str:
    return (
        f"run ssh-keyscan -p {ssh.port} {ssh.host} >> {ssh.known_hosts}\n"
        f"then compare ssh-keygen -lf {ssh.known_hosts} with ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub on the "
        "server itself"
    )
