"""`headway analyze` on small models of several families: what it writes, and what it says to bad input."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
import typer
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from typer.testing import CliRunner

from headway.cli.analyze import analyze
from headway.models import EncoderConfig, EncoderForMaskedLM
from headway.pretrained.analysis import FAMILIES
from headway.pretrained.analysis.run import draw_texts

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    *["the", "a", "position", "belongs", "to", "heads", "and", "not", "input", "so", "it", "is", "said", "by", "all"],
]
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}
TEXT = "the position belongs to all heads and not to the input\n\nso it is said by all heads\n" * 20

app = typer.Typer(rich_markup_mode=None)
app.command()(analyze)


def run(*arguments, status=0):
    result = CliRunner().invoke(app, [*map(str, arguments), "--quiet"])
    assert result.exit_code == status, result.output
    return re.sub(r"\s+", " ", result.output)


def randomized(model):
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.3)
    return model


def tokenizer():
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "bert"
    randomized(transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def copy(bert, tmp_path):
    return shutil.copytree(bert, tmp_path / "copy")


def measures(folder):
    return json.loads((folder / "measures.json").read_text())


def missing(folder):
    return sorted(re.findall('data-missing="([^"]*)"', (folder / "report.html").read_text()))


def test_everything_is_written_and_named(bert, text, tmp_path):
    out = tmp_path / "out"
    said = run(bert, "--out", out, "--text", text, "--text-length", 16, "--kernels", "3,1", "--seed", 7)
    assert {path.name for path in out.iterdir()} == {
        "config.json",
        "measures.json",
        "arrays.npz",
        "report.html",
        "figures",
    }
    assert f"wrote {out}: config.json, measures.json, arrays.npz, report.html, figures/ (10)" in said
    assert len(list((out / "figures").iterdir())) == 10
    record = json.loads((out / "config.json").read_text())
    assert record["config"]["kernels"] == [1, 3] and record["config"]["seed"] == 7
    assert record["environment"]["torch"] == torch.__version__
    assert (
        f"--text {text} --stack encoder --seed 7 --texts 8 --text-length 16 --kernels 1,3 --out {out}"
        in record["command"]
    )
    found = measures(out)
    assert found["model"]["model_type"] == "bert" and found["model"]["positions"] == 40
    assert list(found["heads"]["fits"]) == ["1", "3"]
    assert set(found["texts"]["ranks"]["lengths"]) == {16}
    assert missing(out) == ["curves"]


def test_the_measures_are_those_of_the_library(bert, tmp_path):
    from headway.pretrained.analysis import analyze as measured
    from headway.pretrained.analysis import load_model

    run(bert, "--out", tmp_path / "out", "--positions", 20, "--kernels", "1", "--no-figures")
    assert not (tmp_path / "out" / "figures").exists()
    wanted = measured(load_model(str(bert)), positions=20, kernels=[1])
    assert measures(tmp_path / "out")["heads"] == json.loads(json.dumps(wanted.to_json()["heads"]))


def test_the_equation_as_written_is_an_option_of_the_fit(bert, tmp_path):
    from headway.pretrained.analysis import diagonals, fit_tisa, load_model, position_scores, read

    out = tmp_path / "out"
    run(bert, "--out", out, "--kernels", "2", "--formula", "equation")
    found = measures(out)["heads"]
    assert found["formula"] == "equation"
    profile = diagonals(position_scores(read(load_model(str(bert))), 0, formula="equation"))
    want = [head[2].r2_matrix for head in fit_tisa(profile, kernels=(2,))]
    assert found["fits"]["2"]["r2_matrix"][0] == pytest.approx(want, abs=1e-3)
    page = (out / "report.html").read_text()
    assert "as it is written" in page and "own norms, biases" not in page
    assert "--formula equation" in json.loads((out / "config.json").read_text())["command"]
    assert "formula was equation and is None" in run(bert, "--out", out, "--kernels", "2", status=2)
    assert "expected one of model, equation" in run(bert, "--out", out / "x", "--formula", "paper", status=2)


def test_the_same_analysis_is_not_measured_again(bert, text, tmp_path):
    out, asked = tmp_path / "out", (bert, "--text", text, "--kernels", "1", "--no-figures", "--out", tmp_path / "out")
    run(*asked)
    before = (out / "arrays.npz").stat().st_mtime_ns
    (out / "report.html").unlink()
    assert "nothing is measured again" in run(*asked)
    assert (out / "report.html").is_file()
    assert (out / "arrays.npz").stat().st_mtime_ns == before
    (out / "arrays.npz").unlink()
    assert "nothing is measured again" not in run(*asked)
    assert (out / "arrays.npz").is_file()


def test_another_analysis_is_not_overwritten(copy, text, tmp_path):
    out = tmp_path / "out"
    run(copy, "--out", out, "--kernels", "1", "--no-figures")
    before = (out / "measures.json").read_bytes()
    said = run(copy, "--out", out, "--kernels", "1", "--positions", 12, status=2)
    assert "positions was None and is 12" in said and "Name another folder" in said
    weights = load_file(copy / "model.safetensors")
    save_file({name: value * 1.5 for name, value in weights.items()}, copy / "model.safetensors", {"format": "pt"})
    assert "weights was" in run(copy, "--out", out, "--kernels", "1", status=2)
    assert (out / "measures.json").read_bytes() == before


def test_a_moved_model_is_the_same_model(bert, copy, tmp_path):
    run(bert, "--out", tmp_path / "out", "--kernels", "1", "--no-figures")
    assert "nothing is measured again" in run(copy, "--out", tmp_path / "out", "--kernels", "1", "--no-figures")


def test_other_files_are_not_mixed_with_an_analysis(bert):
    assert "which holds other files" in run(bert, "--out", bert, status=2)


def test_a_file_is_no_folder_to_write_to(tmp_path):
    """It is refused before the model is so much as looked at."""
    (tmp_path / "out").write_text("mine")
    assert "out: expected a folder, got" in run(tmp_path / "no model", "--out", tmp_path / "out", status=2)
    assert (tmp_path / "out").read_text() == "mine"


def test_too_few_positions_for_the_kernels(bert, tmp_path):
    said = run(bert, "--out", tmp_path / "out", "--positions", 3, status=2)
    assert "kernels: expected at least 7 offsets to fit 5 kernels to, got 5. Fit fewer kernels" in said
    run(bert, "--out", tmp_path / "out", "--positions", 3, "--kernels", "1,3", "--no-figures")


def test_a_model_that_can_be_fused_is_analysed_while_it_runs(text, tmp_path):
    config = transformers.DebertaV2Config(
        **SIZES,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=8,
        max_relative_positions=20,
        position_biased_input=False,
    )
    randomized(transformers.DebertaV2ForMaskedLM(config)).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    run(tmp_path / "model", "--out", out, "--text", text, "--text-length", 16, "--kernels", "1", "--positions", 24)
    found = measures(out)
    assert found["model"]["model_type"] == "deberta-v2" and found["heads"]["formula"] == "carried"
    assert missing(out) == ["segments", "table"]
    curves = {"bias_curves.svg", "bias_curves_queries.svg", "bias_curves_keys.svg"}
    assert curves <= {path.name for path in (out / "figures").iterdir()}
    assert "at each layer while it runs on that text" in (out / "report.html").read_text()
    said = run(tmp_path / "model", "--out", tmp_path / "other", "--formula", "equation", status=2)
    assert "formula: expected model for deberta-v2" in said


def test_headway_encoders_have_bias_curves(text, tmp_path):
    config = EncoderConfig(**SIZES, encoding="diet-rel:segments=per-head", type_vocab_size=2, pad_token_id=0)
    model = randomized(EncoderForMaskedLM(config))
    model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    run(tmp_path / "model", "--out", tmp_path / "out", "--text", text, "--kernels", "1")
    assert missing(tmp_path / "out") == ["table"]
    assert (tmp_path / "out" / "figures" / "bias_curves.svg").is_file()
    with np.load(tmp_path / "out" / "arrays.npz") as arrays:
        bias = model.encoder.encoding.bias(1, 40, 40).dense()[0].detach().numpy()
        for n, offset in enumerate(arrays["curves.offsets"]):
            wanted = [np.diagonal(head, offset).mean() for head in bias]
            np.testing.assert_allclose(arrays["curves.mean"][1, :, n], wanted, rtol=1e-4, atol=1e-6)


def test_gpt2(text, tmp_path):
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_embd=24, n_layer=2, n_head=3, n_positions=40, bos_token_id=2, eos_token_id=3
    )
    randomized(transformers.GPT2LMHeadModel(config)).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    run(tmp_path / "model", "--out", tmp_path / "out", "--text", text, "--kernels", "1", "--no-figures")
    assert missing(tmp_path / "out") == ["curves", "segments"]
    assert measures(tmp_path / "out")["model"]["causal"]


def test_t5_and_its_decoder(text, tmp_path):
    config = transformers.T5Config(vocab_size=len(WORDS), d_model=24, d_kv=8, d_ff=32, num_layers=2, num_heads=3)
    randomized(transformers.T5ForConditionalGeneration(config)).save_pretrained(tmp_path / "model")
    run(
        tmp_path / "model",
        "--out",
        tmp_path / "out",
        "--positions",
        50,
        "--kernels",
        "1",
        "--stack",
        "decoder",
        "--no-figures",
    )
    assert missing(tmp_path / "out") == ["carried", "segments", "table", "texts"]
    tokenizer().save_pretrained(tmp_path / "model")
    asked = (tmp_path / "model", "--out", tmp_path / "text", "--text", text, "--stack", "decoder")
    assert "does not run on a text alone" in run(*asked, status=2)
    assert not (tmp_path / "text").exists()


def test_a_folder_without_weights(copy, tmp_path):
    (copy / "model.safetensors").unlink()
    assert "expected weights (*.safetensors)" in run(copy, "--out", tmp_path / "out", status=2)
    (copy / "config.json").unlink()
    assert "expected a folder with config.json" in run(copy, "--out", tmp_path / "out", status=2)


def test_pickled_weights_are_refused_with_a_way_out(copy, tmp_path):
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    said = run(copy, "--out", tmp_path / "out", status=2)
    assert "got pytorch_model.bin" in said and "save_pretrained" in said


@pytest.mark.parametrize("kind", ["longformer", "known-to-nobody"])
def test_an_unsupported_architecture_lists_the_supported(copy, tmp_path, kind):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "model_type": kind}))
    said = run(copy, "--out", tmp_path / "out", status=2)
    assert f"got '{kind}'" in said
    for name in (*FAMILIES, "headway-encoder"):
        assert name in said


def test_more_positions_than_there_are(bert, tmp_path):
    said = run(bert, "--out", tmp_path / "out", "--positions", 41, status=2)
    assert "positions: expected 3 to 40 (the model's positions), got 41" in said


def test_damaged_weights(copy, tmp_path):
    weights = load_file(copy / "model.safetensors")
    weights["bert.embeddings.position_embeddings.weight"][3, 1] = float("nan")
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    said = run(copy, "--out", tmp_path / "out", status=2)
    assert "position_embeddings" in said and "expected finite weights, got NaN" in said
    assert not (tmp_path / "out").exists()


def test_weights_that_are_cut_off(copy, tmp_path):
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    said = run(copy, "--out", tmp_path / "out", status=2)
    assert "weights: expected a whole safetensors file" in said and "fetch or copy it again" in said


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "which is empty"), (b" \n\n", "which is empty"), (b"caf\xe9", "expected UTF-8")]
)
def test_texts_that_cannot_be_used(bert, tmp_path, content, says):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    assert says in run(bert, "--out", tmp_path / "out", "--text", path, status=2)


@pytest.mark.parametrize("options", [("--texts", 8), ("--text-length", 20), ("--texts", 2, "--text-length", 20)])
def test_options_of_a_text_without_a_text(bert, tmp_path, options):
    said = run(bert, "--out", tmp_path / "out", *options, status=2)
    assert f"{', '.join(options[::2])}: not used without a text. Give --text FILE" in said


def test_a_text_that_is_not_there(bert, tmp_path):
    assert "text: expected a file" in run(bert, "--out", tmp_path / "out", "--text", tmp_path / "none", status=2)


@pytest.mark.parametrize("kernels", ["1,x", "", "0"])
def test_kernels_that_are_no_numbers(bert, tmp_path, kernels):
    assert "kernels: expected" in run(bert, "--out", tmp_path / "out", "--kernels", kernels, status=2)


def test_an_unknown_stack(bert, tmp_path):
    assert "stack: expected" in run(bert, "--out", tmp_path / "out", "--stack", "middle", status=2)


def test_pieces_of_a_text_are_drawn_evenly(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"piece {n:03}\n" for n in range(100)))
    drawn = draw_texts(path, 5, 9, seed=0)
    assert len(set(drawn)) == 5 and drawn == draw_texts(path, 5, 9, seed=0) != draw_texts(path, 5, 9, seed=1)
    often = np.bincount([int(text[-3:]) for seed in range(400) for text in draw_texts(path, 5, 9, seed)], minlength=100)
    assert often.sum() == 2000 and often.min() > 4 and often.max() < 40  # 20 each are to be expected
    assert draw_texts(path, 5, 25, seed=0)[0].count("piece") == 3
    path.write_text("short")
    assert draw_texts(path, 5, 25, seed=0) == ["short"]


@pytest.mark.parametrize("between", [" ", ""])
def test_a_text_without_line_breaks_has_pieces_too(tmp_path, between):
    path = tmp_path / "text.txt"
    path.write_text("\ufeff" + between.join(f"word{n:03}" for n in range(300)))
    drawn = draw_texts(path, 5, 70, seed=0)
    assert len(set(drawn)) == 5 and all(70 <= len(text) <= 140 for text in drawn)
    assert all(text[:4] == "word" for text in drawn)


# Converted models.


@pytest.mark.parametrize("mode", ["supplement", "replace"])
def test_a_converted_folder_is_analysed(bert, text, tmp_path, mode):
    from headway.pretrained.conversion import convert

    model = transformers.BertForMaskedLM.from_pretrained(bert)
    converted = convert(model, "diet-rel", mode=mode, start="random", max_length=40)
    with torch.no_grad():
        converted.base_model.position_bias.encoding.values.normal_()
    converted.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    run(tmp_path / "model", "--out", out, "--text", text, "--text-length", 12, "--kernels", "1", "--no-figures")
    found = measures(out)
    assert found["model"]["model_type"] == "headway-bert" and found["model"]["positions"] == 40
    assert found["model"]["limit"] == (40 if mode == "supplement" else None)
    assert missing(out) == ([] if mode == "supplement" else ["table"])
    with np.load(out / "arrays.npz") as file:
        arrays = {name: file[name] for name in ("curves.mean", "heads.mean")}
    values = converted.base_model.position_bias.encoding.values.detach().numpy()
    np.testing.assert_allclose(arrays["curves.mean"], values, rtol=1e-5, atol=1e-6)
    assert np.min(found["curves"]["r2"]) > 0.999999
    if mode == "replace":  # all that depends on position is the bias
        mean = arrays["heads.mean"] - values
        np.testing.assert_allclose(mean, np.broadcast_to(mean[..., :1], mean.shape), rtol=1e-4, atol=1e-4)
        assert np.min(found["heads"]["r2"]) > 0.999


def test_an_encoder_that_was_converted_is_analysed_as_any_other(tmp_path):
    from headway.pretrained.conversion import convert

    config = EncoderConfig(**SIZES, encoding="learned:segments=none", pad_token_id=0)
    convert(randomized(EncoderForMaskedLM(config)), "tisa:kernels=2", start="random").save_pretrained(
        tmp_path / "model"
    )
    run(tmp_path / "model", "--out", tmp_path / "out", "--kernels", "1", "--no-figures")
    assert measures(tmp_path / "out")["model"]["model_type"] == "headway-encoder"
    assert missing(tmp_path / "out") == ["segments", "texts"]


# The Hub, as a cache that needs no network.


@pytest.mark.slow
def test_the_revision_on_the_hub_is_recorded(bert, tmp_path):
    commits = {"main": "a" * 40, "v1": "b" * 40}
    home = tmp_path / "home"
    store = home / "hub" / "models--someone--tiny"
    for name, commit in commits.items():
        shutil.copytree(bert, store / "snapshots" / commit)
        (store / "refs").mkdir(exist_ok=True)
        (store / "refs" / name).write_text(commit)
    offline = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    for name, asked in {"main": [], "v1": ["--revision", "v1"]}.items():
        out = tmp_path / name
        line = [sys.executable, "-m", "headway", "analyze", "someone/tiny", *asked, "--out", str(out)]
        line += ["--positions", "12", "--kernels", "1", "--no-figures", "--quiet"]
        done = subprocess.run(line, capture_output=True, text=True, env=offline, check=False)
        assert done.returncode == 0, done.stderr
        assert measures(out)["model"]["revision"] == commits[name]
        page = (out / "report.html").read_text()
        assert f"<code>{commits[name][:12]}</code>" in page and f"<code>{commits[name]}</code>" in page
        record = json.loads((out / "config.json").read_text())
        assert record["config"]["revision"] == (asked[1] if asked else None)
        assert ("--revision v1" in record["command"]) == bool(asked)


def test_a_folder_has_no_revision(bert, tmp_path):
    said = run(bert, "--out", tmp_path / "out", "--revision", "main", status=2)
    assert "revision: expected none for a folder" in said


def test_one_segment_is_none(tmp_path):
    config = EncoderConfig(**SIZES, encoding="diet-rel:segments=per-head", type_vocab_size=1, pad_token_id=0)
    randomized(EncoderForMaskedLM(config)).save_pretrained(tmp_path / "model")
    run(tmp_path / "model", "--out", tmp_path / "out", "--kernels", "1", "--no-figures")
    assert "segments" in missing(tmp_path / "out")
