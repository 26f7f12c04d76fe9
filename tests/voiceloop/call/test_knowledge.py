"""What a call knows from documents: given to the model alone, in time, and never in the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clients.connection import typed
from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, Reply, instant_backends
from tests.scripted_retriever import ScriptedRetriever
from tests.tool_service import Service, box
from voiceloop.agent import AgentConfig, AgentSlot, AgentTool
from voiceloop.backends import Backends, ChatMessage, ToolCall
from voiceloop.call.connection import Hello
from voiceloop.config import Ahead, Config
from voiceloop.errors import BackendError
from voiceloop.knowledge.retrieval import LAST_WORDS_MS, LOOK_UP_MS
from voiceloop.listening import endpointing
from voiceloop.listening.release import LEAST_WAIT_MS

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
HELLO = Hello(timeline=True, sources=True)


def backends_of(model: FakeLanguageModel, *heard: str, voice: FakeVoice | None = None) -> Backends:
    return instant_backends(
        recognizer=FakeRecognizer(heard or ("return my red boots",), ms_per_word=200),
        language_model=model,
        voice=voice or FakeVoice(),
    )


def sure_model() -> FakeLanguageModel:
    return FakeLanguageModel(["Thirty days."], ttft_ms=50, p_end_of_turn=lambda text: 0.9)


@pytest.fixture
def least_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every turn is over after the least wait, whatever the fitted weights say."""
    monkeypatch.setattr(endpointing, "wait_ms", lambda *args, **named: LEAST_WAIT_MS)


def stages_of(caller: Caller) -> dict[str, float]:
    timeline = caller.of("voiceloop.timeline")[0].event["timeline"]
    return {stage["name"]: stage["ms"] for stage in timeline["stages"]}


def retrieval_of(caller: Caller, turn: int = 0) -> dict[str, object]:
    found: dict[str, object] = caller.of("voiceloop.timeline")[turn].event["timeline"]["retrieval"]
    return found


async def test_a_reply_drafted_in_the_pause_has_read_the_passages_behind_the_words(
    clock: Clock,
) -> None:
    model, retriever = sure_model(), ScriptedRetriever()
    async with Caller(clock, backends_of(model), hello=HELLO, retriever=retriever) as caller:
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
    (prompt,) = model.prompts
    assert prompt[-1].content == "return my red boots"
    assert "return my red boots]" in prompt[-1].behind
    timeline = caller.of("voiceloop.timeline")[0].event["timeline"]
    assert timeline["draft_buffered_ms"] > 0  # the draft was made of the same notes, and is said
    assert retrieval_of(caller)["fate"] == "hidden"
    assert stages_of(caller)["retrieval"] == 0.0


async def test_passages_are_never_staged_and_never_on_the_wire_but_as_sources(
    clock: Clock,
) -> None:
    model = sure_model()
    async with Caller(
        clock, backends_of(model), hello=HELLO, retriever=ScriptedRetriever()
    ) as caller:
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
        (told,) = caller.of("voiceloop.sources")
    staged = sum((branch.staged for branch in model.branches), [])
    assert staged and not any("[Notes" in text for text in staged)
    assert "[Notes" not in str([received.event for received in caller.transport.received])
    item_id = caller.of("input_audio_buffer.committed")[0].event["item_id"]
    response_id = caller.of("response.created")[0].event["response"]["id"]
    assert (told.event["item_id"], told.event["response_id"]) == (item_id, response_id)
    assert told.event["sources"] == [{"path": "shop/a.md", "heading": "Shoes"}]


async def test_the_next_turn_keeps_the_passages_of_the_last_where_the_cache_has_them(
    clock: Clock,
) -> None:
    model = sure_model()
    heard = ("return my red boots", "hello there")
    async with Caller(clock, backends_of(model, *heard), retriever=ScriptedRetriever()) as caller:
        for turn in range(2):
            await caller.say(800)
            await caller.listen_until("voiceloop.timeline", count=turn + 1)
    first, second = model.prompts
    assert second[: len(first)] == first
    assert (second[-1].content, second[-1].behind) == ("hello there", "")
    assert not caller.of("voiceloop.sources")  # nobody asked for them
    assert retrieval_of(caller, 1)["fate"] == "none"


async def test_a_tool_that_a_document_alone_names_is_not_called(clock: Clock) -> None:
    """The model does what the passage asks; nobody offered it that tool, so nothing is called."""

    def obedient(messages: tuple[ChatMessage, ...]) -> str | Reply:
        if "red boots]" in messages[-1].behind:
            return Reply("", (ToolCall("c1", "delete_all", "{}"),))
        return "Nothing."

    read = AgentTool("price", url="https://shop.test/", side_effect_free=True)
    service, agent = Service(), AgentConfig(tools=(read,), fallback="Pardon me?")
    model = FakeLanguageModel(obedient, ttft_ms=50, p_end_of_turn=lambda text: 0.9)
    async with Caller(
        clock,
        backends_of(model),
        agent,
        hello=HELLO,
        retriever=ScriptedRetriever(),
        toolbox=box(clock, price=(read, service), delete_all=(read, service)),
    ) as caller:
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
    assert service.n_begun == 0 and not caller.of("response.function_call_arguments.done")
    assert caller.transcript() == "Pardon me?"


async def test_what_was_found_and_what_was_confirmed_both_stand_behind_the_words(
    clock: Clock,
) -> None:
    agent = AgentConfig(slots=(AgentSlot("what colour", "name", name="colour", read_back=""),))
    heard = ("hello", "return my red boots")
    model = FakeLanguageModel(["What colour?", "Fine."], p_end_of_turn=lambda text: 0.9)
    async with Caller(
        clock, backends_of(model, *heard), agent, retriever=ScriptedRetriever()
    ) as caller:
        for turn in range(2):
            await caller.say(800)
            await caller.listen_until("voiceloop.timeline", count=turn + 1)
    behind = model.prompts[-1][-1].behind
    assert "- colour = Return My Red Boots" in behind and "[Notes" in behind


async def test_typed_words_are_looked_up_when_they_are_answered(clock: Clock) -> None:
    model = FakeLanguageModel(["Thirty days."])
    async with Caller(clock, backends_of(model), retriever=ScriptedRetriever()) as caller:
        caller.send("conversation.item.create", item=typed("return boots"))
        caller.send("response.create")
        await caller.wait_for("voiceloop.timeline")
    assert "return boots" in model.prompts[0][-1].behind
    assert retrieval_of(caller)["fate"] == "waited"


async def test_what_is_looked_up_stays_with_the_turn_it_was_looked_up_for(clock: Clock) -> None:
    """Whatever else the client has sent by the time it is found."""
    model, retriever = FakeLanguageModel(["Thirty days."]), ScriptedRetriever(takes_ms=20.0)
    async with Caller(clock, backends_of(model), hello=HELLO, retriever=retriever) as caller:
        for id_, text in (("first", "return boots"), ("second", "by mail")):
            content = [{"type": "input_text", "text": text}]
            item = {"id": id_, "type": "message", "role": "user", "content": content}
            caller.send("conversation.item.create", item=item)
            if id_ == "first":
                caller.send("response.create")
        await caller.wait_for("voiceloop.timeline")
        (told,) = caller.of("voiceloop.sources")
        first, second = caller.session.protocol.shown.messages()[:2]
    assert told.event["item_id"] == "first"
    assert (first.content, second.content) == ("return boots", "by mail")
    assert "return boots]" in first.behind and second.behind == ""
    assert model.prompts[0][-1] == first


async def test_what_is_found_for_a_deleted_turn_is_left_with_its_reply(clock: Clock) -> None:
    model, retriever = FakeLanguageModel(["Thirty days."]), ScriptedRetriever(takes_ms=20.0)
    async with Caller(clock, backends_of(model), hello=HELLO, retriever=retriever) as caller:
        for id_, text in (("kept", "hello there"), ("gone", "return boots")):
            content = [{"type": "input_text", "text": text}]
            item = {"id": id_, "type": "message", "role": "user", "content": content}
            caller.send("conversation.item.create", item=item)
        caller.send("response.create")
        caller.send("conversation.item.delete", item_id="gone")
        await caller.wait_for("voiceloop.timeline")
        shown = caller.session.protocol.shown.messages()
    assert "return boots]" in model.prompts[0][-1].behind
    assert not caller.of("voiceloop.sources")
    assert (shown[0].content, shown[0].behind) == ("hello there", "")


async def test_switched_off_it_is_searched_once_when_the_turn_is_over(clock: Clock) -> None:
    model, retriever = sure_model(), ScriptedRetriever()
    config = Config(anticipation=Ahead(("retrieval",)))
    async with Caller(clock, backends_of(model), config=config, retriever=retriever) as caller:
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
    assert retriever.asked == ["return my red boots"]
    assert "red boots" in model.prompts[0][-1].behind
    assert retrieval_of(caller)["fate"] == "waited"
    stages = {
        s["name"]: s["ms"] for s in caller.of("voiceloop.timeline")[0].event["timeline"]["stages"]
    }
    assert stages["retrieval"] == pytest.approx(5.0, abs=0.1)


@pytest.mark.parametrize("retriever", [
    ScriptedRetriever(takes_ms=60_000.0), ScriptedRetriever(error=BackendError("gone")),
])  # fmt: skip
async def test_a_store_that_fails_costs_a_spoken_turn_no_time(
    clock: Clock, retriever: ScriptedRetriever
) -> None:
    gaps = []
    for found in (None, retriever):
        async with Caller(clock, backends_of(sure_model()), retriever=found) as caller:
            end_s = await caller.say(800)
            await caller.listen_until("voiceloop.timeline")
        gaps.append(1000 * (caller.first_audio_s() - end_s))
    assert gaps[1] == pytest.approx(gaps[0], abs=0.1)
    assert caller.transcript() == "Thirty days."
    assert retrieval_of(caller)["fate"] in ("late", "failed")


async def test_words_told_at_the_end_alone_are_looked_up_there_within_a_budget(
    clock: Clock,
) -> None:
    model, retriever = FakeLanguageModel(["Thirty days."]), ScriptedRetriever(takes_ms=1e6)
    detection = {"input": {"turn_detection": None}}
    async with Caller(clock, backends_of(model), retriever=retriever) as caller:
        caller.send("session.update", session={"type": "realtime", "audio": detection})
        await caller.say(800)
        caller.send("input_audio_buffer.commit")
        caller.send("response.create")
        await caller.wait_for("voiceloop.timeline")
    assert retriever.asked == ["return my red boots"]
    assert caller.transcript() == "Thirty days."
    assert retrieval_of(caller)["fate"] == "failed"
    stages = {
        s["name"]: s["ms"] for s in caller.of("voiceloop.timeline")[0].event["timeline"]["stages"]
    }
    assert stages.get("retrieval", 0.0) <= LOOK_UP_MS + 0.1


async def test_a_caller_who_goes_on_is_answered_with_passages_for_all_of_it(clock: Clock) -> None:
    model = FakeLanguageModel(
        ["Thirty days."], p_end_of_turn=lambda text: 0.9 if text.endswith("abroad") else 0.5
    )
    heard = "return my red boots bought abroad"
    async with Caller(clock, backends_of(model, heard), retriever=ScriptedRetriever()) as caller:
        await caller.say(700)
        await caller.wait_quietly(160)
        await caller.say(700)
        await caller.listen_until("voiceloop.timeline")
    assert f"{heard}]" in model.prompts[-1][-1].behind


@pytest.mark.usefixtures("least_wait")
@pytest.mark.parametrize("partial_delay_ms", (0, 80, 100, 140, 240, 280))
async def test_last_words_that_come_as_the_turn_ends_are_looked_up_by_the_reply(
    clock: Clock, partial_delay_ms: int
) -> None:
    """Whenever they come."""
    heard = "return my red boots"
    recognizer = FakeRecognizer((heard,), ms_per_word=200, partial_delay_ms=partial_delay_ms)
    model = sure_model()
    backends = instant_backends(recognizer=recognizer, language_model=model, voice=FakeVoice())
    retriever = ScriptedRetriever(takes_ms=1.0)
    async with Caller(clock, backends, hello=HELLO, retriever=retriever) as caller:
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
    assert f"Shoes: {heard}]" in model.prompts[-1][-1].behind
    assert caller.of("voiceloop.sources")
    waits_ms = 1.0 if partial_delay_ms >= 100 else 0.0  # from then on they end the turn
    assert stages_of(caller)["retrieval"] == pytest.approx(waits_ms, abs=0.1)
    assert retrieval_of(caller)["fate"] == ("waited" if waits_ms else "hidden")


@pytest.mark.usefixtures("least_wait")
@pytest.mark.parametrize("is_local, most_ms", [(True, LAST_WORDS_MS), (False, 0.0)])
async def test_last_words_cost_little_time_where_nobody_finds_any_and_none_at_a_service(
    clock: Clock, is_local: bool, most_ms: float
) -> None:
    recognizer = FakeRecognizer(("return my red boots",), ms_per_word=200, partial_delay_ms=140)
    model = sure_model()
    backends = instant_backends(recognizer=recognizer, language_model=model, voice=FakeVoice())
    retriever = ScriptedRetriever(takes_ms=15.0, is_local=is_local)
    async with Caller(clock, backends, hello=HELLO, retriever=retriever) as caller:
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
    assert "Shoes: return my red]" in model.prompts[-1][-1].behind  # what was found before
    assert caller.of("voiceloop.sources")
    assert stages_of(caller)["retrieval"] == pytest.approx(most_ms, abs=0.1)
