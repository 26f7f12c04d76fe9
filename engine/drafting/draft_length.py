"""Owns how many tokens are worth drafting, and whether drafting pays at all.

Pure: measured times and accepted guesses in, a number out. One object lives as long as its drafter:
what one reply taught, the next one's first token is decided by.
"""

from collections import deque
from collections.abc import Iterable
from statistics import median

START_ACCEPTANCE = 0.7  # of each try: optimistic, for the first guesses tell
MEMORY = 0.97  # weight of the past in an acceptance: some two spoken replies of guesses
PRIOR_GUESSES = 3  # that the first acceptance counts for, as long as there are few others
N_KEPT = 5  # measurements of a cost, whose median is taken: one held-up step is not seen in it
ROW_COST = 0.1  # of a plain step, for each row more, until such a step was measured
MARGIN = 0.05  # of a plain step: what drafting must promise to go on, where it has no gains to show
SHARE = 1 / 128  # of plain steps: what drafting may lose in the long run
CREDIT = 1.0  # plain steps that a try may lose: SHARE sets 128 of them between two
MOST_CREDIT = 8.0  # of gains: so many plain steps a good drafter may lose before it stands back
PLAIN_EVERY = 32  # drafted steps from one plain step to the next: its cost changes with the load


class DraftLength:
    """Chooses how many tokens one drafter drafts: as many as make a token cheapest, or none.

    Credit, in plain steps, pays for it: gains are added and losses taken off. Where it is used up,
    or no length promises a gain, plain steps follow until `SHARE` of them has made up for the loss
    and for the next try.
    """

    def __init__(self, lengths: Iterable[int]) -> None:
        """lengths: how many may be drafted, apart from none."""
        self._lengths = tuple(lengths)
        self.acceptance, self._n_judged = START_ACCEPTANCE, 0  # guesses seen since it began
        self._step_ms: dict[tuple[int, int], deque[float]] = {}  # by replies and rows
        self._draft_ms: deque[float] = deque(maxlen=N_KEPT)  # per drafted token
        self._credit = CREDIT
        self.is_on = bool(self._lengths)  # at present: what is read ahead is of use then alone
        self._n_since_plain = 0

    @property
    def is_plain_due(self) -> bool:
        """Whether no drafter may guess at the coming step, so that a plain one is measured."""
        return self._n_since_plain >= PLAIN_EVERY

    def choose(self, n_replies: int) -> int:
        """Choose how many tokens to draft for each of `n_replies` that share the coming step."""
        if not self.is_on or self.is_plain_due or (n_replies, n_replies) not in self._step_ms:
            return 0
        return min(self._lengths, key=lambda n: self._ms_per_token(n_replies, n))

    def drafted(self, n_replies: int, n_drafted: int, elapsed_ms: float) -> None:
        """Learn what drafting for one of `n_replies` costs, reading a prompt included."""
        if n_drafted:
            self._draft_ms.append(elapsed_ms / n_drafted)
        if (n_replies, n_replies) in self._step_ms:
            self._credit -= elapsed_ms / self._cost_ms(n_replies, n_replies)
            if not n_drafted:  # there will be nothing to verify
                self._judge(n_replies)

    def verified(self, n_drafted: int, n_accepted: int) -> None:
        """Learn how many guesses at one reply stood."""
        for i in range(min(n_accepted + 1, n_drafted)):  # what follows a wrong one tells nothing
            self._n_judged += 1
            share = max(1 - MEMORY, 1 / (self._n_judged + PRIOR_GUESSES))
            self.acceptance += share * ((i < n_accepted) - self.acceptance)

    def stepped(
        self, n_replies: int, n_rows: int, n_accepted: float, elapsed_ms: float | None
    ) -> None:
        """Book a step of so many rows, guesses included, and so many accepted for each reply.

        elapsed_ms: None where the step had company; then it cost what such steps did before.
        """
        is_plain = n_rows == n_replies
        if elapsed_ms is not None:
            known = self._step_ms.setdefault((n_replies, n_rows), deque(maxlen=N_KEPT))
            known.append(elapsed_ms)
            self._n_since_plain = 0 if is_plain else self._n_since_plain + 1
        if not self._lengths or (n_replies, n_replies) not in self._step_ms:
            return
        if not is_plain:
            cost = self._cost_ms(n_replies, n_rows) / self._cost_ms(n_replies, n_replies)
            gain = 1 + n_accepted - cost
            if len(self._step_ms.get((n_replies, n_rows), ())) == 1:
                # The first of so many rows may have been held up: it takes what there is at most.
                gain = max(gain, -max(self._credit, 0.0))
            self._credit = min(self._credit + gain, MOST_CREDIT)
            self._judge(n_replies)
        elif not self.is_on:
            self._credit += SHARE
            if self._credit >= CREDIT:  # again, judged afresh
                self.is_on = True
                self.acceptance, self._n_judged = START_ACCEPTANCE, 0
                self._draft_ms.clear()

    def _judge(self, n_replies: int) -> None:
        """Stand back where the credit is used up or no length gains; gains so far lower the bar."""
        bar = 1.0 if self._credit > CREDIT else 1 - MARGIN
        bar_ms = bar * self._cost_ms(n_replies, n_replies)
        best_ms = min(self._ms_per_token(n_replies, n) for n in self._lengths)
        if self._credit <= 0 or best_ms > bar_ms:
            self.is_on, self._credit = False, min(self._credit, 0.0)

    def _ms_per_token(self, n_replies: int, n_drafted: int) -> float:
        """Predict it of a step that verifies so many guesses a reply, guessing included."""
        draft_ms = median(self._draft_ms) if self._draft_ms else 0.0
        step_ms = self._cost_ms(n_replies, n_replies * (1 + n_drafted))
        n_tokens = sum(self.acceptance**i for i in range(n_drafted + 1))
        return (step_ms + n_replies * n_drafted * draft_ms) / n_tokens

    def _cost_ms(self, n_replies: int, n_rows: int) -> float:
        plain_ms = median(self._step_ms[n_replies, n_replies])
        if known := self._step_ms.get((n_replies, n_rows)):
            # Rows one after the other would take no longer: more is somebody else's time.
            return min(median(known), plain_ms * n_rows / n_replies)
        return (1 + ROW_COST * (n_rows - n_replies) / n_replies) * plain_ms
