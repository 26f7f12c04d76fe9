"""The raw record of one call, as the client saw it; all figures come from it.

``CallRecord.receive`` takes every server event with its arrival time and keeps what matters:
replies with their audio, the recognizer's words, when the server noticed speech. It plays the
agent's audio on a modelled loudspeaker and flushes that when the server reports speech, as stock
clients do. It measures nothing; that is ``call_result.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clients.call.script import Utterance
from clients.connection import RATE_HZ, Received
from clients.playout import Interrupted, Playout
from clients.recording import Samples
from clients.uplink import FRAME_MS


@dataclass(frozen=True, slots=True)
class Arrived:
    """A piece of agent audio: int16 at 24 kHz, and when it came."""

    at: float
    samples: Samples


@dataclass(slots=True)
class Reply:
    """One response of the server, from created to done."""

    response_id: str
    created_at: float
    item_id: str = ""
    text: str = ""
    status: str = ""
    done_at: float | None = None
    audio: list[Arrived] = field(default_factory=list)
    timeline: Mapping[str, Any] | None = None

    @property
    def is_soft(self) -> bool:
        """Whether the server took back all of it, by its own account."""
        return (self.timeline or {}).get("cut") == "soft"


@dataclass(frozen=True, slots=True)
class Spoken:
    """The caller said this, beginning at ``position`` of the line."""

    utterance: Utterance
    position: int


@dataclass(frozen=True, slots=True)
class Flush:
    """The client flushed at ``at`` because the server reported speech."""

    at: float
    interrupted: Interrupted


@dataclass(slots=True)
class CallRecord:
    """One call. ``playout`` is what the caller heard; times are monotonic seconds."""

    playout: Playout = field(default_factory=lambda: Playout(RATE_HZ))
    spoken: list[Spoken] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    flushes: list[Flush] = field(default_factory=list)
    speech_started_at: list[float] = field(default_factory=list)
    transcripts: list[tuple[float, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    sent_at: list[float] = field(default_factory=list)

    def receive(self, received: Received) -> Interrupted | None:
        """Take one server event; returns what a flush cut off, for the client to truncate."""
        event, at = received.event, received.at
        match received.type:
            case "response.created":
                self.replies.append(Reply(event["response"]["id"], at))
            case "response.output_audio.delta":
                self._hear(received)
            case "response.output_audio_transcript.delta" | "response.output_text.delta":
                reply = self.reply(event["response_id"])
                if reply is not None:
                    reply.text += event["delta"]
            case "response.done":
                reply = self.reply(event["response"]["id"])
                if reply is not None:
                    reply.done_at = at
                    reply.status = event["response"].get("status", "")
            case "input_audio_buffer.speech_started":
                self.speech_started_at.append(at)
                interrupted = self.playout.flush(at)
                if interrupted is not None:
                    self.flushes.append(Flush(at, interrupted))
                return interrupted
            case "conversation.item.input_audio_transcription.completed":
                self.transcripts.append((at, event.get("transcript", "")))
            case "voiceloop.timeline":
                timeline = event["timeline"]
                # A turn goes by its first response; behind tool calls it is said in another.
                for response_id in timeline.get("response_ids", [timeline["turn_id"]]):
                    if (reply := self.reply(response_id)) is not None:
                        reply.timeline = timeline
            case "voiceloop.resumed":
                for reply in self.replies:  # what was under way is said anew, in another response
                    if reply.done_at is None:
                        reply.done_at, reply.status = at, "lost"
            case "error":
                self.errors.append(event["error"].get("message", ""))
        return None

    def _hear(self, received: Received) -> None:
        reply = self.reply(received.event["response_id"])
        if reply is None:
            return
        reply.item_id = received.event["item_id"]
        reply.audio.append(Arrived(received.at, received.samples))
        self.playout.push(reply.item_id, reply.audio[-1].samples, received.at)

    def reply(self, response_id: str) -> Reply | None:
        """The reply of that id; the newest first, for it is nearly always meant."""
        for reply in reversed(self.replies):
            if reply.response_id == response_id:
                return reply
        return None

    @property
    def starts_at(self) -> float:
        """Return when the line's first sample was recorded: one frame before that frame was
        sent.
        """
        return self.sent_at[0] - FRAME_MS / 1000.0

    def channels(self, line: Samples) -> tuple[Samples, Samples]:
        """Caller and agent in true timing: the ``line`` as sent, and what the caller heard."""
        n_heard = round((self.playout.idle_at - self.starts_at) * RATE_HZ)
        n_samples = max(len(line), n_heard)
        agent = self.playout.render(self.starts_at, n_samples)
        return np.pad(line, (0, n_samples - len(line))), agent

    @property
    def answering(self) -> bool:
        """True while a response is open."""
        return any(reply.done_at is None for reply in self.replies)

    def replies_between(self, begin: float, end: float) -> list[Reply]:
        """Replies created in that time: those of the turn that the caller began at ``begin``."""
        return [reply for reply in self.replies if begin <= reply.created_at < end]
