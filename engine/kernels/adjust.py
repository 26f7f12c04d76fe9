"""Owns what happens to logits before a token is drawn: kept for who asks, penalized, masked.

A row that nothing is asked for costs the start of a program. A penalty counts the reply's own
tokens where they stand, in the history of `Slots`, so that a step launched before the tokens of the
one before it were read counts those too.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..sampler import penalize
from ..types import SamplingParams
from .slots import Slots

CHUNK = 1024  # tokens of the vocabulary per program
SAID = 16  # tokens of a reply that are counted at a time
MASK_BITS = 32  # of a word of a mask


@dataclass(frozen=True, slots=True)
class Adjustments:
    """What is asked for; on the device.

    Of each reply: presence, frequency: fp64, `SamplingParams`' penalties; said_from: int64, the
    position of its first token; slots: int64, its place in `Slots`.
    Of each row: rows: int64, its number in the step; owners: int64, the reply, -1 for nobody's;
    mask_lines: int64, its line of `masks`, -1 for none; kept_lines: int64, the line of `kept` it is
    copied to as the model gave it, -1 for none.
    masks: int32 [lines, ceil(vocab / 32)], a bit a token that may come. kept: fp32 [lines, vocab].
    """

    presence: Tensor
    frequency: Tensor
    said_from: Tensor
    slots: Tensor
    rows: Tensor
    owners: Tensor
    mask_lines: Tensor
    kept_lines: Tensor
    masks: Tensor
    kept: Tensor


@triton.jit
def _adjust(
    logits_ptr, positions_ptr, presence_ptr, frequency_ptr, said_from_ptr, slots_ptr, rows_ptr,
    owners_ptr, mask_lines_ptr, kept_lines_ptr, masks_ptr, kept_ptr, history_ptr,
    VOCAB: tl.constexpr, N_WORDS: tl.constexpr, N_TOKENS: tl.constexpr, CHUNK: tl.constexpr,
    SAID: tl.constexpr, MASK_BITS: tl.constexpr,
):  # fmt: skip
    """One chunk of one row."""
    row = tl.program_id(0).to(tl.int64)
    owner = tl.load(owners_ptr + row)
    if owner >= 0:
        presence = tl.load(presence_ptr + owner).to(tl.float32)
        frequency = tl.load(frequency_ptr + owner).to(tl.float32)
        mask_line = tl.load(mask_lines_ptr + row)
        kept_line = tl.load(kept_lines_ptr + row)
        is_penalized = (presence != 0.0) | (frequency != 0.0)
        if is_penalized | (mask_line >= 0) | (kept_line >= 0):
            token = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
            inside = token < VOCAB
            logits = tl.load(logits_ptr + row * VOCAB + token, mask=inside, other=0.0)
            if kept_line >= 0:
                tl.store(kept_ptr + kept_line * VOCAB + token, logits, mask=inside)
            if is_penalized:
                said_ptr = history_ptr + tl.load(slots_ptr + owner) * N_TOKENS
                begin = tl.load(said_from_ptr + owner)
                end = tl.load(positions_ptr + tl.load(rows_ptr + row)) + 1
                times = tl.zeros((CHUNK,), tl.int32)
                for base in range(begin, end, SAID):
                    at = base + tl.arange(0, SAID)
                    said = tl.load(said_ptr + at, mask=at < end, other=-1)
                    times += tl.sum((said[:, None] == token[None, :]).to(tl.int32), 0)
                penalty = presence + frequency * times.to(tl.float32)
                logits = tl.where(times > 0, logits - penalty, logits)
            if mask_line >= 0:
                word_ptr = masks_ptr + mask_line * N_WORDS + token // MASK_BITS
                words = tl.load(word_ptr, mask=inside, other=0)
                may_come = ((words >> (token % MASK_BITS)) & 1) != 0
                logits = tl.where(may_come, logits, float("-inf"))
            if is_penalized | (mask_line >= 0):
                tl.store(logits_ptr + row * VOCAB + token, logits, mask=inside)


def adjust(logits: Tensor, positions: Tensor, asked: Adjustments, slots: Slots) -> None:
    """Change logits [rows, vocab] (fp32) in place as `asked`.

    positions: int32, of each of the step's rows.
    """
    n_rows, vocab = logits.shape
    _adjust[(n_rows, triton.cdiv(vocab, CHUNK))](
        logits, positions, asked.presence, asked.frequency, asked.said_from, asked.slots,
        asked.rows, asked.owners, asked.mask_lines, asked.kept_lines, asked.masks, asked.kept,
        slots.history, VOCAB=vocab, N_WORDS=asked.masks.shape[1], N_TOKENS=slots.history.shape[1],
        CHUNK=CHUNK, SAID=SAID, MASK_BITS=MASK_BITS, num_warps=4,
        enable_fp_fusion=False,  # a penalty is rounded as torch rounds it, product and sum
    )  # fmt: skip


def adjust_reference(logits: Tensor, positions: Tensor, asked: Adjustments, slots: Slots) -> None:
    vocab = logits.shape[1]
    bits = torch.arange(MASK_BITS, device=logits.device, dtype=torch.int32)
    for row, owner in enumerate(asked.owners.tolist()):
        if owner < 0:
            continue
        if (line := int(asked.kept_lines[row])) >= 0:
            asked.kept[line] = logits[row]
        params = SamplingParams(
            presence_penalty=asked.presence[owner].item(),
            frequency_penalty=asked.frequency[owner].item(),
        )
        end = int(positions[asked.rows[row]]) + 1
        said = slots.history[int(asked.slots[owner]), int(asked.said_from[owner]) : end]
        logits[row] = penalize(logits[row], params, said.tolist())
        if (line := int(asked.mask_lines[row])) >= 0:
            may_come = (asked.masks[line][:, None] >> bits & 1).flatten()[:vocab].bool()
            logits[row].masked_fill_(~may_come, -torch.inf)
