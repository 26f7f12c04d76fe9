"""How well retrieval finds the page that answers, where words were misheard; and what it costs.

    python -m benchmarks.knowledge_bench [--check]

A made-up folder of 300 pages (50 products, 6 subjects each) and four questions about each. A share
of each question's words is heard wrong: one in five of these is lost, the others become one of the
eight words that sound nearest by CMU's pronouncing dictionary, which knows nothing of the index.
Either any words are, or as many of the words that carry the content, which is harder.
Recall@4: the share of questions of which one of the four passages found is of the page that
answers. Weights were chosen on every other product; the figures are of the rest. Beside it stands
spelling alone: the same index without the column of sounds.
Searches are timed one after the other, on the machine as it is.
"""

import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import Bar
from benchmarks.knowledge.corpus import PRODUCTS, Question, pages, questions
from benchmarks.knowledge.mishear import Mishearing
from clients.errors import ClientError
from clients.report.percentiles import percentile
from voiceloop.knowledge.index import FUNCTION_WORDS, KnowledgeIndex
from voiceloop.knowledge.passages import passages_of

SEED = 20261122
SHARES = (0.0, 0.2, 0.4)
BAR_SHARE = 0.2
N_FOUND = 4
LEAST_RECALL_PERCENT = 75.0
MOST_SEARCH_MS = 5.0  # what a turn allows for it: one that is hidden costs nothing, this one little


def dictionary() -> Path:
    """Raises: ClientError: pocketsphinx, whose dictionary it is, is not installed."""
    try:
        import pocketsphinx
    except ImportError:
        raise ClientError(
            "expected pocketsphinx with CMU's dictionary, found none: "
            "pip install 'pocketsphinx==5.1.1' on Python 3.11"
        ) from None
    return Path(pocketsphinx.get_model_path("en-us")) / "cmudict-en-us.dict"


def recall(
    index: KnowledgeIndex, asked: Sequence[Question], heard: Sequence[str]
) -> tuple[float, list[float]]:
    """The share of questions whose page was found, and the milliseconds of each search."""
    n_right, took_ms = 0, []
    for question, text in zip(asked, heard, strict=True):
        began_s = time.perf_counter()
        hits = index.find(text, N_FOUND)
        took_ms.append((time.perf_counter() - began_s) * 1e3)
        n_right += any(hit.passage.path == question.path for hit in hits)
    return n_right / len(asked), took_ms


def main() -> int:
    command = Benchmark("knowledge_bench", "Recall of misheard questions, and its cost.")
    command.parse()
    chosen = set(PRODUCTS[1::2])
    asked = [question for question in questions() if question.product in chosen]
    began_s = time.perf_counter()
    passages = tuple(passages_of(pages(SEED)))
    full = KnowledgeIndex(passages)
    build_ms = (time.perf_counter() - began_s) * 1e3
    spelling = KnowledgeIndex(passages, with_sounds=False)
    rows = []
    spared = {"any": frozenset[str](), "content": FUNCTION_WORDS["en"]}
    for share, kind in product(SHARES, spared):
        mishearing = Mishearing(dictionary(), SEED)
        heard = [mishearing.hear(question.text, share, spared[kind]) for question in asked]
        found, took_ms = recall(full, asked, heard)
        by_spelling, _ = recall(spelling, asked, heard)
        rows.append(
            {
                "misheard": share,
                "of_words": kind,
                "recall_at_4": round(found, 4),
                "recall_at_4_spelling_alone": round(by_spelling, 4),
                "search_p50_ms": round(percentile(took_ms, 50), 3),
                "search_p95_ms": round(percentile(took_ms, 95), 3),
                "n_questions": len(asked),
            }
        )
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()))
    bars = []
    for row in rows:
        if row["misheard"] == BAR_SHARE and row["of_words"] == "any":
            name = f"recall@{N_FOUND} with {BAR_SHARE:.0%} of the words misheard"
            bars.append(
                Bar(name, 100 * row["recall_at_4"], LEAST_RECALL_PERCENT, "%", at_least=True)
            )
            bars.append(Bar("search p95", row["search_p95_ms"], MOST_SEARCH_MS))
    print(f"{len(passages)} passages indexed in {build_ms:.0f} ms")
    settings = {"seed": SEED, "n_passages": len(passages)}
    return command.finish(settings, bars, rows=rows, build_ms=round(build_ms, 1))


if __name__ == "__main__":
    sys.exit(run(main))
