"""A telephone's offer to hear and speak, and our answer; or our offer, and its answer.

Owns which codec a call has: the first of ours that the far end takes. Pure.

Source: RFC 3264 (offer and answer), RFC 3551, RFC 4733 (digits), RFC 3389 (comfort noise), RFC 5761
(both kinds of packets on one port).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from voiceloop.doors.rtp.codecs import Codec
from voiceloop.doors.rtp.digits import EVENT_HZ
from voiceloop.doors.sdp import (
    ANSWERED,
    DIRECTIONS,
    MediaLine,
    direction_of,
    read,
    wanted,
)

RTPMAP = re.compile(r"(\d{1,3}) ([\w.\-]{1,32})/(\d{1,6})(?:/(\d))?")
COMFORT_NOISE = 13
OFFERED_OPUS, OFFERED_EVENTS = 96, 101
PROTOCOLS = ("RTP/AVP", "RTP/AVPF")
UNROUTED = ("0.0.0.0", "::")  # RFC 2543's way to say hold


@dataclass(frozen=True, slots=True)
class Described:
    """The agreed form of a call's sound.

    host, port: where the far end hears us. codec: what both send; its number there is
    ``payload_type``. events: the payload type of digits, None where there are none; events_hz: its
    clock. has_noise: comfort noise is understood. direction: as the far end sees it. rtcp_port:
    where it takes reports. media: the offer's lines, None where the offer is ours.
    """

    host: str
    port: int
    codec: Codec
    payload_type: int
    events: int | None
    events_hz: int
    has_noise: bool
    direction: str
    rtcp_port: int
    media: tuple[MediaLine, ...]
    taken: int

    @property
    def is_held(self) -> bool:
        """The far end does not listen."""
        return self.direction in ("sendonly", "inactive") or self.host in UNROUTED


@dataclass(frozen=True, slots=True)
class LocalSound:
    """The description of our own end. version: one more each time that this changes."""

    host: str
    port: int
    session_id: int
    version: int = 1


def parse(text: str, codecs: Sequence[Codec]) -> Described:
    """Return what of an offer or an answer is taken. codecs: ours, the best first.

    Raises: InvalidRequest: it is none, or none of its sound is for us.
    """
    session, media = read(text)
    for index, line in enumerate(media):
        is_sound = line.kind == "audio" and line.protocol in PROTOCOLS and line.port
        if is_sound and (found := _described(session, line, codecs)) is not None:
            return replace(found, media=tuple(media), taken=index)
    names = ", ".join(codec.name for codec in codecs)
    raise wanted(f"a line m=audio by RTP/AVP with one of {names}", "none")


def answer(offer: Described, local: LocalSound) -> str:
    """Our answer: the codec that is taken, other media refused."""
    direction = ANSWERED.get(offer.direction, offer.direction)
    lines = _head(local)
    for index, line in enumerate(offer.media):
        if index != offer.taken:
            lines.append(f"m={line.kind} 0 {line.protocol} {line.formats}")
            continue
        types = [(offer.codec, offer.payload_type)]
        events = (offer.events, offer.events_hz)
        lines += _sound(line.protocol, types, events, offer.has_noise, local.port, direction)
        lines += ["a=rtcp-mux"] if "rtcp-mux" in line.attributes else []
    return "\r\n".join([*lines, ""])


def offer(codecs: Sequence[Codec], local: LocalSound, direction: str = "sendrecv") -> str:
    """Ours: all that we have."""
    types = [
        (codec, OFFERED_OPUS if codec.payload_type is None else codec.payload_type)
        for codec in codecs
    ]
    sound = _sound("RTP/AVP", types, (OFFERED_EVENTS, EVENT_HZ), True, local.port, direction)
    return "\r\n".join([*_head(local), *sound, ""])


def _head(local: LocalSound) -> list[str]:
    family = "IP6" if ":" in local.host else "IP4"
    return [
        "v=0",
        f"o=voiceloop {local.session_id} {local.version} IN {family} {local.host}",
        "s=-",
        f"c=IN {family} {local.host}",
        "t=0 0",
    ]


def _sound(
    protocol: str,
    types: Sequence[tuple[Codec, int]],
    events: tuple[int | None, int],
    has_noise: bool,
    port: int,
    direction: str,
) -> list[str]:
    formats = [str(number) for _, number in types]
    maps = [f"a=rtpmap:{number} {codec.rtpmap}" for codec, number in types]
    maps += [f"a=fmtp:{number} {codec.fmtp}" for codec, number in types if codec.fmtp]
    if has_noise:
        formats.append(str(COMFORT_NOISE))
        maps.append(f"a=rtpmap:{COMFORT_NOISE} CN/8000")
    event, event_hz = events
    if event is not None:
        formats.append(str(event))
        maps += [f"a=rtpmap:{event} telephone-event/{event_hz}", f"a=fmtp:{event} 0-15"]
    named = " ".join(formats)
    return [f"m=audio {port} {protocol} {named}", *maps, "a=ptime:20", f"a={direction}"]


def _described(session: MediaLine, line: MediaLine, codecs: Sequence[Codec]) -> Described | None:
    """Return what of this line is taken; None where no codec of it is ours."""
    maps = _maps(line)
    chosen = next(
        (
            (codec, number)
            for codec in codecs
            for number, (name, clock_hz) in maps.items()
            if name == codec.name.lower() and clock_hz == codec.clock_hz
        ),
        None,
    )
    host = line.connection or session.connection
    if chosen is None or not host:
        return None
    if line.port > 65535:
        raise wanted("a port of at most 65535", f"{line.port}")
    codec, number = chosen
    kinds = {hz: one for one, (name, hz) in maps.items() if name == "telephone-event"}
    events_hz = codec.clock_hz if codec.clock_hz in kinds else EVENT_HZ
    own = any(name in line.attributes for name in DIRECTIONS)
    return Described(
        host=host,
        port=line.port,
        codec=codec,
        payload_type=number,
        events=kinds.get(events_hz),
        events_hz=events_hz,
        has_noise=COMFORT_NOISE in maps and codec.clock_hz == 8_000,
        direction=direction_of(line.attributes if own else session.attributes),
        rtcp_port=_rtcp_port(line),
        media=(),
        taken=0,
    )


def _maps(line: MediaLine) -> dict[int, tuple[str, int]]:
    """Name and clock of each format of the line, in its order."""
    named = {
        0: ("pcmu", 8_000),
        8: ("pcma", 8_000),
        9: ("g722", 8_000),
        COMFORT_NOISE: ("cn", 8_000),
    }
    for value in line.attributes.get("rtpmap", ()):
        if found := RTPMAP.match(value.strip()):
            named[int(found[1])] = (found[2].lower(), int(found[3]))
    numbers = [int(one) for one in line.formats.split() if re.fullmatch(r"\d{1,3}", one)]
    return {number: named[number] for number in numbers if number in named and number < 128}


def _rtcp_port(line: MediaLine) -> int:
    if "rtcp-mux" in line.attributes:
        return line.port
    found = re.match(r"(\d{1,5})\b", line.first("rtcp") or "")
    port = int(found[1]) if found else line.port + 1
    return port if 0 < port <= 65535 else line.port
