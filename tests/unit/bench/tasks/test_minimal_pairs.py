"""Minimal pairs by pseudo-likelihood: against a loop over single sentences, and on files as BLiMP has them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM
from typer.testing import CliRunner

from headway.bench.data import open_corpus, train_tokenizer
from headway.bench.data.transfer import minimal_pairs as data
from headway.bench.data.transfer.minimal_pairs import read_minimal_pairs
from headway.bench.tasks.minimal_pairs import pseudo_log_likelihoods, score_pairs, tokenise
from headway.models import EncoderForMaskedLM, preset

SENTENCES = ["the cat sees a dog", "a dog", "the old cats see the dog that sleeps", "dogs sleep"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return train_tokenizer([open_corpus("builtin:300")], "word", None, tmp_path_factory.mktemp("words") / "tokenizer")


def ours(words: int) -> EncoderForMaskedLM:
    torch.manual_seed(0)
    model = EncoderForMaskedLM(preset("tiny", encoding="t5", vocab_size=words))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def bert(words: int, **rest) -> BertForMaskedLM:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=words, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        initializer_range=0.5, **rest,
    )  # fmt: skip
    return BertForMaskedLM(config)


@torch.no_grad()
def by_hand(model, tokenizer, sentence: str) -> float:
    """Sum over the words of the log probability of each, one forward pass of one row at a time, in float64."""
    double, total = model.double().eval(), 0.0
    ids = tokenizer(sentence)["input_ids"]
    for place in range(1, len(ids) - 1):
        masked = [tokenizer.mask_token_id if at == place else token for at, token in enumerate(ids)]
        scores = double(input_ids=torch.tensor([masked])).logits[0, place]
        total += math.log(float(scores.exp()[ids[place]] / scores.exp().sum()))
    model.float()
    return total


@pytest.mark.parametrize("make", [ours, bert])
@pytest.mark.parametrize("tokens", [None, 16, 1])
def test_each_word_is_masked_in_turn(make, tokens, tokenizer):
    model = make(len(tokenizer))
    expected = [by_hand(model, tokenizer, sentence) for sentence in SENTENCES]
    model.train()
    found = pseudo_log_likelihoods(model, tokenizer, tokenise(model, tokenizer, SENTENCES), tokens=tokens)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert model.training, "the mode is put back"


def test_without_a_difference_in_words_an_encoder_without_positions_ties(tokenizer):
    torch.manual_seed(0)
    blind = EncoderForMaskedLM(preset("tiny", encoding="none", vocab_size=len(tokenizer)))
    found = score_pairs(blind, tokenizer, "builtin:40")
    assert 0.35 < found.all.accuracy < 0.65
    assert found.all.pairs == 40
    assert found.unknown == 0.0
    assert found.to_json() == score_pairs(blind, tokenizer, "builtin:40").to_json(), "deterministic"


def test_ties_count_half_and_shares_are_those_of_their_pairs(tokenizer, monkeypatch):
    scores = iter(range(100))
    pairs = read_minimal_pairs("builtin:6")
    sentences = list(dict.fromkeys(text for pair in pairs for text in (pair.good, pair.bad)))
    value = {text: float(next(scores)) for text in sentences}
    value[pairs[0].bad] = value[pairs[0].good]
    monkeypatch.setattr(
        "headway.bench.tasks.minimal_pairs.pseudo_log_likelihoods",
        lambda *_, **__: np.array([value[text] for text in sentences]),
    )
    found = score_pairs(ours(len(tokenizer)), tokenizer, "builtin:6")
    right = [0.5 if value[p.good] == value[p.bad] else float(value[p.good] > value[p.bad]) for p in pairs]
    assert found.ties == 1
    assert found.all.accuracy == pytest.approx(sum(right) / 6)
    assert found.all.low < found.all.accuracy < found.all.high
    assert sum(each.pairs for each in found.paradigms.values()) == 6
    for name, share in found.paradigms.items():
        own = [value for value, pair in zip(right, pairs, strict=True) if pair.paradigm == name]
        assert (share.accuracy, share.pairs) == (pytest.approx(sum(own) / len(own)), len(own))


def write(folder, paradigms=2, pairs=3, **changes):
    """Write files as BLiMP has them, few and short."""
    for number in range(paradigms):
        name = f"paradigm_{number}"
        rows = [
            {
                "sentence_good": f"the cat sees {at} dogs", "sentence_bad": f"the cat see {at} dogs", "UID": name,
                "linguistics_term": "s-selection" if number else "binding", "pairID": str(at), **changes,
            }
            for at in range(pairs)
        ]  # fmt: skip
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "SOURCE.txt").write_text("where it is from")
    return folder


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(data, "PARADIGMS", 2)
    monkeypatch.setattr(data, "PAIRS", 3)


def test_files_of_blimp_are_read_whole(tmp_path, few):
    pairs = read_minimal_pairs(str(write(tmp_path)))
    assert [pair.paradigm for pair in pairs] == ["paradigm_0"] * 3 + ["paradigm_1"] * 3
    assert {pair.phenomenon for pair in pairs} == {"binding", "argument_structure"}
    assert (pairs[1].good, pairs[1].bad) == ("the cat sees 1 dogs", "the cat see 1 dogs")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"paradigms": 1}, "expected the 2 files"),
        ({"pairs": 2}, "expected 3 pairs, got 2"),
        ({"sentence_bad": " "}, "line 1: expected a text as 'sentence_bad'"),
        ({"UID": "another"}, "expected the paradigm paradigm_0"),
    ],
)
def test_what_is_not_blimp_as_a_whole_is_refused(tmp_path, few, wrong, message):
    with pytest.raises(ValueError, match=message):
        read_minimal_pairs(str(write(tmp_path, **wrong)))


def test_a_source_that_is_nothing_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="BLiMP's folder"):
        read_minimal_pairs(str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"builtin\[:PAIRS\]"):
        read_minimal_pairs("builtin:many")


def test_a_tokenizer_that_does_not_fit_is_refused(tokenizer):
    with pytest.raises(ValueError, match="Give the tokenizer the model was trained with"):
        tokenise(ours(20), tokenizer, SENTENCES)
    small = bert(len(tokenizer), max_position_embeddings=6)
    with pytest.raises(ValueError, match="model: it has 6 positions, and a sentence has 10 tokens"):
        tokenise(small, tokenizer, SENTENCES)


def test_the_command_writes_what_the_function_returns(tmp_path, tokenizer):
    from headway.cli import app

    model = ours(len(tokenizer))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    command = ["blimp", str(tmp_path / "model"), "--data", "builtin:20", "--out", str(tmp_path / "o.json"), "--cpu"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "word order" in done.output
    found = json.loads((tmp_path / "o.json").read_text())
    expected = score_pairs(model, tokenizer, "builtin:20").to_json()
    assert {name: found[name] for name in expected} == expected
    assert CliRunner().invoke(app, [*command[:3], str(tmp_path)]).exit_code == 2
