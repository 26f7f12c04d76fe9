"""The agents of one server: which of them a call is answered by, and what each has for itself.

Owns their names. Models, places and the load are the server's; tools, documents, approved answers
and kept lines are an agent's own. ``/agents/NAME`` before any path names one, as ``?agent=`` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.types import ASGIApp, Receive, Scope, Send

from voiceloop.agent import AgentConfig
from voiceloop.backends import OWN_MODEL, Backends
from voiceloop.call.services import CallServices
from voiceloop.config_reader import nearest
from voiceloop.errors import ConfigError, InvalidRequest
from voiceloop.knowledge.answers import ApprovedAnswers
from voiceloop.models.lexicon import LexiconVoice, read_lexicon

_PREFIX = re.compile(r"/agents/([^/]+)(/.+)")


@dataclass(slots=True)
class ServedAgent:
    """An agent, and what its calls share."""

    agent: AgentConfig
    services: CallServices

    def __post_init__(self) -> None:
        self.take(self.agent)

    @property
    def completed(self) -> AgentConfig:
        """As a session of now has it: with the tools that its MCP servers list."""
        return self.services.toolbox.completed(self.agent)

    def take(self, agent: AgentConfig) -> None:
        """Be another from now on."""
        self.agent = agent
        self.services.answers = ApprovedAnswers(agent.answer)

    def answered_by(self, backends: Backends) -> Backends:
        """The models, the server's own language model with this agent's adapter."""
        if self.agent.llm_adapter is None:
            return backends
        own: Any = backends.language_model  # `with_adapters` has seen that it is a worker's
        adapted = own.adapted(str(self.agent.llm_adapter))
        models = dict(backends.models)
        if OWN_MODEL in models:
            models[OWN_MODEL] = replace(models[OWN_MODEL], model=adapted)
        return replace(backends, language_model=adapted, models=models)

    def spoken_by(self, backends: Backends) -> Backends:
        """The models, the voice of which knows how this agent's own words are spelled."""
        if not self.agent.lexicon:
            return backends
        lexicon = read_lexicon(self.agent.lexicon, "lexicon")
        return replace(backends, voice=LexiconVoice(backends.voice, lexicon))


class Agents:
    """first: who answers where nobody is named. others: by name; `first` may be among them.

    serve: makes what the calls of another share. Raises what that does. file_of: an agent's file.
    """

    def __init__(
        self,
        first: AgentConfig,
        services: CallServices,
        others: Mapping[str, AgentConfig],
        serve: Callable[[str, AgentConfig], CallServices],
        file_of: Callable[[AgentConfig], Path | None],
    ) -> None:
        self.first = ServedAgent(first, services)
        services.name = next((name for name, agent in others.items() if agent is first), "")
        self.others = {
            name: self.first if agent is first else ServedAgent(agent, serve(name, agent))
            for name, agent in others.items()
        }
        for one in self:
            self._check_transfers(one.agent, file_of(one.agent))

    def _check_transfers(self, agent: AgentConfig, file: Path | None) -> None:
        """Raises: ConfigError: it hands calls to an agent that is not here."""
        for index, to in enumerate(agent.transfers):
            if to.agent and to.agent not in self.others:
                named = ", ".join(self.others) or "none: --agents names a folder of several"
                where = f"{file or agent.name}: transfers[{index}].to"
                raise ConfigError(f"{where}: expected an agent of {named}; found {to.agent!r}")

    def __iter__(self) -> Iterator[ServedAgent]:
        """Each once."""
        yield self.first
        yield from (one for one in self.others.values() if one is not self.first)

    @property
    def names(self) -> tuple[str, ...]:
        """Return what a call may ask for besides nobody."""
        return tuple(self.others)

    def named(self, name: str) -> ServedAgent:
        """The one of this name; "": the first. Raises: InvalidRequest."""
        if not name:
            return self.first
        if name not in self.others:
            wanted = "one of this server's agents" if self.others else "none: this server has one"
            raise InvalidRequest(
                f"agent: expected {wanted}, found {name[:80]!r}{nearest(name, self.others)}",
                param="agent",
                code="agent_not_found",
            )
        return self.others[name]


class AgentPaths:
    """Has ``/agents/NAME/v1/...`` answered as ``/v1/...?agent=NAME``: a client of any kind names an
    agent by its base address alone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            found = _PREFIX.fullmatch(scope["path"])
            if found is not None:
                scope = _renamed(scope, found[1], found[2])
        await self._app(scope, receive, send)


def _renamed(scope: Scope, name: str, path: str) -> MutableMapping[str, Any]:
    # Last, so that it goes before an `agent` that the query itself names.
    named = b"agent=" + quote(name, safe="").encode()
    asked = scope.get("query_string", b"")
    return {
        **scope,
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": asked + b"&" + named if asked else named,
    }
