"""Rows of a step on a CPU: what each more costs, and whether any of them changes a reply."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence as Items
from operator import ne

from benchmarks.engine.models import embedded_model
from benchmarks.engine.setting import Setting, drain, median, paired
from benchmarks.harness.harness import Bar, interleaved
from engine.drafting.speculation import Speculation
from engine.engine import Engine
from engine.reply import Reply
from engine.runner import Extension
from engine.sequence import Sequence, borrowed
from engine.types import SamplingParams

N_BEFORE = 300  # tokens before the rows: instructions and some turns of a call
ROWS = (1, 2, 3, 5, 8)
N_REPLIES = 1000
N_TOKENS = 16  # of each of those: a sentence
MOST_TOGETHER = 4


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
    """1,000 short replies, as served and drafted for, beside the same alone and undrafted."""
    is_embedded = setting.model_dir == embedded_model()
    plain = setting.engine(max_draft_tokens=0)
    drafted = setting.engine(
        ngram_draft=True, draft_dir=embedded_model("draft") if is_embedded else None
    )
    prompts = [setting.question(plain, i) for i in range(N_REPLIES)]
    n_parted, told = parted(
        plain, drafted, prompts, setting.seed, ignore_eos=not setting.is_trained
    )
    setting.tell(told)
    return [Bar("drafted and undrafted replies that part", n_parted, 0, "", n=N_REPLIES)]


class Foretold:
    """A drafter that knows what replies say: three of its four guesses are right.

    said: by branch. For models that repeat nothing, of which n-grams know nothing either.
    """

    name = "one that knows"

    def __init__(self, seed: int) -> None:
        self.said: dict[str, list[int]] = {}
        self._chance = random.Random(seed)

    def propose(self, branch_id: str, target: Sequence, reply: Reply, n_most: int) -> list[int]:
        first = len(reply.tokens)
        coming = self.said[branch_id][first : first + n_most]
        return [token if self._chance.random() < 0.75 else 0 for token in coming]

    def stage(self, branch_id: str, target: Sequence) -> bool:
        return False

    def forget(self, branch_id: str, committed: list[int]) -> None:
        pass


def parted(
    plain: Engine, drafted: Engine, prompts: Items[list[int]], seed: int, *, ignore_eos: bool,
    foretold: Foretold | None = None,
) -> tuple[int, str]:  # fmt: skip
    """How many replies differ, and a sentence on them. plain: an engine without drafters.

    foretold: to be the other engine's drafter.

    There each is made alone. Of the other engine's up to four run at once, half of the time beside
    words that are read meanwhile; how much is drafted changes at random from step to step. Half of
    the replies are greedy, half drawn with a seed.
    """
    chance, n_most = random.Random(seed), drafted.config.max_draft_tokens
    if foretold is not None:
        drafted.speculation = Speculation([foretold], n_most, drafted.clock)
    for _, length in drafted.speculation._drafters:
        length.choose = lambda *_: chance.randint(1, n_most)  # type: ignore[method-assign]
    asked = [
        (prompt, SamplingParams(N_TOKENS, temperature=0.7 * (i % 2), seed=i, ignore_eos=ignore_eos))
        for i, prompt in enumerate(prompts)
    ]
    n_parted = first = 0
    while first < len(asked):
        together = asked[first : first + chance.randint(1, MOST_TOGETHER)]
        first += len(together)
        alone = [_replies(plain, [one])[0] for one in together]
        if foretold is not None:
            foretold.said = {f"b{i}": said for i, said in enumerate(alone)}
        beside = chance.choice(prompts)[::-1] if chance.random() < 0.5 else []
        n_parted += sum(map(ne, alone, _replies(drafted, together, beside)))
    totals = drafted.metrics()
    return n_parted, (
        f"{totals['accepted_tokens']:.0f} of {totals['drafted_tokens']:.0f} guesses stood, "
        f"{n_parted} of {len(asked)} replies part"
    )


def _replies(
    engine: Engine, asked: Items[tuple[list[int], SamplingParams]], beside: Items[int] = ()
) -> list[list[int]]:
    """All at once. beside: words that somebody else's branch reads meanwhile."""
    branches = [engine.branch(f"b{i}") for i in range(len(asked))]
    if beside:
        branches.append(engine.branch("beside"))
        branches[-1].stage(beside)
    for branch, (prompt, params) in zip(branches, asked, strict=False):
        branch.commit(prompt, params)
    drain(engine)
    said = [
        branch.sequence.tokens[len(prompt) :]
        for branch, (prompt, _) in zip(branches, asked, strict=False)
    ]
    for branch in branches:
        branch.close()
    return said
