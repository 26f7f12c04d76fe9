"""A service is made to read a prompt before it is wanted, where that spares the caller a wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice
from tests.reading_service import ReadingService
from tests.remote_service import Answer, scripted_remote
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends, ChatMessage, Generated, GenerateParams, Staged, Tool
from voiceloop.remote.language import RemoteBranch, RemoteLanguageModel
from voiceloop.remote.prompt_cache import Prompt, PromptCache
from voiceloop.remote.readers.end_of_words import EndReadingModel

pytestmark = pytest.mark.virtual_time

PARAMS = GenerateParams(max_tokens=40)
INSTRUCTIONS = ChatMessage("system", "You take orders for a cafe. " * 50)  # 1400 characters: 140 ms
GREETING = ChatMessage("assistant", "Hello, what can I get you?")
WORDS = "I would like a large cappuccino and a blueberry muffin please. " * 2


@asynccontextmanager
async def model_of(service: ReadingService, **options: Any) -> AsyncIterator[RemoteLanguageModel]:
    async with scripted_remote(service) as remote:
        connection = remote.connect()
        await connection.start()
        yield RemoteLanguageModel(connection, clock=service.clock, **options)


async def staged(branch: RemoteBranch, stage_id: int, text: str) -> list[Staged]:
    """What is told of a stage: at once, and again where the service was made to read."""
    branch.stage(stage_id, text)
    events = branch.events()
    told = [await anext(events)]
    if branch._turn._reading is not None:
        told.append(await anext(events))
    assert all(isinstance(event, Staged) for event in told)
    return told  # type: ignore[return-value]


async def replied(branch: RemoteBranch, text: str) -> Generated:
    branch.commit((ChatMessage("user", text),), PARAMS)
    async for event in branch.events():
        if isinstance(event, Generated):
            return event
    raise AssertionError("the branch ended without a reply")


async def test_of_150_ms_of_reading_more_than_80_percent_are_spared_the_caller() -> None:
    found: dict[bool, float] = {}
    for reads_ahead in (False, True):
        service = ReadingService()
        async with model_of(service, reads_ahead=reads_ahead) as model:
            branch = await model.branch("b1", (INSTRUCTIONS, GREETING))
            await staged(branch, 1, "")
            await staged(branch, 2, WORDS)
            found[reads_ahead] = (await replied(branch, WORDS)).usage.ttft_ms
            await branch.close()
    reading_ms = found[False] - 12.0
    assert reading_ms > 150.0
    assert found[True] - 12.0 < 0.2 * reading_ms


async def test_what_is_staged_is_told_once_the_service_has_read_it() -> None:
    service = ReadingService()
    async with model_of(service) as model:
        branch = await model.branch("b1", (INSTRUCTIONS, GREETING))
        at_once, read = await staged(branch, 1, "")
        assert at_once == Staged(1, 0, 0, None)
        n_prompt = service.asked_for[0].n_read
        assert read == Staged(1, n_prompt, n_prompt, None)
        at_once, read = await staged(branch, 2, WORDS)
        assert at_once == Staged(2, n_prompt, 0, None)
        assert read.n_resident == n_prompt - 1 + len(WORDS)  # "." stood where the words are now
        assert read.n_prefilled == service.asked_for[1].n_read == len(WORDS)
        await branch.close()


async def test_what_is_read_ahead_is_metered() -> None:
    service = ReadingService()
    async with model_of(service) as model:
        branch = await model.branch("b1", (INSTRUCTIONS, GREETING))
        _, first = await staged(branch, 1, "")
        _, second = await staged(branch, 2, WORDS)
        usage = (await replied(branch, WORDS)).usage
        assert usage.n_read_ahead_tokens == first.n_resident + second.n_resident
        assert usage.n_discarded_tokens == 2  # the one token of each request
        await branch.close()


async def test_what_was_read_for_a_turn_without_a_reply_is_metered_with_the_next() -> None:
    service = ReadingService()
    async with model_of(service) as model:
        noise = await model.branch("b1", (INSTRUCTIONS, GREETING))
        _, read = await staged(noise, 1, "")
        await noise.close()
        found = []
        for number in (2, 3):
            branch = await model.branch(f"b{number}", (INSTRUCTIONS, GREETING))
            found.append((await replied(branch, "A latte.")).usage.n_read_ahead_tokens)
            await branch.close()
    assert found == [read.n_resident, 0]


async def test_the_next_turn_reads_nothing_again_that_the_service_has() -> None:
    service = ReadingService()
    async with model_of(service) as model:
        branch = await model.branch("b1", (INSTRUCTIONS, GREETING))
        await staged(branch, 1, "")
        await replied(branch, "A latte.")
        await branch.close()
        history = (
            INSTRUCTIONS,
            GREETING,
            ChatMessage("user", "A latte."),
            ChatMessage("assistant", "Yes."),
        )
        branch = await model.branch("b2", history)
        n_asked = len(service.asked_for)
        assert len(await staged(branch, 1, "")) == 1
        assert len(await staged(branch, 2, "thank you")) == 1
        assert len(service.asked_for) == n_asked
        await branch.close()


async def test_a_conversation_that_rested_is_read_again() -> None:
    service = ReadingService()
    async with model_of(service) as model:
        for expected in (2, 1, 2):  # events told: read, still there, read again
            branch = await model.branch("b", (INSTRUCTIONS, GREETING))
            assert len(await staged(branch, 1, "")) == expected
            await branch.close()
            service.now_s += 20.0
    assert service.n_ahead == 2


@pytest.mark.parametrize("service", [
    ReadingService(ms_per_character=0.002), ReadingService(caches=False),
], ids=["reads fast", "has no cache"])  # fmt: skip
async def test_a_service_that_gains_nothing_by_it_is_soon_left_alone(
    service: ReadingService,
) -> None:
    async with model_of(service) as model:
        for number in range(6):
            history = (ChatMessage("system", f"{number} {INSTRUCTIONS.content}"),)
            branch = await model.branch("b", history)
            await staged(branch, 1, "")
            await replied(branch, "A latte.")
            await branch.close()
    assert service.n_ahead <= 2


async def test_a_reading_of_words_that_were_not_said_is_aborted() -> None:
    service = ReadingService()
    async with model_of(service) as model:
        branch = await model.branch("b1", (INSTRUCTIONS, GREETING))
        await staged(branch, 1, "")
        service.hold_next = asyncio.Event()  # never set: only hanging up ends it
        branch.stage(2, WORDS)
        await service.wait_asked("/chat/completions", 2)
        branch.stage(3, "No wait. " + WORDS)
        await service.hung_up.wait()
        await service.wait_asked("/chat/completions", 3)
        assert service.asked_for[-1].body["messages"][-1]["content"] == "No wait. " + WORDS  # type: ignore[index]
        await branch.close()


async def test_a_reading_under_way_is_let_be_where_the_turn_goes_on_with_its_words() -> None:
    service = ReadingService()
    async with model_of(service) as model:
        branch = await model.branch("b1", (INSTRUCTIONS, GREETING))
        held = service.hold_next = asyncio.Event()
        branch.stage(1, "")
        await service.wait_asked("/chat/completions", 1)
        for stage_id in range(2, 9):
            branch.stage(stage_id, WORDS[: 10 * stage_id])
        await replied(branch, WORDS)
        assert len(service.asked_for) == 2 and not service.hung_up.is_set()
        held.set()
        await branch.close()


async def test_a_failed_reading_costs_the_turn_nothing_and_is_not_tried_again() -> None:
    service = ReadingService()
    async with model_of(service) as model:
        service.say("/chat/completions")
        answer_to, service.answer_to = service.answer_to, _busy  # type: ignore[method-assign]
        branch = await model.branch("b1", (INSTRUCTIONS, GREETING))
        branch.stage(1, "")
        await service.wait_asked("/chat/completions", 1)
        while branch._turn._reading is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        service.answer_to = answer_to  # type: ignore[method-assign]
        branch.stage(2, WORDS)
        await replied(branch, WORDS)
        assert len(service.asked("/chat/completions")) == 2
        await branch.close()


def _busy(path: str, body: bytes) -> Answer:
    return Answer([b"busy"], 429)


async def test_the_tools_stand_in_what_is_read_ahead_as_in_the_reply() -> None:
    service = ReadingService()
    tools = (Tool("order", "Orders what the caller wants.", {"type": "object"}),)
    async with model_of(service) as model:
        branch = await model.branch("b1", (INSTRUCTIONS,), tools)
        await staged(branch, 1, "")
        await replied(branch, "A latte.")
        ahead, asked = (asked.body for asked in service.asked_for)
        assert ahead["tools"] == asked["tools"]
        assert service.asked_for[1].n_read == len("A latte.")
        await branch.close()


async def test_in_a_call_the_service_has_read_the_instructions_when_the_reply_is_due(
    clock: Callable[[], float],
) -> None:
    service = ReadingService()
    async with model_of(service) as model:
        reading = FakeLanguageModel(p_end_of_turn=lambda text: 0.05)
        backends = Backends(FakeRecognizer(["hello"]), EndReadingModel(model, reading), FakeVoice())
        agent = AgentConfig(instructions=INSTRUCTIONS.content)
        async with Caller(clock, backends, agent) as caller:
            await caller.say(400)
            await caller.listen_until("response.done")
    ahead, *_, asked = service.asked_for
    assert ahead.max_tokens == 1 and ahead.n_read > len(INSTRUCTIONS.content)
    assert asked.max_tokens > 1 and asked.n_read < 20  # "hello", and what stands around it
    assert reading.branches[0].staged[-1] == "hello"


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        ("vllm", [100, 200, None]),
        ("sglang", [-100, -200, 0]),
        ("", [None, None, None]),
    ],
)
async def test_what_nobody_waits_for_yet_is_less_urgent(
    owner: str, expected: list[int | None]
) -> None:
    service = ReadingService(owner=owner)
    async with model_of(service, salt_of=str.upper) as model:
        branch = await model.branch("b1", (INSTRUCTIONS,), tenant="tenant-1")
        await staged(branch, 1, "")
        branch.begin_preemptive(1, (ChatMessage("user", "A latte."),), PARAMS)
        await service.wait_asked("/chat/completions", 2)
        await replied(branch, "A tea.")
        assert [asked.body.get("priority") for asked in service.asked_for] == expected
        salt = "TENANT-1" if owner else None
        assert all(asked.body.get("cache_salt") == salt for asked in service.asked_for)
        await branch.close()


async def test_text_that_no_caller_waits_for_comes_last() -> None:
    service = ReadingService(owner="vllm")
    async with model_of(service) as model:
        branch = await model.branch("http-1", (INSTRUCTIONS,))
        branch.commit((ChatMessage("user", "A poem."),), GenerateParams(is_batch=True))
        await anext(branch.events())
        assert service.asked_for[0].body["priority"] == 300
        await branch.close()


async def test_a_service_without_priorities_is_asked_again_without_one() -> None:
    service = ReadingService(owner="vllm", refuses_priority=True)
    async with model_of(service) as model:
        branch = await model.branch("b1", (INSTRUCTIONS,))
        assert len(await staged(branch, 1, "")) == 2
        branch.begin_preemptive(1, (ChatMessage("user", "A latte."),), PARAMS)
        await replied(branch, "A tea.")
        assert len(service.asked("/chat/completions")) == len(service.asked_for) + 1
        await branch.close()


def test_reading_costs_nothing_where_prompts_of_any_length_take_as_long() -> None:
    """As of turns with their sound, none of which is short."""
    cache, long = PromptCache(lambda: 0.0), Prompt("", "", (ChatMessage("user", "word " * 200),))

    def observe(ms_per_character: float) -> None:
        for n_unread in (400, 900, 1600):
            prompt = Prompt("", "", (ChatMessage("user", f"{n_unread} {ms_per_character}"),))
            cache.observe(prompt, n_unread, 150.0 + ms_per_character * n_unread)

    assert cache.pays(long)  # nothing is known
    observe(0.0)
    assert cache.ms_per_character == 0.0 and not cache.pays(long)
    for _ in range(5):
        observe(0.2)
    assert cache.pays(long)
