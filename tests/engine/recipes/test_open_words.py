"""Values outside the word lists."""

from __future__ import annotations

import random

from engine.recipes.conversations.lexicon import DRINKS, FIRST_NAMES, is_held_out
from engine.recipes.conversations.open_words import draw


def test_training_values_leave_the_lists_but_never_meet_the_held_out_ones() -> None:
    rng = random.Random(2)
    for words in (FIRST_NAMES, DRINKS):
        drawn = {draw(rng, words, False) for _ in range(1500)}
        assert len(drawn - set(words)) > 150
        assert not any(is_held_out(word) for word in drawn)
        assert all(draw(rng, words, True) in words for _ in range(50))
