"""Owns the engine's public face: load a model, branch a conversation, step.

Every call enqueues and returns at once; `step()` does a bounded amount of work and returns what
came of it. One thread drives an engine; nothing here blocks, sleeps or knows about asyncio.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Tokens
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from .adapters import Adapter
from .branch import Branch, Phase
from .device import open_device
from .drafting.drafters import Drafter
from .drafting.speculation import Speculation
from .end_of_turn import end_ids
from .load.assembly import context_length, make_drafters, read_model
from .load.kv_budget import with_kv_tokens
from .model import Abandoned, Decoder, Interrupted, unheeded
from .prefix_tree import PrefixTree
from .reply import Reply
from .runner import Outcome
from .scheduler import Scheduler, Service, Task, decoded_next
from .sequence import Sequence
from .text.grammar import GrammarCompiler
from .text.text import Text
from .text.tool_calls import MalformedToolCall, ParsedCall, notation_of
from .types import (
    BLOCK_TOKENS,
    DeviceFault,
    Done,
    EngineConfig,
    EngineError,
    Event,
    GrammarError,
    IntegrityError,
    InvalidRequest,
    LateCompilation,
    NotANumber,
    OutOfMemory,
    SamplingParams,
    pool_tokens_for,
)

log = logging.getLogger(__name__)

COUNTED = (  # of a reply's usage, over all replies
    "prompt_tokens", "cached_tokens", "output_tokens", "drafted_tokens", "accepted_tokens",
    "adopted_tokens",
)  # fmt: skip
MAX_TOLD_CHARACTERS = 200  # of an error that somebody else raised
# Replies without numbers within so many seconds, after which the device is at fault.
NAN_STORM, NAN_WITHIN_S = 3, 60.0
# Replies of a CPU's step that are guessed at: rows cost there, and of four a 1.5B model lost a
# quarter where of two it gained (benchmarks/LOG.md).
MOST_DRAFTED = 2
GRAMMAR_WAIT_S = 0.002  # of a step without anything else to do; whoever drives it looks in between


class Engine:
    """One model, one KV pool, many branches. Build it with `Engine.load`."""

    def __init__(
        self,
        text: Text,
        decoder: Decoder,
        config: EngineConfig,
        clock: Callable[[], float] = monotonic,
        drafters: Iterable[Drafter] = (),
    ) -> None:
        self.text, self.config, self.clock = text, config, clock
        model = decoder.config
        device = open_device(config)
        self.context_length = context_length(model, config)
        text.bound(self.context_length)
        self.vocab_size, self.adapters = model.vocab_size, decoder.adapters
        n_blocks = config.kv_tokens // BLOCK_TOKENS
        self.pool = decoder.make_pool(n_blocks, config.kv_format, config.poison)
        self.tree = PrefixTree(self.pool, config.prefix_cache)
        self.runner = device.make_runner(decoder, self.pool, config, end_ids(text))
        self.lacks = device.lacks
        self.scheduler = Scheduler(self.pool, self.tree, config, clock)
        self._grammars = GrammarCompiler(text, model.vocab_size)
        self.speculation = Speculation(drafters, config.max_draft_tokens, clock)
        self.notation = notation_of(text.template_source)
        self.outbox: list[Event] = []
        self.serving: frozenset[str] = frozenset()  # branches that the step under way computes for
        self._branches: dict[str, Branch] = {}
        self._n_ordered = 0
        self._is_stalled = False  # staged words wait for memory; nothing to do until a call comes
        self._has_given_way = False  # the step before was given up
        self._nan_at_s = deque[float](maxlen=NAN_STORM)  # replies that NaN ended
        self._totals: Counter[str] = Counter(abandoned_steps=0, late_compilations=0)

    @classmethod
    def load(
        cls,
        model_dir: Path,
        config: EngineConfig | None = None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> "Engine":
        """Read a Hugging Face folder: config.json, safetensors, tokenizer.json, chat template.

        Raises: CheckpointError, ConfigError, TemplateError.
        """
        config = config or EngineConfig()
        torch.set_num_threads(config.threads)
        text, decoder = read_model(model_dir, config)
        if decoder.config.qkv_bias and config.kv_format != "plain":
            log.warning(
                "keys and values stay plain: this model's keys have biases, too large for %s",
                config.kv_format,
            )
            config = replace(config, kv_format="plain")
        sized = with_kv_tokens(config, decoder, context_length(decoder.config, config))
        # What a draft model has read is not worth spare memory.
        drafting = replace(sized, kv_tokens=config.kv_tokens) if config.device == "cpu" else sized
        engine = cls(text, decoder, sized, clock, make_drafters(text, decoder, drafting))
        engine._grammars.warm_up()
        decoder.settle()
        return engine

    @classmethod
    def start(cls, model_dir: Path, config: EngineConfig) -> "Engine":
        """Load, as a server does, to which every failure has a type.

        Raises: as `load`; DeviceFault for what Triton, ptxas, a launch, a capture or an allocation
        raises, none of which has a root of its own.
        """
        try:
            return cls.load(model_dir, config)
        except EngineError:
            raise
        except Exception as error:
            raise device_fault(config.device, error) from error

    # -- what a caller asks for ------------------------------------------------------------------

    def branch(
        self, branch_id: str, history_tokens: Tokens[int] = (), salt: str = "", caller: str = "",
        adapter: str = "", *, reads_end: bool = True,
    ) -> Branch:  # fmt: skip
        """Fork the committed prefix `history_tokens`; what is not shared yet is prefilled.

        salt: of a tenant; branches of different salts share nothing. caller: of these, whose it is;
        tenants are served in turn, and of one tenant its callers. adapter: of `config.adapters`.
        reads_end: whether staged words are read for the turn's end, or for a route: at a vocabulary
        of 150,000 a fifth of a short step.
        Raises: InvalidRequest, PromptTooLong, OutOfMemory.
        """
        if branch_id in self._branches:
            raise InvalidRequest(f"expected a new branch id, found {branch_id} open")
        if len(self._branches) >= self.config.max_branches:
            raise InvalidRequest(
                f"expected at most {self.config.max_branches} branches, found one more"
            )
        taken = None
        if adapter:
            if self.adapters is None:
                raise InvalidRequest(f"adapter: expected none of this model, found {adapter!r}")
            taken = self.adapters.take(adapter)
        try:
            sequence = Sequence(self.pool, self.tree, salt, taken)
            reads_end = reads_end or self.runner.decoder.route_head is not None
            branch = Branch(self, branch_id, history_tokens, sequence, caller, reads_end=reads_end)
        except EngineError:
            self._give_back(taken)
            raise
        self._branches[branch_id] = branch
        return branch

    def _give_back(self, adapter: Adapter | None) -> None:
        if adapter is not None and self.adapters is not None:
            self.adapters.give_back(adapter)

    def has_work(self) -> bool:
        """Whether `step` would do or return anything."""
        if self.outbox or self.speculation.is_behind:
            return True
        if self._is_stalled:
            return False
        return any(
            branch.reply is not None
            or branch.sequence.n_pending
            or (branch.preemptive is not None and branch.preemptive.is_active)
            for branch in self._branches.values()
        )

    def step(self, interrupted: Interrupted | None = None) -> list[Event]:
        """Advance what is due, most urgent class first, and return what came of it.

        interrupted: whether a commit waits to be passed on; asked again and again while a step
        runs that serves no committed reply, and such a step is given up for it. What was asked of
        it stays asked, and the step after it is not given up. What is known already, as the text of
        a reply that was made ahead, waits for no step.
        """
        if not self.outbox:
            guessed = self._draft(interrupted)
            tasks = self._schedule(interrupted)
            started = self.clock()
            computed = self._run(tasks, started, interrupted) if tasks else []
            self._postprocess(computed, guessed, started)
        events, self.outbox = self.outbox, []
        return events

    def check_integrity(self) -> None:
        """Compare every reference there is with what the pool counts. Raises: IntegrityError."""
        self.pool.check_integrity([*self.tree.held(), *self._held()])
        self.tree.check_integrity()

    def metrics(self) -> dict[str, float]:
        """Totals since the start and the state of the KV pool, by metric name."""
        return {
            **self._totals,
            "branches": len(self._branches),
            "kv_blocks": self.pool.n_blocks,
            "kv_blocks_free": self.pool.n_free,
            "kv_blocks_shared": len(self.tree),
            "kv_blocks_held": len(set(self._held())),  # the rest of the tree can be given back
        }

    def _held(self) -> Iterator[int]:
        """Every reference to a block that branches hold."""
        for branch in self._branches.values():
            yield from branch.sequence.table
            if branch.preemptive is not None and branch.preemptive.sequence is not None:
                yield from branch.preemptive.sequence.table

    # -- what a branch needs of us ---------------------------------------------------------------

    def new_reply(self, n_prompt: int, params: SamplingParams) -> Reply:
        """A reply not yet begun. Raises: GrammarError."""
        self._is_stalled = False
        n_most = min(params.max_tokens, self.context_length - n_prompt)
        return Reply(
            self.text,
            replace(params, max_tokens=max(1, n_most)),
            seed=self.config.seed,
            n_prompt=n_prompt,
            now=self.clock(),
            # A text under a schema holds no calls, whatever its strings say.
            notation=self.notation if params.json_schema is None else None,
            bound=self._grammars.of(params, self.notation),
            offered=self._grammars.offered(params, self.notation),
        )

    def require_room(self, n_tokens: int) -> None:
        """Refuse what the pool could not hold even if it were empty. Raises: OutOfMemory."""
        n_room, n_ahead = self.pool.n_blocks * BLOCK_TOKENS, self.pool.n_ahead
        if pool_tokens_for(n_tokens, n_ahead) > n_room:
            n_most = n_room - BLOCK_TOKENS - n_ahead
            raise OutOfMemory(
                f"expected a request of at most {n_most} tokens (the KV pool), found {n_tokens}"
            )

    def order(self) -> int:
        self._is_stalled = False
        self._n_ordered += 1
        return self._n_ordered

    def discarded(self, n_tokens: int) -> None:
        self._totals["discarded_tokens"] += n_tokens

    def finished(self, reply: Reply, done: Done) -> None:
        self._is_stalled = False
        self.outbox.append(replace(done, timings=reply.clock.timings(self.clock())))
        self._totals.update({"replies": 1, f"replies_{done.finish_reason}": 1})
        self._totals.update({name: getattr(reply.usage, name) for name in COUNTED})

    def forget(self, branch: Branch) -> None:
        self._is_stalled = False
        committed = branch.sequence.tokens[: branch.n_committed]
        self.speculation.forget(branch.branch_id, committed)
        del self._branches[branch.branch_id]
        self._give_back(branch.sequence.adapter)
        if not self._branches:
            self.check_integrity()  # idle: nobody waits for it
        self.outbox = [event for event in self.outbox if event.branch_id != branch.branch_id]

    # -- the step --------------------------------------------------------------------------------

    def _draft(self, interrupted: Interrupted | None) -> list[Reply]:
        """Let drafters guess at the replies of the next step. Returns which these are.

        interrupted: asked before each, so that no commit waits for a drafter.
        """
        decoding = list(decoded_next(self._branches.values()))
        if len(decoding) > MOST_DRAFTED and not self.config.share_steps:
            return []
        for branch_id, sequence, reply in decoding:
            # What is left to verify of a preemptive reply goes before other guesses.
            if not reply.proposals and not (interrupted is not None and interrupted()):
                reply.proposals = self.speculation.propose(
                    branch_id, sequence, reply, len(decoding)
                )
        guessed = [reply for _, _, reply in decoding]
        for ahead in (branch.preemptive for branch in self._branches.values()):
            if not decoding and ahead is not None and ahead.is_active and ahead.sequence is None:
                self.speculation.guess_opening(ahead.reply, ahead.prompt)
                guessed.append(ahead.reply)
        return guessed

    def _schedule(self, interrupted: Interrupted | None) -> list[Task]:
        """The tasks of the step; where there is none, read ahead or wait for a grammar instead."""
        coming = self._coming_grammars()
        tasks = self.scheduler.compose(self._branches.values())
        self._is_stalled = not (tasks or coming)
        if not tasks and self.speculation.is_behind:
            self.speculation.stage(self._opened(), interrupted)
        elif not tasks:
            wait(coming, GRAMMAR_WAIT_S, FIRST_COMPLETED)
        return tasks

    def _coming_grammars(self) -> list[Future[Any]]:
        """List the grammars that replies wait for and that are still compiling."""
        replies = [branch.reply for branch in self._branches.values()]
        attempts = [branch.preemptive for branch in self._branches.values()]
        replies += [ahead.reply for ahead in attempts if ahead is not None and ahead.is_active]
        awaiting = [r for r in replies if r is not None and r.awaits_grammar()]
        return [r.coming.compiled for r in awaiting if r.coming is not None]

    def _opened(self) -> Iterator[tuple[str, Sequence]]:
        """Branches whose caller speaks, with something to read."""
        for branch in self._branches.values():
            if branch.phase is Phase.OPEN and branch.sequence.tokens:
                yield branch.branch_id, branch.sequence

    def _run(
        self, tasks: list[Task], now: float, interrupted: Interrupted | None
    ) -> list[tuple[Task, Outcome]]:
        """Compute a step: what came of which task. The others are asked for again, all of them
        where it is given up; only reserved blocks stay then."""
        for task in tasks:
            if task.reply is not None:
                task.reply.begin_step(now, task.extension.n_logits)
        is_awaited = any(task.service in (Service.DECODE, Service.PREFILL) for task in tasks)
        if is_awaited or self._has_given_way:
            interrupted = unheeded(interrupted, sum(task.extension.n_rows for task in tasks))
        self._has_given_way = False
        self.serving = frozenset(task.branch.branch_id for task in tasks)
        try:
            outcomes = self.runner.step([task.extension for task in tasks], interrupted)
        except Abandoned:
            self._has_given_way = True
            self._totals["abandoned_steps"] += 1
            return []
        except EngineError as error:
            self._totals["late_compilations"] += isinstance(error, LateCompilation)
            raise
        except Exception as error:
            if self.config.device == "cpu":
                raise
            raise device_fault(self.config.device, error) from error
        finally:
            self.serving = frozenset()
        found = zip(tasks, outcomes, strict=True)
        return [(task, outcome) for task, outcome in found if outcome is not None]

    def _postprocess(
        self, computed: list[tuple[Task, Outcome]], guessed: list[Reply], started: float
    ) -> None:
        """Turn what a step computed into tokens and events, and learn from it what rows cost."""
        for task, outcome in computed:
            extension, sequence = task.extension, task.extension.sequence
            sequence.n_resident += extension.n_known
            if task.reply is not None:
                self._advance_or_end(task, task.reply, outcome)
                continue
            self._totals["staged_tokens"] += extension.n_known
            self.speculation.words_staged()
            p_end_of_turn = outcome.probability if extension.n_logits else None
            task.branch.prefilled(extension.n_known, p_end_of_turn, outcome.route)
        if computed:
            self._measure([task for task, _ in computed], (self.clock() - started) * 1e3)
        self._check_numbers()
        for reply in guessed:
            if self.speculation.has_guessed(reply):  # unverified, and so not made ahead
                reply.proposals = []

    def _check_numbers(self) -> None:
        """One prompt may overflow; reply after reply is a kernel's doing. Raises: DeviceFault."""
        found = self._nan_at_s
        if self.config.device != "cpu" and len(found) == NAN_STORM:
            if self.clock() - found[0] <= NAN_WITHIN_S:
                raise DeviceFault(
                    f"expected numbers of {self.config.device}, found NaN or infinity in "
                    f"{NAN_STORM} replies",
                    "nan",
                )

    def _measure(self, tasks: list[Task], elapsed_ms: float) -> None:
        """Learn from a step what rows and guesses cost."""
        n_rows = sum(task.extension.n_rows for task in tasks)
        self.scheduler.observe(n_rows, elapsed_ms)
        self._totals.update(steps=1, rows=n_rows)
        decoded = [
            (task.reply, task.n_verified, min(task.n_verified, task.n_accepted))
            for task in tasks
            if task.reply is not None and task.is_decode
        ]
        if decoded:
            is_own = len(decoded) == len(tasks) and all(task.is_as_asked for task in tasks)
            self.speculation.verified(decoded, elapsed_ms if is_own else None)

    def _advance_or_end(self, task: Task, reply: Reply, outcome: Outcome) -> None:
        """`_advance`; an error that nobody foresaw ends this reply, and no other of the step."""
        sequence = task.extension.sequence
        n_known = len(sequence.tokens)
        try:
            self._advance(task, reply, outcome)
        except IntegrityError:
            raise  # of the pool: it is nobody's reply that is at fault
        except Exception as error:
            log.exception("a reply of branch %s failed", task.branch.branch_id)
            sequence.truncate(n_known)
            reply.finish_reason = "error"
            if task.service is Service.PREEMPTIVE:
                task.branch.stop_preemptive("error")
            elif task.branch.reply is reply:
                found = f"expected the reply to go on, found {type(error).__name__}"
                task.branch.finish("error", found)

    def _advance(self, task: Task, reply: Reply, outcome: Outcome) -> None:
        """Give a reply the tokens that its rows sampled, up to its end."""
        extension, sequence = task.extension, task.extension.sequence
        if not reply.tokens:
            reply.count(prefilled_tokens=extension.n_known)
        if not extension.n_logits:
            return
        n_known, n_before = len(sequence.tokens), len(reply.tokens)
        output, error = list[str | ParsedCall](), None
        # What a runner proposed itself, or a drafter here; else it was made ahead.
        is_own = outcome.proposals != extension.proposals
        task.n_verified = 0 if is_own else len(extension.proposals)
        has_guesses = is_own or self.speculation.has_guessed(reply)
        try:
            sampled = reply.verify(outcome, has_guesses)
        except GrammarError as refused:
            sequence.n_resident, error = n_known, str(refused)
        except NotANumber as found:
            error = str(found)
            self._nan_at_s.append(self.clock())
            # Of a shared block the sequence may have a copy by now.
            shared = self.tree.match(sequence.tokens, sequence.shared_as)
            self.tree.forget(self.pool.find_spoilt({*sequence.table, *shared}))
            sequence.release()
        else:
            task.n_accepted = len(sampled) - 1
            if task.service is not Service.PREEMPTIVE:
                task.branch.verified(task.n_accepted, len(reply.proposals))
            sequence.n_resident = n_known + len(outcome.proposals)
            sequence.tokens += sampled
            sequence.retreat(n_known + task.n_accepted)
            reply.clock.token(self.clock())
            try:
                output = reply.accept(sampled)
            except MalformedToolCall as malformed:
                error, reply.finish_reason = str(malformed), "malformed_call"
            sequence.truncate(n_known + len(reply.tokens) - n_before)
            if not reply.tokens:  # it begins again, for which the prompt's last logits are needed
                sequence.retreat(len(sequence.tokens) - 1)
        if error is not None and reply.finish_reason != "malformed_call":
            reply.finish_reason = "error"
        if task.service is Service.PREEMPTIVE:
            # What an attempt before it said counts once; what was guessed is new.
            ahead = task.branch.preemptive
            is_guess = has_guesses or (ahead is not None and bool(ahead.draft))
            n_old = 0 if is_guess else task.n_accepted
            n_new = max(0, len(reply.tokens) - n_before - n_old)
            self._totals["speculated_tokens"] += n_new
            task.branch.made_ahead(n_new, output)
            return
        task.branch.emit(output)
        if reply.finish_reason is not None:
            task.branch.finish(reply.finish_reason, error)


def device_fault(device: str, error: Exception) -> DeviceFault:
    """An error that somebody else raised, by its kind, name and first line."""
    name, said = type(error).__name__, str(error).strip().splitlines()
    found = f"{name}: {said[0][:MAX_TOLD_CHARACTERS]}" if said else name
    kind = "memory" if isinstance(error, torch.OutOfMemoryError | MemoryError) else "launch"
    return DeviceFault(f"expected {device} to run the model, found {found}", kind)
