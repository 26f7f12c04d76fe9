"""No dead call: whatever happens in whatever order, the caller is heard and answered after it."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from clients.connection import typed
from tests.callers import Caller
from tests.fakes import (
    FakeLanguageModel,
    FakeRecognizer,
    FakeVoice,
    Fault,
    calls_first,
    instant_backends,
)
from voiceloop.agent import AgentConfig, AgentTool, Crisis, Waiting
from voiceloop.backends import Backends, ChatMessage
from voiceloop.call.turn_taking import Agent
from voiceloop.knowledge.answers import ApprovedAnswer

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
FUZZ = int(os.environ.get("VOICELOOP_FUZZ", "1"))  # times as many random calls
ACTS = (
    "say say say wait wait cancel truncate create clear commit item vad manual stall delete".split()
)
LONG = "this is a rather long answer that goes on and on for quite some time so one can interrupt"


def scripted(seed: int, **faults: list[Fault]) -> Backends:
    chance = random.Random(seed)
    return Backends(
        FakeRecognizer(
            ["what time is it", "stop that now", "yeah", "i'd like a coffee and", "no"],
            ms_per_word=chance.choice([80.0, 150.0, 250.0]),
            partial_delay_ms=chance.choice([0.0, 30.0, 120.0]),
            final_delay_ms=chance.choice([0.0, 5.0, 400.0]),
            faults=faults.get("recognizer", []),
        ),
        FakeLanguageModel(
            [LONG, "Yes.", "Sure, here you are."],
            ttft_ms=chance.choice([0.0, 20.0, 700.0]),
            ms_per_token=chance.choice([0.0, 5.0, 40.0]),
            p_end_of_turn=lambda text: chance.choice([None, 0.02, 0.3, 0.9]),
            faults=faults.get("language_model", []),
        ),
        FakeVoice(
            ms_per_char=40.0,
            first_audio_ms=chance.choice([0.0, 60.0, 400.0]),
            faults=faults.get("voice", []),
        ),
    )


async def random_act(caller: Caller, chance: random.Random) -> None:
    act = chance.choice(ACTS)
    items = [r.event["item"]["id"] for r in caller.of("conversation.item.added")]
    match act:
        case "say":
            await caller.say(chance.choice([40, 90, 150, 220, 400, 1000]))
        case "wait":
            await caller.wait_quietly(chance.choice([20, 100, 240, 500, 1200, 3000]))
        case "stall":
            await asyncio.sleep(chance.choice([0.05, 0.4, 2.5]))
        case "cancel":
            caller.send("response.cancel")
        case "create":
            caller.send("response.create")
        case "clear":
            caller.send("input_audio_buffer.clear")
        case "commit":
            caller.send("input_audio_buffer.commit")
        case "item":
            item = typed("hello")
            caller.send("conversation.item.create", item=item)
        case "vad":
            detection = {"type": "server_vad", "silence_duration_ms": chance.choice([100, 500])}
            caller.send("session.update", session=turn_detection(detection))
        case "manual":
            caller.send("session.update", session=turn_detection(None))
        case "truncate" if items:
            end_ms = chance.choice([0, 300, 5000])
            where = {"item_id": chance.choice(items), "content_index": 0}
            caller.send("conversation.item.truncate", **where, audio_end_ms=end_ms)
        case "delete" if items:
            caller.send("conversation.item.delete", item_id=chance.choice(items))


def turn_detection(detection: dict[str, object] | None) -> dict[str, object]:
    return {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}


def check_responses(caller: Caller) -> None:
    """One terminal for each response, nothing of it after that, one at a time by default."""
    open_ids: set[str] = set()
    for received in caller.transport.received:
        event = received.event
        if received.type == "response.created":
            assert not open_ids, "two responses at once"
            open_ids.add(event["response"]["id"])
        elif received.type == "response.done":
            open_ids.remove(event["response"]["id"])
        elif "response_id" in event:
            assert event["response_id"] in open_ids, f"{received.type} after response.done"
    assert not open_ids


def nothing_open(backends: Backends) -> bool:
    assert isinstance(backends.recognizer, FakeRecognizer)
    assert isinstance(backends.language_model, FakeLanguageModel)
    assert isinstance(backends.voice, FakeVoice)
    return not (
        backends.recognizer.open_streams
        or backends.language_model.open_branches
        or backends.voice.open_streams
    )


async def is_answered_in_the_end(caller: Caller) -> None:
    """However the call stands: after plain speech and quiet there is another answer."""
    caller.send("session.update", session=turn_detection({"type": "semantic_vad"}))
    await caller.wait_quietly(4000)
    before = len(caller.of("response.done"))
    for _ in range(2):  # the first words may be what ends a reply that still plays
        await caller.say(900)
        await caller.wait_quietly(4000)
    assert len(caller.of("response.done")) > before, caller.types()[-30:]
    await caller.wait_quietly(8000)


@pytest.mark.parametrize("seed", range(10 * FUZZ))
async def test_no_order_of_events_leaves_a_dead_call(clock: Clock, seed: int) -> None:
    chance = random.Random(seed)
    backends = scripted(seed)
    async with Caller(
        clock, backends, AgentConfig(greeting="Hello, how can I help?"), chunk_ms=40
    ) as caller:
        for _ in range(25):
            await random_act(caller, chance)
        await is_answered_in_the_end(caller)
    check_responses(caller)
    assert nothing_open(backends)


@pytest.mark.parametrize("seed", range(5 * FUZZ))
async def test_no_worker_failure_leaves_a_dead_call(clock: Clock, seed: int) -> None:
    chance = random.Random(seed)
    action = chance.choice(["fail", "hang"])
    nth = chance.randrange(3)
    faults = {
        "recognizer": [Fault(chance.choice(["flush", "finalize"]), "fail", nth)],
        "language_model": [Fault(chance.choice(["stage", "branch"]), "fail", nth),
                           Fault("commit", action, nth, chance.randrange(4))],
        "voice": [Fault(chance.choice(["open", "feed", "finish"]), "fail", nth)],
    }  # fmt: skip
    backends = scripted(seed, **faults)
    async with Caller(clock, backends, chunk_ms=40) as caller:
        for _ in range(8):
            await caller.say(chance.choice([200, 700, 1000]))
            await caller.wait_quietly(chance.choice([300, 1500, 3000]))
        await caller.wait_quietly(35_000)
        await is_answered_in_the_end(caller)
    check_responses(caller)
    assert caller.statuses()[-1] == "completed"
    assert nothing_open(backends)


@pytest.mark.parametrize("after_ms", [10, 350, 700, 900, 1300, 1400, 1500, 2200])
async def test_hanging_up_at_any_moment_leaves_nothing(clock: Clock, after_ms: float) -> None:
    backends = scripted(3)
    async with Caller(clock, backends, AgentConfig(greeting="Hello."), chunk_ms=40) as caller:
        task = asyncio.create_task(caller.say(900))
        await asyncio.sleep(after_ms / 1000)
        if after_ms > 1000:
            await task
        caller.transport.put(None)
        await asyncio.wait([task])
    assert nothing_open(backends)


async def test_a_failed_turn_is_said_so_and_the_next_works(clock: Clock) -> None:
    backends = instant_backends(
        language_model=FakeLanguageModel([LONG], faults=[Fault("commit", after=3)])
    )
    async with Caller(clock, backends, chunk_ms=40) as caller:
        await caller.say(900)
        await caller.listen_until("response.done")
        await caller.wait_quietly(1000)
        await caller.say(900)
        await caller.listen_until("response.done", count=2, limit_ms=20_000)
    assert caller.statuses() == ["failed", "completed"]
    failed = caller.of("response.done")[0].event["response"]["status_details"]
    assert failed["error"]["code"] == "worker_lost"


async def test_a_caller_whose_words_cannot_be_told_is_asked_for_them_again(clock: Clock) -> None:
    faults = [Fault("flush"), Fault("finalize")]
    # Partials come later than the longest wait.
    recognizer = FakeRecognizer(ms_per_word=1000, partial_delay_ms=3000, faults=faults)
    backends = instant_backends(recognizer=recognizer)
    agent = AgentConfig(fallback="Pardon?", waiting=Waiting(say=()))
    async with Caller(clock, backends, agent, chunk_ms=40) as caller:
        await caller.say(900)
        await caller.listen_until("response.done")
        first = caller.of("response.done")[0].event["response"]
        await caller.wait_quietly(400)
        await caller.say(900)
        await caller.listen_until("response.done", count=2)
    assert caller.statuses() == ["failed", "completed"]
    assert caller.transcript(first["id"]) == "Pardon?"
    assert first["status_details"]["error"]["code"] == "worker_lost"


async def test_a_reply_that_never_comes_ends_at_its_deadline(clock: Clock) -> None:
    backends = instant_backends(
        language_model=FakeLanguageModel(["Hi."], faults=[Fault("commit", "hang")])
    )
    async with Caller(clock, backends, chunk_ms=40) as caller:
        await caller.say(900)
        await caller.listen_until("response.done", limit_ms=40_000)
    assert caller.statuses() == ["failed"]


async def test_of_twenty_turns_none_is_unanswered(clock: Clock) -> None:
    backends = instant_backends(recognizer=FakeRecognizer(["what time is it now"]))
    async with Caller(clock, backends, chunk_ms=40) as caller:
        for turn in range(20):
            await caller.say(600 + 20 * turn)
            await caller.listen_until("response.done", count=turn + 1)
            await caller.wait_quietly(400)
    assert caller.statuses() == ["completed"] * 20
    assert len(caller.of("voiceloop.timeline")) == 20


async def test_a_cough_over_the_agent_does_not_stop_it(clock: Clock) -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", ""]), language_model=FakeLanguageModel([LONG])
    )
    async with Caller(clock, backends, chunk_ms=40) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(800)
        await caller.say(130)
        await caller.listen_until("response.done", limit_ms=20_000)
    assert caller.statuses() == ["completed"]
    assert caller.audio_ms() == pytest.approx(60 * len(LONG.replace(" ", "")), abs=1)


async def test_noise_before_the_first_sound_of_the_reply_keeps_it_owed(clock: Clock) -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer(["what time is it", ""]),
        language_model=FakeLanguageModel(["Noon."], ttft_ms=600),
    )
    async with Caller(clock, backends, chunk_ms=40) as caller:
        await caller.say(700)
        await caller.listen_until("response.created")
        await caller.say(1200)  # long enough to take the floor, yet no word in it
        await caller.wait_quietly(5000)
    assert caller.statuses() == ["cancelled", "completed"]
    assert caller.transcript().endswith("Noon.")


async def test_a_tool_of_the_agent_file_is_answered_in_the_same_turn(clock: Clock) -> None:
    model = FakeLanguageModel(calls_first("hours", then="We open at {}.", call_id="call_1"))
    backends = instant_backends(language_model=model)
    agent = AgentConfig(tools=(AgentTool("hours", result="nine"),))
    async with Caller(clock, backends, agent, chunk_ms=40) as caller:
        await caller.say(900)
        await caller.listen_until("response.done", count=2)
    assert caller.statuses() == ["completed", "completed"]
    assert caller.transcript() == "We open at nine."


async def test_a_tool_of_the_client_ends_the_turn_until_its_result(clock: Clock) -> None:
    model = FakeLanguageModel(calls_first("weather", '{"city": "Rome"}', call_id="call_1"))
    backends = instant_backends(language_model=model)
    async with Caller(clock, backends, chunk_ms=40) as caller:
        tool = {"type": "function", "name": "weather", "parameters": {}}
        caller.send("session.update", session={"type": "realtime", "tools": [tool]})
        await caller.say(900)
        await caller.listen_until("response.function_call_arguments.done")
        output = {"type": "function_call_output", "call_id": "call_1", "output": "Sunny."}
        caller.send("conversation.item.create", item=output)
        caller.send("response.create")
        await caller.listen_until("response.done", count=2)
    assert caller.transcript() == "Sunny."


async def test_manual_turns_wait_for_the_words_before_the_answer(clock: Clock) -> None:
    model = FakeLanguageModel(["Fine."])
    backends = instant_backends(
        recognizer=FakeRecognizer(["how are you"], final_delay_ms=300), language_model=model
    )
    async with Caller(clock, backends, chunk_ms=40) as caller:
        caller.send("session.update", session=turn_detection(None))
        await caller.say(800)
        caller.send("input_audio_buffer.commit")
        caller.send("response.create")
        await caller.wait_for("response.done")
    assert model.prompts[0][-1] == ChatMessage("user", "how are you")


async def test_a_crisis_word_gets_the_fixed_answer(clock: Clock) -> None:
    agent = AgentConfig(crisis=Crisis(("hurt myself",), "Please call your local helpline."))
    backends = instant_backends(recognizer=FakeRecognizer(["i want to hurt myself"]))
    async with Caller(clock, backends, agent, chunk_ms=40) as caller:
        await caller.say(1300)
        await caller.listen_until("response.done")
    assert caller.transcript() == "Please call your local helpline."


async def test_a_crisis_phrase_said_in_two_turns_gets_the_fixed_answer(clock: Clock) -> None:
    agent = AgentConfig(crisis=Crisis(("hurt myself",), "Please call your local helpline."))
    backends = instant_backends(recognizer=FakeRecognizer(["i want to hurt", "myself"]))
    async with Caller(clock, backends, agent, chunk_ms=40) as caller:
        for answers in (False, True):
            detection = {"type": "semantic_vad", "create_response": answers}
            audio = {"input": {"turn_detection": detection, "transcription": {"model": "any"}}}
            caller.send("session.update", session={"type": "realtime", "audio": audio})
            await caller.say(1300)
            await caller.listen_until(
                "conversation.item.input_audio_transcription.completed", count=1 + answers
            )
        await caller.listen_until("response.done")
    assert caller.transcript() == "Please call your local helpline."


HOURS = ApprovedAnswer(("when do you open",), "At nine, every day.")


async def test_an_approved_answer_is_given_without_the_model(clock: Clock) -> None:
    model = FakeLanguageModel(["Twelve."])
    backends = instant_backends(
        recognizer=FakeRecognizer(["hello when do you open"]), language_model=model
    )
    async with Caller(clock, backends, AgentConfig(answer=(HOURS,)), chunk_ms=40) as caller:
        caller.send("session.update", session={"voiceloop": {"timeline": True}})
        await caller.say(1300)
        timeline = await caller.wait_for("voiceloop.timeline")
        await caller.listen_until("response.done")
    assert caller.transcript() == "At nine, every day."
    assert timeline.event["timeline"]["answered_by"] == "answer"
    assert not model.prompts


async def test_the_end_of_a_turn_that_is_an_approved_question_alone_goes_to_the_model(
    clock: Clock,
) -> None:
    model = FakeLanguageModel(["Done."])
    recognizer = FakeRecognizer(["cancel my order and tell me", "when do you open"])
    backends = instant_backends(recognizer=recognizer, language_model=model)
    async with Caller(clock, backends, AgentConfig(answer=(HOURS,)), chunk_ms=40) as caller:
        for answers in (False, True):
            detection = {"type": "semantic_vad", "create_response": answers}
            audio = {"input": {"turn_detection": detection, "transcription": {"model": "any"}}}
            caller.send("session.update", session={"type": "realtime", "audio": audio})
            await caller.say(1500)
            await caller.listen_until(
                "conversation.item.input_audio_transcription.completed", count=1 + answers
            )
        await caller.listen_until("response.done")
    assert caller.transcript() == "Done."


async def test_a_client_that_does_not_read_is_closed(clock: Clock) -> None:
    async with Caller(clock, chunk_ms=40) as caller:
        caller.transport.reading = False
        await caller.say(900)
        await caller.wait_quietly(9000)
        assert caller.transport.closed == (1013, "the client does not read")


async def test_a_response_cancelled_in_its_first_instant_leaves_nothing(clock: Clock) -> None:
    backends = instant_backends(language_model=FakeLanguageModel(["Hi."]))
    async with Caller(clock, backends, chunk_ms=40) as caller:
        caller.send("response.create")
        caller.send("response.create", response={"conversation": "none"})
        caller.send("response.cancel")
        await caller.wait_for("voiceloop.timeline", count=2)
        async with asyncio.timeout(10):
            await caller.session._call.until_idle()
    assert sorted(caller.statuses()) == ["cancelled", "completed"]
    assert nothing_open(backends)


@pytest.mark.parametrize("act", ["input_audio_buffer.clear", "manual", "no interruptions"])
async def test_an_agent_held_by_a_sound_the_client_takes_back_goes_on(
    clock: Clock, act: str
) -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", ""]), language_model=FakeLanguageModel([LONG])
    )
    async with Caller(clock, backends, chunk_ms=20) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(800)
        await caller.say(200)  # held, not yet stopped
        if act == "manual":
            caller.send("session.update", session=turn_detection(None))
        elif act == "no interruptions":
            detection = {"type": "semantic_vad", "interrupt_response": False}
            caller.send("session.update", session=turn_detection(detection))
            await caller.say(400)  # the same sound: nothing of it is the agent's matter now
        else:
            caller.send(act)
        await caller.listen_until("response.done", limit_ms=20_000)
    assert caller.statuses()[0] == "completed"


async def test_a_reply_asked_for_while_a_preemptive_one_is_made_takes_its_place(
    clock: Clock,
) -> None:
    model = FakeLanguageModel(["One moment, please."], ms_per_token=20, p_end_of_turn=lambda t: 0.9)
    backends = instant_backends(language_model=model)
    async with Caller(clock, backends, chunk_ms=40) as caller:
        await caller.say(600)
        caller.send("response.create")  # too early: it waits for the words
        await caller.listen_until("response.done")
        await caller.wait_quietly(1000)
    assert caller.statuses() == ["completed"]
    assert caller.transcript() == "One moment, please."
    assert nothing_open(backends)


@asynccontextmanager
async def cut_by_noise(
    clock: Clock,
    model: FakeLanguageModel,
    voice: FakeVoice | None = None,
    recognizer: FakeRecognizer | None = None,
) -> AsyncIterator[Caller]:
    """A caller whose long answer a drill, or a neighbour, has cut short."""
    backends = instant_backends(
        recognizer=recognizer or FakeRecognizer(["tell me a story", ""]),
        language_model=model,
        voice=voice,
    )
    async with Caller(clock, backends, AgentConfig(fallback="Pardon?"), chunk_ms=40) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(500)
        await caller.say(1200)
        yield caller
    assert nothing_open(backends)


@pytest.mark.parametrize("ms_per_token", [0, 120])
async def test_a_reply_cut_by_noise_goes_on_after_what_was_heard_and_is_said_whole(
    clock: Clock, ms_per_token: float
) -> None:
    model = FakeLanguageModel([LONG], ms_per_token=ms_per_token)
    async with cut_by_noise(clock, model) as caller:
        await caller.listen_until("voiceloop.timeline", limit_ms=30_000)
        messages = caller.session.protocol.shown.messages()
        facts = caller.of("voiceloop.timeline")[0].event["timeline"]["anticipation"]
    assert caller.statuses() == ["cancelled", "completed"]
    assert len(model.prompts) == 1
    assert caller.audio_ms() == pytest.approx(60 * len(LONG.replace(" ", "")), abs=1)
    assert messages[-1] == ChatMessage("assistant", LONG)
    usages = [r.event["response"]["usage"] for r in caller.of("response.done")]
    n_tokens = [usage["output_token_details"]["text_tokens"] for usage in usages]
    assert sum(n_tokens) == len(LONG.split())
    assert (facts["n_discarded_tokens"], facts["wasted_audio_ms"]) == (0, 0.0)


async def test_a_client_that_flushed_at_a_noise_is_told_again_what_it_had_not_played(
    clock: Clock,
) -> None:
    async with cut_by_noise(clock, FakeLanguageModel([LONG])) as caller:
        sent_ms = caller.audio_ms()
        (cut,) = caller.of("response.done")
        item_id = cut.event["response"]["output"][0]["id"]
        played_ms = int(sent_ms) - 250  # it buffers much
        caller.send(
            "conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=played_ms
        )
        await caller.listen_until("voiceloop.timeline", limit_ms=30_000)
        messages = caller.session.protocol.shown.messages()
    assert caller.statuses() == ["cancelled", "completed"]
    whole_ms = 60 * len(LONG.replace(" ", ""))
    assert caller.audio_ms() == pytest.approx(whole_ms + sent_ms - played_ms, abs=1)
    assert messages[-1] == ChatMessage("assistant", LONG)


@pytest.mark.parametrize("names_it", [True, False])
async def test_a_reply_cut_by_noise_that_the_client_cancels_does_not_go_on(
    clock: Clock, names_it: bool
) -> None:
    async with cut_by_noise(clock, FakeLanguageModel([LONG])) as caller:
        (cut,) = caller.of("response.done")
        meant = {"response_id": cut.event["response"]["id"]} if names_it else {}
        caller.send("response.cancel", **meant)
        await caller.wait_quietly(4000)
    assert caller.statuses() == ["cancelled"]


@pytest.mark.parametrize("broken", ["model", "voice"])
async def test_a_reply_that_fails_while_it_is_cut_short_says_so(clock: Clock, broken: str) -> None:
    faults = [Fault("commit", after=17)] if broken == "model" else []
    model = FakeLanguageModel([LONG], ms_per_token=120, faults=faults)
    lost = [Fault("feed", nth=17), Fault("feed", nth=18)]  # and the one that follows it
    voice = FakeVoice(faults=lost if broken == "voice" else [])
    async with cut_by_noise(clock, model, voice) as caller:
        assert caller.statuses() == ["cancelled"]
        assert caller.session._call._turn_taking.agent is Agent.INTERRUPTED
        await caller.listen_until("response.done", count=2)
    assert caller.statuses() == ["cancelled", "failed"]
    second = caller.of("response.created")[1].event["response"]["id"]
    said = caller.transcript(second)
    assert said.endswith(" Pardon?") if broken == "model" else not said


async def test_a_reply_taken_up_again_can_be_cut_short_once_more(clock: Clock) -> None:
    recognizer = FakeRecognizer(ms_per_word=100)
    recognizer.script = (  # type: ignore[method-assign]
        lambda n: ["tell me a story", "", "enough of that"][min(n, 2)]
    )
    model = FakeLanguageModel([LONG, "Fine."])
    async with cut_by_noise(clock, model, recognizer=recognizer) as caller:
        await caller.listen_until("response.created", count=2)
        await caller.wait_quietly(800)
        await caller.say(500)
        await caller.listen_until("response.done", count=3)
        messages = model.prompts[-1]
        facts = caller.of("voiceloop.timeline")[0].event["timeline"]["anticipation"]
    assert caller.statuses() == ["cancelled", "cancelled", "completed"]
    heard = messages[-2].content
    assert LONG.startswith(heard)
    n_words, n_heard = len(LONG.split()), len(heard.split())
    heard_ms = caller.audio_ms() - 60 * len("Fine.")
    assert abs(heard_ms - 60 * len(heard.replace(" ", ""))) < 60 * 8  # to a word
    assert facts["n_reply_tokens"] == pytest.approx(n_heard, abs=3)
    assert facts["n_reply_tokens"] + facts["n_unheard_tokens"] == n_words
    assert facts["wasted_audio_ms"] > 60 * (len(LONG.replace(" ", "")) - len(heard)) * 0.9


@pytest.mark.parametrize("creates", [True, False])
async def test_an_agent_stopped_by_noise_says_the_rest_where_it_answers_by_itself(
    clock: Clock, creates: bool
) -> None:
    model = FakeLanguageModel([LONG])
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", ""]), language_model=model
    )
    async with Caller(clock, backends, chunk_ms=40) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(1000)
        detection = {"type": "semantic_vad", "create_response": creates}
        caller.send("session.update", session=turn_detection(detection))
        await caller.say(1200)  # a drill, a neighbour
        await caller.wait_quietly(8000)
        messages = caller.session.protocol.shown.messages()
    assert caller.statuses() == ["cancelled", "completed"][: 1 + creates]
    assert len(model.prompts) == 1
    assert (messages[-1] == ChatMessage("assistant", LONG)) == creates


async def test_an_agent_stopped_by_a_word_does_not_take_it_up_again(clock: Clock) -> None:
    model = FakeLanguageModel([LONG, "Fine."])
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", "enough of that"]), language_model=model
    )
    async with Caller(clock, backends, chunk_ms=40) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(1000)
        await caller.say(600)
        await caller.listen_until("response.done", count=2, limit_ms=20_000)
        await caller.wait_quietly(4000)
    assert caller.statuses() == ["cancelled", "completed"]
    second = caller.of("response.created")[1].event["response"]["id"]
    assert caller.transcript(second) == "Fine."
