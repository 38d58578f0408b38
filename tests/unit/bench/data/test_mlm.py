"""MLM batches: functions of seed and step, with the same rows and masks for any number of processes."""

import pickle

import numpy as np
import pytest
import torch

from headway.bench.data import EvaluationBatches, MlmBatches, Shards, build_shards, open_corpus, train_tokenizer
from headway.bench.data.mlm import order as order_module
from headway.bench.data.mlm.batches import WordMasking
from headway.bench.data.mlm.order import RowOrder


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("builtin:50", "word")


@pytest.fixture(scope="module")
def shards(tokenizer, tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "shards"
    return build_shards("builtin:1500", tokenizer, out, max_length=40, shard_tokens=5000, validation=0.1)


@pytest.fixture(scope="module")
def packed(tokenizer, tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "packed"
    return build_shards("builtin:1500", tokenizer, out, max_length=64, packed=True)


def joined(parts):
    """The batch of several ranks, as one process has it."""
    length = parts[0]["input_ids"].shape[1]
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if "masked_positions" in whole:
        rows = np.cumsum([0] + [len(part["input_ids"]) for part in parts])
        shifted = [part["masked_positions"] + row * length for part, row in zip(parts, rows, strict=False)]
        whole["masked_positions"] = torch.cat(shifted)
    return whole


def assert_same(batch, other):
    assert batch.keys() == other.keys()
    for name in batch:
        assert torch.equal(batch[name], other[name]), name


def restored(batch):
    """The tokens before masking."""
    tokens = batch["input_ids"].clone()
    used = batch["labels"] != -100
    tokens.view(-1)[batch["masked_positions"][used]] = batch["labels"][used]
    return tokens


@pytest.mark.parametrize("name", ["shards", "packed"])
@pytest.mark.parametrize("world", [2, 3, 12])
def test_the_global_batch_is_the_same_for_any_world(request, name, world):
    source = request.getfixturevalue(name)
    batches = MlmBatches(source, 12, seed=5)
    for step in (0, 7, 10_000_000):
        whole = batches.batch(step)
        assert_same(joined([batches.batch(step, rank, world) for rank in range(world)]), whole)
        again = MlmBatches(Shards(source.folder), 12, seed=5)
        assert_same(again.batch(step), whole)
        assert_same(pickle.loads(pickle.dumps(batches)).batch(step), whole)


def test_seed_and_step_change_rows_and_masks(shards):
    batches = MlmBatches(shards, 8, seed=1)
    first = batches.batch(3)
    assert not torch.equal(restored(first), restored(batches.batch(4)))
    assert not torch.equal(restored(first), restored(MlmBatches(shards, 8, seed=2).batch(3)))


def test_an_epoch_has_every_row_once_and_the_next_masks_them_anew(shards, tokenizer):
    size = 7
    batches = MlmBatches(shards, size, seed=0)
    assert batches.steps_per_epoch == len(shards) / size
    rows = np.concatenate([batches.order[np.arange(step * size, (step + 1) * size)] for step in range(len(shards))])
    for epoch in range(size):
        assert sorted(rows[epoch * len(shards) : (epoch + 1) * len(shards)]) == list(range(len(shards)))
    assert (rows[: len(shards)] != rows[len(shards) : 2 * len(shards)]).mean() > 0.9
    row = int(rows[0])
    later = int(np.flatnonzero(rows == row)[1])
    once, again = batches.batch(0), batches.batch(later // size)
    assert torch.equal(restored(once)[0], restored(again)[later % size])
    assert not torch.equal(once["input_ids"][0], again["input_ids"][later % size])
    length = len(shards[row][0])
    assert restored(once)[0][:length].tolist() == shards[row][0].tolist()
    assert (once["input_ids"][0][length:] == tokenizer.pad_token_id).all()


def test_shapes_and_padding(shards, packed, tokenizer):
    batch = MlmBatches(shards, 4).batch(0)
    slots = round(0.15 * 38)
    assert {name: tuple(each.shape) for name, each in batch.items()} == {
        "input_ids": (4, 40),
        "attention_mask": (4, 40),
        "masked_positions": (4 * slots,),
        "labels": (4 * slots,),
    }
    assert all(each.dtype == torch.int64 for each in batch.values())
    assert torch.equal(batch["attention_mask"] == 1, batch["input_ids"] != tokenizer.pad_token_id)
    assert (batch["masked_positions"].view(4, slots) // 40 == torch.arange(4)[:, None]).all()

    batch = MlmBatches(packed, 4).batch(0)
    assert batch.keys() == {"input_ids", "documents", "masked_positions", "labels"}
    assert torch.equal(batch["documents"] == -1, batch["input_ids"] == tokenizer.pad_token_id)
    assert batch["documents"].max() > 0
    starts = restored(batch) == tokenizer.cls_token_id
    changes = batch["documents"].diff(dim=1, prepend=torch.full((4, 1), -1)) > 0
    assert torch.equal(starts, changes)


@pytest.mark.parametrize("name", ["shards", "packed"])
def test_dense_and_trimmed_batches_say_the_same(request, name):
    source = request.getfixturevalue(name)
    static = MlmBatches(source, 6, seed=3).batch(2)
    trimmed = MlmBatches(source, 6, seed=3, static=False).batch(2)
    dense = MlmBatches(source, 6, seed=3, dense=True).batch(2)
    assert torch.equal(dense["input_ids"], static["input_ids"])
    used = static["labels"] != -100
    expected = torch.full_like(static["input_ids"], -100)
    expected.view(-1)[static["masked_positions"][used]] = static["labels"][used]
    assert torch.equal(dense["labels"], expected)

    longest = max(int((row != 0).sum()) for row in static["input_ids"])
    length = trimmed["input_ids"].shape[1]
    assert longest <= length < longest + 8
    assert torch.equal(trimmed["input_ids"], static["input_ids"][:, :length])
    assert torch.equal(restored(trimmed), restored(static)[:, :length])
    assert (trimmed["labels"] != -100).all() and len(trimmed["labels"]) == used.sum()


def test_masking_statistics():
    """Counts are exact; what happens to chosen tokens is within five standard deviations of 80/10/10."""
    rng = np.random.default_rng(0)
    rows = rng.integers(5, 1000, (400, 128))
    rows[:, 0], rows[:, -1] = 2, 3
    masking = WordMasking(length=128, probability=0.15, vocab_size=1000, special_ids=[0, 1, 2, 3, 4], mask_id=4)
    parts = [masking(rows, key=(0, step), first=0) for step in range(5)]
    masked, positions, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    chosen = 19  # round(0.15 * 126)
    assert masking.predictions == chosen and (labels != -100).all()
    seen = np.take_along_axis(masked, positions, axis=1)
    total = seen.size
    for share, count in (
        (0.8, (seen == 4).sum()),
        (0.1 * 994 / 995, ((seen != 4) & (seen != labels)).sum()),
        (0.1 + 0.1 / 995, (seen == labels).sum()),
    ):
        assert abs(count - share * total) < 5 * np.sqrt(share * (1 - share) * total)
    drawn = seen[(seen != 4) & (seen != labels)]
    assert drawn.min() >= 5
    assert abs(drawn.mean() - 502) < 5 * 287 / np.sqrt(len(drawn))
    # Every place is chosen alike.
    times = np.bincount(positions.ravel(), minlength=128)[1:-1]
    expected = 2000 * chosen / 126
    assert ((times - expected) ** 2 / expected).sum() < 126 + 5 * np.sqrt(2 * 126)
    assert np.bincount(positions.ravel(), minlength=128)[[0, -1]].sum() == 0
    # Steps are independent: two choices of 19 of 126 places share 19 * 19 / 126 on average.
    shared = np.mean([len(set(a) & set(b)) for a, b in zip(parts[0][1].tolist(), parts[1][1].tolist(), strict=True)])
    assert abs(shared - 19 * 19 / 126) < 0.4


def test_order_looks_random():
    """Neighbours in the stream are not neighbours on disk, and every place gets early and late rows."""
    size = 20_011
    drawn = RowOrder({"": [(0, size)]}, seed=0, smoothing=1.0)[np.arange(size)]
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / np.sqrt(size)
    assert abs(np.corrcoef(np.arange(size), drawn)[0, 1]) < 5 / np.sqrt(size)
    assert (np.abs(np.diff(drawn)) == 1).sum() < 12
    cells = np.histogram2d(np.arange(size), drawn, bins=10)[0]
    assert ((cells - size / 100) ** 2 / (size / 100)).sum() < 100 + 5 * np.sqrt(200)


def test_small_languages_are_seen_more_often(tokenizer, tmp_path):
    corpora = [open_corpus(f"builtin:{n}", language=name) for n, name in ((2000, "large"), (50, "small"))]
    shards = build_shards(corpora, tokenizer, tmp_path / "shards", max_length=512)
    batches = MlmBatches(shards, 41, smoothing=0.5)
    share = 1 / (1 + 40**0.5)  # of 10 rows beside 400
    assert batches.order.shares == pytest.approx({"large": 1 - share, "small": share})
    rows = np.concatenate([batches.order[np.arange(step * 41, step * 41 + 41)] for step in range(10)])
    assert (rows >= 400).sum() == round(share * 410)


def test_tokens_of_a_row_are_those_of_the_rows_that_are_drawn(tokenizer, tmp_path):
    for name, sentences, blank in (("running", 20_000, "\n"), ("single", 300, "\n\n")):
        lines = [line for document in open_corpus(f"builtin:{sentences}") for line in document]
        (tmp_path / f"{name}.txt").write_text(blank.join(lines))
    corpora = [open_corpus(tmp_path / f"{name}.txt", language=name) for name in ("running", "single")]
    shards = build_shards(corpora, tokenizer, tmp_path / "shards", max_length=128)
    batches = MlmBatches(shards, 100, smoothing=0.3)
    steps = -(-len(shards) // 100)
    filled = sum(int((batches.batch(step)["attention_mask"]).sum()) for step in range(steps))
    assert batches.tokens_per_row == pytest.approx(filled / (steps * 100), rel=0.02)
    assert shards.num_tokens / len(shards) > 1.1 * batches.tokens_per_row
    assert build_shards(corpora[0], tokenizer, tmp_path / "one").tokens_per_row.keys() == {"running"}


def test_evaluation_is_the_same_whatever_the_batch_size(shards):
    validation = Shards(shards.folder, "validation")

    def predictions(batches, world=1):
        found = []
        for number in range(len(batches)):
            for rank in range(world):
                batch = batches.batch(number, rank, world)
                used = batch["labels"] != -100
                rows = batch["masked_positions"][used] // 40
                seen = [(row.tolist()) for row in batch["input_ids"][rows]]
                places = (batch["masked_positions"][used] % 40).tolist()
                found += list(zip(map(tuple, seen), places, batch["labels"][used].tolist(), strict=True))
        return found

    small = predictions(EvaluationBatches(validation, 3))
    assert small == predictions(EvaluationBatches(validation, 64)) == predictions(EvaluationBatches(validation, 16), 4)
    rows = {row for row, _, _ in small}
    assert len(rows) == len(validation), "every row is predicted once, none of those that fill the last batch"
    assert small != predictions(EvaluationBatches(validation, 3, seed=1))

    some = EvaluationBatches(validation, 4, rows=10)
    assert len(some) == 3 and some.batch(2)["input_ids"].shape == (4, 40)
    assert len({row for row, _, _ in predictions(some)}) == 10
    assert (some.batch(2)["labels"].view(4, -1)[2:] == -100).all()
    assert len(EvaluationBatches(validation, 4, rows=10**9)) == -(-len(validation) // 4)


def test_bad_arguments(shards):
    batches = MlmBatches(shards, 6)
    with pytest.raises(ValueError, match=r"batch_size: expected a multiple of the world size 4, got 6\. Take 4 or 8"):
        batches.batch(0, 0, 4)
    with pytest.raises(ValueError, match="rank: expected an integer from 0 to 1, got 2"):
        batches.batch(0, 2, 2)
    with pytest.raises(ValueError, match="step: expected an integer of at least 0, got -1"):
        batches.batch(-1)
    with pytest.raises(ValueError, match="batch_size: expected an integer of at least 1, got 0"):
        MlmBatches(shards, 0)
    with pytest.raises(ValueError, match=r"mask_probability: expected a share between 0 and 1, got 1\.5"):
        MlmBatches(shards, 4, mask_probability=1.5)
    with pytest.raises(ValueError, match="smoothing: expected an exponent"):
        MlmBatches(shards, 4, smoothing=-1)
    with pytest.raises(ValueError, match="number: expected an integer from 0 to"):
        EvaluationBatches(shards, 4).batch(10**6)


def test_rows_in_blocks_are_those_worked_out_one_by_one(monkeypatch):
    """Steps ask for few places at a time; what is kept between them must not show."""
    monkeypatch.setattr(order_module, "BLOCK", 8)
    ranges = {"en": [(0, 13), (20, 31)], "de": [(13, 20)]}
    order = RowOrder(ranges, seed=3, smoothing=0.5)
    places = np.arange(200)
    want = order[places]  # more than two blocks, so worked out at once
    assert np.array_equal(np.concatenate([order[places[at : at + 5]] for at in range(0, 200, 5)]), want)
    mixed_up = np.random.default_rng(0).permutation(16) + 96
    assert np.array_equal(order[mixed_up], want[mixed_up])
    assert np.array_equal(order[np.array([190, 190, 3])], want[[190, 190, 3]])
    assert order[np.array([], dtype=np.int64)].shape == (0,)
