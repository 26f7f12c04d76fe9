"""Owns the execution of steps by graphs: what a step holds, and the step ahead.

A step is one pass over the weights for the rows of all its sequences, whatever they are for: a copy
of its inputs, a replay of the graph of its size, a copy of its results. All sizes are captured
before the engine is ready. While the host reads a step and turns it into events, the device already
runs the step that follows if nothing changes; what is asked for meanwhile rides in the one after.
What a step ahead finds is used only for sequences that did go on so; for others it is computed
again. So the result of a step is the same with or without the one ahead, and a late cancel costs
one step of private KV at most.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..drafting.chain import KernelEagle
from ..drafting.draft_length import DraftLength
from ..kernels.adjust import MASK_BITS
from ..kernels.decoder import KernelDecoder, KernelSet
from ..kernels.launch import CudaGraphs, Replay, next_power_of_2
from ..kernels.places import Places
from ..kernels.sample import SampleSpace
from ..kv_cache import KvPool
from ..model import Decoder, Interrupted
from ..runner import Extension, Outcome
from ..sequence import Sequence
from ..types import BLOCK_TOKENS, EngineConfig, EngineError, n_blocks_for
from .late_draw import LateDraw, write_mask
from .part import FEW_ROWS, MAX_SPLIT_ROWS, MAX_WANTED, Part, Room, that_fit
from .step import Shared, StepGraph, graph_sizes

DECODE_ROWS = (1, 4, 8)  # a token and n-grams behind it, that cost the same however many
CHAIN_ROWS = tuple(range(1, 9))  # a token and a head's guesses, each of which takes its time
FEW_FORCED = 2  # tokens; more that a grammar forces the host feeds, for which a step has none
MOST_DRAFTED_ROWS = 64  # of a step: from here on rows are no longer nearly free
N_UNDER_WAY = 3  # host copies of inputs and results: of steps that nobody has read yet, and one
PINNED_LOGITS_BYTES = 32 << 20  # of all those copies together


@dataclass(slots=True, eq=False)
class Launch:
    """A step under way, or read. copy: which of the host's copies its results go to."""

    graph: StepGraph
    parts: list[Part]
    copy: int
    done: Any = None  # CUDA event after the results' copy; None where there is no GPU
    is_ahead: bool = False  # launched before the step before it was read
    late: list[Part] = field(default_factory=list)  # of its parts those that were drawn late


class GraphRunner:
    """Replays a decoder's step graphs on one KV pool; see `runner.Runner` for the interface."""

    def __init__(
        self, decoder: Decoder, pool: KvPool, config: EngineConfig, end_ids: tuple[int, ...],
        kernels: KernelSet,
    ) -> None:  # fmt: skip
        self.decoder, self.pool = decoder, pool
        self.layers = "Triton"
        device = torch.device(decoder.device)
        self._is_cuda = device.type == "cuda"
        head = decoder.eagle
        # A draft model is asked on the host, and so is then everybody else.
        self._hosts_drafts = config.draft_dir is not None
        drafts_inside = head is not None or (config.ngram_draft and not self._hosts_drafts)
        n_drafted = config.max_draft_tokens if drafts_inside else 0
        widths = DECODE_ROWS if head is None else CHAIN_ROWS
        lengths = [q - 1 for q in widths if 1 < q <= 1 + n_drafted]
        self.length = DraftLength(lengths)
        pool.n_ahead = 2 * (1 + max(lengths, default=0))
        sizes = graph_sizes(config)
        vocab, n_tokens = decoder.config.vocab_size, decoder.rope.cos.shape[0]
        n_kept = max(1, min(MAX_WANTED, PINNED_LOGITS_BYTES // (4 * vocab * N_UNDER_WAY)))
        n_words = -(-vocab // MASK_BITS)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        model = KernelDecoder(
            decoder, pool, kernels, n_rows=max(sizes), n_split=MAX_SPLIT_ROWS, n_tokens=n_tokens
        )
        slots = None
        if decoder.adapters is not None:
            slots = decoder.adapters.rows.slots = zeros(max(sizes), dtype=torch.int64)
        places = Places(2 * config.max_branches, n_tokens, max(lengths, default=0), device)
        self._shared = Shared(
            model,
            places,
            SampleSpace.allocate(MAX_WANTED, vocab, device),
            logits=zeros(MAX_WANTED, vocab),
            masks=zeros(MAX_WANTED, n_words, dtype=torch.int32),
            kept=zeros(n_kept, vocab),
            end_ids=torch.tensor(end_ids, dtype=torch.int64, device=device),
            guess=kernels.call.guess if lengths and head is None else None,
            eagle=KernelEagle(head, model, places, n_rows=max(sizes)) if head is not None else None,
            max_blocks=-(-(n_blocks_for(n_tokens) + 1) // 2) * 2,  # a line of tables: whole words
            slots=slots,
        )
        with torch.inference_mode():
            self._graphs = [StepGraph(*size, self._shared, device) for size in sizes.items()]
            self._late = LateDraw(self._shared, N_UNDER_WAY, device)
            self._replays, self._chains = self._capture()
        largest = self._graphs[-1]
        self._inputs = [self._on_host(largest.inputs.n_words) for _ in range(N_UNDER_WAY)]
        self._results = [self._on_host(largest.results.n_words) for _ in range(N_UNDER_WAY)]
        self._kept = self._on_host(N_UNDER_WAY, n_kept, vocab, dtype=torch.float32)
        self._masks = self._on_host(N_UNDER_WAY, MAX_WANTED, n_words, dtype=torch.int32)
        self._ahead: Launch | None = None  # a step launched, whose predecessor was read last
        self._left_out = set[int]()  # sequences by id, for whom the newest step had no room
        self._read_at = 0.0  # when the step before the one ahead was read
        self.n_launches = self.n_ahead_used = 0

    def _on_host(self, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(shape, dtype=dtype, pin_memory=self._is_cuda)

    def _capture(self) -> tuple[dict[int, Replay], dict[int, tuple[Replay, Replay]]]:
        """Capture the program of each size, and its chain of guesses; without a GPU, keep them."""
        self.pool.copy(0, 1)  # now, while nothing is in them: its code is loaded by its first use
        capture = CudaGraphs().capture if self._is_cuda else lambda program: program
        # The largest first: the others then fit into the memory it leaves in the graphs' pool.
        graphs = sorted(self._graphs, key=lambda graph: -graph.n_rows)
        self._late.replay = capture(self._late.program)
        chains = {graph.n_rows: graph.chain for graph in graphs if graph.chain is not None}
        return (
            {graph.n_rows: capture(graph.program) for graph in graphs},
            {n: (capture(chain.begin), capture(chain.guess)) for n, chain in chains.items()},
        )

    def programs(self) -> Iterator[tuple[str, Replay]]:
        """Name each program that is captured."""
        for graph in self._graphs:
            yield f"{graph.n_rows} rows", graph.program
            if graph.chain is not None:
                yield f"{graph.n_rows} rows, chain", graph.chain.begin
                yield f"{graph.n_rows} rows, guess", graph.chain.guess
        yield "late draw", self._late.program

    # -- the interface of every runner -----------------------------------------------------------

    @torch.inference_mode()
    def step(
        self, extensions: Items[Extension], interrupted: Interrupted | None = None
    ) -> list[Outcome | None]:
        """Run the extensions; an outcome each, None where it is under way or had no room.

        Who asks again for what is under way gets it with the next step. An extension of which a
        part was computed already is narrowed to that. A graph once launched runs to its end:
        whoever interrupts waits for it.

        Raises: EngineError where an extension is larger than any step.
        """
        ahead, self._ahead = self._ahead, None
        parts = {id(part.sequence): part for part in ahead.parts} if ahead is not None else {}
        answered: list[tuple[Extension, Part]] = []
        rest: list[Extension] = []
        for extension in extensions:
            self._narrow(extension)
            part = parts.get(id(extension.sequence))
            remainder = self._adopt(part, extension) if part is not None else extension
            if part is not None and remainder is not extension:
                answered.append((extension, part))
            if remainder is not None:
                rest.append(remainder)
        ends = {id(e.sequence): e.sequence.n_resident + e.n_known for e, _ in answered}
        new = [self._part(e, ends.get(id(e.sequence), e.sequence.n_resident)) for e in rest]
        coming = {id(part.sequence) for part in new}
        if ahead is None or not answered:
            ahead = self._launch(that_fit(new, self._limits()))
            answered = [(part.extension, part) for part in ahead.parts]
            coming -= {id(part.sequence) for part in ahead.parts}
            new = []
        else:
            self.n_ahead_used += 1
            self._draw_late(ahead, answered)
        # Who goes on, and of what is new as much as there is room for; but nobody waits twice.
        overdue = [part for part in new if id(part.sequence) in self._left_out]
        others = [part for part in new if id(part.sequence) not in self._left_out]
        behind = that_fit([*overdue, *self._going_on(answered), *others], self._limits())
        self._left_out = coming - {id(part.sequence) for part in behind}
        if behind:
            self._ahead = self._launch(behind, is_ahead=True)
        self._read(ahead)
        self._learn(ahead, [part for _, part in answered])
        found = {id(extension): part.outcome for extension, part in answered}
        return [_as_asked(extension, found.get(id(extension))) for extension in extensions]

    def guess(self, sequence: Sequence, n_tokens: int) -> None:
        """None: a draft model's tokens are drawn by whoever asks."""

    def run(self, extensions: Items[Extension]) -> Tensor | None:
        """The logits of extensions that nothing is drawn for, in order."""
        logits = [rows for extension in extensions for rows in self._logits_of(extension)]
        return torch.cat(logits) if logits else None

    def _logits_of(self, extension: Extension) -> Iterator[Tensor]:
        """Compute the logits of an extension in steps as large as the host's buffers allow."""
        sequence, n_before = extension.sequence, extension.sequence.n_resident
        n_silent = extension.n_known - extension.n_logits
        while (n_done := sequence.n_resident - n_before) < extension.n_known:
            n = min(n_silent - n_done, self._graphs[-1].n_rows)
            if n <= 0:
                n = min(extension.n_known - n_done, len(self._shared.kept))
            rows = Extension(sequence, n, n_logits=n if n_done >= n_silent else 0)
            outcome = self.step([rows])[0]
            assert outcome is not None
            if outcome.logits is not None:
                yield outcome.logits
            sequence.n_resident += n
        sequence.n_resident = n_before

    def _narrow(self, extension: Extension) -> None:
        """Narrow the guesses to as many as there is room for the logits of, where the reply is told
        of them.

        The others are dropped, as after a wrong one: what was made ahead may be longer.
        """
        n_most = len(self._shared.kept) - 1
        draw = extension.draw
        if draw is None or draw.params.logprobs is None or len(extension.proposals) <= n_most:
            return
        extension.proposals = extension.proposals[:n_most]
        extension.n_logits = 1 + n_most

    # -- the step ahead --------------------------------------------------------------------------

    def _adopt(self, part: Part, extension: Extension) -> Extension | None:
        """Take what `part` has computed of `extension`; what is left to compute, if anything.

        The extension itself where nothing is of use.
        """
        asked, sequence = part.extension, extension.sequence
        first, n = part.position, part.n_known
        n_blocks = n_blocks_for(first + part.width)
        if (
            first != sequence.n_resident
            or n > extension.n_known
            or sequence.tokens[first : first + n] != part.known
            or sequence.table[:n_blocks] != part.table[:n_blocks]
        ):
            return extension
        if n == extension.n_known and not extension.n_logits:
            return None
        is_same = (
            part.n_wanted > 0
            and extension.draw is asked.draw
            and extension.grammar is asked.grammar
            and extension.is_staged == asked.is_staged
        )
        if n == extension.n_known and is_same:
            return None
        # A chunk of it is there, or words that were staged before others were: what its last row
        # is wanted for is another matter.
        n = min(n, extension.n_known - 1)
        if not n:
            return extension
        rest = replace(extension, n_known=extension.n_known - n)
        extension.n_known, extension.proposals, extension.n_logits = n, [], 0
        return rest

    def _going_on(self, answered: Iterable[tuple[Extension, Part]]) -> Iterator[Part]:
        """Yield for each reply that the coming results let go on by itself its next rows."""
        going = [
            (extension, part)
            for extension, part in answered
            if extension.n_logits
            and extension.draw is not None
            # Where the host drafts it feeds the next step itself.
            and len(extension.proposals) <= (0 if extension.grammar is None else FEW_FORCED)
            and extension.index + 1 < extension.draw.params.max_tokens
            and not (self._hosts_drafts and extension.grammar is None)
        ]
        n_free = sum(extension.grammar is None for extension, _ in going)
        width_of_free = self._width(n_free)
        n_positions = self.decoder.rope.cos.shape[0]
        for extension, part in going:
            table = extension.sequence.table
            width = width_of_free if extension.grammar is None else 1
            n_most = extension.sequence.n_resident + part.width + width
            if n_most > min(len(table) * BLOCK_TOKENS, n_positions):
                continue
            self._shared.places.touch(extension.sequence)
            follows = Extension(
                extension.sequence, 1, extension.proposals, 1, extension.draw,
                extension.index + 1, extension.grammar, extension.is_staged,
            )  # fmt: skip
            yield Part(follows, -1, [], width, table[:], part.place, part, goes_on=True)

    def _width(self, n_replies: int) -> int:
        """Rows of each of so many replies: a token, and what is worth drafting behind it."""
        n = next_power_of_2(n_replies)
        most = max(1, min(1 + self.length.choose(n), MOST_DRAFTED_ROWS // n))
        widths = DECODE_ROWS if self._shared.eagle is None else CHAIN_ROWS
        return max(q for q in widths if q <= most)

    def _limits(self) -> Room:
        return Room(self._graphs[-1].n_rows, len(self._shared.kept))

    # -- launching and reading -------------------------------------------------------------------

    def _part(self, extension: Extension, first: int) -> Part:
        """Make the part that the host feeds from position `first` on."""
        sequence = extension.sequence
        fed = sequence.tokens[first : first + extension.n_known]
        return Part(extension, first, fed, extension.n_rows, sequence.table[:])

    def _launch(self, parts: list[Part], is_ahead: bool = False) -> Launch:
        if not parts:
            raise EngineError("expected an extension that fits a step, found it larger than any")
        for part in parts:
            if part.extension.draw is not None and part.extension.n_logits and not part.goes_on:
                # Not before: of a part that had no room the device has read nothing.
                part.place = self._shared.places.take(part.sequence, part.first, len(part.fed))
        # Those of few rows first: their attention is split, and has room for the first rows alone.
        # And of those the ones that are guessed at: a chain has room for the first sequences alone.
        # Before them the ones that are drawn late, whose lines and rows are the same numbers.
        parts = sorted(
            parts, key=lambda part: (part.width > FEW_ROWS, not part.is_late, not part.goes_on)
        )
        n_rows = sum(part.width for part in parts)
        n_wanted = sum(part.n_wanted for part in parts)
        graph = next(g for g in self._graphs if g.n_rows >= n_rows and g.n_wanted >= n_wanted)
        copy = self.n_launches % N_UNDER_WAY
        memory, masks = self._inputs[copy], self._masks[copy]
        asked = graph.fill(memory, parts)
        for line, bits in asked:
            write_mask(masks[line], bits)
        graph.fed.copy_(memory[: graph.inputs.n_words], non_blocking=True)
        if asked:
            first, last = asked[0][0], asked[-1][0] + 1
            self._shared.masks[first:last].copy_(masks[first:last], non_blocking=True)
        n_guesses = max((part.width - 1 for part in parts if part.goes_on), default=0)
        if n_guesses and self._chains:
            begin, guess = self._chains[graph.n_rows]
            begin()
            for _ in range(n_guesses):
                guess()
        self._replays[graph.n_rows]()
        self._results[copy][: graph.results.n_words].copy_(graph.found, non_blocking=True)
        if n_kept := sum(part.n_kept for part in parts):
            self._kept[copy, :n_kept].copy_(self._shared.kept[:n_kept], non_blocking=True)
        launch = Launch(graph, parts, copy, is_ahead=is_ahead)
        if self._is_cuda:
            launch.done = torch.cuda.Event()
            launch.done.record()
        self.n_launches += 1
        return launch

    def _draw_late(self, launch: Launch, answered: list[tuple[Extension, Part]]) -> None:
        """Draw the tokens of a step under way that wait for their grammars' masks."""
        late = [(e, part) for e, part in answered if part.is_late and e.n_logits]
        if late:
            launch.late = [part for _, part in late]
            self._late.draw(launch.copy, late, self._masks[launch.copy], self._kept[launch.copy])
            if launch.done is not None:
                launch.done.record()

    def _read(self, launch: Launch) -> None:
        if launch.done is not None:
            launch.done.synchronize()
        launch.graph.read(self._results[launch.copy], launch.parts, self._kept[launch.copy])
        self._late.read(launch.copy, launch.late)

    def _learn(self, launch: Launch, served: list[Part]) -> None:
        """Book what decoding cost and how many guesses stood.

        Staged words and a prompt's last few tokens guess nothing. Only where the device went on by
        itself is the time between two readings what the step cost.
        """
        now, before, self._read_at = perf_counter(), self._read_at, perf_counter()
        decoded = [part for part in served if part.is_decoding]
        if not decoded:
            return
        n_accepted = 0
        for part in decoded:
            assert part.outcome is not None and part.outcome.chosen is not None
            n_kept = len(part.outcome.chosen) - 1
            self.length.verified(part.width - 1, n_kept)
            n_accepted += n_kept
        is_timed = launch.is_ahead and len(decoded) == len(launch.parts)
        n = next_power_of_2(len(decoded))
        elapsed_ms = (now - before) * 1e3 if is_timed else None
        rows = n * max(part.width for part in decoded)
        self.length.stepped(n, rows, n_accepted / len(decoded), elapsed_ms)


def _as_asked(extension: Extension, outcome: Outcome | None) -> Outcome | None:
    """Return the draws as asked, and nothing inside a prompt."""
    if outcome is not None and not extension.n_logits:
        return Outcome()
    return outcome
