"""Owns one reply while it is generated: its tokens, its text, its end, its clock.

The same class serves a committed reply and a preemptive one; a branch decides which events they
become.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .runner import Draw, Outcome
from .sampler import NO_TOKEN, choose, penalize
from .text.detokenizer import Detokenizer, StopStrings
from .text.grammar import ComingGrammar, Grammar, OfferedCalls
from .text.text import Text
from .text.tool_calls import Notation, ParsedCall, ToolCallParser
from .types import NotANumber, SamplingParams, Timings, TokenLogprob, Usage

# Of a reply made ahead those counts that the committed one goes on with.
CARRIED_OVER = ("drafted_tokens", "accepted_tokens", "guessed_tokens", "confirmed_tokens")


@dataclass(slots=True)
class ReplyClock:
    """Monotonic seconds of what happened to a reply."""

    asked: float
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float = 0.0
    gaps: list[float] = field(default_factory=list)

    def token(self, now: float) -> None:
        """A step gave this reply tokens."""
        if self.first_token is None:
            self.first_token = now
        else:
            self.gaps.append(now - self.last_token)
        self.last_token = now

    def timings(self, now: float) -> Timings:
        def after(moment: float | None) -> float:
            return 0.0 if moment is None else (moment - self.asked) * 1e3

        gaps_ms = tuple(gap * 1e3 for gap in self.gaps)
        return Timings(after(self.scheduled), after(self.first_token), after(now), gaps_ms)


class Reply:
    """Tokens in, text and tool calls out, until a stop token, stop string or limit."""

    def __init__(
        self,
        text: Text,
        params: SamplingParams,
        *,
        seed: int,
        n_prompt: int,
        now: float,
        notation: Notation | None = None,
        bound: ComingGrammar | None = None,
        offered: OfferedCalls | None = None,
    ) -> None:
        """bound: the grammar of the whole reply; offered: of the calls in one without."""
        self.grammar: Grammar | None = None
        self._offered = offered
        self.coming = bound  # what it waits for before it can go on
        self._is_forced = False  # begun again as a call, or found that it cannot be
        self.params, self.n_prompt = params, n_prompt
        self.seed = seed if params.seed is None else params.seed
        self.draw = Draw(params, self.seed, n_prompt)
        self.tokens: list[int] = []
        # All output so far, sent anew when a preemptive reply is adopted.
        self.pieces: list[str | ParsedCall] = []
        self.proposals: list[int] = []  # guessed continuation, to be verified by the next extend
        self.finish_reason: str | None = None
        self._counts = {"prompt_tokens": n_prompt}
        self.clock = ReplyClock(now)
        self._n_reported = 0
        self._text = text
        self._logprobs: list[TokenLogprob] = []
        self.stop_ids = frozenset[int]() if params.ignore_eos else text.stop_ids
        marks = notation.marks if notation else frozenset[str]()
        shown = frozenset(i for i, content in text.special.items() if content in marks)
        self._shown, self._notation = shown, notation
        self._begin_output(holds_bare=offered is not None)
        self.awaits_grammar()

    def _begin_output(self, *, holds_bare: bool = False) -> None:
        self._detokenizer = Detokenizer(self._text, self._shown)
        self._stops = StopStrings(self.params.stop)
        self._parser = ToolCallParser(self._notation, holds_bare=holds_bare)

    def opens_call(self, token: int) -> bool:
        """Whether `token`, the newest, opens a call: its grammar binds the tokens after it."""
        if self._offered is None or self.grammar is not None or token != self._offered.open_id:
            return False
        self.coming = self._offered.begin
        return self.awaits_grammar() or self.grammar is not None

    def awaits_grammar(self) -> bool:
        """Whether what binds its next token is still compiled: it can be in no step before."""
        if self.coming is None:
            return False
        if not self.coming.is_here:
            return True
        self.grammar, self.coming = self.coming.grammar(), None
        if self._is_forced and not self.tokens:
            if self.grammar is not None:
                self._offered = None
            self._begin_output(holds_bare=self.grammar is None)
        return False

    def advance_grammar(self, token: int) -> None:
        """The reply goes on with `token`; behind a call it is free again. Raises: GrammarError."""
        if self.grammar is not None:
            self.grammar.advance(token)
            if self._offered is not None and self._offered.closes and self.grammar.is_over:
                self.grammar = None

    def count(self, **changes: int) -> None:
        """Add to the usage counters by name."""
        for name, n in changes.items():
            self._counts[name] = self._counts.get(name, 0) + n

    @property
    def usage(self) -> Usage:
        return Usage(**self._counts)

    def begin_step(self, now: float, n_logits: int) -> None:
        """The coming step has rows of this reply; masks are made while it runs."""
        if self.clock.scheduled is None:
            self.clock.scheduled = now
        if self.grammar is not None and n_logits:
            self.grammar.prepare(self.proposals)

    def verify(self, outcome: Outcome, has_guesses: bool) -> list[int]:
        """Sample at every row of a step while the choice before it agreed with what was proposed.

        What was made ahead and is left to verify stays proposed, for a later step.

        has_guesses: whether a drafter proposed it.
        Returns the tokens sampled, at least one.
        Raises: GrammarError, NotANumber.
        """
        sampled: list[int] = []
        proposals, later = outcome.proposals, list[int]()
        for i in range(len(proposals) + 1):
            grammar = self.grammar
            sampled.append(self._sample(sampled, outcome, i))
            # Behind an opening mark a grammar binds, behind the closing one none: what a runner
            # chose there, it chose as before the mark.
            is_released = outcome.chosen is not None and self.grammar is not grammar
            if self.opens_call(sampled[-1]) or is_released:
                later = proposals[i + 1 :]
                break
            if sampled[-1] in self.stop_ids or sampled[-1:] != proposals[i : i + 1]:
                break
        if proposals:
            n_verified = len(proposals) - len(later)
            n_kept = len(sampled) - 1
            self.count(drafted_tokens=n_verified, accepted_tokens=n_kept)
            if has_guesses:
                self.count(guessed_tokens=n_verified, confirmed_tokens=n_kept)
        self.proposals = [] if has_guesses else later
        return sampled

    def _sample(self, sampled: list[int], outcome: Outcome, i: int) -> int:
        """The token after those `sampled` in this step. Raises: GrammarError, NotANumber."""
        logits = outcome.logits[i] if outcome.logits is not None else None
        said = self.tokens if logits is None else [*self.tokens, *sampled]
        if outcome.chosen is not None:
            token = outcome.chosen[i]
        else:
            assert logits is not None
            row = penalize(logits, self.params, said)
            if self.grammar is not None:
                row = self.grammar.mask(row, len(sampled))
            token = choose(row, self.params, self.seed, len(said))
        if token == NO_TOKEN:
            raise NotANumber("expected numbers for the next token, found NaN or infinity")
        if logits is not None and self.params.logprobs is not None:
            self._logprobs.append(self._logprob(logits, said, token, self.params.logprobs))
        self.advance_grammar(token)
        return token

    def _logprob(self, logits: Tensor, said: list[int], token: int, n_top: int) -> TokenLogprob:
        """Look up `token` and the `n_top` likeliest under the model's own logits [vocab].

        Before penalties, grammar and temperature: what was likely, not what was allowed. A token's
        text is what it adds to the token before it, as in the reply.
        """
        logprobs = torch.log_softmax(logits.float(), -1)
        text, context = self._text, said[-1:]
        start = len(text.decode(context))

        def spelled(one: int) -> str:
            return text.special.get(one) or text.decode([*context, one])[start:]

        values, ids = logprobs.topk(n_top) if n_top else (logprobs[:0], logprobs[:0])
        likeliest = zip(ids.tolist(), values.tolist(), strict=True)
        top = tuple((spelled(int(one)), value) for one, value in likeliest)
        return TokenLogprob(spelled(token), float(logprobs[token]), top)

    def new_logprobs(self) -> tuple[TokenLogprob, ...]:
        """List those of the tokens since the last report; an end-of-turn token is no text."""
        first = self._n_reported
        noted = zip(self.tokens[first:], self._logprobs[first:], strict=False)
        return tuple(one for token, one in noted if token not in self.stop_ids)

    def report(self) -> int:
        """Tokens accepted since the last report."""
        n_new, self._n_reported = len(self.tokens) - self._n_reported, len(self.tokens)
        return n_new

    def adopt(self, clock: ReplyClock, n_resident: int) -> None:
        """Become, from a preemptive reply, the committed one asked for at `clock.asked`.

        n_resident: tokens whose KV is there.
        """
        self.clock, self._n_reported = clock, 0
        clock.scheduled = clock.asked
        clock.token(clock.asked)
        n_tokens = len(self.tokens)
        cached, known = min(self.n_prompt, n_resident), self._counts
        self._counts = {name: n for name, n in known.items() if name in CARRIED_OVER} | {
            "prompt_tokens": self.n_prompt, "cached_tokens": cached,
            "output_tokens": n_tokens, "adopted_tokens": n_tokens,
        }  # fmt: skip

    def _begin_as_call(self) -> bool:
        """Begin a reply again that wrote a call as plain text, bound to write it as calls are.

        Nothing of it has been given out. Where no grammar for it can be made, the same is said
        again. Returns whether it begins again.
        """
        if self._offered is None or self._is_forced:
            return False
        self._is_forced = True
        self.grammar, self.coming = None, self._offered.force()
        self.tokens, self.proposals, self._logprobs = [], [], []
        self.awaits_grammar()
        return True

    def accept(self, tokens: Tokens[int]) -> list[str | ParsedCall]:
        """Append sampled tokens up to the reply's end; returns the output they complete.

        A reply that is to begin again has no tokens afterwards.
        Raises: MalformedToolCall.
        """
        output: list[str | ParsedCall] = []
        for token in tokens:
            self.tokens.append(token)
            if token in self.stop_ids:
                self.finish_reason = "stop"
            else:
                output += self._parser.feed(self._stops.feed(self._detokenizer.feed(token)))
                if self._parser.is_bare and self._begin_as_call():
                    break
                if self._stops.stopped:
                    self.finish_reason = "stop"
                elif len(self.tokens) >= self.params.max_tokens:
                    self.finish_reason = "length"
            if self.finish_reason is not None:
                output += self._flush()
                break
        self._counts["output_tokens"] = len(self.tokens)
        self.pieces += output
        return output

    def _flush(self) -> list[str | ParsedCall]:
        output = self._parser.feed(self._stops.feed(self._detokenizer.flush()))
        output += self._parser.feed(self._stops.flush())
        return output + self._parser.finish(is_cut_off=self.finish_reason == "length")
