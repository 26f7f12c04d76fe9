"""Who may speak to whom: the proof of the shared key, each way."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.cluster import handshake
from voiceloop.cluster.handshake import Challenge, HandshakeError, Join, Refused, Welcome
from voiceloop.workers.messages import LENGTH_BYTES, FromWorker, ToWorker

KEY, OTHER = b"a key of the cluster", b"a key of another one"


def exchange(
    worker: bytes, gateway: bytes, channels: tuple[bytes, bytes] = (b"one", b"one")
) -> None:
    """One whole handshake. channels: what each end sees of the line, the worker's first."""
    nonce, own = handshake.new_nonce(), handshake.new_nonce()
    challenge = Challenge(handshake.PROTOCOL, nonce)
    joining = handshake.join(gateway, challenge, own, "gateway 1", channels[1])
    welcome = handshake.admit([worker], nonce, joining, channels[0])
    handshake.check_welcome(gateway, challenge, own, welcome, channels[1])


def test_both_ends_with_the_key_agree() -> None:
    exchange(KEY, KEY)


def test_a_gateway_with_another_key_is_refused() -> None:
    with pytest.raises(HandshakeError, match="the same workers' key"):
        exchange(KEY, OTHER)


@pytest.mark.parametrize("channels", [(b"one", b"other"), (b"one", b""), (b"", b"one")])
def test_who_relays_the_proofs_of_two_lines_is_refused(channels: tuple[bytes, bytes]) -> None:
    with pytest.raises(HandshakeError, match="key and certificate"):
        exchange(KEY, KEY, channels)


def test_a_guess_at_a_recorded_proof_costs_work() -> None:
    began_s = time.process_time()
    assert handshake.stretched(KEY) != handshake.stretched(OTHER)
    assert time.process_time() - began_s > 0.01  # of two; a hash takes a microsecond


def test_a_worker_that_lets_anybody_in_is_not_believed() -> None:
    challenge, own = Challenge(handshake.PROTOCOL, handshake.new_nonce()), handshake.new_nonce()
    joining = handshake.join(KEY, challenge, own, "gateway 1", b"")
    echo = Welcome(joining.proof)  # it has nothing else to say that holds the key
    with pytest.raises(HandshakeError, match="the same workers' key"):
        handshake.check_welcome(KEY, challenge, own, echo, b"")


def test_a_proof_that_was_recorded_opens_nothing_later() -> None:
    recorded = handshake.join(
        KEY, Challenge(handshake.PROTOCOL, handshake.new_nonce()), handshake.new_nonce(), "g", b""
    )
    with pytest.raises(HandshakeError):
        handshake.admit([KEY], handshake.new_nonce(), recorded, b"")


def without_words(schema: Any) -> Any:
    """A description is no part of a form."""
    if isinstance(schema, dict):
        return {k: without_words(v) for k, v in schema.items() if k != "description"}
    return [without_words(one) for one in schema] if isinstance(schema, list) else schema


def test_messages_of_another_form_have_another_version() -> None:
    forms = msgspec.json.schema_components((ToWorker, FromWorker))
    text = json.dumps(without_words(list(forms)), sort_keys=True)
    found = handshake.PROTOCOL, hashlib.sha256(text.encode()).hexdigest()[:12]
    # Where this fails a message has changed: its ends would hang up on each other without a reason.
    assert found == (7, "b74b5ab08296"), "expected another PROTOCOL, then its digest here"


def test_another_version_is_named() -> None:
    newer = Challenge(handshake.PROTOCOL + 1, handshake.new_nonce())
    with pytest.raises(HandshakeError, match="version 7 of the workers' protocol, found 8"):
        handshake.join(KEY, newer, handshake.new_nonce(), "g", b"")
    with pytest.raises(HandshakeError, match="expected a gateway"):
        handshake.admit([KEY], handshake.new_nonce(), Join(0, b"", b"", "g"), b"")


def test_a_refusal_tells_its_reason() -> None:
    body = handshake.encode(Refused("expected another"))[LENGTH_BYTES:]
    with pytest.raises(HandshakeError, match="expected another"):
        handshake.decode(body, Welcome)


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_word_or_a_typed_error(body: bytes) -> None:
    for kind in (Challenge, Join, Welcome):
        try:
            handshake.decode(body, kind)
        except HandshakeError:
            pass


@pytest.mark.parametrize("n_bytes", [0, handshake.MAX_BYTES + 1, 2**32 - 1])
def test_a_word_has_a_length(n_bytes: int) -> None:
    with pytest.raises(HandshakeError, match="at most"):
        handshake.length(n_bytes.to_bytes(LENGTH_BYTES, "big"))
