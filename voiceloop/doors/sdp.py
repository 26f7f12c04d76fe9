"""A session description, read: what holds for the session, and each line of media.

Owns the bounds on what a stranger may write, and what doors answer alike. Pure.

Source: RFC 8866.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from voiceloop.errors import InvalidRequest

MAX_OFFER_BYTES = 64 * 1024
MAX_MEDIA = 4  # a browser's page offers two, a telephone with a screen three
MEDIA = re.compile(
    r"(audio|video|application|text|message|image) (\d{1,5})(?:/\d{1,5})? ([!-~]{1,64}) "
    r"([!-~][ -~]{0,255})"  # an answer repeats it: no other end of a line hides in it
)
CONNECTION = re.compile(r"IN IP[46] ([0-9A-Za-z.:\-]{1,253})")
DIRECTIONS = ("sendrecv", "sendonly", "recvonly", "inactive")
ANSWERED = {"sendonly": "recvonly", "recvonly": "sendonly"}  # the others are their own answer


@dataclass(slots=True)
class MediaLine:
    """One line of the offer, as it stood: ``kind``, port, the protocol and the formats behind it.

    connection: the host that its own line c= names.
    """

    kind: str
    port: int
    protocol: str
    formats: str
    attributes: dict[str, list[str]]
    connection: str = ""

    def first(self, name: str) -> str | None:
        return next(iter(self.attributes.get(name, ())), None)

    @property
    def mid(self) -> str:
        return self.first("mid") or ""


def read(text: str) -> tuple[MediaLine, list[MediaLine]]:
    """Return what holds for the whole session, and its media. Raises: InvalidRequest."""
    if len(text) > MAX_OFFER_BYTES:
        raise wanted(f"at most {MAX_OFFER_BYTES} characters", f"{len(text)}")
    lines = text.split("\n")
    if lines[0].strip() != "v=0":
        raise wanted("a session description that begins with v=0", f"{lines[0].strip()[:40]!r}")
    session = MediaLine("session", 0, "", "", {})
    media: list[MediaLine] = []
    for line in lines:
        kind, _, value = line.strip().partition("=")
        if kind == "m":
            found = MEDIA.fullmatch(value)
            if found is None:
                raise wanted("a line m=KIND PORT PROTOCOL FORMATS", f"{value[:40]!r}")
            if len(media) == MAX_MEDIA:
                raise wanted(f"at most {MAX_MEDIA} lines m=", "more")
            name, port, protocol, formats = found.groups()
            media.append(MediaLine(name, int(port), protocol, formats, {}))
        elif kind == "c" and (found := CONNECTION.match(value)):
            (media or [session])[-1].connection = found[1]
        elif kind == "a":
            name, _, value = value.partition(":")
            (media or [session])[-1].attributes.setdefault(name, []).append(value)
    return session, media


def direction_of(attributes: dict[str, list[str]]) -> str:
    """Return which way its sound goes, as the offerer sees it."""
    return next((name for name in DIRECTIONS if name in attributes), DIRECTIONS[0])


def wanted(what: str, found: str) -> InvalidRequest:
    return InvalidRequest(f"sdp: expected {what}, found {found}", param="sdp", code="invalid_offer")
