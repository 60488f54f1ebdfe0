"""The host names under which this server accepts requests.

A web page in a user's browser can send requests here under its own host name that resolves to 127.0.0.1 (DNS
rebinding). So a request must name this server by an address, `localhost`, or a name from the settings.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection


def is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this server: by address, or by one of `names`."""
    name = host.lower().rpartition(":")[0] if _has_port(host) else host.lower()
    name = name.strip("[]")
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def port_of(host: str) -> str:
    """The port of a Host header; "" if it has no port."""
    return host.rpartition(":")[2] if _has_port(host) else ""


def _has_port(host: str) -> bool:
    return host.rpartition(":")[2].isdigit() and (host.count(":") == 1 or "]:" in host)
