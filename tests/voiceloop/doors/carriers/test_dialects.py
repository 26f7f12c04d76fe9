"""What each carrier says is read as its documents write it, and nothing else breaks a reader."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.errors import AudioError
from benchmarks.phone.peers import PEERS, TOKEN, PlivoPeer
from voiceloop.doors.carriers.dialect import (
    Asked,
    Dialect,
    Heard,
    Played,
    Pressed,
    Started,
    Stopped,
    Way,
)
from voiceloop.doors.carriers.door import (
    MOST_EARLY_BYTES,
    MOST_UNPROVED,
    Carrier,
    Open,
    Waiting,
    opening,
)
from voiceloop.doors.carriers.plivo import Plivo, PlivoStream
from voiceloop.doors.carriers.telnyx import Telnyx, TelnyxStream
from voiceloop.doors.carriers.twilio import SignalWire, Twilio, TwilioStream
from voiceloop.doors.carriers.vonage import Vonage, VonageStream
from voiceloop.doors.pbx.asterisk import AsteriskStream
from voiceloop.doors.pbx.audiosocket import AudioSocketStream
from voiceloop.errors import InvalidRequest, Unproved
from voiceloop.telephony import PhoneCall

DIALECTS: dict[str, type[Dialect]] = {
    "twilio": TwilioStream, "signalwire": TwilioStream, "telnyx": TelnyxStream,
    "plivo": PlivoStream, "vonage": VonageStream, "asterisk": AsteriskStream,
    "audiosocket": AudioSocketStream,
}  # fmt: skip
TICKET = "00000000-0000-0000-0000-0000000000aa"
EVIL = '"><Say>a & b</Say>'
WAY = Way("wss://v.example/s", EVIL, "https://v.example/after")
CARRIERS: list[Carrier] = [
    Twilio(TOKEN), SignalWire(TOKEN), Telnyx(""), Plivo(TOKEN), Vonage(TOKEN),
]  # fmt: skip


@pytest.mark.parametrize("name", list(DIALECTS))
def test_a_stream_is_read_from_its_start_to_its_stop(name: str) -> None:
    peer, dialect = PEERS[name](), DIALECTS[name]()
    told = [dialect.read(frame) for frame in peer.opening(TICKET)]
    [started] = [one for one in told if isinstance(one, Started)]
    assert (started.encoding, started.rate_hz) == (peer.encoding, peer.rate_hz)
    payload = bytes(range(160))
    sound = dialect.read(peer.sound(payload))
    assert isinstance(sound, Heard) and sound.payload == payload
    assert dialect.read(peer.digit("#")) == Pressed("#")
    assert peer.told(dialect.media(bytes(640))).payload == bytes(640)
    marked = dialect.mark("7")
    assert (marked is None) == (name in ("asterisk", "audiosocket"))
    if marked is not None:
        assert peer.told(marked).name == "7"
        played = peer.played("7")
        assert played is not None and dialect.read(played) == Played("7")
        clear = dialect.clear()
        assert clear is not None and peer.told(clear).kind == "clear"
    if name in ("twilio", "signalwire", "telnyx", "plivo"):
        assert dialect.read(peer.stop()) == Stopped()


def test_the_agents_own_sound_is_not_taken_for_the_callers() -> None:
    media = {"event": "media", "media": {"track": "outbound", "payload": "AAAA"}}
    assert TwilioStream().read(json.dumps(media)) is None


TEXTS = st.text(max_size=80) | st.sampled_from([
    '{"event":"start"}', '{"event":"media","media":{"payload":"%"}}', '{"event":["x"]}',
    '{"event":"start","start":{"mediaFormat":{"encoding":"audio/L16"}}}', "MEDIA_START", "[" * 99,
    '{"event":"media","media":{"payload":7,"chunk":{}}}', '{"event":"websocket:connected"}',
])  # fmt: skip


@pytest.mark.parametrize("name", [one for one in DIALECTS if one != "audiosocket"])
@given(TEXTS | st.binary(max_size=80))
def test_whatever_comes_raises_documented_errors_alone(name: str, frame: str | bytes) -> None:
    dialect = DIALECTS[name]()
    try:
        dialect.read(frame)
    except (InvalidRequest, AudioError):
        pass


@given(st.binary(min_size=3, max_size=80))
def test_audiosocket_reads_any_frame_or_refuses_it(frame: bytes) -> None:
    try:
        AudioSocketStream().read(frame)
    except (InvalidRequest, AudioError):
        pass


@pytest.mark.parametrize("carrier", CARRIERS, ids=lambda one: one.name)
def test_an_answer_is_well_formed_whatever_it_names(carrier: Carrier) -> None:
    call = PhoneCall(carrier.name, id="CA1")
    answers = [
        carrier.connect(call, WAY), carrier.busy(), carrier.over(),
        carrier.dial(call, f"tel:{EVIL}", WAY), carrier.dial(call, f"sip:{EVIL}", WAY),
    ]  # fmt: skip
    for answer in answers:
        if carrier.media_type == "application/json":
            assert isinstance(json.loads(answer), list)
        else:
            verbs = {one.tag for one in ElementTree.fromstring(answer).iter()}
            assert "Say" not in verbs


@pytest.mark.parametrize("carrier", CARRIERS, ids=lambda one: one.name)
def test_a_ring_that_names_no_call_is_refused(carrier: Carrier) -> None:
    with pytest.raises(InvalidRequest):
        carrier.ring(Asked("https://v.example", {}, 0.0, b"{}"))


def test_a_number_of_a_piece_that_is_no_decimal_is_passed_over() -> None:
    frame = {"event": "media", "media": {"payload": "AAAA", "chunk": "²"}}
    assert TelnyxStream().read(json.dumps(frame)) == Heard(bytes(3))


class Flood:
    """A far end that says nothing but sound."""

    def __init__(self) -> None:
        self.n_frames = 0

    async def receive(self) -> bytes:
        self.n_frames += 1
        return bytes(60_000)

    async def send(self, data: str | bytes) -> None: ...

    async def close(self, code: int = 1000, reason: str = "") -> None: ...


async def test_little_sound_is_kept_of_who_has_not_said_what_it_is_of() -> None:
    flood = Flood()
    with pytest.raises(Unproved):
        await opening(flood, VonageStream(), "192.0.2.7", deque())
    assert 60_000 * flood.n_frames <= MOST_EARLY_BYTES + 60_000


class Late:
    """A far end that says what it is of when it is told to."""

    def __init__(self, start: str) -> None:
        self._start = start
        self.may_start = asyncio.Event()

    async def receive(self) -> str:
        await self.may_start.wait()
        return self._start

    async def send(self, data: str | bytes) -> None: ...

    async def close(self, code: int = 1000, reason: str = "") -> None: ...


async def test_a_strangers_many_streams_push_out_none_but_their_own() -> None:
    waiting: Waiting = deque()
    (start,) = PlivoPeer().opening(TICKET)
    assert isinstance(start, str)

    def streams(*addresses: str) -> list[tuple[Late, asyncio.Task[Open]]]:
        ends = [(Late(start), address) for address in addresses]
        return [
            (end, asyncio.create_task(opening(end, PlivoStream(), address, waiting)))
            for end, address in ends
        ]

    callers = streams("192.0.2.1", "2001:db8:1::1")
    await asyncio.sleep(0)
    strangers = streams(*(f"2001:db8:2::{n:x}" for n in range(2 * MOST_UNPROVED)))
    for end, _ in callers:
        await asyncio.sleep(0.01)
        end.may_start.set()
    assert [(await task).started.ticket for _, task in callers] == [TICKET, TICKET]
    assert sum(task.done() for _, task in strangers) == MOST_UNPROVED + 2
    for _, task in strangers:
        task.cancel()
    await asyncio.gather(*(task for _, task in strangers), return_exceptions=True)
    assert not waiting


def test_a_channel_that_speaks_plain_text_is_told_the_option_it_lacks() -> None:
    with pytest.raises(InvalidRequest, match=r"f\(json\) in the dial string"):
        AsteriskStream().read("MEDIA_START connection_id:1 format:ulaw")
