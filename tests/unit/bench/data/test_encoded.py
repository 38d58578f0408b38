"""Texts as tokens, and batches of like lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headway.bench.data.transfer.encoded import Resident, TrainingBatches, encode, evaluation_batches
from headway.bench.data.transfer.spec import Example


@pytest.fixture
def tokenizer():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefgh"]
    backend = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")


def test_pairs_keep_their_segments_and_are_padded_at_the_end(tokenizer):
    encoded = encode(tokenizer, [Example("0", "a b c", "d", 1), Example("1", "a", "b", None)], length=16)
    resident, chosen = Resident(encoded, torch.device("cpu")), np.array([1, 0])
    assert resident.width(chosen) == 16
    batch = resident.batch(resident.numbers(chosen), 16)
    assert batch["input_ids"].shape == batch["token_type_ids"].shape == (2, 16)
    assert batch["input_ids"][:, :8].tolist() == [[2, 4, 3, 5, 3, 0, 0, 0], [2, 4, 5, 6, 3, 7, 3, 0]]
    assert batch["token_type_ids"][:, :8].tolist() == [[0, 0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 0]]
    assert not batch["input_ids"][:, 8:].any() and not batch["token_type_ids"][:, 8:].any()
    assert batch["lengths"].tolist() == [5, 7]
    assert batch["labels"].tolist() == [-1, 1]


def test_the_longer_text_is_cut(tokenizer):
    encoded = encode(tokenizer, [Example("0", "a b c d e f g h", "a b", 0)], length=9)
    assert encoded.tokens.tolist() == [2, 4, 5, 6, 7, 3, 4, 5, 3]


def test_scores_are_floats_and_hidden_ones_are_not_numbers(tokenizer):
    encoded = encode(tokenizer, [Example("0", "a", "b", 2.5), Example("1", "a", "b", None)], length=16)
    assert encoded.labels.dtype == np.float32
    assert encoded.labels[0] == 2.5
    assert np.isnan(encoded.labels[1])


def test_an_epoch_has_every_sequence_once_but_the_left_over_ones():
    lengths = np.random.default_rng(0).integers(3, 90, 1003)
    batches = TrainingBatches(lengths, batch=32, seed=1)
    assert batches.per_epoch == 31
    epochs = [np.concatenate([batches[epoch * 31 + at] for at in range(31)]) for epoch in range(3)]
    for epoch in epochs:
        assert len(set(epoch)) == 31 * 32
    left = [set(range(1003)) - set(epoch) for epoch in epochs]
    assert left[0] != left[1]


def test_batches_depend_on_seed_and_step_alone():
    lengths = np.random.default_rng(0).integers(3, 90, 300)
    forwards = [TrainingBatches(lengths, batch=16, seed=5)[step] for step in range(40)]
    again = TrainingBatches(lengths, batch=16, seed=5)
    for step in reversed(range(40)):
        assert (again[step] == forwards[step]).all()
    other = TrainingBatches(lengths, batch=16, seed=6)
    assert any((other[step] != forwards[step]).any() for step in range(40))


def test_batches_hold_like_lengths():
    lengths = np.random.default_rng(0).integers(1, 128, 3200)
    batches = TrainingBatches(lengths, batch=32, seed=0)
    padded = sum(32 * lengths[batches[step]].max() for step in range(batches.per_epoch))
    assert padded < 1.1 * lengths.sum()


def test_few_examples_make_one_batch():
    batches = TrainingBatches(np.array([3, 4, 5]), batch=32, seed=0)
    assert batches.per_epoch == 1
    assert sorted(batches[7]) == [0, 1, 2]


def test_evaluation_sees_everything_once_within_the_bound():
    lengths = np.random.default_rng(0).integers(1, 500, 701)
    batches = list(evaluation_batches(lengths, tokens=1024))
    assert sorted(np.concatenate(batches)) == list(range(701))
    assert all(len(batch) == 1 or len(batch) * lengths[batch].max() <= 1024 for batch in batches)
    assert [len(batch) for batch in evaluation_batches(np.array([2000, 3000]), tokens=1024)] == [1, 1]
