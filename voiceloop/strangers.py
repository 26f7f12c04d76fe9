"""The acts that anybody can do from outside, and their counting: networks, lines of the log.

Those are told apart who could be somebody else: not by address, of which one customer has 2^64.
"""

from __future__ import annotations

import ipaddress
import logging

LOG_EVERY_S = 60.0


def network_of(address: str) -> str:
    """The network an address counts for: of IPv6 the /64, which one customer has; "": this machine.

    A proxy on this machine stands for many.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""  # a Unix socket's peer has none
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_loopback:
        return ""
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


class OnceAMinute(logging.Filter):
    """The warnings that anybody can bring about: one line of each kind a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.WARNING:
            return True
        if record.created - self._logged_at.get(record.msg, 0.0) < LOG_EVERY_S:
            return False
        self._logged_at[record.msg] = record.created
        return True
