"""What a server gives each of its calls, besides the models and the agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from audio.vad import Vad
from voiceloop.listening.segment import VoiceActivity
from voiceloop.reply.context import ReplyServices
from voiceloop.resume.ticket import Tickets
from voiceloop.telemetry.traces import NoTraces, Traces


@dataclass(slots=True, kw_only=True)
class CallServices(ReplyServices):
    """Of one server. tickets: None where no call can be resumed.

    new_vad: makes a voice detector, one for each call. on_resumed: told the id that a call had
    before it was resumed here. lacks_place: why a call that said nothing so far may not begin now;
    None where it may.
    """

    traces: Traces = field(default_factory=NoTraces)
    tickets: Tickets | None = None
    new_vad: Callable[[], VoiceActivity] = Vad
    on_resumed: Callable[[str], None] = lambda call_id: None
    lacks_place: Callable[[], str | None] = lambda: None
