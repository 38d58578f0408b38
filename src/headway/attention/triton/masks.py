"""Masks as the Hopper kernels read them, made by one launch without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.attention.triton import mask_kernels
from headway.attention.triton.tables import BLOCK, TILE, whole_blocks

WORDS_AT_A_TIME, TURNS_AT_A_TIME = 32, 32
RECORD = 132  # numbers of a block, as hopper_documents.cuh has them


def is_of_keys(mask: Tensor) -> bool:
    """Whether a mask says the same for every query and head: (B|1, 1, 1, Lk), or expanded from that."""
    return all(mask.shape[axis] == 1 or mask.stride(axis) == 0 for axis in (1, 2))


def key_words(mask: Tensor, lengths: Tensor | None, batch: int) -> tuple[Tensor, Tensor]:
    """A mask of keys as bits (B, words of 64 keys), and one past the last key that is seen, (B,) int32.

    A key beyond its sequence's length is not seen. There are words for whole blocks of keys.
    """
    words, ends = _key_words(mask[:, 0, 0], lengths, batch)
    return words, ends


@torch.library.custom_op("headway::key_words", mutates_args=(), device_types=None)
def _key_words(
    mask: Tensor,  # (B|1, Lk) boolean
    lengths: Tensor | None,  # (B,)
    batch: int,
) -> tuple[Tensor, Tensor]:
    words, ends = _empty_words(mask, lengths, batch)
    of_sequence = 0 if mask.shape[0] == 1 else mask.stride(0)
    mask_kernels.key_words_kernel[(batch,)](
        mask.view(torch.uint8), words if lengths is None else lengths, words, ends,
        of_sequence, mask.stride(1), mask.shape[1], words.shape[1],
        LENGTHS=lengths is not None, BLOCK=WORDS_AT_A_TIME,
    )  # fmt: skip
    return words, ends


@_key_words.register_fake
def _empty_words(mask: Tensor, lengths: Tensor | None, batch: int) -> tuple[Tensor, Tensor]:
    words = mask.new_empty(batch, whole_blocks(mask.shape[1]) // TILE, dtype=torch.int64)
    return words, mask.new_empty(batch, dtype=torch.int32)


@torch.library.custom_op("headway::document_records", mutates_args=(), device_types=None)
def document_records(
    q_documents: Tensor,  # (B|1, Lq) integers
    k_documents: Tensor,  # (B|1, Lk)
    lengths: Tensor | None,  # (B,)
    words: Tensor | None,  # (B, words of 64 keys), of `key_words`
    causal: bool,
    batch: int,
) -> tuple[Tensor, Tensor]:
    """Records of packed texts for each block of 128 queries and of 128 keys, (B, blocks, 132) int32.

    hopper_documents.cuh says what is in them. Tiles without a pair that may attend are in no range, where that is at an
    end of it.
    """
    of_queries, of_keys = _empty_records(q_documents, k_documents, lengths, words, causal, batch)
    strides = []
    for documents in (q_documents, k_documents):
        strides += [0 if documents.shape[0] == 1 else documents.stride(0), documents.stride(1)]
    mask_kernels.document_kernel[(batch, of_queries.shape[1] + of_keys.shape[1])](
        q_documents, k_documents, of_queries if lengths is None else lengths, of_queries if words is None else words,
        of_queries, of_keys, *strides, q_documents.shape[1], k_documents.shape[1],
        CAUSAL=causal, LENGTHS=lengths is not None, MASK=words is not None, CHUNK=64, num_warps=8,
    )  # fmt: skip
    return of_queries, of_keys


@document_records.register_fake
def _empty_records(
    q_documents: Tensor, k_documents: Tensor, lengths: Tensor | None, words: Tensor | None, causal: bool, batch: int
) -> tuple[Tensor, Tensor]:
    blocks = [whole_blocks(ids.shape[1]) // BLOCK for ids in (q_documents, k_documents)]
    of_queries, of_keys = (q_documents.new_empty(batch, count, RECORD, dtype=torch.int32) for count in blocks)
    return of_queries, of_keys


def turns(k_records: Tensor, tiles: int, slots: int, teams: int) -> Tensor:  # (B, blocks of keys, tiles) int32
    """The order in which blocks of keys add to the gradient of q: of each tile how many add before, and 65,536 times
    how many add at all.

    Blocks of threads go over their blocks of keys in rounds (hopper_walk.cuh). Whoever comes to a tile first by this
    count of steps, or has the lower number, adds first: so nobody waits for one who waits for him.
    """
    batch, k_blocks = k_records.shape[:2]
    made = k_records.new_empty(batch, k_blocks, tiles)
    mask_kernels.turn_kernel[(batch, tiles)](k_records, made, k_blocks, tiles, slots, teams, BLOCK=TURNS_AT_A_TIME)
    return made
