"""Whatever the client and the turns do, in whatever order: a response's life keeps its shape."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.wire import counted_ids
from voiceloop.backends import SpokenWord
from voiceloop.errors import InvalidRequest
from voiceloop.realtime.commands import CreateResponse
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.response import ResponseHandle
from voiceloop.realtime.response_request import ResponseRequest
from voiceloop.realtime.settings import SessionSettings

PICK = st.integers(min_value=0, max_value=7)


class Call(RuleBasedStateMachine):
    """A client, a listener and turns that know nothing of each other."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol = Protocol(SessionSettings(), new_id=counted_ids())
        self.handles: list[ResponseHandle] = []
        self.log: list[dict[str, Any]] = []

    def say(self, kind: str, **fields: Any) -> None:
        for command in self.protocol.receive(json.dumps({"type": kind, **fields})):
            if isinstance(command, CreateResponse):
                self.handles.append(command.response)

    def handle(self, pick: int) -> ResponseHandle | None:
        """Mostly an open response, now and then one that has ended."""
        found = [handle for handle in self.handles if not handle.closed]
        if pick == 7 or not found:
            found = self.handles
        return found[pick % len(found)] if found else None

    # --- the client ---

    @rule(audio=st.sampled_from(["", "AAAA", "AAA=", "A" * 9600]))
    def append(self, audio: str) -> None:
        self.say("input_audio_buffer.append", audio=audio)

    @rule(kind=st.sampled_from(["input_audio_buffer.commit", "input_audio_buffer.clear"]))
    def commit_or_clear(self, kind: str) -> None:
        self.say(kind)

    @rule(
        detection=st.sampled_from([None, {"type": "server_vad"}, {"interrupt_response": False}]),
        modality=st.sampled_from(["audio", "text"]),
    )
    def update(self, detection: Any, modality: str) -> None:
        audio = {"input": {"turn_detection": detection, "transcription": {"model": "x"}}}
        self.say("session.update", session={"audio": audio, "output_modalities": [modality]})

    @rule(out_of_band=st.booleans())
    def create(self, out_of_band: bool) -> None:
        self.say("response.create", response={"conversation": "none" if out_of_band else "auto"})

    @rule(pick=PICK, named=st.booleans())
    def cancel(self, pick: int, named: bool) -> None:
        handle = self.handle(pick)
        fields = {"response_id": handle.id} if handle is not None and named else {}
        self.say("response.cancel", **fields)

    @rule(pick=PICK, end_ms=st.integers(min_value=-100, max_value=5000))
    def truncate(self, pick: int, end_ms: int) -> None:
        items = self.protocol.conversation.items()
        item_id = items[pick % len(items)].id if items else "none"
        self.say(
            "conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=end_ms
        )

    @rule(pick=PICK)
    def delete(self, pick: int) -> None:
        items = self.protocol.conversation.items()
        if items:
            self.say("conversation.item.delete", item_id=items[pick % len(items)].id)

    # --- the listener ---

    @rule(at_ms=st.integers(min_value=0, max_value=10_000))
    def speech(self, at_ms: int) -> None:
        self.protocol.speech_started(at_ms)

    @rule(words=st.sampled_from(["", "hello", "two lattes"]))
    def turn_ends(self, words: str) -> None:
        self.protocol.speech_stopped(100.0)
        item_id = self.protocol.commit_input()
        self.protocol.transcription_completed(item_id, words, 1.0)

    # --- the turns ---

    @rule(text=st.sampled_from(["", "Hi ", "there."]))
    def open(self, text: str) -> None:
        try:
            self.handles.append(self.protocol.open_response(ResponseRequest()))
        except InvalidRequest:
            assert self.protocol.active_response is not None
        else:
            self.utter(self.handles[-1], text)

    @rule(pick=PICK, text=st.sampled_from(["", "Hi ", "there."]))
    def speak(self, pick: int, text: str) -> None:
        if (handle := self.handle(pick)) is not None:
            self.utter(handle, text)

    def utter(self, handle: ResponseHandle, text: str) -> None:
        if handle.speaks:
            handle.transcript_delta(text)
        else:
            handle.text_delta(text)
        handle.audio_delta(b"\0\0" * 480, 20.0)
        handle.add_words((SpokenWord(text, 0, 20, len(text)),))

    @rule(pick=PICK, call=st.integers(min_value=0, max_value=1), done=st.booleans())
    def use_tool(self, pick: int, call: int, done: bool) -> None:
        if (handle := self.handle(pick)) is not None:
            call_id = f"{handle.id}_{call}"
            handle.function_call(call_id, "hours")
            handle.arguments_delta(call_id, "{")
            if done:
                handle.arguments_done(call_id, "{}")

    @rule(pick=PICK, status=st.sampled_from(["completed", "cancelled", "failed", "incomplete"]))
    def close(self, pick: int, status: Any) -> None:
        if (handle := self.handle(pick)) is not None:
            handle.close(status)

    # --- what always holds ---

    @invariant()
    def the_wire_is_in_order(self) -> None:
        self.log += [json.loads(frame.data) for frame in self.protocol.take_outgoing()]
        check(self.log)

    @invariant()
    def at_most_one_response_of_the_conversation_is_open(self) -> None:
        n_open = [h for h in self.handles if not h.closed and not h.is_out_of_band]
        assert n_open == [h for h in [self.protocol.active_response] if h is not None]

    def teardown(self) -> None:
        for handle in self.handles:
            handle.close("completed")
        self.the_wire_is_in_order()
        kinds = Counter(event["type"] for event in self.log)
        assert kinds["response.created"] == kinds["response.done"]
        assert kinds["response.output_item.added"] == kinds["response.output_item.done"]
        assert kinds["response.content_part.added"] == kinds["response.content_part.done"]
        assert kinds["conversation.item.added"] == kinds["conversation.item.done"]


def check(log: list[dict[str, Any]]) -> None:
    """Read the whole log as a client: nothing before created or after done, parts nest in items."""
    open_responses: set[str] = set()
    ended: set[str] = set()
    open_items: set[str] = set()
    open_parts: set[str] = set()
    for event in log:
        kind = event["type"]
        if kind == "response.created":
            open_responses.add(event["response"]["id"])
        elif kind == "response.done":
            body = event["response"]
            open_responses.remove(body["id"])
            ended.add(body["id"])
            assert not {item["id"] for item in body["output"]} & open_items
            assert all(item["status"] != "in_progress" for item in body["output"])
        elif kind == "response.output_item.added":
            open_items.add(event["item"]["id"])
        elif kind == "response.output_item.done":
            open_items.remove(event["item"]["id"])
            assert event["item"]["id"] not in open_parts
        elif kind == "response.content_part.added":
            open_parts.add(event["item_id"])
        elif kind == "response.content_part.done":
            open_parts.remove(event["item_id"])
        elif kind.endswith(".delta") and kind.startswith("response.output_"):
            assert event["item_id"] in open_parts
        if "response_id" in event:
            assert event["response_id"] in open_responses and event["response_id"] not in ended


Call.TestCase.settings = settings(max_examples=60, stateful_step_count=40, derandomize=True)
TestCall = Call.TestCase
