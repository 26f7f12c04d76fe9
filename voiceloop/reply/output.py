"""Where a reply goes: the response that it is said in, one after the other.

Owns what of a reply becomes an event. Nothing does while it has no response, or while the last one
was interrupted and nobody knows yet whether another will follow.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from audio.codec import encode
from voiceloop.backends import ToolCall
from voiceloop.errors import VoiceLoopError
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.response import CloseReason, ResponseHandle, ResponseStatus
from voiceloop.realtime.settings import AudioFormat
from voiceloop.reply.phase import Phase
from voiceloop.reply.playout import Chunk
from voiceloop.reply.speech import ReplySpeech
from voiceloop.reply.steps import ReplyRound
from voiceloop.telemetry.record import TurnRecord
from voiceloop.tools.pending import PendingCall


class ReplyOutput:
    """Of one reply."""

    def __init__(self, protocol: Protocol, phase: Phase) -> None:
        self._protocol = protocol
        self._phase = phase
        self._response: ResponseHandle | None = None

    @property
    def has_response(self) -> bool:
        return self._response is not None

    @property
    def response(self) -> ResponseHandle:
        """The response being answered (of this round); only after the release."""
        if self._response is None:
            raise RuntimeError("expected a released reply, found one that is held")
        return self._response

    def start_early(self, response: ResponseHandle) -> None:
        """Sound alone goes into this response, until `answer_in` says that it stays."""
        self._response = response

    def take_back(self) -> str | None:
        """Nothing of the early start stands; returns the item that it went into, if any."""
        self.close("cancelled", reason="turn_detected")
        item_id, self._response = self.response.item_id, None
        return item_id

    def answer_in(self, response: ResponseHandle, said: ReplyRound, record: TurnRecord) -> None:
        """Say the round in this response; whoever closes it asks the round what was used."""
        self._response = response
        record.note_response(response.id)
        response.usage_so_far = said.take_usage

    def go_on(self, said: ReplyRound, record: TurnRecord) -> None:
        """The response has said all it had to: go on in another, which was asked for like it."""
        self.close("completed")
        self.answer_in(self._protocol.open_response(self.response.request), said, record)

    def close(
        self,
        status: ResponseStatus,
        error: VoiceLoopError | None = None,
        *,
        reason: CloseReason | None = None,
    ) -> None:
        """End the response on the wire, if there is one; unless whoever cancelled has done so."""
        if self._response is not None:
            if status == "incomplete":
                reason = "max_output_tokens"
            self._response.close(status, reason, error)

    # --- said ---

    async def write(self, text: str) -> None:
        """Of a reply that is not spoken."""
        await self._phase.answering.wait()
        self.response.text_delta(text)

    async def announce(self, call: ToolCall, said: ReplyRound) -> ToolCall | None:
        """Tell the client of a call of the round. The call to be made, None where none is."""
        await self._phase.answering.wait()
        if call.call_id in said.named or (said.calls and not self.response.calls_at_once):
            return None  # named twice, or the client asked for one at a time
        said.named.add(call.call_id)
        return self.add_call(call, said)

    def add_call(self, call: ToolCall, said: ReplyRound) -> ToolCall:
        """The call as it goes on: one of an MCP server has the id of its item."""
        response = self.response
        tool = next((tool for tool in response.tools if tool.name == call.name), None)
        if tool is not None and tool.server_label:
            # Not the model's: a service may give every reply's first call the same.
            prefix = "mcpr" if tool.needs_approval else "mcp"
            call = replace(call, call_id=self._protocol.new_id(prefix))
        said.calls.append(call)
        called = (call.call_id, call.name, call.arguments)
        if tool is None or not tool.server_label:
            response.function_call(call.call_id, call.name)
            response.arguments_done(call.call_id, call.arguments)
        elif tool.needs_approval:
            response.mcp.ask(*called, tool.server_label)
        else:
            response.mcp.begin(*called, tool.server_label)
        return call

    def tell_results(self, calls: Iterable[PendingCall]) -> None:
        """What came of those of the session's MCP servers: each stands in the call's own item."""
        for pending in calls:
            text, is_error = pending.told
            self.response.mcp.finish(pending.call.call_id, text, is_error=is_error)

    def send(self, chunk: Chunk, speech: ReplySpeech, output_format: AudioFormat) -> None:
        """A piece of sound; its words' text goes just before it."""
        if chunk.words:
            self.response.transcript_delta(speech.text.take(chunk.words[-1].text_end))
            self.response.add_words(speech.in_item(chunk.words))
        data = encode(chunk.samples, output_format.encoding)
        self.response.audio_delta(data, chunk.duration_ms, is_fade=chunk.is_fade)

    def send_rest(self, speech: ReplySpeech) -> None:
        """The text that has no sound of its own: the last marks, spaces."""
        self.response.transcript_delta(speech.text.take_rest())
