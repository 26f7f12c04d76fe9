"""Owns one shape of step on a device: its buffers, and the program that a graph replays over them.

A step of `n_sequences` x `n_rows` reads its inputs from one buffer that a single copy fills, runs
the model, draws and verifies tokens, writes its results into one buffer that a single copy brings
back, and leaves as its inputs those of the step that follows. So a replay with nothing uploaded is
the next step of the same replies.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..runner import Draw, Extension, Outcome
from ..types import MAX_SALVAGED
from .attention import MAX_DECODE_ROWS, Rows
from .decoder import KernelDecoder
from .ngram import guess
from .probability import n_chunks
from .sample import Draws

MAX_WANTED = MAX_SALVAGED + 1  # rows of a prefill step that may need logits
_FLOATS = ("temperature", "top_p")
_WORDS = ("firsts", "counts", "n_known", "index", "history", "seed", "top_k", "guessing")


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sequences side by side, and the most rows of each."""

    n_sequences: int
    n_rows: int

    @property
    def is_decode(self) -> bool:
        return self.n_rows <= MAX_DECODE_ROWS

    @property
    def n_total(self) -> int:
        return self.n_sequences * self.n_rows

    @property
    def n_wanted(self) -> int:
        return self.n_total if self.is_decode else min(self.n_total, MAX_WANTED)


class CudaGraphs:
    """Captures programs; replaying one launches all its kernels at once.

    They share a memory pool, as no two run at the same time. It is this object's own: a pool whose
    graphs are gone cannot be captured into again. Programs are run and captured on one stream, so
    that cuBLAS has its workspace there before a capture could claim it.
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, program: Callable[[], None]) -> Callable[[], None]:
        """What replays the program. It is run twice before: kernels are compiled outside."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                program()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            program()
        graph.replay()  # the first one is slow: it brings the graph to the device
        return graph.replay


class Buffer:
    """Named int64 fields in one piece of memory, on the device and (pinned) on the host."""

    def __init__(self, sizes: dict[str, int], device: str, n_copies: int = 1) -> None:
        # Fields begin at multiples of 16 bytes: kernels are compiled once for aligned pointers.
        total = sum(size + size % 2 for size in sizes.values())
        self.device = torch.zeros(total, dtype=torch.int64, device=device)
        pinned = device.startswith("cuda")
        self.host = [
            torch.zeros(total, dtype=torch.int64, pin_memory=pinned) for _ in range(n_copies)
        ]
        self._places: dict[str, slice] = {}
        start = 0
        for name, size in sizes.items():
            self._places[name] = slice(start, start + size)
            start += size + size % 2

    def at(self, name: str) -> Tensor:
        """A field on the device; of doubles where the name says so."""
        return self._view(self.device, name)

    def host_fields(self, copy: int) -> dict[str, Any]:
        """All fields of a copy on the host, as numpy arrays over the same memory."""
        return {name: self._view(self.host[copy], name).numpy() for name in self._places}

    def bring_back(self, copy: int) -> None:
        self.host[copy].copy_(self.device, non_blocking=True)

    def _view(self, memory: Tensor, name: str) -> Tensor:
        field = memory[self._places[name]]
        return field.view(torch.float64) if name in (*_FLOATS, "probability") else field


class StepGraph:
    """Buffers, program and graph of one shape."""

    N_RESULTS = 8  # copies on the host: replays whose results nobody has read yet

    def __init__(
        self, shape: StepShape, model: KernelDecoder, *, space: Any, history: Tensor | None,
        max_blocks: int, end_ids: tuple[int, ...], device: str,
    ) -> None:  # fmt: skip
        n, q, wanted = shape.n_sequences, shape.n_rows, shape.n_wanted
        self.shape, self._model, self._history = shape, model, history
        self._end_head = model.decoder.end_head
        self._end_ids = torch.tensor(end_ids, dtype=torch.int64, device=device)
        self.inputs = Buffer(
            {"tokens": n * q, "wanted": wanted, **dict.fromkeys(_WORDS, n)}
            | dict.fromkeys(_FLOATS, n),
            device,
        )
        self.tables = torch.zeros(n, max_blocks, dtype=torch.int32, device=device)
        pinned = device.startswith("cuda")
        self.host_tables = torch.zeros(n, max_blocks, dtype=torch.int32, pin_memory=pinned)
        self.results = Buffer(
            {"inputs": n * q, "counts": n, "chosen": wanted, "n_accepted": n, "probability": n},
            device,
            self.N_RESULTS,
        )
        vocab = model.config.vocab_size
        self.logits = torch.zeros(wanted, vocab, device=device)
        self._masses = torch.zeros(n, n_chunks(vocab), 2, device=device)
        self._chosen = torch.zeros(wanted, dtype=torch.int64, device=device)
        self._n_accepted = torch.zeros(n, dtype=torch.int32, device=device)
        self._next = torch.zeros(n, dtype=torch.int64, device=device)
        self._starts = torch.arange(0, n * q, q, dtype=torch.int32, device=device)
        firsts, row_counts = (torch.zeros(n, dtype=torch.int32, device=device) for _ in range(2))
        self._rows = Rows(self._starts, row_counts, firsts, self.tables)
        self._positions, self._slots = (
            torch.zeros(n * q, dtype=torch.int32, device=device) for _ in range(2)
        )
        self._offsets = torch.arange(q, device=device)
        self._wanted_offsets = torch.arange(wanted, device=device)
        self._host = self.inputs.host_fields(0)
        self._found = [self.results.host_fields(copy) for copy in range(self.N_RESULTS)]
        self._host_tables = self.host_tables.numpy()
        self._uploaded: Any = None
        self._space = type(space)(
            **{name: getattr(space, name)[:wanted] for name in space.__dataclass_fields__}
        )

    # -- the host's side -------------------------------------------------------------------------

    def begin_upload(self) -> None:
        """Wait until the host's copy of the inputs may be written again, and empty it."""
        if self._uploaded is not None:
            self._uploaded.synchronize()
        self.inputs.host[0].zero_()
        self._host["n_known"][:] = 1
        self._host["top_p"][:] = 1.0

    def fill(self, row: int, extension: Extension, draw: Draw, place: int) -> None:
        """Write one sequence's inputs."""
        host, sequence, params = self._host, extension.sequence, draw.params
        first, n_rows = sequence.n_resident, extension.n_rows
        start = row * self.shape.n_rows
        fed = sequence.tokens[first : first + extension.n_known] + extension.proposals
        host["tokens"][start : start + n_rows] = fed
        host["firsts"][row], host["counts"][row] = first, n_rows
        host["n_known"][row], host["index"][row] = extension.n_known, extension.index
        host["history"][row], host["guessing"][row] = place, extension.draw is not None
        host["seed"][row] = (draw.seed + 2**63) % 2**64 - 2**63  # as a signed integer
        host["top_k"][row], host["top_p"][row] = params.top_k, params.top_p
        host["temperature"][row] = params.temperature
        if not self.shape.is_decode:
            host["wanted"][: extension.n_logits] = range(n_rows - extension.n_logits, n_rows)
        self._host_tables[row, : len(sequence.table)] = sequence.table

    def upload(self, n_sequences: int) -> None:
        self.inputs.device.copy_(self.inputs.host[0], non_blocking=True)
        self.tables.copy_(self.host_tables, non_blocking=True)
        if self.tables.is_cuda:
            self._uploaded = self._uploaded or torch.cuda.Event()
            self._uploaded.record()

    def logits_of(self, row: int, extension: Extension) -> Tensor:
        """The logits on the device that an extension wants."""
        start = 0
        if self.shape.is_decode:
            start = row * self.shape.n_rows + extension.n_rows - extension.n_logits
        return self.logits[start : start + extension.n_logits]

    def results_of(
        self, copy: int, n_known: Items[int], extensions: Items[Extension]
    ) -> list[Outcome]:
        """What a step found, from the host's copy of its results."""
        found, q = self._found[copy], self.shape.n_rows
        if not self.shape.is_decode:
            extension = extensions[0]
            chosen = found["chosen"][: extension.n_logits].tolist()
            probability = float(found["probability"][0])
            return [Outcome(None, chosen, extension.proposals, probability)]
        outcomes = []
        for row, n in enumerate(n_known):
            start, end = row * q, row * q + int(found["counts"][row])
            last = start + n + int(found["n_accepted"][row])
            outcomes.append(
                Outcome(
                    None,
                    found["chosen"][start + n - 1 : last].tolist(),
                    found["inputs"][start + n : end].tolist(),
                    float(found["probability"][row]),
                )
            )
        return outcomes

    # -- the device's side -----------------------------------------------------------------------

    def program(self) -> None:
        """One step, from the inputs to the results and the inputs of the next."""
        field, q = self.inputs.at, self.shape.n_rows
        counts, n_known, tokens = field("counts"), field("n_known"), field("tokens")
        rows, positions = self._rows, self._positions
        self._model.call.place_rows(field("firsts"), counts, rows, positions, self._slots)
        if self._history is not None:
            is_row = self._offsets < counts[:, None]
            place = torch.where(is_row, field("history")[:, None], 0)
            self._history[place, positions.view(-1, q).long()] = tokens.view(-1, q).int()
        wanted = None if self.shape.is_decode else field("wanted")
        states, logits = self._model.forward(tokens, positions, self._slots, rows, q, wanted)
        self.logits.copy_(logits)
        self._sample()
        self.results.at("inputs").copy_(tokens)
        self.results.at("counts").copy_(counts)
        self.results.at("chosen").copy_(self._chosen)
        if len(self._end_ids):
            self._note_probability(counts, states)
        if self.shape.is_decode:
            self._model.call.verify(
                tokens, self._chosen, rows, n_known.int(), self._n_accepted, self._next
            )
            self.results.at("n_accepted").copy_(self._n_accepted)
            self._move_on()

    def _sample(self) -> None:
        field, shape = self.inputs.at, self.shape
        if shape.n_rows == 1:  # a row each: the fields are what is asked for
            draws = Draws(**{name: field(name) for name in Draws.__dataclass_fields__})
            self._model.call.sample(self.logits, draws, self._space, self._chosen)
            return
        if shape.is_decode:
            index = field("index")[:, None] + self._offsets - (field("n_known") - 1)[:, None]
        else:
            index = field("index")[:, None] + self._wanted_offsets

        def per_row(name: str) -> Tensor:
            # Of a single sequence an expanded field flattens to a view of stride 0.
            return field(name)[:, None].expand(index.shape).flatten().contiguous()

        draws = Draws(
            temperature=per_row("temperature"),
            top_k=per_row("top_k"),
            top_p=per_row("top_p"),
            seed=per_row("seed"),
            index=index.clamp_min(0).flatten(),
        )
        self._model.call.sample(self.logits, draws, self._space, self._chosen)

    def _note_probability(self, counts: Tensor, states: Tensor) -> None:
        """Of the end of turn after each sequence's last row; of the first wanted row in prefill."""
        rows = self._starts.long()
        if self.shape.is_decode:
            rows = (rows + counts - 1).clamp_min(0)
        found = self.results.at("probability")
        if self._end_head is not None:
            found.copy_(self._end_head(states[rows]))
            return
        self._model.call.probability(self.logits, rows, self._end_ids, self._masses, found)

    def _move_on(self) -> None:
        """Make the inputs those of the following step: what was drawn, and guesses behind it."""
        field, q = self.inputs.at, self.shape.n_rows
        n_new = self._n_accepted + field("n_known")
        is_live = (field("counts") > 0).long()
        field("firsts").add_(n_new * is_live)
        field("index").add_((self._n_accepted + 1) * is_live)
        field("n_known").fill_(1)
        tokens = field("tokens").view(-1, q)
        tokens[:, 0] = self._next.clamp_min(0)
        if self._history is None or q == 1:
            field("counts").copy_(is_live)
            return
        n_tokens = field("firsts") + 1
        self._history[field("history"), field("firsts")] = tokens[:, 0].int()
        guesses, n_guesses = guess(self._history, field("history"), n_tokens, q - 1)
        tokens[:, 1:] = guesses
        field("counts").copy_(is_live * (1 + n_guesses * field("guessing")))
