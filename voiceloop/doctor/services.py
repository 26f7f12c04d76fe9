"""Checks the services in the place of models: does each answer, and take the key and the model?

The doctor asks each what a server asks at its start, by the same code.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from voiceloop.config import AUTO, Config
from voiceloop.doctor.finding import Finding
from voiceloop.errors import VoiceLoopError
from voiceloop.models.opening import REMOTE_RECOGNIZER, REMOTE_VOICE, keyed
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
            yield await _check(f"{role} at {url}", url, model, secret, kind)


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
