"""The choice of a server's language model for a turn of one call, and its reason.

Owns the order in which that is decided: what the session or the agent names, else of a cascade the
agent's `[[route]]`, the session's effort, the key's quota, the load, the route head. A model that
would not be asked now is passed over. It knows nothing of replies: a plan holds the `Route`, and
whoever speaks follows it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time
from typing import Literal

from voiceloop.admission.overload import Level
from voiceloop.agent import AgentConfig, AgentRoute
from voiceloop.backends import (
    MAIN_MODEL,
    OWN_MODEL,
    Cascade,
    ChatMessage,
    NamedModel,
    RouteSigns,
    Tool,
)
from voiceloop.day_hours import lies_within

log = logging.getLogger(__name__)

Part = Literal["small", "large"]
PART_OF_EFFORT: Mapping[str, Part] = {
    "none": "small", "minimal": "small", "low": "small", "high": "large", "xhigh": "large",
}  # fmt: skip
LIKELY = 0.5  # what is as likely as not, or more
FAILED = "failed"  # the reason of a part that went on for the other


@dataclass(frozen=True, slots=True)
class Route:
    """The model that makes a reply.

    model, other: names of `Backends.models`; other: who goes on where the model fails, None where
    nobody does. part: the model's in the cascade, None where there is none. reason: what decided.
    signs: what the route head has read of the turn.
    """

    model: str = OWN_MODEL
    other: str | None = None
    part: Part | None = None
    reason: str = ""
    signs: RouteSigns | None = field(default=None, compare=False)

    @property
    def may_open(self) -> bool:
        """Whether another model may say an opener for it."""
        return self.part == "large" and self.other is not None


OWN_ALONE = Route()


class Router:
    """The router of one call. models, cascade: as of `Backends`. level: of the server's load.
    may_use_large: whether the key's quota has some of the large model left. signs: what the route
    head has read of these words. now: the clock on the wall.
    """

    def __init__(
        self,
        models: Mapping[str, NamedModel],
        cascade: Cascade | None,
        agent: AgentConfig,
        level: Callable[[], Level] = lambda: Level.NORMAL,
        may_use_large: Callable[[], bool] = lambda: True,
        signs: Callable[[str], RouteSigns | None] = lambda words: None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._models = models
        self._cascade = cascade
        self.agent = agent
        self._level = level
        self._may_use_large = may_use_large
        self._signs = signs
        self._now = now
        self._alone: str | None = None  # the one model that is named
        self._refused: set[str] = set()  # further models that do not serve this call
        self.configure("", "", ())

    def configure(self, selected: str, language: str, tools: Sequence[Tool]) -> None:
        """Take up the session's settings. A model that does not serve them is passed over.

        selected: the session's model, by its name. language, tools: of the session.
        """
        language = language or self.agent.language
        serves = {
            name: one.serves(language, has_tools=bool(tools)) for name, one in self._models.items()
        }
        refused = {name for name, does in serves.items() if not does and name != OWN_MODEL}
        for name in sorted(refused - self._refused):
            log.warning(
                "the model %s does not answer this call: expected %s, found a call in %s%s",
                name, self._wanted(name), language, " with tools" if tools else "",
            )  # fmt: skip
        self._refused = refused
        named = next((name for name in (selected, self.agent.model) if self._is_known(name)), None)
        self._alone = None if named is None else OWN_MODEL if named == MAIN_MODEL else named
        if self._alone in refused:
            self._alone = OWN_MODEL

    def _is_known(self, name: str) -> bool:
        return bool(self._models) and name != OWN_MODEL and name in (MAIN_MODEL, *self._models)

    def _wanted(self, name: str) -> str:
        one = self._models[name]
        told = [f"the language {one.language}"] if one.language else []
        return " and ".join(told + ["no tools"] * (not one.takes_tools))

    @property
    def staged(self) -> tuple[str, ...]:
        """The models that read the open turn as it is spoken; the first tells its end."""
        if self._alone is not None:
            return (self._alone,)
        if (pair := self._pair) is None:
            return (OWN_MODEL,)
        return (OWN_MODEL, pair.large if pair.small == OWN_MODEL else pair.small)

    @property
    def _pair(self) -> Cascade | None:
        """The cascade, where it serves this call."""
        pair = self._cascade if self._alone is None else None
        return None if pair is None or {pair.small, pair.large} & self._refused else pair

    def reads_ends(self) -> bool:
        """Whether the P(end of turn) of the first that is staged is evidence."""
        named = self._models.get(self.staged[0])
        return named is None or named.reads_ends

    def verifies(self, route: Route) -> bool:
        """Whether the large model, which answers, is to verify what the small one drafts."""
        pair = self._pair if route.part == "large" else None
        return pair is not None and pair.verifies()

    def is_there(self, name: str) -> bool:
        """Whether this model would be asked now."""
        named = self._models.get(name)
        return named is None or named.is_there()

    def asks_for_large(self, effort: str | None) -> bool:
        """Whether this effort asks for the large model of a cascade, and that is there."""
        is_asked, pair = PART_OF_EFFORT.get(effort or "") == "large", self._pair
        return is_asked and pair is not None and self.is_there(pair.large)

    def route(self, prompt: Sequence[ChatMessage], effort: str | None, language: str = "") -> Route:
        """Return who answers this prompt."""
        if (pair := self._pair) is None:
            return OWN_ALONE if self._alone is None else Route(self._alone, reason="session")
        is_turn = bool(prompt) and prompt[-1].role == "user"
        signs = self._signs(prompt[-1].content) if is_turn else None
        part, reason = self._part(pair, prompt, effort, language or self.agent.language, signs)
        names: dict[Part, str] = {"small": pair.small, "large": pair.large}
        other: Part = "large" if part == "small" else "small"
        if not self.is_there(names[part]) and self.is_there(names[other]):
            part, other, reason = other, part, "link"
        return Route(names[part], names[other], part, reason, signs)

    def _part(
        self,
        pair: Cascade,
        prompt: Sequence[ChatMessage],
        effort: str | None,
        language: str,
        signs: RouteSigns | None,
    ) -> tuple[Part, str]:
        for index, rule in enumerate(self.agent.route):
            if fits(rule, prompt, language, self._now().time(), signs):
                return rule.model, f"route {index + 1}"
        if (wanted := PART_OF_EFFORT.get(effort or "")) is not None:
            return wanted, "effort"
        if not self._may_use_large():
            return "small", "quota"
        if self._level() is not Level.NORMAL:
            return "small", "load"
        if signs is not None and pair.large_share < 1:
            return ("large" if signs.large_rank >= 1 - pair.large_share else "small"), "head"
        return "large", "default"


def fits(
    rule: AgentRoute,
    prompt: Sequence[ChatMessage],
    language: str,
    now: time,
    signs: RouteSigns | None = None,
) -> bool:
    """Whether all conditions of a rule hold for the reply to this prompt."""
    if rule.likely and (signs is None or getattr(signs, rule.likely) < LIKELY):
        return False
    turns = [message.content for message in prompt if message.role == "user"]
    if not rule.has_turn(len(turns)):
        return False
    words = f" {' '.join(turns[-1].lower().translate(MARKS).split())} " if turns else ""
    if rule.words and not any(f" {one.lower()} " in words for one in rule.words):
        return False
    if rule.tools and not set(rule.tools) & _called_lately(prompt):
        return False
    if rule.language and rule.language.lower() not in (
        language.lower(), language.partition("-")[0].lower(),
    ):  # fmt: skip
        return False
    return not rule.hours or lies_within(rule.hours, now)


MARKS = str.maketrans(dict.fromkeys('.,;:?!"', " "))


def _called_lately(prompt: Sequence[ChatMessage]) -> set[str]:
    """The tools called since the caller's turn before the last."""
    called: set[str] = set()
    n_turns = 0
    for message in reversed(prompt):
        n_turns += message.role == "user"
        if n_turns == 2:
            break
        called |= {call.name for call in message.tool_calls}
    return called
