"""Table 6 of Chen et al. (2021b): our counts are the paper's, to its last digit."""

import json

import torch
from transformers import BertConfig, BertForPreTraining
from typer.testing import CliRunner

from headway.cli import app
from headway.models import parameter_table, preset, pretraining_parameters

PAPER = [  # English and multilingual, in millions, read off the paper
    (110.1, 178.9),
    (109.9, 178.7),
    (109.7, 178.5),
    (128.6, 197.4),
    (111.3, 180.1),
]


def test_every_row_is_the_papers():
    rows = parameter_table()
    assert [(round(row.english / 1e6, 1), round(row.multilingual / 1e6, 1)) for row in rows] == PAPER
    assert [(row.paper_english, row.paper_multilingual) for row in rows] == PAPER


def test_bert_is_counted_as_transformers_counts_it():
    with torch.device("meta"):
        bert = BertForPreTraining(BertConfig())
    assert pretraining_parameters(preset("bert-base")) == bert.num_parameters() == 110_106_428


def test_the_difference_is_the_encoding_by_its_formula():
    def count(encoding, segments="segments=none", **options):
        text = encoding + ("," if ":" in encoding else ":") + segments
        return pretraining_parameters(preset("bert-base", encoding=text, **options))

    none = count("none")
    assert count("learned") - none == 512 * 768
    assert count("diet-rel") - none == 12 * 12 * 1023
    assert count("diet-abs:rank=128,sharing=layer") - none == 2 * 12 * 512 * 128
    for segments in ("segments=per-head", "segments=per-head,segment_sharing=none"):  # however positions share
        assert count("diet-rel:sharing=layer", segments) - none == 12 * 1023 + 12 * 12 * 4
    assert count("diet-rel:sharing=layer", "segments=per-head,segment_sharing=head") - none == 12 * 1023 + 12 * 4
    lin = {"attention": "linformer", "projected_length": 32}
    assert count("none", **lin) - none == 12 * 32 * 512
    assert count("diet-abs", **lin) - count("none", **lin) == 12 * 12 * (512 + 32) * 64


def test_the_command_prints_it():
    def headway(*arguments):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        return done.output

    rows = json.loads(headway("list", "--parameters", "--json"))
    assert [(row["paper_english"], row["paper_multilingual"]) for row in rows] == PAPER
    assert rows[0]["english"] == 110_106_428
    table = headway("list", "--parameters")
    for english, multilingual in PAPER:
        assert table.count(f"{english:.1f}") == 2 and table.count(f"{multilingual:.1f}") == 2
