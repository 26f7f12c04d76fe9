"""What `Endpointing` would know at every moment of every pause of a turn.

Owns the join of pauses, words and end-of-turn (EOT) probability on the audio clock, as the listener
and the anticipation make it live: words come late, the probability later, and both only while the
pause lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from voiceloop.listening.evidence import REMEMBERED_PAUSES, Evidence
from voiceloop.listening.recipes.end_probability import ENGINE_LAG_MS
from voiceloop.listening.recipes.endpointing_set import CallerTurn
from voiceloop.listening.recipes.heard_turn import HeardWords, Pause, pauses_of
from voiceloop.listening.slots.question import asked_in

AskEnd = Callable[[tuple[str, ...]], float]
AskVoice = Callable[[Pause], float]


@dataclass(frozen=True, slots=True)
class Step:
    """From from_ms on, until the next step or the end of the pause, this is known."""

    from_ms: float
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class HeardPause:
    """A pause as heard, and what is known while it lasts; steps begin at its first low window."""

    since_ms: float
    detected_ms: float
    resumed_ms: float | None
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class HeardTurn:
    turn: CallerTurn
    pauses: tuple[HeardPause, ...]


def heard_turn(
    turn: CallerTurn,
    words: Sequence[HeardWords],
    ask_end: AskEnd | None,
    ask_voice: AskVoice | None = None,
) -> HeardTurn:
    """One turn with its evidence; ask_end: EOT probability after words, ask_voice: log-odds of the
    end by the voice before a pause, which come with its words. None: to do without.
    """
    slot = asked_in(turn.history[-1][1]) if turn.history else None
    found = []
    before_ms: tuple[float, ...] = ()  # how long the pauses before were
    for pause in pauses_of(turn):
        base = Evidence(
            speech_ms=pause.speech_ms,
            tail_level_db=pause.tail_level_db,
            tail_semitones=pause.tail_semitones,
            slot=slot,
            turn_pauses_ms=before_ms,
        )
        steps = _steps(pause, base, words, ask_end, ask_voice)
        found.append(HeardPause(pause.since_ms, pause.detected_ms, pause.resumed_ms, steps))
        if pause.resumed_ms is not None:
            paused_ms = pause.resumed_ms - pause.since_ms
            before_ms = (*before_ms, paused_ms)[-REMEMBERED_PAUSES:]
    return HeardTurn(turn, tuple(found))


def _steps(
    pause: Pause,
    base: Evidence,
    words: Sequence[HeardWords],
    ask_end: AskEnd | None,
    ask_voice: AskVoice | None,
) -> tuple[Step, ...]:
    until_ms = pause.resumed_ms if pause.resumed_ms is not None else float("inf")
    before = [heard for heard in words if heard.at_ms <= pause.detected_ms]
    known = replace(base, words=before[-1].words if before else ())
    steps = [Step(pause.detected_ms, known)]
    flushed = False
    for heard in words:
        if not pause.detected_ms < heard.at_ms < until_ms:
            continue
        if heard.flushed and not flushed and ask_voice is not None:
            known = replace(known, p_voice=ask_voice(pause))
        flushed = flushed or heard.flushed
        if heard.words == known.words and flushed == known.words_are_full:
            continue
        same = heard.words == known.words
        known = replace(
            known,
            words=heard.words,
            words_are_full=flushed,
            p_end=known.p_end if same else None,
        )
        steps.append(Step(heard.at_ms, known))
        if flushed and ask_end is not None and heard.words:
            told_ms = heard.at_ms + ENGINE_LAG_MS
            later = [h.at_ms for h in words if h.at_ms > heard.at_ms and h.words != heard.words]
            if told_ms < min([until_ms, *later[:1]]):
                known = replace(known, p_end=ask_end(heard.words))
                steps.append(Step(told_ms, known))
    return tuple(steps)
