"""Pretraining that goes on from a model: headway's own, a converted one, and one of transformers."""

from dataclasses import replace

import pytest
import torch
import transformers
from tiny_pretraining import TINY, WITHOUT_DROPOUT, plan, pretrain, tiny
from transformers import AutoModelForMaskedLM, AutoTokenizer
from typer.testing import CliRunner

from headway.bench.tasks.pretrain import EncoderChoice, PretrainConfig, Start, Text
from headway.cli import app
from headway.pretrained.conversion import convert
from headway.storage import plain_settings, restore

STILL = {"steps": 1, "learning_rate": 1e-12}  # a training that changes nothing


@pytest.fixture(scope="module")
def rope(tmp_path_factory):
    """A finished run of a small encoder with RoPE."""
    folder = tmp_path_factory.mktemp("rope")
    text = Text(corpus=("builtin:2000",), length=32, validation=0.1, evaluation_rows=48)
    model = EncoderChoice(preset="tiny", encoding="rope", changes={**TINY, **WITHOUT_DROPOUT})
    result = pretrain(replace(tiny("none"), model=model, text=text), folder / "run")
    return folder / "run", result


@pytest.fixture(scope="module")
def bert(rope, tmp_path_factory):
    """A BERT of transformers with the tokenizer of that run."""
    folder = tmp_path_factory.mktemp("bert") / "model"
    tokenizer = AutoTokenizer.from_pretrained(rope[0] / "model")
    torch.manual_seed(0)
    sizes = {**TINY, **WITHOUT_DROPOUT, "vocab_size": len(tokenizer), "max_position_embeddings": 40}
    transformers.BertForMaskedLM(transformers.BertConfig(**sizes, pad_token_id=tokenizer.pad_token_id)).save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)
    return folder


def on(model, data, *, encoding=None, length=32, **changes):
    config = tiny(str(data), **changes)
    return replace(
        config,
        start=Start(model=str(model), encoding=encoding),
        text=replace(config.text, length=length),
    )


def test_a_run_goes_on_where_its_model_was(rope, tmp_path):
    run, before = rope
    still = pretrain(on(run / "model", run / "data", **STILL), tmp_path / "still")
    assert still.evaluation_loss == pytest.approx(before.evaluation_loss, abs=1e-6)
    assert still.parameters == before.parameters
    more = {"steps": 120, "learning_rate": 3e-3}
    further = pretrain(on(run / "model", run / "data", **more), tmp_path / "further")
    assert further.evaluation_loss < before.evaluation_loss - 0.1
    assert pretrain(on(run / "model", run / "data", **more), tmp_path / "further", resume=True) == further


def test_text_of_its_own_is_cut_by_the_model_s_tokenizer_at_any_length(rope, tmp_path):
    run, _ = rope
    text = Text(corpus=("builtin:500:3",), length=96, packed=True, validation=0.1, evaluation_rows=8)
    config = replace(on(run / "model", "none", **STILL), text=text)
    assert config.text.tokenizer == str(run / "model")
    result = pretrain(config, tmp_path / "run")
    there = AutoTokenizer.from_pretrained(tmp_path / "run" / "data" / "tokenizer").get_vocab()
    assert there == AutoTokenizer.from_pretrained(run / "model").get_vocab()
    assert result.evaluation_loss > 0


def test_the_encoding_may_have_other_options(rope, tmp_path):
    run, before = rope
    wider = on(run / "model", run / "data", encoding="rope:scaling=linear,factor=4", **STILL)
    changed = pretrain(wider, tmp_path / "wider")
    assert abs(changed.evaluation_loss - before.evaluation_loss) > 1e-5
    saved = AutoModelForMaskedLM.from_pretrained(tmp_path / "wider" / "model")
    assert "scaling=linear" in saved.config.encoding
    other = on(run / "model", run / "data", encoding="diet-rel")
    with pytest.raises(ValueError, match="expected rope:segments=none with options that leave its parameters"):
        pretrain(other, tmp_path / "other")


def test_a_model_of_transformers_is_trained_further(bert, rope, tmp_path):
    run, _ = rope
    still = pretrain(on(bert, run / "data", **STILL), tmp_path / "still")
    result = pretrain(on(bert, run / "data"), tmp_path / "run")
    assert result.evaluation_loss < still.evaluation_loss - 0.5
    before, after = (AutoModelForMaskedLM.from_pretrained(folder) for folder in (bert, tmp_path / "run" / "model"))
    assert type(after) is type(before) is transformers.BertForMaskedLM
    tokens = torch.tensor([[5, 6, 7, 8]])
    assert not torch.equal(before(tokens).logits, after(tokens).logits)


def test_losses_are_transformers_own(bert, rope, tmp_path):
    """Of held-out rows, padded, one at a time."""
    from headway.bench.tasks.pretrain.text import prepare_text
    from headway.bench.tasks.training.distributed import Processes

    config = on(bert, rope[0] / "data", **STILL)
    result = pretrain(config, tmp_path / "run")
    text = prepare_text(config.resolved("cpu"), tmp_path / "none", Processes(cpu=True), show=False)
    model = AutoModelForMaskedLM.from_pretrained(bert).eval()
    total, masked = 0.0, 0
    for number in range(len(text.held_out)):
        batch = text.held_out_part(number, 0, 1)
        everywhere = torch.full(batch["input_ids"].shape, -100).flatten()
        used = batch["labels"] != -100
        everywhere[batch["masked_positions"][used]] = batch["labels"][used].long()
        rows = zip(batch["input_ids"].long(), everywhere.view(batch["input_ids"].shape), batch["lengths"], strict=True)
        for ids, labels, length in rows:
            count = int((labels != -100).sum())
            if count:
                with torch.no_grad():
                    loss = model(ids[None, :length], labels=labels[None, :length]).loss
                total, masked = total + float(loss) * count, masked + count
    assert result.evaluation_loss == pytest.approx(total / masked, rel=1e-4)


def test_a_converted_model_learns_its_new_positions(bert, rope, tmp_path):
    original = AutoModelForMaskedLM.from_pretrained(bert)
    converted = convert(original, "tisa:kernels=1", mode="replace", start="zero")
    converted.save_pretrained(tmp_path / "tisa")
    AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path / "tisa")
    result = pretrain(on(tmp_path / "tisa", rope[0] / "data", position_rate=10.0), tmp_path / "run")
    before, after = (AutoModelForMaskedLM.from_pretrained(each) for each in (tmp_path / "tisa", tmp_path / "run/model"))
    assert type(after) is type(before)
    changed = [name for name, p in after.named_parameters() if "position_bias" in name and p.abs().max() > 1e-3]
    assert changed
    assert result.steps == 24


def test_the_configuration_is_restored(rope):
    config = on(rope[0] / "model", rope[0] / "data", encoding="rope:segments=none,base=500")
    assert restore(PretrainConfig, plain_settings(config)) == config
    assert "start" not in plain_settings(tiny("data"))
    assert config.default_folder.startswith("runs/pretrain-model-")


def test_what_does_not_fit_is_refused(rope, bert, tmp_path):
    run, _ = rope

    def of(corpus, model, **changes):
        text = Text(corpus=(corpus,), validation=0.1, evaluation_rows=8, tokenizer=str(bert), **changes)
        return replace(on(model, "none"), text=text)

    with pytest.raises(ValueError, match="length: expected at most 40"):
        pretrain(of("builtin:300", bert, length=64), tmp_path / "long")
    with pytest.raises(NotImplementedError, match="packed: expected one of headway's encoders, got a BertForMaskedLM"):
        pretrain(of("builtin:300", bert, length=32, packed=True), tmp_path / "packed")
    with pytest.raises(ValueError, match="expected one of headway's encoders to give other options to"):
        pretrain(on(bert, run / "data", encoding="rope"), tmp_path / "options")
    text = Text(corpus=("builtin:300:7:invented",), length=32, validation=0.1, evaluation_rows=8)
    pretrain(replace(tiny("none"), text=text, optimisation=plan(steps=1)), tmp_path / "other")
    with pytest.raises(ValueError, match="data: expected text cut by the tokenizer of"):
        pretrain(on(run / "model", tmp_path / "other" / "data"), tmp_path / "mixed")
    with pytest.raises(ValueError, match="start: expected a model to start from"):
        Start(encoding="rope")


def test_the_command_goes_on_from_a_model(rope, tmp_path):
    run, _ = rope
    asked = ["pretrain", "--start", str(run / "model"), "--corpus", "builtin:300", "--length", "32", "--steps", "2"]
    done = CliRunner().invoke(app, [*asked, "--batch", "8", "--out", str(tmp_path / "run"), "--quiet"])
    assert done.exit_code == 0, done.output
    assert "AutoModelForMaskedLM" in done.output
    refused = CliRunner().invoke(app, [*asked, "--encoding", "tisa", "--out", str(tmp_path / "no")])
    assert refused.exit_code == 2
    assert "--encoding: not used beside --start" in " ".join(refused.output.split())
