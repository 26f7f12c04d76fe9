"""``report.html``: one call as a page that needs nothing else, neither network nor other files.

The page itself is ``report_page.html``; here its parts are made: the large figures, the picture
of both voices, the audio (MP3 inside the page) and a card for every turn with its waterfall.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from clients.agent_card import AgentCard
from clients.call.result import CallResult, TurnResult
from clients.call.script import words_found
from clients.recording import Samples
from clients.report.waterfall_svg import shared_scale_ms, waterfall_svg

PAGE = Path(__file__).with_name("report_page.html")
STRIP_WIDTH, STRIP_HEIGHT = 1000, 132
N_BINS = 500


def report_html(
    call: CallResult,
    summary: dict[str, Any],
    provenance: dict[str, Any],
    channels: tuple[Samples, Samples],
    rate_hz: int,
    *,
    title: str,
    agent: str,
) -> str:
    """Render a call.

    Args:
        channels: caller and agent as in conversation.wav, int16 of equal length at ``rate_hz``.
        title: the call's title. agent: the agent's name, as the transcript shows it.
    """
    gap = summary["gap_ms"]["p50"]
    scale_ms = shared_scale_ms([t.waterfall for t in call.turns if t.waterfall is not None])
    seconds = len(channels[0]) / rate_hz
    return Template(PAGE.read_text(encoding="utf-8")).substitute(
        title=escape(title),
        agent=escape(agent),
        gap="–" if gap is None else f"{gap:.0f}",
        gap_unit="" if gap is None else "ms",
        gap_caption="median gap: the caller’s last sound to the agent’s first",
        facts=_facts(summary),
        strip=_strip(call.turns, channels, rate_hz),
        audio=_audio(channels, rate_hz),
        turns=_greeting(call, agent)
        + "".join(_turn(i, turn, agent, scale_ms) for i, turn in enumerate(call.turns, 1)),
        provenance=escape(_provenance(provenance)),
        seconds=f"{seconds:.3f}",
    )


def _facts(summary: dict[str, Any]) -> str:
    gap, barge_in = summary["gap_ms"], summary["barge_in_audible_ms"]
    n_turns, n_expected = summary["n_turns"], summary["turns_with_expected_words"]
    found = f"{summary['turns_with_words_found']} of {n_expected}"
    facts = [
        ("p95 gap", _ms(gap["p95"])),
        ("answered", f"{n_turns - summary['unanswered']} of {n_turns}"),
        # None are expected of a recording of one's own.
        *([("with the expected words", found)] if n_expected else []),
        ("slowest gap", _ms(gap["most"])),
        ("cut-ins, hard", str(summary["hard_cuts"])),
        ("cut-ins, soft: taken back", str(summary["soft_cuts"])),
        ("silent after a barge-in", _ms(barge_in["p50"])),
    ]
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} ms"


def _strip(turns: Sequence[TurnResult], channels: tuple[Samples, Samples], rate_hz: int) -> str:
    """Both voices over time: the caller above the line, the agent below; gaps shaded."""
    seconds = len(channels[0]) / rate_hz
    middle = STRIP_HEIGHT / 2
    gaps = []
    for turn in turns:
        if turn.gap_ms is None or turn.answer_at is None:
            continue
        x = STRIP_WIDTH * turn.end_at / seconds
        width = STRIP_WIDTH * (turn.answer_at - turn.end_at) / seconds
        gaps.append(
            f'<rect class="gap" x="{x:.2f}" y="0" width="{width:.2f}" height="{STRIP_HEIGHT}"/>'
        )
    peak = max(int(np.abs(channel.astype(np.int32)).max(initial=1)) for channel in channels)
    caller, agent = (_envelope(channel) / peak for channel in channels)
    return (
        f'<svg id="strip" viewBox="0 0 {STRIP_WIDTH} {STRIP_HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="Waveforms of the call">{"".join(gaps)}'
        f"{_half_wave('caller', caller, -1)}{_half_wave('agent', agent, 1)}"
        f'<line class="axis" x1="0" x2="{STRIP_WIDTH}" y1="{middle}" y2="{middle}"/>'
        f'<line id="head" x1="0" x2="0" y1="0" y2="{STRIP_HEIGHT}"/></svg>'
    )


def _envelope(samples: Samples) -> np.ndarray:
    """The loudest absolute sample of each of 500 equal stretches."""
    edges = np.linspace(0, len(samples), N_BINS + 1).astype(int)
    loud = np.abs(samples.astype(np.int32))
    return np.array(
        [loud[a:b].max(initial=0) for a, b in zip(edges[:-1], edges[1:], strict=True)], dtype=float
    )


def _half_wave(name: str, envelope: np.ndarray, direction: int) -> str:
    """An area from the middle line outwards; amplitude is compressed so that quiet words show."""
    middle = STRIP_HEIGHT / 2
    step = STRIP_WIDTH / N_BINS
    envelope = np.where(envelope < 0.02, 0.0, envelope)  # the room's noise is not a voice
    points = " ".join(
        f"{step * (i + 0.5):.1f},{middle + direction * (middle - 3) * value**0.7:.1f}"
        for i, value in enumerate(envelope)
    )
    return f'<polygon class="{name}" points="0,{middle} {points} {STRIP_WIDTH},{middle}"/>'


def _audio(channels: tuple[Samples, Samples], rate_hz: int) -> str:
    """The call as an MP3 data URL: a tenth of the WAV's size, and every browser plays it."""
    import soundfile

    # Caller and agent lean to their sides but are heard on both: hard left and right tires an ear.
    left, right = (channel.astype(np.float32) / 32768 for channel in channels)
    stereo = np.stack([0.75 * left + 0.35 * right, 0.35 * left + 0.75 * right], axis=1)
    buffer = io.BytesIO()
    soundfile.write(buffer, np.clip(stereo, -1, 1), rate_hz, format="MP3")
    return "data:audio/mpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _greeting(call: CallResult, agent: str) -> str:
    if not call.greeting:
        return ""
    return (
        '<li class="turn"><div><h2>greeting</h2></div><div>'
        f"{_says('agent', agent, escape(call.greeting))}</div></li>"
    )


def _turn(number: int, turn: TurnResult, agent: str, scale_ms: float) -> str:
    if turn.gap_ms is not None:
        gap = f'<p class="gap">{turn.gap_ms:.0f}<small>ms</small></p>'
    else:
        gap = f'<p class="gap none">{"cut in" if turn.cut_in else "no answer"}</p>'
    ends = turn.answer_end_at if turn.answer_end_at is not None else turn.end_at + 2.0
    button = (
        f'<button data-from="{max(0.0, turn.onset_at - 0.2):.2f}" data-to="{ends + 0.3:.2f}">'
        "&#9654; play turn</button>"
    )
    said = escape(turn.said)
    if turn.heard:
        said += f'<span class="heard">heard: {escape(turn.heard)}</span>'
    answer = _marked(turn) if turn.answer else '<span class="none">no answer</span>'
    drawing = ""
    if turn.waterfall is not None:
        drawing = waterfall_svg(turn.waterfall, scale_ms)
        drawing += "".join(f"<p>{escape(line)}</p>" for line in turn.waterfall.speakers)
    return (
        f'<li class="turn"><div><h2>{number} &nbsp;{escape(turn.name)}</h2>{gap}{button}</div>'
        f"<div>{_says('caller', 'Caller', said)}{_says('agent', agent, answer)}"
        f"{_badges(turn)}{drawing}</div></li>"
    )


def _says(who: str, name: str, html: str) -> str:
    return f'<p class="says {who}"><b>{escape(name)}</b>{html}</p>'


def _marked(turn: TurnResult) -> str:
    """The answer with the expected words it contains marked."""
    html = escape(turn.answer, quote=False)
    for word in words_found(turn.expect, turn.answer):
        html = re.sub(rf"\b({re.escape(word)}s?)\b", r"<mark>\1</mark>", html, flags=re.IGNORECASE)
    return html


def _badges(turn: TurnResult) -> str:
    badges = []
    if turn.expect:
        if turn.missing:
            badges.append(("bad", f"missing: {', '.join(turn.missing)}"))
        else:
            badges.append(("good", "✓ expected words"))
    if turn.hesitates:
        kept = not turn.hesitation_cut
        badges.append(
            ("good", "✓ hesitation left alone") if kept else ("bad", "hesitation cut off")
        )
    if turn.barge_in is not None:
        badges.append(("", f"barge-in · silent after {turn.barge_in.audible_ms:.0f} ms"))
    if turn.audible_ms is not None:
        badges.append(("", f"in the ear after {turn.audible_ms:.0f} ms"))
    spans = "".join(f'<span class="badge {kind}">{escape(text)}</span>' for kind, text in badges)
    return f'<div class="badges">{spans}</div>' if spans else ""


def _provenance(provenance: dict[str, Any]) -> str:
    machine = provenance["machine"]
    return (
        f"{AgentCard(**provenance['agent'])}. "
        f"Measured {provenance['date'][:16].replace('T', ' ')} UTC at commit "
        f"{provenance['commit']} on {machine['cpu']}, {machine['cores']} cores, "
        f"Python {machine['python']}. The stages of each waterfall add up to its gap."
    )
