"""Owns how many tokens are worth drafting, and whether drafting pays at all.

Pure: measured times and accepted guesses in, a number out.
"""

from collections import deque
from collections.abc import Iterable
from statistics import median

START_ACCEPTANCE = 0.7  # of each try: optimistic, for the first guesses tell
MEMORY = 0.9  # weight of the past in an acceptance
N_KEPT = 5  # measurements of a cost, whose median is taken: one held-up step is not seen in it
MARGIN = 0.05  # of a plain step: what a try must promise to go on
N_FIRST = 4  # plain steps before the first try: there is nothing to compare with
PATIENCE = 4.0  # plain steps a try may lose, the reading of a prompt included
RETRY = 64  # plain steps from one try to the next, at least
SHARE = 1 / 32  # of all plain steps: what tries that lose may cost
PLAIN_EVERY = 32  # drafted steps from one plain step to the next: its cost changes with the load


class DraftLength:
    """How many tokens one drafter drafts: as many as make a token cheapest, or none.

    A step's cost is known by replies and tokens for each. Acceptance is each request's own, and
    starts at the mean of all. Once no length gains, plain steps follow, in proportion to what the
    try has lost; then the next try. So over time a bad drafter costs `SHARE`, and its first try.
    """

    def __init__(self, lengths: Iterable[int], n_held: int = 1) -> None:
        """lengths: how many may be drafted, apart from none. n_held: steps a choice holds for."""
        self._lengths, self._n_held = tuple(lengths), n_held
        self.acceptance = START_ACCEPTANCE
        self._acceptance_of: dict[str, float] = {}  # by branch
        self._step_ms: dict[tuple[int, int], deque[float]] = {}  # by replies, and tokens for each
        self._draft_ms: deque[float] = deque(maxlen=N_KEPT)  # per drafted token
        self._n_off = N_FIRST  # plain steps until the next try
        self._lost_ms = 0.0  # by the try, beyond plain steps for as many tokens
        self._n_since_plain = 0

    @property
    def is_plain_due(self) -> bool:
        """Whether no drafter may guess at the coming step, so that a plain one is measured."""
        return self._n_since_plain >= PLAIN_EVERY * self._n_held

    def choose(self, branch_id: str, n_replies: int) -> int:
        """How many tokens to draft for one of `n_replies` that share the coming step."""
        is_off = self._n_off > 0 or self.is_plain_due or not self._lengths
        if is_off or (n_replies, 0) not in self._step_ms:
            return 0
        acceptance = self._acceptance_of.get(branch_id, self.acceptance)
        return min(self._lengths, key=lambda n: self._ms_per_token(n_replies, n, acceptance))

    def drafted(self, n_replies: int, n_drafted: int, elapsed_ms: float) -> None:
        """Learn what drafting for one of `n_replies` costs, reading a prompt included."""
        self._lost_ms += elapsed_ms
        if n_drafted:
            self._draft_ms.append(elapsed_ms / n_drafted)
        elif (n_replies, 0) in self._step_ms:  # there will be nothing to verify
            self._judge(n_replies)

    def verified(self, branch_id: str, n_drafted: int, n_accepted: int) -> None:
        """Learn how many guesses at one reply stood."""
        for i in range(min(n_accepted + 1, n_drafted)):  # what follows a wrong one tells nothing
            new = (1 - MEMORY) * (i < n_accepted)
            own = self._acceptance_of.get(branch_id, self.acceptance)
            self._acceptance_of[branch_id] = MEMORY * own + new
            self.acceptance = MEMORY * self.acceptance + new

    def stepped(
        self, n_replies: int, n_drafted: int, n_accepted: float, elapsed_ms: float | None
    ) -> None:
        """Book a step: so many guesses at each of its replies, so many accepted on average.

        elapsed_ms: None where the step had company; then it cost what such steps did before.
        """
        if elapsed_ms is not None:
            known = self._step_ms.setdefault((n_replies, n_drafted), deque(maxlen=N_KEPT))
            known.append(elapsed_ms)
            self._n_since_plain = self._n_since_plain + 1 if n_drafted else 0
        if (n_replies, 0) not in self._step_ms:
            return
        if n_drafted:
            step_ms = elapsed_ms or self._cost_ms(n_replies, n_drafted)
            self._lost_ms += step_ms - (1 + n_accepted) * self._cost_ms(n_replies, 0)
            self._judge(n_replies)
        elif self._n_off > 0:
            self._n_off -= 1
            if self._n_off == 0:
                self._begin_try()

    def forget(self, branch_id: str) -> None:
        self._acceptance_of.pop(branch_id, None)

    def _begin_try(self) -> None:
        """Judge afresh: of what drafting took before, the newest measurement alone counts."""
        self._lost_ms, self.acceptance = 0.0, START_ACCEPTANCE
        self._acceptance_of.clear()
        for known in [self._draft_ms, *(ms for (_, n), ms in self._step_ms.items() if n)]:
            while len(known) > 1:
                known.popleft()

    def _judge(self, n_replies: int) -> None:
        """End the try where no length gains, or it has lost enough; gains so far lower the bar."""
        plain_ms = self._cost_ms(n_replies, 0)
        bar_ms = plain_ms if self._lost_ms < 0 else (1 - MARGIN) * plain_ms
        costs_ms = [self._ms_per_token(n_replies, n, self.acceptance) for n in self._lengths]
        if min(costs_ms, default=plain_ms) > bar_ms or self._lost_ms > PATIENCE * plain_ms:
            n_owed = int(self._lost_ms / plain_ms / SHARE)
            self._n_off = max(self._n_off, RETRY * self._n_held, n_owed)

    def _ms_per_token(self, n_replies: int, n_drafted: int, acceptance: float) -> float:
        draft_ms = median(self._draft_ms) if self._draft_ms else 0.0
        step_ms = self._cost_ms(n_replies, n_drafted) + n_replies * n_drafted * draft_ms
        return step_ms / sum(acceptance**i for i in range(n_drafted + 1))

    def _cost_ms(self, n_replies: int, n_drafted: int) -> float:
        """Of a step; a few more rows cost a tenth of a plain one each until measured."""
        if known := self._step_ms.get((n_replies, n_drafted)):
            return median(known)
        return (1 + 0.1 * n_drafted) * median(self._step_ms[n_replies, 0])
