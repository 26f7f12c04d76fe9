"""Rows of a step on a CPU: what each more costs, and whether any of them changes a reply."""

from __future__ import annotations

import random
import time

from benchmarks.engine.models import embedded_model
from benchmarks.engine.setting import Setting, drain, median, paired
from benchmarks.harness.harness import Bar, interleaved
from engine.engine import Engine
from engine.runner import Extension
from engine.sequence import borrowed
from engine.types import SamplingParams

N_BEFORE = 300  # tokens before the rows: instructions and some turns of a call
ROWS = (1, 2, 3, 5, 8)
N_REPLIES = 1000
N_TOKENS = 16  # of each of those: a sentence


def rows(setting: Setting) -> list[Bar]:
    """A step of 2, 3, 5 and 8 rows over one: processor time, which company moves least.

    Layers, head and what stands around them in Python; a served step samples and says words too.
    """
    engine = setting.engine()
    ms: dict[str, list[float]] = {str(n): [] for n in ROWS}
    with borrowed(engine.pool, engine.tree, setting.words(N_BEFORE + max(ROWS), 1)) as sequence:
        engine.runner.run([Extension(sequence, N_BEFORE, n_logits=1)])
        sequence.n_resident = N_BEFORE
        for turn in interleaved(list(ms), 40 * setting.repeats, warm_up=2):
            n_rows = int(turn.variant)
            started = time.process_time()
            engine.runner.step([Extension(sequence, n_rows, n_logits=n_rows)])
            if not turn.is_warm_up:
                ms[turn.variant].append((time.process_time() - started) * 1e3)
    for n_rows, taken in ms.items():
        ratio = paired(taken, ms["1"])
        setting.tell(f"{n_rows} rows: {median(taken):.2f} ms, {ratio:.2f}x, least {min(taken):.2f}")
    return [
        Bar("a step of eight rows over one", paired(ms["8"], ms["1"]), 1.8, "x"),
        Bar("a step of five rows over one", paired(ms["5"], ms["1"]), 1.5, "x"),
    ]


def same_replies(setting: Setting) -> list[Bar]:
    """1,000 short replies with the drafters that are served and without: how many part.

    How much is drafted changes at random from step to step; half of the replies are greedy, half
    drawn with a seed.
    """
    is_embedded = setting.model_dir == embedded_model()
    plain = setting.engine(max_draft_tokens=0)
    drafted = setting.engine(
        ngram_draft=True, draft_dir=embedded_model("draft") if is_embedded else None
    )
    chance = random.Random(setting.seed)
    n_most = drafted.config.max_draft_tokens
    for _, length in drafted.speculation._drafters:
        length.choose = lambda *_: chance.randint(1, n_most)  # type: ignore[method-assign]
    n_parted = 0
    for i in range(N_REPLIES):
        params = SamplingParams(
            max_tokens=N_TOKENS,
            ignore_eos=not setting.is_trained,
            temperature=0.7 * (i % 2),
            seed=i,
        )
        prompt = setting.question(plain, i)
        said = [_reply(engine, prompt, params) for engine in (plain, drafted)]
        n_parted += said[0] != said[1]
    totals = drafted.metrics()
    setting.tell(
        f"{totals['accepted_tokens']:.0f} of {totals['drafted_tokens']:.0f} guesses stood, "
        f"{n_parted} of {N_REPLIES} replies part"
    )
    return [Bar("drafted and undrafted replies that part", n_parted, 0, "", n=N_REPLIES)]


def _reply(engine: Engine, prompt: list[int], params: SamplingParams) -> list[int]:
    branch = engine.branch("b")
    branch.commit(prompt, params)
    drain(engine)
    tokens = branch.sequence.tokens[len(prompt) :]
    branch.close()
    return tokens
