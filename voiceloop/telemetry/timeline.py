"""Where the time of one turn went.

Owns `TurnTimeline`: the marks of one turn, in monotonic seconds, and the stages between them, which
sum exactly. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from voiceloop.backends import Usage

# Each mark and the stage that ends at it, in the order in which a reply comes about. What an
# anticipated turn did ahead of time has marks before the decision: its stages are then 0 long.
STAGES: tuple[tuple[str, str], ...] = (
    ("speech_end", ""),  # arrival of the last sample the detector calls speech
    ("first_low_frame", "vad lag"),
    ("endpoint_decision", "silence wait"),
    ("transcript_final", "final transcript"),
    ("passages_known", "retrieval"),  # where the agent has documents
    ("prompt_committed", "prompt"),
    ("tools_answered", "tools"),  # of the last round that only called tools, nothing said so far
    ("first_token", "first token"),
    ("first_clause", "first clause"),
    ("first_audio_frame", "synthesis"),
    ("first_audio_queued", "playout"),
    ("first_byte_on_wire", "writer"),
)
_MARKS = frozenset(mark for mark, _ in STAGES) | {"turn_end"}


@dataclass(slots=True)
class TurnTimeline:
    """The marks of one turn; each is set once, by whoever saw it first.

    speech_end_ms: where the detector heard the caller end, on the session's audio clock.
    response_ids: of all responses that the reply is said in; the first names the turn.
    """

    turn_id: str
    speech_end_ms: float | None = None
    marks: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    response_ids: list[str] = field(default_factory=list)

    def note_response(self, response_id: str) -> None:
        """The reply goes on in this response: behind tool calls, or a false interruption."""
        self.response_ids.append(response_id)
        self.turn_id = self.response_ids[0]

    def mark(self, name: str, at_s: float) -> None:
        if name not in _MARKS:
            raise ValueError(f"expected one of {sorted(_MARKS)}, found {name!r}")
        self.marks.setdefault(name, at_s)

    def note_calls(self, calls: Iterable[dict[str, Any]], at_s: float) -> None:
        """The server's tools have answered these calls; a stage where nothing was said before."""
        self.facts.setdefault("tools", []).extend(calls)
        if not self.marks.keys() & {"first_token", "first_audio_frame"}:
            self.marks["tools_answered"] = at_s  # of several rounds the last

    def before_sound(self) -> TurnTimeline:
        """The same as it was before anything was sent, which has been taken back."""
        sent = ("first_audio_queued", "first_byte_on_wire")
        marks = {name: at_s for name, at_s in self.marks.items() if name not in sent}
        return TurnTimeline("preemptive", self.speech_end_ms, marks=marks)

    def stages(self) -> list[tuple[str, float]]:
        """(stage, milliseconds) in order; they sum to last mark minus first, exactly as marked.

        A mark that is missing leaves its time to the next stage that has one.
        """
        found: list[tuple[str, float]] = []
        before_s: float | None = None
        for mark, stage in STAGES:
            at_s = self.marks.get(mark)
            if at_s is None:
                continue
            if before_s is not None:
                found.append((stage, 1000.0 * max(0.0, at_s - before_s)))
            before_s = at_s if before_s is None else max(before_s, at_s)
        return found

    @property
    def gap_ms(self) -> float | None:
        """Server's part of the gap: arrival of the last speech sample to the first byte sent."""
        if "speech_end" not in self.marks or "first_byte_on_wire" not in self.marks:
            return None
        return 1000.0 * (self.marks["first_byte_on_wire"] - self.marks["speech_end"])

    @property
    def answer_ms(self) -> float | None:
        """The part of the gap after the decision that the caller has finished; what comes before
        is mostly the wait that was meant."""
        if "endpoint_decision" not in self.marks or "first_byte_on_wire" not in self.marks:
            return None
        return 1000.0 * (self.marks["first_byte_on_wire"] - self.marks["endpoint_decision"])

    def payload(self) -> dict[str, Any]:
        """The `voiceloop.timeline` event: marks in monotonic seconds of the server's machine."""
        return {
            "turn_id": self.turn_id,
            "response_ids": self.response_ids,
            "speech_end_ms": self.speech_end_ms,
            "marks": {name: round(at_s, 6) for name, at_s in self.marks.items()},
            "stages": [{"name": name, "ms": round(ms, 3)} for name, ms in self.stages()],
            "gap_ms": self.gap_ms,
            **self.facts,
        }


def anticipation_facts(usage: Usage, wasted_audio_ms: float, draft: str) -> dict[str, Any]:
    """How much of a turn was done ahead of it; see `Usage` for the tokens.

    draft: "released" as it was held, "salvaged" where it had to be verified first, else "none".
    n_discarded_tokens: of drafts, and of a reply taken back before any of it was heard.
    wasted_audio_ms: also what was not heard any more of a reply that the caller interrupted.
    """
    return {
        "draft": draft,
        "n_turn_tokens": usage.n_turn_tokens,
        "n_turn_resident": usage.n_turn_resident,
        "n_left_to_prefill": max(0, usage.n_prompt_tokens - usage.n_cached_tokens),
        "n_reply_tokens": usage.n_reply_tokens,
        "n_discarded_tokens": usage.n_discarded_tokens,
        "n_unheard_tokens": usage.n_unheard_tokens,
        "n_drafted_tokens": usage.n_drafted_tokens,
        "n_accepted_tokens": usage.n_accepted_tokens,
        "wasted_audio_ms": round(wasted_audio_ms, 1),
    }
