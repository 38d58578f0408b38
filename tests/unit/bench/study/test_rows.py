"""Rows of the papers' tables: what they share, and that jobs of older results keep their keys."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway.bench.study.graph import jobs
from headway.bench.study.job import Job
from headway.bench.study.plan import Row
from headway.bench.study.plans import find_plan
from headway.bench.study.plans.glue_tables import TABLE_2, TABLE_8, TABLE_9
from headway.bench.study.plans.rows import CHOICES, KE, RAFFEL, SHAW_ROW, local, of_size, performer
from headway.bench.study.plans.xtreme_tables import TABLE_3, TABLE_5
from headway.bench.study.store import read_records
from headway.bench.tasks.pretrain import EncoderChoice, PretrainConfig
from headway.models.layers import LengthProjection
from headway.storage import restore

ROOT = Path(__file__).parents[4]
QUICK = "diet-abs"  # the row of the quick study whose layers share
PAIRS = ("builtin:roles", "builtin:role-questions")


def test_who_shares_is_what_section_4_4_says():
    """Head-wise: Shaw et al. and Ke et al.; layer-wise: Raffel et al.; segments at the input (Table 2)."""
    assert [row.choice.sharing for row in (SHAW_ROW, KE, RAFFEL)] == ["head", "head", "layer"]
    assert {row.choice.segments for row in (SHAW_ROW, KE, RAFFEL)} == {"input"}


@pytest.mark.parametrize("row", [*TABLE_2, *TABLE_3, *TABLE_5, *TABLE_8, *TABLE_9], ids=lambda row: row.name)
def test_tables_of_segments_are_never_shared(row):
    """Chen et al. (2021a), Sec. 3: "different parameters for each head and layer"."""
    assert row.choice.segment_sharing in (None, "none")
    if "share" in row.name:
        assert row.choice.sharing == ("head" if "heads" in row.name else "layer")


def kept_keys():
    results = json.loads((ROOT / "results" / "studies" / "quick" / "results.json").read_text())
    return {job["key"] for job in results["jobs"]}


def test_older_results_keep_their_keys():
    """In the committed study segments shared as positions did; a row that says so asks for the same jobs."""
    plan = find_plan("quick")
    row = plan.row(QUICK)
    assert row.encoding == "diet-abs:sharing=layer,segments=per-head"
    older = replace(row, encoding=f"{row.encoding},segment_sharing=layer")
    rows = tuple(older if each.name == QUICK else each for each in plan.rows)
    before = {each.job.key: each for each in jobs(replace(plan, rows=rows)) if each.job.kind != "cost"}
    now = {each.job.key: each for each in jobs(plan) if each.job.kind != "cost"}
    assert before.keys() <= kept_keys()
    changed = [each for key, each in now.items() if key not in before]
    assert {(each.row, each.task) for each in changed} == {(QUICK, task) for task in PAIRS}
    assert len(now.keys() - kept_keys()) == len(changed)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("sharing=layer,segments=per-head,segment_sharing=layer", "sharing=layer,segments=input", False),
        ("sharing=layer,segments=per-head", "sharing=layer,segments=per-head,segment_sharing=layer", False),
        ("segments=per-head", "segments=per-head,segment_sharing=none", True),
        ("segments=per-head", "segments=per-head,segment_sharing=head", False),
    ],
)
def test_models_that_share_differently_are_different_jobs(one, other, same):
    models = [{"encoding": f"diet-rel:{options}"} for options in (one, other)]
    keys = {Job(kind="parameters", config={"model": model, "vocabularies": {}}).key for model in models}
    assert len(keys) == (1 if same else 2)


def test_a_shared_row_of_an_older_parameter_count_keeps_its_key():
    """The key that this job had when an encoding was four fields."""
    job = Job(
        kind="parameters",
        config={
            "preset": "bert-base",
            "model": {"encoding": "diet-rel:sharing=layer,segments=per-head,segment_sharing=layer"},
            "vocabularies": {"English": 30_522, "multilingual": 120_000},
        },
    )
    assert job.key == "parameters-d7f2736d48e8"


def test_rows_print_what_they_share():
    assert Row(name="a", encoding="diet-rel:sharing=layer,segment_sharing=head,segments=per-head").encoding == (
        "diet-rel:sharing=layer,segments=per-head,segment_sharing=head"
    )


@pytest.mark.parametrize("size", ["quick", "paper"])
def test_projections_are_made_for_the_length_of_the_texts(size):
    """Otherwise keys begin smaller: with 128 of 512 columns, at half their size."""
    plan = find_plan("glue", size)
    for row in (TABLE_2[7], TABLE_2[8]):
        job = next(each.job for each in jobs(plan) if each.row == row.name and each.job.kind == "pretrain")
        asked = restore(PretrainConfig, job.config)
        config = asked.model.config(length=asked.text.length)
        assert config.max_position_embeddings == asked.text.length == {"quick": 64, "paper": 128}[size]
        assert job.config["model"]["changes"]["max_position_embeddings"] == asked.text.length
        torch.manual_seed(0)
        matrix = LengthProjection(config).matrix  # (layers, 1, 1, P, length); a sum over a row keeps the variance
        assert matrix.var().item() * asked.text.length == pytest.approx(1.0, abs=0.15)


def test_the_rank_of_diet_abs_lin_is_the_width_of_a_head():
    config = EncoderChoice(preset="bert-base", encoding=TABLE_2[8].encoding, changes=TABLE_2[8].changes).config()
    with torch.device("meta"):
        built, _ = config.build()
    assert built.rank == config.head_dim == 64
    assert any("rank 64" in choice for choice in CHOICES)


def test_shaws_clipping_at_each_size():
    assert SHAW_ROW.choice.options == {"clip": 1023}
    (short,) = of_size((TABLE_2[1],), "gpu")
    assert short.choice.options == {} and short.name == SHAW_ROW.name and not short.published


@pytest.mark.parametrize("size", ["quick", "gpu"])
def test_rows_of_linear_cost_are_as_large_as_linformers(size):
    """One number of keys or features: 256 in the paper's Linformer, fewer where texts are shorter."""
    rows = {row.name: row.changes for row in of_size((TABLE_3[7], *local(128), *performer(256)), size, shorter=2)}
    keys = rows["Wang et al. (Linformer)"]["projected_length"]
    assert 2 * rows["Local attention"]["window"] == keys == {"quick": 32, "gpu": 128}[size]
    assert rows["Performer"]["num_features"] == {"quick": 32, "gpu": 256}[size]


def test_other_kinds_of_attention_are_rows_of_the_study_on_text():
    kinds = {row.name: row.changes.get("attention", "full") for row in find_plan("encodings", "quick").rows}
    assert {"full", "linformer", "local", "performer", "synthesizer"} == set(kinds.values())
    assert kinds["random synthesizer"] == kinds["factorised synthesizer, rank 8"] == "synthesizer"
    assert kinds["performer, diet-rel"] == "performer" and kinds["local, diet-rel"] == "local"
    assert kinds["music-transformer"] == "full"
    assert all(row.choice.segment_sharing is None for row in find_plan("encodings", "quick").rows)


@pytest.mark.parametrize("name", ["encodings", "same-token"])
def test_committed_records_count_as_done(name, tmp_path, monkeypatch):
    """All jobs of committed records are jobs of their plan today, with segments shared as positions, as they were then.

    The folder of data is the one that the records were made with; building these plans reads only names of files.
    """
    folder = ROOT / "results" / "studies" / name
    results = json.loads((folder / "results.json").read_text())
    corpora = [source.split("=")[-1] for source in results["recipes"]["pretraining"]["text"]["corpus"]]
    monkeypatch.chdir(tmp_path)
    for corpus in map(Path, corpora):
        corpus.parent.mkdir(parents=True, exist_ok=True)
        corpus.touch()
    data = Path(corpora[0]).parents[1]
    (data / "glue").mkdir()
    plan = find_plan(str(folder / "plan.py") if (folder / "plan.py").is_file() else name, "gpu", str(data))
    rows = tuple(replace(row, encoding=str(as_it_was(row.choice))) for row in plan.rows)
    today = {each.job.key for each in jobs(replace(plan, rows=rows))}
    assert set(read_records(folder)) <= today


def as_it_was(choice):
    shared = choice.segments == "per-head" and choice.sharing in ("head", "layer")
    return replace(choice, segment_sharing=choice.sharing) if shared else choice
