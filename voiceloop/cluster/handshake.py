"""The messages of a gateway and a worker before any stream, and the proof in them.

Each end draws a nonce and proves with it that it holds the shared key, so that the key itself never
travels and no recording of one connection opens another. The proof covers the channel, which is the
worker's certificate: who relays between two ends shows another one, and is refused by both. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec

from voiceloop.errors import VoiceLoopError
from voiceloop.workers.messages import LENGTH_BYTES

# Changed with any message between a gateway and a worker; both ends must be of one version.
PROTOCOL = 7
NONCE_BYTES = 32
LEAST_KEY_BYTES = 16
# What one guess at a recorded proof costs: 16 MB and some 50 ms, once for each process of ours.
# Source: RFC 7914, for interactive use. The salt cannot be drawn, for nobody would know it yet.
SALT = b"voiceloop workers"
# Of one message here: nothing in it is longer than a name. A longer one is not a gateway's.
MAX_BYTES = 4096
MAX_NAME = 200


class HandshakeError(VoiceLoopError):
    """The other end is not one of ours, or of another version."""

    code = "worker_refused"


class Challenge(msgspec.Struct, frozen=True, tag="challenge", forbid_unknown_fields=True):
    """The worker's first word."""

    protocol: int
    nonce: bytes


class Join(msgspec.Struct, frozen=True, tag="join", forbid_unknown_fields=True):
    """The gateway's answer; gateway: what to call it in a log."""

    protocol: int
    nonce: bytes
    proof: bytes
    gateway: str


class Welcome(msgspec.Struct, frozen=True, tag="welcome", forbid_unknown_fields=True):
    """The worker takes it in; what follows is the traffic of any worker, from ``Ready`` on."""

    proof: bytes


class Refused(msgspec.Struct, frozen=True, tag="refused", forbid_unknown_fields=True):
    """The error of an end that does not accept, and hangs up."""

    message: str


Word = Challenge | Join | Welcome | Refused
WordT = TypeVar("WordT", bound=Word)
Side = Literal["gateway", "worker"]

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Word] = msgspec.msgpack.Decoder(Word)


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def stretched(text: bytes) -> bytes:
    """The key of proofs, from the one that a person has written. It takes some 50 ms."""
    return hashlib.scrypt(text, salt=SALT, n=2**14, r=8, p=1, dklen=32)


def proof(
    key: bytes, side: Side, worker_nonce: bytes, gateway_nonce: bytes, channel: bytes
) -> bytes:
    """Return what only a holder of the key can say; of each side another, so that none is an echo.

    channel: of this line, as `tls.channel_of` names it.
    """
    said = f"voiceloop {PROTOCOL} {side}".encode()
    for part in (worker_nonce, gateway_nonce, channel):
        said += len(part).to_bytes(2, "big") + part
    return hmac.digest(key, said, "sha256")


def join(key: bytes, challenge: Challenge, nonce: bytes, gateway: str, channel: bytes) -> Join:
    """The gateway's answer. Raises: HandshakeError where the worker is of another version."""
    _check_version(challenge.protocol, "worker")
    said = proof(key, "gateway", challenge.nonce, nonce, channel)
    return Join(PROTOCOL, nonce, said, gateway[:MAX_NAME])


def admit(keys: Sequence[bytes], nonce: bytes, joining: Join, channel: bytes) -> Welcome:
    """The worker's answer to a gateway, by whichever of its keys that has. Raises: HandshakeError.

    keys: at least one; all are tried, so that the time tells nothing of which it was.
    """
    _check_version(joining.protocol, "gateway")
    proofs = [proof(key, "gateway", nonce, joining.nonce, channel) for key in keys]
    shown = [hmac.compare_digest(joining.proof, one) for one in proofs]
    key = keys[shown.index(True)] if any(shown) else keys[0]
    _check_proof(joining.proof, proof(key, "gateway", nonce, joining.nonce, channel))
    return Welcome(proof(key, "worker", nonce, joining.nonce, channel))


def check_welcome(
    key: bytes, challenge: Challenge, nonce: bytes, welcome: Welcome, channel: bytes
) -> None:
    """Raises: HandshakeError where it is not our worker that answers at this address."""
    _check_proof(welcome.proof, proof(key, "worker", challenge.nonce, nonce, channel))


def _check_version(found: int, whose: Side) -> None:
    if found != PROTOCOL:
        raise HandshakeError(
            f"expected a {whose} that speaks version {PROTOCOL} of the workers' protocol, "
            f"found {found}"
        )


def _check_proof(found: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(found, expected):
        raise HandshakeError(
            "expected the same workers' key and certificate at both ends, found another"
        )


def encode(word: Word) -> bytes:
    """Encode it with its length in front, as all messages of workers."""
    body = _encoder.encode(word)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def length(head: bytes) -> int:
    """How many bytes follow the first ``LENGTH_BYTES``. Raises: HandshakeError."""
    n_bytes = int.from_bytes(head, "big")
    if not 0 < n_bytes <= MAX_BYTES:
        raise HandshakeError(f"expected a word of at most {MAX_BYTES} bytes, found {n_bytes}")
    return n_bytes


def decode(body: bytes, kind: type[WordT]) -> WordT:
    """Raises: HandshakeError on anything but this word, with the other end's reason if told."""
    try:
        word = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise HandshakeError(f"expected a word of the handshake, found {error}") from None
    if isinstance(word, kind):
        return word
    if isinstance(word, Refused):
        raise HandshakeError(word.message[:MAX_NAME])
    raise HandshakeError(f"expected {kind.__name__}, found {type(word).__name__}")
