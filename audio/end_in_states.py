"""Whether a speaker has finished, by a speech decoder's states at the last words: linear heads.

A decoder that has written the words has read them, and has attended to how they were said: where a
clause or a number is whole, and with what melody. Its keys and values at the last two tokens exist
anyway. Joined with the log-odds of the voice alone (`end_of_voice`), they tell ends from pauses
better than these (LOG.md, 2026-11-28, "what the recognizer's decoder knows"). The heads are trained
beside the voice, each without a fifth of the speakers
(`voiceloop.listening.recipes.train_end_in_states`).
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from .end_of_voice import fold_of
from .errors import AudioError

STATES_WEIGHTS = Path(__file__).parent / "embedded" / "end_of_voice" / "end_in_states.safetensors"
N_TOKENS = 2  # the last that were written: mostly a word and its mark
LAYER = 4  # of Moonshine's 0 to 5: the first tells 0.83, this one 0.94, the last 0.92 (area)
# Of the voice's log-odds: 0, 0.3 and 0.6 were tried, each half of the speakers judged by the other.
VOICE_SHARE = 0.3
LARGEST_ADDED = 5.0  # log-odds

States = NDArray[np.float32]  # [N_TOKENS * 2 * width]


class EndInStates:
    """The heads of one file. Raises: AudioError where the file is none of these heads."""

    def __init__(self, path: Path = STATES_WEIGHTS) -> None:
        try:
            found = load_file(path)
            self._weights, self._bias = (found[name].astype(np.float32) for name in ("w", "b"))
        except (OSError, SafetensorError, KeyError) as error:
            raise AudioError(f"expected heads on a decoder's states at {path}: {error}") from error
        shapes = self._weights.ndim, self._bias.shape
        if shapes != (2, self._weights.shape[:1]):
            raise AudioError(f"expected w [folds, width] and b [folds] in {path}, found {shapes}")
        if not (np.isfinite(self._weights).all() and np.isfinite(self._bias).all()):
            raise AudioError(f"{path} holds numbers that are not finite")
        self.width = self._weights.shape[1]

    def log_odds(self, states: States) -> float:
        """Return the log odds that the states add to VOICE_SHARE of the voice's: the mean."""
        return float(np.mean(self._of_folds(states)))

    def unheard_log_odds(self, states: States, speaker: str) -> float:
        """The same by the head that was trained without this speaker of the training set."""
        return float(self._of_folds(states)[fold_of(speaker, len(self._bias))])

    def _of_folds(self, states: States) -> NDArray[np.float32]:
        added: NDArray[np.float32] = self._weights @ states + self._bias
        return np.clip(added, -LARGEST_ADDED, LARGEST_ADDED)


def joined(voice: float, by_words: float | None) -> float:
    """Return the log odds by both; by_words: None where no words were written."""
    return voice if by_words is None else VOICE_SHARE * voice + by_words
