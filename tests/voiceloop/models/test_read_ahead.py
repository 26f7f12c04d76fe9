"""A server's first caller after a restart, in a real worker with the embedded agent's weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from voiceloop.agent_file import embedded_agent
from voiceloop.backends import (
    Backends,
    ChatMessage,
    Generated,
    GenerateParams,
    LanguageModel,
    Usage,
)
from voiceloop.config import Config
from voiceloop.models.opening import open_backends
from voiceloop.models.presets import embedded_model_dir
from voiceloop.remote.service import RemoteService

pytestmark = [pytest.mark.call, pytest.mark.timeout(120)]

AGENT = embedded_agent()
SETTINGS = AGENT.session_settings()


async def first_call(language_model: LanguageModel, tenant: str) -> Usage:
    history = (ChatMessage("system", SETTINGS.instructions),)
    branch = await language_model.branch("sess_1/turn_1", history, SETTINGS.tools, tenant)
    branch.commit((ChatMessage("user", "A latte please."),), GenerateParams(max_tokens=4))
    try:
        async for event in branch.events():
            if isinstance(event, Generated):
                return event.usage
    finally:
        await branch.close()
    raise AssertionError("expected a reply, found none")


async def totals(backends: Backends, name: str, least: float) -> dict[str, float]:
    """What the engine's process counts, once `name` is that much; told four times a second."""
    for _ in range(600):
        for worker in backends.workers():
            if worker.totals.get(name, 0) >= least:
                return worker.totals
        await asyncio.sleep(0.1)
    raise AssertionError(f"expected {name} of {least}, found less for a minute")


async def test_a_servers_first_caller_after_a_restart_finds_the_instructions_read(
    connect: Callable[..., RemoteService], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (embedded_model_dir() / "config.json").exists():
        pytest.skip(f"the embedded agent's weights are not at {embedded_model_dir()}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    url = connect().url
    config = Config(preset="embedded", stt_url=(url,), tts_url=(url,))
    async with open_backends(config, agents=(AGENT,)) as (backends, _):
        for _ in range(600):
            if list((tmp_path / "voiceloop" / "prefixes").glob("*.safetensors")):
                break
            await asyncio.sleep(0.1)
        computed = await totals(backends, "staged_tokens", 100)  # a beat may be of an early step
        warm = await first_call(backends.language_model, "one")
    assert warm.n_cached_tokens > 16
    async with open_backends(config, agents=(AGENT,)) as (backends, _):
        read = await totals(backends, "kv_blocks_shared", warm.n_cached_tokens // 16)
        # The second process read them instead; a heartbeat may be of the step before the last.
        assert computed["staged_tokens"] - read["staged_tokens"] > 100
        first = await first_call(backends.language_model, "another")
    # Whole blocks are what is kept; the rest of one may be there from the reading itself.
    assert first.n_cached_tokens // 16 == warm.n_cached_tokens // 16
