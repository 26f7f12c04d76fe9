"""Checks the services in the place of models: does each answer, and take the key and the model?

The doctor asks each what a server asks at its start, by the same code.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from voiceloop.backends import RoleName
from voiceloop.config import AUTO, Config, workers_of
from voiceloop.doctor.finding import Finding
from voiceloop.errors import VoiceLoopError
from voiceloop.log_form import keyless
from voiceloop.models.opening import REMOTE_RECOGNIZER, REMOTE_VOICE, keyed
from voiceloop.models.providers import broken, open_provider, provider_of
from voiceloop.models.resolve import ROLE_KEYS
from voiceloop.remote.service import RemoteService
from voiceloop.remote.transcriber import RemoteTranscriber

MODELS = {"stt": REMOTE_RECOGNIZER, "llm": "", "tts": REMOTE_VOICE}  # where none is named
REMEDY_OF_FURTHER = "start it, or mend its url, key, service or model in [[models]]"


@dataclass(frozen=True, slots=True)
class _Asked:
    """One address. subject: what answers there. kind: of language service, "" for any."""

    role: RoleName
    subject: str
    url: str
    key: str
    model: str
    kind: str
    remedy: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        return keyless(self.url)


async def check_services(config: Config) -> AsyncIterator[Finding]:
    """Every service of the configuration."""
    for asked in (*_of_roles(config), *_of_further(config)):
        if provider_of(asked.url) is None:
            yield await _check(asked)
        else:
            yield await _check_provider(asked)
    for one in broken():
        yield Finding("note", "providers", one, "mend the package, or remove it")


def _of_roles(config: Config) -> Iterator[_Asked]:
    for role, key in ROLE_KEYS.items():
        model: str = getattr(config, f"{key}_model")
        written = "realtime" if key == "llm" and config.realtime_url else key
        remedy = f"start it, or mend {written}_url, {key}_key or {key}_model"
        for url, secret in keyed(getattr(config, f"{key}_url"), getattr(config, f"{key}_key")):
            kind = config.llm_service if key == "llm" and config.llm_service != AUTO else ""
            named = model if provider_of(url) is not None else model or MODELS[key]
            headers = config.llm.headers if key == "llm" else {}
            yield _Asked(role, role, url, secret, named, kind, remedy, headers)


def _of_further(config: Config) -> Iterator[_Asked]:
    """Yield the findings about `[[models]]`. Workers elsewhere are not asked, nor are the server's
    own.
    """
    for one in config.models:
        if workers_of("url", one.url):
            continue
        kind = "" if one.service == AUTO else one.service
        for url, secret in keyed(one.url, one.key):
            subject = f"model {one.name}"
            yield _Asked("engine", subject, url, secret, one.model, kind, REMEDY_OF_FURTHER)


async def _check_provider(asked: _Asked) -> Finding:
    subject = f"{asked.subject} by {asked.shown}"
    try:
        async with AsyncExitStack() as stack:
            await open_provider(asked.role, [asked.url], [asked.key], asked.model, stack)
    except VoiceLoopError as error:
        return Finding("problem", subject, error.message, asked.remedy)
    return Finding("ok", subject, "it starts")


async def _check(asked: _Asked) -> Finding:
    subject, url, model = f"{asked.subject} at {asked.shown}", asked.url, asked.model
    began_s, spoken = time.monotonic(), ""
    try:
        if url.startswith(("ws://", "wss://")):
            await RemoteTranscriber(url, model=model, key=asked.key).start()
        else:
            service = RemoteService(
                url, model=model, key=asked.key, kind=asked.kind, headers=asked.headers
            )
            try:
                await service.start()
                model = service.model
                spoken = f", as {service.kind.name}"
                if service.context_tokens is not None:
                    spoken += f", which takes {service.context_tokens} tokens"
            finally:
                await service.close()
    except VoiceLoopError as error:
        return Finding("problem", subject, error.message, asked.remedy)
    took_ms = 1000 * (time.monotonic() - began_s)
    told = f"answers after {took_ms:.0f} ms; asked for {model}{spoken}"
    return Finding("ok", subject, told)
