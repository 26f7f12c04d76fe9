"""LocalAgreement: hypotheses that may revise themselves in, words that are never retracted out.

A recognizer that decodes a growing window again and again (Whisper) rewrites its last words. Two
successive hypotheses that agree on a word are taken as proof of it: the word is committed, and
from then on forced as the decoder's prefix. The window is cut where a committed sentence ends, so
that it stays short. Nothing here knows of models, audio or clocks.

Source: Liu, Spanakis and Niehues 2020, "Low-Latency Sequence-to-Sequence Speech Recognition and
Translation by Partial Hypothesis Selection"; applied to Whisper by Machacek, Dabre and Bojar 2023.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# The window may grow to 10 s before a cut at a sentence's end is sought, and to 15 s before any
# committed word will do: 10 s is the shortest window that costs Whisper no accuracy, and each
# further second is encoded again at every update.
SENTENCE_CUT_MS = 10_000.0
WORD_CUT_MS = 15_000.0
# Whisper's encoder ends at 30 s; here a window without any agreement is cut by force.
FORCED_CUT_MS = 25_000.0
SENTENCE_ENDS = (".", "?", "!", "…", "。", "？", "！")


@dataclass(frozen=True, slots=True)
class HypothesisWord:
    """A word of a hypothesis and the decoder's tokens that spell it."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WindowCut:
    """Drop the audio before at_ms of the window, and with it its first n_words words."""

    n_words: int
    at_ms: float


class LocalAgreement:
    """The words of one segment: committed ones, and the newest hypothesis of the rest.

    n_held_back: words at the end of a hypothesis that agreement alone does not commit, since a
    word the window cuts in two looks the same in two hypotheses.

    Invariant: `committed` only ever grows at its end, but for `begin_anew`.
    """

    def __init__(self, n_held_back: int = 1) -> None:
        self._n_held_back = n_held_back
        self._committed: list[HypothesisWord] = []
        self._tail: tuple[HypothesisWord, ...] = ()
        self._n_left_window = 0

    @property
    def committed(self) -> tuple[HypothesisWord, ...]:
        """Every word of the segment that is certain, those that left the window included."""
        return tuple(self._committed)

    @property
    def tail(self) -> tuple[HypothesisWord, ...]:
        """Return what the newest hypothesis says after the committed words."""
        return self._tail

    @property
    def prefix(self) -> tuple[HypothesisWord, ...]:
        """The committed words whose audio is still in the window: what the decoder is forced to."""
        return tuple(self._committed[self._n_left_window :])

    @property
    def left_window(self) -> tuple[HypothesisWord, ...]:
        """The committed words whose audio was cut off: what may serve as the decoder's prompt."""
        return tuple(self._committed[: self._n_left_window])

    def observe(self, tail: Sequence[HypothesisWord]) -> tuple[HypothesisWord, ...]:
        """Takes what the newest decode says after `prefix`; returns the words it committed."""
        n_agreed = 0
        for before, now in zip(self._tail, tail, strict=False):
            if before.text != now.text:
                break
            n_agreed += 1
        return self._commit(tail, min(n_agreed, max(0, len(tail) - self._n_held_back)))

    def accept(self, tail: Sequence[HypothesisWord], n_words: int | None = None) -> None:
        """Commits the first n_words (None: all) of a hypothesis without a second one's word."""
        self._commit(tail, len(tail) if n_words is None else n_words)

    def begin_anew(self) -> None:
        """Take no word of the window as certain: it was read as something else."""
        del self._committed[self._n_left_window :]
        self._tail = ()

    def leave_window(self, n_words: int) -> None:
        """The audio of the first n_words of `prefix` was cut off the window.

        Raises: ValueError if fewer words than that are in the window.
        """
        if not 0 <= n_words <= len(self.prefix):
            raise ValueError(f"expected 0 to {len(self.prefix)} words, found {n_words}")
        self._n_left_window += n_words

    def _commit(self, tail: Sequence[HypothesisWord], n_words: int) -> tuple[HypothesisWord, ...]:
        newly = tuple(tail[:n_words])
        self._committed.extend(newly)
        self._tail = tuple(tail[n_words:])
        return newly


def window_cut(
    words: Sequence[str],
    word_ends_ms: Sequence[float],
    window_ms: float,
    *,
    is_crowded: bool = False,
) -> WindowCut | None:
    """Return where to cut a window of window_ms, or None while it may stay as it is.

    words, word_ends_ms: the committed words in the window and when each ends, in ms from the
    window's start. is_crowded: its words fill the decoder's context, so it is long however short.
    """
    if window_ms < SENTENCE_CUT_MS and not is_crowded:
        return None
    for n_words in range(len(words), 0, -1):
        if words[n_words - 1].endswith(SENTENCE_ENDS) and word_ends_ms[n_words - 1] > 0.0:
            return WindowCut(n_words, word_ends_ms[n_words - 1])
    if (is_crowded or window_ms >= WORD_CUT_MS) and words and word_ends_ms[-1] > 0.0:
        return WindowCut(len(words), word_ends_ms[-1])
    return None
