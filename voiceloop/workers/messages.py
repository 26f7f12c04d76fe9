"""Owns what travels between the gateway and a worker process: messages, framing, worker specs.

Both ends speak msgpack tagged unions over one Unix socket, each message behind a 4-byte big-endian
length; audio travels as raw bytes. Every message about a stream carries its ``stream_id``, which
starts with the ids of the session and the turn it belongs to and is never used twice.
"""

from __future__ import annotations

from typing import Any

import msgspec

from voiceloop.backends import (
    ChatMessage,
    GenerateParams,
    LanguageEvent,
    RecognizerEvent,
    RecognizerOptions,
    RoleName,
    Tool,
    VoiceEvent,
    VoiceOptions,
)

LENGTH_BYTES = 4
# Ten minutes of 16 kHz PCM16 (19.2 MB), the most a session may leave uncommitted, fit in one.
MAX_MESSAGE_BYTES = 32 * 1024 * 1024


# --- what a worker is started with --------------------------------------------------------------


class HeldModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The facts about a model before it is asked; empty or 0: nobody knows.

    digest: tells apart models of one name. formats: of weights, keys and values. languages, voices:
    all that it takes. context_tokens: of a prompt and its reply; n_streams: at once; kv_blocks:
    that their keys and values share, as the worker finds it. reads_turn_ends: as in `Capabilities`.
    """

    name: str = ""
    digest: str = ""
    formats: str = ""
    languages: tuple[str, ...] = ()
    voices: tuple[str, ...] = ()
    context_tokens: int = 0
    n_streams: int = 0
    kv_blocks: int = 0
    reads_turn_ends: bool = True


class Fault(msgspec.Struct, frozen=True, tag="fault"):
    """The device under a worker's models has failed; what they hold may not be used.

    kind: "launch", "memory" or "nan" as the engine says it, "crash" where the process was killed by
    what it computed, "hang" where it hung again. message: a sentence for a person.
    """

    kind: str
    message: str


class RoleSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model a worker holds: ``factory`` is "module:callable", called with ``options``.

    An empty factory takes the role's own (``role.FACTORIES``). model: what is known of it, for the
    gateways of other machines. gates: of a language model by what may run its layers, whether its
    formats have passed their quality gate. lower: what serves in its place where the device fails,
    one after the other; after: the failure that this one serves after.
    """

    role: RoleName
    options: dict[str, Any] = {}
    factory: str = ""
    model: HeldModel = HeldModel()
    gates: dict[str, str] = {}
    lower: tuple[RoleSpec, ...] = ()
    after: Fault | None = None


class WorkerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One worker process: the roles that share it, and its intra-op threads.

    version: a label that keeps workers apart which hold different models for one role. A worker
    that is silent for ``hung_after_s`` without computing is killed, and one that computes after
    ``spins_after_s``: no step of a model is silent for so long. A language model's chunks are cut
    to what it computes in some milliseconds, and a long step beats between its layers.
    """

    name: str
    roles: tuple[RoleSpec, ...]
    n_threads: int = 1
    hung_after_s: float = 2.0
    spins_after_s: float = 15.0
    version: str = ""


# --- gateway -> worker --------------------------------------------------------------------------


class OpenRecognizer(msgspec.Struct, frozen=True, tag="open_recognizer"):
    stream_id: str
    options: RecognizerOptions


class FeedAudio(msgspec.Struct, frozen=True, tag="feed_audio"):
    """PCM16 mono 16 kHz little-endian."""

    stream_id: str
    samples: bytes


class Flush(msgspec.Struct, frozen=True, tag="flush"):
    stream_id: str


class Finalize(msgspec.Struct, frozen=True, tag="finalize"):
    stream_id: str


class SetOptions(msgspec.Struct, frozen=True, tag="set_options"):
    stream_id: str
    options: RecognizerOptions


class OpenBranch(msgspec.Struct, frozen=True, tag="open_branch"):
    stream_id: str
    history: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    tenant: str = ""
    adapter: str = ""  # of the engine's own, by its folder
    reads_end: bool = True  # False: another model does, and staged words are only computed


class ReadAhead(msgspec.Struct, frozen=True, tag="read_ahead"):
    """The operator's own instructions and tools: every caller's prompt begins with them.

    They are computed once for all tenants, and kept on disk. Nothing is told of it.
    """

    stream_id: str
    history: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()


class Stage(msgspec.Struct, frozen=True, tag="stage"):
    stream_id: str
    stage_id: int
    user_text: str


class BeginPreemptive(msgspec.Struct, frozen=True, tag="begin_preemptive"):
    stream_id: str
    attempt: int
    tail: tuple[ChatMessage, ...]
    params: GenerateParams


class Draft(BeginPreemptive, frozen=True, tag="draft"):
    """The same for another model to verify: its tokens are told at its end, and nothing before."""


class Verify(msgspec.Struct, frozen=True, tag="verify"):
    """Tokens that another model has drafted of this attempt."""

    stream_id: str
    attempt: int
    tokens: tuple[int, ...]


class StopPreemptive(msgspec.Struct, frozen=True, tag="stop_preemptive"):
    stream_id: str


class Commit(msgspec.Struct, frozen=True, tag="commit"):
    stream_id: str
    tail: tuple[ChatMessage, ...]
    params: GenerateParams


Asked = BeginPreemptive | Commit  # a reply


class OpenVoice(msgspec.Struct, frozen=True, tag="open_voice"):
    stream_id: str
    options: VoiceOptions


class FeedText(msgspec.Struct, frozen=True, tag="feed_text"):
    stream_id: str
    text: str


class FinishText(msgspec.Struct, frozen=True, tag="finish_text"):
    stream_id: str


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """Begin no more of what this stream has asked for, or go on: much of it is not taken yet.

    Of streams alone that no call waits for.
    """

    stream_id: str
    is_paused: bool


class Close(msgspec.Struct, frozen=True, tag="close"):
    """End a stream of any role; nothing more comes from it."""

    stream_id: str


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """The parent's order to have the gateways go elsewhere with what is new; nothing open is
    ended.
    """


class CallResumed(msgspec.Struct, frozen=True, tag="call_resumed"):
    """A call goes on at one gateway: told to a worker, and by it to each other gateway that it has.

    call_id: as it was before. by: the session that goes on with it.
    """

    call_id: str
    by: str


class Settle(msgspec.Struct, frozen=True, tag="settle"):
    """Say `Settled` once all that was asked for is computed. Only a replay asks: its clock goes on
    while nothing is computed."""

    number: int


ToRecognizer = OpenRecognizer | FeedAudio | Flush | Finalize | SetOptions
ToEngine = (
    OpenBranch | ReadAhead | Stage | BeginPreemptive | Draft | Verify | StopPreemptive | Commit
)
ToVoice = OpenVoice | FeedText | FinishText | Pause
ToRole = ToRecognizer | ToEngine | ToVoice
ToWorker = ToRole | Close | Drain | CallResumed | Settle

OPENING_ROLE: dict[type, RoleName] = {
    OpenRecognizer: "recognizer",
    OpenBranch: "engine",
    OpenVoice: "voice",
}


# --- worker -> gateway --------------------------------------------------------------------------

StreamOutput = RecognizerEvent | LanguageEvent | VoiceEvent


class StreamEvent(msgspec.Struct, frozen=True, tag="stream_event"):
    """One event of one stream; ``sent_at`` is CLOCK_MONOTONIC seconds, shared by processes."""

    stream_id: str
    event: StreamOutput
    sent_at: float = 0.0


class StreamFailed(msgspec.Struct, frozen=True, tag="stream_failed"):
    """The failure of one stream alone.

    retryable: a new stream may well succeed. is_request: the model cannot serve what was asked for,
    and is_too_long: for that alone.
    """

    stream_id: str
    message: str
    retryable: bool = True
    is_request: bool = False
    is_too_long: bool = False


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """A role is being imported, read and warmed."""

    role: RoleName


class RoleReady(msgspec.Struct, frozen=True):
    """A loaded role: how long it took and what the gateway needs to know of it.

    ``rate_hz`` is the voice's sample rate (0 elsewhere); ``detail`` is for a person to read;
    ``tokenizer`` the language model's, as JSON, packed by zlib (empty elsewhere). ``tokens``: the
    digest of how it makes tokens of a conversation: tokenizer and template. ``served``: what of it
    is served, for a metric's labels. ``after``: the failure after which it serves, in place of what
    was planned.
    """

    role: RoleName
    load_ms: float
    rate_hz: int = 0
    detail: str = ""
    tokenizer: bytes = b""
    tokens: str = ""
    model: HeldModel = HeldModel()
    served: dict[str, str] = {}
    after: Fault | None = None


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Every role is loaded and warm; streams may be opened. version: the worker's label."""

    roles: tuple[RoleReady, ...]
    version: str = ""


def served_of(ready: Ready | None) -> dict[str, str]:
    """Return what a worker's language model is served with, and its name where that is known."""
    for role in ready.roles if ready is not None else ():
        if role.served:
            return {"model": role.model.name, **role.served}
    return {}


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    """A role cannot be loaded; the process ends. Restarting does not help."""

    role: RoleName
    message: str


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat", omit_defaults=True):
    """The step loop turns: steps taken so far, and time spent in them.

    ``totals``: what the models of the worker count, by name; none: as they were told last, for they
    are most of what an idle line carries. ``n_streams``: open, of all gateways.
    ``n_calls``: calls of theirs that have a stream, or had one lately.
    """

    n_steps: int
    busy_ms: float
    has_work: bool
    sent_at: float = 0.0
    totals: dict[str, float] = {}
    n_streams: int = 0
    n_calls: int = 0


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """The news that nothing is left to be computed of what was asked for before `Settle` of this
    number.
    """

    number: int


class Draining(msgspec.Struct, frozen=True, tag="draining"):
    """The news that this worker is about to end: open what is new at another."""


FromWorker = (
    StreamEvent
    | StreamFailed
    | Loading
    | Ready
    | LoadFailed
    | Fault
    | Heartbeat
    | Draining
    | CallResumed
    | Settled
)


# --- bytes --------------------------------------------------------------------------------------


class FrameError(Exception):
    """Something that is not in this protocol, or too large for it."""


_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def encode(message: ToWorker | FromWorker) -> bytes:
    """One message with its length in front. Raises: FrameError where the reader would refuse it."""
    try:
        body = _encoder.encode(message)
    except RecursionError:
        raise FrameError("expected a message nested less deeply, found it too deep") from None
    if len(body) > MAX_MESSAGE_BYTES:
        raise FrameError(
            f"expected a message of at most {MAX_MESSAGE_BYTES} bytes, found {len(body)}"
        )
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_to_worker(body: bytes) -> ToWorker:
    """Raises: FrameError."""
    try:
        return _to_worker.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise FrameError(f"expected a gateway message, found {error}") from error


def decode_from_worker(body: bytes) -> FromWorker:
    """Raises: FrameError."""
    try:
        return _from_worker.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise FrameError(f"expected a worker message, found {error}") from error


class FrameReader:
    """Cuts a byte stream into message bodies, however it is split on the way."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies completed by ``data``. Raises: FrameError on an impossible length."""
        self._buffer += data
        bodies: list[bytes] = []
        start, end = 0, len(self._buffer)
        while end - start >= LENGTH_BYTES:
            n_bytes = int.from_bytes(self._buffer[start : start + LENGTH_BYTES], "big")
            if n_bytes > MAX_MESSAGE_BYTES:
                raise FrameError(
                    f"expected a message of at most {MAX_MESSAGE_BYTES} bytes, found {n_bytes}"
                )
            body_start = start + LENGTH_BYTES
            if end - body_start < n_bytes:
                break
            start = body_start + n_bytes
            bodies.append(bytes(self._buffer[body_start:start]))
        if start:
            del self._buffer[:start]
        return bodies
