"""What one server makes all its calls with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from audio.vad import Vad
from voiceloop.backends import OnResumed
from voiceloop.listening.segment import VoiceActivity
from voiceloop.reply.context import ReplyServices
from voiceloop.resume.ticket import Tickets
from voiceloop.telemetry.traces import Traces


@dataclass(slots=True, kw_only=True)
class CallServices(ReplyServices):
    """Of one server. tickets: None where no call can be resumed.

    new_vad: makes a voice detector, one for each call. on_resumed: told of a call that was
    resumed here. lacks_place: why a call that said nothing so far may not begin now;
    None where it may.
    """

    traces: Traces = field(default_factory=Traces)
    tickets: Tickets | None = None
    new_vad: Callable[[], VoiceActivity] = Vad
    on_resumed: OnResumed = lambda call_id, by: None
    lacks_place: Callable[[], str | None] = lambda: None
