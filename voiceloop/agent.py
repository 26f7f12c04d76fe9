"""The agent: what ``agent.toml`` says of its character, voice, tools and manners.

Owns ``AgentConfig``. ``agent_file`` reads it; the session's own settings replace what they name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from voiceloop.backends import RecognizerOptions, Tool
from voiceloop.knowledge.answers import ApprovedAnswer
from voiceloop.knowledge.sources import KnowledgeSource
from voiceloop.memory.ledger import Memory
from voiceloop.realtime.settings import SemanticVad, SessionSettings

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A function the agent may call; ``parameters`` is a JSON schema of an object.

    ``result``: the server answers every call itself with this text. ``table``: it answers with the
    entry named by the value of the argument ``table_key``, in any case (an entry ``"*"`` stands for
    any other). ``url``: it asks the service there, with ``method`` and ``headers``; both may name
    variables of the environment as ``${NAME}``, and the URL required arguments as ``{name}``.
    ``python``: it calls this function, ``module:function``, in a process of its own. ``mcp``: it
    calls the tool of this name at that ``[[mcp]]`` server, which also describes it where the file
    does not. With none of these, the client answers. ``side_effect_free``: a call changes nothing,
    so it may be made before the caller's turn has ended, made again, and its result be kept.

    Of a call by ``url``, ``python`` or ``mcp``: it is waited for ``deadline_ms``, is tried
    ``retries`` times more where that can do no harm, and is one of at most ``at_once``, over all
    sessions. Its result stands for ``cache_s`` seconds. Of the result the model is given the fields
    of ``keep`` (none: all of it) and no more than ``max_result_chars`` characters. ``late``: what
    to do with one that comes when the reply that wanted it is over: tell the caller of it, or have
    the next reply find it. ``say``: the line that asks the caller to wait for it, as soon as the
    turn is over, where it is not there by then. ``from_slots``: parameters that are taken from the
    slots of these names, as the caller confirmed them, whatever the model writes.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    side_effect_free: bool = False
    result: str | None = None
    table_key: str | None = None
    table: Mapping[str, Any] = field(default_factory=dict)
    url: str | None = None
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: Mapping[str, Any] = field(default_factory=dict)
    python: str | None = None
    mcp: str | None = None
    deadline_ms: int = 3000
    retries: int = 1
    at_once: int = 8
    cache_s: float = 0.0
    keep: tuple[str, ...] = ()
    max_result_chars: int = 4000
    late: Literal["speak", "drop"] = "speak"
    say: str = ""
    from_slots: tuple[str, ...] = ()

    @property
    def is_clients(self) -> bool:
        """Whether a client has to answer its calls."""
        return self.result is None and self.table_key is None and not self.is_executed

    @property
    def is_executed(self) -> bool:
        """Whether the server has to call something for its answer."""
        return self.url is not None or self.python is not None or self.mcp is not None

    def answer(self, arguments: str) -> str | None:
        """The agent file's own answer to a call (JSON text), or None where it has none."""
        if self.result is not None:
            return self.result
        if self.table_key is None:
            return None
        try:
            value = json.loads(arguments).get(self.table_key)
        except (ValueError, AttributeError):
            value = None
        entries = {name.strip().lower(): entry for name, entry in self.table.items()}
        found = entries.get(str(value).strip().lower(), entries.get("*"))
        if found is None:
            return json.dumps({"error": f"nothing known for {self.table_key} {value!r}"})
        return found if isinstance(found, str) else json.dumps(found)


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server of the Model Context Protocol whose tools the agent may call.

    ``url``: where it answers (streamable HTTP), with these ``headers``. ``command``: it is a
    process of ours and answers on its standard output, with ``environment`` beside PATH and HOME.
    Headers and environment may name variables as ``${NAME}``. ``tools``: which of those that it
    lists are offered, ``*`` for all, beside those of the agent's own ``[[tools]]`` that name it.
    ``read_only``: of these, which change nothing; what a server says of itself does not count.
    """

    name: str
    url: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BargeIn:
    """What happens when the caller speaks while the agent does.

    After ``duck_ms`` of the caller's voice the agent gets quieter, after ``hold_ms`` it falls
    silent: to the ear the caller has the floor from there on, and only whether the agent takes it
    back is open. Both count the sound that leads into the voice ("st" in "stop"). It yields for
    good after ``least_words`` words (within at least ``words_ms`` of speech) that are no
    ``backchannels``, at one of the ``stop_words``, or after ``stop_ms`` of what is plainly a voice.
    A shorter sound gives the floor back; one that is neither words nor plainly a voice is talked
    over after two seconds. With ``stop_ms`` at 250 the caller would hear nothing sooner, but nearly
    every "yeah" would end the reply.
    A recognizer that mishears "mm-hm" as a word wants more words.
    ``echo_guard``: words the agent has just spoken do not count. ``by_sound``: what the sound is
    like counts too, where the recognizer can tell a caller from a listener's "mm-hm", a noise, an
    echo and a bystander: words of those wait, until the sound is over at the latest, and somebody
    who plainly is a caller takes the floor sooner.
    """

    enabled: bool = True
    duck_ms: int = 60
    hold_ms: int = 128
    stop_ms: int = 1000
    words_ms: int = 0
    least_words: int = 1
    stop_words: tuple[str, ...] = ("stop", "wait", "hold on", "hang on", "actually", "excuse me")
    backchannels: tuple[str, ...] = (
        "uh huh", "aha", "mm hmm", "mhm", "hm", "yeah", "yep", "yes", "okay", "ok", "right", "sure",
        "i see", "got it", "oh",
    )  # fmt: skip
    echo_guard: bool = True
    by_sound: bool = True


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a caller hears where the model or a tool takes its time.

    After ``say_after_ms`` of silence one of the lines of ``say``, in turn, and at most one a reply:
    a hold line that comes twice says that nobody is there. Where the model has said nothing after
    ``first_token_ms`` the fallback is said. After ``budget_ms`` of waiting for tools, over all
    rounds of a reply, the agent answers without what is not there yet.
    """

    say_after_ms: int = 1500
    say: tuple[str, ...] = ("One moment, please.",)
    first_token_ms: int = 5000
    budget_ms: int = 8000

    @property
    def late_s(self) -> float | None:
        """When a caller is asked to wait, since their last sound; None: never."""
        return self.say_after_ms / 1000 if self.say else None


@dataclass(frozen=True, slots=True)
class AgentSlot:
    """What the agent's questions ask for where their words do not tell, and what becomes of it.

    ``asked``: words of the question. ``kind``: what the answer is. ``digits``: how many a number
    has. ``name``: the answer is kept under it, said back with the text ``read_back`` (without one
    it is taken as heard), and told to the model once the caller has confirmed it. ``pattern``: a
    regular expression that all of the value must match. ``values``: of a choice, what there is.
    """

    asked: str
    kind: Literal[
        "yes_no", "number", "quantity", "spelling", "address", "email", "date", "time", "choice",
        "open", "phone", "name",
    ]  # fmt: skip
    digits: int | None = None
    name: str | None = None
    pattern: str | None = None
    values: tuple[str, ...] = ()
    read_back: str = "I have {value}, is that right?"


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    """How long and how freely the agent answers."""

    max_reply_tokens: int = 160
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Crisis:
    """Words after which the agent gives a fixed answer instead of the model's."""

    words: tuple[str, ...] = ()
    answer: str = ""

    def answers(self, heard: str) -> bool:
        """True when one of the phrases stands in what was heard, as whole words."""
        padded = f" {' '.join(heard.lower().split())} "
        return any(f" {phrase} " in padded for phrase in self.words)


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The agent: what ``agent.toml`` holds.

    ``greeting_wait_ms``: how long a client that sends nothing at all is waited for before the agent
    greets: one that begins by itself does so within this, and the slow ones are SDKs on a busy
    machine. ``fallback`` is said where the model answers a caller with nothing at all, or fails;
    silence is no answer. ``tool_timeout_ms``: for the output of a client's tool, instead of the
    server's own. ``max_turn_s``: who sounds for longer without a pause (music, a television, a
    caller who never stops) is answered all the same. ``slots``: what its questions ask for; most
    are read from their words. ``answer``: what is answered word for word, without the model.
    ``try_saying``: what a page offers a caller who does not know what to ask.
    """

    name: str = "Agent"
    instructions: str = "You are a helpful voice assistant. Answer in one or two short sentences."
    greeting: str = ""
    greeting_wait_ms: int = 1000
    fallback: str = "Sorry, could you say that again?"
    voice: str = "default"
    speed: float = 1.0
    language: str = "en"
    tools: tuple[AgentTool, ...] = ()
    mcp: tuple[McpServer, ...] = ()
    tool_timeout_ms: int | None = None
    hotwords: tuple[str, ...] = ()
    knowledge: tuple[KnowledgeSource, ...] = ()
    answer: tuple[ApprovedAnswer, ...] = ()
    try_saying: tuple[str, ...] = ()
    noise_reduction: Literal["none", "near_field", "far_field"] = "none"
    eagerness: Literal["auto", "low", "medium", "high"] = "auto"
    max_turn_s: float = 60.0
    slots: tuple[AgentSlot, ...] = ()
    barge_in: BargeIn = field(default_factory=BargeIn)
    limits: ReplyLimits = field(default_factory=ReplyLimits)
    crisis: Crisis = field(default_factory=Crisis)
    waiting: Waiting = field(default_factory=Waiting)
    memory: Memory = field(default_factory=Memory)

    def tool(self, name: str) -> AgentTool | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    @property
    def kept_lines(self) -> tuple[str, ...]:
        """What must be said at once, or even where the voice is lost: it is kept as sound.

        The last is the last to be given up where there are too many."""
        asking_to_wait = dict.fromkeys((*(tool.say for tool in self.tools), *self.waiting.say))
        return tuple(filter(None, (*asking_to_wait, self.fallback, self.crisis.answer)))

    def tool_wait_ms(self, default_ms: int) -> int:
        """How long the output of a client's tool is waited for; 0: for ever."""
        return default_ms if self.tool_timeout_ms is None else self.tool_timeout_ms

    def recognizer_options(self, settings: SessionSettings) -> RecognizerOptions:
        """What the recognizer is told of a session with these settings."""
        asked = settings.transcription
        language = asked.language if asked is not None and asked.language else self.language
        prompt = asked.prompt if asked is not None and asked.prompt else ""
        return RecognizerOptions(
            language, self.hotwords, f"{settings.instructions} {prompt}".strip()
        )

    def session_settings(self, model: str = "voiceloop") -> SessionSettings:
        """The settings a session of this agent starts with."""
        tools = tuple(
            Tool(
                tool.name,
                tool.description,
                dict(tool.parameters) or dict(NO_PARAMETERS),
                tool.side_effect_free,
            )
            for tool in self.tools
        )
        return SessionSettings(
            model=model,
            instructions=self.instructions,
            voice=self.voice,
            own_voice=self.voice,
            speed=self.speed,
            tools=tools,
            turn_detection=SemanticVad(eagerness=self.eagerness),
            noise_reduction=None if self.noise_reduction == "none" else self.noise_reduction,
            temperature=self.limits.temperature,
        )
