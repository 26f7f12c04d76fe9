"""Owns the drawing of tokens whose masks are not known yet when their step is launched.

What a grammar allows behind a token the host can say once it has read that token, and by then the
step that is fed it is under way. Its pass over the weights needs no mask: the rows of such replies
are left alone there, first among those that tokens are drawn from, and drawn here when the masks
have come, between that step and the one behind it. So a reply under a grammar goes on by itself
like any other, and the device waits for the host only where masks take longer than a pass.
"""

from collections.abc import Sequence as Items

import numpy as np
import torch
from torch import Tensor

from ..kernels.adjust import Adjustments
from ..kernels.launch import Replay
from ..kernels.rows import Fed
from ..kernels.sample import Draws
from ..runner import Extension
from .part import MAX_LATE, Part
from .step import DRAWN, FLOATS, Layout, Shared, drawn_as

_INTEGERS = (
    "firsts", "index", "places", "owners", "mask_lines", "kept_lines", "seed", "top_k", "said_from",
)  # fmt: skip


def write_mask(line: Tensor, bits: bytes) -> None:
    """Write a grammar's mask to a line, int32 [words]; the mask may have a word more.

    llguidance pads: of a vocabulary of whole words, as Qwen's, one word is nobody's.
    """
    found = np.frombuffer(bits, np.uint8)[: line.nbytes]
    line.view(torch.uint8).numpy()[: len(found)] = found


class LateDraw:
    """Buffers and program for the first `MAX_LATE` of the rows that tokens are drawn from."""

    def __init__(self, shared: Shared, n_copies: int, device: torch.device) -> None:
        """n_copies: steps whose results nobody has read yet, at most."""
        self._shared, self._layout, n = shared, Layout(), MAX_LATE
        for name in _INTEGERS:
            self._layout.add(name, n)
        for name in FLOATS:
            self._layout.add(name, n, torch.float64)
        self._layout.add("positions", n, torch.int32)
        self._fed = torch.zeros(self._layout.n_words, dtype=torch.int64, device=device)
        given = self._layout.fields(self._fed)
        # Every line is one row of one reply, fed by the host, behind which nothing was guessed.
        zeros, ones = (torch.full((n,), value, device=device) for value in (0, 1))
        fixed = {
            "rows": torch.arange(n, device=device), "offsets": zeros, "starts": zeros,
            "goes_on": zeros, "tokens": zeros, "counts": ones, "n_known": ones,
            "wanted_at": given["owners"], "masks": shared.masks, "kept": shared.kept,
            "history": shared.places.history,
        }  # fmt: skip
        fixed |= {name: zeros for name in Fed.__dataclass_fields__ if name.startswith("piece")}
        given = {**fixed, **given}
        self._draws, self._asked, self._rows = (
            kind(**{name: given[name] for name in kind.__dataclass_fields__})
            for kind in (Draws, Adjustments, Fed)
        )
        self._logits, self._space = shared.logits[:n], shared.space.of(n)
        self._chosen, self._counts, self._n_accepted = (
            torch.zeros(n, dtype=torch.int64, device=device) for _ in range(3)
        )
        is_cuda = device.type == "cuda"
        self.on_host = [
            torch.zeros(n_copies, size, dtype=torch.int64, pin_memory=is_cuda)
            for size in (self._layout.n_words, n)
        ]
        self.replay: Replay = self.program

    def program(self) -> None:
        """Draw, and leave where each reply goes on."""
        call, places = self._shared.model.call, self._shared.places
        call.sample(self._logits, self._draws, self._space, self._chosen, self._asked)
        call.verify(self._rows, places, self._chosen, self._chosen, self._counts, self._n_accepted)

    def draw(
        self, copy: int, asked: Items[tuple[Extension, Part]], masks: Tensor, kept: Tensor
    ) -> None:
        """Have the device draw for parts of a step, each as asked for once its token was known.

        copy: which of the host's copies the results go to. masks: int32 [MAX_WANTED, words], kept:
        fp32 [lines, vocab], as in `Shared`, the host's.
        """
        shared = self._shared
        self._fed.copy_(self._fill(copy, asked, masks), non_blocking=True)
        n_masks = 1 + max(part.wanted_at for _, part in asked)
        shared.masks[:n_masks].copy_(masks[:n_masks], non_blocking=True)
        self.replay()
        self.on_host[1][copy].copy_(self._chosen, non_blocking=True)
        if n_kept := 1 + max(part.kept_at if part.n_kept else -1 for _, part in asked):
            kept[:n_kept].copy_(shared.kept[:n_kept], non_blocking=True)

    def _fill(self, copy: int, asked: Items[tuple[Extension, Part]], masks: Tensor) -> Tensor:
        """The host's copy of the inputs, written; masks are written too."""
        memory = self.on_host[0][copy]
        given = self._layout.arrays(memory)
        memory.zero_()
        for name in ("owners", "mask_lines", "kept_lines"):
            given[name].fill(-1)
        for extension, part in asked:
            line = part.wanted_at
            assert extension.grammar is not None
            values = {
                "firsts": part.position, "positions": part.position, "index": extension.index,
                "places": part.place, "owners": line,
                **dict(zip(DRAWN, drawn_as(extension), strict=True)),
            }  # fmt: skip
            if part.n_kept:
                values["kept_lines"] = part.kept_at
            mask = extension.grammar.masks()[0]
            if any(mask):  # else its error is told elsewhere
                values["mask_lines"] = line
                write_mask(masks[line], mask)
            for name, value in values.items():
                given[name][line] = value
        return memory

    def read(self, copy: int, parts: Items[Part]) -> None:
        """Note in `parts` what was drawn, from the host's copy."""
        for part in parts:
            assert part.outcome is not None
            token = int(self.on_host[1][copy, part.wanted_at])
            part.outcome.chosen, part.end = [token], (part.position + 1, token)
