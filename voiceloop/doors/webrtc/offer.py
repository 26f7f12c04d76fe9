"""The offer of a WebRTC peer, and our answer to it.

Owns what is read of an offer: one line of sound with Opus, one data channel, the fingerprint of the
peer's certificate. Everything else of it is refused (other media) or left alone (its candidates, so
that nobody makes us send to an address of their choice). Pure.

Source: RFC 8866 (SDP), RFC 8839 (ICE), RFC 8842 (DTLS), RFC 8841 (SCTP), RFC 9143 (BUNDLE).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from voiceloop.doors.rtp.codecs import OPUS_FMTP
from voiceloop.doors.sdp import ANSWERED, MAX_MEDIA, MediaLine, direction_of, read, wanted

MAX_MESSAGE_BYTES = 256 * 1024  # of one message on the data channel; what browsers take
# What browsers take where their offer does not say (RFC 8841, 6.1).
DEFAULT_MESSAGE_BYTES = 64 * 1024
OPUS = re.compile(r"(\d{1,3}) opus/48000/2", re.IGNORECASE)
FINGERPRINT = re.compile(r"sha-256 ((?:[0-9A-F]{2}:){31}[0-9A-F]{2})", re.IGNORECASE)
MID = re.compile(r"[!#$%&'*+\-.^_`{|}~0-9A-Za-z]{1,32}")
PROTOCOLS = {"audio": ("UDP/TLS/RTP/SAVPF",), "application": ("UDP/DTLS/SCTP",)}

Setup = Literal["active", "passive"]
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Offer:
    """The parts of an offer that are taken.

    sound, events: the indices of their lines; events None where there is no data channel.
    opus: its payload type. setup: which end of DTLS we are. message_bytes: what the peer takes in
    one message.
    """

    media: tuple[MediaLine, ...]
    sound: int
    events: int | None
    opus: int
    fingerprint: str
    setup: Setup
    direction: str
    sctp_port: int
    message_bytes: int


@dataclass(frozen=True, slots=True)
class LocalEnd:
    """Our own end, for an answer. candidates: where the peer reaches us, the best first."""

    ufrag: str
    password: str
    fingerprint: str
    ssrc: int
    candidates: Sequence[Address]
    session_id: int


def parse_offer(text: str) -> Offer:
    """Read an offer. Raises: InvalidRequest: it is none, or holds nothing that we can serve."""
    session, media = read(text)
    bundle = _bundle_of(session)
    taken = [one for one in media if one.mid in bundle]
    sound = next((one for one in taken if _is_taken(one, "audio") and _opus_of(one)), None)
    if sound is None:
        raise wanted("a line m=audio with Opus, in a BUNDLE group", "none")
    events = next((one for one in taken if _is_taken(one, "application")), None)
    # What is bundled is described by the first line of its group that is taken (RFC 9143, 7.3).
    ends = [one for one in (sound, events) if one is not None]
    first = min(ends, key=lambda one: bundle.index(one.mid))
    described = {**session.attributes, **first.attributes}
    return Offer(
        media=tuple(media),
        sound=media.index(sound),
        events=None if events is None else media.index(events),
        opus=_opus_of(sound) or 0,
        fingerprint=_fingerprint_of(described),
        setup=_setup_of(described),
        direction=direction_of(sound.attributes),
        sctp_port=_number(events, "sctp-port", 5000, 65535),
        message_bytes=_number(events, "max-message-size", DEFAULT_MESSAGE_BYTES, 2**62)
        or MAX_MESSAGE_BYTES,
    )


def answer(offer: Offer, local: LocalEnd) -> str:
    """Our answer, in which other media than those taken are refused."""
    taken = [index for index in (offer.sound, offer.events) if index is not None]
    lines = [
        "v=0",
        f"o=- {local.session_id} 1 IN IP4 127.0.0.1",
        "s=-",
        "t=0 0",
        "a=group:BUNDLE " + " ".join(offer.media[index].mid for index in sorted(taken)),
        "a=ice-lite",
        "a=msid-semantic: WMS voiceloop",
    ]
    for index, media in enumerate(offer.media):
        if index == offer.sound:
            lines += _sound_lines(offer, local)
        elif index == offer.events:
            lines += _event_lines(offer, local)
        else:
            lines += [f"m={media.kind} 0 {media.protocol} {media.formats}", "c=IN IP4 0.0.0.0"]
            lines += [f"a=mid:{media.mid}"] if media.mid else []
    return "\r\n".join([*lines, ""])


def _sound_lines(offer: Offer, local: LocalEnd) -> list[str]:
    media, opus = offer.media[offer.sound], offer.opus
    return [
        f"m=audio {local.candidates[0][1]} {media.protocol} {opus}",
        *_end_lines(media, offer, local),
        "a=rtcp:9 IN IP4 0.0.0.0",
        "a=rtcp-mux",
        f"a={ANSWERED.get(offer.direction, offer.direction)}",
        f"a=rtpmap:{opus} opus/48000/2",
        f"a=fmtp:{opus} {OPUS_FMTP}",
        "a=ptime:20",
        "a=msid:voiceloop agent",
        f"a=ssrc:{local.ssrc} cname:voiceloop",
        f"a=ssrc:{local.ssrc} msid:voiceloop agent",
    ]


def _event_lines(offer: Offer, local: LocalEnd) -> list[str]:
    assert offer.events is not None
    media = offer.media[offer.events]
    return [
        f"m=application {local.candidates[0][1]} {media.protocol} webrtc-datachannel",
        *_end_lines(media, offer, local),
        "a=sctp-port:5000",
        f"a=max-message-size:{MAX_MESSAGE_BYTES}",
    ]


def _end_lines(media: MediaLine, offer: Offer, local: LocalEnd) -> list[str]:
    """How we are reached, and by which certificate known."""
    host, _ = local.candidates[0]
    found = [
        f"a=candidate:{number} 1 udp {2130706431 - number} {address} {port} typ host"
        for number, (address, port) in enumerate(local.candidates, 1)
    ]
    return [
        f"c=IN {'IP6' if ':' in host else 'IP4'} {host}",
        f"a=mid:{media.mid}",
        f"a=ice-ufrag:{local.ufrag}",
        f"a=ice-pwd:{local.password}",
        *found,
        "a=end-of-candidates",
        f"a=fingerprint:sha-256 {local.fingerprint}",
        f"a=setup:{offer.setup}",
    ]


def _bundle_of(session: MediaLine) -> list[str]:
    """The names in the offer's BUNDLE group: all of them go over one port."""
    for group in session.attributes.get("group", ()):
        semantics, *mids = group.split()[: MAX_MEDIA + 1] or [""]
        if semantics == "BUNDLE":
            return [mid for mid in mids if MID.fullmatch(mid)]
    return []


def _is_taken(media: MediaLine, kind: str) -> bool:
    return media.kind == kind and media.protocol in PROTOCOLS[kind]


def _opus_of(media: MediaLine) -> int | None:
    """The payload type of Opus, among those that the line names."""
    for mapped in media.attributes.get("rtpmap", ()):
        found = OPUS.fullmatch(mapped.strip())
        # RFC 3551, 6: a dynamic one; below them stand types that RTCP's would be taken for.
        if found and 96 <= int(found[1]) <= 127 and found[1] in media.formats.split():
            return int(found[1])
    return None


def _fingerprint_of(described: dict[str, list[str]]) -> str:
    for value in described.get("fingerprint", ()):
        if found := FINGERPRINT.fullmatch(value.strip()):
            return found[1].upper()
    raise wanted("a line a=fingerprint:sha-256", "none")


def _setup_of(described: dict[str, list[str]]) -> Setup:
    offered = next(iter(described.get("setup", ())), "actpass").strip()
    if offered == "active":
        return "passive"
    if offered in ("actpass", "passive"):
        return "active"
    raise wanted("a=setup:actpass, active or passive", f"{offered[:40]!r}")


def _number(media: MediaLine | None, name: str, default: int, most: int) -> int:
    value = (media.first(name) if media is not None else None) or str(default)
    if not re.fullmatch(r"\d{1,18}", value.strip()) or int(value) > most:
        raise wanted(f"a={name} of at most {most}", f"{value[:40]!r}")
    return int(value)
