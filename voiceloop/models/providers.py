"""Recognizers, language models and voices that packages add, by entry points.

Owns which there are, how an address names one (``deepgram:``, ``deepgram+wss://host``), and the
guard around what a package makes: an error of its own costs a turn, never a call. The contract is
a section of MODELS.md; the vendors of `remote/` are such providers too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from voiceloop.backends import RoleName
from voiceloop.config import PROVIDER, nearest
from voiceloop.errors import BackendError, ConfigError, VoiceLoopError
from voiceloop.models.resolve import ROLE_KEYS

log = logging.getLogger(__name__)

GROUPS: Mapping[RoleName, str] = {
    "recognizer": "voiceloop.recognizers",
    "engine": "voiceloop.language_models",
    "voice": "voiceloop.voices",
}
BUILT_IN: Mapping[RoleName, Mapping[str, str]] = {
    "recognizer": {"deepgram": "voiceloop.remote.deepgram:Deepgram"},
    "engine": {"realtime": "voiceloop.remote.upstream.model:UpstreamModel"},
    "voice": {
        "cartesia": "voiceloop.remote.cartesia:Cartesia",
        "elevenlabs": "voiceloop.remote.elevenlabs:ElevenLabs",
    },
}


def provider_of(url: str) -> tuple[str, str] | None:
    """The provider that an address names, and the address behind its name ("": its own).

    None: the address is a service's that speaks OpenAI's protocols.
    """
    named = re.fullmatch(PROVIDER, url)
    return (named["name"], named["url"] or "") if named else None


def installed(role: RoleName) -> dict[str, EntryPoint]:
    """The role's providers by name: those of packages, then ours, which no package replaces."""
    group = GROUPS[role]
    found = {point.name: point for point in entry_points(group=group)}
    ours = {name: EntryPoint(name, place, group) for name, place in BUILT_IN[role].items()}
    return found | ours


def broken() -> list[str]:
    """A sentence for each provider of a package that cannot be imported."""
    told = []
    for role in GROUPS:
        for name, point in installed(role).items():
            try:
                if name not in BUILT_IN[role]:
                    point.load()
            except (Exception, SystemExit) as error:  # packages raise what they like
                told.append(f"{_named(point)} cannot be used: {type(error).__name__}: {error}")
    return told


def _named(point: EntryPoint) -> str:
    package = f" of the package {point.dist.name}" if point.dist is not None else ""
    return f"the provider {point.name} ({point.group}){package}"


async def open_provider(
    role: RoleName, urls: Sequence[str], keys: Sequence[str], model: str, stack: AsyncExitStack
) -> Any | None:
    """The provider that the role's address names, started; None where it names none.

    It is closed with the stack. Raises: ConfigError (it is not there, cannot be imported or made),
    BackendError (its service does not answer).
    """
    named = [provider_of(url) for url in urls]
    if not any(named):
        return None
    where = f"{ROLE_KEYS[role]}_url"
    if len(named) > 1:
        raise ConfigError(f"{where}: expected one address beside a provider, found {len(named)}")
    [(name, url)] = [each for each in named if each is not None]
    known = installed(role)
    if name not in known:
        wanted = f"{where}: expected a provider of {GROUPS[role]}"
        raise ConfigError(f"{wanted} ({', '.join(known)}), found {name!r}{nearest(name, known)}")
    key = keys[0] if keys else ""
    try:
        made = known[name].load()(url=url, key=key, model=model)
    except VoiceLoopError:
        raise
    except (Exception, SystemExit) as error:
        told = str(error).replace(key, "...") if key else str(error)
        raise ConfigError(
            f"{where}: expected {_named(known[name])}, found {type(error).__name__}: {told}"
        ) from None
    guarded = Guarded(name, made)
    if hasattr(made, "close"):
        stack.push_async_callback(guarded.close)
    if hasattr(made, "start"):
        await guarded.start()
    return guarded


class Guarded:
    """A provider's object, its streams too: whatever it raises comes out as a BackendError."""

    def __init__(self, name: str, made: Any) -> None:
        self._name = name
        self._made = made

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._made, attribute)
        return self._method(found) if callable(found) else found

    def _method(self, found: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            try:
                answer = found(*given, **named)
            except Exception as error:
                raise self._error(error) from error
            if hasattr(answer, "__aiter__"):
                return self._events(answer)
            return self._awaited(answer) if isinstance(answer, Awaitable) else answer

        return call

    async def _awaited(self, answer: Awaitable[Any]) -> Any:
        try:
            made = await answer
        except Exception as error:
            raise self._error(error) from error
        return Guarded(self._name, made) if hasattr(made, "events") else made

    async def _events(self, events: AsyncIterator[Any]) -> AsyncIterator[Any]:
        try:
            async for event in events:
                yield event
        except Exception as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> VoiceLoopError:
        if isinstance(error, VoiceLoopError):
            return error
        log.error("a bug of the provider %s", self._name, exc_info=error)
        return BackendError(f"expected an answer of {self._name}, found {type(error).__name__}")
