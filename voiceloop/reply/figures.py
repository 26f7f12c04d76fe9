"""What a reply is counted as where a canary is tried."""

from __future__ import annotations

from voiceloop.canary.turns import TurnFigures
from voiceloop.telemetry.record import TurnRecord


def figures_of(record: TurnRecord) -> TurnFigures:
    """Of a reply that is over."""
    end, usage = record.end, record.end.usage
    n_written = usage.n_reply_tokens + usage.n_unheard_tokens
    return TurnFigures(
        gap_ms=record.gap_ms,
        has_failed=end.outcome == "failed",
        n_tokens=n_written if usage.n_prompt_tokens else None,
        n_tool_calls=end.n_tool_calls,
        n_wrong_tool_calls=end.n_wrong_tool_calls,
        token_ms=usage.token_ms or None,
    )
