"""Encoders with a new head: losses, segments, what is passed to whom, and weights that are missing."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, DistilBertConfig, DistilBertModel

from headway.bench.data.text.tokenizers import train_tokenizer
from headway.bench.tasks.finetune import predictions
from headway.bench.tasks.finetune.config import Data, Start
from headway.bench.tasks.finetune.model import TransferLoss, load_model, load_tokenizer
from headway.bench.tasks.finetune.recipes import quick
from headway.bench.tasks.training.run_folder import RunFolder
from headway.models import EncoderForMaskedLM, preset

SIZES = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
TASKS = ("builtin:acceptability", "builtin:entailment", "builtin:similarity", "builtin:questions")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One of our encoders without segments, and two of transformers, with the built-in language's tokenizer."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = train_tokenizer("builtin:200", kind="word")
    words = len(tokenizer)
    torch.manual_seed(0)
    ours = preset("tiny", encoding="diet-rel:segments=none", vocab_size=words, **SIZES)
    linformer = {"encoding": "learned:segments=none", "attention": "linformer", "projected_length": 8}
    models = {
        "ours": EncoderForMaskedLM(ours),
        "linformer": EncoderForMaskedLM(preset("tiny", vocab_size=words, **SIZES, **linformer)),
        "bert": BertForMaskedLM(BertConfig(vocab_size=words, max_position_embeddings=128, **SIZES)),
        "distilbert": DistilBertModel(DistilBertConfig(vocab_size=words, n_layers=2, dim=32, n_heads=2, hidden_dim=64)),
    }
    for name, model in models.items():
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


def loaded(folders, name, task, seed=0, **start):
    config = quick(task, Start(model=str(folders / name), **start), Data())
    tokenizer = load_tokenizer(config.start)
    return load_model(config, tokenizer, seed), tokenizer


def batch(kind):
    made = {
        "input_ids": torch.randint(5, 50, (3, 8)),
        "token_type_ids": torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]] * 3),
        "lengths": torch.tensor([8, 5, 6]),
    }
    made["labels"] = {
        "classes": torch.tensor([0, 1, 0]),
        "number": torch.tensor([0.5, 2.0, 4.5]),
        "spans": torch.tensor([[1, 2], [0, 0], [5, 5]]),
    }[kind]
    return made


@pytest.mark.parametrize("name", ["ours", "linformer", "bert", "distilbert"])
@pytest.mark.parametrize("task", TASKS)
def test_every_kind_of_task_on_every_kind_of_encoder(folders, name, task):
    model, _ = loaded(folders, name, task)
    kind = quick(task, Start(model="m"), Data()).task_spec.kind
    loss = TransferLoss(model, kind).eval()
    given = batch(kind)
    torch.manual_seed(1)
    with torch.no_grad():
        scores = loss(given, torch.tensor(3.0))
    labels = {"builtin:acceptability": 2, "builtin:entailment": 3, "builtin:similarity": 1}
    assert scores.shape == ((3, 8, 2) if kind == "spans" else (3, labels[task]))
    if kind == "spans":
        assert torch.isinf(scores[1, 5:]).all()
        assert torch.isfinite(scores[1, :5]).all()
        by_hand = (
            -sum(scores[row, :, end].log_softmax(0)[given["labels"][row, end]] for row in range(3) for end in (0, 1))
            / 6
        )
    elif kind == "number":
        by_hand = ((scores[:, 0] - given["labels"]) ** 2).mean()
    else:
        by_hand = F.nll_loss(scores.log_softmax(1), given["labels"])
    for module in loss.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.config.attention_probs_dropout_prob = 0.0
    loss.training = True  # the loss, without dropout in the layers
    torch.testing.assert_close(loss(given, torch.tensor(3.0)), by_hand)


@pytest.mark.parametrize("name", ["ours", "bert"])
def test_padding_changes_nothing(folders, name):
    model, _ = loaded(folders, name, "builtin:entailment")
    loss = TransferLoss(model, "classes").eval()
    given = batch("classes")
    alone = {key: value[1:2, :5] if value.dim() == 2 else value[1:2] for key, value in given.items()}
    with torch.no_grad():
        torch.testing.assert_close(loss.scores(given)[1:2], loss.scores(alone), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "task", "asked", "segments"),
    [
        ("ours", "builtin:entailment", None, "per-head"),
        ("ours", "builtin:entailment", "input", "input"),
        ("ours", "builtin:questions", None, "per-head"),
        ("ours", "builtin:acceptability", None, "none"),  # single texts: as pretrained
        ("ours", "builtin:acceptability", "input", "none"),
        ("linformer", "builtin:entailment", None, "input"),
    ],
)
def test_pairs_get_supplemental_segments(folders, name, task, asked, segments):
    """Chen et al. (2021b), App. A."""
    model, _ = loaded(folders, name, task, segments=asked)
    assert model.config.choice.segments == segments
    given = batch("classes")
    other = {**given, "token_type_ids": torch.zeros_like(given["token_type_ids"])}
    if segments == "per-head":  # they begin at zero; anything else shows that they are used
        with torch.no_grad():
            for parameter in model.encoder.segments.parameters():
                parameter.normal_()
    loss = TransferLoss(model, quick(task, Start(model="m"), Data()).task_spec.kind).eval()
    with torch.no_grad():
        same = torch.allclose(loss.scores(given), loss.scores(other))
    assert same == (segments == "none")


@pytest.mark.parametrize(
    ("asked", "shape"),
    [
        ({}, (2, 2, 2, 2)),  # layers, heads, and pairs of segments
        ({"segment_sharing": "none"}, (2, 2, 2, 2)),
        ({"segment_sharing": "head"}, (2, 1, 2, 2)),
        ({"segment_sharing": "positions"}, (1, 2, 2, 2)),
    ],
)
def test_segments_of_pairs_share_nothing_unless_they_are_asked_to(folders, tmp_path, asked, shape):
    """Chen et al. (2021b), Sec. 4.4, share positions; here layers do."""
    shutil.copytree(folders / "ours", tmp_path / "shared")
    config = EncoderForMaskedLM.from_pretrained(folders / "ours").config
    config.encoding = "diet-rel:sharing=layer,segments=none"
    EncoderForMaskedLM(config).save_pretrained(tmp_path / "shared")
    model, _ = loaded(tmp_path, "shared", "builtin:entailment", **asked)
    assert model.encoder.segments.table.shape == shape
    assert model.encoder.encoding.values.shape[0] == 1
    model.save_pretrained(tmp_path / "tuned")  # and a model that has segments keeps them
    shutil.copytree(
        tmp_path / "shared",
        tmp_path / "tuned",
        dirs_exist_ok=True,
        ignore=lambda *_: ["config.json", "model.safetensors"],
    )
    again, _ = loaded(tmp_path, "tuned", "builtin:entailment", segments="per-head")
    assert torch.equal(again.encoder.segments.table, model.encoder.segments.table)


def test_the_body_is_the_checkpoints_and_the_head_the_seeds(folders):
    first, second = (loaded(folders, "ours", "builtin:entailment", seed)[0] for seed in (0, 1))
    again = loaded(folders, "ours", "builtin:entailment", 0)[0]
    torch.testing.assert_close(first.encoder.words.weight, second.encoder.words.weight)
    assert not torch.equal(first.classifier.weight, second.classifier.weight)
    torch.testing.assert_close(first.classifier.weight, again.classifier.weight)
    assert first.config.id2label == {0: "entailment", 1: "neutral", 2: "contradiction"}


def test_predictions_are_of_the_segments_that_were_trained(folders, tmp_path, monkeypatch):
    class Asked(Exception):
        pass

    def noted(config, tokenizer, seed):
        raise Asked(config.start.segments)

    monkeypatch.setattr(predictions, "load_model", noted)
    config = quick("builtin:entailment", Start(model=str(folders / "ours"), segments="none"), Data())
    folder = RunFolder(tmp_path)
    shutil.copytree(folders / "ours", folder.model)
    with pytest.raises(Asked, match="none"):
        predictions.write_predictions(config, folder, cpu=True)


def test_segments_of_others_cannot_change(folders):
    with pytest.raises(
        ValueError, match=r"segments: expected none given for .*bert, a model of type bert, got 'per-head'"
    ):
        loaded(folders, "bert", "builtin:entailment", segments="per-head")


def test_a_checkpoint_without_the_encoders_weights_is_named(folders, tmp_path):
    """transformers would begin at random and only log it."""
    model = BertForSequenceClassification.from_pretrained(folders / "bert")
    tensors = {name: value for name, value in model.state_dict().items() if "encoder.layer.1" not in name}
    model.save_pretrained(tmp_path, state_dict=tensors)
    load_tokenizer(Start(model=str(folders / "bert"))).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"model: .* has no weights for 16 tensors of Bert.*, such"):
        loaded(tmp_path.parent, tmp_path.name, "builtin:entailment")


def test_a_head_of_another_task_is_replaced(folders, tmp_path):
    """As when RTE goes on from MNLI."""
    model, tokenizer = loaded(folders, "bert", "builtin:entailment")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    other, _ = loaded(tmp_path.parent, tmp_path.name, "builtin:acceptability")
    assert other.classifier.weight.shape == (2, 32)
    torch.testing.assert_close(
        other.bert.embeddings.word_embeddings.weight, model.bert.embeddings.word_embeddings.weight
    )


def test_more_tokens_than_positions_are_named(folders):
    config = quick("builtin:entailment", Start(model=str(folders / "bert")), Data())
    config = replace(config, protocol=replace(config.protocol, length=256))
    with pytest.raises(ValueError, match="length: the model has 128 positions, got 256"):
        load_model(config, load_tokenizer(config.start), 0)
    extends = replace(config, start=Start(model=str(folders / "ours")))
    assert load_model(extends, load_tokenizer(extends.start), 0) is not None


def test_a_tokenizer_of_another_model(folders, tmp_path):
    tokenizer = load_tokenizer(Start(model=str(folders / "bert")))
    tokenizer.add_tokens(["zzz"])
    tokenizer.save_pretrained(tmp_path)
    words = len(tokenizer)
    with pytest.raises(
        ValueError, match=rf"tokenizer: expected ids below {words - 1} \(from the model\), got {words - 1}"
    ):
        loaded(folders, "bert", "builtin:entailment", tokenizer=str(tmp_path))


def test_losses_are_sums_over_the_count(folders):
    model, _ = loaded(folders, "bert", "builtin:entailment")
    loss = TransferLoss(model, "classes").train()
    given = batch("classes")
    found = []
    for count in (3.0, 6.0):
        torch.manual_seed(0)
        found.append(loss(given, torch.tensor(count)).item())
    assert np.isclose(found[0], 2 * found[1])


def test_a_model_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"model: expected a folder with a tokenizer, .*/nothing/model"):
        load_tokenizer(Start(model=str(tmp_path / "nothing" / "model")))
    with pytest.raises(ValueError, match=r"tokenizer: expected a folder with a tokenizer, .*/nothing/words"):
        load_tokenizer(Start(model=str(tmp_path), tokenizer=str(tmp_path / "nothing" / "words")))
