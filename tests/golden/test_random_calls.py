"""Whatever callers, clients and models do in whatever order, the call answers the next turn.

Random acts on a whole session in virtual time: what the golden wires hold beside the tests of one
feature each. VOICELOOP_FUZZ gives the number of calls.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from clients.connection import typed
from tests.callers import Caller
from tests.fakes import (
    FakeLanguageModel,
    FakeRecognizer,
    FakeVoice,
    Fault,
    Reply,
    instant_backends,
)
from voiceloop.agent import AgentConfig, Waiting
from voiceloop.backends import Backends, ChatMessage, ToolCall
from voiceloop.call.connection import Hello
from voiceloop.config import Config

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
N_CALLS = min(int(os.environ.get("VOICELOOP_FUZZ", "2")), 200)
N_ACTS = 25
DONE = "response.done"
SAID = (
    "i want a latte",
    "two lattes with oat milk please and a muffin",
    "uh",
    "stop",
    "when do you open on sunday",
    "yes",
    "my number is five five five one two",
)
REPLIES = (
    "Sure.",
    "Certainly, a latte with oat milk. Would you like anything else with that today?",
    "We open at nine. On Sundays it is ten, and we close at six in the evening.",
    "One, two.",
)
TOOL = {
    "type": "function",
    "name": "hours",
    "description": "Opening hours.",
    "parameters": {"type": "object", "properties": {"day": {"type": "string"}}},
}
TYPED = typed("hi")
ACTS = (
    "say", "say", "say", "say shortly", "murmur", "wait", "wait", "wait long", "type", "respond",
    "respond apart", "cancel", "commit", "clear", "truncate", "detection", "tools", "answer call",
    "text only", "delete",
)  # fmt: skip


def backends_of(rng: random.Random) -> Backends:
    def answer(messages: tuple[ChatMessage, ...]) -> Reply:
        text = REPLIES[len(messages) % len(REPLIES)]
        if messages[-1].role == "user" and len(messages) % 5 == 2 and calls:
            return Reply("", (ToolCall(f"call_{len(messages)}", "hours", '{"day": "monday"}'),))
        return Reply(text)

    calls = rng.random() < 0.6
    p_end = rng.choice((None, 0.02, 0.5, 0.95))
    slow = rng.random() < 0.4
    return instant_backends(
        recognizer=FakeRecognizer(
            rng.sample(SAID, len(SAID)),
            partial_delay_ms=rng.choice((0.0, 30.0, 400.0)),
            final_delay_ms=rng.choice((0.0, 60.0, 1500.0)),
            faults=[Fault("flush", "fail", nth=rng.randrange(20))] if rng.random() < 0.2 else (),
        ),
        language_model=FakeLanguageModel(
            answer,
            ttft_ms=rng.choice((0.0, 80.0, 3000.0)) if slow else 20.0,
            ms_per_token=rng.choice((0.0, 25.0)),
            p_end_of_turn=lambda text: p_end,
            loses_attempts=rng.random() < 0.2,
            faults=[
                Fault("commit", rng.choice(("fail", "hang")), rng.randrange(6), rng.randrange(4))
                for _ in range(rng.choice((0, 0, 1, 2)))
            ],
        ),
        voice=FakeVoice(
            first_audio_ms=rng.choice((0.0, 40.0, 900.0)),
            faults=[Fault("feed", "fail", rng.randrange(9))] if rng.random() < 0.2 else (),
        ),
    )


class Acts:
    """One caller and his client, who do anything at any time."""

    def __init__(self, caller: Caller, rng: random.Random) -> None:
        self.caller = caller
        self.rng = rng

    async def do(self, act: str) -> None:
        caller, rng = self.caller, self.rng
        match act:
            case "say":
                await caller.say(rng.choice((500, 800, 1400, 2400)))
                await caller.wait_quietly(rng.choice((100, 300, 700, 1500)))
            case "say shortly":
                await caller.say(rng.choice((120, 180, 260)))
                await caller.wait_quietly(rng.choice((60, 200, 300)))
            case "murmur":
                for _ in range(rng.randrange(1, 4)):
                    await caller.say(rng.choice((60, 100, 300)))
                    await caller.wait_quietly(rng.choice((80, 120, 240)))
            case "wait":
                await caller.wait_quietly(rng.choice((40, 200, 600, 1200)))
            case "wait long":
                await caller.wait_quietly(rng.choice((3000, 6000)))
            case "type":
                caller.send("conversation.item.create", item=TYPED)
            case "respond":
                caller.send("response.create")
            case "respond apart":
                caller.send("response.create", response={"conversation": "none"})
            case "cancel":
                caller.send("response.cancel")
            case "commit":
                caller.send("input_audio_buffer.commit")
            case "clear":
                caller.send("input_audio_buffer.clear")
            case "truncate":
                self.on_an_item("conversation.item.truncate", content_index=0, audio_end_ms=400)
            case "delete":
                self.on_an_item("conversation.item.delete")
            case "detection":
                kinds: list[dict[str, Any] | None] = [
                    {"type": "semantic_vad", "eagerness": rng.choice(("low", "auto", "high"))},
                    {"type": "server_vad", "silence_duration_ms": 300},
                    {"type": "semantic_vad", "interrupt_response": rng.random() < 0.5},
                    {"type": "semantic_vad", "create_response": rng.random() < 0.5},
                    None,
                ]
                self.update(audio={"input": {"turn_detection": rng.choice(kinds)}})
            case "tools":
                self.update(tools=[TOOL] if rng.random() < 0.7 else [])
            case "text only":
                kind = rng.choice(("text", "audio", "audio"))
                self.update(output_modalities=[kind])
            case "answer call":
                for call_id in self.open_calls():
                    output = {"type": "function_call_output", "call_id": call_id, "output": "nine"}
                    caller.send("conversation.item.create", item=output)
                caller.send("response.create")
        await caller.wait_quietly(20)

    def update(self, **session: Any) -> None:
        self.caller.send("session.update", session={"type": "realtime", **session})

    def on_an_item(self, kind: str, **fields: Any) -> None:
        if items := self.caller.of("response.output_item.added"):
            item_id = items[-1].event["item"]["id"]
            self.caller.send(kind, item_id=item_id, **fields)

    def open_calls(self) -> list[str]:
        called = self.caller.of("response.function_call_arguments.done")
        return [received.event["call_id"] for received in called[-1:]]


@pytest.mark.parametrize("seed", range(N_CALLS))
async def test_a_call_answers_whatever_was_done_to_it(clock: Clock, seed: int) -> None:
    rng = random.Random(seed)
    backends = backends_of(rng)
    agent = AgentConfig(
        greeting=rng.choice(("", "Hello, how can I help?")),
        fallback="Sorry, say that again.",
        waiting=Waiting(say=("One moment please.",) if rng.random() < 0.6 else ()),
    )
    hello = Hello(timeline=True, partials=rng.random() < 0.5, notices=True)
    async with Caller(clock, backends, agent, Config(), hello=hello) as caller:
        acts = Acts(caller, rng)
        acts.update(tools=[TOOL])
        for _ in range(N_ACTS):
            await acts.do(rng.choice(ACTS))
        for call_id in acts.open_calls():
            output = {"type": "function_call_output", "call_id": call_id, "output": "nine"}
            caller.send("conversation.item.create", item=output)
        detection = {"type": "semantic_vad", "create_response": True, "interrupt_response": True}
        acts.update(audio={"input": {"turn_detection": detection}})
        acts.update(output_modalities=["audio"], tools=[])
        await caller.wait_quietly(45_000)  # what was under way ends, or fails by its deadline
        n_done = len(caller.of(DONE))
        for _ in range(3):  # one may fail by a fault of the script, or hold no words that count
            await caller.say(1400)
            await caller.wait_quietly(12_000)
        assert len(caller.of(DONE)) > n_done
        assert caller.transport.closed is None
