"""Owns a step's rows at both ends of the pass: where they come from, and what of them stands.

`place_rows` gives every row its token, position and slot in the KV pool; `verify` compares drafted
tokens with what was drawn at their places, and leaves in `Places` where each reply goes on. So the
step that follows can be launched before anybody has read this one.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..types import BLOCK_TOKENS, MAX_SALVAGED
from .attention import Pieces
from .launch import next_power_of_2
from .places import Places

MOST_GUESSES = tl.constexpr(next_power_of_2(MAX_SALVAGED))  # of one sequence in one step


@dataclass(frozen=True, slots=True)
class Fed:
    """The host's description of a step's rows; all int64 on the device.

    Of each row: tokens. Of each sequence: starts, its first row; firsts, the position of that;
    counts, its rows; n_known, how many of them are no guesses; index, of the next token within the
    reply; places, its place in `Places`, 0 for none; goes_on: 1 where the device itself knows
    tokens, position, index and guesses, and fills firsts, counts and index in; wanted_at: the first
    of its rows among those drawn from, -1 for none.
    Of each piece: piece_starts, its first row; piece_widths, the rows there is room for;
    piece_offsets, its first row's place within the sequence; piece_owners, the sequence, -1 for
    rows of nobody.
    """

    tokens: Tensor
    starts: Tensor
    firsts: Tensor
    counts: Tensor
    n_known: Tensor
    index: Tensor
    places: Tensor
    goes_on: Tensor
    wanted_at: Tensor
    piece_starts: Tensor
    piece_widths: Tensor
    piece_offsets: Tensor
    piece_owners: Tensor


@triton.jit
def _place_rows(
    fed_ptr, firsts_ptr, counts_ptr, index_ptr, places_ptr, goes_on_ptr,
    piece_starts_ptr, piece_widths_ptr, piece_offsets_ptr, piece_owners_ptr, tables_ptr,
    history_ptr, position_ptr, token_ptr, index_of_ptr, guesses_ptr, n_guesses_ptr,
    starts_out_ptr, counts_out_ptr, firsts_out_ptr, owners_out_ptr,
    tokens_ptr, positions_ptr, kv_slots_ptr, before_ptr,
    N_TOKENS: tl.constexpr, N_GUESSES: tl.constexpr, MAX_BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
):  # fmt: skip
    """All rows of one piece."""
    piece = tl.program_id(0)
    owner = tl.load(piece_owners_ptr + piece)
    start = tl.load(piece_starts_ptr + piece)
    width = tl.load(piece_widths_ptr + piece)
    offset = tl.load(piece_offsets_ptr + piece)
    is_owned = owner >= 0
    place = tl.load(places_ptr + owner, mask=is_owned, other=0)
    goes_on = tl.load(goes_on_ptr + owner, mask=is_owned, other=0) != 0
    first = tl.load(firsts_ptr + owner, mask=is_owned, other=0)
    first = tl.where(goes_on, tl.load(position_ptr + place), first)
    count = tl.load(counts_ptr + owner, mask=is_owned, other=0)
    count = tl.where(goes_on, tl.minimum(count, 1 + tl.load(n_guesses_ptr + place)), count)
    at = tl.arange(0, WIDTH)
    inside = at < width
    is_row = inside & (offset + at < count)
    token = tl.load(fed_ptr + start + at, mask=is_row, other=0)
    if goes_on:
        guess_ptr = guesses_ptr + place * N_GUESSES + offset + at - 1
        token = tl.load(guess_ptr, mask=is_row & (offset + at > 0), other=0)
        token = tl.where(offset + at == 0, tl.load(token_ptr + place), token)
    position = first + offset + at
    table_ptr = tables_ptr + owner * MAX_BLOCKS
    block = tl.load(table_ptr + position // BLOCK_TOKENS, mask=is_row, other=0)
    kv_slot = block * BLOCK_TOKENS + position % BLOCK_TOKENS
    tl.store(tokens_ptr + start + at, tl.where(is_row, token, 0), mask=inside)
    tl.store(positions_ptr + start + at, tl.where(is_row, position, 0).to(tl.int32), mask=inside)
    tl.store(kv_slots_ptr + start + at, tl.where(is_row, kv_slot, -1).to(tl.int32), mask=inside)
    has_before = is_row & (position > 0)
    block = tl.load(table_ptr + (position - 1) // BLOCK_TOKENS, mask=has_before, other=0)
    before = block * BLOCK_TOKENS + (position - 1) % BLOCK_TOKENS
    tl.store(before_ptr + start + at, tl.where(has_before, before, -1).to(tl.int32), mask=inside)
    if place > 0:
        tl.store(history_ptr + place * N_TOKENS + position, token.to(tl.int32), mask=is_row)
    tl.store(starts_out_ptr + piece, start.to(tl.int32))
    tl.store(owners_out_ptr + piece, tl.maximum(owner, 0).to(tl.int32))
    tl.store(firsts_out_ptr + piece, (first + offset).to(tl.int32))
    n_rows = tl.minimum(tl.maximum(count - offset, 0), width)
    tl.store(counts_out_ptr + piece, tl.where(is_owned, n_rows, 0).to(tl.int32))
    if goes_on & (offset == 0):  # its other pieces read none of these
        tl.store(firsts_ptr + owner, first)
        tl.store(index_ptr + owner, tl.load(index_of_ptr + place))


def place_rows(
    fed: Fed, places: Places, pieces: Pieces, tokens: Tensor, positions: Tensor, kv_slots: Tensor,
    before: Tensor, most_rows: int,
) -> None:  # fmt: skip
    """Fill `pieces`, and of every row its token, position and slot in the pool; -1 is nobody's.

    tokens: int64 [rows]; positions, kv_slots, before: int32 [rows], the last being the slot of the
    position before it, -1 where there is none. `fed.counts` of a sequence that goes on
    is the most rows it may have; it stays, and `pieces.counts` says how many there are.
    most_rows: of a piece. `pieces.tables` must hold every position asked for.
    """
    _place_rows[(len(fed.piece_starts),)](
        fed.tokens, fed.firsts, fed.counts, fed.index, fed.places, fed.goes_on,
        fed.piece_starts, fed.piece_widths, fed.piece_offsets, fed.piece_owners, pieces.tables,
        places.history, places.position, places.token, places.index, places.guesses,
        places.n_guesses, pieces.starts, pieces.counts, pieces.firsts, pieces.owners, tokens,
        positions, kv_slots, before, N_TOKENS=places.history.shape[1],
        N_GUESSES=places.guesses.shape[1], MAX_BLOCKS=pieces.tables.shape[1],
        WIDTH=next_power_of_2(most_rows), BLOCK_TOKENS=BLOCK_TOKENS, num_warps=1,
        enable_fp_fusion=True,
    )  # fmt: skip


def place_rows_reference(
    fed: Fed, places: Places, pieces: Pieces, tokens: Tensor, positions: Tensor, kv_slots: Tensor,
    before: Tensor, most_rows: int,
) -> None:  # fmt: skip
    owners, starts = fed.piece_owners.tolist(), fed.piece_starts.tolist()
    widths, offsets = fed.piece_widths.tolist(), fed.piece_offsets.tolist()
    pieces.counts.zero_()
    parts = zip(owners, starts, widths, offsets, strict=True)
    for piece, (owner, start, width, offset) in enumerate(parts):
        rows = slice(start, start + width)
        tokens[rows], positions[rows], kv_slots[rows], before[rows] = 0, 0, -1, -1
        if owner < 0:
            continue
        place, count = int(fed.places[owner]), int(fed.counts[owner])
        if fed.goes_on[owner]:
            count = min(count, 1 + int(places.n_guesses[place]))
            fed.firsts[owner], fed.index[owner] = places.position[place], places.index[place]
            said = torch.cat((places.token[place : place + 1], places.guesses[place]))
            tokens[rows] = said[offset : offset + width]
        else:
            tokens[rows] = fed.tokens[rows]
        n, first = max(0, min(width, count - offset)), int(fed.firsts[owner]) + offset
        rows, at = slice(start, start + n), torch.arange(first, first + n, device=tokens.device)
        tokens[start + n : start + width] = 0
        positions[rows] = at.int()
        for kv_slots_of, position in ((kv_slots, at), (before, (at - 1).clamp_min(0))):
            blocks = pieces.tables[owner, position // BLOCK_TOKENS]
            kv_slots_of[rows] = blocks * BLOCK_TOKENS + (position % BLOCK_TOKENS).int()
        before[rows].masked_fill_(at == 0, -1)
        if place:
            places.history[place, at] = tokens[rows].int()
        pieces.starts[piece], pieces.owners[piece] = start, owner
        pieces.counts[piece], pieces.firsts[piece] = n, first


@triton.jit
def _verify(
    tokens_ptr, chosen_ptr, starts_ptr, firsts_ptr, counts_ptr, n_known_ptr, index_ptr, places_ptr,
    goes_on_ptr, wanted_at_ptr, history_ptr, position_ptr, token_ptr, index_of_ptr, n_guesses_ptr,
    counts_out_ptr, n_accepted_ptr, N_TOKENS: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    place = tl.load(places_ptr + sequence)
    count = tl.load(counts_ptr + sequence)
    if tl.load(goes_on_ptr + sequence) != 0:
        count = tl.minimum(count, 1 + tl.load(n_guesses_ptr + place))
    tl.store(counts_out_ptr + sequence, count)
    wanted_at = tl.load(wanted_at_ptr + sequence)
    n_accepted = tl.zeros((), tl.int64)
    if wanted_at >= 0:
        n_known = tl.load(n_known_ptr + sequence)
        row = tl.load(starts_ptr + sequence) + n_known  # of the first guess
        guess = tl.arange(0, MOST_GUESSES)
        drafted = guess < count - n_known
        expected = tl.load(chosen_ptr + wanted_at + guess, mask=drafted, other=0)
        found = tl.load(tokens_ptr + row + guess, mask=drafted, other=0)
        is_wrong = drafted & (expected != found)
        n_accepted += tl.min(tl.where(is_wrong, guess, count - n_known), 0)
        following = tl.load(chosen_ptr + wanted_at + n_accepted)
        position = tl.load(firsts_ptr + sequence) + n_known + n_accepted
        if place > 0:
            tl.store(position_ptr + place, position)
            tl.store(token_ptr + place, following)
            tl.store(index_of_ptr + place, tl.load(index_ptr + sequence) + n_accepted + 1)
            tl.store(n_guesses_ptr + place, tl.zeros((), tl.int64))
            tl.store(history_ptr + place * N_TOKENS + position, following.to(tl.int32))
    tl.store(n_accepted_ptr + sequence, n_accepted)


def verify(
    fed: Fed, places: Places, tokens: Tensor, chosen: Tensor, counts: Tensor, n_accepted: Tensor
) -> None:
    """Count the guesses of each sequence that stand, and let it go on behind the last of them.

    tokens: int64 [rows], as `place_rows` left them: of each sequence `n_known` known ones, then up
    to `MOST_GUESSES` guesses. chosen: int64, what `sample` chose after each wanted row.
    counts, n_accepted: int64 [sequences], written: its rows, and leading guesses that equal what
    was chosen at their places.
    """
    _verify[(len(fed.starts),)](
        tokens, chosen, fed.starts, fed.firsts, fed.counts, fed.n_known, fed.index, fed.places,
        fed.goes_on, fed.wanted_at, places.history, places.position, places.token, places.index,
        places.n_guesses, counts, n_accepted, N_TOKENS=places.history.shape[1], num_warps=1,
        enable_fp_fusion=True,
    )  # fmt: skip


def verify_reference(
    fed: Fed, places: Places, tokens: Tensor, chosen: Tensor, counts: Tensor, n_accepted: Tensor
) -> None:
    for i, wanted_at in enumerate(fed.wanted_at.tolist()):
        place, count, n_known = int(fed.places[i]), int(fed.counts[i]), int(fed.n_known[i])
        if fed.goes_on[i]:
            count = min(count, 1 + int(places.n_guesses[place]))
        counts[i], n_accepted[i] = count, 0
        if wanted_at < 0:
            continue
        row, n = int(fed.starts[i]) + n_known, 0
        while n < count - n_known and tokens[row + n] == chosen[wanted_at + n]:
            n += 1
        n_accepted[i] = n
        if place:
            position = int(fed.firsts[i]) + n_known + n
            places.position[place], places.index[place] = position, fed.index[i] + n + 1
            places.token[place] = places.history[place, position] = chosen[wanted_at + n]
            places.n_guesses[place] = 0
