"""One turn's waterfall: where the milliseconds of the gap went.

The server reports when it passed each mark of a turn (``voiceloop.timeline``); the client adds the
two ends only it can see: the caller's last sample leaving, and the first audible agent sample
arriving. Both read CLOCK_MONOTONIC, which all processes of one machine share.

A stage is the time from one mark to the next. A mark that was passed before its predecessor (the
first token of a reply drafted while the caller still spoke) costs nothing and gets no stage. So
the stages add up to the gap whenever the marks are sound; a mark later than the first audible
sample (another turn's, another clock) pushes the sum past the gap, and ``sum_error_ms`` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The server's marks and the stage that ends at each, in the order of a turn; the names are the
# server's own (voiceloop/telemetry/record.py), but for the first stage, which only a client can
# measure: from the caller's true end to the last sample the server's detector still called speech.
STAGES = (
    ("speech_end", "speech tail"),
    ("first_low_frame", "vad lag"),
    ("endpoint_decision", "silence wait"),
    ("transcript_final", "final transcript"),
    ("class_asked", "before reply"),
    ("passages_known", "retrieval"),
    ("prompt_committed", "prompt"),
    ("tools_answered", "tools"),
    ("thoughts_over", "thinks"),
    ("first_token", "first token"),
    ("first_clause", "first clause"),
    ("first_audio_frame", "synthesis"),
    ("first_audio_queued", "playout"),
    ("first_byte_on_wire", "writer"),
)
# A timeline without these would hide time in a neighbour's stage.
OPTIONAL_MARKS = {
    "speech_end",
    "first_low_frame",
    "class_asked",
    "passages_known",
    "tools_answered",
    "thoughts_over",
}
REQUIRED_MARKS = frozenset(mark for mark, _ in STAGES) - OPTIONAL_MARKS
DOWNLINK = "downlink"
LEAD_IN = "lead-in silence"


def stage_names() -> tuple[str, ...]:
    """All stages in the order of a turn."""
    return (*(name for _, name in STAGES), DOWNLINK, LEAD_IN)


@dataclass(frozen=True, slots=True)
class Stage:
    """``name`` took ``ms``, beginning ``start_ms`` after the caller's last sample was sent."""

    name: str
    start_ms: float
    ms: float


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Stages of one turn in order.

    ``sum_error_ms`` is how far their sum is from the measured gap; ``missing_marks`` what the
    server should have reported and did not. ``speakers``: as of `who_spoke`.
    """

    stages: tuple[Stage, ...]
    sum_error_ms: float
    missing_marks: tuple[str, ...] = ()
    speakers: tuple[str, ...] = ()

    @property
    def total_ms(self) -> float:
        return sum(stage.ms for stage in self.stages)


def waterfall_of(
    timeline: Mapping[str, Any] | None, end_at: float, first_audio_at: float, audible_at: float
) -> Waterfall | None:
    """Merge a server's timeline with the client's own marks; None where the server sent none.

    Args:
        timeline: what the reply's ``voiceloop.timeline`` event carries.
        end_at: when the caller's last sample was sent.
        first_audio_at: when the reply's first audio arrived.
        audible_at: when its first audible sample arrived.
    """
    if timeline is None:
        return None
    marks = {str(name): float(at) for name, at in timeline.get("marks", {}).items()}
    missing = tuple(sorted(REQUIRED_MARKS - marks.keys()))
    marks[DOWNLINK] = first_audio_at
    marks[LEAD_IN] = audible_at
    stages: list[Stage] = []
    at = end_at
    for mark, name in (*STAGES, (DOWNLINK, DOWNLINK), (LEAD_IN, LEAD_IN)):
        if mark not in marks or marks[mark] <= at:
            continue
        stages.append(Stage(name, 1000.0 * (at - end_at), 1000.0 * (marks[mark] - at)))
        at = marks[mark]
    measured_ms = 1000.0 * (audible_at - end_at)
    sum_error_ms = sum(stage.ms for stage in stages) - measured_ms
    return Waterfall(tuple(stages), sum_error_ms, missing, who_spoke(timeline))


def who_spoke(timeline: Mapping[str, Any]) -> tuple[str, ...]:
    """Return for a server with several language models a line for each part of the reply."""
    told = [f"opener: {timeline['opener']}"] if timeline.get("opener") else []
    for one in timeline.get("speakers", ()):
        part = f"{one['part']} model" if one["part"] else "model"
        begins = f" from character {one['from_char']}" if one["from_char"] else ""
        told.append(f"{part} {one['model'] or 'main'}{begins}: {one['reason']}")
    if (draft := timeline.get("draft")) is not None:
        kept = "?" if draft["n_kept"] is None else draft["n_kept"]
        told.append(f"drafted ahead: {kept} of {draft['n_tokens']} tokens kept")
    return tuple(told)
