"""When words are probably spoken, for a voice that does not know how long its text will take.

Each word gets a share of time by its length at the pace of the fragments before; it is told once
the audio has come to it, and what is left when the fragment ends is told then.
"""

from collections.abc import Sequence

from .reply import FragmentWord, WordSpan

MS_PER_CHARACTER = 65.0  # about 170 words a minute: what a voice is taken for before it has spoken
LEARNING_RATE = (
    0.3  # of the last fragment's pace in the estimate: three fragments to follow a voice
)


class WordPace:
    """The pace of one voice: ms a character, a word's own and the space behind it."""

    def __init__(self) -> None:
        self.ms_per_character = MS_PER_CHARACTER

    def learn(self, words: Sequence[FragmentWord], duration_ms: float) -> None:
        """A fragment of these words took duration_ms."""
        found = duration_ms / max(1, _n_characters(words))
        self.ms_per_character += LEARNING_RATE * (found - self.ms_per_character)


class PacedWords:
    """The words of one fragment under way."""

    def __init__(self, words: Sequence[FragmentWord], pace: WordPace) -> None:
        self._words = tuple(words)
        self._pace = pace
        self._n_told = 0
        self._told_ms = 0.0

    def until(self, audio_ms: float) -> list[WordSpan]:
        """The words that start before audio_ms of the fragment and were not yet told."""
        spans = []
        while self._n_told < len(self._words) and self._told_ms < audio_ms:
            word = self._words[self._n_told]
            end_ms = self._told_ms + _n_characters([word]) * self._pace.ms_per_character
            spans.append(WordSpan(word, self._told_ms, end_ms))
            self._n_told += 1
            self._told_ms = end_ms
        return spans

    def rest(self, audio_ms: float) -> list[WordSpan]:
        """The words not yet told, in what time is left of the fragment's audio_ms."""
        words = self._words[self._n_told :]
        start_ms = min(self._told_ms, audio_ms)
        share = (audio_ms - start_ms) / max(1, _n_characters(words))
        spans = []
        for word in words:
            end_ms = start_ms + share * _n_characters([word])
            spans.append(WordSpan(word, start_ms, end_ms))
            start_ms = end_ms
        self._n_told = len(self._words)
        self._pace.learn(self._words, audio_ms)
        return spans


def _n_characters(words: Sequence[FragmentWord]) -> int:
    return sum(len(word.text) + 1 for word in words)
