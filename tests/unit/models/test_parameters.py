"""Table 6 of Chen et al. (2021b): our counts are the paper's, to its last digit."""

import itertools
import json

import pytest
import torch
from transformers import BertConfig, BertForPreTraining
from typer.testing import CliRunner

from headway.cli import app
from headway.models import parameter_table, position_parameter_table, preset, pretraining_parameters

PAPER = [  # English and multilingual, in millions, read off the paper
    (110.1, 178.9),
    (112.9, 181.7),
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


SHAW = {
    "sharing": ("none", "head", "layer"),
    "tables": (1, 2),
    "input": (True, False),
    "segments": ("input", "per-head"),
}


def shaw_parameters(clip, sharing, tables, positions_at_the_input, segments):
    """What Shaw's encoding and the segments add to BERT without any, by their formulas."""
    layers, heads = 1 if sharing == "layer" else 12, 1 if sharing == "head" else 12
    shaw = tables * layers * heads * (2 * clip + 1) * 64
    return shaw + positions_at_the_input * 512 * 768 + {"input": 2 * 768, "per-head": 12 * 12 * 4}[segments]


@pytest.mark.parametrize("clip", [3, 16])
def test_the_formula_of_shaws_parameters(clip):
    none = pretraining_parameters(preset("bert-base", encoding="none:segments=none"))
    for sharing, tables, kept, segments in itertools.product(*SHAW.values()):
        name, values = ("learned+shaw" if kept else "shaw"), str(tables == 2).lower()
        text = f"{name}:clip={clip},values={values},sharing={sharing},segments={segments}"
        found = pretraining_parameters(preset("bert-base", encoding=text)) - none
        assert found == shaw_parameters(clip, sharing, tables, kept, segments), text


def test_what_gives_the_papers_count_of_shaws_parameters():
    """112.9M and 181.7M (Table 6), within rounding: every K, sharing, keys with or without values, and positions kept.

    No K up to 511, the furthest offset of 512 positions, does with heads or layers that share. With heads that share
    (Sec. 4.4), keys and values, and no positions at the input, K is about twice that: 1021 to 1050.
    """
    bases = [
        pretraining_parameters(preset("bert-base", vocab_size=size, encoding="none:segments=none"))
        for size in (30_522, 120_000)
    ]
    found = {}
    for settings in itertools.product(*SHAW.values()):
        for clip in range(3000):
            added = shaw_parameters(clip, *settings)
            if [round((base + added) / 1e6, 1) for base in bases] == [112.9, 181.7]:
                found.setdefault(settings[:3], set()).add(clip)
    ranges = {settings: (min(clips), max(clips)) for settings, clips in found.items()}
    assert ranges == {
        ("none", 1, True): (149, 153),
        ("none", 1, False): (170, 174),
        ("none", 2, True): (74, 76),
        ("none", 2, False): (85, 87),
        **{(sharing, 1, True): (1786, 1845) for sharing in ("head", "layer")},
        **{(sharing, 1, False): (2042, 2101) for sharing in ("head", "layer")},
        **{(sharing, 2, True): (893, 922) for sharing in ("head", "layer")},
        **{(sharing, 2, False): (1021, 1050) for sharing in ("head", "layer")},
    }


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


def test_tisa_table_2_counts_released_models_and_tisa_by_its_formula():
    """Wennberg and Henter (2021): Sec. 2, n = 512 and Longformer's 4096, 8-fold; Sec. 4.2, 3 S H L."""
    rows = {row.model: row for row in position_parameter_table()}
    assert list(rows)[:4] == ["BERT base", "RoBERTa base", "ALBERT base", "Longformer base"]
    assert all(row.counted == row.by_formula for row in rows.values())
    assert rows["BERT base"].counted == rows["RoBERTa base"].counted == 512 * 768
    assert rows["ALBERT base"].counted == 512 * 128
    assert rows["Longformer base"].counted == 8 * rows["RoBERTa base"].counted
    assert [rows[f"TISA, S = {s}"].counted for s in (1, 3, 5)] == [3 * s * 12 * 12 for s in (1, 3, 5)]
    assert all(row.counted < rows["ALBERT base"].counted / 10 for name, row in rows.items() if "TISA" in name)
    assert rows["TISA, S = 5"].counted < rows["BERT base"].counted / 100  # "several orders of magnitude less"


@pytest.mark.parametrize("option", ["--positions", "--criteria"])
def test_tables_of_tisa_fit_a_terminal(option):
    done = CliRunner().invoke(app, ["list", option], env={"COLUMNS": "80"})
    assert done.exit_code == 0 and max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout
    found = json.loads(CliRunner().invoke(app, ["list", option, "--json"]).stdout)
    assert len(found) > 6
