"""How a chat service is spoken to: what it takes beyond OpenAI's fields, and what it refuses.

Owns the table of known services, and what is learned of one while it serves. A service is known by
its address, by the owner it names of its models, or by name (``llm_service``). A field that it
refuses is left out of every later request.

vLLM serves the lowest ``priority`` first and takes 0 where there is none; SGLang serves the highest
first, and a request without one last of all. Both read it only where they were started with
priority scheduling (MODELS.md has the options). ``cache_salt`` keeps the prompts of different
tenants apart in the prefix cache of either.

Sources, read in November 2026: each service's own reference of its chat completions; vLLM,
"Reasoning Outputs" and "Automatic Prefix Caching"; SGLang, "Server Arguments"; llama.cpp,
"tools/server/README.md"; Ollama, "OpenAI compatibility"; OpenRouter, "Reasoning Tokens". No hosted
service was asked: their rows are held by servers scripted from those pages.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal
from urllib.parse import urlsplit

from voiceloop.thoughts import Thoughts

log = logging.getLogger(__name__)

Fields = Mapping[str, Any]
# Of a model that thinks although it was asked not to, the answer comes behind the thoughts: as many
# tokens as the reasoning models' own cards advise for short questions.
THOUGHT_TOKENS = 2048
LENGTHS = ("max_tokens", "max_completion_tokens")
MOST_REFUSALS = 12  # of one request: more than there are fields to leave out
REQUIRED = frozenset({"model", "messages", "prompt", "stream", "tools", "tool_choice",
                      "response_format"})  # fmt: skip
# Where a refusal names several fields, the one that matters least goes first.
LEFT_OUT_FIRST = ("priority", "cache_salt", "top_k", "stream_options", "seed", "presence_penalty",
                  "frequency_penalty", "top_p", "temperature")  # fmt: skip
CONTINUES = ("vllm", "sglang")  # a reply that has begun, by `continue_final_message`
QUIET = "quiet"  # what `Dialect.learn` calls a step of `Kind.quiet`
# Their chat templates open the thought, so that a service without a parser for it sends the end
# alone; none of these can be kept from thinking.
OPENS_THOUGHTS = re.compile(r"deepseek-r1|qwq|thinking", re.IGNORECASE)
OF_THOUGHTS = re.compile(r"think|reason", re.IGNORECASE)


class Urgency(IntEnum):
    """The order of service; SGLang preempts what runs only where the distance is above ten."""

    COMMITTED = 0
    STAGED = 100
    PREEMPTIVE = 200
    BATCH = 300


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table.

    hosts: what the address ends with. owners: of its models, as it lists them. path: of the API,
    where an address has none. key_header: what carries the key. quiet: for models whose name
    matches, the fields that switch reasoning off or keep it least, the best first; each is tried
    where the one before was refused. renamed: OpenAI's fields by their names there. without: those
    that it refuses. order, is_salted: see above.
    """

    name: str
    hosts: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    path: str = "/v1"
    key_header: str = "authorization"
    quiet: tuple[tuple[str, tuple[Fields, ...]], ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    order: Literal["low_first", "high_first", "none"] = "none"
    is_salted: bool = False


def _effort(*efforts: str) -> tuple[Fields, ...]:
    return tuple({"reasoning_effort": effort} for effort in efforts)


# Qwen3, GLM and SmolLM3 read the first name, DeepSeek and Granite the second; templates that know
# neither take no notice.
BY_TEMPLATE = {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}
SELF_HOSTED = ((r"gpt-oss", _effort("low")), (r"", (BY_TEMPLATE,)))
NO_TOP_K = frozenset({"top_k"})
KINDS = {
    kind.name: kind
    for kind in (
        Kind("vllm", owners=("vllm",), quiet=SELF_HOSTED, order="low_first", is_salted=True),
        Kind("sglang", owners=("sglang",), quiet=SELF_HOSTED, order="high_first", is_salted=True),
        Kind("llama.cpp", owners=("llamacpp",), quiet=SELF_HOSTED),
        Kind("ollama", owners=("library",), quiet=((r"gpt-oss", _effort("low")),
                                                   (r"", _effort("none")))),
        Kind("lm-studio", owners=("organization_owner",), quiet=((r"gpt-oss", _effort("low")),)),
        Kind("litellm", quiet=((r"", _effort("none", "minimal", "low")),)),
        Kind("openai", ("api.openai.com",), without=NO_TOP_K,
             renamed={"max_tokens": "max_completion_tokens"},
             quiet=((r"^(o\d|gpt-5|gpt-6)", _effort("none", "minimal", "low")),)),
        Kind("azure", (".openai.azure.com", ".cognitiveservices.azure.com"), path="/openai/v1",
             key_header="api-key", without=NO_TOP_K,
             renamed={"max_tokens": "max_completion_tokens"},
             quiet=((r"^(o\d|gpt-5|gpt-6)", _effort("none", "minimal", "low")),)),
        Kind("groq", ("api.groq.com",), path="/openai/v1", without=NO_TOP_K,
             quiet=((r"gpt-oss", _effort("low")), (r"qwen", _effort("none")))),
        Kind("cerebras", ("api.cerebras.ai",),
             without=NO_TOP_K | {"presence_penalty", "frequency_penalty"},
             renamed={"max_tokens": "max_completion_tokens"},
             quiet=((r"gpt-oss", _effort("low")), (r"qwen|glm", ({"disable_reasoning": True},)))),
        Kind("openrouter", ("openrouter.ai",), path="/api/v1",
             quiet=((r"", ({"reasoning": {"effort": "none", "exclude": True}},
                           {"reasoning": {"effort": "low", "exclude": True}})),)),
        Kind("gemini", ("generativelanguage.googleapis.com",), path="/v1beta/openai",
             without=NO_TOP_K | {"seed"}, quiet=((r"gemini-", _effort("none", "minimal", "low")),)),
        # It thinks only where it is asked to.
        Kind("anthropic", ("api.anthropic.com",),
             without=frozenset({"top_k", "top_p", "seed", "presence_penalty",
                                "frequency_penalty"})),
        Kind("mistral", ("api.mistral.ai",), owners=("mistralai",),
             without=NO_TOP_K | {"stream_options"}, renamed={"seed": "random_seed"},
             quiet=((r"magistral", ({"prompt_mode": None},)),)),
        Kind("openai-like"),
    )
}  # fmt: skip
UNKNOWN = KINDS["openai-like"]


def kind_of(url: str, owner: str = "", headers: Sequence[str] = (), named: str = "") -> Kind:
    """The row of a service, by its name, its address, its answer's headers, its models' owner."""
    if named:
        return KINDS[named]
    host = urlsplit(url).hostname or ""
    for kind in KINDS.values():
        if any(host == known or host.endswith(known) for known in kind.hosts):
            return kind
    if any(header.lower().startswith("x-litellm-") for header in headers):
        return KINDS["litellm"]
    return next((kind for kind in KINDS.values() if owner and owner in kind.owners), UNKNOWN)


class Dialect:
    """The dialect of one service and model. Writes the body of each request, and learns from
    refusals.

    added: fields of every body, by the operator (``[llm.request]``). salt_of: what a tenant is
    called there, by which nobody can tell whose key it is.
    """

    def __init__(
        self,
        kind: Kind = UNKNOWN,
        model: str = "",
        salt_of: Callable[[str], str] = lambda tenant: tenant,
        added: Fields | None = None,
    ) -> None:
        self.kind = kind
        self._salt_of = salt_of
        self._added = dict(added or {})
        self._quiet = next(
            (steps for known, steps in kind.quiet if re.search(known, model, re.IGNORECASE)), ()
        )
        self._n_refused = 0  # of `_quiet`
        self._renamed = dict(kind.renamed)
        self._without = set(kind.without)
        self.thinks = False  # although it was asked not to
        # Its prompt opens a thought, which its text closes.
        self.begins_inside = OPENS_THOUGHTS.search(model) is not None

    @property
    def continues(self) -> bool:
        """Whether the service goes on with a reply that has begun."""
        return self.kind.name in CONTINUES and "continue_final_message" not in self._without

    def body(self, chat: Fields, urgency: Urgency, tenant: str) -> dict[str, Any]:
        """The body to send for what OpenAI would be asked (`request_body`)."""
        body = {**chat, **self._own_fields(urgency, tenant)}
        if self.thinks and urgency is not Urgency.STAGED and "max_tokens" in body:
            body["max_tokens"] += THOUGHT_TOKENS
        if self._n_refused < len(self._quiet):
            body |= self._quiet[self._n_refused]
        body = {name: value for name, value in body.items() if name not in self._without}
        body = {self._renamed.get(name, name): value for name, value in body.items()}
        # What is only read ahead is answered by one token, whatever replies may take.
        kept = LENGTHS if urgency is Urgency.STAGED else ()
        return body | {name: value for name, value in self._added.items() if name not in kept}

    def _own_fields(self, urgency: Urgency, tenant: str) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        match self.kind.order:
            case "low_first" if urgency:
                fields["priority"] = int(urgency)
            case "high_first":
                fields["priority"] = -int(urgency)
        if tenant and self.kind.is_salted:
            fields["cache_salt"] = self._salt_of(tenant)
        return fields

    def learn(self, refusal: str, body: Fields) -> str | None:
        """Leave out what a service has refused.

        refusal: the body of its answer. body: what was sent.
        Returns what was learned, for `forget`; "" where another request has learned it meanwhile;
        None where nothing can be left out.
        """
        step = next((n for n, own in enumerate(self._quiet) if own.items() <= body.items()), None)
        own = set(self._quiet[step]) if step is not None else set()
        here = {there: name for name, there in self._renamed.items()}
        for name in _named_fields(refusal, body):
            if name in self._added or name in REQUIRED:
                continue
            if name in own:
                break
            if here.get(name, name) == "max_tokens":
                if name != "max_tokens" or body[name] == 1:
                    continue  # its value is refused: a reply without a bound is worse than none
                is_new = "max_tokens" not in self._renamed
                self._renamed["max_tokens"] = "max_completion_tokens"
            else:
                is_new = here.get(name, name) not in self._without
                self._without.add(here.get(name, name))
            log.info("the language model's service refuses %s: requests leave it out", name)
            return here.get(name, name) if is_new else ""
        else:
            if not own or not OF_THOUGHTS.search(refusal):
                return None
        if step != self._n_refused:
            return ""
        self._n_refused += 1
        log.info("the language model's service refuses %s", ", ".join(sorted(own)))
        return QUIET

    def forget(self, learned: Sequence[str]) -> None:
        """Send again what was left out (`learn`): the request was refused without it, too.

        Many a refusal quotes what was sent, and a caller may say "stop" or "temperature".
        """
        for name in learned:
            if name == QUIET:
                self._n_refused -= 1
            elif name == "max_tokens":
                self._renamed.pop(name, None)
            else:
                self._without.discard(name)

    def observe(self, thoughts: Thoughts, *, has_thought: bool) -> None:
        """Take in what an answer has shown of how the model thinks."""
        if has_thought and not self.thinks:
            log.warning("the language model thinks before it answers: callers wait for that")
        self.thinks = self.thinks or has_thought
        if thoughts.closes_unopened:
            self.begins_inside = True
        elif thoughts.was_answer:
            self.begins_inside = False  # the mark that taught it was a word of the answer


def _named_fields(refusal: str, body: Fields) -> list[str]:
    """The fields of the body that a refusal names, what may be left out most readily first."""
    try:
        answer = json.loads(refusal)
        error = answer.get("error")
        named = {error.get("param")} if isinstance(error, dict) else set()
        for each in answer.get("detail") or answer.get("message", {}).get("detail") or ():
            named |= set(each["loc"])
    except (ValueError, AttributeError, KeyError, TypeError):
        named = set()
    found = [name for name in body if name in named]
    found = found or [name for name in body if re.search(rf"\b{re.escape(name)}\b", refusal)]
    order = {name: place for place, name in enumerate(LEFT_OUT_FIRST)}
    return sorted(found, key=lambda name: order.get(name, len(order)))
