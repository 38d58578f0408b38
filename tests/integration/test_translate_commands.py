"""The commands of translation: text goes in and comes out."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from training_runs import one_thread
from typer.testing import CliRunner

from headway.bench.data.translation.parallel import open_parallel
from headway.bench.tasks.translate import (
    Translator,
)
from headway.cli import translation as app

SIZES = {"encoder_layers": 1, "decoder_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}

_one_thread = pytest.fixture(scope="module", autouse=True)(one_thread)


def command(*arguments, **options):
    return CliRunner().invoke(app, [str(each) for each in arguments], **options)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Files of the built-in language, with an empty line, a misaligned copy and a wrongly encoded one."""
    folder = tmp_path_factory.mktemp("corpus")
    pairs = [(pair.source, pair.target) for pair in open_parallel("builtin:300:0:max_depth=0", split="train")]
    pairs[5] = (pairs[5][0], "")
    for side, name in enumerate(("train.en", "train.de")):
        (folder / name).write_text("".join(each[side] + "\n" for each in pairs))
    (folder / "short.de").write_text("".join(each[1] + "\n" for each in pairs[:200]))
    (folder / "latin.de").write_bytes(b"".join(b"\xe4\n" if n == 9 else b"ok\n" for n in range(300)))
    (folder / "empty.en").write_text("")
    news = [(pair.source, pair.target) for pair in open_parallel("builtin:20:1:max_depth=0", split="train")]
    for side, name in enumerate(("news.en", "news.de")):
        (folder / name).write_text("".join(each[side] + "\n" for each in news))
    (folder / "news.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in news))
    return folder


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("command") / "run"
    small = [f"--set=model.changes.{name}={value}" for name, value in SIZES.items()]
    done = command(
        "train", "--source", corpus / "train.en", "--target", corpus / "train.de", "--steps", 6, *small,
        "--encoding", "shaw:clip=4,values=false", "--set=data.vocab_size=300", "--set=data.rules.max_tokens=64",
        "--set=data.held_out=0.1", "--set=data.translated=5",
        "--set=decoding.beam=3", "--set=decoding.length_penalty=1",
        "--test", f"news={corpus}/news.en,{corpus}/news.de", "--test", f"tsv={corpus}/news.tsv", "--out", out, "--cpu",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return out, done


def test_the_train_command_says_what_it_did(trained):
    out, done = trained
    assert "left out of train: 1 empty" in done.output
    assert f"wrote {out}:" in done.output
    assert f"headway translate decode INPUT --model {out}/model" in done.output
    config = json.loads((out / "model" / "config.json").read_text())
    assert config["encoding"] == "shaw:clip=4,values=false"
    index = json.loads((out / "data" / "train" / "index.json").read_text())
    dev = json.loads((out / "data" / "dev" / "index.json").read_text())
    assert index["pairs"] + dev["pairs"] == 299


def test_the_score_of_a_test_set_is_that_of_decode_and_score(trained, corpus, tmp_path):
    out, done = trained
    scores = json.loads((out / "result.json").read_text())["scores"]
    assert list(scores) == ["dev", "news", "tsv"]
    assert (scores["dev"]["sentences"], scores["news"]["sentences"]) == (5, 20) and scores["dev"]["of"] > 5
    assert f"dev: BLEU {scores['dev']['bleu']:.2f}" in done.output and "5 of " in done.output
    assert "20 sentences; nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in flat(done.output)
    assert scores["tsv"]["chrf"] == scores["news"]["chrf"] > 0
    options = ("--model", out / "model", "--beam", 3, "--length-penalty", 1, "--cpu")
    again = command("decode", corpus / "news.en", *options, "--out", tmp_path / "news.hyp")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "news.hyp").read_text() == (out / "translations" / "news.txt").read_text()
    judged = command("score", tmp_path / "news.hyp", "--reference", corpus / "news.de", "--out", tmp_path / "s.json")
    assert judged.exit_code == 0, judged.output
    (system,) = json.loads((tmp_path / "s.json").read_text())["systems"].values()
    assert system == {name: scores["news"][name] for name in system}


def test_decode_from_a_file_keeps_the_order_and_the_empty_lines(trained, tmp_path):
    model, lines = trained[0] / "model", ["the dog jumps .", "", "a cat sees the dog ."]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    done = command("decode", tmp_path / "in.txt", "--model", model, "--out", tmp_path / "out.txt", "--cpu", "--jobs", 1)
    assert done.exit_code == 0, done.output
    written = (tmp_path / "out.txt").read_text().split("\n")
    assert len(written) == 4 and written[1] == written[3] == ""
    translator = Translator.load(model, device="cpu")
    assert written[:3] == [best[0].text for best in translator.translate(lines)]

    done = command("decode", tmp_path / "in.txt", "--model", model, "--n-best", 2, "--cpu", "--set=max_length_plus=5")
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert float(rows[0][1]) >= float(rows[1][1])


def test_decode_from_standard_input_in_a_process_of_its_own(trained):
    text = "the dog jumps .\n\n" + "the dog sees a cat . " * 8 + "\n"
    arguments = ["translate", "decode", "-", "--model", str(trained[0] / "model"), "--cpu", "--limit", "16"]
    done = subprocess.run([sys.executable, "-m", "headway", *arguments], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split("\n")) == 4
    assert done.stdout.split("\n")[1] == ""
    assert "1 lines of more than 16" in done.stderr


def test_the_score_command_compares_with_the_first(tmp_path):
    reference = [f"the dog number {n} jumps over the small green hill ." for n in range(40)]
    for name, lines in {
        "reference": reference,
        "good": reference,
        "bad": [w.replace("jumps", "x") for w in reference],
    }.items():
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    done = command(
        "score", tmp_path / "good", tmp_path / "bad", "--reference", tmp_path / "reference", "--samples", 200,
        "--out", tmp_path / "scores.json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "good: BLEU 100.00, chrF 100.00, exact 100.00%" in done.output
    assert "BLEU: nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in done.output
    written = json.loads((tmp_path / "scores.json").read_text())
    bad = next(row for row in written["bootstrap"]["rows"] if row["system"].endswith("bad") and row["metric"] == "BLEU")
    assert bad["p_value"] < 0.05
    (tmp_path / "upper").write_text("".join(line.upper() + "\n" for line in reference))
    done = command("score", tmp_path / "upper", "--reference", tmp_path / "reference", "--lowercase")
    assert "BLEU 100.00" in done.output and "case:lc" in done.output
    done = command("score", tmp_path / "good", "--reference", trained_short(tmp_path))
    assert done.exit_code == 2
    assert "references[0]: expected 40 lines, as many as there are translations, got 3" in flat(done.output)


def trained_short(folder):
    (folder / "short").write_text("a\nb\nc\n")
    return folder / "short"


def flat(text):
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--recipe", "papre"), "recipe: expected one of quick, small, shaw-base, shaw-big, diet-base"),
        (("train", "--encoding", "dite"), "encoding: expected one of"),
        (("train", "--test", "news.en"), "--test: expected NAME=VALUE, got 'news.en'."),
        (("train", "--test", "news=none.en,none.de"), "source: expected a file, hub:NAME or builtin, got 'none.en'"),
        (("train", "--test", "newstest2014=CORPUS/news.tsv"), "has 20 sentences, and the whole newstest2014 has 3,003"),
        (("train", "--source", "none.en", "--target", "none.de"), "source: expected a file, hub:NAME or builtin"),
        (("train", "--source", "CORPUS/train.en", "--target", "CORPUS/short.de"), "(300), got 200"),
        (("train", "--source", "CORPUS/train.en", "--target", "CORPUS/latin.de"), "line 10: expected UTF-8"),
        (("train", "--source", "CORPUS/empty.en"), "expected text, got an empty file"),
        (
            ("train", "--source=CORPUS/train.en", "--target=CORPUS/train.de", "--set=data.rules.strict=true"),
            "empty target (empty)",
        ),
        (
            ("train", "--source=CORPUS/train.en", "--target=CORPUS/train.de", "--set=data.held_out=0.0001"),
            "raise data.held_out",
        ),
        (("train", "--source", "builtin:20:0:max_depth=99"), "max_depth: expected an integer from 0 to 30"),
        (
            ("train", "--source", "builtin:20", "--set=data.rules.max_tokens=2"),
            "Raise data.rules.max_tokens, which is",
        ),
        (
            ("train", "--source", "CORPUS/train.en", "--dev-source", "CORPUS/train.en", "--set=data.held_out=0.1"),
            "--set data.held_out: not used beside --dev-source",
        ),
        (("train", "--set=data.held_out=0.1"), "--set data.held_out: not used beside builtin"),
        (
            ("train", "--source", "hub:x", "--set=data.languages=en-de", "--set=data.held_out=0.1"),
            "--set data.held_out: not used beside hub:x",
        ),
        (("train", "--source", "builtin:20", "--tokens", "16"), "tokens: expected at least"),
        (("decode", "none.txt", "--model", "MODEL"), "input: expected a file, or - for standard input"),
        (("decode", "-", "--model", "nowhere"), "model: expected a folder such as model/ of a run"),
        (("decode", "-", "--model", "MODEL/.."), "/../model'?"),
        (("decode", "CORPUS/latin.de", "--model", "MODEL"), "Convert the text (iconv -f LATIN1 -t UTF-8)."),
        (("decode", "CORPUS/train.en", "--model", "MODEL", "--top-k", "3"), "top_k: an option of sampling"),
        (("train", "--data", "x", "--source", "CORPUS/train.en"), "--source: not used beside --data"),
        (
            ("train", "--data", "x", "--target", "a.de", "--set=data.rules.strict=true"),
            "--target, --set data.rules.strict: not used beside --data",
        ),
        (("train", "--encoding", "shaw:clip=x"), "clip: expected"),
        (
            ("decode", "CORPUS/train.en", "--model", "MODEL", "--n-best", "9"),
            "n_best: expected at most beam (4), got 9",
        ),
        (("decode", "-", "--model", "MODEL", "--out", "CORPUS"), "which is a folder. Name a file in it."),
        (
            ("decode", "none.txt", "--model", "nowhere", "--sample", "--beam", "7"),
            "--beam: not used beside --sample",
        ),
        (
            ("decode", "none.txt", "--model", "nowhere", "--set=max_length_ratio=nan"),
            "max_length_ratio: expected a finite",
        ),
        (("decode", "none.txt", "--model", "MODEL", "--tokens", "0"), "tokens: expected at least 1, got 0"),
        (
            ("score", "none.en", "--reference", "none.de", "--samples", "9"),
            "samples: expected several files to compare",
        ),
        (("score", "none.en", "--reference", "none.de", "--jobs", "2"), "Leave --jobs out."),
        (
            ("score", "CORPUS/train.en", "CORPUS/train.de", "--reference", "CORPUS/train.de", "--jobs", "0"),
            "jobs: expected at least 1, got 0",
        ),
        (("score", "none.en", "--reference", "none.de", "--out", "CORPUS"), "which is a folder. Name a file in it."),
        (("score", "none.en", "--reference", "none.de", "--out", "CORPUS/train.en/a"), "train.en, which is a file."),
        (("score", "CORPUS/train.en", "--reference", "none.de"), "input: expected a text file, got 'none.de'"),
        (("score", "a", "a", "--reference", "b"), "translations: expected each file once, got a, a"),
        (
            ("score", "CORPUS/train.en", "CORPUS/train.de", "--reference", "CORPUS/train.de", "--samples", "0"),
            "samples: expected at least 1, got 0",
        ),
    ],
)
def test_bad_input_is_named_without_a_traceback(tmp_path, monkeypatch, corpus, trained, arguments, message):
    monkeypatch.chdir(tmp_path)
    places = {"CORPUS": str(corpus), "MODEL": str(trained[0] / "model")}
    for name, place in places.items():
        arguments = [each.replace(name, place) for each in arguments]
    done = command(*arguments, *([] if arguments[0] == "score" else ["--cpu"]))
    assert done.exit_code == 2, done.output
    assert message.replace(" ", "") in flat(done.output).replace(" ", "")
    assert "Traceback" not in done.output


def test_help_has_an_example():
    for name in ("train", "decode", "score"):
        done = command(name, "--help")
        assert f"headway translate {name}" in flat(done.output)
