"""Owns what happens to logits before a token is drawn: kept for who asks, penalized, masked.

A row that nothing is asked for costs the start of a program. A penalty counts the reply's own
tokens where they stand, in the history of `Places`, so that a step launched before the tokens of
the one before it were read counts those too.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..sampler import penalize
from ..types import SamplingParams

SAID = 4  # tokens of a reply that are counted at a time, each against a whole chunk of `sample`
MASK_BITS = 32  # of a word of a mask


@dataclass(frozen=True, slots=True)
class Adjustments:
    """The penalties, masks and kept logits that are asked for; on the device.

    In the order of `adjusted`'s arguments.
    Of each reply: presence, frequency: fp64, `SamplingParams`' penalties; said_from: int64, the
    position of its first token; places: int64, its place in `Places`.
    Of each row: rows: int64, its number in the step; mask_lines: int64, its line of `masks`, -1 for
    none; kept_lines: int64, the line of `kept` it is copied to as the model gave it, -1 for none.
    masks: int32 [lines, ceil(vocab / 32)], a bit a token that may come. kept: fp32 [lines, vocab].
    positions: int32, of each of the step's rows. history: `Places`' tokens.
    """

    presence: Tensor
    frequency: Tensor
    said_from: Tensor
    places: Tensor
    rows: Tensor
    mask_lines: Tensor
    kept_lines: Tensor
    masks: Tensor
    kept: Tensor
    positions: Tensor
    history: Tensor


@triton.jit
def adjusted(
    logits, logits_ptr, row, owner, token,
    presence_ptr, frequency_ptr, said_from_ptr, places_ptr, rows_ptr, mask_lines_ptr,
    kept_lines_ptr, masks_ptr, kept_ptr, positions_ptr, history_ptr,
    VOCAB: tl.constexpr, CHUNK: tl.constexpr, N_WORDS: tl.constexpr, N_TOKENS: tl.constexpr,
    SAID: tl.constexpr, MASK_BITS: tl.constexpr,
):  # fmt: skip
    """The logits of some tokens of one row as asked for; stored where they changed.

    In the kernel around it products and sums may not be fused: a penalty is rounded as torch does.
    """
    presence = tl.load(presence_ptr + owner).to(tl.float32)
    frequency = tl.load(frequency_ptr + owner).to(tl.float32)
    mask_line = tl.load(mask_lines_ptr + row)
    kept_line = tl.load(kept_lines_ptr + row)
    is_penalized = (presence != 0.0) | (frequency != 0.0)
    inside = token < VOCAB
    if kept_line >= 0:
        tl.store(kept_ptr + kept_line * VOCAB + token, logits, mask=inside)
    if is_penalized:
        said_ptr = history_ptr + tl.load(places_ptr + owner) * N_TOKENS
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
        logits = tl.where(((words >> (token % MASK_BITS)) & 1) != 0, logits, float("-inf"))
    if is_penalized | (mask_line >= 0):
        tl.store(logits_ptr + row * VOCAB + token, logits, mask=inside)
    return logits


def adjust_reference(logits: Tensor, owners: Tensor, asked: Adjustments) -> None:
    """Change logits (fp32 [rows, vocab]) in place; owners: int64, whose a row is, or negative."""
    vocab = logits.shape[1]
    bits = torch.arange(MASK_BITS, device=logits.device, dtype=torch.int32)
    for row, owner in enumerate(owners.tolist()):
        if owner < 0:
            continue
        if (line := int(asked.kept_lines[row])) >= 0:
            asked.kept[line] = logits[row]
        params = SamplingParams(
            presence_penalty=asked.presence[owner].item(),
            frequency_penalty=asked.frequency[owner].item(),
        )
        end = int(asked.positions[asked.rows[row]]) + 1
        said = asked.history[int(asked.places[owner]), int(asked.said_from[owner]) : end]
        logits[row] = penalize(logits[row], params, said.tolist())
        if (line := int(asked.mask_lines[row])) >= 0:
            may_come = (asked.masks[line][:, None] >> bits & 1).flatten()[:vocab].bool()
            logits[row].masked_fill_(~may_come, -torch.inf)
