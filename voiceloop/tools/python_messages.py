"""Messages between the gateway and the process of a Python tool: length, then JSON.

Both ends of the two pipes. JSON and not msgpack: results are text, and the function's own words end
in a log that a person reads.
"""

from __future__ import annotations

from typing import Any

import msgspec

from voiceloop.python_agent import HandOff

HEADER_BYTES = 4  # the length of what follows, big-endian
# Of one message, before `keep` and `MAX_RESULT_CHARS`; the same bound as an HTTP answer has.
MAX_MESSAGE_BYTES = 2**20


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Run the function. number: of this call, within one process. caller: whom it is for. method:
    of an agent's class, which one.
    """

    number: int
    arguments: dict[str, Any]
    caller: dict[str, Any] = {}
    method: str = ""


class Abandon(msgspec.Struct, frozen=True, tag="abandon"):
    """The order to stop a call that nobody waits for any more, if it can be stopped."""

    number: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The function is there. problem: why it is not. is_told: it takes the caller."""

    problem: str = ""
    is_told: bool = False


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """The call is over. problem: why it has no result. is_none: it returned None. is_answer: of a
    hook, it returned an `Answer`. hand_off: of a tool, it returned that.
    """

    number: int
    text: str = ""
    problem: str = ""
    is_none: bool = False
    is_answer: bool = False
    hand_off: HandOff | None = None


Request = Call | Abandon
Answer = Ready | Returned
_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def packed(message: Request | Answer) -> bytes:
    """One message with its length. Raises: ValueError, where it is over the bound."""
    body = msgspec.json.encode(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise ValueError(f"expected at most {MAX_MESSAGE_BYTES} bytes, found {len(body)}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def length_of(header: bytes) -> int:
    """How many bytes follow. Raises: ValueError, where that is over the bound."""
    n_bytes = int.from_bytes(header, "big")
    if n_bytes > MAX_MESSAGE_BYTES:
        raise ValueError(f"expected at most {MAX_MESSAGE_BYTES} bytes, found {n_bytes}")
    return n_bytes


def request_of(body: bytes) -> Request:
    """Raises: msgspec.DecodeError."""
    return _requests.decode(body)


def answer_of(body: bytes) -> Answer:
    """Raises: msgspec.DecodeError."""
    return _answers.decode(body)
