"""From a folder to a fine-tuned model: the command, `headway finetune`, Trainer in two processes, torch.compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    pipeline,
)
from typer.testing import CliRunner

from headway.bench.data import Language
from headway.bench.data.text.tokenizers import train_tokenizer
from headway.cli.convert import convert as command
from headway.pretrained.conversion import convert
from headway.pretrained.conversion.converted import encoding_of

SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
app = typer.Typer(rich_markup_mode=None)
app.command()(command)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A BERT and an ALBERT, neither pretrained, with the built-in language's tokenizer, and a text."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = train_tokenizer("builtin:200", kind="word")
    words = {"vocab_size": len(tokenizer), "max_position_embeddings": 64}
    torch.manual_seed(0)
    models = {
        "bert": BertForMaskedLM(BertConfig(**words, **SIZES)),
        "albert": AlbertForMaskedLM(AlbertConfig(**words, **SIZES, embedding_size=32)),
    }
    for name, model in models.items():
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    sentences = [" ".join(sentence.words) for sentence in Language().sentences(200, seed=1)]
    (root / "text.txt").write_text("\n".join(sentences) + "\n")
    return root


def test_the_command_converts_compares_and_writes(folders, tmp_path):
    asked = ("--to", "diet-rel", "--mode", "replace", "--max-length", 128, "--text", folders / "text.txt")
    done = run(folders / "bert", *asked, "--lengths", "32,64,128", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "relative error of hidden states" in done.output and "error of average scores, layer 1" in done.output
    written = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert written["config"]["to"] == "diet-rel" and written["versions"]["torch"] == torch.__version__
    assert written["kind"] == "ConvertedBertForMaskedLM"
    assert written["parameters"] == 2 * 4 * 255 and written["removed"] == 63 * 64
    assert 0 < written["closeness"]["relative_error"] < 1.5
    assert written["losses"]["original"]["128"] is None and written["losses"]["converted"]["128"] > 0
    assert (tmp_path / "out" / "losses.png").is_file() and (tmp_path / "out" / "losses.svg").is_file()
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.model_max_length == 128
    named = pipeline("fill-mask", model=model, tokenizer=tokenizer)(f"the {tokenizer.mask_token} sees the dog .")
    assert len(named) == 5
    again = run(folders / "bert", *asked, "--out", tmp_path / "out")
    assert again.exit_code == 2 and "expected a new folder" in again.output


def test_the_command_supplements_albert_without_text(folders, tmp_path):
    done = run(folders / "albert", "--to", "tisa:kernels=2", "--out", tmp_path / "out", "--quiet")
    assert done.exit_code == 0, done.output
    before = AlbertForMaskedLM.from_pretrained(folders / "albert").eval()
    after = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.randint(5, 30, (2, 17))
    torch.testing.assert_close(after(ids).logits, before(ids).logits)
    assert json.loads((tmp_path / "out" / "conversion.json").read_text())["closeness"] is None


def test_bad_input_is_told(folders, tmp_path):
    def told(*arguments):
        done = run(*arguments, "--out", tmp_path / "out")
        assert done.exit_code == 2 and "Traceback" not in done.output, done.output
        assert not (tmp_path / "out").exists()
        return " ".join(done.output.replace("\u2502", " ").split())

    bert, tisa = folders / "bert", ("--to", "tisa")
    (tmp_path / "empty").mkdir()
    assert "config.json" in told(tmp_path / "empty", *tisa)
    (tmp_path / "empty" / "config.json").write_bytes((bert / "config.json").read_bytes())
    assert "expected weights (*.safetensors)" in told(tmp_path / "empty", *tisa)
    (tmp_path / "empty" / "pytorch_model.bin").write_bytes(b"x")
    assert "weights_only=True" in told(tmp_path / "empty", *tisa)
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=10)).save_pretrained(tmp_path / "gpt2")
    assert "xlm-roberta" in told(tmp_path / "gpt2", *tisa)
    (tmp_path / "blank.txt").write_text(" \n\n")
    assert "got an empty file" in told(bert, *tisa, "--text", tmp_path / "blank.txt")
    (tmp_path / "short.txt").write_text("the dog")
    assert "expected at least 16 tokens" in told(bert, *tisa, "--text", tmp_path / "short.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 40)
    assert "expected UTF-8" in told(bert, *tisa, "--text", tmp_path / "latin.txt")
    grown = AutoTokenizer.from_pretrained(bert)
    grown.add_tokens(["sesquipedalian"])
    BertForMaskedLM.from_pretrained(bert).save_pretrained(tmp_path / "grown")
    grown.save_pretrained(tmp_path / "grown")
    (tmp_path / "long.txt").write_text("the dog sees the sesquipedalian cat . " * 20)
    said = told(tmp_path / "grown", *tisa, "--text", tmp_path / "long.txt")
    assert f"tokenizer: expected ids below {len(grown) - 1} (the model's words), got {len(grown) - 1}" in said
    assert "Fit fewer kernels, or give more positions" in told(bert, *tisa, "--start", "fit", "--max-length", 3)
    assert "which does not exist" in told(bert, *tisa, "--text", tmp_path / "missing.txt")
    assert "Give --text FILE" in told(bert, *tisa, "--lengths", "32")
    assert "--lengths: expected a whole number, got 'many'" in told(bert, *tisa, "--lengths", "32,many")
    (tmp_path / "text.txt").write_text("the dog sees the cat . " * 100)
    said = told(bert, *tisa, "--text", tmp_path / "text.txt", "--lengths", "32,65")
    assert "lengths: expected at most 64, all that the original or the converted" in said and "got 65." in said
    assert "to: expected one of tisa" in told(bert, "--to", "rope")
    assert "max_length: expected at most 64" in told(bert, *tisa, "--max-length", 65)
    assert "revision: expected none for a folder" in told(bert, *tisa, "--revision", "main")


def test_nan_weights_are_told(folders, tmp_path):
    model = BertForMaskedLM.from_pretrained(folders / "bert")
    with torch.no_grad():
        model.bert.embeddings.position_embeddings.weight[3, 3] = torch.nan
    model.save_pretrained(tmp_path / "nan")
    AutoTokenizer.from_pretrained(folders / "bert").save_pretrained(tmp_path / "nan")
    done = run(tmp_path / "nan", "--to", "t5", "--out", tmp_path / "out")
    assert done.exit_code == 2 and "expected finite weights" in " ".join(done.output.split())


def test_finetune_takes_a_converted_model(folders, tmp_path):
    """Pretrained on masked words, converted, then a classifier: the whole way, on the built-in language."""
    from dataclasses import replace

    from headway.bench.tasks.finetune import Data, Grid, Start
    from headway.bench.tasks.finetune import run as finetune
    from headway.bench.tasks.finetune.recipes import quick

    convert(BertForMaskedLM.from_pretrained(folders / "bert"), "tisa:kernels=1", mode="replace").save_pretrained(
        tmp_path / "model"
    )
    tokenizer = AutoTokenizer.from_pretrained(folders / "bert")
    tokenizer.model_max_length = 64
    tokenizer.save_pretrained(tmp_path / "model")
    config = quick("builtin:acceptability", Start(model=str(tmp_path / "model")), Data(limit=200))
    config = replace(
        config,
        grid=Grid(rates=(1e-3,), seeds=(0,)),
        protocol=replace(config.protocol, epochs=1, length=32),
    )
    result = finetune(config, tmp_path / "run", progress=False, cpu=True)
    assert 0.0 <= result.rates[0]["score"]["median"] <= 1.0
    from transformers import AutoModelForSequenceClassification

    tuned = AutoModelForSequenceClassification.from_pretrained(Path(result.folder) / "model")
    before = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    assert type(tuned).__name__ == "ConvertedBertForSequenceClassification"
    learned = tuned.base_model.position_bias.encoding.amplitude, before.base_model.position_bias.encoding.amplitude
    assert not torch.equal(*learned)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A checkpoint of `headway pretrain`, with learned positions."""
    from headway.cli.pretrain import pretrain

    own = typer.Typer(rich_markup_mode=None)
    own.command()(pretrain)
    out = tmp_path_factory.mktemp("pretrain") / "run"
    asked = ("--corpus", "builtin:300", "--encoding", "learned", "--length", 32, "--steps", 6, "--batch", 8)
    sizes = ("--set", "model.changes.max_position_embeddings=32", "--set", "model.changes.hidden_size=64")
    done = CliRunner().invoke(own, [*map(str, asked + sizes), "--cpu", "--quiet", "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out / "model"


def test_the_command_converts_what_pretrain_made(folders, pretrained, tmp_path):
    from headway.models import EncoderForMaskedLM

    asked = ("--to", "tisa:kernels=2", "--text", folders / "text.txt", "--quiet")
    beside = run(pretrained, *asked, "--out", tmp_path / "beside")
    assert beside.exit_code == 0, beside.output
    assert "after import headway.models" in beside.output
    written = json.loads((tmp_path / "beside" / "conversion.json").read_text())
    assert written["closeness"]["relative_error"] < 1e-6 and written["removed"] == 0
    model = EncoderForMaskedLM.from_pretrained(tmp_path / "beside")
    assert model.config.encoding == "learned+tisa:kernels=2,sharing=none,segments=none"

    alone = run(pretrained, *asked, "--mode", "replace", "--lengths", "16,32,64", "--out", tmp_path / "alone")
    assert alone.exit_code == 0, alone.output
    written = json.loads((tmp_path / "alone" / "conversion.json").read_text())
    assert written["kind"] == "EncoderForMaskedLM" and written["registered_by"] == "headway.models"
    assert written["parameters"] == 2 * 4 * 3 * 2 and written["removed"] == 32 * 64
    assert 0 < written["closeness"]["relative_error"] < 1.5
    assert written["losses"]["original"]["64"] is None and written["losses"]["converted"]["64"] > 0
    assert (tmp_path / "alone" / "losses.png").is_file()
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "alone")
    assert type(model) is EncoderForMaskedLM and model.config.choice.name == "tisa"
    assert AutoTokenizer.from_pretrained(tmp_path / "alone").model_max_length == 32


@pytest.mark.parametrize("mode", ["supplement", "replace"])
def test_finetune_takes_a_converted_encoder(pretrained, tmp_path, mode):
    from dataclasses import replace

    from headway.bench.tasks.finetune import Data, Grid, Start
    from headway.bench.tasks.finetune import run as finetune
    from headway.bench.tasks.finetune.recipes import quick
    from headway.models import EncoderForMaskedLM, EncoderForSequenceClassification

    made = convert(EncoderForMaskedLM.from_pretrained(pretrained), "diet-rel", mode=mode)
    made.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(pretrained).save_pretrained(tmp_path / "model")
    config = quick("builtin:acceptability", Start(model=str(tmp_path / "model")), Data(limit=100))
    config = replace(
        config,
        grid=Grid(rates=(1e-3,), seeds=(0,)),
        protocol=replace(config.protocol, epochs=1, length=32),
    )
    result = finetune(config, tmp_path / "run", progress=False, cpu=True)
    tuned = EncoderForSequenceClassification.from_pretrained(Path(result.folder) / "model")
    assert tuned.config.encoding == made.config.encoding
    encoding = tuned.encoder.encoding.parts[1] if mode == "supplement" else tuned.encoder.encoding
    assert not torch.equal(encoding.values, encoding_of(made).values)


TRAINING = """
import sys, torch
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments
import headway.pretrained.conversion

torch.manual_seed(0)
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
before = model.base_model.position_bias.encoding.values.detach().clone()
rows = [{"input_ids": torch.randint(5, 30, (12,)), "labels": torch.tensor(n % 2)} for n in range(16)]
arguments = TrainingArguments(
    sys.argv[2], max_steps=3, per_device_train_batch_size=4, use_cpu=True, report_to=[], save_strategy="no",
    ddp_find_unused_parameters=False, disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=rows)
trainer.train()
after = model.base_model.position_bias.encoding.values.detach()
assert torch.distributed.get_world_size() == 2
assert not torch.equal(before, after)
other = after.clone()
torch.distributed.broadcast(other, 0)
assert torch.equal(other, after)
trainer.save_model(sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "albert"])
def test_trainer_in_two_processes(folders, tmp_path, name):
    source = AutoModelForMaskedLM.from_pretrained(folders / name)
    convert(source, "diet-rel", mode="replace").save_pretrained(tmp_path / "model")
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [*torchrun, str(script), str(tmp_path / "model"), str(tmp_path / "tuned")],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "tuned" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "albert"])
def test_compiled_whole(folders, name):
    model = convert(AutoModelForMaskedLM.from_pretrained(folders / name), "diet-rel", mode="replace").eval()
    ids = torch.randint(5, 30, (2, 20))
    mask = (torch.arange(20) < torch.tensor([[20], [11]])).long()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    got = compiled(input_ids=ids, attention_mask=mask)
    want = model(input_ids=ids, attention_mask=mask)
    torch.testing.assert_close(got.logits[mask.bool()], want.logits[mask.bool()])
    got.logits.sum().backward()
    assert model.base_model.position_bias.encoding.values.grad.abs().sum() > 0


def test_loading_needs_no_scikit_learn(tmp_path):
    """Only what measures does."""
    code = "import sys; import headway.pretrained.conversion; print('headway.pretrained.analysis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
