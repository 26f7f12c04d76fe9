"""Owns the execution of steps by graphs: which shapes a step is cut into, and the step ahead.

All shapes are captured before the engine is ready; afterwards a step is a copy of its inputs, one
replay per shape, and a copy of its results. While the host reads a decode step and turns it into
events, the device already runs the step that follows if nothing changes. What it finds is used only
for replies that did go on so; for others it is computed again. So the result of a step is the same
with or without the one ahead, and a late cancel costs one step of private KV at most.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..drafting.draft_length import DraftLength
from ..kv_cache import KvPool
from ..model import Decoder, Interrupted
from ..runner import Draw, Extension, Outcome
from ..sequence import Sequence
from ..types import (
    BLOCK_TOKENS,
    MAX_HOST_ROWS,
    MAX_SALVAGED,
    EngineConfig,
    EngineError,
    SamplingParams,
    n_blocks_for,
)
from .decoder import KernelDecoder, KernelSet
from .ngram import DeviceHistory
from .sample import SampleSpace
from .step import CudaGraphs, StepGraph, StepShape

DECODE_ROWS = (1, 4, 8)  # a token and what is drafted behind it
PREFILL_ROWS = (16, 32, 64, 128, 256)
BATCHES = (1, 2, 4, 8, 16, 32)
MAX_ROWS = 128  # of a decode step: more would no longer be bound by reading the weights
STEPS_PER_CHOICE = 16  # of the draft length; the inputs of the others come from the device
GREEDY = Draw(SamplingParams(), 0)


@dataclass(slots=True)
class Launch:
    """A step of one shape under way, or read.

    tables: blocks of each sequence, as uploaded. n_known: of each sequence, tokens fed that are no
    guesses. ends: of each sequence once read, where the next step starts and with which token.
    """

    graph: StepGraph
    extensions: list[Extension]
    tables: list[list[int]]
    n_known: list[int]
    copy: int = 0  # which of the host's copies the results go to
    done: Any = None  # CUDA event after the results' copy; None where there is no GPU
    n_replays: int = 1  # since the inputs were uploaded
    outcomes: list[Outcome] | None = None  # once read
    logits: dict[int, Tensor] = field(default_factory=dict)  # by sequence, for the host to choose
    ends: list[tuple[int, int]] = field(default_factory=list)


class GraphRunner:
    """Replays a decoder's step graphs on one KV pool; see `runner.Runner` for the interface."""

    layers = "Triton"

    def __init__(
        self, decoder: Decoder, pool: KvPool, config: EngineConfig, end_ids: tuple[int, ...],
        kernels: KernelSet,
    ) -> None:  # fmt: skip
        self.decoder, self.pool = decoder, pool
        self._is_cuda = decoder.device.startswith("cuda")
        n_drafted = config.max_draft_tokens if config.ngram_draft else 0
        self._decode_rows = [q for q in DECODE_ROWS if q == 1 or q <= 1 + n_drafted] or [1]
        n_tokens = self._n_tokens = decoder.rope.cos.shape[0]  # with room for the step ahead
        pool.n_ahead = 2 * self._decode_rows[-1]
        device = torch.device(decoder.device)
        # The largest first: the others then fit into the memory it leaves in the graphs' pool.
        shapes = sorted(self._shapes(config), key=lambda shape: -shape.n_total)
        model = KernelDecoder(
            decoder, pool, kernels, n_rows=shapes[0].n_total, n_split=MAX_ROWS, n_tokens=n_tokens
        )
        lengths = [q - 1 for q in self._decode_rows if q > 1]
        self.length = DraftLength(lengths, n_held=STEPS_PER_CHOICE)
        self._newest: dict[StepShape, int] = {}  # copy of the results used last
        self._writing: dict[tuple[StepShape, int], Launch] = {}
        self._history = (
            DeviceHistory(2 * config.max_branches, n_tokens, device) if n_drafted else None
        )
        # A reply and a draft of every branch need a row each at least.
        n_host = max(MAX_HOST_ROWS, 2 * config.max_branches)
        self._host_logits = torch.zeros(n_host, decoder.config.vocab_size, pin_memory=self._is_cuda)
        self._n_host_logits = 0
        space = SampleSpace.allocate(MAX_ROWS, decoder.config.vocab_size, device)
        # Where there is no GPU a "replay" runs the program again.
        capture = CudaGraphs().capture if self._is_cuda else lambda program: program
        self._graphs: dict[StepShape, StepGraph] = {}
        self._replays: dict[StepShape, Callable[[], None]] = {}
        with torch.inference_mode():
            pool.copy(0, 1)  # now, while nothing is in them: its code is loaded by its first use
            for shape in shapes:
                self._graphs[shape] = StepGraph(
                    shape,
                    model,
                    space=space,
                    history=self._history.tokens if self._history is not None else None,
                    max_blocks=n_blocks_for(n_tokens) + 1,
                    end_ids=end_ids,
                    device=decoder.device,
                )
                self._replays[shape] = capture(self._graphs[shape].program)
        self._ahead: tuple[Launch, Launch] | None = None  # the step read last, and the one after it
        self._read_at = 0.0  # when a decode step was read, if the last step was that alone
        self.n_launches = self.n_ahead_used = 0

    def _shapes(self, config: EngineConfig) -> Iterator[StepShape]:
        for n in BATCHES:
            if n == 1 or n < 2 * config.max_branches:
                yield from (StepShape(n, q) for q in DECODE_ROWS if n * q <= MAX_ROWS)
        n_most = max(config.step_tokens, config.background_tokens) + MAX_SALVAGED
        yield from (StepShape(1, q) for q in PREFILL_ROWS if q < n_most)
        yield StepShape(1, max(n_most, PREFILL_ROWS[0]))

    # -- the interface of every runner -----------------------------------------------------------

    @torch.inference_mode()
    def step(
        self, extensions: Items[Extension], interrupted: Interrupted | None = None
    ) -> list[Outcome]:
        """Run the extensions; an outcome each.

        A graph once launched runs to its end: whoever interrupts waits for it.
        """
        adopted, ahead = self._adopt(extensions)
        self._n_host_logits = 0
        rest = [e for i, e in enumerate(extensions) if i not in adopted]
        launches = [self._launch(shape, group) for shape, group in self._groups(rest)]
        if ahead is not None:
            launches.append(ahead)
            self.n_ahead_used += 1
        # Before anything is read: the next step of the only decode batch, on its own results.
        last = launches[-1] if launches else None
        if last is not None and self._may_go_on(last, launches):
            self._ahead = (last, self._go_on(last))
        outcomes: dict[int, Outcome] = {}
        for launch in launches:
            for extension, outcome in zip(launch.extensions, self._read(launch), strict=True):
                outcomes[id(extension)] = outcome
        self._learn(launches, ahead, extensions)
        return [outcomes[id(extension)] for extension in extensions]

    def guess(self, sequence: Sequence, n_tokens: int) -> None:
        """None: a draft model's tokens are drawn by whoever asks."""

    def run(self, extensions: Items[Extension]) -> Tensor | None:
        """The logits of extensions that nothing is drawn for, in order."""
        logits = [outcome.logits for outcome in self.step(extensions)]
        found = [rows for rows in logits if rows is not None]
        return torch.cat(found) if found else None

    # -- the step ahead --------------------------------------------------------------------------

    def _adopt(self, extensions: Items[Extension]) -> tuple[set[int], Launch | None]:
        """Which extensions the step ahead has computed already, and that step with them in it."""
        pair, self._ahead = self._ahead, None
        if pair is None:
            return set(), None
        before, ahead = pair
        wanted = {id(e.sequence): (i, e) for i, e in enumerate(extensions)}
        adopted: set[int] = set()
        for row, old in enumerate(before.extensions):
            index, extension = wanted.get(id(old.sequence), (-1, None))
            if extension is None or not self._goes_on(before, row, extension):
                continue
            ahead.extensions[row] = extension
            adopted.add(index)
        if len(adopted) < len(before.extensions):
            ahead.n_replays = STEPS_PER_CHOICE  # rows of replies that ended: not to be replayed
        return adopted, ahead if adopted else None

    def _goes_on(self, before: Launch, row: int, extension: Extension) -> bool:
        """Whether `extension` is what the device took for granted."""
        sequence, (first, token) = extension.sequence, before.ends[row]
        n_blocks = n_blocks_for(first + before.graph.shape.n_rows)
        return (
            extension.draw is before.extensions[row].draw
            and extension.n_rows == extension.n_logits == 1
            and sequence.n_resident == first == len(sequence.tokens) - 1
            and sequence.tokens[-1] == token
            and sequence.table[:n_blocks] == before.tables[row][:n_blocks]
        )

    def _may_go_on(self, last: Launch, launches: list[Launch]) -> bool:
        q = last.graph.shape.n_rows
        if not last.graph.shape.is_decode or last.n_replays >= STEPS_PER_CHOICE:
            return False
        if any(other.graph.shape.is_decode for other in launches[:-1]):
            return False  # its inputs may be overwritten, or its replies join the next batch
        for extension, table in zip(last.extensions, last.tables, strict=True):
            n_most = extension.sequence.n_resident + 2 * q
            if extension.draw is None or not extension.n_logits or extension.n_rows > q:
                return False
            if extension.proposals:  # the host drafts: it will feed the next step itself
                return False
            if n_most > min(len(table) * BLOCK_TOKENS, self._n_tokens):
                return False
        return any(
            e.draw is not None and e.index + 1 < e.draw.params.max_tokens for e in last.extensions
        )

    def _go_on(self, last: Launch) -> Launch:
        """Replay on the inputs that `last` leaves behind. Its extensions are filled in later."""
        ahead = Launch(
            last.graph,
            list(last.extensions),
            last.tables,
            [1] * len(last.extensions),
            n_replays=last.n_replays + 1,
        )
        self._replay(ahead)
        return ahead

    # -- launching -------------------------------------------------------------------------------

    def _groups(self, extensions: list[Extension]) -> Iterator[tuple[StepShape, list[Extension]]]:
        """Cut a step into shapes; plain decode comes last, for the step ahead follows it."""
        plain, few = list[Extension](), list[Extension]()
        for extension in extensions:
            if _is_plain(extension):
                plain.append(extension)
            elif extension.n_rows <= DECODE_ROWS[-1]:
                few.append(extension)
            else:
                n_rows = min(s.n_rows for s in self._graphs if s.n_rows >= extension.n_rows)
                yield StepShape(1, n_rows), [extension]
        if few:
            yield from self._batches(few, max(e.n_rows for e in few))
        if plain:
            n = next((n for n in BATCHES if n >= len(plain)), BATCHES[-1])
            n_rows = 1 + self.length.choose(n)
            yield from self._batches(plain, min(n_rows, MAX_ROWS // n))

    def _batches(
        self, extensions: list[Extension], n_rows: int
    ) -> Iterator[tuple[StepShape, list[Extension]]]:
        q = min(q for q in DECODE_ROWS if q >= n_rows)
        sizes = sorted(shape.n_sequences for shape in self._graphs if shape.n_rows == q)
        for start in range(0, len(extensions), sizes[-1]):
            group = extensions[start : start + sizes[-1]]
            yield StepShape(next(n for n in sizes if n >= len(group)), q), group

    def _launch(self, shape: StepShape, extensions: list[Extension]) -> Launch:
        graph = self._graphs[shape]
        graph.begin_upload()
        for row, extension in enumerate(extensions):
            place = 0
            if self._history is not None:
                place = self._history.place(extension.sequence, extension.n_known)
            graph.fill(row, extension, extension.draw or GREEDY, place)
        graph.upload(len(extensions))
        launch = Launch(
            graph,
            extensions,
            [list(e.sequence.table) for e in extensions],
            [e.n_known for e in extensions],
        )
        if not all(map(_is_plain, extensions)):  # its rows are a prompt's, not the length chosen
            launch.n_replays = STEPS_PER_CHOICE - 1
        self._replay(launch)
        return launch

    def _replay(self, launch: Launch) -> None:
        graph = launch.graph
        launch.copy = (self._newest.get(graph.shape, 0) + 1) % graph.N_RESULTS
        self._newest[graph.shape] = launch.copy
        unread = self._writing.get((graph.shape, launch.copy))
        if unread is not None and unread.outcomes is None:
            self._read(unread)
        self._writing[graph.shape, launch.copy] = launch
        self._replays[graph.shape]()
        graph.results.bring_back(launch.copy)
        for row, extension in enumerate(launch.extensions):
            if extension.draw is None and not extension.is_staged and extension.n_logits:
                launch.logits[row] = self._bring_logits(graph.logits_of(row, extension))
        if self._is_cuda:
            launch.done = torch.cuda.Event()
            launch.done.record()
        self.n_launches += 1

    def _bring_logits(self, rows: Tensor) -> Tensor:
        start = self._n_host_logits
        self._n_host_logits += len(rows)
        if self._n_host_logits > len(self._host_logits):
            raise EngineError(
                f"expected at most {len(self._host_logits)} rows chosen on the host in a step, "
                f"found {self._n_host_logits}"
            )
        host = self._host_logits[start : self._n_host_logits]
        return host.copy_(rows, non_blocking=True)

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, launch: Launch) -> list[Outcome]:
        if launch.outcomes is not None:
            return launch.outcomes
        if launch.done is not None:
            launch.done.synchronize()
        results = launch.graph.results_of(launch.copy, launch.n_known, launch.extensions)
        outcomes = []
        for row, (extension, found) in enumerate(zip(launch.extensions, results, strict=True)):
            if row in launch.logits:
                found.chosen, found.logits = None, launch.logits[row].clone()
            n_kept = len(found.chosen or ()) - 1
            end = extension.sequence.n_resident + launch.n_known[row] + n_kept
            launch.ends.append((end, found.chosen[-1] if found.chosen else -1))
            if not extension.n_logits:
                found.chosen = None
            outcomes.append(found)
        launch.outcomes = outcomes
        return outcomes

    def _learn(
        self, launches: list[Launch], ahead: Launch | None, served: Items[Extension]
    ) -> None:
        """Book what decoding cost and how many guesses stood.

        Staged words and a prompt's last few tokens guess nothing. Only where the device went on by
        itself is the time between two readings what the step cost.
        """
        now, before, self._read_at = perf_counter(), self._read_at, 0.0
        ids = {id(extension) for extension in served}
        for launch in launches:
            # A row of the step ahead whose reply has ended is nobody's.
            rows = [i for i, e in enumerate(launch.extensions) if id(e) in ids]
            if not all(_is_plain(launch.extensions[i]) for i in rows):
                continue
            shape, outcomes, n_accepted = launch.graph.shape, self._read(launch), 0
            for i in rows:
                n_kept = len(outcomes[i].chosen or ()) - 1
                self.length.verified(shape.n_rows - 1, n_kept)
                n_accepted += n_kept
            is_timed = launch is ahead and len(launches) == 1 and before > 0
            elapsed_ms = (now - before) * 1e3 if is_timed else None
            self._read_at = now if len(launches) == 1 else 0.0
            n = shape.n_sequences
            self.length.stepped(n, n * shape.n_rows, n_accepted / len(rows), elapsed_ms)


def _is_plain(extension: Extension) -> bool:
    """Whether a reply is decoded that the device draws, and may guess at."""
    return extension.n_rows == extension.n_logits == 1 and extension.draw is not None
