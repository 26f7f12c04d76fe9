"""Owns what a step's logits become: tokens of a reply, as far as what was proposed stood."""

from torch import Tensor

from ..reply import Reply
from ..runner import Outcome
from ..sampler import choose, penalize


def verify(reply: Reply, outcome: Outcome, has_guesses: bool) -> list[int]:
    """Sample at every row while the choice before it agreed with what was proposed.

    What was made ahead and is left to verify stays proposed, for a later step.

    has_guesses: whether a drafter proposed it.
    Returns the tokens sampled, at least one.
    Raises: GrammarError.
    """
    sampled: list[int] = []
    proposals, later = outcome.proposals, list[int]()
    for i in range(len(proposals) + 1):
        grammar = reply.grammar
        sampled.append(_next(reply, sampled, outcome, i))
        # Behind an opening mark a grammar binds, behind the closing one none: what a runner chose
        # there, it chose as before the mark.
        is_released = outcome.chosen is not None and reply.grammar is not grammar
        if reply.opens_call(sampled[-1]) or is_released:
            later = proposals[i + 1 :]
            break
        if sampled[-1] in reply.stop_ids or sampled[-1:] != proposals[i : i + 1]:
            break
    if proposals:
        n_verified = len(proposals) - len(later)
        n_kept = len(sampled) - 1
        reply.count(drafted_tokens=n_verified, accepted_tokens=n_kept)
        if has_guesses:
            reply.count(guessed_tokens=n_verified, confirmed_tokens=n_kept)
    reply.proposals = [] if has_guesses else later
    return sampled


def _next(reply: Reply, sampled: list[int], outcome: Outcome, i: int) -> int:
    """The token after those `sampled` in this step. Raises: GrammarError."""
    raw = outcome.logits[i] if outcome.logits is not None else None
    if outcome.chosen is None:
        assert raw is not None
        token = _choose(reply, sampled, raw)
    else:
        token = outcome.chosen[i]
    if raw is not None:
        reply.note(raw, [*reply.tokens, *sampled], token)
    reply.advance_grammar(token)
    return token


def _choose(reply: Reply, sampled: list[int], raw: Tensor) -> int:
    said = [*reply.tokens, *sampled]
    row = penalize(raw, reply.params, said)
    if reply.grammar is not None:
        row = reply.grammar.mask(row, len(sampled))
    return choose(row, reply.params, reply.seed, len(said))
