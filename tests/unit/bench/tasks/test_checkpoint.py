"""Checkpoints: what goes in comes out, bit for bit; what fails leaves the old ones alone."""

from __future__ import annotations

import pytest
import torch
from safetensors import SafetensorError

from headway.bench.tasks.training import checkpoint
from headway.bench.tasks.training.optimizer import adamw
from headway.bench.tasks.training.run_folder import RunStopped
from headway.models import EncoderForMaskedLM, preset


def trained(seed, steps=2):
    """A small model and its optimizer after some steps on random words."""
    torch.manual_seed(seed)
    small = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40}
    model = EncoderForMaskedLM(preset("tiny", encoding="diet-rel", **small))
    optimizer = adamw(model, weight_decay=0.01)
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    words = torch.randint(5, 40, (2, 12))
    model(words, labels=words).loss.backward()
    for group in optimizer.param_groups:
        group["lr"] = 1e-3
    optimizer.step()
    optimizer.zero_grad()


def save(folder, number, model, optimizer, **state):
    tensors = checkpoint.model_tensors(model), checkpoint.optimizer_tensors(model, optimizer)
    checkpoint.save(folder, number, *tensors, state)


def names(folder):
    return [path.name for path in sorted(folder.iterdir())]


def test_a_loaded_training_goes_on_like_the_saved_one(tmp_path):
    model, optimizer = trained(0)
    save(tmp_path, 2, model, optimizer, seconds=0.1 + 0.2)
    other, other_optimizer = trained(1, steps=0)
    assert checkpoint.load(tmp_path, other, other_optimizer) == {"step": 2, "seconds": 0.1 + 0.2}
    for pair in ((model, optimizer), (other, other_optimizer)):
        torch.manual_seed(7)
        step(*pair)
    for (name, weight), copy in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(weight, copy), name
    assert other.prediction.decoder.weight is other.encoder.words.weight  # still tied


def test_tied_weights_are_written_once_and_nothing_is_pickled(tmp_path):
    model, optimizer = trained(0)
    save(tmp_path, 2, model, optimizer)
    tensors = checkpoint.model_tensors(model)
    assert ("prediction.decoder.weight" in tensors) != ("encoder.words.weight" in tensors)
    assert names(tmp_path / "step-00000002") == ["model.safetensors", "optimizer.safetensors", "state.json"]


def test_the_last_ones_are_kept(tmp_path):
    model, optimizer = trained(0)
    for number in (5, 10, 200):
        save(tmp_path, number, model, optimizer)
    checkpoint.prune(tmp_path, keep=2)
    assert names(tmp_path) == ["step-00000010", "step-00000200"]
    checkpoint.prune(tmp_path, keep=2)
    assert names(tmp_path) == ["step-00000010", "step-00000200"]
    assert checkpoint.load(tmp_path, model, optimizer)["step"] == 200


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), SafetensorError("I/O error: no space")])
def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path, monkeypatch, failure):
    model, optimizer = trained(0)
    save(tmp_path, 2, model, optimizer)
    calls = []

    def full(tensors, path):
        calls.append(path)
        path.write_bytes(b"half")
        raise failure

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(
        RunStopped, match=r"step-00000004 could not be written.*last good checkpoint is .*step-00000002.*--resume"
    ):
        save(tmp_path, 4, model, optimizer)
    assert calls and names(tmp_path) == ["step-00000002"]


def test_a_damaged_checkpoint_is_named_not_passed_over(tmp_path):
    model, optimizer = trained(0)
    save(tmp_path, 2, model, optimizer)
    save(tmp_path, 4, model, optimizer)
    path = tmp_path / "step-00000004" / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RunStopped, match=r"step-00000004 cannot be read.*Delete that folder"):
        checkpoint.load(tmp_path, model, optimizer)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    model, optimizer = trained(0)
    save(tmp_path, 2, model, optimizer)
    other = torch.nn.Linear(2, 2)
    with pytest.raises(RunStopped, match="other tensors than this model"):
        checkpoint.load(tmp_path, other, adamw(other, weight_decay=0.0))


def test_a_checkpoint_of_another_vocabulary_is_refused(tmp_path):
    model, optimizer = trained(0)
    save(tmp_path, 2, model, optimizer)
    model.resize_token_embeddings(41)
    with pytest.raises(
        RunStopped, match=r"words.weight has shape \(40, 16\) in .* and \(41, 16\) in this model.*tokenizer"
    ):
        checkpoint.load(tmp_path, model, adamw(model, weight_decay=0.0))


def test_no_checkpoint_is_none(tmp_path):
    model, optimizer = trained(0, steps=0)
    assert checkpoint.load(tmp_path / "missing", model, optimizer) is None
    assert checkpoint.last_checkpoint_hint(tmp_path) == "There is no checkpoint yet."
