"""Batches of pairs: every pair once an epoch, budgets that hold, and the same whatever the number of processes."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.bench.data.translation.batches import TranslationBatches, cut_batches, padded_widths

LENGTHS = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=80)


class Pairs:
    """Pairs of these lengths, whose tokens tell them apart."""

    pad, bos, eos = 0, 2, 3

    def __init__(self, lengths):
        self.lengths = np.array(lengths).T

    def __len__(self):
        return self.lengths.shape[1]

    def __getitem__(self, number):
        return tuple(np.full(length - 1, 10 + number) for length in self.lengths[:, number])


@given(LENGTHS, st.integers(96, 600), st.integers(0, 5))
@settings(max_examples=60)
def test_each_epoch_has_each_pair_once_within_the_budget(lengths, tokens, seed):
    pairs = Pairs(lengths)
    batches = TranslationBatches(pairs, tokens=tokens, step_tokens=100, seed=seed)
    for epoch in range(3):
        places = range(epoch * batches.batches, (epoch + 1) * batches.batches)
        seen = np.concatenate([batches.rows(place) for place in places])
        assert sorted(seen.tolist()) == list(range(len(pairs)))
        for place in places:
            batch = batches.batch(place)
            assert batch["input_ids"].numel() <= tokens
            assert batch["labels"].numel() <= tokens


@given(LENGTHS, st.integers(1, 400), st.integers(1, 5), st.integers(0, 30))
@settings(max_examples=60)
def test_any_number_of_processes_sees_the_same_step(lengths, step_tokens, world, step):
    batches = TranslationBatches(Pairs(lengths), tokens=200, step_tokens=step_tokens, seed=1)
    alone = batches.parts(step)
    shared = [batches.parts(step, rank, world) for rank in range(world)]
    assert len({len(parts) for parts in shared}) == 1, "each computes as many"

    def rows(parts):
        return sorted(row.tolist() for part in parts for row in part["labels"] if (row != -100).any())

    dealt = [part for parts in shared for part in parts]
    assert [len(row) for row in rows(dealt)] == [len(row) for row in rows(alone)]
    assert rows(dealt) == rows(alone)
    assert all(part["attention_mask"].sum(1).min() >= 1 for part in dealt), "also those that fill up can be computed"


@given(LENGTHS, st.integers(96, 400))
@settings(max_examples=60)
def test_cuts_depend_on_the_widths_alone(lengths, tokens):
    sides = np.array(lengths).T
    order, cuts, runs = cut_batches(sides, tokens)
    shuffled = np.random.default_rng(0).permutation(sides.shape[1])
    _, again, runs_again = cut_batches(sides[:, shuffled], tokens)
    assert (cuts, runs.tolist()) == (again, runs_again.tolist())
    assert sorted(order.tolist()) == list(range(sides.shape[1]))
    widths = padded_widths(sides)[:, order]
    for run in np.unique(runs):
        assert len(np.unique(widths[:, runs == run], axis=1).T) == 1


def test_a_batch_without_pairs_has_no_labels():
    batches = TranslationBatches(Pairs([(3, 4)]), tokens=96, step_tokens=1, seed=0)
    (filler,) = batches.parts(0, 1, 2)
    assert torch.equal(filler["labels"], torch.full((1, 8), -100))
    assert filler["input_ids"][0, 0] == 3 and filler["attention_mask"].sum() == 1
