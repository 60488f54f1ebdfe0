"""Under which names this server may be asked.

A web page in somebody's browser can be made to ask us under a name of its own that points to 127.0.0.1 (DNS
rebinding). So a request must name us by an address, `localhost`, or a name from the settings.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection


def is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names us: by address, or by one of `names`."""
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
    """The port of a Host header; "" where it has none."""
    return host.rpartition(":")[2] if _has_port(host) else ""


def _has_port(host: str) -> bool:
    return host.rpartition(":")[2].isdigit() and (host.count(":") == 1 or "]:" in host)
