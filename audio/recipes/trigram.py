"""A trigram language model from weighted sentences: Witten-Bell, pruned, written as ARPA.

Witten-Bell needs no counts of counts, so sources may have fractional weights.
Source: Chen & Goodman 1998, "An Empirical Study of Smoothing Techniques for Language Modeling";
the pruning criterion is Seymore & Rosenfeld 1996, "Scalable Backoff Language Models".
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Gram: TypeAlias = tuple[str, ...]
Counts: TypeAlias = defaultdict[Gram, float]

START, END = "<s>", "</s>"
FLOOR = -99.0  # log10 of "never", as ARPA writes it
UNSEEN = 0.5  # count added to each word, so that one that was never seen stays possible


@dataclass(frozen=True, slots=True)
class TrigramModel:
    """log10 probabilities and back-off weights of all grams kept, by order 1..3."""

    probabilities: tuple[dict[Gram, float], ...]
    backoffs: dict[Gram, float]

    def log_probability(self, word: str, history: Gram) -> float:
        """log10 P(word | history); history holds at most two words."""
        gram = (*history, word)
        if len(gram) == 1:
            return self.probabilities[0].get(gram, FLOOR)
        found = self.probabilities[len(gram) - 1].get(gram)
        if found is not None:
            return found
        return self.backoffs.get(history, 0.0) + self.log_probability(word, history[1:])

    def perplexity(self, sentences: Iterable[Sequence[str]]) -> float:
        """Return the perplexity of sentences, words outside the vocabulary left out."""
        total, n_words = 0.0, 0
        for sentence in sentences:
            history: Gram = (START,)
            for word in [*(w for w in sentence if (w,) in self.probabilities[0]), END]:
                total += self.log_probability(word, history)
                n_words += 1
                history = (*history, word)[-2:]
        return 10 ** (-total / max(1, n_words))


def build_trigram(
    sentences: Iterable[tuple[Sequence[str], float]],
    vocabulary: frozenset[str],
    *,
    min_bigram: float,
    min_trigram: float,
    prune: float,
) -> TrigramModel:
    """A model of weighted sentences; words outside the vocabulary break the history.

    min_bigram, min_trigram: counts below which a gram is dropped. prune: a gram is dropped when
    its weight times the gain in log probability over backing off is less.
    """
    counts = _count(sentences, vocabulary)
    kept: list[dict[Gram, float]] = [_unigrams(counts[0], vocabulary)]
    for order, minimum in ((2, min_bigram), (3, min_trigram)):
        kept.append(_interpolate(counts[order - 1], kept[-1], minimum))
    for order in (3, 2):  # a bigram stays while it is the history of a trigram that stays
        _prune(kept, counts, order, prune)
    logs = tuple({g: math.log10(p) for g, p in grams.items()} for grams in kept)
    logs[0][(START,)] = FLOOR
    return TrigramModel(logs, _backoffs(kept))


def write_arpa(model: TrigramModel, path: Path) -> None:
    """The ARPA text form, which every n-gram tool reads."""
    with path.open("w") as out:
        out.write("\\data\\\n")
        for order, grams in enumerate(model.probabilities, start=1):
            out.write(f"ngram {order}={len(grams)}\n")
        for order, grams in enumerate(model.probabilities, start=1):
            out.write(f"\n\\{order}-grams:\n")
            for gram in sorted(grams):
                backoff = f"\t{model.backoffs.get(gram, 0.0):.4f}" if order < 3 else ""
                out.write(f"{grams[gram]:.4f}\t{' '.join(gram)}{backoff}\n")
        out.write("\n\\end\\\n")


def _count(
    sentences: Iterable[tuple[Sequence[str], float]], vocabulary: frozenset[str]
) -> tuple[Counts, Counts, Counts]:
    counts: tuple[Counts, Counts, Counts] = (
        defaultdict(float), defaultdict(float), defaultdict(float),
    )  # fmt: skip
    for sentence, weight in sentences:
        history: Gram = (START,)
        for word in [*sentence, END]:
            if word != END and word not in vocabulary:
                history = ()
                continue
            for order in range(1, len(history) + 2):
                counts[order - 1][(*history, word)[-order:]] += weight
            history = (*history, word)[-2:]
    return counts


def _unigrams(counts: Counts, vocabulary: frozenset[str]) -> dict[Gram, float]:
    words = sorted(vocabulary | {END})
    total = sum(counts.values()) + UNSEEN * len(words)
    return {(w,): (counts.get((w,), 0.0) + UNSEEN) / total for w in words}


def _interpolate(counts: Counts, lower: dict[Gram, float], minimum: float) -> dict[Gram, float]:
    """P(w | h) = (c(h w) + T(h) P(w | h')) / (c(h) + T(h)), T: kinds of words seen after h."""
    history_counts: defaultdict[Gram, float] = defaultdict(float)
    kinds: Counter[Gram] = Counter()
    for gram, count in counts.items():
        history_counts[gram[:-1]] += count
        kinds[gram[:-1]] += 1
    return {
        gram: (count + kinds[h] * lower[gram[1:]]) / (history_counts[h] + kinds[h])
        for gram, count in counts.items()
        if count >= minimum and gram[1:] in lower and (len(h := gram[:-1]) == 1 or h in lower)
    }


def _prune(
    kept: list[dict[Gram, float]], counts: Sequence[Counts], order: int, threshold: float
) -> None:
    grams = kept[order - 1]
    needed = {gram[:-1] for gram in kept[order]} if order < 3 else set()
    needed |= {gram[1:] for gram in kept[order]} if order < 3 else set()
    backoffs = _backoffs(kept)
    dropped = [
        gram
        for gram, probability in grams.items()
        if gram not in needed
        and counts[order - 1][gram]
        * (
            math.log(probability)
            - math.log(kept[order - 2][gram[1:]])
            - math.log(10) * backoffs.get(gram[:-1], 0.0)
        )
        < threshold
    ]
    for gram in dropped:
        del grams[gram]


def _backoffs(kept: Sequence[dict[Gram, float]]) -> dict[Gram, float]:
    """log10 of the mass left for backing off from a history, over what it covers there."""
    backoffs: dict[Gram, float] = {}
    for order in (2, 3):
        if order > len(kept):
            break
        used: defaultdict[Gram, float] = defaultdict(float)
        covered: defaultdict[Gram, float] = defaultdict(float)
        for gram, probability in kept[order - 1].items():
            used[gram[:-1]] += probability
            covered[gram[:-1]] += kept[order - 2][gram[1:]]
        for history in used:
            left = max(1e-6, 1.0 - used[history]) / max(1e-6, 1.0 - covered[history])
            backoffs[history] = math.log10(left)
    return backoffs
