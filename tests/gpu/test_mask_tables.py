"""Masks as the Hopper kernels read them against the masks: bits of keys, records of packed texts, order of turns."""

from __future__ import annotations

import os

import pytest
import torch
from oracle import CUDA, DEVICE, ids

from headway.attention.masking import Masking

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not CUDA and os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1"),
]
FIRST_TILE, END_TILE = 130, 131  # places in a record


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("with_lengths", [True, False])
@pytest.mark.parametrize("k_len", [1, 64, 70, 200, 3000])
def test_words_of_keys(k_len, with_lengths, shared):
    from headway.attention.triton.masks import is_of_keys, key_words

    batch = 3
    mask = torch.rand(1 if shared else batch, 1, 1, k_len, device=DEVICE) > 0.3
    mask[0, ..., k_len // 2 :] = False
    mask[-1:, ..., k_len // 3] = False
    lengths = torch.randint(k_len + 1, (batch,), device=DEVICE) if with_lengths else None
    expanded = mask.expand(-1, 4, 7, -1)
    assert is_of_keys(mask) and is_of_keys(expanded) and not is_of_keys(expanded.contiguous())
    words, ends = key_words(expanded, lengths, batch)
    found = (words[:, :, None] >> torch.arange(64, device=DEVICE) & 1).flatten(1).bool()
    wanted = mask[:, 0, 0].expand(batch, -1)
    if lengths is not None:
        wanted = wanted & (torch.arange(k_len, device=DEVICE) < lengths[:, None])
    assert words.shape[1] % 2 == 0 and torch.equal(found[:, :k_len], wanted) and not found[:, k_len:].any()
    assert torch.equal(ends, (wanted * torch.arange(1, k_len + 1, device=DEVICE)).amax(1).int())


def draw_documents(kind, batch, q_len, k_len):
    if kind == "sorted":
        return ids(4, 1, q_len).sort().values, ids(4, batch, k_len).sort().values
    if kind == "in any order":
        names = torch.randint(-(2**40), 2**40, (7,), device=DEVICE)
        return names[ids(7, batch, q_len)], names[ids(7, batch, k_len)]
    return ids(3, batch, q_len).int(), ids(3, batch, k_len).int() + 2  # few meet


DOCUMENTS = ["sorted", "in any order", "few that meet"]
SIZES = [(300, 300), (1, 200), (300, 130), (64, 500)]


@pytest.mark.parametrize(("causal", "masked"), [(False, False), (True, True)])
@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize(("q_len", "k_len"), SIZES)
def test_records_of_documents(q_len, k_len, kind, causal, masked):
    from headway.attention.triton.masks import document_records, key_words

    batch, words, ends = 2, None, None
    of_queries, of_keys = draw_documents(kind, batch, q_len, k_len)
    mask = torch.rand(batch, 1, 1, k_len, device=DEVICE) > 0.5 if masked else None
    if mask is not None:
        words, ends = key_words(mask, None, batch)
    queries, keys = document_records(of_queries, of_keys, ends, words, causal, batch)
    numbers = [records[:, :, :128].flatten(1) for records in (queries, keys)]
    same = (of_queries[:, :, None] == of_keys[:, None]).expand(batch, -1, -1)
    assert torch.equal(numbers[0][:, :q_len, None] == numbers[1][:, None, :k_len], same)
    assert (numbers[0][:, q_len:] == -1).all() and (numbers[1][:, k_len:] == -2).all()
    for records, texts in zip((queries, keys), numbers, strict=True):
        halves = texts.unflatten(1, (-1, 2, 64))
        alone = torch.where(halves.amin(3) == halves.amax(3), halves.amax(3), -1)
        assert torch.equal(records[:, :, 128:130], alone)
    masking = Masking(
        q_len=q_len, k_len=k_len, causal=causal, mask=mask, q_documents=of_queries, k_documents=of_keys
    )  # fmt: skip
    dense = masking.dense(torch.device(DEVICE))
    assert dense is not None
    allowed = dense[:, 0].cpu().expand(batch, -1, -1)
    for b in range(batch):
        for block, record in enumerate(queries[b].tolist()):
            seen = allowed[b, 128 * block :][:128].any(0).nonzero().flatten() // 64
            exact = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else ((k_len + 63) // 64, 0)
            assert (record[FIRST_TILE], record[END_TILE]) == exact
        for block, record in enumerate(keys[b].tolist()):
            seen = allowed[b, :, 128 * block :][:, :128].any(1).nonzero().flatten() // 64
            assert len(seen) == 0 or record[FIRST_TILE] <= int(seen[0]) <= int(seen[-1]) < record[END_TILE]


@pytest.mark.parametrize(("slots", "teams"), [(1, 1), (2, 1), (1, 3), (2, 2), (3, 5), (1, 11)])
@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize(("q_len", "k_len"), SIZES)
def test_turns_come_to_an_end(q_len, k_len, kind, slots, teams):
    """Blocks of threads that go over blocks of keys as hopper_walk.cuh does, and wait for their turn, all finish."""
    from headway.attention.triton.masks import document_records, turns

    batch = 3
    _, records = document_records(*draw_documents(kind, batch, q_len, k_len), None, None, False, batch)
    blocks, tiles = records.shape[1], (q_len + 63) // 64
    order = turns(records, tiles, slots, teams).tolist()
    ranges = records[:, :, FIRST_TILE : END_TILE + 1].tolist()
    for slot in range(slots):
        walks = [list(walk_of(ranges, blocks, slot, slots, member, teams)) for member in range(teams)]
        added: dict[tuple[int, int], int] = {}
        waits = True
        while waits:
            waits = False
            for walk in walks:
                if not walk:
                    continue
                b, block, tile = walk[0]
                rank, count = order[b][block][tile] % 65536, order[b][block][tile] // 65536
                assert count == sum(first <= tile < end for first, end in ranges[b])
                if added.get((b, tile), 0) == rank:
                    added[b, tile] = rank + 1
                    walk.pop(0)
                    waits = True
        assert not any(walks)
        of_slot = range(slot, batch, slots)
        assert set(added) == {(b, tile) for b in of_slot for tile in range(tiles)}


def walk_of(ranges, blocks, slot, slots, member, teams):
    for turn in range(member, len(ranges) * blocks, teams):
        b, block = slot + turn // blocks * slots, turn % blocks
        if b >= len(ranges):
            return
        first, end = ranges[b][block]
        for step in range(end - first):
            yield b, block, first + (member * (end - first) // teams + step) % (end - first)
