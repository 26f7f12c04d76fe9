"""What happened in a call, as its page and a replay read it: one entry a moment, in plain values.

Owns the names of the entries and what each tells. An entry names its kind; whoever writes it adds
when that was. What a caller said is under `WORDY` names, so that it can be left out. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from voiceloop.call import actions as do
from voiceloop.call.actions import Step
from voiceloop.call.events import CallResumed, GreetingDue, ToolCallsOverdue
from voiceloop.listening import events as heard

Entry = dict[str, Any]

HIDDEN = "[hidden]"
# Of an entry, a turn, a word: what holds words of the call, or what came of them.
WORDY = frozenset(
    ("words", "text", "heard", "said", "arguments", "output", "waiting_line", "event", "value")
)
# Four digits or more, or the words for them; an address for mail.
NUMBER_WORDS = "zero|oh|one|two|three|four|five|six|seven|eight|nine"
FIGURES = re.compile(
    rf"\d(?:[ .-]?\d){{3,}}|\b(?:{NUMBER_WORDS})(?:[ ,.-]+(?:{NUMBER_WORDS})\b){{3,}}|"
    r"[\w.+-]+@[\w-]+\.[\w.]+",
    re.IGNORECASE,
)
# A word that stands apart from its neighbours: a number is in several of them.
FIGURE = re.compile(rf"\W*(?:\d[\d\W]*|(?:{NUMBER_WORDS})\W*)", re.IGNORECASE)
IDS = ("call_id", "item_id", "event_id", "response_id", "previous_item_id")
APART = ("heard_words", "value")  # those that the agent said, and keys of a telephone
TOLD_STEPS = frozenset(
    (Step.DUCK, Step.PAUSE, Step.RESUME, Step.RESUME_INTERRUPTED, Step.DROP_INTERRUPTED)
)


def entries(event: object, actions: Sequence[object]) -> Iterator[Entry]:
    """What is told of an event and of what was done about it; mostly nothing."""
    match event:
        case heard.WordsHeard(stable=stable, unstable=unstable, is_full=is_full):
            yield {"kind": "words", "words": " ".join(stable + unstable), "is_full": is_full}
        case heard.PauseWeighed():
            yield {
                "kind": "pause weighed",
                "words": " ".join(event.words),
                "p_end": event.p_end,
                "paused_ms": event.paused_ms,
                "needed_ms": event.needed_ms,
            }
        case heard.EndIsLikely(unsure_ms=unsure_ms):
            yield {"kind": "end is likely", "unsure_ms": unsure_ms}
        case heard.EndOfTurn(end_ms=end_ms, is_overlong=is_overlong):
            yield {"kind": "turn over", "audio_ms": end_ms, "is_overlong": is_overlong}
        case heard.TurnTranscribed(turn=turn):
            yield {
                "kind": "turn",
                "words": turn.text,
                "audio_ms": turn.onset_ms,
                "end_audio_ms": turn.end_ms,
            }
        case heard.TranscriptionFailed() | heard.WordsLate() | CallResumed() | ToolCallsOverdue():
            yield {"kind": _name(event)}
        case GreetingDue():
            yield {"kind": "greeting"}
    for action in actions:
        yield from _done(action)


def _done(action: object) -> Iterator[Entry]:
    match action:
        case do.OpenUserTurn(onset_ms=onset_ms):
            yield {"kind": "speech", "audio_ms": onset_ms}
        case do.ConsiderPreemptiveReply():
            yield {"kind": "speculates"}
        case do.StartEarly(unsure_ms=unsure_ms):
            yield {"kind": "starts early", "unsure_ms": unsure_ms}
        case do.TakeBack(is_cut=is_cut):
            yield {"kind": "taken back", "is_cut": is_cut}
        case do.InterruptReply(heard_ms=heard_ms, may_resume=may_resume, onset_ms=onset_ms):
            yield {
                "kind": "interrupted",
                "heard_ms": heard_ms,
                "may_resume": may_resume,
                "audio_ms": onset_ms,
            }
        case do.CountBargeIn(verdict=verdict):
            yield {"kind": "over the agent", "verdict": verdict}
        case do.TruncateReply(item_id=item_id, audio_end_ms=audio_end_ms):
            yield {"kind": "truncated", "item_id": item_id, "heard_ms": audio_end_ms}
        case Step() if action in TOLD_STEPS:
            yield {"kind": action.value}


def _name(event: object) -> str:
    """`WordsLate` -> "words late"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(event).__name__).lower()


def without_words(entry: Any) -> Any:
    """The same without what anybody said."""
    if isinstance(entry, dict):
        return {k: HIDDEN if k in WORDY else without_words(v) for k, v in entry.items()}
    return [without_words(one) for one in entry] if isinstance(entry, list) else entry


def without_figures(entry: Any) -> Any:
    """The same without numbers and addresses in what was said."""
    if isinstance(entry, dict):
        return {
            name: value
            if name in IDS
            else _each_hidden(value)
            if name in APART
            else without_figures(value)
            for name, value in entry.items()
        }
    if isinstance(entry, list):
        return [without_figures(one) for one in entry]
    return FIGURES.sub(HIDDEN, entry) if isinstance(entry, str) else entry


def _each_hidden(entry: Any) -> Any:
    if isinstance(entry, list):
        return [_each_hidden(one) for one in entry]
    if isinstance(entry, dict):
        return entry | {"text": _each_hidden(entry.get("text", ""))}
    is_figure = isinstance(entry, str) and (FIGURE.fullmatch(entry) or FIGURES.search(entry))
    return HIDDEN if is_figure else entry
