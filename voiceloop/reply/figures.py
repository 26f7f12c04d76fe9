"""What a reply is counted as where a canary is tried, and what its canary is asked."""

from __future__ import annotations

from voiceloop.canary.trial import ShadowTurn
from voiceloop.canary.turns import TurnFigures
from voiceloop.reply.context import ReplyContext
from voiceloop.reply.reply import Reply
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


def shadow_turn_of(reply: Reply, context: ReplyContext, figures: TurnFigures) -> ShadowTurn | None:
    """What it was asked, for a canary to answer too; None where no model answered a turn."""
    prompt, is_beside = reply.plan.prompt, reply.response.is_out_of_band
    if is_beside or figures.n_tokens is None or not prompt or prompt[-1].role != "user":
        return None
    protocol = context.protocol
    called = (m for m in protocol.conversation.messages() if m.tool_calls or m.role == "tool")
    return ShadowTurn(
        protocol.session_id,
        prompt,
        tuple(reply.plan.tools),
        reply.plan.params,
        context.anticipation.tenant,
        tuple(called),
        figures,
    )
