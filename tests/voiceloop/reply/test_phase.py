"""What may follow what in one reply: every phase and every event."""

from __future__ import annotations

import logging
from itertools import product

import pytest

import tests.callers  # noqa: F401  phases are strict in tests
from tests.tables import each_row
from voiceloop.reply.phase import Phase, PhaseEvent, ReplyPhase

# A row for each phase: what becomes of it at start early, take back, confirm, release, interrupt,
# resume, end. A dash: it may not happen.
TABLE = """
held         early  -     confirming  saying       -            -           done
early        -      held  -           saying       interrupted  -           done
confirming   -      -     -           saying       interrupted  -           done
saying       -      -     -           saying       interrupted  -           done
interrupted  -      -     -           interrupted  interrupted  confirming  done
done         -      -     -           -            done         -           -
"""
ROWS = {ReplyPhase(row.split()[0]): row.split()[1:] for row in TABLE.strip().splitlines()}
CASES = [
    (phase, event, ROWS[phase][n]) for phase in ReplyPhase for n, event in enumerate(PhaseEvent)
]


def phase_at(now: ReplyPhase) -> Phase:
    phase = Phase()
    phase.now = now
    return phase


@each_row(("now", "event", "becomes"), CASES)
def test_a_reply_changes_its_phase_as_the_table_says_or_not_at_all(
    now: ReplyPhase, event: PhaseEvent, becomes: str
) -> None:
    phase = phase_at(now)
    if becomes == "-":
        with pytest.raises(RuntimeError, match=f"{event.value} of a reply that is {now.value}"):
            phase.change(event)
    else:
        phase.change(event)
    assert phase.now.value == (now.value if becomes == "-" else becomes)


def test_in_service_what_may_not_happen_is_logged_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Phase, "is_strict", False)
    caplog.set_level(logging.ERROR)
    phase = phase_at(ReplyPhase.HELD)
    phase.change(PhaseEvent.RESUME)
    assert phase.now is ReplyPhase.HELD
    assert "resume of a reply that is held" in caplog.text


def test_a_reply_may_send_its_words_only_while_it_is_the_answer() -> None:
    for now, event in product(ReplyPhase, PhaseEvent):
        if ROWS[now][list(PhaseEvent).index(event)] == "-":
            continue
        phase = phase_at(now)
        if phase.is_answering:
            phase.answering.set()
        phase.change(event)
        if phase.now is not ReplyPhase.DONE:
            assert phase.answering.is_set() == phase.is_answering
