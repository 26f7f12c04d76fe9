"""Owns who drafts: guesses at the next tokens of a reply.

A drafter may say what it likes; the engine samples every position anyway (see `sampler`) and keeps
a guess only where it is what was sampled. So the reply is the same with any drafter or none.
"""

from array import array
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from ..device import MakeRunner
from ..model import Decoder
from ..prefix_tree import PrefixTree
from ..reply import Reply
from ..runner import Extension
from ..sampler import NO_TOKEN, choose, is_greedy, penalize
from ..sequence import Sequence, common_prefix
from ..types import BLOCK_TOKENS, EngineConfig, OutOfMemory

CATCH_UP_TOKENS = 64  # of a prompt a draft model reads per step, so that no step waits for it
N_OPENING = 4  # "I'm sorry, but": a first clause, and few rows where it is another
STAGED_TOKENS = 16  # the same of staged words, between two questions whether a commit waits


class Drafter(Protocol):
    name: str  # in words, for who asks what runs

    def propose(
        self, branch_id: str, target: Sequence, reply: Reply, n_most: int
    ) -> list[int] | None:
        """Propose up to `n_most` guesses at what follows the target's tokens (prompt and reply so
        far).

        None where it has no say in such a reply, and has spent no time on it.
        """
        ...

    def opening(self, prompt: list[int]) -> list[int]:
        """Propose how the reply to a prompt begins."""
        return []

    def stage(self, branch_id: str, target: Sequence) -> bool:
        """Read some of what is staged, ahead of the reply to it; whether any of it is left."""
        return False

    def forget(self, branch_id: str, committed: list[int]) -> None:
        """The branch ended; committed: what of it others may share."""
        return


class GrammarDrafter(Drafter):
    """The tokens that a reply's grammar forces: names of tools, keys of JSON, closing marks.

    Right wherever the model spells them as the tokenizer does.
    """

    name = "grammars"

    def propose(
        self, branch_id: str, target: Sequence, reply: Reply, n_most: int
    ) -> list[int] | None:
        return reply.grammar.forced(n_most) if reply.grammar is not None else None


class NgramDrafter(Drafter):
    """Drafts what followed when the newest few tokens last stood together.

    Strong where a reply repeats the conversation: read-backs, names, tool arguments. What it looks
    through is all that the target has read: instructions, history, tool results, the reply.
    Source: prompt lookup decoding (Saxena 2023); longest match first.
    """

    name = "n-grams"
    SIZES = (4, 3, 2)

    def __init__(self) -> None:
        self._read: dict[str, tuple[Reply, array[int]]] = {}  # by branch: what was looked through

    def propose(self, branch_id: str, target: Sequence, reply: Reply, n_most: int) -> list[int]:
        tokens = target.tokens
        whose, read = self._read.get(branch_id, (None, _TOKENS))
        if whose is not reply or len(read) > len(tokens):
            read = _TOKENS[:]  # another reply: the prompt may have been revised
        read.extend(tokens[len(read) :])
        self._read[branch_id] = reply, read
        place = _last_place(read, self.SIZES)
        return tokens[place : place + n_most] if place is not None else []

    def opening(self, prompt: list[int]) -> list[int]:
        """As the agent's last turn did: a template ends the prompt as it began that."""
        place = _last_place(array("i", prompt), self.SIZES[:1])
        return prompt[place : place + N_OPENING] if place is not None else []

    def forget(self, branch_id: str, committed: list[int]) -> None:
        self._read.pop(branch_id, None)


_TOKENS: "array[int]" = array("i")


def _last_place(tokens: "array[int]", sizes: Items[int]) -> int | None:
    """Find the end of the last earlier place where the newest tokens stand.

    A search of bytes: 0.2 ms for 4,000 new tokens, 9 us after; an index took 12 ms to build.
    """
    text, width = tokens.tobytes(), tokens.itemsize
    for size in sizes:
        wanted, end = text[-size * width :], len(text) - width
        while len(tokens) > size and (place := text.rfind(wanted, 0, end)) >= 0:
            if place % width == 0:
                return place // width + size
            end = place + len(wanted) - 1  # not at the beginning of a token
    return None


class ModelDrafter(Drafter):
    """A small model of the same tokenizer, with KV of its own.

    It draws with the target's noise, so that where both agree on the odds they agree on the token.
    """

    name = "a draft model"

    def __init__(
        self, decoder: Decoder, config: EngineConfig, context_length: int, make_runner: MakeRunner
    ) -> None:
        self.pool = decoder.make_pool(config.kv_tokens // BLOCK_TOKENS)
        self.tree = PrefixTree(self.pool)
        # Its steps are small, and it drafts for itself neither by n-grams nor by another model.
        own = replace(
            config, step_tokens=CATCH_UP_TOKENS, background_tokens=CATCH_UP_TOKENS,
            ngram_draft=False, draft_dir=None,
        )  # fmt: skip
        self.runner = make_runner(decoder, self.pool, own, ())
        self.context_length = min(context_length, decoder.config.context_length)
        self._sequences: dict[str, Sequence] = {}
        self._replying: set[str] = set()  # branches of these that guesses were made for

    def propose(self, branch_id: str, target: Sequence, reply: Reply, n_most: int) -> list[int]:
        n_most = min(n_most, self.context_length - len(target.tokens))
        if n_most <= 0:
            return []
        self._replying.add(branch_id)
        try:
            return self._guess(self._follow(branch_id, target), reply, n_most)
        except OutOfMemory:
            # Whoever speaks goes before what was read for those who listen.
            for other in {branch_id, *(self._sequences.keys() - self._replying)}:
                self.forget(other, [])
            return []

    def stage(self, branch_id: str, target: Sequence) -> bool:
        known, n_words = self._sequences.get(branch_id), len(target.tokens)
        if known is not None and known.n_resident >= n_words - 1:
            if known.tokens[:n_words] == target.tokens:
                return False  # all is read, and maybe a reply made ahead, which is kept
        sequence = self._follow(branch_id, target)
        # The last token stays pending: its logits are the first guess.
        n_tokens = min(STAGED_TOKENS, sequence.n_pending - 1)
        if n_tokens <= 0 or len(sequence.tokens) >= self.context_length:
            return False
        try:
            self._extend(sequence, n_tokens)
        except OutOfMemory:
            return False  # what it has read stays
        return sequence.n_pending > 1

    def _follow(self, branch_id: str, target: Sequence) -> Sequence:
        """The branch's own sequence, with the target's tokens; the last of them is pending."""
        own = Sequence(self.pool, self.tree, target.salt)
        sequence = self._sequences.setdefault(branch_id, own)
        sequence.retarget(list(target.tokens))
        sequence.retreat(max(0, len(target.tokens) - 1))
        return sequence

    def _guess(self, sequence: Sequence, reply: Reply, n_most: int) -> list[int]:
        if sequence.n_pending > CATCH_UP_TOKENS:
            self._extend(sequence, CATCH_UP_TOKENS)
            return []
        if is_greedy(reply.params):
            found = self.runner.guess(sequence, n_most)
            if found is not None:
                return found
        guesses: list[int] = []
        for i in range(n_most):
            logits = self._extend(sequence, sequence.n_pending)
            params, said = reply.params, [*reply.tokens, *guesses]
            row = penalize(logits[0], params, said)
            guess = choose(row, params, reply.seed, len(reply.tokens) + i)
            if guess == NO_TOKEN:
                break
            guesses.append(guess)
            sequence.tokens.append(guess)
        return guesses

    def _extend(self, sequence: Sequence, n_tokens: int) -> Tensor:
        """The logits after the next `n_tokens` pending tokens: [1, vocab]."""
        sequence.reserve(n_tokens)
        logits = self.runner.run([Extension(sequence, n_tokens)])
        sequence.n_resident += n_tokens
        assert logits is not None
        return logits

    def forget(self, branch_id: str, committed: list[int]) -> None:
        sequence = self._sequences.pop(branch_id, None)
        if sequence is not None:
            sequence.truncate(common_prefix(sequence.tokens, committed))
            sequence.publish(len(sequence.tokens))  # staged words stay private (I2)
            sequence.release()
        self._replying.discard(branch_id)
