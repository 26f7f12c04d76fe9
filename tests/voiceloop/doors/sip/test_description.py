"""What telephones offer, what is taken of it, and what is answered."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import each_row
from voiceloop.doors.rtp.codecs import CODECS
from voiceloop.doors.sip.description import Described, LocalSound, answer, offer, parse
from voiceloop.errors import InvalidRequest

ALL = list(CODECS.values())
LOCAL = LocalSound("10.0.0.5", 20_000, 7)
PHONE = """v=0
o=- 1 1 IN IP4 10.0.0.9
s=-
c=IN IP4 10.0.0.9
t=0 0
m=audio 4000 RTP/AVP 8 0 101 13
a=rtpmap:101 telephone-event/8000
a=sendrecv
m=video 4002 RTP/AVP 96
a=rtpmap:96 H264/90000
"""


def test_the_first_of_our_codecs_that_a_phone_has_is_taken_and_its_video_refused() -> None:
    found = parse(PHONE, ALL)
    assert (found.host, found.port, found.rtcp_port) == ("10.0.0.9", 4000, 4001)
    assert (found.codec.name, found.payload_type, found.events) == ("PCMA", 8, 101)
    assert found.has_noise
    told = answer(found, LOCAL)
    assert "m=audio 20000 RTP/AVP 8 13 101\r\n" in told
    assert "m=video 0 RTP/AVP 96" in told
    assert parse(told, ALL).codec.name == "PCMA"


def test_opus_has_the_number_that_the_offer_gives_it() -> None:
    text = PHONE.replace("8 0 101 13", "8 107 101") + "a=ptime:20\n"
    text = text.replace("a=sendrecv", "a=rtpmap:107 OPUS/48000/2\na=sendrecv")
    found = parse(text, ALL)
    assert (found.codec.name, found.payload_type) == ("opus", 107)
    assert not found.has_noise
    assert "a=rtpmap:107 opus/48000/2" in answer(found, LOCAL)


@pytest.mark.parametrize(
    "old, new, is_held, direction",
    [
        ("a=sendrecv", "a=sendrecv", False, "a=sendrecv"),
        ("a=sendrecv", "a=sendonly", True, "a=recvonly"),
        ("a=sendrecv", "a=inactive", True, "a=inactive"),
        ("a=sendrecv", "a=recvonly", False, "a=sendonly"),
        ("c=IN IP4 10.0.0.9", "c=IN IP4 0.0.0.0", True, "a=sendrecv"),
    ],
)
def test_each_way_to_say_hold_is_known(old: str, new: str, is_held: bool, direction: str) -> None:
    found = parse(PHONE.replace(old, new), ALL)
    assert found.is_held == is_held
    assert direction in answer(found, LOCAL)


@pytest.mark.parametrize("names", [["pcmu"], list(CODECS)])
def test_our_own_offer_is_read_back(names: list[str]) -> None:
    codecs = [CODECS[name] for name in names]
    found = parse(offer(codecs, LOCAL), codecs)
    assert (found.codec.name.lower(), found.host, found.port) == (names[0], "10.0.0.5", 20_000)
    assert found.events == 101


@each_row(
    "text",
    [
        "", "v=0", PHONE.replace("RTP/AVP 8 0", "RTP/SAVP 8 0"), PHONE.replace("8 0 101", "18 101"),
        PHONE.replace("m=audio 4000", "m=audio 0"), PHONE.replace("c=IN", "x=IN"),
        PHONE.replace("m=audio 4000", "m=audio 99999"), PHONE + "m=audio 1 RTP/AVP 0\n" * 9,
    ],
)  # fmt: skip
def test_an_offer_that_holds_nothing_for_us_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse(text, ALL)


LINES = st.sampled_from(PHONE.splitlines()) | st.text(max_size=60)


@given(st.lists(LINES, max_size=14))
def test_any_text_is_read_and_answered_or_refused(lines: list[str]) -> None:
    with suppress(InvalidRequest):
        found = parse("\n".join(["v=0", *lines]), ALL)
        assert isinstance(found, Described)
        assert answer(found, LOCAL).startswith("v=0")
