"""What a session asks of the server's models that they are known to lack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import instant_backends
from tests.voiceloop.http_client import http_client
from voiceloop.capabilities import Capabilities
from voiceloop.models.catalog import EMBEDDED_AGENT, QWEN3_4B, QWEN25, SMOLLM2
from voiceloop.models.model import Model
from voiceloop.models.resolve import ResolvedModel, capabilities_of, shipped_adapter
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.settings import SessionSettings

KNOWN = Capabilities(frozenset({"ava", "ben"}), "espeak", ("en",), "moonshine-tiny")


def answers(known: Capabilities, *asked: dict[str, Any]) -> list[dict[str, Any]]:
    protocol = Protocol(SessionSettings(), capabilities=known)
    for event in asked:
        protocol.receive(json.dumps(event))
    return [json.loads(frame.data) for frame in protocol.take_outgoing()]


def voice(name: str) -> dict[str, Any]:
    return {"type": "session.update", "session": {"audio": {"output": {"voice": name}}}}


def language(code: str) -> dict[str, Any]:
    audio = {"input": {"transcription": {"language": code}}}
    return {"type": "session.update", "session": {"audio": audio}}


@pytest.mark.parametrize(
    ("asked", "param", "message"),
    [
        (
            voice("bob"),
            "session.audio.output.voice",
            "expected a voice of espeak (ava, ben), found 'bob'",
        ),
        (
            language("de"),
            "session.audio.input.transcription.language",
            "expected a language of moonshine-tiny (en), found 'de'",
        ),
        (
            {"type": "response.create", "response": {"audio": {"output": {"voice": "bob"}}}},
            "response.audio.output.voice",
            "expected a voice of espeak (ava, ben), found 'bob'",
        ),
    ],
)
def test_what_the_models_lack_is_refused_where_it_is_asked_for(
    asked: dict[str, Any], param: str, message: str
) -> None:
    (answer,) = answers(KNOWN, asked)
    assert answer["type"] == "error"
    assert answer["error"]["param"] == param
    assert answer["error"]["message"] == f"{param}: {message}"


@pytest.mark.parametrize(
    "asked", [voice("ben"), voice("alloy"), voice("default"), language("en-US")]
)
def test_what_they_have_and_stock_names_are_taken(asked: dict[str, Any]) -> None:
    assert [answer["type"] for answer in answers(KNOWN, asked)] == ["session.updated"]


@pytest.mark.parametrize("asked", [voice("bob"), language("de")])
def test_nothing_is_refused_where_only_the_model_knows(asked: dict[str, Any]) -> None:
    assert [answer["type"] for answer in answers(Capabilities(), asked)] == ["session.updated"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (
            "/v1/realtime/client_secrets",
            {"json": {"session": voice("bob")["session"]}},
            "session.audio.output.voice",
        ),
        ("/v1/audio/speech", {"json": {"model": "m", "input": "Hello.", "voice": "bob"}}, "voice"),
        (
            "/v1/audio/transcriptions",
            {"data": {"language": "de"}, "files": {"file": ("a.wav", b"RIFF")}},
            "language",
        ),
    ],
)
async def test_over_http_it_is_refused_as_the_clients_mistake(
    path: str, body: dict[str, Any], param: str
) -> None:
    async with http_client(instant_backends(known=lambda: KNOWN)) as http:
        answer = await http.post(path, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (
        400, "invalid_request_error", param,
    )  # fmt: skip
    assert error["message"].startswith(f"{param}: expected a ")


def test_only_a_model_that_learned_where_turns_end_is_asked_for_it(tmp_path: Path) -> None:
    def reads(engine: ResolvedModel | None) -> bool:
        resolved = {"engine": engine} if engine is not None else {}
        return capabilities_of(resolved).reads_turn_ends

    folder = tmp_path / "model"
    folder.mkdir()
    assert reads(ResolvedModel(EMBEDDED_AGENT))
    assert reads(None)  # a service: the embedded agent reads beside it
    assert not reads(ResolvedModel(SMOLLM2, folder))
    (folder / "end_of_turn.safetensors").touch()
    assert reads(ResolvedModel(SMOLLM2, folder))
    # With an adapter the states are others, and a head of the model's own is not asked.
    assert not reads(ResolvedModel(SMOLLM2, folder, adapter=tmp_path))
    assert not reads(ResolvedModel(EMBEDDED_AGENT, adapter=tmp_path))
    (tmp_path / "end_of_turn.safetensors").touch()
    assert reads(ResolvedModel(SMOLLM2, adapter=tmp_path))


@pytest.mark.parametrize(
    ("model", "made_for"),
    [(EMBEDDED_AGENT, "Juniper Cafe"), (SMOLLM2, "Juniper Cafe"), (QWEN25, ""), (QWEN3_4B, None)],
)
def test_beside_a_small_model_the_authors_sentences_are_said(
    tmp_path: Path, model: Model, made_for: str | None
) -> None:
    """Of other agents than the one that it was trained on; an adapter is made for its agent."""
    found = capabilities_of({"engine": ResolvedModel(model, adapter=shipped_adapter(model))})
    if made_for:
        assert found.made_for is not None and made_for in found.made_for
    else:
        assert found.made_for == made_for
    own = capabilities_of({"engine": ResolvedModel(model, adapter=tmp_path)})
    assert own.made_for is None


def test_beside_a_named_file_as_small_as_a_presets_they_are_said_too(tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    model, found = Model(name=str(file), role="engine", licence="", languages=""), []
    for n_bytes in (1_400_000_000, 2_000_000_000):
        with file.open("wb") as own:
            own.truncate(n_bytes)
        found.append(capabilities_of({"engine": ResolvedModel(model, file)}).made_for)
    assert found == ["", None]
