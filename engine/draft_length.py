"""Owns how many tokens are worth drafting, and when drafting should rest.

Pure: measured times and accepted guesses in, a number out.
"""

from collections.abc import Iterable


class RunningMean:
    """Of all values while they are few, then of about the last ten."""

    def __init__(self) -> None:
        self.value, self._n = 0.0, 0

    def add(self, value: float) -> None:
        self._n = min(self._n + 1, 10)
        self.value += (value - self.value) / self._n


class PlainSteps:
    """When all drafters stand back for a step.

    What a plain one costs changes with the machine's load and the context, and a drafter judged by
    an old cost may lose for ever. A step that had company tells nothing of that and is not counted.
    """

    def __init__(self, every: int = 16) -> None:
        """every: drafted steps after which one is plain."""
        self._every, self._n_drafted = every, 0

    def is_due(self) -> bool:
        return self._n_drafted >= self._every

    def stepped(self, n_drafted: int, elapsed_ms: float | None) -> None:
        """Count a step; arguments as in `DraftLength.stepped`."""
        if elapsed_ms is not None:
            self._n_drafted = self._n_drafted + 1 if n_drafted else 0


class DraftLength:
    """How many tokens to draft, and whether to: what measured costs and acceptance make cheapest.

    Costs are the drafter's, by the number of replies that share a step; acceptance is each
    request's own, and starts at the mean of all. The time that drafting took beyond plain steps for
    the same tokens is kept as a debt. At the price of `LIMIT` steps drafting rests, then tries
    again; a rest is never below `REPAID` times the debt, and doubles as long as trials lose. So
    over many replies less than a tenth is lost; the first trial can be a large part of a short one.
    """

    LIMIT = 2.0  # plain steps a trial may lose
    REST = 128  # plain steps after the first trial that lost
    LONGEST_REST = 4096  # unless a single trial costs more
    REPAID = 32  # plain steps of rest for each one lost
    N_MEASURED = 8  # plain steps before the first trial, for there is nothing to compare with
    MEMORY = 0.9  # weight of the past in a request's acceptance
    OUTLIER = 3.0  # times the mean: a step that took longer was held up by something else

    def __init__(self, lengths: Iterable[int]) -> None:
        """lengths: how many tokens may be drafted, apart from none."""
        self._lengths = tuple(lengths)
        self.acceptance = 0.7  # of all requests; optimistic: the first drafts tell
        self._acceptance_of: dict[str, float] = {}  # by branch
        self._step_ms: dict[tuple[int, int], RunningMean] = {}  # by replies, and tokens for each
        self._draft_ms = RunningMean()  # per drafted token
        self._debt_ms = 0.0
        self._rest, self._n_resting = self.REST, self.N_MEASURED

    def choose(self, branch_id: str, n_replies: int) -> int:
        """How many tokens to draft for one of `n_replies` that share the coming step."""
        plain_ms = self._plain_ms(n_replies)
        if self._n_resting > 0 or plain_ms is None or not self._lengths:
            return 0
        acceptance = self._acceptance_of.get(branch_id, self.acceptance)

        def ms_per_token(n_drafted: int) -> float:
            step_ms = self._expected_ms(n_replies, n_drafted, plain_ms)
            n_tokens = sum(acceptance**i for i in range(n_drafted + 1))
            return (step_ms + n_replies * n_drafted * self._draft_ms.value) / n_tokens

        return min(self._lengths, key=ms_per_token)

    def _expected_ms(self, n_replies: int, n_drafted: int, plain_ms: float) -> float:
        measured = self._step_ms.get((n_replies, n_drafted))
        # A few more rows cost a tenth of a step each until measured.
        return measured.value if measured else plain_ms * (1 + 0.1 * n_drafted)

    def _plain_ms(self, n_replies: int) -> float | None:
        measured = self._step_ms.get((n_replies, 0))
        return measured.value if measured else None

    def drafted(self, n_replies: int, n_drafted: int, elapsed_ms: float) -> None:
        """Learn what drafting for one of `n_replies` costs, reading a prompt included."""
        self._debt_ms += elapsed_ms
        if n_drafted:
            self._draft_ms.add(elapsed_ms / n_drafted)
        else:  # there will be nothing to verify
            self._settle(self._plain_ms(n_replies))

    def verified(self, branch_id: str, n_drafted: int, n_accepted: int) -> None:
        """Learn how many guesses at one reply stood."""
        n_tried = min(n_accepted + 1, n_drafted)  # guesses after the first wrong one tell nothing
        for i in range(n_tried):
            stood = float(i < n_accepted)
            own = self._acceptance_of.get(branch_id, self.acceptance)
            self._acceptance_of[branch_id] = self._mean(own, stood)
            self.acceptance = self._mean(self.acceptance, stood)

    def stepped(
        self, n_replies: int, n_drafted: int, n_accepted: float, elapsed_ms: float | None
    ) -> None:
        """Book a step: so many guesses at each of its replies, so many accepted on average.

        elapsed_ms: None where the step had company; then it cost what such steps did before.
        """
        if elapsed_ms is not None:
            known = self._step_ms.setdefault((n_replies, n_drafted), RunningMean())
            elapsed_ms = min(elapsed_ms, self.OUTLIER * (known.value or elapsed_ms))
            known.add(elapsed_ms)
        plain_ms = self._plain_ms(n_replies)
        if plain_ms is None:
            return
        if n_drafted:
            step_ms = elapsed_ms or self._expected_ms(n_replies, n_drafted, plain_ms)
            self._debt_ms += step_ms - (1 + n_accepted) * plain_ms
            self._settle(plain_ms)
        else:
            self._n_resting -= 1

    def _settle(self, plain_ms: float | None) -> None:
        """Beyond the limit, rest."""
        if plain_ms is None:
            return
        limit_ms = self.LIMIT * plain_ms
        if self._debt_ms > limit_ms:
            self._n_resting = max(self._rest, int(self.REPAID * self._debt_ms / plain_ms))
            self._debt_ms, self._rest = 0.0, min(2 * self._rest, self.LONGEST_REST)
        elif self._debt_ms < -limit_ms:  # past gains are no licence to lose for long
            self._debt_ms, self._rest = -limit_ms, self.REST

    def forget(self, branch_id: str) -> None:
        self._acceptance_of.pop(branch_id, None)

    def _mean(self, known: float, new: float) -> float:
        return self.MEMORY * known + (1 - self.MEMORY) * new
