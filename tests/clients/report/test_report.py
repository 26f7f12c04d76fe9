"""The report stands alone, says what was measured, and trusts no text that came over the wire."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from clients.call.result import BargeIn, CallResult, TurnResult
from clients.live_view import turn_summary
from clients.report.call_summary import summary_of, turn_json
from clients.report.report import report_html
from clients.report.waterfall import STAGES, waterfall_of
from clients.report.waterfall_png import draw_waterfall

RATE_HZ = 24_000
WATERFALL = waterfall_of(
    {"marks": {mark: 10.0 + 0.023 * i for i, (mark, _) in enumerate(STAGES)}}, 9.98, 10.31, 10.312
)
TURN = TurnResult(
    name="order",
    said="A latte ... please.",
    heard="a latte please",
    answer="One latte, and <script>alert(1)</script>?",
    expect=(("latte",),),
    missing=(),
    onset_at=1.0,
    end_at=2.0,
    answer_at=2.4,
    answer_end_at=3.5,
    gap_ms=332.0,
    audible_ms=372.0,
    cut_in=False,
    hesitates=True,
    hesitation_cut=False,
    answered=True,
    barge_in=BargeIn(150.0, 190.0, 900.0, 60.0, 100.0),
    waterfall=WATERFALL,
)
CUT = replace(
    TURN, name="cut", gap_ms=None, audible_ms=None, cut_in=True, hesitation_cut=True,
    barge_in=None, waterfall=None, missing=("muffin",),
)  # fmt: skip
SILENT = replace(
    CUT, name="silent", cut_in=False, answered=False, answer="", answer_at=None, answer_end_at=None
)
CALL = CallResult("slt", "Hello & welcome.", (TURN, CUT, SILENT), (), 0, 0)
PROVENANCE: dict[str, Any] = {
    "commit": "abc", "date": "2026-11-21T02:00:00+00:00",
    "machine": {"cpu": "A <fast> CPU", "cores": 2, "python": "3.11.7"},
    "agent": {"name": "Ava", "recognizer": "ears", "language_model": "brain", "voice": "throat"},
}  # fmt: skip


@pytest.fixture(scope="module")
def page() -> str:
    samples = (4000 * np.sin(np.arange(4 * RATE_HZ) / 9)).astype(np.int16)
    return report_html(
        CALL, summary_of([CALL]), PROVENANCE, (samples, samples), RATE_HZ,
        title="A call", agent="Ava",
    )  # fmt: skip


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)
    assert "http" not in page
    assert "data:audio/mpeg;base64," in page
    assert "ears hears, brain answers, throat speaks." in page


def test_the_page_shows_the_gap_every_turn_and_its_waterfall(page: str) -> None:
    assert '<div class="big">332<small>ms</small></div>' in page
    for turn in CALL.turns:
        assert f"&nbsp;{turn.name}</h2>" in page
    assert page.count('<svg class="waterfall"') == 1
    assert "cut in" in page
    assert "no answer" in page
    assert "hesitation cut off" in page
    assert "silent after 190 ms" in page
    assert "Hello &amp; welcome." in page


def test_what_the_agent_said_is_text_and_the_expected_words_are_marked(page: str) -> None:
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "One <mark>latte</mark>" in page
    assert "A &lt;fast&gt; CPU" in page


def test_every_placeholder_of_the_page_is_filled(page: str) -> None:
    assert not re.findall(r"\$[a-z_]+", page)


def test_a_call_without_any_gap_still_has_a_page() -> None:
    call = replace(CALL, turns=(SILENT,))
    samples = np.zeros(RATE_HZ, dtype=np.int16)
    page = report_html(
        call, summary_of([call]), PROVENANCE, (samples, samples), RATE_HZ, title="t", agent="a"
    )
    assert '<div class="big">–<small></small></div>' in page


def test_of_a_recording_of_ones_own_no_words_are_expected_and_none_is_counted(page: str) -> None:
    call = replace(CALL, turns=(replace(TURN, expect=()),))
    samples = np.zeros(RATE_HZ, dtype=np.int16)
    wordless = report_html(
        call, summary_of([call]), PROVENANCE, (samples, samples), RATE_HZ, title="t", agent="a"
    )
    assert "<dt>with the expected words</dt><dd>1 of 3</dd>" in page
    assert "expected words" not in wordless and "of 0" not in wordless


def test_the_summary_counts_failures_and_never_averages_them_in() -> None:
    summary = summary_of([CALL])
    assert summary["n_turns"] == 3
    assert summary["unanswered"] == 1
    assert (summary["cut_ins"], summary["soft_cuts"], summary["hard_cuts"]) == (1, 0, 1)
    assert summary["hesitations_cut"] == 2
    assert summary["gap_ms"]["n"] == 1
    assert summary["gap_ms"]["p50"] == 332.0
    assert summary["turns_with_words_found"] == 1
    assert summary["stage_p50_ms"]["silence wait"] == 23.0
    assert "lead-in silence" in summary["stage_p50_ms"]
    json.dumps(summary)


def test_a_turn_as_json_has_its_stages_and_times_in_seconds() -> None:
    data = json.loads(json.dumps(turn_json(TURN)))
    assert data["end_s"] == 2.0
    assert data["barge_in"]["audible_ms"] == 190.0
    assert sum(s["ms"] for s in data["waterfall"]["stages"]) == pytest.approx(332.0, abs=0.1)
    assert turn_json(SILENT)["waterfall"] is None


def test_the_terminal_shows_gap_words_and_stages() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, no_color=True)
    for turn in CALL.turns:
        console.print(turn_summary(turn))
    text = out.getvalue()
    assert "332 ms gap" in text
    assert "silence wait 23" in text
    assert "✗ missing muffin" in text
    assert "no answer" in text


def test_the_picture_is_drawn_with_turns_that_have_no_gap(tmp_path: Path) -> None:
    path = tmp_path / "waterfall.png"
    draw_waterfall(path, CALL.turns, "A call", "note")
    assert path.read_bytes().startswith(b"\x89PNG")
