"""Calls with trained models in every role, over real sockets: `voiceloop serve` as it is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from audio.espeak_library import Timbre, load_espeak
from audio.frames import RECOGNIZER_HZ, Samples
from audio.resample import Resampler
from clients.call.result import CallResult
from clients.call.simulated_call import SimulatedCall
from clients.connection import RealtimeConnection
from clients.demo import recording_as_call
from clients.recording import write_wav
from clients.server_process import ServerProcess, running_server
from tests.real_weights.packages import (
    PIPER_JOE,
    QWEN_CODER,
    SMOLLM2,
    WHISPER_BASE,
    WHISPER_TINY,
    Weights,
)
from tests.real_weights.piper import PiperJoe

pytestmark = [pytest.mark.real_weights, pytest.mark.timeout(600)]

QUESTION = "What is the capital of France?"
FRAGE = "Haben Sie am Samstag noch einen Tisch für zwei Personen?"
INSTRUCTIONS = "You answer in one short sentence."
AGENT = f'name = "Atlas"\ninstructions = "{INSTRUCTIONS}"\n'
LADEN = 'name = "Laden"\nlanguage = "de"\nvoice = "de"\ninstructions = "Antworte in einem Satz."\n'
BOOKING = {
    "type": "function",
    "function": {
        "name": "book_table",
        "description": "Book a table.",
        "parameters": {
            "type": "object",
            "properties": {"day": {"type": "string"}, "people": {"type": "integer"}},
            "required": ["day", "people"],
        },
    },
}


def serve(
    weights: Weights,
    fetched: Callable[[Weights], Path],
    folder: Path,
    hearing: Weights = WHISPER_TINY,
    agent: str = AGENT,
) -> Any:
    """This recognizer (Whisper tiny.en), language model, and the voice of the agent's language."""
    (folder / "agent.toml").write_text(agent)
    [name] = weights.files
    models = [
        "--stt-model",
        str(fetched(hearing)),
        "--llm-model",
        str(fetched(weights) / name),
    ]
    if agent is not AGENT:
        models += ["--tts-model", "espeak"]
    arguments = ["--preset", "embedded", *models, "--agent", str(folder / "agent.toml")]
    return running_server(arguments, log=folder / "log", ready_timeout_s=240.0)


async def ask_aloud(server: ServerProcess, question: str, folder: Path, joe: Path) -> CallResult:
    """One call, in which a man asks this."""
    return await call_with(server, PiperJoe(joe).speak(question), folder)


async def call_with(server: ServerProcess, question: Samples, folder: Path) -> CallResult:
    silence = np.zeros(RECOGNIZER_HZ // 4, np.int16)
    spoken = np.concatenate((silence, question, silence))
    write_wav(folder / "caller.wav", (spoken,), RECOGNIZER_HZ)
    connection = await RealtimeConnection.open(server.url, extras={"voiceloop.timeline": "1"})
    return await SimulatedCall(connection, recording_as_call(folder / "caller.wav")).run()


async def answered(server: ServerProcess, **request: Any) -> httpx.Response:
    body = {"model": "voiceloop", "temperature": 0, "max_tokens": 48, **request}
    async with httpx.AsyncClient(timeout=240.0) as client:
        url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
        return await client.post(url, json=body)


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_a_man_asks_whisper_hears_smollm_answers_hibari_speaks(
    tmp_path: Path, fetched: Callable[[Weights], Path]
) -> None:
    async with serve(SMOLLM2, fetched, tmp_path) as server:
        result = await ask_aloud(server, QUESTION, tmp_path, fetched(PIPER_JOE))
        assert result.errors == () and result.unanswered == ()
        [turn] = result.turns
        assert "capital of france" in turn.heard.lower() and "Paris" in turn.answer
        # With no instructions at all "The" and "L'" are 0.08 nats apart in fp32: either may come.
        system = {"role": "system", "content": INSTRUCTIONS}
        written = await answered(server, messages=[system, *user(QUESTION)])
        assert "Paris" in written.json()["choices"][0]["message"]["content"]
        # Its template knows no tools: that is the request's fault, not the server's.
        for choice in ("auto", "required"):
            refused = await answered(
                server, messages=user("A table on Friday."), tools=[BOOKING], tool_choice=choice
            )
            error = refused.json()["error"]
            assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
            assert "tool" in error["message"]


async def test_a_german_asks_whisper_hears_smollm_answers_espeak_speaks(
    tmp_path: Path, fetched: Callable[[Weights], Path]
) -> None:
    espeak = load_espeak()
    read, _ = espeak.synthesize(FRAGE, Timbre("de", 50, 50), 150)
    resampler = Resampler(espeak.rate_hz, RECOGNIZER_HZ)
    question = np.concatenate((resampler.push(read), resampler.flush())).astype(np.int16)
    async with serve(SMOLLM2, fetched, tmp_path, WHISPER_BASE, LADEN) as server:
        result = await call_with(server, question, tmp_path)
        assert result.errors == () and result.unanswered == ()
        [turn] = result.turns
        assert "noch einen tisch" in turn.heard.lower() and turn.answer  # espeak is no clear voice
    log = (tmp_path / "log").read_text()
    assert "in another language than English (de) is judged by what the language model" in log
    assert "hears English" not in log and "speaks English" not in log


@pytest.mark.large
async def test_a_larger_model_calls_tools_and_speaks_none_of_their_markup(
    tmp_path: Path, fetched: Callable[[Weights], Path]
) -> None:
    async with serve(QWEN_CODER, fetched, tmp_path) as server:
        result = await ask_aloud(server, QUESTION, tmp_path, fetched(PIPER_JOE))
        assert result.errors == () and "Paris" in result.turns[0].answer
        booking = user("Book me a table for two people on Friday, please.")
        for choice in ("auto", "required"):
            reply = await answered(server, messages=booking, tools=[BOOKING], tool_choice=choice)
            message = reply.json()["choices"][0]["message"]
            assert "{" not in (message.get("content") or "")
            [call] = message["tool_calls"]
            assert call["function"]["name"] == "book_table"
            assert "riday" in call["function"]["arguments"]
        print(f"resident: {server.resident_mb():.0f} MB")
