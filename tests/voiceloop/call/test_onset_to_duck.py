"""How soon a caller who begins with a sound that is no voice hears the agent get quieter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.fakes import FakeRecognizer, SpeechProbability, quiet, tone
from voiceloop.agent import BargeIn
from voiceloop.call import actions as do
from voiceloop.call.actions import Step
from voiceloop.call.turn_taking import CallStatus, ReplyStatus, TurnTaking
from voiceloop.listening.events import UserTurn
from voiceloop.listening.listener import Listener, ListenerOptions
from voiceloop.realtime.settings import AudioFormat, SemanticVad, SessionSettings
from voiceloop.reply.playout import Pacer
from voiceloop.telemetry.record import TurnRecord

pytestmark = pytest.mark.virtual_time
HZ = 16_000
FRAME_MS = 20
WINDOW = 512  # of the detector, 32 ms
SPEAKS_FROM_MS = 1000.0
# The bar of issue 16: onset to the agent's quieter sound at a client that plays at once.
DUCKED_MS = 130.0
SETTINGS = SessionSettings(turn_detection=SemanticVad(), input_format=AudioFormat("audio/pcm", HZ))
STATUS = CallStatus(SETTINGS, ReplyStatus("r", is_audible=True, heard_ms=9e3))
ASKED = UserTurn(0, ("two", "lattes"), 0.0, 800.0, 0.0, 0.0, TurnRecord("turn"))
FRESH = CallStatus(SETTINGS, ReplyStatus("r", is_audible=True, heard_ms=300.0, answers=ASKED))


class HissVad:
    """As Silero hears "stop": 0.25 in a window with hiss of its own, 1.0 with mostly a vowel.

    Windows lie at every 32 ms, and between them where it looks there.
    """

    def __init__(self, hiss: float = 0.25) -> None:
        self._hiss = hiss
        self._heard = np.zeros(0, np.int16)
        self._n_told = 0
        self._looks_between = False

    def look_between(self, does: bool) -> None:
        self._looks_between = does

    def feed(self, samples: np.ndarray) -> Sequence[SpeechProbability]:
        self._heard = np.concatenate((self._heard, samples))
        found = []
        while (end := (self._n_told + 1) * WINDOW // 2 + WINDOW // 2) <= len(self._heard):
            window = self._heard[end - WINDOW : end].astype(float)
            level = float(np.sqrt((window * window).mean()))
            probability = 1.0 if level > 2000 else self._hiss if level > 150 else 0.0
            is_between = self._n_told % 2 == 1
            self._n_told += 1
            if self._looks_between or not is_between:
                found.append(SpeechProbability(end, probability, is_between))
        return found


SAID_MS = 120 + 40 + 300


def stop(later_ms: float) -> np.ndarray:
    """ "stop" in a quiet room: 120 ms of hiss, a closure of 40, a vowel."""
    hiss = np.random.default_rng(1).normal(0, 300, 120 * HZ // 1000).astype(np.int16)
    before = quiet(SPEAKS_FROM_MS + later_ms, HZ)
    return np.concatenate((before, hiss, quiet(40, HZ), tone(300, HZ), quiet(600, HZ)))


def heard_of_the_agent(
    caller: np.ndarray, vad: HissVad, status: CallStatus = STATUS
) -> list[tuple[float, int]]:
    """When a client that plays at once has played each chunk, and its last sample.

    The clock is the caller's audio: a frame comes every 20 ms and is acted on at once.
    """
    turn_taking, pacer = TurnTaking(BargeIn()), Pacer(8000)
    listener = Listener(
        recognizer=FakeRecognizer(["stop"]),
        options=ListenerOptions(),
        settings=SETTINGS,
        vad=vad,
        clock=lambda: 0.0,
        stream_id="s",
        deliver=lambda events: None,
    )
    pacer.push(np.full(8 * 4000, 1000, np.int16))
    played: list[tuple[float, int]] = []
    now_ms = 0.0
    for start in range(0, len(caller) - HZ * FRAME_MS // 1000 + 1, HZ * FRAME_MS // 1000):
        for _ in range(FRAME_MS):  # the playout's own clock runs meanwhile
            now_ms += 1.0
            while (chunk := pacer.next_chunk(now_ms / 1000.0)) is not None:
                played.append((1000.0 * pacer.play_end_s, int(chunk.samples[-1])))
        frame = caller[start : start + HZ * FRAME_MS // 1000]
        for event in listener.feed(frame.tobytes()):
            for action in turn_taking.on(event, status):
                if (faded := act(pacer, action)) is not None:
                    played.append((1000.0 * pacer.play_end_s, faded))
    return played


def act(pacer: Pacer, action: do.Action) -> int | None:
    """What a reply's playout does; the last sample of what it sends at once."""
    match action:
        case Step.REDUCE_LEAD:
            pacer.reduce_lead()
        case Step.DUCK:
            pacer.duck()
        case Step.RESUME:
            pacer.resume()
        case Step.PAUSE if (chunk := pacer.pause()) is not None:
            return int(chunk.samples[-1])
    return None


@pytest.mark.parametrize("later_ms", range(0, 160, 3))  # all places in frames and windows
async def test_an_unvoiced_beginning_is_heard_to_duck_the_agent_in_time(later_ms: int) -> None:
    onset_ms = SPEAKS_FROM_MS + later_ms
    played = heard_of_the_agent(stop(later_ms), HissVad())
    while_said = [one for one in played if onset_ms < one[0] < onset_ms + SAID_MS]
    loud_ms = [at_ms - onset_ms for at_ms, sample in while_said if sample == 1000]
    assert loud_ms and max(loud_ms) <= DUCKED_MS  # and it stays so: the closure is no end
    assert any(sample < 1000 for _, sample in while_said)


@pytest.mark.parametrize("later_ms", range(0, 160, 17))
async def test_over_an_answer_that_has_just_begun_the_first_sound_silences_the_agent(
    later_ms: int,
) -> None:
    onset_ms = SPEAKS_FROM_MS + later_ms
    played = heard_of_the_agent(stop(later_ms), HissVad(), FRESH)
    sounded_ms = [at_ms - onset_ms for at_ms, _ in played if onset_ms < at_ms < onset_ms + SAID_MS]
    assert max(sounded_ms) <= DUCKED_MS


async def test_a_hiss_in_which_no_voice_can_be_ducks_nothing() -> None:
    hiss = np.random.default_rng(1).normal(0, 300, 400 * HZ // 1000).astype(np.int16)
    room = quiet(SPEAKS_FROM_MS, HZ)
    played = heard_of_the_agent(np.concatenate((room, hiss, room)), HissVad(hiss=0.05))
    assert {sample for _, sample in played} == {1000}


async def test_a_sound_that_comes_to_nothing_ducks_the_agent_until_it_is_over() -> None:
    hiss = np.random.default_rng(1).normal(0, 300, 150 * HZ // 1000).astype(np.int16)
    room = quiet(SPEAKS_FROM_MS, HZ)
    sound = np.concatenate((room, hiss, room))
    played = heard_of_the_agent(sound, HissVad())
    paused = heard_of_the_agent(sound, HissVad(), FRESH)
    assert paused[-1][1] == 1000 and len(paused) < len(played)  # nothing of it is lost
    softer = [at_ms for at_ms, sample in played if sample < 1000]
    assert softer and softer[-1] <= SPEAKS_FROM_MS + 150 + 160  # a closure and the lead after it
    assert played[-1][1] == 1000
