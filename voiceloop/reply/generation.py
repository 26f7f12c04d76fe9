"""What one reply asks of the language model, round after round, and what the model says.

Owns the branch that the reply is made on, the plan, the deadline, and the count of what was said
and used. A preemptive generation yields the text that the model makes ahead, one version after the
other, until `commit_preemptive` asks for the reply itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from voiceloop.backends import (
    ChatMessage,
    Generated,
    GenerateParams,
    PreemptiveCall,
    PreemptiveDelta,
    PreemptiveDone,
    TextDelta,
    ToolCall,
)
from voiceloop.errors import BackendError, VoiceLoopError
from voiceloop.reply.context import ReplyContext
from voiceloop.reply.live_branch import LiveBranch
from voiceloop.reply.plan import ReplyPlan
from voiceloop.reply.steps import ReplyRound, Rounds
from voiceloop.reply.tool_answers import ToolAnswers, as_results

# Prompt to last token of one round. Chosen: the longest reply that an agent file allows by default
# (160 tokens) at 5 a second; speech takes some 4, so a slower model could not feed a voice.
GENERATE_DEADLINE_S = 30.0


class Generation:
    """For each round `ask`, then `events`, within `deadline`.

    failure: what keeps the first round from a reply. live: the branch that makes it preemptively.
    """

    def __init__(
        self,
        context: ReplyContext,
        plan: ReplyPlan,
        failure: VoiceLoopError | None,
        live: LiveBranch | None,
    ) -> None:
        self.plan = plan
        self.rounds = Rounds(failure)
        self._context = context
        self._tools = ToolAnswers(context.agent, plan.tools)
        self.live = live
        self._is_preemptive = live is not None
        # What `ask` commits; None where `commit_preemptive` does it instead.
        self._tail: tuple[ChatMessage, ...] | None = None
        self._deadline: asyncio.Timeout | None = None

    @property
    def round(self) -> ReplyRound:
        """The latest: what was asked last."""
        return self.rounds.latest

    @property
    def _params(self) -> GenerateParams:
        return self.rounds.params(self.plan.params)

    # --- asked ---

    def commit_preemptive(self, plan: ReplyPlan) -> bool:
        """Ask for the reply itself; no more of the preemptive one is read.

        Returns the branch's promise that the reply begins with the preemptive one.
        """
        assert self.live is not None
        self.plan, self._is_preemptive = plan, False
        tail = plan.prompt[len(self.live.context.messages) :]
        is_promised = self.live.commit_now(tail, plan.params)
        if self._deadline is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + GENERATE_DEADLINE_S)
        return is_promised

    def open(self, *, is_out_of_band: bool) -> None:
        """Take the branch that answers the plan's prompt."""
        anticipation = self._context.anticipation
        # What the caller is saying is staged for the reply to it, not for one beside it.
        begin = anticipation.begin if is_out_of_band else anticipation.adopt
        self.live, self._tail = begin(self.plan.prompt, self.plan.tools)

    def deadline(self) -> asyncio.Timeout:
        """Of this round; that of a preemptive reply begins when it is committed."""
        self._deadline = asyncio.timeout(None if self._is_preemptive else GENERATE_DEADLINE_S)
        return self._deadline

    async def ask(self) -> None:
        """Ask for the round's reply. Raises: BackendError, Overloaded."""
        if self._tail is not None:
            assert self.live is not None
            await self.live.commit(self._tail, self._params)

    def begin_round(self, results: list[tuple[ToolCall, str]], *, is_out_of_band: bool) -> None:
        """Another round, in which the model is given these results of its calls."""
        protocol = self._context.protocol
        self._tail = as_results(results, None if is_out_of_band else protocol)
        self.rounds.begin()

    def close(self) -> None:
        """Give the branch up, unless the open user turn still has it (it was never committed)."""
        if self.live is not None and not self._is_preemptive:
            self.live.close()

    # --- said ---

    async def events(self) -> AsyncIterator[str | ToolCall | PreemptiveDone]:
        """The text of the round, the calls that may be made in it, and where a version ends.

        Raises: BackendError, Overloaded.
        """
        assert self.live is not None
        said = self.round
        async for event in self.live.events():
            match event:
                case TextDelta(text=text):
                    said.n_deltas += 1
                    yield text
                case ToolCall():
                    if self._tools.admits(event, self._params.tool_choice):
                        yield event  # else nothing: without a word beside it, the fallback is said
                case Generated(finish_reason=reason):
                    said.finish_reason, said.reported = reason, event.usage
                    if reason == "cancelled":
                        raise BackendError("expected a reply, found it cancelled by the model")
                    return
                case PreemptiveDelta(text=text):
                    said.n_preemptive_deltas += 1
                    if self.plan.speaks:
                        yield text
                case PreemptiveCall():
                    self._tools.call_ahead(event)
                case PreemptiveDone(finish_reason=reason):
                    if reason not in ("cancelled", "lost"):
                        yield event

    def results(self) -> list[tuple[ToolCall, str]] | None:
        """The agent file's answer to every call of the round; None where there is none to give."""
        return self._tools.of(self.round.calls)
