"""The address of a worker: HOST:PORT."""

from __future__ import annotations

import re
from dataclasses import dataclass

from voiceloop.errors import ConfigError

FORM = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[^\s:\[\]/@]+)):(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """A host by name or number, and a port; 0 where any free one is meant."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def read_address(where: str, text: str) -> Address:
    """Raises: ConfigError where it is none."""
    found = FORM.fullmatch(text)
    if found is None or int(found["port"]) > 65535:
        raise ConfigError(f"{where}: expected HOST:PORT, found {text[:100]!r}")
    return Address(found["six"] or found["host"], int(found["port"]))
