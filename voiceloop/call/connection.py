"""One accepted client connection, as the session sees it.

Owns the boundary between the socket (``server.py``) and the session: the transport protocol, what
the client said in its URL and headers, and the exception that says it has gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from msgspec.structs import replace

from voiceloop.admission.allowance import UNBOUNDED, Allowance
from voiceloop.realtime.locks import Locks
from voiceloop.realtime.session_update import merge
from voiceloop.realtime.settings import SessionSettings
from voiceloop.realtime.sound_line import Digit, Sound, SoundLine, Unlocked
from voiceloop.telephony import WITHHELD, PhoneCall, PhoneLine
from voiceloop.tools.caller import Caller

HUNG_UP = 1000  # the client closed the connection, by whatever code of its own
LINE_BROKE = 1006  # it ended without a close frame of either side


class Disconnected(Exception):
    """The peer is gone or the connection was closed; nothing more can be read or sent.

    code: HUNG_UP, LINE_BROKE, or the one that the server itself has closed it with. how: for the
    log, and not a word of the client's.
    """

    def __init__(self, code: int = HUNG_UP, how: str = "the client hung up") -> None:
        super().__init__(how)
        self.code = code
        self.how = how


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's requests as it connected.

    ``model`` is any string, echoed in the session object. ``beta`` is set by the header
    ``OpenAI-Beta: realtime=v1``: beta event names on this connection only. ``timeline``,
    ``partials``, ``notices``, ``sources``, ``slots``, ``confirmations`` and ``resume`` switch our
    extra events on. ``is_returning``: it says that it comes back, with a ticket of its call;
    ``owes_resume``: for that alone it was let in. ``session`` is the update that the client secret
    carries which opened the door, ``asked`` what the client wants changed of it. ``greeting``:
    whether the agent shall speak first; None where the client did not say. ``tenant``: whose key it
    was; the conversations of different ones share nothing in any cache; ``allowance``: what it may
    use. ``max_session_s``: the longest that the client secret allows, where it is less than the
    server's own. ``lock``: what of the session it keeps from change. ``key``, ``secret``,
    ``claims``: as of `Caller`. ``agent``: the name of the one that is to answer, of several; "":
    the server's first. ``door``: what kind of line it came by; on all but a WebSocket sound flows
    before the client has said anything. ``phone``: of a telephone, who calls whom.
    """

    model: str = "voiceloop"
    agent: str = ""
    intent: Literal["realtime", "transcription"] = "realtime"
    beta: bool = False
    timeline: bool = False
    partials: bool = False
    notices: bool = False
    sources: bool = False
    slots: bool = False
    confirmations: bool = False
    resume: bool = False
    is_returning: bool = False
    owes_resume: bool = False
    session: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    greeting: bool | None = None
    tenant: str = ""
    allowance: Allowance = UNBOUNDED
    max_session_s: int | None = None
    lock: tuple[str, ...] = ()
    key: str = ""
    secret: str = ""
    claims: Mapping[str, str] = field(default_factory=dict)
    door: Literal["websocket", "webrtc", "phone"] = "websocket"
    phone: PhoneCall | None = None

    @property
    def is_configured(self) -> bool:
        """Whether more is set than every client names: the type and the model."""
        return bool((self.session.keys() | self.asked.keys()) - {"type", "model"})

    def settings_over(self, own: SessionSettings) -> SessionSettings:
        """The session's first settings, where the agent's are these. Raises: InvalidRequest."""
        settings = replace(
            own,
            type=self.intent,
            timeline=self.timeline,
            partials=self.partials,
            notices=self.notices,
            sources=self.sources,
            slots=self.slots,
            confirmations=self.confirmations,
            resume=self.resume,
        )
        settings = merge(settings, self.session)  # checked when the client secret was issued
        if not self.asked:
            return settings
        return self.locks(()).checked(settings, merge(settings, self.asked))

    def told(self) -> dict[str, object]:
        """Return what a recording keeps of it, by which a replay begins."""
        names = ("door", "model", "intent", "greeting", "session", "asked")
        return {name: getattr(self, name) for name in names}

    def caller(self, call_id: str) -> Caller:
        """As tools are told of the caller."""
        number = WITHHELD if self.phone is None else self.phone.caller
        return Caller(self.key, self.secret, number, self.claims, call_id)

    def locks(self, served: Iterable[str]) -> Locks:
        """Return what the client may not change. served: names of the tools that the server
        answers.
        """
        return Locks(self.lock, frozenset(served))

    def longest_s(self, server_s: float) -> float:
        """How long the session may last, where the server allows every client so much."""
        return server_s if self.max_session_s is None else min(server_s, self.max_session_s)


class Transport(Protocol):
    """An accepted line. ``receive`` and ``send`` are each used by one task at a time.

    ``line``: sends the agent's sound; None where that goes as events, as on a WebSocket. ``phone``:
    what the far end can do, where that is a telephone.
    """

    hello: Hello

    @property
    def line(self) -> SoundLine | None: ...
    @property
    def phone(self) -> PhoneLine | None: ...

    async def receive(self) -> str | bytes | Sound | Digit | Unlocked:
        """Wait for the next frame, or the next sound of a line. Raises Disconnected."""

    async def send(self, data: str) -> None:
        """Send one text frame; waits while the client does not read. Raises Disconnected."""

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection; idempotent, never raises Disconnected."""
