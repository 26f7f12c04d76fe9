"""The requests of one reply to the language model, round after round, and what the model says.

Owns the branch that the reply is made on, the plan, how long the model may take, what of its text
may be said, and the count of what was said and used. A call that cannot be made as the model wrote
it is asked for again, once a round; where a prompt was too long, with less of the conversation. A
preemptive generation yields the text that the model makes ahead, one version after the other, until
`commit_preemptive` asks for the reply itself.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator, Sequence, Set
from dataclasses import dataclass, field

from msgspec.structs import replace

from voiceloop.backends import (
    ChatMessage,
    Generated,
    GenerateParams,
    PreemptiveCall,
    PreemptiveDelta,
    PreemptiveDone,
    TextDelta,
    Thinks,
    ToolCall,
    Usage,
    words_of,
)
from voiceloop.errors import BackendError, PromptTooLong, VoiceLoopError
from voiceloop.realtime.response import ResponseHandle
from voiceloop.reply.anticipation import LiveBranch
from voiceloop.reply.bridge import ModelDeadline
from voiceloop.reply.context import ReplyContext
from voiceloop.reply.plan import ReplyPlan
from voiceloop.reply.repeats import Repeats
from voiceloop.reply.routing import FAILED, Part, Route
from voiceloop.reply.sayable import SayableText
from voiceloop.reply.sentences import Sentences
from voiceloop.reply.tool_answers import IncompleteCall, ToolAnswers, as_refusals, as_results
from voiceloop.telemetry.record import TurnRecord
from voiceloop.tools.pending import PendingCall

log = logging.getLogger(__name__)

MAX_HALVINGS = 4  # of a prompt that was too long: where a sixteenth is, it is not the conversation
# Three rounds of tool calls that the agent file answers, and one to speak of them. Chosen: a caller
# waits through all of them, and a model that still calls tools does so without end.
MAX_ROUNDS = 4


@dataclass(slots=True)
class ReplyRound:
    """One response: what the model said and called in it.

    n_deltas, n_preemptive_deltas: pieces of text of the reply, and of preemptive replies before it.
    failure: what kept the model from ending it. refused: calls that were not made, for what they
    lack. n_wrong_calls: these, and what named no tool or was written as text. needs_fallback: its
    text broke off, and something must be said behind it. open_calls: made, and left to the client.
    named: the ids under which the model has named its calls.
    """

    calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str = "stop"
    reported: Usage | None = None
    n_deltas: int = 0
    n_preemptive_deltas: int = 0
    failure: VoiceLoopError | None = None
    refused: list[IncompleteCall] = field(default_factory=list)
    n_wrong_calls: int = 0
    needs_fallback: bool = False
    open_calls: tuple[ToolCall, ...] = ()
    named: set[str] = field(default_factory=set)
    _taken: Usage | None = None

    def report(self, usage: Usage) -> None:
        """The model has ended; where it was asked again, once more."""
        before = self.reported
        if before is not None:
            again = replace(usage, n_unheard_tokens=0, n_turn_tokens=0, n_turn_resident=0)
            usage = added(before, again)
        self.reported = usage

    def take_usage(self) -> Usage:
        """The tokens used since this was last called: a round may take several responses to say."""
        before, self._taken = self._taken, self.usage
        if before is None:
            return self._taken
        return Usage(n_reply_tokens=max(0, self._taken.n_reply_tokens - before.n_reply_tokens))

    @property
    def usage(self) -> Usage:
        """Return what the model reported; if it was stopped before it did, an estimate from what it
        said.

        Then each piece of text counts as one token (the least it can be: a model may send several
        in one) and the prompt as none. A preemptive reply that is kept comes anew with the reply
        itself, so its pieces beyond the reply's count as discarded.
        """
        if self.reported is not None:
            return self.reported
        n_discarded = max(0, self.n_preemptive_deltas - self.n_deltas)
        return Usage(n_reply_tokens=self.n_deltas, n_discarded_tokens=n_discarded)


def added(first: Usage, *more: Usage) -> Usage:
    """The tokens of all of them; the times of the first."""
    counts = [name for name in Usage.__struct_fields__ if name.startswith("n_")]
    each = (first, *more)
    return replace(first, **{name: sum(getattr(one, name) for one in each) for name in counts})


class Rounds:
    """The rounds of one reply, in order. failure: what keeps the first of them from an answer."""

    def __init__(self, failure: VoiceLoopError | None = None) -> None:
        self._rounds = [ReplyRound(failure=failure)]
        self._is_last = False

    @property
    def latest(self) -> ReplyRound:
        return self._rounds[-1]

    @property
    def is_first(self) -> bool:
        return len(self._rounds) == 1

    def begin(self, *, is_last: bool = False) -> None:
        """is_last: nothing that is called in it would be waited for."""
        self._rounds.append(ReplyRound())
        self._is_last = is_last or len(self._rounds) >= MAX_ROUNDS

    def usage(self, unheard: float = 0.0) -> Usage:
        """The tokens of all rounds; the times of the first, which the caller waited for.

        unheard: the share of the last round's text that nobody heard, because of an interruption.
        If that is all of it, the caller had not finished and it was made too early: its tokens
        count as discarded. If it is part, it would have been made in any case: as unheard.
        """
        used = [each.usage for each in self._rounds]
        n_unheard = round(unheard * used[-1].n_reply_tokens)
        n_too_early = n_unheard if unheard == 1.0 else 0
        whole = added(*used)
        return replace(
            whole,
            n_reply_tokens=whole.n_reply_tokens - n_unheard,
            n_discarded_tokens=whole.n_discarded_tokens + n_too_early,
            n_unheard_tokens=n_unheard - n_too_early,
        )

    @property
    def called(self) -> tuple[int, int]:
        """Calls of tools that the model wrote, and of these the ones that could not be made."""
        n_wrong = sum(each.n_wrong_calls for each in self._rounds)
        return n_wrong + sum(len(each.calls) for each in self._rounds), n_wrong

    def params(self, asked: GenerateParams) -> GenerateParams:
        """How the latest round is sampled: the first as asked for.

        From the second on a demanded call has been made, so the model may speak; in the last one
        it must, since nobody would answer another call.
        """
        if self.is_first:
            return asked
        return replace(asked, tool_choice="none" if self._is_last else "auto")


class Generation:
    """The generation of a reply: for each round `ask`, then `events`, within the deadline's
    `round`.

    failure: what keeps the first round from a reply. live: the branch that makes it preemptively.
    has_thought: the model thinks, or has thought, in the present round. given: its text so far.
    begins_with: words that it goes on behind. tail: what `ask` commits; None where
    `commit_preemptive` does it instead.
    used: what each model that had a part in it has reported, by name.
    """

    def __init__(
        self,
        context: ReplyContext,
        plan: ReplyPlan,
        failure: VoiceLoopError | None,
        live: LiveBranch | None,
        deadline: ModelDeadline,
    ) -> None:
        self.plan = plan
        self.deadline = deadline
        self.rounds = Rounds(failure)
        self.given = ""
        self.used: dict[str, Usage] = {}
        self._behind: tuple[ChatMessage, ...] = ()  # the prompt: what earlier rounds added to it
        self._said: dict[str, str] = {}  # what the agent's class wants said for a sentence
        self.begins_with = ""  # the round, on the branch that makes it
        self._repeats = Repeats("")
        self._context = context
        # What the plan answers, before anything is awaited: the client may send more meanwhile.
        self._turn_id = context.protocol.conversation.newest_turn_id
        self.tools = ToolAnswers(
            context.agent, plan.tools, context.tools, context.prepared.confirmed
        )
        self.live = live
        self.has_thought = False
        self._is_preemptive = live is not None
        self._attempt: int | None = None  # whose text is read; None: the reply's own
        self._text = self._new_text()
        self._may_ask_again = True  # in this round
        self.tail: tuple[ChatMessage, ...] | None = None
        self._n_halvings = MAX_HALVINGS  # left; none where the prompt is not the conversation

    @property
    def round(self) -> ReplyRound:
        return self.rounds.latest

    @property
    def _params(self) -> GenerateParams:
        params = self.rounds.params(self.plan.params)
        return replace(params, begins_with=self.begins_with) if self.begins_with else params

    # --- asked ---

    def revise(self, plan: ReplyPlan) -> None:
        """Another version of the preemptive reply was asked for, to other words."""
        self.plan = plan
        self.tools.forget_draft()

    def take_draft(self, plan: ReplyPlan, *, calls_at_once: bool) -> tuple[PendingCall, ...]:
        """The calls that the preemptive reply begins with, where their results are there.

        The reply itself then begins with the round behind them: `begin_round` follows, and
        `commit_preemptive`. None where there are none, or the caller's words are others.
        """
        calls = tuple(self.tools.drafted)
        is_same = words_of(plan.prompt) == words_of(self.plan.prompt)
        fits = is_same and self.tools.has_drafts_results
        if not fits or (len(calls) > 1 and not calls_at_once):
            self.tools.forget_draft()
            return ()
        return self.tools.of(calls)

    def commit_preemptive(self, plan: ReplyPlan) -> bool:
        """Ask for the reply itself; no more of the preemptive one is read.

        Returns the branch's promise that the reply begins with the preemptive one.
        """
        assert self.live is not None
        self.plan, self._is_preemptive = plan, False
        tail = plan.prompt[len(self.live.context.messages) :]
        is_promised = self.live.commit_now(tail + self.tools.drafts_messages, self._params)
        self.tools.forget_draft()
        self.deadline.ask()
        return is_promised

    async def open(
        self, response: ResponseHandle, record: TurnRecord, decided_s: float | None
    ) -> None:
        """Take the branch that answers the plan's prompt, with what is looked up for it."""
        anticipation, is_out_of_band = self._context.anticipation, response.is_out_of_band
        self.plan = await self._context.prepared.looked_up(
            self.plan, self._turn_id, response, record, decided_s
        )
        self.tools.is_recorded = not is_out_of_band
        if is_out_of_band or response.request.input is not None:
            self._n_halvings = 0
        # What the caller is saying is staged for the reply to it, not for one beside it.
        begin = anticipation.begin_beside if is_out_of_band else anticipation.adopt
        plan = self.plan
        self.live, self.tail = begin(plan.prompt, plan.tools, plan.route.model)

    async def ask(self) -> None:
        """Ask for the round's reply. Raises: BackendError, Overloaded."""
        if self.tail is None:
            return
        if self.live is None:  # the rounds before this one needed no model
            prompt, plan = (*self.plan.prompt, *self._behind), self.plan
            begin = self._context.anticipation.begin
            self.live, self.tail = begin(prompt, plan.tools, plan.route.model)
        self.deadline.ask()
        try:
            await self.live.commit(self.tail, self._params)
        except PromptTooLong as error:
            await self._ask_shorter(error)

    async def _ask_shorter(self, error: PromptTooLong) -> None:
        """Ask once more, with half of the conversation that was shown.

        Raises: BackendError, Overloaded; this error where nothing more can be left out.
        """
        protocol, plan = self._context.protocol, self.plan
        may_truncate = protocol.settings.truncation != "disabled" and not self.round.n_deltas
        is_led = bool(plan.prompt) and plan.prompt[0].role == "system"
        instructions = plan.prompt[0].content if is_led else ""
        if may_truncate:
            protocol.learn_window(self._context.context_tokens)
        while may_truncate and self._n_halvings and protocol.shown.show_less(instructions):
            self._n_halvings -= 1
            log.info("a prompt was too long: the older half of the conversation is left out")
            prompt = protocol.shown.messages(instructions)
            self.plan = dataclasses.replace(plan, prompt=prompt)
            if self.live is not None:
                self.live.close()
            begin = self._context.anticipation.begin
            self.live, tail = begin(prompt, plan.tools, plan.route.model)
            try:
                await self.live.commit(tail, self._params)
                return
            except PromptTooLong as again:
                error = again
        raise error

    def begin_round(
        self, calls: Sequence[PendingCall], *, is_out_of_band: bool, is_last: bool
    ) -> None:
        """Another round, in which the model is given what came of these calls so far.

        is_last: it shall speak, and call nothing more. That holds also where a call is under way:
        the model is not to make it again.
        """
        protocol = self._context.protocol
        self._text, self._may_ask_again, self.has_thought = self._new_text(), True, False
        self.tail = as_results(calls, None if is_out_of_band else protocol)
        self.tools.end_round()
        self.tail += as_refusals(self.round.refused)
        called = ChatMessage("assistant", self.given, tuple(self.round.calls))
        self._behind += (called, *self.tail)
        self.given, self.begins_with, self._repeats = "", "", Repeats("")
        self.rounds.begin(is_last=is_last or not all(call.is_over for call in calls))

    # --- the other model ---

    @property
    def who_goes_on(self) -> str | None:
        """The model that would go on where this one fails; None where none would."""
        other = self.plan.route.other
        may = other is not None and not self.round.calls and self._context.router.is_there(other)
        return other if may else None

    def switch(self, said: str) -> None:
        """The model that `who_goes_on` names does, behind these words, from the next `ask` on."""
        route, before = self.plan.route, self.live
        assert route.other is not None
        part: Part = "small" if route.part == "large" else "large"
        self._note_used(Usage(n_reply_tokens=self.round.n_deltas))
        self.plan = dataclasses.replace(self.plan, route=Route(route.other, None, part, FAILED))
        prompt, tools = (*self.plan.prompt, *self._behind), self.plan.tools
        self.live = None
        if before is not None:
            warm, before.beside = before.beside, None
            before.close()
            self.live, self.tail = self._on_warm(warm, prompt)
        if self.live is None:
            begin = self._context.anticipation.begin
            self.live, self.tail = begin(prompt, tools, route.other)
        self.go_behind(said)
        self._may_ask_again, self.has_thought = True, False
        self.round.refused = []

    def _on_warm(
        self, warm: LiveBranch | None, prompt: tuple[ChatMessage, ...]
    ) -> tuple[LiveBranch | None, tuple[ChatMessage, ...]]:
        """The branch beside the one that failed, which has read the turn, where it fits."""
        if warm is None:
            return None, ()
        known = warm.context.messages
        if warm.has_failed or prompt[: len(known)] != known:
            warm.close()
            return None, ()
        warm.drop_preemptive()
        return warm, prompt[len(known) :]

    def go_behind(self, said: str, acts: Set[str] = frozenset()) -> None:
        """Go on behind these words with what is asked next. acts: as of `Repeats`."""
        self.begins_with, self.given = said.rstrip(), said
        self._repeats = Repeats(said, acts)
        self._attempt, self._text = None, self._new_text()

    def expect_repeats(self, said: str, acts: Set[str]) -> None:
        """Expect these words, which were said before any of the round's own."""
        if not self.begins_with:
            self._repeats = Repeats(said, acts)

    def _note_used(self, usage: Usage) -> None:
        name = self.plan.route.model
        known = self.used.get(name)
        self.used[name] = usage if known is None else added(known, usage)

    def fail(self, error: VoiceLoopError) -> None:
        """The round ends here: the model is told at once that nobody waits for the rest."""
        self.round.failure = error
        if self.live is not None:
            self.live.close()

    def close(self) -> None:
        """Give the branch up, unless the open user turn still has it (it was never committed).

        The calls of the reply are left: what changes nothing ends here, side effects go on.
        """
        self.leave_calls()
        if self.live is not None and not self._is_preemptive:
            self.live.close()

    # --- said ---

    async def events(self) -> AsyncIterator[str | ToolCall | PreemptiveDone]:
        """The round's text, the calls to be made, where a version ends. Raises as `ask`."""
        # Between the words of the first answer and those of the second, or of another model.
        gap = " " if self.given and not self.given[-1].isspace() else ""
        hooks = self._context.hooks
        has_hook = hooks is not None and hooks.has("on_sentence")
        while True:
            try:
                async for event in self._by_sentence() if has_hook else self._answer():
                    if isinstance(event, str):
                        event, gap = event if event[:1].isspace() else gap + event, ""
                        self.given += event
                    yield event
            except PromptTooLong as error:
                if self._is_preemptive:
                    raise
                await self._ask_shorter(error)
                continue
            gap = " " if self._text.has_given else ""
            if self._text.breakage is not None or not await self._ask_again():
                return

    async def _by_sentence(self) -> AsyncIterator[str | ToolCall | PreemptiveDone]:
        """The same with each sentence as the agent's class wants it said. Raises: as the hook."""
        of, text = Sentences(self._said_for), self._text
        async for event in self._answer():
            if self._text is not text:  # another version, from its beginning
                of, text = Sentences(self._said_for), self._text
            if said := await (of.feed(event) if isinstance(event, str) else of.finish()):
                yield said
            if not isinstance(event, str):
                yield event
        if said := await of.finish():
            yield said

    async def _said_for(self, sentence: str) -> str:
        """Asked once a reply for each: what is said twice is the same."""
        if sentence not in self._said:
            assert self._context.hooks is not None
            self._said[sentence] = await self._context.hooks.on_sentence(sentence)
        return self._said[sentence]

    async def _answer(self) -> AsyncIterator[str | ToolCall | PreemptiveDone]:
        assert self.live is not None
        async for event in self.live.events():
            said = self.round
            if isinstance(event, Thinks):  # the deadline of its first word runs on
                self.has_thought = True
                continue
            self.deadline.observe()
            match event:
                case TextDelta(text=text):
                    said.n_deltas += 1
                    if sayable := self._text_of(None).feed(self._repeats.feed(text)):
                        yield sayable
                    if self._breaks_off():
                        return
                case ToolCall():
                    if self._may_be_made(call := self.tools.filled(event)):
                        yield call  # else nothing: without a word beside it, the fallback is said
                case Generated(finish_reason=reason):
                    said.finish_reason = reason
                    said.report(event.usage)
                    self._note_used(event.usage)
                    self._learn_tokens(event.usage)
                    if reason == "cancelled":
                        raise BackendError("The language model cancelled its reply.")
                    end = self._text_of(None)
                    if sayable := end.feed(self._repeats.finish()) + end.finish():
                        yield sayable
                    self._breaks_off()
                    return
                case PreemptiveDelta(attempt=attempt, text=text):
                    said.n_preemptive_deltas += 1
                    if (sayable := self._text_of(attempt).feed(text)) and self.plan.speaks:
                        yield sayable
                case PreemptiveCall():
                    self.tools.call_ahead(self.tools.filled(event))
                case PreemptiveDone(attempt=attempt, finish_reason=reason):
                    if reason in ("cancelled", "lost") or self._drafts_after(attempt):
                        continue
                    if (sayable := self._text_of(attempt).finish()) and self.plan.speaks:
                        yield sayable
                    if self._text.is_whole:
                        yield event

    def _learn_tokens(self, usage: Usage) -> None:
        """The model has counted the prompt: the window of the conversation is in such tokens."""
        window = self._context.protocol.shown.window
        if self.rounds.is_first and window is not None:
            window.count.learn(usage.n_prompt_tokens, self.plan.prompt, self.plan.tools)

    def _new_text(self) -> SayableText:
        may_call = self._params.tool_choice != "none"
        tools = [tool.name for tool in self.plan.tools] if may_call else ()
        return SayableText(tools=tools, speaks=self.plan.speaks)

    def _text_of(self, attempt: int | None) -> SayableText:
        """The text that is read: each attempt's, and the reply's own, from its beginning."""
        if attempt != self._attempt:
            self._attempt, self._text = attempt, self._new_text()
        return self._text

    def _drafts_after(self, attempt: int) -> bool:
        """Whether this version of the preemptive reply is nothing but calls made ahead.

        Then the round that follows is drafted, as soon as the results are there.
        """
        if self._text_of(attempt).has_given or self._context.prepared.quotes:
            return False  # or what comes of the calls is said without the model
        new_id = self._context.protocol.new_id
        return self.tools.draft_behind(attempt, new_id, lambda: self._begin_draft(attempt))

    def _begin_draft(self, attempt: int) -> None:
        live, tools = self.live, self.tools
        if live is None or not tools.has_drafts_results or not self._is_preemptive:
            return
        if live.newest_attempt == attempt:  # else words have changed, or it has begun
            turn = self.plan.prompt[len(live.context.messages) :]
            params = replace(self.plan.params, tool_choice="auto")
            live.begin_preemptive((*turn, *tools.drafts_messages), params)

    def _breaks_off(self) -> bool:
        """Whether no more of the text is to be said; the model need not write on.

        Where it has called something it does: the results are answered on the same branch, and the
        next round says what is to be said.
        """
        assert self.live is not None
        breakage = self._text.breakage
        if breakage is None or self.round.calls:
            return False
        log.warning("a reply broke off: the model wrote %s", breakage.value)
        self.round.needs_fallback = self._text.needs_fallback
        self.live.close()
        return True

    def _may_be_made(self, call: ToolCall) -> bool:
        is_known = self.tools.admits(call, self._params.tool_choice)
        missing = self.tools.missing(call) if is_known else ()
        if missing:
            log.info("a call of %s was not made, for it lacks %s", call.name, ", ".join(missing))
            self.round.refused.append(IncompleteCall(call, missing))
        is_right = is_known and not missing
        self.round.n_wrong_calls += not is_right
        return is_right

    async def _ask_again(self) -> bool:
        """Ask once more where the model called nothing that can be called, though it tried.

        A call begun as text, or broken off, is asked for as a call, if its tool is one that was
        offered. Of one that lacked arguments the model is told so: it asks the caller for them, or
        calls again.
        """
        said, is_malformed = self.round, self.round.finish_reason == "malformed_call"
        is_bare = bool(self._text.bare_call) or is_malformed
        said.n_wrong_calls += is_bare
        if said.calls or not (is_bare or said.refused):
            return False
        has_tools = self.rounds.is_first and bool(self.plan.tools)
        may_be_bound = has_tools and (is_malformed or self._text.names_tool)
        if not self._may_ask_again or (is_bare and not may_be_bound):
            said.needs_fallback = True
            return False
        self._may_ask_again, self._attempt, self._text = False, None, self._new_text()
        assert self.live is not None
        params = replace(self._params, within_ms=self.deadline.left_ms)
        if is_bare:
            self.live.close()
            begin, plan = self._context.anticipation.begin, self.plan
            self.live, tail = begin(plan.prompt, plan.tools, plan.route.model)
            params = replace(params, tool_choice="required")
        else:
            tail, said.refused = as_refusals(said.refused), []
        await self.live.commit(tail, params)
        return True

    def leave_calls(self) -> None:
        """The reply is over; what is to be said of its calls in the conversation is said now."""
        self.tools.leave(self.round.calls)

    def make_calls(self) -> tuple[PendingCall, ...]:
        """Make the calls of the round that are still to be made; returns all of them, or none where
        the server has none to answer.
        """
        calls = self.tools.of(self.round.calls)
        if not calls:
            self.round.open_calls = tuple(self.round.calls)
        return calls
