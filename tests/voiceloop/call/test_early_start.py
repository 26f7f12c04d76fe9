"""An answer that begins before the turn is over, and is taken back where the caller goes on."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from audio.frames import VAD_WINDOW_MS
from clients.connection import typed
from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, instant_backends
from voiceloop.agent import AgentConfig, BargeIn
from voiceloop.backends import Backends, Partial
from voiceloop.call.connection import Hello
from voiceloop.call.turn_taking import Agent
from voiceloop.config import Ahead, Config
from voiceloop.errors import WorkerLost
from voiceloop.listening import endpointing
from voiceloop.listening.endpointing import Endpointing
from voiceloop.listening.endpointing import wait_ms as endpointing_wait_ms
from voiceloop.listening.release import SOFT_PRICE
from voiceloop.listening.segment import EARLY_MS
from voiceloop.reply.anticipation import Preemptive

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
WORDS = "i want a latte with oat milk and a muffin please"
BOTH = [("user", "i want a latte"), ("assistant", "You said i want a latte.")]
TYPED = typed("hi")
STARTED, STOPPED = "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"
COMMITTED = "input_audio_buffer.committed"
COMPLETED = "conversation.item.input_audio_transcription.completed"
AUDIO, DONE = "response.output_audio.delta", "response.done"


@pytest.fixture(autouse=True)
def unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every end is likely and none is sure, whatever the fitted weights say."""
    monkeypatch.setattr(Endpointing, "unsure_ms", lambda self, end: 200.0)


def backends() -> Backends:
    """A word every 200 ms of sound, and a reply that is held within the pause."""
    return instant_backends(
        recognizer=FakeRecognizer([WORDS], ms_per_word=200),
        language_model=FakeLanguageModel(
            lambda m: f"You said {m[-1].content}.", p_end_of_turn=lambda text: 0.5
        ),
        voice=FakeVoice(),
    )


async def open_call(caller: Caller) -> None:
    heard = {"transcription": {"model": "any"}}
    caller.send("session.update", session={"type": "realtime", "audio": {"input": heard}})
    await caller.wait_for("session.updated")


async def until_it_begins(caller: Caller, speech_ms: float = 800) -> float:
    """Speak, and wait for the first sound of the answer; returns when that came."""
    await open_call(caller)
    await caller.say(speech_ms)
    await caller.listen_until(AUDIO)
    return caller.of(AUDIO)[0].at_s


async def until_it_is_taken_back(caller: Caller) -> None:
    """The caller goes on as soon as the answer has begun."""
    await until_it_begins(caller)
    await caller.wait_quietly(60)
    await caller.say(200)


def sound_of(caller: Caller, response: int) -> NDArray[np.int16]:
    """What was sent of the call's first (0) or a later response."""
    response_id = caller.of("response.created")[response].event["response"]["id"]
    deltas = [r.event for r in caller.of(AUDIO) if r.event["response_id"] == response_id]
    return np.frombuffer(b"".join(base64.b64decode(e["delta"]) for e in deltas), "<i2")


def said(caller: Caller) -> list[tuple[str, str]]:
    messages = caller.session.protocol.shown.messages()
    return [(message.role, message.content) for message in messages]


def count(caller: Caller, kind: str) -> float | None:
    value: float | None = caller.services.metrics.registry.get_sample_value(
        "voiceloop_cuts_total", {"kind": kind}
    )
    return value


async def test_the_answer_begins_before_its_turn_is_over_and_the_wire_sees_an_ordinary_turn(
    clock: Clock,
) -> None:
    async with Caller(clock, backends()) as caller:
        began_s = await until_it_begins(caller)
        await caller.listen_until(DONE)
        await caller.wait_quietly(100)
        assert said(caller) == [
            ("user", "i want a latte"),
            ("assistant", "You said i want a latte."),
        ]
    order = [STARTED, STOPPED, COMMITTED, "response.created", AUDIO, COMPLETED, DONE]
    assert [t for t in dict.fromkeys(caller.types()) if t in order] == order
    (completed,) = caller.of(COMPLETED)
    assert 1000 * (completed.at_s - began_s) == pytest.approx(EARLY_MS, abs=20)
    item_id = caller.of(COMMITTED)[0].event["item_id"]
    assert {r.event["item_id"] for r in (*caller.of(STARTED), completed)} == {item_id}
    (told,) = caller.of("voiceloop.timeline")
    timeline = told.event["timeline"]
    assert timeline["endpoint"]["early"] and "cut" not in timeline
    assert timeline["marks"]["endpoint_decision"] <= timeline["marks"]["first_byte_on_wire"]


async def test_who_goes_on_is_heard_over_40_ms_of_the_answer_and_takes_it_back(
    clock: Clock,
) -> None:
    async with Caller(clock, backends()) as caller:
        await until_it_begins(caller)
        await caller.wait_quietly(120)
        onset_s = clock()
        await caller.say(600)
        last_s = max(r.at_s for r in caller.of(AUDIO))
        (started,) = caller.of(STARTED)[1:]
        await caller.listen_until(DONE, count=2)
        whole = "i want a latte with oat milk"
        assert said(caller) == [("user", whole), ("assistant", f"You said {whole}.")]
        assert (count(caller, "soft"), count(caller, "hard")) == (1.0, None)
    assert last_s - onset_s <= 0.04 and started.at_s - onset_s <= 0.1
    received = caller.transport.received
    assert received.index(started) < received.index(caller.of(DONE)[0])
    assert caller.statuses() == ["cancelled", "completed"]
    item_id = caller.of(COMMITTED)[0].event["item_id"]
    assert len(caller.of(COMMITTED)) == 1 and started.event["item_id"] == item_id
    (completed,) = caller.of(COMPLETED)
    assert (completed.event["item_id"], completed.event["transcript"]) == (item_id, whole)
    deltas = caller.of("conversation.item.input_audio_transcription.delta")
    assert whole.startswith("".join(r.event["delta"] for r in deltas))  # none is told twice
    assert caller.of("voiceloop.timeline")[0].event["timeline"]["cut"] == "soft"


# Who goes on is heard with the detector's next window.
@pytest.mark.parametrize("wait_ms", range(0, int(EARLY_MS - VAD_WINDOW_MS), 20))
async def test_whenever_the_caller_goes_on_no_sound_is_lost_and_none_is_heard_twice(
    clock: Clock, wait_ms: int
) -> None:
    async with Caller(clock, backends()) as caller:
        await until_it_begins(caller)
        await caller.wait_quietly(wait_ms)
        await caller.say(600)
        await caller.listen_until(DONE, count=2)
        whole = "i want a latte with oat milk"  # a word for each 200 ms of the two stretches
        assert said(caller) == [("user", whole), ("assistant", f"You said {whole}.")]
        assert caller.statuses() == ["cancelled", "completed"]
        assert count(caller, "soft") == 1.0


async def test_an_answer_that_may_be_taken_back_fades_in_until_it_would_be_sure_100_ms_at_most(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    loudest, told = [], []
    for unsure_ms in (200.0, 40.0, 0.0):
        monkeypatch.setattr(Endpointing, "unsure_ms", lambda self, end, ms=unsure_ms: ms)
        async with Caller(clock, backends()) as caller:
            await until_it_begins(caller)
            await caller.listen_until("voiceloop.timeline")
        told += [one.event["timeline"].get("fade_in_ms") for one in caller.of("voiceloop.timeline")]
        sound = np.abs(sound_of(caller, 0).astype(int))
        loudest.append([int(sound[ms * 24 : (ms + 10) * 24].max()) for ms in (0, 20, 40, 90, 120)])
    early, nearly_sure, sure = loudest
    assert early[0] < 0.05 * sure[0] and early[1] < 0.25 * sure[1] and early[2] < 0.6 * sure[2]
    assert early[3] > 0.9 * sure[3] and early[4] == sure[4]
    assert nearly_sure[0] < 0.25 * sure[0] and 0.5 * sure[1] < nearly_sure[1] < sure[1]
    assert nearly_sure[2:] == sure[2:]
    assert told == [100, 40, None]  # clients take half of it for a part of the gap


async def test_a_click_takes_the_answer_back_and_the_same_draft_begins_again_from_its_start(
    clock: Clock,
) -> None:
    made = backends()
    model = made.language_model
    assert isinstance(model, FakeLanguageModel)
    made.recognizer.script = lambda n: "i want a latte"  # type: ignore[attr-defined]
    async with Caller(clock, made) as caller:
        await until_it_begins(caller)
        n_attempts = sum(len(branch.attempts) for branch in model.branches)
        await caller.wait_quietly(100)
        await caller.say(40)
        await caller.listen_until(DONE, count=2)
        assert sum(len(branch.attempts) for branch in model.branches) == n_attempts
        assert said(caller) == [
            ("user", "i want a latte"),
            ("assistant", "You said i want a latte."),
        ]
    assert caller.statuses() == ["cancelled", "completed"]
    second = caller.of("response.created")[1].event["response"]["id"]
    assert caller.transcript(second) == "You said i want a latte."


async def test_a_call_whose_starts_were_taken_back_by_noise_alone_has_no_more_of_them(
    clock: Clock,
) -> None:
    made = backends()
    made.recognizer.script = lambda n: "i want a latte"  # type: ignore[attr-defined]
    early = []
    async with Caller(clock, made) as caller:
        await open_call(caller)
        for turn in range(4):
            n_sounds = len(caller.of(AUDIO))
            await caller.say(800)
            await caller.listen_until(AUDIO, count=n_sounds + 1)
            n_done = len(caller.of(COMPLETED))
            early.append(n_done == turn)  # its words are not final yet
            await caller.wait_quietly(60)
            await caller.say(40)
            await caller.wait_quietly(4000)
    assert early == [True, True, False, False]


@pytest.mark.parametrize("act", [
    {"type": "response.cancel"},
    {"type": "input_audio_buffer.clear"},
    {"type": "conversation.item.create", "item": TYPED},
    {"type": "session.update", "session": {"type": "realtime", "audio": {"input": {
        "turn_detection": None}}}},
], ids=lambda act: act["type"])  # fmt: skip
async def test_an_answer_stays_as_soon_as_the_client_acts_on_it(
    clock: Clock, act: dict[str, Any]
) -> None:
    async with Caller(clock, backends()) as caller:
        await until_it_begins(caller)
        await caller.wait_quietly(60)
        caller.send(**act)
        await caller.wait_quietly(40)
        (completed,) = caller.of(COMPLETED)
        assert completed.event["transcript"] == "i want a latte"
        await caller.wait_quietly(3000)
    assert caller.statuses() == ["cancelled" if act["type"] == "response.cancel" else "completed"]
    assert not caller.of("error") and len(caller.of(COMMITTED)) == 1


async def test_a_client_that_clears_after_it_was_taken_back_keeps_the_words_that_were_certain(
    clock: Clock,
) -> None:
    async with Caller(clock, backends()) as caller:
        await until_it_is_taken_back(caller)
        caller.send("input_audio_buffer.clear")
        await caller.wait_for("input_audio_buffer.cleared")
        (completed,) = caller.of(COMPLETED)
        assert completed.event["transcript"] == "i want a"
        await caller.say(800)
        await caller.listen_until(DONE, count=2)
    assert len(caller.of(COMMITTED)) == 2


async def test_words_that_change_in_the_pause_take_the_answer_back_and_another_is_given(
    clock: Clock,
) -> None:
    made = backends()
    async with Caller(clock, made) as caller:
        await until_it_begins(caller)
        listener = caller.session._call._listener
        changed = Partial(0, (), ("i", "want", "a", "mocha"), flushed=True)
        listener.on_partial(listener._recognition.segment, changed)
        await caller.listen_until(DONE, count=2)
        await caller.wait_quietly(100)
        assert said(caller)[0] == ("user", "i want a mocha")
    assert caller.statuses() == ["cancelled", "completed"]
    assert count(caller, "soft") is None
    order = [r.type for r in caller.transport.received if r.type in (STARTED, STOPPED, DONE)]
    assert order == [STARTED, STOPPED, STARTED, DONE, STOPPED, DONE]  # a client flushes, and waits
    assert len({r.event["item_id"] for r in caller.of(STARTED)}) == 1
    told = [r.event["timeline"] for r in caller.of("voiceloop.timeline")]
    assert [one["outcome"] for one in told] == ["cancelled", "completed"]
    assert told[0]["endpoint"]["reason"] == told[1]["endpoint"]["reason"] and "cut" not in told[0]


async def test_who_goes_on_after_changed_words_took_the_answer_back_is_announced(
    clock: Clock,
) -> None:
    made = backends()
    model = made.language_model
    assert isinstance(model, FakeLanguageModel)
    model.p_end_of_turn = lambda text: 0.3 if text.endswith("latte") else 0.0001
    async with Caller(clock, made) as caller:
        await until_it_begins(caller)
        listener = caller.session._call._listener
        changed = Partial(0, (), ("i", "want", "a", "mocha", "and"), flushed=True)
        listener.on_partial(listener._recognition.segment, changed)
        await caller.wait_quietly(20)
        n_started, onset_s = len(caller.of(STARTED)), clock()
        await caller.say(600)
        started = caller.of(STARTED)[n_started:]
        assert len(started) == 1 and started[0].at_s - onset_s <= 0.1
        assert started[0].event["item_id"] == caller.of(COMMITTED)[0].event["item_id"]
        await caller.listen_until(DONE, count=2)
    assert caller.statuses() == ["cancelled", "completed"] and len(caller.of(COMMITTED)) == 1


async def test_a_client_that_commits_after_it_was_taken_back_ends_the_item_that_stands(
    clock: Clock,
) -> None:
    async with Caller(clock, backends()) as caller:
        await until_it_is_taken_back(caller)
        caller.send("input_audio_buffer.commit")
        await caller.wait_for(COMPLETED)
        await caller.wait_quietly(100)
        first, again = (r.event for r in caller.of(COMMITTED))
        assert first["item_id"] == again["item_id"]
        assert first["previous_item_id"] == again["previous_item_id"]
        (completed,) = caller.of(COMPLETED)
        assert completed.event["item_id"] == first["item_id"]
        assert len(said(caller)) == 1
    assert not caller.of("error")


async def test_a_draft_that_the_model_gave_up_does_not_begin_early(clock: Clock) -> None:
    """A service that lost the rest cannot go on where the caller would have heard it begin."""
    async with Caller(clock, backends()) as caller:
        await open_call(caller)
        preemptive = caller.session._call._replies.preemptive
        await caller.say(800)
        while preemptive.held_words is None:
            await caller.wait_quietly(20)
        assert preemptive._live is not None
        preemptive._live.preemptive = Preemptive.LOST
        assert preemptive.held_words is None and preemptive.start_early(50.0) is None
        await caller.listen_until(DONE)
    assert caller.statuses() == ["completed"]


@pytest.mark.parametrize("is_known", [True, False])
async def test_an_early_answer_whose_rest_nobody_promises_is_taken_back_and_given_anew(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """is_known: the model has told that it lost the rest, before the turn is over."""
    made = backends()
    async with Caller(clock, made) as caller:
        await until_it_begins(caller)
        live = caller.session._call._replies.preemptive._live
        assert live is not None and live._branch is not None
        if is_known:
            live.preemptive = Preemptive.LOST
        commit = live._branch.commit

        def breaks(*args: Any) -> bool:
            commit(*args)
            return False

        monkeypatch.setattr(live._branch, "commit", breaks)
        await caller.listen_until(DONE, count=2)
        await caller.wait_quietly(100)
        assert said(caller) == BOTH
    assert caller.statuses() == ["cancelled", "completed"]
    told = [r.event["timeline"] for r in caller.of("voiceloop.timeline")]
    assert [one["outcome"] for one in told] == ["cancelled", "completed"]
    assert told[0]["endpoint"] and told[0]["response_ids"] != told[1]["response_ids"]


@pytest.mark.parametrize(("n_lost", "statuses"), [
    (1, ["completed"]),  # it goes on behind the last word that was there
    (2, ["failed", "completed"]),  # and once is enough: the turn is answered anew
])  # fmt: skip
async def test_a_voice_that_fails_under_an_early_answer_leaves_the_call_alive(
    clock: Clock, n_lost: int, statuses: list[str]
) -> None:
    made = backends()
    assert isinstance(made.voice, FakeVoice)
    made.voice.ms_per_audio_word = 600.0  # most of it is still to come
    async with Caller(clock, made) as caller:
        await until_it_begins(caller)
        for _ in range(n_lost):
            for stream in tuple(made.voice.open_streams):
                stream._pipe._queue.put_nowait(WorkerLost("expected a voice, found none"))
            await caller.wait_quietly(20)
        await caller.listen_until(DONE, count=len(statuses))
        await caller.wait_quietly(100)
        assert said(caller)[-1] == ("assistant", "You said i want a latte.")
    assert caller.statuses() == statuses


@pytest.fixture
def prices(monkeypatch: pytest.MonkeyPatch) -> set[float]:
    """At which a cut that is taken back was weighed, of one that stays."""
    seen: set[float] = set()

    def weigh(*args: Any) -> float:
        seen.add(args[-1])
        return endpointing_wait_ms(*args)

    monkeypatch.setattr(endpointing, "wait_ms", weigh)
    return seen


@pytest.mark.parametrize(("off", "price"), [
    (Config(anticipation=Ahead(("early_start",))), 1.0),
    (Config(anticipation=Ahead(("held_clause",))), SOFT_PRICE),  # what begins is taken back still
    (AgentConfig(barge_in=BargeIn(speakers="nobody")), 1.0),
])  # fmt: skip
async def test_nothing_begins_early_where_it_could_not_be_taken_back_or_is_switched_off(
    clock: Clock, off: Config | AgentConfig, price: float, prices: set[float]
) -> None:
    options: dict[str, Any] = {"config" if isinstance(off, Config) else "agent": off}
    async with Caller(clock, backends(), **options) as caller:
        await until_it_begins(caller)
        assert len(caller.of(COMPLETED)) == 1
        await caller.listen_until(DONE)
        await caller.wait_quietly(100)
    assert not caller.of("voiceloop.timeline")[0].event["timeline"]["endpoint"]["early"]
    assert prices == {price}


@pytest.mark.parametrize("settings", [
    {"turn_detection": {"type": "semantic_vad", "interrupt_response": False}},
    {"turn_detection": {"type": "semantic_vad", "create_response": False}},
], ids=["interrupt_response", "create_response"])  # fmt: skip
async def test_a_session_whose_answers_stay_pays_for_each_cut_in_full(
    clock: Clock, settings: dict[str, Any], prices: set[float]
) -> None:
    async with Caller(clock, backends()) as caller:
        await open_call(caller)
        caller.send("session.update", session={"type": "realtime", "audio": {"input": settings}})
        await caller.wait_for("session.updated", count=2)
        await caller.say(800)
        await caller.listen_until(COMPLETED)
        assert caller.session._call._turn_taking.agent is not Agent.EARLY
    assert prices == {1.0}


async def test_a_session_that_transcribes_pays_for_each_cut_in_full(
    clock: Clock, prices: set[float]
) -> None:
    async with Caller(clock, backends(), hello=Hello(intent="transcription")) as caller:
        await caller.say(800)
        await caller.listen_until(COMPLETED)
    assert prices == {1.0}


async def test_a_cut_that_can_be_taken_back_is_weighed_as_one(
    clock: Clock, prices: set[float]
) -> None:
    async with Caller(clock, backends()) as caller:
        await until_it_begins(caller)
    assert prices == {SOFT_PRICE}


async def test_who_goes_on_behind_a_sure_end_is_heard_over_40_ms_of_the_answer_too(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpointing, "unsure_ms", lambda self, end: 0.0)
    async with Caller(clock, backends()) as caller:
        await until_it_begins(caller)
        await caller.wait_quietly(120)
        onset_s = clock()
        await caller.say(600)
        last_s = max(r.at_s for r in caller.of(AUDIO))
        await caller.listen_until(DONE, count=2)
        assert caller.statuses() == ["cancelled", "completed"]
    assert last_s - onset_s <= 0.04


async def test_a_client_that_stops_sending_within_a_sound_hears_the_whole_answer(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpointing, "unsure_ms", lambda self, end: 0.0)
    async with Caller(clock, backends()) as caller:
        await until_it_begins(caller)
        await caller.wait_quietly(120)
        await caller.say(30)
        await caller.wait_for(DONE)
        assert caller.statuses() == ["completed"]
