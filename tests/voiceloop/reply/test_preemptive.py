"""A reply made ahead: ready at the endpoint, never said to other words, never twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.callers import Caller
from tests.fakes import (
    FakeLanguageModel,
    FakeRecognizer,
    FakeVoice,
    Fault,
    Reply,
    calls_first,
    instant_backends,
)
from tests.tool_service import Service, box
from voiceloop.agent import AgentConfig, AgentTool, Crisis
from voiceloop.backends import Backends, ChatMessage, ToolCall
from voiceloop.config import Ahead, AheadPart, Config
from voiceloop.errors import WorkerLost
from voiceloop.knowledge.answers import ApprovedAnswer
from voiceloop.listening.endpointing import FITTED
from voiceloop.listening.events import PauseWeighed, UserTurn
from voiceloop.listening.segment import NEARLY_OVER_MS
from voiceloop.realtime.items import Message, Part
from voiceloop.reply import preemptive as preemptive_replies
from voiceloop.telemetry.record import TurnRecord

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]

PATIENT = AgentConfig(eagerness="low", fallback="Pardon me?")  # a pause to make a reply in


def slow_models(
    model: FakeLanguageModel | None = None, transcripts: tuple[str, ...] = ("what time is it",)
) -> Backends:
    """200 ms to the first sample, of which a preemptive reply hides all."""
    return instant_backends(
        recognizer=FakeRecognizer(transcripts, ms_per_word=200),
        language_model=model
        or FakeLanguageModel(["It is noon."], ttft_ms=100, p_end_of_turn=lambda text: 0.9),
        voice=FakeVoice(first_audio_ms=100),
    )


async def gap_ms_of(clock: Clock, *off: AheadPart) -> tuple[float, Caller]:
    config = Config(anticipation=Ahead(off))
    async with Caller(clock, slow_models(), PATIENT, config) as caller:
        end_s = await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
    assert caller.statuses() == ["completed"] and caller.transcript() == "It is noon."
    return 1000 * (caller.first_audio_s() - end_s), caller


async def test_a_held_reply_leaves_at_the_decision(clock: Clock) -> None:
    preemptive_ms, caller = await gap_ms_of(clock)
    text_only_ms, silent = await gap_ms_of(clock, "held_clause")
    without_ms, unprepared = await gap_ms_of(clock, "speculative_reply")
    for other in (silent, unprepared):
        assert other.of("voiceloop.timeline")[0].event["timeline"]["held_ms"] == 0.0
    assert text_only_ms - preemptive_ms == pytest.approx(100, abs=25)
    assert without_ms - preemptive_ms == pytest.approx(200, abs=25)
    timeline = caller.of("voiceloop.timeline")[0].event["timeline"]
    assert timeline["draft_buffered_ms"] > 0
    assert timeline["held_ms"] == timeline["draft_buffered_ms"]
    summed_ms = sum(stage["ms"] for stage in timeline["stages"])
    assert summed_ms == pytest.approx(timeline["gap_ms"], abs=0.01)  # stages are in whole us
    marks = timeline["marks"]
    released_ms = 1000 * (marks["first_byte_on_wire"] - marks["endpoint_decision"])
    assert released_ms <= 10


async def test_a_reply_is_made_ahead_where_nothing_reads_the_end_of_the_turn(clock: Clock) -> None:
    """Words, voice and silence decide alone, as beside a service without readers."""
    model = FakeLanguageModel(["It is noon."], ttft_ms=100, p_end_of_turn=lambda text: None)
    async with Caller(clock, slow_models(model), PATIENT) as caller:
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
    timeline = caller.of("voiceloop.timeline")[0].event["timeline"]
    assert timeline["held_ms"] > 0 and caller.transcript() == "It is noon."
    sample = caller.services.metrics.registry.get_sample_value
    assert sample("voiceloop_drafts_total", {"fate": "released"}) == 1


async def test_whoever_waits_longest_is_answered_as_soon_as_the_wait_is_over(clock: Clock) -> None:
    """Such a pause earns no reply when it begins; one is begun when it is nearly over."""
    model = FakeLanguageModel(["Sure."], ttft_ms=100, p_end_of_turn=lambda text: 0.001)
    backends = slow_models(model, ("i would like the",))
    async with Caller(clock, backends) as caller:
        end_s = await caller.say(800)
        await caller.wait_quietly(NEARLY_OVER_MS)
        assert not any(branch.attempts for branch in model.branches)
        await caller.listen_until("voiceloop.timeline")
    timeline = caller.of("voiceloop.timeline")[0].event["timeline"]
    needed_ms = timeline["endpoint"]["needed_ms"]
    assert needed_ms > FITTED.preemptive_needed_ms  # no earlier reason would have begun it
    assert 1000 * (caller.first_audio_s() - end_s) < needed_ms + 100
    marks = timeline["marks"]
    assert marks["first_byte_on_wire"] - marks["endpoint_decision"] <= 0.01
    sample = caller.services.metrics.registry.get_sample_value
    assert sample("voiceloop_drafts_total", {"fate": "released"}) == 1


async def test_who_goes_on_before_the_wait_is_nearly_over_costs_no_reply(clock: Clock) -> None:
    model = FakeLanguageModel(["Sure."], ttft_ms=100, p_end_of_turn=lambda text: 0.001)
    backends = slow_models(model, ("i would like the",))
    async with Caller(clock, backends) as caller:
        await caller.say(800)
        await caller.wait_quietly(NEARLY_OVER_MS)
        await caller.say(100)
        assert not any(branch.attempts for branch in model.branches)


async def test_a_caller_who_goes_on_is_answered_once_and_to_all_of_it(clock: Clock) -> None:
    model = FakeLanguageModel(lambda m: f"You said {m[-1].content}.", p_end_of_turn=lambda t: 0.9)
    backends = slow_models(model, ("a large latte please",))
    async with Caller(clock, backends, PATIENT) as caller:
        await caller.say(600)
        await caller.wait_quietly(250)
        assert not caller.of("response.created")
        await caller.say(400)
        await caller.listen_until("response.done")
    assert caller.transcript() == "You said a large latte please."
    assert caller.statuses() == ["completed"]
    assert len(model.prompts) == 1  # preemptive replies are no turns
    assert model.branches[0].attempts[-1] == "a large latte please"
    assert not model.open_branches
    sample = caller.services.metrics.registry.get_sample_value
    assert sample("voiceloop_drafts_total", {"fate": "released"}) == 1
    wasted = sample("voiceloop_reply_tokens_total", {"fate": "discarded"})
    assert wasted and wasted < (sample("voiceloop_reply_tokens_total", {"fate": "generated"}) or 0)


async def test_a_preemptive_reply_that_fails_is_made_again_in_the_open(clock: Clock) -> None:
    model = FakeLanguageModel(
        ["It is noon."], p_end_of_turn=lambda text: 0.4, faults=[Fault("begin_preemptive")]
    )
    async with Caller(clock, slow_models(model)) as caller:
        await caller.say(800)
        await caller.listen_until("response.done")
    assert caller.statuses() == ["completed"]


@pytest.mark.parametrize("n_passes", range(9))
async def test_a_turn_that_ends_as_the_voice_of_the_held_reply_dies_is_answered(
    clock: Clock, n_passes: int
) -> None:
    voice = FakeVoice(ms_per_audio_word=1000)
    model = FakeLanguageModel(["It is noon."], p_end_of_turn=lambda text: 0.9)
    backends = replace(slow_models(model), voice=voice)
    async with Caller(clock, backends, PATIENT) as caller:
        await caller.say(800)
        await caller.wait_quietly(200)
        assert not caller.of("response.created")
        [held] = voice.open_streams
        held._pipe._queue.put_nowait(WorkerLost("the voice died"))
        for _ in range(n_passes):
            await asyncio.sleep(0)
        said = Part(type="input_audio", transcript="what time is it")
        caller.session.protocol.conversation.insert(Message(id="i", role="user", content=(said,)))
        words = ("what", "time", "is", "it")
        now_s = asyncio.get_running_loop().time()
        turn = UserTurn(0, words, 0.0, 800.0, now_s, now_s, TurnRecord("resp"))
        caller.session._call._replies.answer(turn)
        await caller.wait_for("response.done")
        if n_passes > 2:  # before, the voice had not died for anybody to know
            assert caller.transcript() == "It is noon."
    assert caller.transport.closed is not None and caller.transport.closed[0] == 1000


async def test_a_preemptive_call_is_not_announced_before_the_turn_is_over(clock: Clock) -> None:
    model = FakeLanguageModel(
        [Reply("", (ToolCall("c1", "order", "{}"),))], p_end_of_turn=lambda text: 0.9
    )
    async with Caller(clock, slow_models(model)) as caller:
        tool = {"type": "function", "name": "order", "parameters": {}}
        caller.send("session.update", session={"type": "realtime", "tools": [tool]})
        await caller.say(800)
        await caller.listen_until("response.done")
    call_s = caller.of("response.function_call_arguments.done")[0].at_s
    assert len(model.prompts) == 1
    assert call_s >= caller.of("input_audio_buffer.committed")[0].at_s


async def test_words_in_danger_are_never_answered_ahead(clock: Clock) -> None:
    agent = AgentConfig(crisis=Crisis(("time",), "Please call for help."))
    backends = slow_models()
    async with Caller(clock, backends, agent) as caller:
        await caller.say(800)
        await caller.listen_until("response.done")
    assert caller.transcript() == "Please call for help."
    assert isinstance(backends.language_model, FakeLanguageModel)
    assert not backends.language_model.prompts


async def test_what_has_an_approved_answer_is_not_drafted(clock: Clock) -> None:
    approved = ApprovedAnswer(("what time is it",), "Look up.")
    backends = slow_models()
    async with Caller(clock, backends, AgentConfig(answer=(approved,))) as caller:
        await caller.say(800)
        await caller.listen_until("response.done")
    assert caller.transcript() == "Look up."
    assert isinstance(backends.language_model, FakeLanguageModel)
    assert not any(branch.attempts for branch in backends.language_model.branches)


async def test_a_setting_changed_meanwhile_makes_the_preemptive_reply_void(clock: Clock) -> None:
    def answer(messages: tuple[ChatMessage, ...]) -> str:
        return "New." if "brief" in messages[0].content else "Old."

    model = FakeLanguageModel(answer, p_end_of_turn=lambda text: 0.9)
    async with Caller(clock, slow_models(model), PATIENT) as caller:
        await caller.say(800)
        await caller.wait_quietly(200)
        assert sum((branch.attempts for branch in model.branches), []) == ["what time is it"]
        session = {"type": "realtime", "instructions": "Be brief."}
        caller.send("session.update", session=session)
        await caller.listen_until("response.done")
    assert caller.transcript() == "New."
    assert model.prompts[0][0] == ChatMessage("system", "Be brief.")


async def test_an_overloaded_machine_makes_nothing_ahead(clock: Clock) -> None:
    model = FakeLanguageModel(
        ["It is noon."], stage_delay_ms=300, p_end_of_turn=lambda text: 0.05 * len(text.split())
    )
    async with Caller(clock, slow_models(model)) as caller:
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
        sample = caller.services.metrics.registry.get_sample_value
        assert not sample("voiceloop_drafts_total", {"fate": "released"})
    assert caller.statuses() == ["completed"]


async def test_what_still_stands_of_a_preemptive_reply_to_other_words_is_kept_with_its_sound(
    clock: Clock,
) -> None:
    def answer(messages: tuple[ChatMessage, ...]) -> str:
        size = "large" if "large" in messages[-1].content else "small"
        return f"Sure thing, one {size} latte."

    model = FakeLanguageModel(answer, ttft_ms=100, p_end_of_turn=lambda t: 0.4)
    recognizer = FakeRecognizer(["a latte please make it large"], ms_per_word=300)
    voice = FakeVoice(first_audio_ms=100)
    backends = instant_backends(recognizer=recognizer, language_model=model, voice=voice)
    config = Config(anticipation=Ahead())
    async with Caller(clock, backends, PATIENT, config) as caller:
        await caller.say(900)  # ahead, "a latte please" is answered; the last pass hears more
        await caller.wait_quietly(200)
        caller.send("input_audio_buffer.commit")
        caller.send("response.create")
        await caller.listen_until("voiceloop.timeline")
    assert caller.transcript() == "Sure thing, one large latte."


async def test_a_tool_without_side_effects_is_called_once_and_before_the_turn_is_over(
    clock: Clock,
) -> None:
    service, tool = Service(takes_s=0.1), AgentTool("hours", side_effect_free=True, url="http://a/")
    model = FakeLanguageModel(
        calls_first("hours", then="Nine."), ttft_ms=20, p_end_of_turn=lambda text: 0.9
    )
    toolbox, agent = box(clock, hours=(tool, service)), AgentConfig(tools=(tool,))
    async with Caller(clock, slow_models(model), agent, toolbox=toolbox) as caller:
        await caller.say(800)
        await caller.listen_until("response.done", count=2)
        (committed,) = caller.of("input_audio_buffer.committed")
    assert len(service.begun_s) == 1 and service.begun_s[0] < committed.at_s
    assert caller.transcript() == "Nine."


async def test_a_session_that_wasted_its_budget_makes_nothing_ahead_any_more(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemptive_replies, "MOST_TOKENS", 1)
    model = FakeLanguageModel(
        lambda m: " ".join(f"{m[-1].content} {i}." for i in range(2)), p_end_of_turn=lambda t: 0.9
    )
    backends = slow_models(model, ("a latte please and a muffin please",))
    async with Caller(clock, backends) as caller:
        for turn in range(3):
            await caller.say(600)
            await caller.wait_quietly(200)
            await caller.say(600)
            await caller.listen_until("response.done", count=turn + 1)
        sample = caller.services.metrics.registry.get_sample_value
        assert (sample("voiceloop_drafts_total", {"fate": "forgone"}) or 0) >= 1


async def test_two_of_six_replies_are_kept_for_a_turns_end(clock: Clock) -> None:
    model = FakeLanguageModel(["It is noon."], p_end_of_turn=lambda text: 0.9)
    async with Caller(clock, slow_models(model)) as caller:
        await caller.say(400)
        preemptive = caller.session._call._replies.preemptive
        preemptive.consider(PauseWeighed((), 0.9, 50.0, 200.0, True))
        begun = [preemptive._n_begun]  # of no words
        for n in range(14):  # four of other words each, and then those whose end is near
            is_near = n >= 7
            preemptive.consider(PauseWeighed((f"word{n}",), 0.9, 50.0, 200.0, is_near))
            begun.append(preemptive._n_begun)
        preemptive.reset()
        assert preemptive._n_begun == 0
    assert begun == [0, 1, 2, 3, 4, 4, 4, 4, 5, 6, 6, 6, 6, 6, 6]


async def test_a_busy_machine_makes_nothing_ahead(clock: Clock) -> None:
    model = FakeLanguageModel(["It is noon."], p_end_of_turn=lambda t: 0.4)
    model.utilization = 0.9
    async with Caller(clock, slow_models(model)) as caller:
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
    assert not any(branch.attempts for branch in model.branches)


async def test_a_preemptive_reply_that_was_lost_is_made_again_and_never_said_unverified(
    clock: Clock,
) -> None:
    answers = iter(["Sure, a latte. Anything else?"])

    def answer(messages: tuple[ChatMessage, ...]) -> str:
        return next(answers, "Which size, please?")  # the service does not say the same twice

    model = FakeLanguageModel(
        answer, ms_per_token=30, p_end_of_turn=lambda text: 0.9, loses_attempts=True
    )
    async with Caller(clock, slow_models(model, ("a latte please",)), PATIENT) as caller:
        await caller.say(600)
        await caller.wait_quietly(150)  # "Sure, a latte." is made ahead, the rest is not
        await caller.say(40)  # a breath: the reply is given up, and the words stay the same
        await caller.listen_until("response.done")
    assert caller.statuses() == ["completed"]
    assert caller.transcript() == "Which size, please?"
    assert caller.audio_ms() == pytest.approx(60 * len("Whichsize,please?"), abs=2)


async def test_a_preemptive_reply_that_was_lost_is_begun_once_more_at_the_next_pause(
    clock: Clock,
) -> None:
    model = FakeLanguageModel(
        ["One moment, please."], ms_per_token=200, p_end_of_turn=lambda t: 0.9, loses_attempts=True
    )
    async with Caller(clock, slow_models(model), PATIENT) as caller:
        await caller.say(800)
        await caller.wait_quietly(150)
        await caller.say(40)
        await caller.listen_until("response.done")
    assert model.branches[0].attempts == ["what time is it"] * 2


async def test_what_a_retracted_answer_cost_is_counted_as_wasted(clock: Clock) -> None:
    model = FakeLanguageModel(lambda m: f"You said {m[-1].content}.", p_end_of_turn=lambda t: 0.5)
    backends = slow_models(model, ("i want a latte", "with oat milk"))
    config = Config(anticipation=Ahead(("early_start",)))  # an answer, and no start of one
    async with Caller(clock, backends, config=config) as caller:
        await caller.say(800)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(120)
        sent_ms = caller.audio_ms()
        await caller.say(700)
        await caller.listen_until("voiceloop.timeline")
    facts = caller.of("voiceloop.timeline")[0].event["timeline"]["anticipation"]
    assert (facts["n_reply_tokens"], facts["n_discarded_tokens"]) == (0, 6)
    assert facts["wasted_audio_ms"] >= 60 * len("Yousaidiwantalatte.") > sent_ms > 0


async def test_a_preemptive_reply_that_ends_without_words_leaves_room_for_the_fallback(
    clock: Clock,
) -> None:
    model = FakeLanguageModel(
        [Reply("", (ToolCall("c1", "of_nobody", "{}"),))], p_end_of_turn=lambda text: 0.9
    )
    agent = AgentConfig(fallback="Pardon me?")
    async with Caller(clock, slow_models(model), agent) as caller:
        await caller.say(800)
        await caller.wait_quietly(2000)
        await caller.listen_until("response.done")
    assert model.branches[0].attempts == ["what time is it"]
    assert caller.statuses() == ["completed"]
    assert caller.transcript() == "Pardon me?"
    assert caller.audio_ms() == pytest.approx(60 * len("Pardonme?"), abs=2)


@pytest.mark.parametrize("after", [0, 2])
async def test_a_whole_preemptive_reply_is_said_though_its_model_is_lost_before_the_reply(
    clock: Clock, after: int
) -> None:
    fault = Fault("commit", after=after)
    model = FakeLanguageModel(["It is noon."], p_end_of_turn=lambda t: 0.9, faults=[fault])
    async with Caller(clock, slow_models(model)) as caller:
        await caller.say(800)
        await caller.listen_until("response.done")
    assert caller.statuses() == ["failed"] and caller.transcript() == "It is noon."


async def test_a_preemptive_reply_to_other_words_gives_way_to_the_fallback_where_its_reply_fails(
    clock: Clock,
) -> None:
    def answer(messages: tuple[ChatMessage, ...]) -> str:
        size = "large" if "large" in messages[-1].content else "small"
        return f"Sure thing, one {size} latte."

    faults = [Fault("commit", after=3)]
    model = FakeLanguageModel(answer, ttft_ms=100, p_end_of_turn=lambda t: 0.4, faults=faults)
    recognizer = FakeRecognizer(["a latte please make it large"], ms_per_word=300)
    voice = FakeVoice(first_audio_ms=100)
    backends = instant_backends(recognizer=recognizer, language_model=model, voice=voice)
    async with Caller(clock, backends, PATIENT) as caller:
        await caller.say(900)
        await caller.wait_quietly(200)
        assert model.branches[0].attempts
        caller.send("input_audio_buffer.commit")
        caller.send("response.create")
        await caller.listen_until("response.done")
    assert caller.statuses() == ["failed"]
    assert caller.transcript() == "Sure thing, one Pardon me?"


@pytest.mark.parametrize(
    ("ahead", "answered", "said"),
    [
        ("Sure thing, one latte.", "", "Pardon me?"),
        ("Sure thing, one latte.", Reply("", (ToolCall("c", "of_nobody", "{}"),)), "Pardon me?"),
        ("", "One large latte.", "One large latte."),
        ("", "", "Pardon me?"),
        ("...", "", "Pardon me?"),
    ],
)
async def test_a_reply_or_a_preemptive_one_without_words_is_never_silence(
    clock: Clock, ahead: str, answered: str | Reply, said: str
) -> None:
    model = FakeLanguageModel(
        lambda m: answered if "large" in m[-1].content else ahead, p_end_of_turn=lambda t: 0.4
    )
    recognizer = FakeRecognizer(["a latte please make it large"], ms_per_word=300)
    backends = instant_backends(recognizer=recognizer, language_model=model)
    async with Caller(clock, backends, PATIENT) as caller:
        await caller.say(900)  # ahead, "a latte please" is answered; the last pass hears more
        await caller.wait_quietly(200)
        assert model.branches[0].attempts == ["a latte please"]
        caller.send("input_audio_buffer.commit")
        caller.send("response.create")
        await caller.listen_until("response.done")
    assert caller.statuses() == ["completed"] and caller.transcript() == said
    assert caller.audio_ms() == pytest.approx(60 * len(said.replace(" ", "")), abs=2)
