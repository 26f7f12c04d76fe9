"""Offers as browsers write them, as nobody should, and what we answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aiortc.sdp import SessionDescription
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tables import each_row
from voiceloop.doors.webrtc.offer import LocalEnd, answer, parse_offer
from voiceloop.errors import InvalidRequest

PRINT = ":".join(["AB"] * 32)
OTHER_PRINT = ":".join(["CD"] * 32)
# As Chrome writes it, shortened: the page also offers video, which we refuse.
OFFER = f"""v=0
o=- 4611731400430051336 2 IN IP4 127.0.0.1
s=-
t=0 0
a=group:BUNDLE 0 1 2
a=extmap-allow-mixed
a=msid-semantic: WMS stream
m=audio 9 UDP/TLS/RTP/SAVPF 111 63 0 8 126
c=IN IP4 0.0.0.0
a=rtcp:9 IN IP4 0.0.0.0
a=candidate:1 1 udp 2113937151 10.0.0.1 5000 typ host
a=ice-ufrag:abcd
a=ice-pwd:abcdefghijklmnopqrstuv
a=ice-options:trickle
a=fingerprint:sha-256 {PRINT}
a=setup:actpass
a=mid:0
a=sendrecv
a=rtcp-mux
a=rtpmap:111 opus/48000/2
a=fmtp:111 minptime=10;useinbandfec=1
a=rtpmap:63 red/48000/2
a=rtpmap:0 PCMU/8000
a=rtpmap:126 telephone-event/8000
m=video 9 UDP/TLS/RTP/SAVPF 96
a=fingerprint:sha-256 {PRINT}
a=setup:actpass
a=mid:1
a=rtpmap:96 VP8/90000
m=application 9 UDP/DTLS/SCTP webrtc-datachannel
c=IN IP4 0.0.0.0
a=fingerprint:sha-256 {PRINT}
a=setup:actpass
a=mid:2
a=sctp-port:5000
a=max-message-size:262144
""".replace("\n", "\r\n")
LOCAL = LocalEnd("ufrag123", "p" * 24, OTHER_PRINT, 7, [("192.0.2.1", 8443), ("::1", 8443)], 99)


def test_sound_and_events_are_taken_and_the_rest_refused() -> None:
    offer = parse_offer(OFFER)
    assert (offer.opus, offer.fingerprint, offer.setup) == (111, PRINT, "active")
    assert (offer.sctp_port, offer.message_bytes) == (5000, 262144)
    text = answer(offer, LOCAL)
    told = SessionDescription.parse(text)  # another's reading of it
    sound, video, events = told.media
    assert [group.items for group in told.group] == [["0", "2"]]
    assert (sound.port, video.port, events.port) == (8443, 0, 8443)
    assert [codec.mimeType for codec in sound.rtp.codecs] == ["audio/opus"]
    assert sound.rtp.codecs[0].parameters["useinbandfec"] == 1
    assert sound.ssrc[0].ssrc == 7 and sound.direction == "sendrecv"
    for media in (sound, events):
        assert media.ice.iceLite and media.ice.usernameFragment == "ufrag123"
        assert [(one.ip, one.port) for one in media.ice_candidates] == LOCAL.candidates
        assert media.dtls.fingerprints[0].value == OTHER_PRINT and media.dtls.role == "client"
    assert "10.0.0.1" not in text  # theirs


@pytest.mark.parametrize(
    ("offered", "answered"),
    [("sendrecv", "sendrecv"), ("sendonly", "recvonly"), ("recvonly", "sendonly")],
)
def test_the_direction_is_answered(offered: str, answered: str) -> None:
    offer = parse_offer(OFFER.replace("a=sendrecv", f"a={offered}"))
    assert f"\r\na={answered}\r\n" in answer(offer, LOCAL)


def test_an_end_that_begins_dtls_itself_is_waited_for() -> None:
    assert parse_offer(OFFER.replace("setup:actpass", "setup:active")).setup == "passive"


def test_what_the_first_of_the_bundle_says_holds_for_all() -> None:
    text = OFFER.replace("BUNDLE 0 1 2", "BUNDLE 2 1 0")
    first, _, last = text.rpartition(f"a=fingerprint:sha-256 {PRINT}")
    offer = parse_offer(f"{first}a=fingerprint:sha-256 {OTHER_PRINT}{last}")
    assert offer.fingerprint == OTHER_PRINT


def test_a_page_may_offer_sound_alone() -> None:
    offer = parse_offer(OFFER[: OFFER.index("m=video")].replace(" 0 1 2", " 0"))
    assert offer.events is None
    assert len(SessionDescription.parse(answer(offer, LOCAL)).media) == 1


@each_row(
    ("changed", "into", "told"),
    [
        ("v=0", "v=1", "v=0"),
        ("a=group:BUNDLE 0 1 2", "a=group:LS 0", "BUNDLE"),
        ("opus/48000/2", "speex/8000", "Opus"),
        ("111 63 0 8 126", "0 8", "Opus"),
        ("rtpmap:111 opus", "rtpmap:9999 opus", "Opus"),
        ("UDP/TLS/RTP/SAVPF 111", "RTP/AVP 111", "m=audio"),
        ("fingerprint:sha-256", "fingerprint:sha-1", "sha-256"),
        ("setup:actpass", "setup:holdconn", "setup"),
        ("sctp-port:5000", "sctp-port:x", "sctp-port"),
        ("max-message-size:262144", f"max-message-size:{10**30}", "max-message-size"),
        ("m=video 9", "m=video", "m=KIND"),
        ("m=video", "m=video 9 UDP/TLS/RTP/SAVPF 96\r\nm=text 0 x 9\r\nm=video", "at most 4"),
        ("s=-", "s=" + "x" * 70_000, "at most"),
    ],
)
def test_an_offer_that_cannot_be_served_is_refused(changed: str, into: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told) as caught:
        parse_offer(OFFER.replace(changed, into))
    assert caught.value.wire_code == "invalid_offer"


LINES = OFFER.split("\r\n")


@given(
    cuts=st.lists(st.integers(0, len(LINES) - 1), max_size=8),
    noise=st.lists(st.tuples(st.integers(0, len(OFFER)), st.text(max_size=12)), max_size=6),
)
@example(cuts=[], noise=[(OFFER.index(" 96\r") + 4, "0")])  # a bare carriage return
def test_any_text_is_an_offer_or_refused(cuts: list[int], noise: list[tuple[int, str]]) -> None:
    text = "\r\n".join(line for index, line in enumerate(LINES) if index not in cuts)
    for at, what in noise:
        text = text[:at] + what + text[at:]
    try:
        offer = parse_offer(text)
    except InvalidRequest:
        return
    told = answer(offer, replace(LOCAL, ssrc=1))
    assert told.count("\r\nm=") == len(offer.media) <= 4
    assert all(len(line.splitlines()) <= 1 for line in told.split("\r\n"))  # nothing slipped in
