"""`headway fuse`: what it prints, and that its inputs would show a fused model that is wrong."""

from __future__ import annotations

import importlib

import pytest
import torch
import transformers
from fusing_cases import tiny_model
from typer.testing import CliRunner

import headway as hw
from headway.cli import app
from headway.pretrained.fusing.check import FuseConfig, compare, load, random_inputs


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("t5-encoder", "2 x 12, 19 tokens, inference"),
        ("bert", "2 x 12, 19 tokens, inference"),
        ("udop", "2 x 12, 19 tokens, inference"),
        ("layoutlm", "2 x 12, 19 tokens, inference"),
        ("bloom", "2 x 12, 19 tokens, inference"),
        ("swin", "2 images, inference"),
        ("wav2vec2-conformer", "2 x 12, 19 frames, inference"),
        ("wav2vec2-bert", "2 x 12, 19 frames, inference"),
        ("parakeet_encoder", "2 x 12, 19 frames, inference"),
        ("xlnet", "2 x 12, 19 tokens, inference"),
    ],
)
def test_the_command_compares_and_prints_within_80_columns(name, given, tmp_path):
    tiny_model(name).to(torch.float32).save_pretrained(tmp_path)
    asked = ["fuse", str(tmp_path), "--check", "--length", "12", "--batch", "2", "--rounds", "1", "--device", "cpu"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "times as fast as the best of transformers" in done.stdout
    assert given in done.stdout
    structures = list(hw.fused(hw.fuse(tiny_model(name))).replaced.values())
    assert f"{structures.count(structures[-1])} x {structures[-1][:20]}" in done.stdout
    assert not [line for line in done.stdout.splitlines() if len(line) > 80]
    for word in ("eager", "headway"):
        row = next(line.split() for line in done.stdout.splitlines() if line.split()[:1] == [word])
        assert float(row[-1]) < 1e-3


def test_the_command_without_padding(tmp_path):
    tiny_model("bert").float().save_pretrained(tmp_path)
    done = CliRunner().invoke(app, ["fuse", str(tmp_path), "--no-padding", "--length", "12", "--rounds", "1"])
    assert done.exit_code == 0, done.output
    assert "4 x 12, 48 tokens" in done.stdout


def test_the_command_refuses_with_the_reason(tmp_path):
    transformers.GPT2Model(
        transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20, bos_token_id=1, eos_token_id=1)
    ).save_pretrained(tmp_path)
    done = CliRunner().invoke(app, ["fuse", str(tmp_path), "--no-check"])
    assert done.exit_code == 2
    assert "got 'gpt2'" in " ".join(done.output.split())


@pytest.mark.parametrize(("name", "module"), [("t5-encoder", "interface"), ("mpnet", "families.mpnet")])
def test_a_fused_model_that_forgets_padding_is_seen(name, module, monkeypatch):
    file = importlib.import_module(f"headway.pretrained.fusing.{module}")
    model = tiny_model(name)
    model = getattr(model, "base_model", model)
    config = FuseConfig(model="", length=24, rounds=1)
    run = file.run
    right = {row.name: row.difference for row in compare(model, config).rows}
    monkeypatch.setattr(file, "run", lambda *tensors, **settings: run(*tensors, **{**settings, "mask": None}))
    wrong = {row.name: row.difference for row in compare(model, config).rows}
    assert right["headway"] < 1e-9
    assert wrong["headway"] > 1e-3


@pytest.mark.parametrize(
    ("name", "part"), [("seamless_m4t", "encoder.layers.1.self_attn"), ("speecht5", "layers.1.attention")]
)
def test_of_translators_the_speech_encoder_is_checked(name, part, tmp_path):
    tiny_model(name).float().save_pretrained(tmp_path)
    config = FuseConfig(model=str(tmp_path), length=12, rounds=1)
    check = compare(load(config).eval(), config)
    assert "frames" in check.what
    assert part in check.fusing.replaced
    assert max(row.difference for row in check.rows if row.difference is not None) < 1e-3


def test_the_lengths_of_the_sequences():
    model = tiny_model("bert")
    keep = random_inputs(model, FuseConfig(model="", length=40, batch=50)).keep.sum(1)
    assert keep[0] == 40
    assert keep.min() >= 10
    assert len(keep.unique()) > 10
    every = random_inputs(model, FuseConfig(model="", length=40, batch=3, padding=False)).keep
    assert torch.equal(every, torch.ones(3, 40, dtype=torch.bool))


def test_what_cannot_be_checked_is_said():
    class Loud:
        main_input_name = "spectrogram"

        def forward(self, spectrogram):
            pass

    with pytest.raises(NotImplementedError, match=r"its main input is spectrogram, and --check can make input_ids"):
        random_inputs(Loud(), FuseConfig(model=""))
