"""The sans-I/O session state machine of the OpenAI Realtime protocol (GA names).

Owns the session's settings, ids, the items on the wire and the order of events. Frames in, commands
out; events wait in a queue until the writer takes them. Pure: no asyncio, no sockets, no clock.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from voiceloop.backends import Tool, ToolCall
from voiceloop.capabilities import Capabilities
from voiceloop.errors import FrameTooLarge, InvalidRequest, NotActive, VoiceLoopError, expected
from voiceloop.memory.ledger import Ledger
from voiceloop.operation import Limits
from voiceloop.realtime import client_events as asked
from voiceloop.realtime import commands, events
from voiceloop.realtime.beta import from_beta
from voiceloop.realtime.commands import Command
from voiceloop.realtime.conversation import Conversation, SpokenReplies
from voiceloop.realtime.input_buffer import InputBuffer, decode_audio
from voiceloop.realtime.items import (
    FunctionCallOutput,
    Item,
    McpCall,
    Message,
    Part,
    audio_of,
    parse_item,
    spoken_item,
)
from voiceloop.realtime.locks import NO_LOCKS, Locks
from voiceloop.realtime.outbox import (
    MAX_ECHO_BYTES,
    MAX_LINE_ECHO_BYTES,
    Outbox,
    check_echo,
)
from voiceloop.realtime.outbox import Outgoing as Outgoing  # what take_outgoing gives the writer
from voiceloop.realtime.response import ResponseHandle
from voiceloop.realtime.response_request import ResponseRequest, parse_request
from voiceloop.realtime.session_update import merge, within_capabilities
from voiceloop.realtime.settings import Json, SessionSettings
from voiceloop.realtime.shown import Shown
from voiceloop.realtime.sound_line import (
    LINE_FORMAT,
    Digit,
    OutputBuffer,
    Sound,
    SoundLine,
    Unlocked,
)
from voiceloop.realtime.window import TokenCount, Window, fitting_tools, most_characters

MAX_ITEMS = 4096
MAX_EVENT_ID_CHARS = 512
MAX_OUT_OF_BAND = 4  # responses at a time
SHARE_OF_REFUSED = 0.75  # of a prompt that was too long: what the next ones may have


class Protocol:
    """The state of one session's protocol.

    ``settings``: wanted at the start. ``capabilities``: of the models; their ``context_tokens`` is
    what a prompt may take, 0 where no bound is known. ``count_tokens``: of a text, by the model's
    tokenizer; None: it is not here. ``new_id(prefix)`` makes ids (tests pass a counter).
    ``expires_at`` is epoch seconds. ``is_beta``: this client speaks the beta's names. ``on_put``:
    called when a frame is queued. ``on_change``: called when an item is new, changed, or gone.
    ``keeps_facts``: the model is told the facts of what has left its window. ``locks``: what the
    client may not change. ``line``: it carries the sound; None: events do.

    Raises:
        InvalidRequest: the models cannot serve these settings.
    """

    def __init__(
        self,
        settings: SessionSettings,
        *,
        capabilities: Capabilities | None = None,
        count_tokens: Callable[[str], int] | None = None,
        new_id: Callable[[str], str] | None = None,
        expires_at: int = 0,
        is_beta: bool = False,
        on_put: Callable[[], None] = lambda: None,
        keeps_facts: bool = False,
        on_change: Callable[[], None] = lambda: None,
        locks: Locks = NO_LOCKS,
        line: SoundLine | None = None,
    ) -> None:
        self.line = line
        self._capabilities = capabilities or Capabilities()
        self._count_tokens = TokenCount(count_tokens)
        self._locks = locks
        self.settings = self._of_line(within_capabilities(self._capabilities, settings))
        self.conversation = Conversation(on_change)
        self.spoken = SpokenReplies(self.conversation)
        ledger = Ledger() if keeps_facts else None
        self.shown = Shown(self.conversation, self.spoken, self._window_of(self.settings), ledger)
        self.new_id = new_id or (lambda prefix: f"{prefix}_{secrets.token_hex(12)}")
        self.session_id = self.new_id("sess")
        self.conversation_id = self.new_id("conv")
        self._expires_at = expires_at
        self.is_beta = is_beta
        self.outbox = Outbox(
            self.session_id[-12:], is_beta=is_beta, on_put=on_put, carries_sound=line is not None
        )
        self.output = OutputBuffer(
            line, self.send, lambda response_id: self._open_response(response_id) is not None
        )
        self._active: ResponseHandle | None = None
        self._out_of_band: dict[str, ResponseHandle] = {}
        self._input = InputBuffer(self.new_id, Limits.uncommitted_audio_minutes * 60_000.0)

    # --- the client's side ---

    def connect(self) -> None:
        """Queue ``session.created``."""
        self.send(events.SessionCreated(session=self._session_object(self.settings)))

    def receive(self, frame: str | bytes | Sound | Digit | Unlocked) -> list[Command]:
        """Take one frame. Never raises: a bad frame becomes an ``error`` event in the queue."""
        if isinstance(frame, Sound):
            return self._hear(frame.samples)
        if isinstance(frame, Digit):
            return [commands.PressKey(frame.key)]
        if isinstance(frame, Unlocked):
            locks, self._locks = self._locks, NO_LOCKS
            try:
                return self.receive(frame.event)
            finally:
                self._locks = locks
        event_id: str | None = None
        try:
            if len(frame) > (most := asked.FRAME_BYTES):
                raise FrameTooLarge(f"expected a frame of at most {most} bytes, found {len(frame)}")
            raw = asked.parse_frame(frame)
            given = raw.get("event_id")
            if isinstance(given, str) and len(given) <= MAX_EVENT_ID_CHARS:
                event_id = given
            return self._handle(asked.parse_event(from_beta(raw) if self.is_beta else raw))
        except NotActive as error:
            self.error(error, event_id)
            return [commands.CancelResponse(error.response_id)]
        except InvalidRequest as error:
            self.error(error, event_id)
            return []

    def take_outgoing(self) -> list[Outgoing]:
        """All frames queued since the last call, in order."""
        return self.outbox.take()

    def _handle(self, event: asked.ClientEvent) -> list[Command]:
        match event:
            case asked.AudioAppend(audio=audio):
                return self._append_audio(audio)
            case asked.AudioCommit():
                self._input.check_commit()
                return [commands.CommitAudio(self.commit_input())]
            case asked.AudioClear():
                self.drop_input()
                self.send(events.Cleared())
                return [commands.ClearAudio()]
            case asked.SessionUpdate(session=patch):
                return self._update(patch)
            case asked.ItemCreate(item=raw, previous_item_id=previous):
                return self._create_item(raw, previous)
            case asked.ItemRetrieve(item_id=item_id):
                item = self._known(item_id, "item_retrieve_invalid_item_id")
                self.send(events.ItemRetrieved(item=item))
            case asked.ItemDelete(item_id=item_id):
                item = self._known(item_id, "item_delete_invalid_item_id")
                self._locks.check_item(item, "item", self.conversation)
                self.delete_item(item_id)
                return [commands.ItemDeleted(item_id)]
            case asked.ItemTruncate():
                return self._truncate(event)
            case asked.ResponseCreate(response=raw_request):
                return self._create_response(raw_request)
            case asked.ResponseCancel(response_id=response_id):
                return self._cancel(response_id)
            case asked.Resume(ticket=ticket):
                return [commands.ResumeCall(ticket)]
            case asked.Confirm(call_id=call_id, approve=is_allowed):
                return [commands.AnswerConfirmation(call_id, is_allowed)]
            case asked.OutputClear():
                return self._clear_output()
        return []

    def _clear_output(self) -> list[Command]:
        """The client wants silence at once. On a WebSocket it holds the sound itself."""
        response_id = self.output.clear()
        if response_id is None:
            return []
        if (handle := self._open_response(response_id)) is not None:
            handle.close("cancelled", "client_cancelled")
        return [commands.CancelResponse(response_id)]

    def _hear(self, samples: bytes) -> list[Command]:
        """Sound of a line. Nobody can refuse it: where too much waits, it is forgotten."""
        is_bounded = self.settings.turn_detection is None
        try:
            self._input.count(LINE_FORMAT.duration_ms(len(samples)), is_bounded=is_bounded)
        except InvalidRequest as error:
            self.error(error)
            return self._handle(asked.AudioClear())
        return [commands.AppendAudio(samples)] if samples else []

    def _of_line(self, settings: SessionSettings) -> SessionSettings:
        """The same, with the formats of a line that carries sound: the client cannot choose."""
        if self.line is None:
            return settings
        return replace(settings, input_format=LINE_FORMAT, output_format=LINE_FORMAT)

    @property
    def _most_echo(self) -> int:
        return MAX_ECHO_BYTES if self.line is None else MAX_LINE_ECHO_BYTES

    def _append_audio(self, audio: str) -> list[Command]:
        if self.line is not None:
            raise InvalidRequest(
                "This call carries its sound on the line. Send none in events.",
                param="type",
            )
        is_bounded = self.settings.turn_detection is None
        data = self._input.append(audio, self.settings.input_format, is_bounded=is_bounded)
        return [commands.AppendAudio(data)] if data else []

    def _update(self, patch: Json) -> list[Command]:
        wanted = within_capabilities(self._capabilities, merge(self.settings, patch))
        return [self.adopt(self._locks.checked(self.settings, wanted))]

    def adopt(self, asked_for: SessionSettings) -> commands.SettingsChanged:
        """Take these settings up, as far as the models serve them. Raises: InvalidRequest."""
        previous = self.settings
        current = self._of_line(within_capabilities(self._capabilities, asked_for))
        check_echo(session := self._session_object(current), "session", self._most_echo)
        window = self.shown.window
        if (current.truncation, current.tools) != (previous.truncation, previous.tools):
            window = self._window_of(current)
        if window is not None:
            window.check(current.instructions)
        self.settings = current
        if previous.turn_detection is not None and current.turn_detection is None:
            self.drop_input()  # the detector's, not the client's to commit
        self.shown.window = window
        self.send(events.SessionUpdated(session=session))
        return commands.SettingsChanged(previous, current)

    def hand_over(
        self, asked_for: SessionSettings, locks: Locks, told: str | None
    ) -> commands.SettingsChanged:
        """Another agent goes on, with these settings.

        told: what its model is told of the call so far, in place of it; None: it is shown all.
        Raises: InvalidRequest: no model here serves them; nothing has changed.
        """
        changed = self.adopt(asked_for)
        self._locks = locks
        if told is not None:
            item_id = self.new_id("item")
            content = (Part(type="input_text", text=told),)
            self.add_item(Message(id=item_id, role="system", content=content))
            self.shown.begin_at(item_id)
        return changed

    def learn_window(self, told: int) -> None:
        """A prompt was too long for the model. told: tokens that it takes as is known now, 0: none.

        A window that was known stays: the count of the prompt may have been wrong as well.
        """
        if self.shown.window is None:
            refused = self.shown.count(self.settings.instructions)
            n_most = told or int(refused * SHARE_OF_REFUSED)
            self._capabilities = dataclasses.replace(self._capabilities, context_tokens=n_most)
            self.shown.window = self._window_of(self.settings)

    def offer_tools(self, tools: tuple[Tool, ...]) -> None:
        """The model may call these from now on; of MCP servers' as many as leave it room."""
        now, n_most = self.settings, self._capabilities.context_tokens
        fitting = fitting_tools(tools, now.instructions, n_most, self._count_tokens)
        if fitting != now.tools:
            self.settings = replace(now, tools=fitting)
            self.shown.window = self._window_of(self.settings)

    def _create_item(self, raw: Json, previous_item_id: str | None) -> list[Command]:
        item = parse_item(raw, self.new_id)
        self._locks.check_item(item, "item", self.conversation)
        check_echo(item, "item", self._most_echo)
        self._check_is_first_output(item)
        self._input.check_item_id(item.id)
        if len(self.conversation) >= MAX_ITEMS:
            raise InvalidRequest(
                f"expected at most {MAX_ITEMS} items in a conversation, found one more",
                code="conversation_full",
            )
        audio_format = self.settings.input_format
        audio = b"".join(decode_audio(text, audio_format, where) for where, text in audio_of(raw))
        audio_ms = audio_format.duration_ms(len(audio))
        self._input.check_item_audio(audio_ms)
        self.add_item(item, previous_item_id)
        if audio:
            self._input.hold_item_audio(item.id, audio_ms)
        return [commands.ItemCreated(item, audio)]

    def _check_is_first_output(self, item: Item) -> None:
        """Raises: InvalidRequest: another has answered the call; on a line several may try to."""
        if self.line is None or not isinstance(item, FunctionCallOutput):
            return
        if self.conversation.is_answered(item.call_id):
            raise InvalidRequest(
                f"expected the first output of a call, found another of {item.call_id[:80]!r}",
                param="item.call_id",
                code="call_answered_already",
            )

    def _truncate(self, event: asked.ItemTruncate) -> list[Command]:
        item = self._known(event.item_id, "item_truncate_invalid_item_id")
        if not isinstance(item, Message) or item.role != "assistant":
            raise expected("item_id", "the item of a spoken reply", event.item_id)
        if event.content_index != 0:
            raise expected("content_index", "0", event.content_index)
        # Clients count in their own clock and overshoot: refusing that is a known field bug.
        end_ms = max(0, min(event.audio_end_ms, int(self.spoken.audio_ms(event.item_id))))
        self.spoken.cut(event.item_id, end_ms)
        self.send(events.ItemTruncated(item_id=event.item_id, content_index=0, audio_end_ms=end_ms))
        return [commands.TruncateItem(event.item_id, end_ms)]

    def _create_response(self, raw: Json | None) -> list[Command]:
        if self.settings.type == "transcription":
            raise InvalidRequest("A transcription session has no responses.")
        request = parse_request(
            raw,
            new_id=self.new_id,
            find=self.conversation.get,
            n_most_characters=most_characters(self._capabilities.context_tokens),
        )
        self._locks.check_response(request, self.settings, self.conversation)
        if request.voice is not None:
            self._capabilities.check_voice(request.voice, "response.audio.output.voice")
        if self.line is not None:
            request = replace(request, output_format=None)
        return [commands.CreateResponse(self.open_response(request))]

    def _cancel(self, response_id: str | None) -> list[Command]:
        handle = self._active if response_id is None else self._open_response(response_id)
        if handle is None:
            raise NotActive(response_id)
        handle.close("cancelled", "client_cancelled")
        return [commands.CancelResponse(handle.id)]

    # --- the listener's side ---

    def answered_by(self, by: str, at_ms: float) -> None:
        """Take in who has answered a call of ours."""
        self.send(events.AnsweredByTold(by=by, at_ms=int(at_ms)))

    def cancel_active(self) -> list[Command]:
        """Close the response of the conversation that is open, as its client would."""
        return self._cancel(None) if self._active is not None else []

    def key_received(self, key: str, received_at: int) -> None:
        """The caller has pressed a key, then (epoch seconds)."""
        self.send(events.KeyReceived(event=key, received_at=received_at))

    def speech_started(self, audio_start_ms: float) -> str:
        """The caller speaks (or: is found to barge in). Returns the id of the user's item.

        Queues ``speech_started`` first; then, where the settings allow interruption, closes the
        active default response as cancelled/turn_detected. The caller of this cancels the turn.
        """
        item_id = self._input.item_id()
        if not self._input.is_speaking:
            self._input.begin_speech(audio_start_ms)
            self.send(events.SpeechStarted(audio_start_ms=int(audio_start_ms), item_id=item_id))
        detection = self.settings.turn_detection
        if self._active is not None and detection is not None and detection.interrupt_response:
            self._active.close("cancelled", "turn_detected")
        return item_id

    def speech_stopped(self, audio_end_ms: float) -> None:
        """The caller's speech ended there; ``commit_input`` or more speech follows."""
        if self._input.is_speaking:
            self._input.end_speech(audio_end_ms)
            end_ms, item_id = int(audio_end_ms), self._input.item_id()
            self.send(events.SpeechStopped(audio_end_ms=end_ms, item_id=item_id))

    def commit_input(self, *, stays_open: bool = False) -> str:
        """Queue ``committed`` and, unless it stands, the user's item (transcript null). Returns its
        id: that which ``speech_started`` gave, or a new one. stays_open: until ``keep_input``.
        """
        item_id = self._input.commit(stays_open=stays_open, is_answered=self._active is not None)
        known, last_id = self.conversation.get(item_id), self.conversation.last_id
        previous_id = last_id if known is None else self.conversation.previous_id(item_id)
        self.send(events.Committed(previous_item_id=previous_id, item_id=item_id))
        if known is None:
            self.add_item(spoken_item(item_id))
        return item_id

    def keep_input(self, item_id: str, *, stays_open: bool) -> None:
        """The open item, which ``commit_input`` has announced, ends here; or may go on still."""
        self._input.keep(item_id, stays_open=stays_open)

    def drop_input(self) -> None:
        """Forget the open user item; one that stands already keeps the words that were certain."""
        if self._input.is_out and self._active is None:
            self.transcription_completed(self._input.item_id(), self._input.stable, 0.0)
        self._input.reset()

    def idle_timeout(self, audio_start_ms: float, audio_end_ms: float) -> str:
        """Queue, after nobody spoke for ``idle_timeout_ms``, ``timeout_triggered`` and an empty
        turn of the caller, as ``commit_input`` does, to be answered. Returns the item's id.
        """
        start_ms, end_ms, item_id = int(audio_start_ms), int(audio_end_ms), self._input.item_id()
        self.send(
            events.TimeoutTriggered(audio_start_ms=start_ms, audio_end_ms=end_ms, item_id=item_id)
        )
        return self.commit_input()

    def transcription_delta(self, item_id: str, text: str) -> None:
        """Words that will not change any more (sent when the session asked for transcription)."""
        if self.settings.transcribes and text:
            self.send(events.TranscriptionDelta(item_id=item_id, delta=text))

    def transcription_completed(self, item_id: str, text: str, seconds: float) -> None:
        """The final words: into the conversation always, onto the wire when asked for."""
        self._input.release_item_audio(item_id)
        self.conversation.set_transcript(item_id, text)
        if self.settings.transcribes:
            usage = events.DurationUsage(seconds=round(seconds, 3))
            self.send(events.TranscriptionCompleted(item_id=item_id, transcript=text, usage=usage))

    def transcription_failed(self, item_id: str, message: str) -> None:
        """The recognizer failed on this item; it stays without words."""
        self._input.release_item_audio(item_id)
        if self.settings.transcribes:
            body = events.ErrorBody(
                type="server_error", code="transcription_failed", message=message
            )
            self.send(events.TranscriptionFailed(item_id=item_id, error=body))

    def partial(self, item_id: str, stable: str, unstable: str) -> None:
        """The hypothesis of the open turn: its stable words grow the transcript.

        Clients that switched on ``voiceloop.partial`` events see the rest too.
        """
        self.transcription_delta(item_id, self._input.grown(stable))
        if self.settings.partials:
            self.send(events.PartialHeard(item_id=item_id, stable=stable, unstable=unstable))

    # --- the turn's side ---

    @property
    def active_response(self) -> ResponseHandle | None:
        """The open response of the default conversation."""
        return self._active

    def open_response(self, request: ResponseRequest | None = None) -> ResponseHandle:
        """Queue ``response.created`` at once and hand out the handle.

        Raises:
            InvalidRequest: one is active (``conversation_already_has_active_response``) or too
                many run out of band.
        """
        request = request or ResponseRequest()
        if request.conversation == "none":
            if len(self._out_of_band) >= MAX_OUT_OF_BAND:
                raise InvalidRequest(
                    f"expected at most {MAX_OUT_OF_BAND} responses out of band, found one more",
                    code="too_many_responses",
                )
        elif self._active is not None:
            raise InvalidRequest(
                f"Conversation already has an active response in progress: {self._active.id}",
                code="conversation_already_has_active_response",
            )
        handle = ResponseHandle(self, request, self.settings, self._closed)
        if handle.is_out_of_band:
            self._out_of_band[handle.id] = handle
        else:
            self._active = handle
            handle.input_audio_ms = self._input.take_unanswered_ms()
        return handle

    def add_item(self, item: Item, previous_item_id: str | None = None) -> None:
        """Put a finished item into the conversation: added and done.

        Raises:
            InvalidRequest: as ``Conversation.insert``.
        """
        previous = self.conversation.insert(item, previous_item_id)
        self.send(events.ItemAdded(previous_item_id=previous, item=item))
        self.send(events.ItemDone(previous_item_id=previous, item=item))

    def add_output(self, call_id: str, output: str) -> bool:
        """Put what came of a call behind it, wherever it stands by now.

        Returns False where the client has deleted the call, or has said itself what came of it.
        """
        known = self.conversation.get(call_id)
        if isinstance(known, McpCall):  # the model was told that it is late; now it reads the rest
            self.conversation.replace(replace(known, output=output, error=None))
            return True
        if not self.conversation.is_open(call_id):
            return False
        item = FunctionCallOutput(id=self.new_id("item"), call_id=call_id, output=output)
        self.add_item(item, self.conversation.place_of_output(call_id))
        return True

    def note_cut(self, item_id: str, heard_ms: float) -> None:
        """The server has cut a spoken item to what was heard: on a line that carries sound the
        client cannot know how much that is, and is told.
        """
        if self.line is not None:
            end_ms = int(max(0.0, heard_ms))
            self.send(events.ItemTruncated(item_id=item_id, content_index=0, audio_end_ms=end_ms))

    def delete_item(self, item_id: str) -> None:
        """Take the item out of the conversation, with all that is kept of it; tell the client."""
        self.shown.forget(item_id)
        self.spoken.forget(item_id)
        self.conversation.delete(item_id)
        self._input.release_item_audio(item_id)
        self.send(events.ItemDeleted(item_id=item_id))

    def timeline(self, payload: dict[str, Any]) -> None:
        """Send a turn's timeline as ``voiceloop.timeline`` when the client asked for it."""
        if self.settings.timeline:
            self.send(events.Timeline(timeline=payload))

    def ask_to_confirm(self, call: ToolCall, question: str) -> bool:
        """Ask the client whether the call may be made, where it wants to be asked; whether so."""
        if self.settings.confirmations:
            self.send(
                events.ConfirmationRequested(
                    call_id=call.call_id,
                    name=call.name,
                    arguments=call.arguments,
                    question=question,
                )
            )
        return self.settings.confirmations

    def note_unknown_call(self, call_id: str) -> None:
        """The client has answered for a call that it was not asked of, or no longer is."""
        self.error(expected("call_id", "the id of a call that waits for an answer", call_id))

    def expiring(self, seconds_left: int) -> None:
        """The session's time is nearly over, for clients that asked for notices."""
        if self.settings.notices:
            self.send(events.SessionExpiring(seconds_left=seconds_left))

    def error(self, error: VoiceLoopError, event_id: str | None = None) -> None:
        """Queue an ``error`` event; ``event_id`` is the client event that caused it."""
        self.send(events.ErrorEvent(error=events.ErrorBody.of(error, event_id)))

    # --- inside ---

    def _window_of(self, settings: SessionSettings) -> Window | None:
        n_most = self._capabilities.context_tokens
        return Window.of(settings.truncation, n_most, settings.tools, self._count_tokens)

    def send(self, event: events.ServerEvent, delta_of: str | None = None) -> None:
        """Queue an event; ``delta_of`` names the response of a droppable delta."""
        self.outbox.put(event, delta_of)

    def _closed(self, handle: ResponseHandle) -> None:
        if handle.is_out_of_band:
            self._out_of_band.pop(handle.id, None)
        elif self._active is handle:
            self._active = None
        if handle.status != "completed":
            self.outbox.cut_short(handle.id)
        if handle.status == "cancelled" and self.output.is_playing(handle.id):
            self.output.clear()

    def _open_response(self, response_id: str) -> ResponseHandle | None:
        if self._active is not None and self._active.id == response_id:
            return self._active
        return self._out_of_band.get(response_id)

    def _known(self, item_id: str, code: str) -> Item:
        item = self.conversation.get(item_id)
        if item is None:
            raise InvalidRequest(
                f"expected the id of an item of the conversation, found {item_id[:80]!r}",
                param="item_id",
                code=code,
            )
        return item

    def _session_object(self, settings: SessionSettings) -> Json:
        wire = settings.to_wire(self.session_id, self._expires_at)
        return wire | {"temperature": settings.temperature} if self.is_beta else wire
