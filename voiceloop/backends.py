"""The contracts between the gateway and a recognizer, a language model and a voice.

Three protocols, message level, each implemented three times: by a proxy to a worker process
(``workers/client.py``), by a remote OpenAI-compatible service (``remote/``) and by a scripted fake
(``tests/fakes.py``). Messages are immutable; a stream is used by one task at a time, and closing
it is idempotent and valid in every state.

Sending methods (``feed``, ``flush``, ``stage`` ...) enqueue and return at once. They raise
``Overloaded`` when the bounded queue behind them is full. Results come from ``events()``, an async
iterator that ends when the stream is closed and raises ``BackendError`` when the stream failed.

Times in ``Word`` and ``SpokenWord`` are milliseconds; whoever consumes an event stamps it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from voiceloop.capabilities import Capabilities
from voiceloop.operation import MAIN_MODEL as MAIN_MODEL
from voiceloop.operation import WorkerLoad

RoleName = Literal["engine", "recognizer", "voice"]  # what a worker process can hold

# --- recognizer ---------------------------------------------------------------------------------


class Word(msgspec.Struct, frozen=True):
    """One recognized word; times count from the first sample fed into its segment."""

    text: str
    start_ms: float
    end_ms: float


LANGUAGE = "en"  # spoken where nobody says otherwise


def is_english(language: str) -> bool:
    """Whether a tag, as en-US, is of English: readers and lists of words know it alone."""
    return language.partition("-")[0].lower() in (LANGUAGE, "")


def normalize(word: str) -> str:
    """Lower case, without the punctuation at its ends."""
    return word.lower().strip(".,!?;:\"'")


class RecognizerOptions(msgspec.Struct, frozen=True):
    """How one stream recognizes. ``context``: free text of likely words, the agent's instructions;
    ``is_batch``: no turn waits; ``n_digits``: of the number that was asked for, 0: none was."""

    language: str = LANGUAGE
    hotwords: tuple[str, ...] = ()
    context: str = ""
    is_batch: bool = False
    n_digits: int = 0


class Partial(msgspec.Struct, frozen=True, tag="partial"):
    """The hypothesis so far: ``stable_words`` will not change, ``unstable_words`` may.

    ``flushed`` answers ``flush()``: all that was fed before is considered; each flush of an open
    segment has one answer, in order. Where the recognizer tells, ``p_voice`` comes with it or
    later, log-odds of a finished voice; from the start ``for_agent``, of words for the agent (not
    "mm-hm", noise, echo, bystander).
    """

    segment: int
    stable_words: tuple[str, ...]
    unstable_words: tuple[str, ...]
    flushed: bool = False
    p_voice: float | None = None
    for_agent: float | None = None


class Transcript(msgspec.Struct, frozen=True, tag="transcript"):
    """The final words of one segment, in answer to ``finalize()``; may be empty."""

    segment: int
    words: tuple[Word, ...]

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


RecognizerEvent = Partial | Transcript


class RecognizerStream(Protocol):
    """One caller's recognition. Segments count from 0 and advance at each ``finalize``."""

    def feed(self, samples: bytes) -> None:
        """Add PCM16 mono 16 kHz little-endian audio."""

    def flush(self) -> None:
        """The caller paused: answer with the fullest hypothesis now. The segment stays open."""

    def finalize(self) -> None:
        """Close the segment: one ``Transcript`` follows. What is fed next opens another."""

    def set_options(self, options: RecognizerOptions) -> None:
        """Takes effect at the next segment."""

    def events(self) -> AsyncIterator[RecognizerEvent]: ...

    async def close(self) -> None: ...


class Recognizer(Protocol):
    async def open(self, stream_id: str, options: RecognizerOptions) -> RecognizerStream: ...


# --- language model -----------------------------------------------------------------------------


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call"):
    """A complete call the model made; ``arguments`` is a JSON object as text."""

    call_id: str
    name: str
    arguments: str


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message as the language model sees it; ``behind`` the content: passages, never staged.

    sound: of the caller's last turn, for a model that hears: PCM16 mono 16 kHz, cut at pauses.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    behind: str = ""
    sound: tuple[bytes, ...] = ()

    def to_chat(self, arguments: Callable[[str], Any] = str) -> dict[str, Any]:
        """As chat templates and services read it. arguments: the form of a call's."""
        chat: dict[str, Any] = {"role": self.role, "content": self.content + self.behind}
        if self.tool_calls:
            chat["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": arguments(call.arguments)},
                }
                for call in self.tool_calls
            ]
        if self.tool_call_id is not None:
            chat["tool_call_id"] = self.tool_call_id
        return chat


def words_of(messages: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    """The messages without sound: more of it with the same words is a breath, a click."""
    if not any(message.sound for message in messages):
        return messages
    return tuple(msgspec.structs.replace(message, sound=()) for message in messages)


MAX_TOOLS = 128  # of one session or agent file, as OpenAI bounds them
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # OpenAI's rule for the name of a function


class Tool(msgspec.Struct, frozen=True):
    """A function the model may call; ``parameters`` is a JSON schema.

    ``side_effect_free`` comes from the agent file: such a tool may be called before the turn ends.
    ``server_label``: of the session's MCP server that has it; "": it is the agent's or the client
    himself. ``needs_approval``: a call is made only once the client has said yes to it.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    side_effect_free: bool = False
    server_label: str = ""
    needs_approval: bool = False


class GenerateParams(msgspec.Struct, frozen=True):
    """How a reply is drawn.

    json_schema (JSON text): the reply must be JSON valid under it. logprobs: of each token, and of
    so many likeliest. is_batch: no caller waits for it. within_ms: how long its first token is
    waited for; 0: for ever. begins_with: the reply's first words, which were said: it goes on
    behind them and does not give them again.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop: tuple[str, ...] = ()
    tool_choice: str = "auto"
    json_schema: str | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    ignore_eos: bool = False
    logprobs: int | None = None
    is_batch: bool = False
    within_ms: float = 0.0
    begins_with: str = ""


class RouteSigns(msgspec.Struct, frozen=True):
    """The needs of the answer to the staged words, as the model's route head reads them.

    large_rank: a large model, as the share of calibrated turns that need one less. tool, retrieval:
    P(a tool is called), P(nothing in the prompt answers).
    """

    large_rank: float
    tool: float
    retrieval: float


class Staged(msgspec.Struct, frozen=True, tag="staged", omit_defaults=True):
    """Answer to ``stage``: tokens of this prompt now in the cache, and P(end of turn) after them.

    ``stage_id`` echoes the call. ``p_end_of_turn`` is None where the model cannot tell. A remote
    service comes again for the same call once it has read more; n_prefilled then counts what it had
    to read, or all where it does not say what it had cached.
    """

    stage_id: int
    n_resident: int
    n_prefilled: int
    p_end_of_turn: float | None
    route: RouteSigns | None = None


class PreemptiveDelta(msgspec.Struct, frozen=True, tag="preemptive_delta"):
    """Text of a reply that nobody has asked for yet."""

    attempt: int
    text: str


class PreemptiveCall(msgspec.Struct, frozen=True, tag="preemptive_call"):
    """A call that a reply made ahead would make."""

    attempt: int
    name: str
    arguments: str


class PreemptiveDone(msgspec.Struct, frozen=True, tag="preemptive_done", omit_defaults=True):
    """The attempt is as long as it gets.

    It is whole (``stop``, ``length``), stopped (``cancelled``), or ``lost``: given up for want of
    room, or to be made anew. Whether the reply will begin with it, ``commit`` tells. tokens: of one
    that was drafted for another model.
    """

    attempt: int
    finish_reason: str
    tokens: tuple[int, ...] = ()


class Verified(msgspec.Struct, frozen=True, tag="verified"):
    """The verdict on another model's draft of an attempt: it begins with so many of its tokens."""

    attempt: int
    n_kept: int


class Thinks(msgspec.Struct, frozen=True, tag="thinks", omit_defaults=True):
    """The model has thought what no caller hears, and no word of the reply is there yet.

    Comes once a reply, at the latest with its first word. ``attempt``: of one made ahead.
    """

    attempt: int | None = None


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A token of the reply: natural log of its probability, and ``top``, the likeliest first."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


class TextDelta(msgspec.Struct, frozen=True, tag="text_delta", omit_defaults=True):
    """``logprobs``: of the tokens since the delta before, where they were asked for."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one reply and where its time went, in milliseconds.

    Of the prompt, n_turn_tokens are the caller's last turn, and n_turn_resident of these were in
    the cache when the reply was asked for. n_discarded_tokens: made ahead in this turn, and not
    used. n_unheard_tokens: of a reply that the caller interrupted, what was not heard any more.
    n_read_ahead_tokens: prompts of requests that only had a remote service read this one ahead.
    n_drafted_tokens: guessed by a drafter and verified; n_accepted_tokens: those that stood.
    token_ms: mean time of a token behind the first; as the other times 0 where it is not known.
    """

    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0
    n_reply_tokens: int = 0
    n_discarded_tokens: int = 0
    n_unheard_tokens: int = 0
    n_turn_tokens: int = 0
    n_turn_resident: int = 0
    n_read_ahead_tokens: int = 0
    queue_ms: float = 0.0
    ttft_ms: float = 0.0
    n_drafted_tokens: int = 0
    n_accepted_tokens: int = 0
    token_ms: float = 0.0


class Generated(msgspec.Struct, frozen=True, tag="generated"):
    """The reply is complete; nothing follows it until the next ``commit``.

    "malformed_call": the model began a tool call and did not write one.
    """

    finish_reason: Literal["stop", "length", "tool_calls", "cancelled", "malformed_call"]
    usage: Usage


LanguageEvent = (
    Staged
    | PreemptiveDelta
    | PreemptiveCall
    | PreemptiveDone
    | Verified
    | Thinks
    | TextDelta
    | ToolCall
    | Generated
)


class Branch(Protocol):
    """A private continuation of one conversation: stage while the caller speaks, then commit."""

    def stage(self, stage_id: int, user_text: str) -> None:
        """Prefill the history and the open user turn so far; revises what was staged before."""

    def begin_preemptive(
        self, attempt: int, tail: tuple[ChatMessage, ...], params: GenerateParams
    ) -> None:
        """Make the reply to this tail (the caller's turn first) ahead: PreemptiveDelta ... Done.
        A later attempt replaces it; a ``commit`` takes over what stands of it, sent anew."""

    def stop_preemptive(self) -> None:
        """No more of the attempt for now; what there is of it stays for ``commit``, or is lost."""

    def commit(self, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        """Append ``tail`` to the history and reply: TextDelta / ToolCall ..., then Generated.

        Returns True as a promise: the reply begins with every PreemptiveDelta of the last attempt.
        After Generated a further ``commit`` continues (tool results): its tail follows the reply.
        """

    def events(self) -> AsyncIterator[LanguageEvent]: ...

    async def close(self) -> None: ...


class OpenSound(Protocol):
    """The sound of the caller's open turn, PCM16 mono 16 kHz; positions count its bytes."""

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """Return the sound up to the last pause, cut at pauses."""

    @property
    def n_bytes(self) -> int: ...

    def since(self, at: int) -> bytes: ...


class HearingBranch(Branch, Protocol):
    """The branch of a model that has `hears`."""

    def hear(self, sound: OpenSound, before: tuple[bytes, ...]) -> None:
        """More of the open turn was heard. before: of the same turn, in segments that ended."""


class SpeakingBranch(Branch, Protocol):
    """The branch of a model that has `speaks`: it brings the sound of its text."""

    def speak(self, stream_id: str, options: VoiceOptions, beside: Voice) -> VoiceStream:
        """Return the stream of the reply that is asked for next, at 24 kHz. beside: says what the
        model has not.
        """


BESIDE = ".beside"  # ends the id of a branch that is no part of the call's conversation


@runtime_checkable
class DraftedBranch(Branch, Protocol):
    """A branch of an engine: what one drafts, another of the same tokens may verify."""

    def draft(self, attempt: int, tail: tuple[ChatMessage, ...], params: GenerateParams) -> None:
        """As ``begin_preemptive``, but nothing is told of it but the tokens, at its end."""

    def verify(self, attempt: int, tokens: tuple[int, ...]) -> None:
        """Have the attempt verify these tokens in one pass: Verified. Its text stays the same."""


class LanguageModel(Protocol):
    """One that hears has an attribute `hears` besides, and its branches are `HearingBranch`; so of
    one that `speaks`."""

    async def branch(
        self,
        branch_id: str,
        history: tuple[ChatMessage, ...],
        tools: tuple[Tool, ...] = (),
        tenant: str = "",
    ) -> Branch:
        """``tenant``: whose conversation it is; different ones share nothing in any cache."""


@runtime_checkable
class SparedModel(LanguageModel, Protocol):
    """One that tells P(end of turn), which costs it time, and can be spared it."""

    def unread(self) -> LanguageModel:
        """The same beside another model that reads the end of turn."""


# --- voice --------------------------------------------------------------------------------------


class VoiceOptions(msgspec.Struct, frozen=True):
    """How one text is spoken. ``is_batch``: nobody waits for it in a call."""

    voice: str = "default"
    speed: float = 1.0
    is_batch: bool = False


class SpokenWord(msgspec.Struct, frozen=True):
    """A word of the reply in the voice's audio.

    Times count from the stream's first sample; ``text_end`` is the number of characters of the
    text fed so far that have been spoken once this word ends.
    """

    text: str
    start_ms: float
    end_ms: float
    text_end: int


class Speech(msgspec.Struct, frozen=True, tag="speech"):
    """PCM16 mono little-endian audio with the words that lie in it."""

    samples: bytes
    rate_hz: int
    words: tuple[SpokenWord, ...] = ()


class SpeechEnd(msgspec.Struct, frozen=True, tag="speech_end"):
    """Everything fed before ``finish()`` was spoken."""

    n_samples: int


VoiceEvent = Speech | SpeechEnd


class VoiceStream(Protocol):
    """One utterance of the agent."""

    def feed(self, text: str) -> None:
        """Add a piece of the reply; clauses are cut behind this call."""

    def finish(self) -> None:
        """No more text: what is left is spoken, then SpeechEnd."""

    def events(self) -> AsyncIterator[VoiceEvent]: ...

    async def close(self) -> None: ...


class Voice(Protocol):
    @property
    def rate_hz(self) -> int:
        """Sample rate of what it speaks."""

    async def open(self, stream_id: str, options: VoiceOptions) -> VoiceStream: ...


OWN_MODEL = ""  # of `Backends.models`: the server's own language model


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A language model that replies may be made by.

    is_there: whether it would be asked now. reads_ends: whether its P(end of turn) is evidence.
    language: the only one that it answers in, "" where it is not known to lack any. takes_tools:
    whether a call with tools may have it.
    """

    model: LanguageModel
    is_there: Callable[[], bool] = lambda: True
    reads_ends: bool = True
    language: str = ""
    takes_tools: bool = True

    def serves(self, language: str, *, has_tools: bool) -> bool:
        """Whether a call in this language may have it."""
        codes = [tag.partition("-")[0].lower() for tag in (self.language, language)]
        return (not self.language or codes[0] == codes[1]) and (self.takes_tools or not has_tools)


@dataclass(frozen=True, slots=True)
class Cascade:
    """Names of `Backends.models`, of which one is `OWN_MODEL`; large_share: as configured.

    verifies: whether the large model can verify what the small one drafts, token by token."""

    small: str
    large: str
    large_share: float = 1.0
    verifies: Callable[[], bool] = lambda: False


def hears(model: LanguageModel) -> bool:
    """Whether it takes the caller's sound beside the words."""
    return bool(getattr(model, "hears", False))


def alone(model: LanguageModel) -> LanguageModel:
    """The model without the reader of words that may stand beside it."""
    answering: LanguageModel = getattr(model, "alone", model)
    return answering


def speaks(model: LanguageModel) -> bool:
    """Whether it brings the sound of what it says."""
    return bool(getattr(model, "speaks", False))


# Of a call that was resumed: its id before, and the session that goes on with it.
OnResumed: TypeAlias = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Backends:
    """The three models of a running server.

    known: what they speak and hear, as far as they have said it by now. workers: the processes that
    hold those which no service has. take_answers: since it was last called, what callers waited for
    with the seconds that it took.
    count_tokens: of a text, None while no tokenizer is here. judges: what judges the end of a turn
    at this moment: "words and voice", one of them, or "silence alone". tell_resumed: tells the
    other gateways of the same workers that a call goes on here; hear_resumed: has a function told
    what they tell. end_call: tells what is kept of a call that it is over. models: the language
    models by name, where there are further ones; OWN_MODEL is `language_model` then. cascade: which
    two of them share a call."""

    recognizer: Recognizer
    language_model: LanguageModel
    voice: Voice
    known: Callable[[], Capabilities] = Capabilities
    workers: Callable[[], Sequence[WorkerLoad]] = tuple
    take_answers: Callable[[], Sequence[tuple[str, float]]] = tuple
    end_call: Callable[[str], None] = lambda call_id: None
    count_tokens: Callable[[], Callable[[str], int] | None] = lambda: None
    judges: Callable[[], str] = str
    tell_resumed: OnResumed = lambda call_id, by: None
    hear_resumed: Callable[[OnResumed], None] = lambda heard: None
    models: Mapping[str, NamedModel] = field(default_factory=dict)
    cascade: Cascade | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self.known()

    @property
    def hears(self) -> bool:
        """Whether a model takes the caller's sound beside the words."""
        models = (self.language_model, *(one.model for one in self.models.values()))
        return any(hears(model) for model in models)

    def utilization(self) -> float:
        """Return the load of the busiest process that holds one of them, 0 to 1; 0 where none can
        tell.
        """
        further = (one.model for one in self.models.values())
        models: tuple[Any, ...] = (self.language_model, self.voice, *further)
        return max(float(getattr(model, "utilization", 0.0)) for model in models)
