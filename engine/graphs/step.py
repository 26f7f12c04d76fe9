"""Owns one size of step on a device: its buffers, and the program that a graph replays over them.

A step of so many rows, of whichever sequences, reads its inputs from one buffer that a single copy
fills, runs the model once, draws and verifies tokens, and writes its results into one buffer that a
single copy brings back. Where a reply goes on stays on the device (`Places`), so that the step that
follows can be launched at once.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..drafting.chain import Chain, KernelEagle
from ..kernels.adjust import Adjustments
from ..kernels.attention import Pieces, prefill_piece_rows, split_piece_rows
from ..kernels.decoder import NO_TAPS, KernelDecoder
from ..kernels.places import Places
from ..kernels.rows import Fed
from ..kernels.sample import STAGED, Draws, Ends, SampleSpace
from ..route import N_SIGNS
from ..runner import Draw, Extension, Outcome
from ..types import MAX_SALVAGED, EngineConfig, RouteSigns, SamplingParams
from .part import FEW_ROWS, MAX_SEQUENCES, MAX_SPLIT_ROWS, MAX_WANTED, Part

STEP_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CHUNK_WANTED = 16  # of a step that is a whole chunk of a prompt: all that meet the head cost
# Up to here a graph has pieces of decoding alone; above, prompts of more rows than this have tiles.
MOST_SMALL_ROWS = 64
GREEDY = Draw(SamplingParams(), 0)

FLOATS = ("temperature", "top_p", "presence", "frequency")
DRAWN = ("seed", "top_k", "said_from", *FLOATS)
_PLACED = (
    "starts", "firsts", "counts", "n_known", "index", "places", "goes_on", "wanted_at", "guessing",
)  # fmt: skip
_OF_SEQUENCE = (*_PLACED, "seed", "top_k", "said_from")
_OF_WANTED = ("rows", "owners", "offsets", "mask_lines", "kept_lines")
_OF_PIECE = ("piece_starts", "piece_widths", "piece_offsets", "piece_owners")


def graph_sizes(config: EngineConfig) -> dict[int, int]:
    """Rows of each graph, from the least, and of how many of those tokens may be drawn.

    A whole chunk of a prompt has a size of its own: rows of nobody cost as much as others.
    """
    n_most = max(config.step_tokens, config.background_tokens) + MAX_SALVAGED
    sizes = {n: min(n, MAX_WANTED) for n in (*STEP_ROWS, n_most) if n <= n_most}
    sizes.setdefault(config.step_tokens, min(config.step_tokens, CHUNK_WANTED))
    return dict(sorted(sizes.items()))


@dataclass(frozen=True, slots=True)
class Shared:
    """The buffers that all graphs of a runner share: one runs at a time.

    logits: fp32 [MAX_WANTED, vocab]. masks: int32 [MAX_WANTED, words], a bit a token that may come.
    kept: fp32 [lines, vocab], the model's own logits of rows whose reader is on the host.
    slots: int64 [rows], of each row's adapter; None where there are none.
    """

    model: KernelDecoder
    places: Places
    space: SampleSpace
    logits: Tensor
    masks: Tensor
    kept: Tensor
    end_ids: Tensor
    guess: Callable[[Tensor, Tensor, Places], None] | None
    eagle: KernelEagle | None
    max_blocks: int
    slots: Tensor | None = None


@dataclass(slots=True)
class Layout:
    """Named fields in one piece of memory of 64-bit words."""

    n_words: int = 0
    _places: dict[str, tuple[slice, torch.dtype]] = field(default_factory=dict)
    _arrays: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, size: int, dtype: torch.dtype = torch.int64) -> None:
        """Fields begin at multiples of 16 bytes: kernels are compiled for aligned pointers."""
        n_words = -(-size * dtype.itemsize // 8)
        self._places[name] = (slice(self.n_words, self.n_words + n_words), dtype)
        self.n_words += n_words + n_words % 2

    def fields(self, memory: Tensor) -> dict[str, Tensor]:
        """All fields of some memory, int64 [n_words or more]."""
        return {name: memory[at].view(dtype) for name, (at, dtype) in self._places.items()}

    def arrays(self, memory: Tensor) -> dict[str, Any]:
        """The same of memory on the host, which lives as long as this: NumPy's views, made once."""
        key = memory.data_ptr()
        if key not in self._arrays:
            self._arrays[key] = {name: part.numpy() for name, part in self.fields(memory).items()}
        return self._arrays[key]


# Replies whose parameters are kept as they are fed: twice as many as `Places` has for most servers.
@lru_cache(maxsize=1024)
def _of_draw(draw: Draw) -> tuple[float, ...]:
    """Sampling parameters in the order of `DRAWN`."""
    params = draw.params
    seed = (draw.seed + 2**63) % 2**64 - 2**63  # as a signed integer
    return (
        seed, params.top_k, draw.n_prompt, params.temperature, params.top_p,
        params.presence_penalty, params.frequency_penalty,
    )  # fmt: skip


def drawn_as(extension: Extension) -> tuple[float, ...]:
    """Sampling parameters of an extension, in the order of `DRAWN`."""
    return _of_draw(extension.draw or GREEDY)


def write_columns(
    given: dict[str, Any], names: Items[str], lines: Items[tuple[float, ...]]
) -> None:
    """Write what each line has under these names, a column at once."""
    columns = zip(*lines, strict=True) if lines else [()] * len(names)
    for name, column in zip(names, columns, strict=True):
        given[name][: len(lines)] = column


def _line(part: Part, n_fed: int) -> tuple[float, ...]:
    """Return what a step is told of a sequence, in the order of `_PLACED` and `DRAWN`."""
    extension, is_late = part.extension, part.is_late
    return (
        part.start, max(0, part.first), n_fed or part.width, part.n_known, extension.index,
        part.place, part.goes_on, part.wanted_at if part.n_wanted and not is_late else -1,
        extension.draw is not None and not is_late, *drawn_as(extension),
    )  # fmt: skip


def _wanted(part: Part, line: int) -> Iterator[tuple[float, ...]]:
    """Yield each row that is drawn from: the row, its offset, its owner, its line of kept
    logits.
    """
    n, end = part.n_wanted, part.start + part.width
    # Of staged words the probability alone is asked: nobody draws. Nor here, who draws late.
    owner = -1 if part.is_late else STAGED if part.extension.is_staged else line
    is_kept = part.n_kept > 0 and not part.is_late
    return ((end - n + i, i, owner, part.kept_at + i if is_kept else -1) for i in range(n))


def _masks_of(part: Part) -> list[tuple[int, bytes]]:
    """The masks of rows whose draws a grammar binds: lines, and bits a token."""
    grammar = part.extension.grammar
    if grammar is None or part.is_late:
        return []
    masks = enumerate(grammar.masks()[: part.n_wanted], part.wanted_at)
    return [(i, mask) for i, mask in masks if any(mask)]  # else its error is told elsewhere


class StepGraph:
    """Buffers, program and graph of one size."""

    def __init__(self, n_rows: int, n_wanted: int, shared: Shared, device: torch.device) -> None:
        """n_wanted: most rows that tokens are drawn from."""
        self.n_rows, self.n_wanted, self.shared = n_rows, n_wanted, shared
        self.n_sequences = min(n_rows, MAX_SEQUENCES)
        config = shared.model.config
        heads = config.n_heads, config.n_kv_heads
        self.few_rows, self.many_rows = split_piece_rows(*heads), prefill_piece_rows(*heads)
        self.n_few = min(n_rows, MAX_SPLIT_ROWS)
        # Of every prompt, and of what is nobody's, the last tile may hold a single row.
        n_many = n_rows // self.many_rows + n_rows // (FEW_ROWS + 1) + 2
        self.n_many = n_many if n_rows > MOST_SMALL_ROWS else 0
        n_pieces = self.n_few + self.n_many
        self.inputs, self.results = Layout(), Layout()
        self.inputs.add("tokens", n_rows)
        for names, size in (
            (_OF_SEQUENCE, self.n_sequences), (_OF_WANTED, self.n_wanted), (_OF_PIECE, n_pieces),
        ):  # fmt: skip
            for name in names:
                self.inputs.add(name, size)
        for name in FLOATS:
            self.inputs.add(name, self.n_sequences, torch.float64)
        self.inputs.add("tables", self.n_sequences * shared.max_blocks, torch.int32)
        if shared.slots is not None:
            self.inputs.add("slots", n_rows)
        self.results.add("tokens", n_rows)
        for name in ("counts", "n_accepted"):
            self.results.add(name, self.n_sequences)
        self.results.add("chosen", self.n_wanted)
        self.results.add("probability", self.n_wanted, torch.float64)
        if shared.model.decoder.route_head is not None:
            self.results.add("route", self.n_wanted * N_SIGNS, torch.float64)
        self.fed = torch.zeros(self.inputs.n_words, dtype=torch.int64, device=device)
        self.found = torch.zeros(self.results.n_words, dtype=torch.int64, device=device)
        self._lay_out(device, n_pieces)

    def _lay_out(self, device: torch.device, n_pieces: int) -> None:
        """Make the views of the buffers that kernels take, once."""
        given, shared = self.inputs.fields(self.fed), self.shared
        self._found = self.results.fields(self.found)
        self._rows = Fed(**{name: given[name] for name in Fed.__dataclass_fields__})
        tables = given["tables"].view(self.n_sequences, shared.max_blocks)
        # Lines of whole 16 bytes: kernels are compiled once for aligned pointers.
        parts = torch.zeros(4, -(-n_pieces // 4) * 4, dtype=torch.int32, device=device)

        def pieces(some: slice) -> Pieces:
            starts, counts, firsts, owners = parts[:, some].unbind(0)
            return Pieces(starts, counts, firsts, owners, tables)

        self._pieces = pieces(slice(n_pieces))
        self._few, self._many = pieces(slice(self.n_few)), pieces(slice(self.n_few, n_pieces))
        self._draws = Draws(**{name: given[name] for name in Draws.__dataclass_fields__})
        self._wanted, self._guessing = given["rows"], given["guessing"]
        self._slots = given.get("slots")
        self._positions, self._kv_slots, self._before = (
            torch.zeros(self.n_rows, dtype=torch.int32, device=device) for _ in range(3)
        )
        asked = {"masks": shared.masks, "kept": shared.kept, "positions": self._positions,
                 "history": shared.places.history}  # fmt: skip
        names = [name for name in Adjustments.__dataclass_fields__ if name not in asked]
        self._asked = Adjustments(**{name: given[name] for name in names}, **asked)
        self._logits = shared.logits[: self.n_wanted]
        has_ends = len(shared.end_ids) > 0 and shared.model.decoder.end_head is None
        self._ends = Ends(shared.end_ids, self._found["probability"]) if has_ends else None
        self._space = shared.space.of(self.n_wanted)
        self.chain: Chain | None = None  # guesses at what the step then verifies
        if shared.eagle is not None:
            self.chain = Chain(
                shared.eagle, self._rows, self._draws, tables, shared.logits, shared.space
            )

    # -- the host's side -------------------------------------------------------------------------

    def fill(self, memory: Tensor, parts: Items[Part]) -> list[tuple[int, bytes]]:
        """Write the inputs of `parts` into the host's memory: those drawn late come first, then
        those of few rows.

        Returns the masks that are asked for: lines, and bits a token.
        """
        given = self.inputs.arrays(memory)
        memory[: self.inputs.n_words].zero_()
        for name in ("wanted_at", "owners", "mask_lines", "kept_lines"):
            given[name].fill(-1)
        given["piece_owners"].fill(-1)
        given["top_p"].fill(1.0)
        if self._slots is not None:
            given["slots"].fill(-1)
        tables = given["tables"].reshape(self.n_sequences, -1)
        tokens, lines = list[int](), list[tuple[float, ...]]()
        wanted, masks = list[tuple[float, ...]](), list[tuple[int, bytes]]()
        n_kept = 0
        for line, part in enumerate(parts):
            part.start, part.wanted_at, part.kept_at = len(tokens), len(wanted), n_kept
            fed = part.fed + part.extension.proposals if part.fed else []
            lines.append(_line(part, len(fed)))
            tokens += fed + [0] * (part.width - len(fed))
            tables[line, : len(part.table)] = part.table
            if self._slots is not None:
                given["slots"][part.start : part.start + part.width] = part.sequence.slot
            if part.n_wanted:
                masks += _masks_of(part)
                wanted += _wanted(part, line)
                n_kept += part.n_kept
        given["tokens"][: len(tokens)] = tokens
        write_columns(given, (*_PLACED, *DRAWN), lines)
        write_columns(given, ("rows", "offsets", "owners", "kept_lines"), wanted)
        for i, _ in masks:
            given["mask_lines"][i] = i
        self._cut(given, parts, len(tokens))
        return masks

    def _cut(self, given: dict[str, Any], parts: Items[Part], n_rows: int) -> None:
        """Cut all rows into pieces, those of nobody behind the others."""
        few, many = list[tuple[float, ...]](), list[tuple[float, ...]]()
        places = [(part.start, part.width, line) for line, part in enumerate(parts)]
        for start, width, line in [*places, (n_rows, self.n_rows - n_rows, -1)]:
            is_many = self.n_many > 0 and (width > FEW_ROWS or line < 0)
            size = self.many_rows if is_many else self.few_rows
            (many if is_many else few).extend(
                (start + at, at, min(width - at, size), line) for at in range(0, width, size)
            )
        names = ("piece_starts", "piece_offsets", "piece_widths", "piece_owners")
        write_columns(given, names, few)
        write_columns({name: given[name][self.n_few :] for name in names}, names, many)

    def read(self, memory: Tensor, parts: Items[Part], kept: Tensor) -> None:
        """Note in `parts` what a step found, from the host's copies of results and kept logits."""
        arrays = self.results.arrays(memory)
        found = {name: arrays[name].tolist() for name in ("counts", "n_accepted", "chosen")}
        for line, part in enumerate(parts):
            extension, n_known = part.extension, part.n_known
            part.first, part.fed, part.before = part.position, part.known, None
            outcome = Outcome()
            if (n_rows := found["counts"][line]) > n_known:
                start, end = part.start + n_known, part.start + n_rows
                outcome.proposals = arrays["tokens"][start:end].tolist()
            if part.n_wanted and extension.draw is not None and not part.is_late:
                last = part.wanted_at + found["n_accepted"][line]
                outcome.chosen = found["chosen"][part.wanted_at : last + 1]
                part.end = part.first + n_known + len(outcome.chosen) - 1, outcome.chosen[-1]
            if part.n_kept:
                outcome.logits = kept[part.kept_at : part.kept_at + part.n_kept].clone()
            if extension.is_staged and part.n_wanted:
                outcome.probability = float(arrays["probability"][part.wanted_at])
                if "route" in arrays:
                    at = part.wanted_at * N_SIGNS
                    outcome.route = RouteSigns(*arrays["route"][at : at + N_SIGNS].tolist())
            part.outcome = outcome

    # -- the device's side -----------------------------------------------------------------------

    def program(self) -> None:
        """One step, from the inputs to the results and to where each reply goes on."""
        shared, found = self.shared, self._found
        model, places, call = shared.model, shared.places, shared.model.call
        most_rows = self.many_rows if self.n_many else self.few_rows
        tokens = found["tokens"]
        if shared.slots is not None and self._slots is not None:
            shared.slots[: self.n_rows].copy_(self._slots)
        call.place_rows(
            self._rows, places, self._pieces, tokens, self._positions, self._kv_slots,
            self._before, most_rows,
        )  # fmt: skip
        pieces = [(self._few, self.few_rows)]
        if self.n_many:
            pieces.append((self._many, self.many_rows))
        eagle = shared.eagle
        states = model.forward(
            tokens, self._positions, self._kv_slots, pieces, self._wanted, self._logits,
            eagle.tapped(self.n_rows) if eagle is not None else NO_TAPS,
        )  # fmt: skip
        if eagle is not None:
            eagle.keep(tokens, self._positions, self._kv_slots, self._before)
        if len(shared.end_ids) and model.decoder.end_head is not None:
            found["probability"].copy_(model.decoder.end_head(states)[:, 0])
        if model.decoder.route_head is not None:
            found["route"].view(-1, N_SIGNS).copy_(model.decoder.route_head(states))
        call.sample(
            self._logits, self._draws, self._space, found["chosen"], self._asked, self._ends
        )
        call.verify(
            self._rows, places, tokens, found["chosen"], found["counts"], found["n_accepted"]
        )
        if shared.guess is not None:
            shared.guess(self._rows.places, self._guessing, places)
