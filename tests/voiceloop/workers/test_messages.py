"""What travels between gateway and worker survives the trip, however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.backends import (
    ChatMessage,
    GenerateParams,
    Partial,
    Speech,
    SpokenWord,
    Tool,
    ToolCall,
)
from voiceloop.workers.messages import (
    MAX_MESSAGE_BYTES,
    Commit,
    FeedAudio,
    FrameError,
    FrameReader,
    Heartbeat,
    OpenBranch,
    Pause,
    Ready,
    RoleReady,
    StreamEvent,
    StreamFailed,
    decode_from_worker,
    decode_to_worker,
    encode,
)

CALL = ToolCall("call_1", "order", '{"n": 2}')
TO_WORKER = [
    FeedAudio("sess_1/turn_1/0", bytes(range(256))),
    OpenBranch(
        "sess_1/turn_1/1",
        (ChatMessage("system", "be brief"), ChatMessage("assistant", "", (CALL,))),
        (Tool("order", "orders", {"type": "object", "properties": {}}),),
    ),
    Pause("s", True),
    Commit("s", (ChatMessage("tool", "done", tool_call_id="call_1"),), GenerateParams(stop=("x",))),
]
FROM_WORKER = [
    StreamEvent("s", Partial(2, ("a", "b"), ("c",), True), 12.5),
    StreamEvent("s", Speech(b"\1\2", 24_000, (SpokenWord("a", 0.0, 1.0, 1),))),
    StreamEvent("s", CALL),
    StreamFailed("s", "why", False),
    Ready((RoleReady("voice", 1.0, 24_000, "espeak"),)),
    Heartbeat(1, 2.0, True, 4.0),
]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=60))
def test_messages_arrive_whole_however_the_socket_cuts_them(cuts: list[int]) -> None:
    data = b"".join(encode(message) for message in TO_WORKER)
    reader, bodies = FrameReader(), []
    for n_bytes in [*cuts, len(data)]:
        bodies += reader.feed(data[:n_bytes])
        data = data[n_bytes:]
    assert [decode_to_worker(body) for body in bodies] == TO_WORKER


def test_messages_of_the_worker_are_read_back_as_they_were() -> None:
    bodies = FrameReader().feed(b"".join(encode(message) for message in FROM_WORKER))
    assert [decode_from_worker(body) for body in bodies] == FROM_WORKER


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x81\xa4type\xa7unknown"])
def test_a_body_outside_the_protocol_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError, match="expected a gateway message"):
        decode_to_worker(body)
    with pytest.raises(FrameError, match="expected a worker message"):
        decode_from_worker(body)


def test_an_impossible_length_is_refused_before_it_is_waited_for() -> None:
    with pytest.raises(FrameError, match="at most"):
        FrameReader().feed((MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))
