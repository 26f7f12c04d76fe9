"""The voice of one session, with what it has spoken already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from voiceloop.backends import Voice, VoiceOptions
from voiceloop.reply.sound.kept_lines import KeptLine, KeptLines
from voiceloop.reply.sound.line_ahead import LineAhead
from voiceloop.telemetry.record import TurnRecord


@dataclass(frozen=True, slots=True)
class ReplyVoice:
    """live: speaks now. lead_ms: as of `Pacer`. kept: lines of all sessions. ahead: of this one."""

    live: Voice
    new_stream_id: Callable[[], str]
    lead_ms: float
    kept: KeptLines
    ahead: LineAhead = field(default_factory=LineAhead)

    def kept_sound(self, line: str, options: VoiceOptions) -> KeptLine | None:
        """A voice that has spoken this line already, where its sound is kept."""
        return self.kept.line(line, options)

    def sound_of(self, text: str, options: VoiceOptions, record: TurnRecord) -> Voice:
        """A voice that has spoken this text, or has begun to; else the one that speaks now."""
        line = self.ahead.take(text, options) if text else None
        if line is None:
            return self.kept_sound(text, options) or self.live
        record.note_held(line.made_ms)
        return line
