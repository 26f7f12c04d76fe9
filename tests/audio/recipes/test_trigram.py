"""The trigram builder: probabilities that sum to one, back-off that works, files others read."""

import pytest

from audio.recipes.trigram import build_trigram

TEXT = [
    ("i would like a latte", 2.0),
    ("i would like a muffin", 1.0),
    ("a latte please", 1.0),
    ("what time do you open", 3.0),
    ("do you open on friday", 1.0),
]
SENTENCES = [(text.split(), weight) for text, weight in TEXT]
VOCABULARY = frozenset(word for words, _ in SENTENCES for word in words) | {"zebra"}


def build(**options):
    settings = {"min_bigram": 0.0, "min_trigram": 0.0, "prune": 0.0} | options
    return build_trigram(SENTENCES, VOCABULARY, **settings)


@pytest.mark.parametrize("prune", [0.0, 1.0])
@pytest.mark.parametrize("history", [(), ("<s>",), ("a",), ("would", "like"), ("zebra", "a")])
def test_probabilities_after_any_history_sum_to_one(history, prune):
    model = build(prune=prune)
    total = sum(10 ** model.log_probability(w, history) for w in VOCABULARY | {"</s>"})
    assert total == pytest.approx(1.0, abs=1e-3)


def test_what_was_seen_is_likelier_than_what_was_not():
    model = build()
    seen = model.log_probability("latte", ("like", "a"))
    assert seen > model.log_probability("muffin", ("like", "a"))
    assert model.log_probability("zebra", ("like", "a")) > -6


def test_pruning_drops_grams_and_keeps_the_model_usable():
    full, pruned = build(), build(prune=2.0)
    assert len(pruned.probabilities[2]) < len(full.probabilities[2])
    sentences = [words for words, _ in SENTENCES]
    assert full.perplexity(sentences) < pruned.perplexity(sentences) < 10
