"""Parts of translation training: a step in parts is the step, averages are means, the right weights are kept."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.bench.data.translation.batches import TranslationBatches
from headway.bench.data.translation.cleaning import Rules
from headway.bench.data.translation.pairs import build_pairs
from headway.bench.data.translation.parallel import open_parallel
from headway.bench.data.translation.vocabulary import train_vocabulary
from headway.bench.tasks.training.checkpoint import Snapshots, average
from headway.bench.tasks.translate.config import Optimisation
from headway.bench.tasks.translate.objective import NextWords, dev_numbers, dev_sums
from headway.models.translation import TranslationModel, translation_preset

SIZES = {"encoder_layers": 1, "decoder_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    text = open_parallel("builtin:60", split="train")
    return build_pairs(text, train_vocabulary(text, "word"), tmp_path_factory.mktemp("pairs") / "train", rules=Rules())


def objective(pairs, **changes):
    torch.manual_seed(0)
    tokens = {"pad_token_id": pairs.pad, "bos_token_id": pairs.bos, "eos_token_id": pairs.eos, "vocab_size": 600}
    config = translation_preset(
        "tiny", encoding="diet-rel", **{**SIZES, **tokens, "hidden_dropout_prob": 0.0, **changes}
    )
    return NextWords(TranslationModel(config).double())


def test_the_gradient_of_a_step_in_parts_is_that_of_one_large_batch(pairs):
    """Parts differ in their numbers of words, so that a mean of means would be another gradient."""
    in_parts = TranslationBatches(pairs, tokens=128, step_tokens=10_000_000, seed=0)
    parts = [in_parts.batch(place) for place in range(in_parts.batches)]
    whole = TranslationBatches(pairs, tokens=10_000, step_tokens=1, seed=0).batch(0)
    assert len(parts) > 5
    model = objective(pairs)
    assert len({int(model.count(part)) for part in parts}) > 1

    loss = model.model(**whole).loss  # the mean over all words
    loss.backward()
    wanted = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    count = torch.stack([model.count(part) for part in parts]).sum()
    total = 0.0
    for part in parts:
        share = model(part, count)
        share.backward()
        total += share.item()
    assert total == pytest.approx(loss.item(), rel=1e-12)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, wanted[name], rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_batch_that_fills_up_changes_no_gradient(pairs):
    batches = TranslationBatches(pairs, tokens=10_000, step_tokens=1, seed=0)
    (filler,) = batches.parts(0, 1, 2)
    model = objective(pairs)
    model(filler, torch.tensor(7.0)).backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())


def test_dev_loss_is_the_cross_entropy_without_smoothing(pairs):
    model = objective(pairs, label_smoothing=0.3).eval()
    batch = TranslationBatches(pairs, tokens=10_000, step_tokens=1, seed=0).batch(0)
    with torch.no_grad():
        found = dev_numbers(dev_sums(model, [batch, batch], torch.device("cpu")))
        logits = model.model(**batch).logits.log_softmax(-1)
    losses, named, words = 0.0, 0, 0
    for row, labels in zip(logits, batch["labels"], strict=True):
        for scores, label in zip(row, labels.tolist(), strict=True):
            if label != -100:
                losses, named, words = (
                    losses - scores[label].item(),
                    named + (scores.argmax() == label).item(),
                    words + 1,
                )
    assert found["evaluation_loss"] == pytest.approx(losses / words, rel=1e-6)
    assert found["word_accuracy"] == pytest.approx(named / words)


def test_adam_has_the_constants_of_the_papers(pairs):
    optimizer = Optimisation(steps=1).optimizer(objective(pairs))
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.defaults["betas"] == (0.9, 0.98)
    assert (optimizer.defaults["eps"], optimizer.defaults["weight_decay"]) == (1e-9, 0)


# Weights beside the checkpoints.


def test_an_average_is_the_arithmetic_mean(tmp_path):
    draw = torch.Generator().manual_seed(0)
    saved = [{"w": torch.randn(5, 3, generator=draw), "n": torch.tensor(step)} for step in range(7)]
    for step, tensors in enumerate(saved):
        save_file(tensors, tmp_path / f"{step}.safetensors")
    found = average(sorted(tmp_path.glob("*.safetensors")))
    by_hand = sum(tensors["w"].double() for tensors in saved) / 7
    torch.testing.assert_close(found["w"], by_hand.float(), rtol=0, atol=0)
    assert found["n"] == 6, "whole numbers are the last one's"
    with pytest.raises(ValueError, match="there are no weights to average"):
        average([])


def weights(step):
    return {"w": torch.full((2,), float(step))}


def test_the_last_ones_are_kept_and_what_a_killed_run_wrote_later_is_not_read(tmp_path):
    snapshots = Snapshots(tmp_path, last=3)
    for step in (2, 4, 6, 8, 10):
        snapshots.note_loss(step, None)
        snapshots.save(step, weights(step))
        snapshots.prune(step)
    assert [path.name for path in snapshots.steps(10)] == [f"step-{n:08d}.safetensors" for n in (6, 8, 10)]
    assert len(list(tmp_path.iterdir())) == 3
    assert average(snapshots.steps(10))["w"].tolist() == [8.0, 8.0]


def test_the_best_one_is_kept_while_worse_ones_follow(tmp_path):
    snapshots = Snapshots(tmp_path, last=0, keep_best=True)
    for step, loss in ((1, 3.0), (2, 2.0), (3, None), (4, 2.5), (5, 2.0)):
        snapshots.note_loss(step, loss)
        snapshots.save(step, weights(step))
        snapshots.prune(step)
    assert snapshots.best == {"step": 2, "loss": 2.0}
    assert [path.name for path in tmp_path.iterdir()] == ["best-00000002.safetensors"]
    assert torch.equal(snapshots.best_weights()["w"], weights(2)["w"])
    assert torch.equal(load_file(tmp_path / "best-00000002.safetensors")["w"], weights(2)["w"])
