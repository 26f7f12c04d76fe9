"""Speculative decoding in a served call: on where nothing is said, and off where a key says so."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from clients.server_process import running_server
from voiceloop.agent_file import embedded_agent
from voiceloop.backends import ChatMessage, Generated, GenerateParams, TextDelta, Usage
from voiceloop.config import load_config
from voiceloop.models.presets import embedded_model_dir, worker_specs
from voiceloop.workers.supervisor import Supervisor

pytestmark = [pytest.mark.call, pytest.mark.timeout(120)]

# Orders that are read back: what drafters are for.
TURNS = (
    "hi i would like two large cappuccinos and a blueberry muffin please",
    "no make that three cappuccinos and two muffins",
    "can you read that back to me",
)


TEXT_ONLY = {
    "type": "session.update",
    "session": {"type": "realtime", "output_modalities": ["text"]},
}


async def served(table: dict[str, Any]) -> tuple[list[str], Usage, str]:
    """A call's replies by the embedded agent's worker, its guessed tokens, and what runs there."""
    config = load_config(flags={"preset": "embedded", **table})
    [spec] = [one for one in worker_specs(config) if one.name == "engine"]
    supervisor = Supervisor([spec])
    await supervisor.start()
    try:
        [state] = supervisor.states()
        history, texts = [ChatMessage("system", embedded_agent().instructions)], list[str]()
        n_drafted = n_accepted = 0
        for number, words in enumerate(TURNS):
            model, turn, text = supervisor.language_model(), ChatMessage("user", words), ""
            branch = await model.branch(f"sess_1/turn_{number}", tuple(history))
            branch.commit((turn,), GenerateParams(max_tokens=60))
            async for event in branch.events():
                match event:
                    case TextDelta(text=piece):
                        text += piece
                    case Generated(usage=usage):
                        n_drafted += usage.n_drafted_tokens
                        n_accepted += usage.n_accepted_tokens
                        break
            await branch.close()
            texts.append(text)
            history += [turn, ChatMessage("assistant", text)]
        return texts, Usage(n_drafted_tokens=n_drafted, n_accepted_tokens=n_accepted), state.detail
    finally:
        await supervisor.close()


async def test_tokens_are_guessed_in_a_served_call_unless_that_is_off() -> None:
    if not (embedded_model_dir() / "config.json").exists():
        pytest.skip(f"the embedded agent's weights are not at {embedded_model_dir()}")
    plain, none, told_off = await served({"engine.drafter": "none"})
    drafted, some, told_on = await served({})
    assert all(plain) and all(drafted)
    if "native" in told_on:  # in torch up to near ties
        assert drafted == plain
    assert (none.n_drafted_tokens, none.n_accepted_tokens) == (0, 0)
    assert 0 < some.n_accepted_tokens <= some.n_drafted_tokens
    assert "drafts by nobody" in told_off
    assert "drafts by grammars and n-grams and a draft model" in told_on


async def accepted_over_the_wire() -> float:
    """Guessed tokens that stood in a call's text turns, as `/metrics` counts them."""
    async with running_server(["--preset", "embedded"]) as server:
        async with connect(server.url) as call:
            await call.send(json.dumps(TEXT_ONLY))
            for words in TURNS:
                item = {"type": "message", "role": "user",
                        "content": [{"type": "input_text", "text": words}]}  # fmt: skip
                await call.send(json.dumps({"type": "conversation.item.create", "item": item}))
                await call.send(json.dumps({"type": "response.create"}))
                while json.loads(await call.recv())["type"] != "response.done":
                    pass
        async with httpx.AsyncClient() as http:
            told = (await http.get(f"http://127.0.0.1:{server.port}/metrics")).text
    line = 'voiceloop_draft_tokens_total{fate="accepted"} '
    return sum(float(row.removeprefix(line)) for row in told.splitlines() if row.startswith(line))


async def test_a_call_over_the_wire_is_drafted_for_unless_that_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await accepted_over_the_wire() > 0
    monkeypatch.setenv("VOICELOOP_ENGINE_DRAFTER", "none")
    assert await accepted_over_the_wire() == 0
