"""Owns drafting: guesses at the next tokens of a reply, and how many of them are worth a guess.

A drafter may say what it likes; the engine samples every position anyway (see `sampler`) and keeps
a guess only where it is what was sampled. So the reply is the same with any drafter or none.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from typing import Protocol

from torch import Tensor

from .device import MakeRunner
from .model import Decoder
from .prefix_tree import PrefixTree
from .reply import Reply
from .runner import Extension
from .sampler import choose, penalize
from .sequence import Sequence
from .types import BLOCK_TOKENS, EngineConfig, OutOfMemory

CATCH_UP_TOKENS = 64  # of a prompt a draft model reads per step, so that no step waits for it


class Drafter(Protocol):
    def propose(self, branch_id: str, target: Sequence, reply: Reply, n_most: int) -> list[int]:
        """Up to `n_most` guesses at what follows the target's tokens (prompt and reply so far)."""
        ...

    def forget(self, branch_id: str) -> None:
        """The branch ended."""
        ...


class NgramDrafter:
    """Whatever followed the last time the same few tokens stood at the end.

    Strong where a reply repeats the conversation: read-backs, names, tool arguments.
    Source: prompt lookup decoding (Saxena 2023); longest match first.
    """

    SIZES = (4, 3, 2)

    def __init__(self) -> None:
        self._indices: dict[str, _NgramIndex] = {}

    def propose(self, branch_id: str, target: Sequence, reply: Reply, n_most: int) -> list[int]:
        tokens = target.tokens
        index = self._indices.setdefault(branch_id, _NgramIndex())
        index.update(tokens, reply.n_prompt)
        for size in self.SIZES:
            place = index.ends.get(tuple(tokens[-size:])) if len(tokens) > size else None
            if place is not None:
                return tokens[place : place + n_most]
        return []

    def forget(self, branch_id: str) -> None:
        self._indices.pop(branch_id, None)


class _NgramIndex:
    """Where each n-gram of a conversation last ended, the one at its very end left out."""

    def __init__(self) -> None:
        self.ends: dict[tuple[int, ...], int] = {}
        self._n_done = 0
        self._n_prompt = 0

    def update(self, tokens: list[int], n_prompt: int) -> None:
        if n_prompt != self._n_prompt:  # another turn: the prompt may have been revised
            self.ends, self._n_done, self._n_prompt = {}, 0, n_prompt
        for end in range(self._n_done, len(tokens)):
            for size in NgramDrafter.SIZES:
                if end >= size:
                    self.ends[tuple(tokens[end - size : end])] = end
        self._n_done = len(tokens)


class ModelDrafter:
    """A small model of the same tokenizer, with KV of its own.

    It draws with the target's noise, so that where both agree on the odds they agree on the token.
    """

    def __init__(
        self, decoder: Decoder, config: EngineConfig, context_length: int, make_runner: MakeRunner
    ) -> None:
        self.pool = decoder.make_pool(config.kv_tokens // BLOCK_TOKENS)
        self.tree = PrefixTree(self.pool)
        self.runner = make_runner(decoder, self.pool, config, ())
        self.context_length = min(context_length, decoder.config.context_length)
        self._sequences: dict[str, Sequence] = {}

    def propose(self, branch_id: str, target: Sequence, reply: Reply, n_most: int) -> list[int]:
        n_most = min(n_most, self.context_length - len(target.tokens))
        if n_most <= 0:
            return []
        own = Sequence(self.pool, self.tree, target.salt)
        sequence = self._sequences.setdefault(branch_id, own)
        sequence.retarget(list(target.tokens))
        try:
            return self._guess(sequence, reply, n_most)
        except OutOfMemory:
            self.forget(branch_id)
            return []

    def _guess(self, sequence: Sequence, reply: Reply, n_most: int) -> list[int]:
        if sequence.n_pending > CATCH_UP_TOKENS:
            self._extend(sequence, CATCH_UP_TOKENS)
            return []
        guesses: list[int] = []
        for i in range(n_most):
            logits = self._extend(sequence, sequence.n_pending)
            params, said = reply.params, [*reply.tokens, *guesses]
            row = penalize(logits[0], params, sequence.tokens[: reply.n_prompt], said)
            guesses.append(choose(row, params, reply.seed, len(reply.tokens) + i))
            sequence.tokens.append(guesses[-1])
        return guesses

    def _extend(self, sequence: Sequence, n_tokens: int) -> Tensor:
        """The logits after the next `n_tokens` pending tokens: [1, vocab]."""
        sequence.reserve(n_tokens)
        logits = self.runner.run([Extension(sequence, n_tokens)])
        sequence.n_resident += n_tokens
        assert logits is not None
        return logits

    def forget(self, branch_id: str) -> None:
        sequence = self._sequences.pop(branch_id, None)
        if sequence is not None:
            sequence.publish(sequence.n_resident)
            sequence.release()


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


class Speculation:
    """The drafters of one engine, in order of preference, each with its own draft length."""

    def __init__(
        self, drafters: Iterable[Drafter], n_most: int, clock: Callable[[], float]
    ) -> None:
        lengths = range(1, n_most + 1)
        self._drafters = [(drafter, DraftLength(lengths)) for drafter in drafters]
        self._plain, self._clock = PlainSteps(), clock
        self._used: dict[str, DraftLength] = {}  # by branch: whose guesses a step verifies

    def propose(self, branch_id: str, target: Sequence, reply: Reply, n_replies: int) -> list[int]:
        """Guesses at one of `n_replies` that the next step decodes, from the first with any."""
        n_left = reply.params.max_tokens - len(reply.tokens) - 1
        self._used.pop(branch_id, None)
        for drafter, length in [] if self._plain.is_due() else self._drafters:
            n_most = min(length.choose(branch_id, n_replies), n_left)
            if n_most <= 0:
                continue
            started = self._clock()
            guesses = drafter.propose(branch_id, target, reply, n_most)[:n_most]
            length.drafted(n_replies, len(guesses), (self._clock() - started) * 1e3)
            if guesses:
                self._used[branch_id] = length
                return guesses
        return []

    def verified(self, decoded: Items[tuple[str, int, int]], elapsed_ms: float | None) -> None:
        """What became of a step's guesses: of each reply it decoded its branch, guesses, and hits.

        elapsed_ms: of a step that served nothing else.
        """
        used = [self._used.pop(branch_id, None) for branch_id, _, _ in decoded]
        self._plain.stepped(max(n_guesses for _, n_guesses, _ in decoded), elapsed_ms)
        for _, length in self._drafters:
            n_drafted = n_accepted = 0
            for (branch_id, n_guesses, n_hits), whose in zip(decoded, used, strict=True):
                if whose is length:
                    length.verified(branch_id, n_guesses, n_hits)
                    n_drafted, n_accepted = max(n_drafted, n_guesses), n_accepted + n_hits
            is_own = all(whose in (None, length) for whose in used)
            n = len(decoded)
            length.stepped(n, n_drafted, n_accepted / n, elapsed_ms if is_own else None)

    def forget(self, branch_id: str) -> None:
        self._used.pop(branch_id, None)
        for drafter, length in self._drafters:
            drafter.forget(branch_id)
            length.forget(branch_id)
