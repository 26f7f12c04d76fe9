"""Owns drafting for one engine: who guesses at which reply, how much, and whether it pays."""

import logging
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from weakref import WeakKeyDictionary

from ..reply import Reply
from ..sequence import Sequence
from .draft_length import DraftLength
from .drafters import Drafter

log = logging.getLogger(__name__)


class Speculation:
    """The drafters of one engine, in order of preference, each with its own draft length.

    A guess is optional: a drafter that fails is dropped with all it holds, and no reply is hurt.
    """

    def __init__(
        self, drafters: Iterable[Drafter], n_most: int, clock: Callable[[], float]
    ) -> None:
        lengths = range(1, n_most + 1)
        self._drafters = [(drafter, DraftLength(lengths)) for drafter in drafters]
        self._clock = clock
        # By reply: whose guesses its next step verifies.
        self._used: WeakKeyDictionary[Reply, DraftLength] = WeakKeyDictionary()
        self.is_behind = False  # some drafter may have staged words to read

    @property
    def names(self) -> list[str]:
        return [drafter.name for drafter, _ in self._drafters]

    def propose(self, branch_id: str, target: Sequence, reply: Reply, n_replies: int) -> list[int]:
        """Guesses at one of `n_replies` that the next step decodes, from the first with any."""
        n_left = reply.params.max_tokens - len(reply.tokens) - 1
        self._used.pop(reply, None)
        is_plain_due = any(length.is_plain_due for _, length in self._drafters)
        for drafter, length in [] if is_plain_due else self._drafters:
            n_most = min(length.choose(n_replies), n_left)
            if n_most <= 0:
                continue
            started = self._clock()
            try:
                guesses = drafter.propose(branch_id, target, reply, n_most)
            except Exception:
                self._drop(drafter)
                continue
            if guesses is None:
                continue
            guesses = guesses[:n_most]
            length.drafted(n_replies, len(guesses), (self._clock() - started) * 1e3)
            if guesses:
                self._used[reply] = length
                return guesses
        return []

    def guess_opening(self, reply: Reply, prompt: list[int]) -> None:
        """Have the prompt's own step verify how the reply may begin, where it verifies nothing."""
        n_most = reply.params.max_tokens - 1
        for drafter, length in [] if reply.proposals else self._drafters:
            if length.is_on and (guesses := drafter.opening(prompt)[:n_most]):
                reply.proposals, self._used[reply] = guesses, length
                return

    def words_staged(self) -> None:
        """The target has read words of an open turn, which drafters in use may read too."""
        self.is_behind = any(length.is_on for _, length in self._drafters)

    def stage(
        self, opened: Iterable[tuple[str, Sequence]], interrupted: Callable[[], bool] | None
    ) -> None:
        """Have drafters that are in use read what is staged, while nothing else is due.

        opened: of each open branch its id and sequence. interrupted: whether a commit waits.
        """
        drafters = [drafter for drafter, length in self._drafters if length.is_on]
        for branch_id, target in opened:
            for drafter in drafters:
                if interrupted is not None and interrupted():
                    return  # what is left is asked for again
                try:
                    has_more = drafter.stage(branch_id, target)
                except Exception:
                    self._drop(drafter)
                    return  # what is left for others is asked for again
                if has_more:
                    return  # a chunk a step: others may have work by now
        self.is_behind = False

    def _drop(self, failed: Drafter) -> None:
        """Go on without a drafter whose error is being handled."""
        log.exception("%s failed, and drafts no more until the next start", failed.name)
        self._drafters = [one for one in self._drafters if one[0] is not failed]

    def has_guessed(self, reply: Reply) -> bool:
        """Whether a drafter here proposed what the step under way verifies for this reply."""
        return reply in self._used

    def verified(self, decoded: Items[tuple[Reply, int, int]], elapsed_ms: float | None) -> None:
        """Learn from a step's guesses: each reply that it decoded, its guesses, and its hits.

        elapsed_ms: of a step that served nothing else.
        """
        used = [self._used.pop(reply, None) for reply, _, _ in decoded]
        n = len(decoded)
        for _, length in self._drafters:
            n_drafted = n_accepted = 0
            for (_, n_guesses, n_hits), whose in zip(decoded, used, strict=True):
                if whose is length:
                    length.verified(n_guesses, n_hits)
                    n_drafted, n_accepted = n_drafted + n_guesses, n_accepted + n_hits
            is_own = all(
                whose is length or (whose is None and not n_guesses)
                for (_, n_guesses, _), whose in zip(decoded, used, strict=True)
            )
            length.stepped(n, n + n_drafted, n_accepted / n, elapsed_ms if is_own else None)

    def forget(self, branch_id: str, committed: list[int]) -> None:
        """The branch ended; committed: what of it others may share."""
        for drafter, _ in self._drafters:
            drafter.forget(branch_id, committed)
