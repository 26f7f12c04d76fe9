"""The agent: what ``agent.toml`` says of its character, voice, tools and manners.

Owns ``AgentConfig``. ``agent_file`` reads it; the session's own settings replace what they name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from voiceloop import day_hours
from voiceloop.backends import LANGUAGE, TOOL_NAME, RecognizerOptions, Tool, VoiceOptions
from voiceloop.call_manners import CallManners, Transfer
from voiceloop.config_reader import Words, key
from voiceloop.knowledge.answers import ApprovedAnswer
from voiceloop.knowledge.sources import KnowledgeSource
from voiceloop.realtime.settings import SemanticVad, SessionSettings

MINUTE_MS = 60_000
MAX_SLOT_DIGITS = 40  # an IBAN has 34
URL = r"(https?://|\$\{)\S+(?s:.*)"  # all of it may come from the environment
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
A_TEXT = Meta(pattern=r"(?s).*\S.*", extra={"wanted": "a text"})
FieldPath = Annotated[
    str,
    Meta(
        pattern=r"(?s)[^.]+(\.[^.]+)*", extra={"wanted": "names with dots between, as order.price"}
    ),
]
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A function the agent may call.

    With none of ``result``, ``url``, ``python`` and ``mcp`` the client answers.
    """

    name: str = key(
        ...,
        "1 to 64 letters, digits, `_` and `-`.",
        pattern=TOOL_NAME.pattern,
        wanted="1 to 64 letters, digits, _ or -",
    )
    description: str = key("", "Tells the model what it does.")
    parameters: Mapping[str, Any] = key(
        {},
        "A JSON schema of type `object`. Left out: it takes none. The server refuses a call "
        "that the schema does not allow, or that has further arguments, unless the schema "
        "says `additionalProperties = true`.",
    )
    side_effect_free: bool = key(
        False,
        "A call changes nothing. The server may then call the tool for a prepared reply that "
        "is never said, and call it again after a failure.",
    )
    confirm: bool = key(
        False,
        "The caller is asked before a call: the agent says what will be done, and their next turn "
        "says yes or no. It is never made ahead.",
    )
    trusted: bool = key(
        False,
        "The answers of `url` or `mcp` hold no words of strangers. If `trusted` is off, calls"
        " that change something need a yes after such an answer, until the caller speaks "
        "again.",
    )
    result: str | Mapping[str, Any] | None = key(
        None,
        "The server's answer to every call. Or a table of answers, each a text or a table that is "
        "sent as JSON: the value of the first of the tool's parameters names the entry, in any "
        'case. The entry `"*"` stands for any other value.',
    )
    url: str | None = key(
        None,
        "The service that is asked, as `GET https://shop.example/orders/{order}`. `GET` and "
        "`DELETE` send the arguments in the query; `POST`, `PUT`, `PATCH`, and an address alone, "
        "as JSON. `${NAME}` stands for a variable of the environment, `{name}` after the host for "
        "a required argument.",
        pattern=rf"(({'|'.join(METHODS)}) )?{URL}",
        wanted="http:// or https://, GET or the like before it",
    )
    headers: Mapping[str, Any] = key(
        {},
        'Sent along, as `Authorization = "Bearer ${SHOP_KEY}"`. Keys stand in the environment, '
        "not in the file.",
        secret=True,
    )
    caller_key: str = key(
        "",
        "Tell the service of `url` who calls, in the header `VoiceLoop-Caller`, signed with "
        "this key. Name an environment variable whose value has at least 16 characters, as "
        '`"${SHOP_CALLER_KEY}"`.',
        secret=True,
    )
    python: str | None = key(
        None,
        '`"module:function"`, called with the arguments by name, in a process of its own. It '
        "may be `async def`. A parameter named `caller` receives who is calling. The module "
        "is a Python file in the folder of the agent's file, or an installed module.",
        pattern=r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*",
        wanted="module:function",
    )
    network: bool = key(
        False,
        "The function of `python` may use the network, and what it imports too. Off: the kernel "
        "refuses them its sockets (Linux; `voiceloop doctor` says where it cannot).",
    )
    mcp: str | None = key(
        None,
        "The `[[mcp]]` server that has a tool of this `name`. If you leave out `description` "
        "or `parameters`, the MCP server's own are used. While the MCP server does not list "
        "the tool, the model is not offered it.",
    )
    deadline_ms: int = key(
        3000,
        "How long the server waits for a call by `url`, `python` or `mcp`. After this time a "
        "`side_effect_free` call ends without an answer, and the model is told so. Any other "
        "call continues for up to 60 s. The agent tells its result in the next silence.",
        ge=1,
        le=MINUTE_MS,
    )
    keep: tuple[FieldPath, ...] = key(
        (),
        'Fields of a JSON result that the model is given, as `["order.items.price"]`. None: all '
        "of them.",
    )
    say: str = key(
        "",
        'The line that asks the caller to wait, as "Let me see.". The agent says the line '
        "after the turn if the result is not there 100 ms after the call began, at most once "
        "a reply. Without `say` the caller hears silence until the "
        "answer comes; after 1.5 s the agent says a line of `waiting.say`. `say` is for tools "
        "with `url`, `python` or `mcp`.",
    )
    from_slots: tuple[str, ...] = key(
        (),
        "Parameters, of type string, that are taken from the named `[[slots]]`, as the caller"
        " confirmed them. The model cannot change these values. A value that is not confirmed"
        " counts as missing, so the agent asks for a required one first.",
    )

    @property
    def request(self) -> tuple[str, str]:
        """The method and the address of `url`."""
        before, space, address = (self.url or "").partition(" ")
        return (before, address) if space and before in METHODS else (METHODS[1], self.url or "")

    @property
    def is_clients(self) -> bool:
        """Whether a client has to answer its calls."""
        return self.result is None and not self.is_executed

    @property
    def known(self) -> Mapping[str, Any]:
        """The entries of ``result``, where it is a table."""
        return {} if self.result is None or isinstance(self.result, str) else self.result

    @property
    def is_executed(self) -> bool:
        """Whether the server has to call something for its answer."""
        return self.url is not None or self.python is not None or self.mcp is not None

    @property
    def is_untrusted(self) -> bool:
        """Whether strangers may have written what it answers."""
        return (self.url is not None or self.mcp is not None) and not self.trusted

    @property
    def only_reads(self) -> bool:
        """Whether a call may be made behind untrusted words, which could have asked for it."""
        return self.side_effect_free

    @property
    def runs_early(self) -> bool:
        """Whether a call may be made before it is known that it is wanted."""
        return self.side_effect_free and not self.confirm

    def answer(self, arguments: str) -> str | None:
        """The agent file's own answer to a call (JSON text), or None where it has none."""
        if self.result is None or isinstance(self.result, str):
            return self.result
        asked = next(iter(self.parameters.get("properties", {})), "")
        try:
            value = json.loads(arguments).get(asked)
        except (ValueError, AttributeError):
            value = None
        entries = {name.strip().lower(): entry for name, entry in self.result.items()}
        found = entries.get(str(value).strip().lower(), entries.get("*"))
        if found is None:
            return json.dumps({"error": f"nothing known for {asked} {value!r}"})
        return found if isinstance(found, str) else json.dumps(found)


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server of the Model Context Protocol whose tools the agent may call."""

    name: str = key(
        ...,
        "What `tools.mcp` calls it. 1 to 64 letters, digits, `_` and `-`.",
        pattern=TOOL_NAME.pattern,
        wanted="1 to 64 letters, digits, _ or -",
    )
    url: str | None = key(
        None,
        "A server that answers over streamable HTTP.",
        pattern=URL,
        wanted="http:// or https://",
    )
    headers: Mapping[str, Any] = key({}, "Sent along with each request.", secret=True)
    caller_key: str = key(
        "",
        "Tell its tools who calls, in `_meta` under `voiceloop.caller`, signed with this key, "
        "as `tools.caller_key`.",
        secret=True,
    )
    command: tuple[str, ...] = key(
        (),
        "A program and its arguments, which answers on its standard output. It runs in the agent "
        "file's folder.",
    )
    environment: Mapping[str, Any] = key(
        {},
        "Variables of that program, beside PATH, HOME and the like. They may name ours as "
        "`${NAME}`.",
        secret=True,
    )
    tools: tuple[str, ...] = key(
        (),
        'The tools of it that the agent offers. `["*"]`: all that it lists. Tools in '
        "`[[tools]]` that name the server are offered in any case. Say there with "
        "`side_effect_free` which tools change nothing: the MCP server's own claim does not "
        "count.",
    )


@dataclass(frozen=True, slots=True)
class BargeIn:
    """The settings for a caller who speaks while the agent does."""

    least_words: int = key(
        1,
        "How many words that are no backchannel take the turn. More suit a recognizer that "
        'mishears "mm-hm" as a word: they count once the sound has lasted 450 ms.',
        ge=1,
        le=100,
    )
    stop_words: tuple[Words, ...] = key(
        ("stop", "wait", "hold on", "hang on", "actually", "excuse me"),
        "Words that take the turn at once.",
    )
    hold_words: tuple[Words, ...] = key(
        (
            "wait",
            "hold on",
            "hang on",
            "one moment",
            "one second",
            "one minute",
            "just a moment",
            "just a second",
            "just a sec",
            "just a minute",
            "give me a moment",
            "give me a second",
            "give me a minute",
            "let me check",
            "let me see",
            "let me look",
            "bear with me",
        ),
        "A turn of hardly more than such words is not answered. The agent waits for the "
        "caller to speak again, and asks back once after 20 s (`call.still_there`). The agent "
        'also waits after words that are clearly for others, such as "I am on the phone". '
        "German, Spanish and French have such words of their own, beside this list as it is. "
        "None: the agent answers every turn.",
    )
    backchannels: tuple[Words, ...] = key(
        (
            "uh huh",
            "aha",
            "mm hmm",
            "mhm",
            "hm",
            "yeah",
            "yep",
            "yes",
            "okay",
            "ok",
            "right",
            "sure",
            "i see",
            "got it",
            "oh",
        ),
        "Words of a listener, which leave the agent its turn.",
    )
    speakers: Literal["caller", "any", "nobody"] = key(
        "caller",
        "Whom the agent heeds. `caller`: a voice that is clearly softer than the turns so far "
        "neither interrupts nor is answered, until it speaks again. `any`: softer voices count "
        "too, because several people share the call. With `nobody` the agent speaks on, whatever "
        "is said.",
    )

    @property
    def is_allowed(self) -> bool:
        """Whether anybody may interrupt."""
        return self.speakers != "nobody"


@dataclass(frozen=True, slots=True)
class Waiting:
    """The lines that a caller hears while the model or a tool is late."""

    # The silence after which one line is said, and how long a reply waits for its tools, over all
    # of its rounds: then the agent answers without the late results, and tells them in the next
    # silence. Both chosen.
    say_after_s: ClassVar[float] = 1.5
    tools_s: ClassVar[float] = 8.0
    say: tuple[Words, ...] = key(
        ("One moment, please.",),
        "Lines that are said after 1.5 s of silence, in turn, at most one a reply. The time "
        "counts from the caller's last sound where the model has not begun to answer or the "
        "caller's words are missing, and from the call where a tool is slow. A lost or late voice "
        "counts too, also in the middle of a reply. A reply in text has no such line. None: "
        "nothing is said. They are kept as sound, and need no voice.",
    )
    acknowledge: tuple[Words, ...] = key(
        (),
        'Said softly between the groups of a value that a caller dictates, as "Mm-hm.", in '
        "turn. At most once in a pause, after 450 ms, if more must follow. None: the agent "
        "only listens.",
    )
    openers: tuple[Words, ...] = key(
        (),
        "With two models in a call: lines for a late large model, in the words of `language`."
        " Each has at most eight words that commit to nothing: no yes, no, number or name. "
        "`{slot}` stands for the named slot that the caller spoke of. Empty: VoiceLoop's own "
        'lines for the language (English, German, Spanish, French). `["-"]` says nothing.',
    )
    first_token_ms: int = key(
        5000,
        "How long a spoken reply waits for its first token, from the caller's last sound on. "
        "The model always has two seconds at least. After the limit the agent says its "
        "`fallback`, or the other model of a cascade answers. Set more for a large model on a"
        " CPU.",
        ge=500,
        le=30_000,
    )

    @property
    def late_s(self) -> float | None:
        """Return when a caller is asked to wait, since their last sound; None: never."""
        return self.say_after_s if self.say else None


@dataclass(frozen=True, slots=True)
class AgentRoute:
    """Turns that one model of a cascade answers. All of its conditions hold; one is needed."""

    model: Literal["small", "large"] = key(..., "The model that answers.")
    words: tuple[Words, ...] = key(
        (), "The caller's turn has one of these words or phrases, in any case."
    )
    tools: tuple[Words, ...] = key(
        (), "One of these tools was called since the turn before, or is what the turn answers."
    )
    turns: str = key(
        "",
        "The caller's turns to which the rule applies, as `1`, `2-4` or `3-`.",
        pattern=r"|[1-9]\d{0,3}(-([1-9]\d{0,3})?)?",
        wanted="a turn or a range, as 1, 2-4 or 3-",
    )
    likely: Literal["", "tool", "retrieval"] = key(
        "",
        "The route head reads that the turn calls a tool, or that nothing in the prompt "
        "answers it. The route head is read only if `cascade.large_share` is below 1.",
    )
    language: str = key(
        "",
        "The call is in this language, as `de`.",
        pattern=r"|[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*",
        wanted="a language like en or de-AT",
    )
    hours: str = key(
        "",
        "The clock of the server's machine stands between, as `22:00-06:00`.",
        pattern=day_hours.PATTERN,
        wanted=day_hours.WANTED,
    )

    @property
    def is_empty(self) -> bool:
        """Whether it has no condition."""
        named = (self.words, self.tools, self.turns, self.likely, self.language, self.hours)
        return not any(named)

    def has_turn(self, number: int) -> bool:
        """Whether the caller's turn of this number, from 1 on, is one of ``turns``."""
        if not self.turns:
            return True
        first, dash, last = self.turns.partition("-")
        return int(first) <= number and (number <= int(last or (number if dash else first)))


@dataclass(frozen=True, slots=True)
class AgentSlot:
    """One value that the agent asks for, and what becomes of the answer."""

    asked: Words = key(..., "Words of the question, in any case.")
    kind: Literal[
        "yes_no",
        "number",
        "quantity",
        "spelling",
        "address",
        "email",
        "date",
        "time",
        "choice",
        "open",
        "phone",
        "name",
    ] = key(..., "The kind of the answer. A `number` comes digit by digit.")
    digits: int | None = key(
        None,
        "How many digits a `number` or `phone` has. For a `spelling`: letters and digits.",
        ge=1,
        le=MAX_SLOT_DIGITS,
    )
    name: str | None = key(
        None,
        "Keep the answer under this name, read it back and have it confirmed, see below. Letters,"
        " digits or `_`.",
        pattern="[A-Za-z][A-Za-z0-9_]{0,63}",
        wanted="1 to 64 letters, digits or _, a letter first",
    )
    values: tuple[str, ...] = key((), "The choices of a `choice`, 1 to 50. They need a `name`.")
    read_back: str = key(
        "I have {value}, is that right?", "How the value is said back. Empty: it is taken as heard."
    )
    sensitive: bool = key(
        False,
        "Keep the answer out of transcripts, logs and the model, and do not read it back. "
        "Tools get the value by `from_slots`. A recording leaves the value out "
        "([RECORDING.md](RECORDING.md)): neither voice is kept, nor a word, from the question"
        " until the value is settled. It needs a `name`.",
    )

    @property
    def reads_back(self) -> bool:
        """Whether the value is said back to the caller."""
        return bool(self.read_back) and not self.sensitive


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    """How long and how freely the agent answers."""

    max_reply_tokens: int = key(160, "The longest reply, in tokens.", ge=1, le=4096)
    temperature: float = key(
        0.0, "How freely words are drawn. 0 takes the likeliest word every time.", ge=0, le=2
    )


@dataclass(frozen=True, slots=True)
class Crisis:
    """Words after which the agent gives a fixed answer instead of the model's."""

    words: tuple[Words, ...] = key(
        (), "Words or phrases after which the agent does not ask the model."
    )
    answer: str = key(
        "",
        "The answer to these words. It is needed with `crisis.words`. The server speaks it "
        "before the first call and keeps the sound, for calls in which the voice fails.",
    )

    def answers(self, heard: str) -> bool:
        """True when one of the phrases stands in what was heard, as whole words."""
        padded = f" {' '.join(heard.lower().split())} "
        return any(f" {phrase} " in padded for phrase in self.words)


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The agent: what ``agent.toml`` holds."""

    name: str = key(
        "Agent",
        "The agent's name, for the page at `/`. The model knows the name that the instructions "
        "give it.",
    )
    instructions: Annotated[str, A_TEXT] = key(
        "You are a helpful voice assistant. Answer in one or two short sentences.",
        "The system prompt. The embedded recognizer listens for the names in it, and for words "
        "with a price.",
    )
    greeting: str = key(
        "",
        "Said when a call begins, unless the client configured its session "
        "([PROTOCOL.md](PROTOCOL.md#what-a-session-can-set)). Empty: the caller speaks first.",
    )
    fallback: str = key(
        "Sorry, could you say that again?",
        "Said where the model answers with nothing, or anything fails. It is kept as sound, for a"
        " voice that fails.",
    )
    voice: str = key(
        VoiceOptions().voice,
        "A voice of the preset's model, or of the service at `tts_url`. `default` is the model's "
        "own.",
        pattern=".+",
        wanted="the name of a voice",
    )
    speed: float = key(VoiceOptions().speed, "The speed of the voice.", ge=0.25, le=1.5)
    lexicon: Mapping[str, Any] = key(
        {}, "As `[voice.lexicon]` of the server's file, before which it goes."
    )
    llm_adapter: Path | None = key(
        None,
        "A LoRA adapter in PEFT's format that answers for this agent, beside those of others on one"
        " language model ([MODELS.md](MODELS.md#an-adapter-for-each-agent)).",
    )
    language: str = key(
        LANGUAGE,
        "The language of the caller, as `en` or `de-AT`.",
        pattern=r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*",
        wanted="a language like en or de-AT",
    )
    python: str | None = key(
        None,
        "A class of the author's, as `module:Class`, whose methods are tools and hooks. "
        "See [YOUR_AGENT.md](YOUR_AGENT.md#7-an-agent-in-python).",
        pattern=r"[A-Za-z_][\w.]*:[A-Za-z_]\w*",
        wanted="module:Class",
    )
    network: bool = key(
        False, "The class at `python` reaches the network. Else it has none (Linux)."
    )
    tools: tuple[AgentTool, ...] = key(
        (), "Functions the model may call, each a `[[tools]]`, see below."
    )
    mcp: tuple[McpServer, ...] = key(
        (), "MCP servers whose tools it may call, each an `[[mcp]]`, see below."
    )
    # Pipecat's default for the same: who is on the telephone waits no longer for a word.
    tool_timeout_ms: int = key(
        10_000,
        "How long the server waits for a client to answer a tool. After that time the server "
        "tells the model that there is no answer. 0: wait without end.",
        ge=0,
        le=600_000,
    )
    hotwords: tuple[Words, ...] = key(
        (),
        "Words and names that the recognizer should expect. moonshine-tiny, Whisper"
        " and services take them; Nemotron does not.",
    )
    knowledge: tuple[KnowledgeSource, ...] = key(
        (),
        "Documents that are searched for what the caller says, each a `[[knowledge]]`, see below.",
    )
    answer: tuple[ApprovedAnswer, ...] = key(
        (),
        "Questions that are answered word for word, without the model, each an `[[answer]]`, see "
        "below.",
    )
    quote: Literal["auto", "always", "never"] = key(
        "auto",
        "A plain question in English gets the sentence of the instructions that answers it, "
        "word for word, without the model; of a list of prices its entry, of opening hours "
        "the day. A question that names one value of a tool's `result` or `enum` calls that "
        "tool. If the texts contain no word of the question, the agent says that it does not "
        "know. `auto`: on with the models of the presets `embedded` and `cpu`, with "
        "smollm2-135m and with a GGUF file below 1.5 GB, but not for the cafe, which the embedded "
        "models were made for.",
    )
    try_saying: tuple[Words, ...] = key(
        (), "Up to six sentences of 100 characters that the page at `/` offers a caller."
    )
    eagerness: Literal["auto", "low", "medium", "high"] = key(
        SemanticVad().eagerness, "How eagerly the agent takes the turn in a silence, see below."
    )
    slots: tuple[AgentSlot, ...] = key(
        (),
        "What its questions ask for, and which answers are kept and read back, each a "
        "`[[slots]]`, see below.",
    )
    model: str = key(
        "",
        "Which of the server's `[[models]]` answers, by its name; `main` is the server's own. "
        "Empty: the server's own, or its cascade. A session may name another.",
    )
    route: tuple[AgentRoute, ...] = key(
        (),
        "Where the server has a cascade: who answers which turn, each a `[[route]]`, see below. "
        "The first that fits counts.",
    )
    transfers: tuple[Transfer, ...] = key(
        (),
        "Whom a call may be handed to, a person or another agent, each a `[[transfers]]`, see "
        "below.",
    )
    call: CallManners = field(default_factory=CallManners)
    barge_in: BargeIn = field(default_factory=BargeIn)
    limits: ReplyLimits = field(default_factory=ReplyLimits)
    crisis: Crisis = field(default_factory=Crisis)
    waiting: Waiting = field(default_factory=Waiting)

    def tool(self, name: str) -> AgentTool | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    @property
    def served_tools(self) -> tuple[str, ...]:
        """Names of those whose calls the server answers."""
        return tuple(tool.name for tool in self.tools if not tool.is_clients)

    @property
    def kept_lines(self) -> tuple[str, ...]:
        """Return what must be said at once, or even where the voice is lost: it is kept as sound.

        The last is the last to be given up where there are too many."""
        beside = (*self.waiting.say, *self.waiting.acknowledge)
        asking_to_wait = dict.fromkeys((*(tool.say for tool in self.tools), *beside))
        may_end = bool(self.call.end_words) or "end_call" in self.call.tools
        of_call = (self.call.goodbye,) if may_end else ()
        return tuple(filter(None, (*of_call, *asking_to_wait, self.fallback, self.crisis.answer)))

    def recognizer_options(self, settings: SessionSettings) -> RecognizerOptions:
        """Return what the recognizer is told of a session with these settings."""
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
            temperature=self.limits.temperature,
        )
