"""Checks the services in the place of models: does each answer, and take the key and the model?

The doctor asks each what a server asks at its start, by the same code.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from voiceloop.backends import RoleName
from voiceloop.config import AUTO, Config
from voiceloop.doctor.finding import Finding
from voiceloop.errors import VoiceLoopError
from voiceloop.models.opening import REMOTE_RECOGNIZER, REMOTE_VOICE, keyed
from voiceloop.models.providers import broken, open_provider, provider_of
from voiceloop.models.resolve import ROLE_KEYS
from voiceloop.remote.service import RemoteService
from voiceloop.remote.transcriber import RemoteTranscriber

MODELS = {"stt": REMOTE_RECOGNIZER, "llm": "", "tts": REMOTE_VOICE}  # where none is named
REMEDY = (
    "start it, or mend its address, its key (stt_key, llm_key, tts_key) or the name of its model"
)


async def check_services(config: Config) -> AsyncIterator[Finding]:
    """Every service of the configuration."""
    for role, key in ROLE_KEYS.items():
        model: str = getattr(config, f"{key}_model") or MODELS[key]
        for url, secret in keyed(getattr(config, f"{key}_url"), getattr(config, f"{key}_key")):
            kind = config.llm_service if key == "llm" and config.llm_service != AUTO else ""
            if provider_of(url) is None:
                yield await _check(f"{role} at {url}", url, model, secret, kind)
            else:
                named = getattr(config, f"{key}_model")
                yield await _check_provider(role, url, secret, named)
    for one in broken():
        yield Finding("note", "providers", one, "mend the package, or remove it")


async def _check_provider(role: RoleName, url: str, key: str, model: str) -> Finding:
    try:
        async with AsyncExitStack() as stack:
            await open_provider(role, [url], [key], model, stack)
    except VoiceLoopError as error:
        return Finding("problem", f"{role} by {url}", error.message, REMEDY)
    return Finding("ok", f"{role} by {url}", "it starts")


async def _check(subject: str, url: str, model: str, key: str, kind: str) -> Finding:
    began_s, spoken = time.monotonic(), ""
    try:
        if url.startswith(("ws://", "wss://")):
            await RemoteTranscriber(url, model=model, key=key).start()
        else:
            service = RemoteService(url, model=model, key=key, kind=kind)
            try:
                await service.start()
                model = service.model
                spoken = f", as {service.kind.name}"
                if service.context_tokens is not None:
                    spoken += f", which takes {service.context_tokens} tokens"
            finally:
                await service.close()
    except VoiceLoopError as error:
        return Finding("problem", subject, error.message, REMEDY)
    took_ms = 1000 * (time.monotonic() - began_s)
    told = f"answers after {took_ms:.0f} ms; asked for {model}{spoken}"
    return Finding("ok", subject, told)
