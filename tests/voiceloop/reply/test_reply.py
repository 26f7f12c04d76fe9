"""How a turn ends, in which form it speaks, and what history keeps of it."""

from __future__ import annotations

import base64
import json
import logging
import random
from collections.abc import Callable

import pytest

from clients.connection import typed
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
from voiceloop.agent import AgentConfig, AgentTool, ReplyLimits, Waiting
from voiceloop.backends import ChatMessage, ToolCall

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
STORY = " ".join(f"word{i}" for i in range(30))


def ask(caller: Caller, **response: object) -> None:
    caller.send("response.create", response=response)


async def test_text_is_sent_as_text_and_no_voice_is_opened(clock: Clock) -> None:
    backends = instant_backends(voice=FakeVoice(faults=[Fault("open")]))
    async with Caller(clock, backends) as caller:
        ask(caller, output_modalities=["text"])
        await caller.wait_for("response.done")
    assert caller.statuses() == ["completed"]
    text = "".join(r.event["delta"] for r in caller.of("response.output_text.delta"))
    assert text == "Sure, I can help you with that."


@pytest.mark.parametrize(("law", "rate"), [("audio/pcmu", 8000), ("audio/pcma", 8000)])
async def test_the_reply_is_spoken_in_the_format_asked_for(
    clock: Clock, law: str, rate: int
) -> None:
    async with Caller(clock) as caller:
        ask(caller, audio={"output": {"format": {"type": law}}})
        await caller.wait_for("response.done")
    n_bytes = sum(
        len(base64.b64decode(r.event["delta"])) for r in caller.of("response.output_audio.delta")
    )
    n_letters = len("Sure,IcanhelpyouwithThat.")
    assert n_bytes / rate == pytest.approx(0.06 * n_letters, abs=0.01)


async def test_a_reply_at_its_token_limit_is_incomplete(clock: Clock) -> None:
    agent = AgentConfig(limits=ReplyLimits(max_reply_tokens=5))
    backends = instant_backends(language_model=FakeLanguageModel([STORY]))
    async with Caller(clock, backends, agent) as caller:
        ask(caller)
        await caller.wait_for("response.done")
    done = caller.of("response.done")[0].event["response"]
    assert done["status"] == "incomplete"
    assert done["status_details"]["reason"] == "max_output_tokens"
    assert caller.transcript() == "word0 word1 word2 word3 word4"


@pytest.mark.parametrize("at", ["open", "feed", "finish"])
@pytest.mark.parametrize("action", ["fail", "hang", "overload"])
async def test_a_voice_that_breaks_fails_its_turn_only(clock: Clock, at: str, action: str) -> None:
    # A stream that is lost is opened anew, once.
    faults = [Fault(at, action, nth=n) for n in range(1 if at == "open" or action == "hang" else 2)]  # type: ignore[arg-type]
    backends = instant_backends(voice=FakeVoice(faults=faults))
    async with Caller(clock, backends) as caller:
        ask(caller)
        await caller.wait_for("response.done")
        ask(caller)
        await caller.wait_for("response.done", count=2)
    assert caller.statuses() == ["failed", "completed"]


async def test_the_transcript_never_runs_ahead_of_the_sound(clock: Clock) -> None:
    backends = instant_backends(
        language_model=FakeLanguageModel([STORY]), voice=FakeVoice(ms_per_char=50)
    )
    async with Caller(clock, backends) as caller:
        ask(caller)
        start_s = (await caller.wait_for("response.output_audio.delta")).at_s
        await caller.wait_for("response.done")
    said = ""
    for received in caller.of("response.output_audio_transcript.delta"):
        spoken_ms = 50 * len(said.replace(" ", ""))
        assert 1000 * (received.at_s - start_s) >= spoken_ms - 200
        said += received.event["delta"]
    assert said == STORY


async def test_out_of_band_replies_run_beside_and_leave_no_trace(clock: Clock) -> None:
    model = FakeLanguageModel(lambda m: f"To {m[-1].content}.")
    async with Caller(clock, instant_backends(language_model=model)) as caller:
        item = typed("aside")
        ask(caller)
        for _ in range(2):
            ask(caller, conversation="none", input=[item], metadata={"kind": "side"})
        await caller.wait_for("response.done", count=3)
        messages = caller.session.protocol.shown.messages()
    assert caller.statuses() == ["completed"] * 3
    assert not any("aside" in message.content for message in messages)


def usages(caller: Caller) -> list[tuple[int, int]]:
    """Text tokens read and written, of each response that is done."""
    bodies = [r.event["response"]["usage"] for r in caller.of("response.done")]
    return [
        (u["input_token_details"]["text_tokens"], u["output_token_details"]["text_tokens"])
        for u in bodies
    ]


def generated(caller: Caller) -> float:
    sample = caller.services.metrics.registry.get_sample_value
    return sample("voiceloop_reply_tokens_total", {"fate": "generated"}) or 0.0


async def test_tools_that_never_end_are_cut_off_and_the_caller_is_spoken_to(clock: Clock) -> None:
    model = FakeLanguageModel([Reply("", (ToolCall("c", "again", "{}"),))])
    agent = AgentConfig(tools=(AgentTool("again", result="more"),), fallback="Pardon me?")
    async with Caller(clock, instant_backends(language_model=model), agent) as caller:
        ask(caller)
        await caller.wait_for("voiceloop.timeline")
        items = caller.session.protocol.conversation.items()
    assert caller.statuses() == ["completed"] * 4
    assert len(model.prompts) == 4
    assert caller.transcript() == "Pardon me?"
    kinds = [type(item).__name__ for item in items]
    assert kinds == ["FunctionCall", "FunctionCallOutput"] * 3 + ["Message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "hours"}])
async def test_a_tool_that_was_demanded_is_called_once_and_then_spoken_of(
    clock: Clock, choice: object
) -> None:
    agent = AgentConfig(tools=(AgentTool("hours", result="nine"),))
    backends = instant_backends(language_model=FakeLanguageModel(["We open at nine."]))
    async with Caller(clock, backends, agent) as caller:
        ask(caller, tool_choice=choice)
        await caller.wait_for("voiceloop.timeline")
    assert len(caller.of("response.function_call_arguments.done")) == 1
    assert caller.statuses() == ["completed"] * 2
    assert caller.transcript() == "We open at nine."


async def test_every_round_counts_once_in_usage_and_in_the_metrics(clock: Clock) -> None:
    agent = AgentConfig(instructions="Be brief.", tools=(AgentTool("hours", result="nine"),))
    backends = instant_backends(
        language_model=FakeLanguageModel(calls_first("hours", then="Nine to five."))
    )
    async with Caller(clock, backends, agent) as caller:
        ask(caller)
        await caller.wait_for("voiceloop.timeline")
    assert usages(caller) == [(1, 1), (3, 3)]  # messages and words, of the fake model
    assert generated(caller) == 4
    facts = caller.of("voiceloop.timeline")[0].event["timeline"]["anticipation"]
    assert facts["n_reply_tokens"] == 4


async def test_a_reply_cut_short_in_play_counts_all_that_was_generated(clock: Clock) -> None:
    recognizer = FakeRecognizer(["tell me a story", "stop it now"], ms_per_word=80)
    backends = instant_backends(recognizer=recognizer, language_model=FakeLanguageModel([STORY]))
    async with Caller(clock, backends) as caller:
        ask(caller)
        await caller.wait_for("response.output_audio.delta")
        await caller.wait_quietly(500)
        await caller.say(600)
        await caller.listen_until("response.done")
        (used, *_), cut = usages(caller), caller.of("response.done")[0].event["response"]
    assert cut["status_details"]["reason"] == "turn_detected"
    assert used == (1, 30)


@pytest.mark.parametrize("end", ["cancelled", "failed"])
async def test_a_reply_cut_short_in_the_making_counts_what_was_made(clock: Clock, end: str) -> None:
    faults = [Fault("commit", after=6)] if end == "failed" else []
    model = FakeLanguageModel([STORY], ms_per_token=100, faults=faults)
    async with Caller(clock, instant_backends(language_model=model)) as caller:
        ask(caller, output_modalities=["text"])
        await caller.wait_for("response.output_text.delta", count=6)
        if end == "cancelled":
            caller.send("response.cancel")
        await caller.wait_for("response.done")
        await caller.wait_for("voiceloop.timeline")
    assert caller.statuses() == [end]
    assert usages(caller) == [(0, 6)]
    assert generated(caller) == 6


async def test_a_client_that_cancels_hears_no_more_of_it(clock: Clock) -> None:
    backends = instant_backends(language_model=FakeLanguageModel([STORY]))
    async with Caller(clock, backends) as caller:
        ask(caller)
        await caller.wait_for("response.output_audio.delta")
        await caller.wait_quietly(1000)
        caller.send("response.cancel")
        await caller.wait_for("response.done")
        cancelled_s = clock()
        await caller.wait_quietly(1000)
    assert caller.statuses() == ["cancelled"]
    assert all(r.at_s <= cancelled_s for r in caller.of("response.output_audio.delta"))


@pytest.mark.parametrize("seed", range(8))
async def test_history_differs_from_what_was_heard_by_at_most_a_word(
    clock: Clock, seed: int
) -> None:
    chance = random.Random(seed)
    ms_per_char = chance.choice([40.0, 70.0, 110.0])
    model = FakeLanguageModel([STORY, "Fine."])
    backends = instant_backends(
        recognizer=FakeRecognizer(["stop it now"], ms_per_word=80),
        language_model=model,
        voice=FakeVoice(ms_per_char=ms_per_char),
    )
    async with Caller(clock, backends) as caller:
        ask(caller)
        start_s = (await caller.wait_for("response.output_audio.delta")).at_s
        await caller.wait_quietly(chance.uniform(100, 4000))
        await caller.say(600)
        stopped_s = caller.of("input_audio_buffer.speech_started")[0].at_s
        await caller.listen_until("response.done", count=2)
        kept = next(m for m in model.prompts[1] if m.role == "assistant").content
    sent_ms = caller.audio_ms(caller.of("response.done")[0].event["response"]["id"])
    heard_ms = min(1000 * (stopped_s - start_s), sent_ms)
    heard = [w for i, w in enumerate(STORY.split()) if heard_ms > _end_ms(i, ms_per_char)]
    assert abs(len(kept.split()) - len(heard)) <= 1


def _end_ms(index: int, ms_per_char: float) -> float:
    """When the word was over half, at the voice's pace."""
    words = STORY.split()
    before = sum(map(len, words[:index]))
    return ms_per_char * (before + len(words[index]) / 2)


async def test_an_idle_caller_is_spoken_to_when_the_session_asks_for_it(clock: Clock) -> None:
    detection = {"type": "server_vad", "idle_timeout_ms": 6000}
    async with Caller(clock) as caller:
        audio = {"input": {"turn_detection": detection}}
        caller.send("session.update", session={"type": "realtime", "audio": audio})
        await caller.say(800)
        await caller.listen_until("response.done")
        done_s = clock()
        await caller.listen_until("input_audio_buffer.timeout_triggered")
        assert 5.5 < clock() - done_s < 6.5
        await caller.listen_until("response.done", count=2)
    assert caller.statuses() == ["completed", "completed"]


async def test_the_prompt_ends_with_what_was_said(clock: Clock) -> None:
    model = FakeLanguageModel(["Noon."])
    backends = instant_backends(
        recognizer=FakeRecognizer(["what time is it"]), language_model=model
    )
    agent = AgentConfig(instructions="Be brief.", greeting="Hello.")
    async with Caller(clock, backends, agent) as caller:
        await caller.listen_until("response.done")
        await caller.wait_quietly(300)
        await caller.say(1000)
        await caller.listen_until("response.done", count=2)
    assert model.prompts == [
        (
            ChatMessage("system", "Be brief."),
            ChatMessage("assistant", "Hello."),
            ChatMessage("user", "what time is it"),
        )
    ]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(""),
        Reply(" "),
        Reply("", tool_calls=(ToolCall("call_1", "nothing_offered", "{}"),)),
    ],
)
async def test_a_caller_is_never_answered_with_silence(clock: Clock, reply: Reply) -> None:
    backends = instant_backends(language_model=FakeLanguageModel([reply]))
    async with Caller(clock, backends, AgentConfig(fallback="Pardon me?")) as caller:
        ask(caller)
        await caller.wait_for("response.done")
    assert caller.statuses() == ["completed"]
    assert caller.transcript().strip() == "Pardon me?"
    assert not caller.of("response.function_call_arguments.done")


HOURS = Reply("", (ToolCall("c", "hours", "{}"),))
LOST = {
    "type": "server_error",
    "code": "worker_lost",
    "message": "expected an answer, found a scripted fault",
}


def why_failed(caller: Caller) -> object:
    (details,) = {
        json.dumps(r.event["response"]["status_details"]["error"])
        for r in caller.of("response.done")
        if r.event["response"]["status"] == "failed"
    }
    return json.loads(details)


@pytest.mark.parametrize(
    ("reply", "after", "said"),
    [
        ("It is noon.", 0, "Pardon me?"),
        ("It is noon.", 2, "It is Pardon me?"),
        (HOURS, 0, "Pardon me?"),
        (HOURS, 1, "Pardon me?"),
        (Reply("Let me look.", HOURS.tool_calls), 3, "Let me look. Pardon me?"),
    ],
)
async def test_a_reply_that_fails_says_the_fallback_and_why(
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    reply: str | Reply,
    after: int,
    said: str,
) -> None:
    model = FakeLanguageModel([reply], faults=[Fault("commit", after=after)])
    agent = AgentConfig(tools=(AgentTool("hours", result="nine"),), fallback="Pardon me?")
    async with Caller(clock, instant_backends(language_model=model), agent) as caller:
        ask(caller)
        await caller.wait_for("voiceloop.timeline")
        messages = caller.session.protocol.shown.messages()
    spoken = [message for message in messages if message.role == "assistant"][-1]
    assert caller.statuses() == ["failed"] and why_failed(caller) == LOST
    assert caller.transcript() == said and spoken.content.endswith("Pardon me?")
    assert caller.audio_ms() == pytest.approx(60 * len(said.replace(" ", "")), abs=2)
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert line == f"a reply failed (worker_lost): {LOST['message']}"


async def test_a_reply_to_the_result_of_a_tool_that_fails_says_the_fallback(clock: Clock) -> None:
    model = FakeLanguageModel([HOURS, "Nine."], faults=[Fault("commit", nth=1)])
    agent = AgentConfig(tools=(AgentTool("hours", result="nine"),), fallback="Pardon me?")
    async with Caller(clock, instant_backends(language_model=model), agent) as caller:
        ask(caller)
        await caller.wait_for("voiceloop.timeline")
    assert caller.statuses() == ["completed", "failed"] and why_failed(caller) == LOST
    assert caller.transcript() == "Pardon me?"


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (FakeLanguageModel(["Hi."], faults=[Fault("commit", "hang")]), "backend_timeout"),
        (FakeLanguageModel(["Hi."], faults=[Fault("branch")]), "backend_error"),
        (FakeLanguageModel(["Hi."], faults=[Fault("branch", "overload")]), "server_overloaded"),
        (FakeLanguageModel(["Hi."], faults=[Fault("branch", "hang")]), "backend_timeout"),
        (FakeLanguageModel([Reply("", is_cancelled=True)]), "backend_error"),
    ],
)
async def test_a_model_that_does_not_answer_is_spoken_for(
    clock: Clock, model: FakeLanguageModel, code: str
) -> None:
    backends = instant_backends(language_model=model)
    agent = AgentConfig(fallback="Pardon me?", waiting=Waiting(say=()))
    async with Caller(clock, backends, agent) as caller:
        ask(caller)
        await caller.wait_for("response.done")
        error = caller.of("response.done")[0].event["response"]["status_details"]["error"]
    assert caller.statuses() == ["failed"] and error["code"] == code and error["message"]
    assert caller.transcript() == "Pardon me?"


async def test_a_bug_in_a_reply_says_the_fallback_and_leaves_its_traceback(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(messages: tuple[ChatMessage, ...]) -> Reply:
        raise KeyError("no such thing")

    backends = instant_backends(language_model=FakeLanguageModel(broken))
    async with Caller(clock, backends, AgentConfig(fallback="Pardon me?")) as caller:
        ask(caller)
        await caller.wait_for("voiceloop.timeline")
    assert caller.statuses() == ["failed"]
    assert why_failed(caller)["code"] == "internal_error"  # type: ignore[index]
    assert caller.transcript() == "Pardon me?"
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert record.exc_info and record.exc_info[0] is KeyError


async def test_a_written_reply_that_fails_says_why_and_no_more(clock: Clock) -> None:
    model = FakeLanguageModel(["It is noon."], faults=[Fault("commit", after=2)])
    async with Caller(clock, instant_backends(language_model=model)) as caller:
        ask(caller, output_modalities=["text"])
        await caller.wait_for("response.done")
    assert caller.statuses() == ["failed"] and why_failed(caller) == LOST
    text = "".join(r.event["delta"] for r in caller.of("response.output_text.delta"))
    assert text == "It is"


async def test_a_reply_out_of_band_leaves_the_open_turn_staged(clock: Clock) -> None:
    model = FakeLanguageModel(["Noted."])
    backends = instant_backends(
        recognizer=FakeRecognizer(["what time is it now"]), language_model=model
    )
    async with Caller(clock, backends) as caller:
        await caller.say(400)
        item = {"type": "message", "role": "user", "content": []}
        item["content"] = [{"type": "input_text", "text": "aside"}]
        ask(caller, conversation="none", input=[item])
        await caller.say(800)
        await caller.listen_until("response.done", count=2)
    assert model.branches[0].staged[-1] == "what time is it now"


async def test_tools_of_a_reply_out_of_band_leave_no_trace(clock: Clock) -> None:
    agent = AgentConfig(tools=(AgentTool("hours", result="nine"),))
    backends = instant_backends(
        language_model=FakeLanguageModel(calls_first("hours", then="Nine."))
    )
    async with Caller(clock, backends, agent) as caller:
        ask(caller, conversation="none")
        await caller.wait_for("response.done", count=2)
        assert not caller.session.protocol.conversation.items()
    assert caller.transcript() == "Nine."


async def test_a_reply_the_client_cut_shows_the_words_it_played(clock: Clock) -> None:
    backends = instant_backends(language_model=FakeLanguageModel([STORY]))
    async with Caller(clock, backends) as caller:
        ask(caller)
        added = await caller.wait_for("response.output_item.added")
        item_id = added.event["item"]["id"]
        await caller.wait_quietly(1000)
        caller.send(
            "conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=300
        )
        await caller.wait_for("response.done")
        caller.send("conversation.item.retrieve", item_id=item_id)
        item = (await caller.wait_for("conversation.item.retrieved")).event["item"]
        (message,) = caller.session.protocol.shown.messages()
    assert item["content"][0]["transcript"] == message.content
    assert STORY.startswith(message.content) and len(message.content) < len(STORY) / 2
