"""An hour of talk in texts whose tokens nobody can guess, with a model that counts and refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from clients.connection import typed
from tests.callers import Caller
from tests.fakes import EventPipe, FakeBranch, FakeLanguageModel, instant_backends
from voiceloop.agent import AgentConfig
from voiceloop.backends import ChatMessage, Generated, GenerateParams, LanguageEvent, Tool
from voiceloop.config import Config
from voiceloop.errors import PromptTooLong

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
CONTEXT_TOKENS = 2048
TURNS = 120  # two a minute for an hour
TEXTS = {
    "English": "I would like to know when you open on weekdays and what a large coffee is. ",
    "digits": "4915 7730 2261 0098 ",
    "JSON": '{"id": 4417, "open": true, "items": [{"sku": "A-19", "n": 2}]}, ',
    "Chinese": "我想知道你们工作日几点开门以及一杯大咖啡多少钱。",
    "Thai": "ฉันอยากรู้ว่าคุณเปิดกี่โมงในวันธรรมดา ",
}


def count_tokens(prompt: tuple[ChatMessage, ...]) -> int:
    """As a small vocabulary does: four letters a token, a token each byte of anything else."""
    text = "".join(message.content for message in prompt).encode()
    n_letters = sum(
        byte in b"abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ" for byte in text
    )
    return n_letters // 4 + len(text) - n_letters + 4 * len(prompt)


class CountingPipe(EventPipe[LanguageEvent]):
    """Tells how many tokens the prompt had."""

    n_prompt = 0

    def put(self, event: LanguageEvent | Exception | None, delay_ms: float = 0.0) -> None:
        if isinstance(event, Generated):
            usage = replace(event.usage, n_prompt_tokens=self.n_prompt)
            event = replace(event, usage=usage)
        super().put(event, delay_ms)


class CountingBranch(FakeBranch):
    _owner: CountingModel

    def commit(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        n_prompt = count_tokens((*self.messages, *tail))
        if n_prompt > CONTEXT_TOKENS:
            self._owner.n_refused += 1
            self._pipe.put(PromptTooLong(f"found {n_prompt} tokens"))
            return False
        self._owner.counted.append(n_prompt)
        self._owner.newest = (*self.messages, *tail)
        self._pipe.n_prompt = n_prompt  # type: ignore[attr-defined]
        return super().commit(tail, params)


class CountingModel(FakeLanguageModel):
    def __init__(self) -> None:
        super().__init__()
        self.counted: list[int] = []
        self.newest: tuple[ChatMessage, ...] = ()  # the prompt that was answered last
        self.notes: list[str] = []  # of each turn's prompt
        self.n_refused = 0

    async def branch(
        self,
        branch_id: str,
        history: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...] = (),
        tenant: str = "",
    ) -> CountingBranch:
        branch = CountingBranch(self, history, tools)
        branch._pipe = CountingPipe()
        self.open_branches.add(branch)
        return branch


def say(caller: Caller, text: str) -> None:
    caller.send("conversation.item.create", item=typed(text))
    caller.send("response.create", response={"output_modalities": ["text"]})


@pytest.mark.parametrize(("language", "known_tokens"), [
    *((language, 0) for language in (*TEXTS, "all in turn")),
    *((language, CONTEXT_TOKENS - 256) for language in ("English", "Thai", "all in turn")),
])  # fmt: skip
async def test_every_turn_of_an_hour_is_answered_whatever_a_token_is(
    clock: Clock, language: str, known_tokens: int
) -> None:
    texts = list(TEXTS.values()) if language == "all in turn" else [TEXTS[language]]
    model = CountingModel()
    config = Config(context_tokens=known_tokens)
    agent = AgentConfig(instructions="Answer in one short sentence.")
    backends = instant_backends(language_model=model)
    async with Caller(clock, backends, agent, config) as caller:
        for turn in range(TURNS):
            text = texts[turn % len(texts)]
            say(caller, text * (300 // len(text) + 1))
            await caller.wait_for("response.done", count=turn + 1)
    assert caller.statuses() == ["completed"] * TURNS
    later = model.counted[TURNS // 2 :]  # the room is used, not given away for fear
    assert sum(later) / len(later) > 0.4 * CONTEXT_TOKENS
    if known_tokens and language != "all in turn":
        assert model.n_refused <= 1  # once: then it is known what a token is


async def test_a_model_that_tells_its_window_by_refusing_is_told_what_has_left_it(
    clock: Clock,
) -> None:
    model = CountingModel()
    async with Caller(clock, instant_backends(language_model=model), AgentConfig()) as caller:
        for turn in range(TURNS):
            say(caller, "My name is Maria Lopez." if turn == 0 else TEXTS["English"] * 4)
            await caller.wait_for("response.done", count=turn + 1)
            model.notes.append("".join(message.behind for message in model.newest))
    assert caller.statuses() == ["completed"] * TURNS
    assert model.n_refused == 1  # once: from then on the call has a window
    refused_at = next(n for n in range(1, TURNS) if model.counted[n] < model.counted[n - 1])
    assert all("Maria Lopez" in notes for notes in model.notes[refused_at:])


async def test_a_result_of_six_hundred_digits_in_every_other_turn_fails_none(clock: Clock) -> None:
    model = CountingModel()
    backends = instant_backends(language_model=model)
    async with Caller(clock, backends, config=Config(context_tokens=1792)) as caller:
        for turn in range(40):
            if turn % 2:
                call = {
                    "type": "function_call",
                    "call_id": f"c{turn}",
                    "name": "look",
                    "arguments": "{}",
                }
                output = {
                    "type": "function_call_output",
                    "call_id": f"c{turn}",
                    "output": "7" * 600,
                }
                caller.send("conversation.item.create", item=call)
                caller.send("conversation.item.create", item=output)
            say(caller, "And what does that say?")
            await caller.wait_for("response.done", count=turn + 1)
    assert caller.statuses() == ["completed"] * 40


async def test_a_client_that_wants_nothing_left_out_is_told_that_it_is_too_long(
    clock: Clock,
) -> None:
    model = CountingModel()
    async with Caller(clock, instant_backends(language_model=model)) as caller:
        caller.send("session.update", session={"type": "realtime", "truncation": "disabled"})
        say(caller, TEXTS["digits"] * 200)
        done = await caller.wait_for("response.done")
    error = done.event["response"]["status_details"]["error"]
    assert error["code"] == "context_length_exceeded" and model.n_refused == 1


async def test_an_input_of_the_clients_own_is_not_cut(clock: Clock) -> None:
    model = CountingModel()
    own = [typed(TEXTS["digits"] * 200)]
    async with Caller(clock, instant_backends(language_model=model)) as caller:
        caller.send("response.create", response={"output_modalities": ["text"], "input": own})
        await caller.wait_for("response.done")
    assert caller.statuses() == ["failed"] and model.n_refused == 1
