"""The league, against its design as docs/league.md states it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from headway.bench.report.study.page import study_page
from headway.bench.report.study.tables import notes, verdict_mark, write_interval
from headway.bench.statistics import least_difference, pooled_deviation, simultaneous_intervals
from headway.bench.study import kinds
from headway.bench.study.cells import read_cell
from headway.bench.study.collect import collect_results
from headway.bench.study.graph import jobs
from headway.bench.study.plan import RateGrid
from headway.bench.study.plans import find_plan
from headway.bench.study.plans.league import wikipedia
from headway.bench.study.runner import Runner
from headway.bench.study.store import Store, write_records
from headway.bench.study.study import Study
from headway.bench.tasks.training.run_folder import Diverged
from headway.encodings import EncodingChoice
from headway.storage import read_json, write_json

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "league.md").read_text(encoding="utf-8")
ARMS = dict(re.findall(r"^\| ([^|`]+?) \| `([^`]+)` \|$", PAGE, flags=re.MULTILINE))
COMPARISONS, SEEDS = len(ARMS) - 1, 4


def test_every_arm_of_the_design_can_be_built_and_has_segments_at_the_input():
    assert len(ARMS) == 14
    for text in ARMS.values():
        assert EncodingChoice.parse(text).segments == "input"


def test_what_could_be_seen_follows_from_the_deviation_of_seeds_in_the_earlier_study():
    results = read_json(ROOT / "results" / "studies" / "encodings" / "results.json")
    at = [column["name"] for column in results["columns"]].index("Loss")
    seeds = [list(cell["values"].values()) for cell in results["cells"][at].values()]
    deviation, degrees = pooled_deviation(seeds)
    assert f"deviated by {deviation:.3f} nats ({degrees} degrees of freedom" in PAGE
    pooled = (COMPARISONS + 1) * (SEEDS - 1)
    assert f"{pooled} degrees of freedom the half width" in PAGE
    assert f"a true difference\nof {least_difference(deviation, pooled, SEEDS, COMPARISONS):.3f} nats" in PAGE
    half = simultaneous_intervals(
        {str(arm): _with_deviation(deviation) for arm in range(COMPARISONS)}, _with_deviation(deviation)
    )["0"].half_width
    assert f"is then {half:.3f} nats" in PAGE


def _with_deviation(deviation: float) -> list[float]:
    values = [-1.0, -1.0, 1.0, 1.0]
    assert mean(values) == 0.0
    return [value * deviation * 0.75**0.5 for value in values]


@pytest.fixture
def data(tmp_path):
    for part in ("corpus", "glue", "xtreme"):
        (tmp_path / part).mkdir()
    for number in range(3):
        (tmp_path / "corpus" / f"en-wiki-{number:02}.txt").write_text("One two.\n")
    (tmp_path / "corpus" / "en-wikitext2-test.txt").write_text("Another kind of text.\n")
    return str(tmp_path)


def test_the_plan_is_the_design(data):
    plan = find_plan("league", "gpu", data)
    assert {row.name: row.encoding for row in plan.rows} == ARMS
    planned = {each.job.key: each.job for each in jobs(plan)}.values()
    counts = {kind: sum(job.kind == kind for job in planned) for kind in ("trial", "rates", "pretrain")}
    assert f"these {counts['trial']} runs" in PAGE and counts == {"trial": 132, "rates": 14, "pretrain": 56}
    assert plan.rates is not None and plan.seeds == tuple(range(SEEDS))
    assert (plan.rates.rates, plan.rates.position_rates) == ((5e-4, 1e-3, 2e-3), (1.0, 3.0, 10.0, 30.0))
    assert f"below {plan.plateau} nats" in PAGE
    read = {name for job in planned if job.kind == "text" for name in job.config["corpus"]}
    assert {Path(name).name for name in read} == {"en-wiki-00.txt", "en-wiki-01.txt"}
    probes = [job.config["data"] for job in planned if job.config.get("task", "").startswith("probe:")]
    assert probes and all("en-wiki-02.txt" in str(each) for each in probes)


def test_the_noise_goes_on_at_the_rates_that_the_league_chose(data):
    league, noise = (
        {each.job.key for each in jobs(find_plan(name, "gpu", data)) if each.job.kind in ("text", "trial", "rates")}
        for name in ("league", "league-noise")
    )
    assert noise < league
    assert find_plan("league-noise", "gpu", data).seeds == tuple(range(18))


def test_length_is_measured_on_the_models_of_the_league(data):
    league = {each.job.key for each in jobs(find_plan("league", "gpu", data))}
    planned = jobs(find_plan("league-length", "gpu", data))
    own = {each.row for each in planned if each.job.key not in league and each.job.kind in ("trial", "pretrain")}
    assert own == {"diet-rel, reach 112"}
    of = {name: [each for each in planned if each.row == name] for name in ("rope", "rope, yarn", "alibi")}
    assert {each.job.kind for each in of["rope, yarn"]} == {"lengths", "further"}
    pretrained = {each.seed: each.job.key for each in of["rope"] if each.job.kind == "pretrain"}
    for each in of["rope, yarn"]:
        if not each.task or each.job.kind == "further":
            assert each.job.needs["pretrain"] == pretrained[each.seed]
    before = next(each.job for each in of["rope, yarn"] if not each.task)
    assert before.config["encoding"] == "rope:factor=4,scaling=yarn"
    longer = next(each.job for each in of["rope, yarn"] if each.job.kind == "further")
    assert longer.config["start"]["encoding"] == "rope:factor=4,scaling=yarn"
    assert longer.config["text"]["length"] == 512 and longer.config["optimisation"]["batch"] == 64
    steps = next(each.job for each in of["rope"] if each.job.kind == "pretrain").config["optimisation"]["steps"]
    assert longer.config["optimisation"]["steps"] == round(0.02 * steps)
    assert "start" not in before.config


def test_converted_rows_begin_with_the_models_of_the_league(data):
    league = {each.job.key for each in jobs(find_plan("league", "gpu", data))}
    planned = jobs(find_plan("league-conversion", "gpu", data))
    assert {each.job.kind for each in planned if each.job.key not in league} == {"convert", "held-out", "further"}
    assert len({each.row for each in planned if each.row}) == 13
    pretrained = {each.seed: each.job.key for each in planned if each.job.kind == "pretrain"}
    assert sorted(pretrained) == [0, 1, 2, 3]
    of = [each for each in planned if each.row == "supplement tisa, S = 3" and each.seed == 2]
    assert [each.job.kind for each in of] == ["convert", "held-out", "further", "further"]
    convert, held_out, *further = (each.job for each in of)
    assert convert.needs == {"pretrain": pretrained[2]}
    assert convert.config["change"] == {"to": "tisa:kernels=3", "mode": "supplement", "start": "fit"}
    assert {job.needs["pretrain"] for job in (held_out, *further)} == {convert.key}
    steps = {each.task: each.job.config["optimisation"]["steps"] for each in of if each.task}
    assert steps == {"10M tokens": 361, "50M tokens": 1805}
    control = [each.job for each in planned if each.row == "control" and each.task]
    assert {job.needs["pretrain"] for job in control} == set(pretrained.values())
    alibi = next(each.job for each in planned if each.row == "replace alibi" and each.job.kind == "convert")
    assert alibi.config["change"] == {"to": "alibi", "mode": "replace"}


def test_a_pretraining_of_the_league_can_be_stopped_after_minutes(data):
    pretraining = find_plan("league", "gpu", data).pretrain
    assert pretraining.intervals.checkpoint < pretraining.optimisation.steps / 10


@pytest.fixture
def bert(tmp_path):
    """A pretrained BERT without a head for masked words, as encoders of sentences are."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz."
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "vocab.txt").write_text("\n".join(words))
    folder = tmp_path / "bert"
    BertTokenizerFast.from_pretrained(tmp_path / "words").save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=64, **sizes)).save_pretrained(folder)
    return folder


def test_a_given_model_gets_a_head_learns_words_and_is_converted(bert, tmp_path):
    plan = find_plan("league-conversion", models=(str(bert),))
    assert plan.rates is None and plan.pretrain.text.tokenizer == str(bert)
    text = replace(plan.pretrain.text, corpus=("builtin:300",), length=16, evaluation_rows=16)
    short = {"steps": 3, "batch": 4, "compile": False}
    plan = replace(
        plan,
        pretrain=replace(plan.pretrain, text=text, optimisation=replace(plan.pretrain.optimisation, **short)),
        further={name: replace(each, **short) for name, each in plan.further.items()},
        seeds=(0,),
    )
    rows = ("control", "replace tisa, S = 3", "supplement alibi")
    made = {each.job.key: each.job for each in jobs(plan) if each.row in (None, *rows)}
    kinds_made = [job.kind for job in made.values()]
    assert "pretrain" not in kinds_made and kinds_made.count("masked-words") == 1 and kinds_made.count("convert") == 2
    store, results = Store(tmp_path / "jobs"), {}
    for job in made.values():
        folder = store.write_request(job)
        inputs = {name: tmp_path / "jobs" / key for name, key in job.needs.items()}
        result = kinds.KINDS[job.kind](job.config, inputs, folder)
        write_json(folder / "result.json", {"key": job.key, "result": result, "seconds": 1.0})
        results[job.label] = result
    assert results["loss of control"]["evaluation_loss"] > 0
    of = {each.row: each.job.needs["pretrain"] for each in jobs(plan) if each.job.kind == "held-out"}
    trained = next(key for key, job in made.items() if job.label == "train the given model on masked words")
    assert of["control"] == trained and len({of[row] for row in rows}) == 3
    converted = read_json(tmp_path / "jobs" / of["replace tisa, S = 3"] / "run" / "model" / "config.json")
    assert converted["architectures"] == ["ConvertedBertForMaskedLM"]


def test_one_model_is_converted_at_a_time_and_other_plans_take_none():
    with pytest.raises(ValueError, match="expected one model to convert, got a, b"):
        find_plan("league-conversion", models=("a", "b"))
    with pytest.raises(ValueError, match="only the plans tisa-models and league-conversion"):
        find_plan("league", models=("a",))


def test_the_larger_encoder_has_the_rates_of_the_league(data):
    league = {each.job.key: each.job for each in jobs(find_plan("league", "gpu", data))}
    planned = jobs(find_plan("league-base", "gpu", data))
    tried = {each.job.key for each in planned if each.job.kind == "trial"}
    assert tried < set(league) and {each.row for each in planned if each.row} == {"learned", "rope", "t5", "diet-rel"}
    pretrained = [each.job for each in planned if each.job.kind == "pretrain"]
    assert {job.config["model"]["preset"] for job in pretrained} == {"bert-base"} and len(pretrained) == 8
    assert {job.config["optimisation"]["steps"] for job in pretrained} == {round(650e6 / 27_700)}
    choice = next(each.job for each in planned if each.job.kind == "rates")
    assert choice.config["share"] == 0.2 and set(choice.reads.values()) <= tried
    assert "four encodings" in PAGE and "650M" in PAGE and "a fifth" in PAGE


def test_a_share_of_the_chosen_rate_is_taken(tmp_path):
    write_json(tmp_path / "0.json", {"evaluation_loss": 3.0, "tokens": 100})
    found = kinds.rates({"pairs": [[1e-3, 3.0]], "share": 0.2}, {"0": tmp_path / "0.json"}, tmp_path)
    assert found["learning_rate"] == pytest.approx(2e-4) and found["position_rate"] == 3.0
    assert found["tried"][0]["learning_rate"] == 1e-3
    with pytest.raises(ValueError, match="share: expected"):
        RateGrid(rates=(1e-3,), position_rates=(1.0,), steps=1, share=0.0)
    plan = find_plan("league")
    with pytest.raises(ValueError, match="those of the grid are of another"):
        replace(plan, rates=replace(plan.rates, model=plan.pretrain.model))


def test_translation_has_eight_seeds_on_two_corpora(tmp_path):
    for folder in ("translation", "translation/europarl"):
        (tmp_path / folder).mkdir(exist_ok=True)
        for split in ("train", "dev", "test"):
            for language in ("en", "de"):
                (tmp_path / folder / f"{split}.{language}").write_text("one\n")
    planned = [each for each in jobs(find_plan("league-translation", "gpu", str(tmp_path))) if each.row]
    assert len(planned) == 12 * 8 * 2 and len({each.job.key for each in planned}) == len(planned)
    assert {each.row for each in planned} >= {"k = 256", "keys alone", "values alone", "neither"}
    europarl = next(each.job.config for each in planned if each.task == "Europarl")
    assert europarl["optimisation"]["steps"] == 4500 and "translation/europarl/train.en" in europarl["data"]["source"]


def test_rows_bring_the_jobs_of_other_rows_that_they_need(tmp_path):
    asked = Study(find_plan("league-conversion"), tmp_path / "study", gpu=False)
    lines = asked.outline(1, ("replace alibi",))
    assert any("pretrain control, seed 1" in line for line in lines) and any(
        "choose the rates" in line for line in lines
    )
    assert not any("tisa" in line for line in lines)


def test_rows_without_parameters_of_positions_try_learning_rates_alone():
    plan = find_plan("league")
    tried = [each for each in jobs(plan) if each.job.kind == "trial"]
    assert {each.row: sum(other.row == each.row for other in tried) for each in tried} == {
        "none": 2, "rope": 2, "learned": 4, "tisa": 4, "diet-rel": 4
    }  # fmt: skip


def test_text_that_is_missing_or_there_twice_is_refused(data):
    (Path(data) / "corpus" / "en-wiki-00.txt.xz").write_bytes(b"")
    with pytest.raises(ValueError, match="got en-wiki-00 in several files"):
        wikipedia(data)
    for path in (Path(data) / "corpus").glob("en-wiki-0*"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match="at least two files"):
        wikipedia(data)


def test_the_lowest_loss_is_chosen_and_an_end_of_the_grid_is_named(tmp_path):
    losses = {(1e-3, 1.0): 3.0, (1e-3, 3.0): 2.5, (2e-3, 1.0): None, (2e-3, 3.0): 2.6}
    inputs = {}
    for number, loss in enumerate(losses.values()):
        inputs[str(number)] = tmp_path / f"{number}.json"
        write_json(inputs[str(number)], {"evaluation_loss": loss, "tokens": 100})
    found = kinds.rates({"pairs": [list(pair) for pair in losses]}, inputs, tmp_path)
    assert (found["learning_rate"], found["position_rate"], found["loss"], found["tokens"]) == (1e-3, 3.0, 2.5, 100)
    assert found["at_an_end"] == ["learning_rate", "position_rate"]
    assert [each["loss"] for each in found["tried"]] == list(losses.values())
    with pytest.raises(ValueError, match="diverged with every pair"):
        kinds.rates({"pairs": [[2e-3, 1.0]]}, {"0": inputs["2"]}, tmp_path)


def test_a_trial_that_diverges_is_a_result_and_no_failure(tmp_path, monkeypatch):
    def diverges(config, inputs, folder):
        raise Diverged("training: the loss became NaN")

    monkeypatch.setattr(kinds, "pretrain", diverges)
    assert kinds.trial({}, {}, tmp_path)["evaluation_loss"] is None


def test_pretraining_goes_on_at_the_chosen_rates(tmp_path):
    plan = find_plan("league")
    text = replace(plan.pretrain.text, corpus=("builtin:200",), evaluation_rows=16)
    changes = {**plan.pretrain.model.changes, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = replace(
        plan.pretrain,
        text=text,
        model=replace(plan.pretrain.model, changes=changes),
        optimisation=replace(plan.pretrain.optimisation, steps=4, batch=4, compile=False),
    )
    plan = replace(
        plan, pretrain=config, rates=RateGrid(rates=(1e-6, 3e-3), position_rates=(1.0,), steps=6), seeds=(0,)
    )
    made = {each.job.key: each.job for each in jobs(plan) if each.row in (None, "rope")}
    store = Store(tmp_path)
    for job in made.values():
        if job.kind in ("text", "trial", "rates", "pretrain"):
            folder = store.write_request(job)
            inputs = {name: tmp_path / key for name, key in job.needs.items()}
            inputs |= {name: folder / "read" / f"{name}.json" for name in job.reads}
            result = kinds.KINDS[job.kind](job.config, inputs, folder)
            write_json(folder / "result.json", {"key": job.key, "result": result, "seconds": 1.0})
            if job.kind == "trial":
                assert not (folder / "run" / "model").exists() and not (folder / "run" / "checkpoints").exists()
            if job.kind == "pretrain":
                run = read_json(folder / "run" / "config.json")["config"]["optimisation"]
                assert (run["learning_rate"], run["position_rate"]) == (3e-3, 1.0)
                assert (result["learning_rate"], result["steps"]) == (3e-3, 4)
                assert (folder / "run" / "model").is_dir()


def loss_of(row: str, seed: int) -> float:
    return {"none": 4.1, "learned": 3.0, "rope": 2.5, "tisa": 2.9, "diet-rel": 2.4}[row] + 0.05 * seed


@pytest.fixture
def results(tmp_path):
    """Results of a league whose jobs were never run, with numbers that are easy to follow."""
    plan = replace(find_plan("league"), finetune={}, columns=tuple(
        column for column in find_plan("league").columns if column.source not in ("finetune", "lengths")
    ))  # fmt: skip
    planned, records = jobs(plan), {}
    for each in planned:
        if each.job.kind == "pretrain":
            loss = loss_of(each.row, each.seed)
            result = {
                "evaluation_loss": loss, "masked_accuracy": 0.5, "tokens": 8000, "steps": 800, "parameters": 1,
                "seconds": 1.0, "tokens_per_second": 1.0, "learning_rate": 1e-3, "position_rate": 1.0,
                "curves": {"loss": [], "evaluation_loss": [[400, loss + 0.9], [800, loss]]},
            }  # fmt: skip
        elif each.job.kind == "rates":
            tried = [{"learning_rate": rate, "position_rate": 1.0, "loss": loss, "tokens": 2000}
                     for rate, loss in ((1e-3, loss_of(each.row, 0) + 0.5), (3e-3, None))]  # fmt: skip
            result = {**tried[0], "at_an_end": ["learning_rate"], "tried": tried}
        elif each.job.kind == "minimal-pairs":
            result = {"all": {"accuracy": 0.7}, "phenomena": {"word order": {"accuracy": 0.6}}, "sources": []}
        elif each.job.kind == "cost":
            times = {"rope": 1.2, "tisa": 2.0}
            result = {
                "measurements": [
                    {
                        "row": str(row.position), "model": "tiny", "length": length, "batch": 1, "parameters": 1,
                        "problem": None, "ratios": {"training": None},
                        "training": {
                            "seconds": [times.get(row.name, 1.0) * length / 64] * 3, "flops": 1.0, "peak_bytes": None
                        },
                    }
                    for row in plan.rows for length in (64, 128)
                ],
                "config": {"modes": ["training"]},
                "environment": {},
            }  # fmt: skip
        else:
            continue
        records[each.job.key] = {"key": each.job.key, "result": result, "seconds": 1.0}
    write_records(tmp_path / "kept", records)
    runner = Runner([each.job for each in planned], Store(tmp_path / "jobs", kept=tmp_path / "kept"))
    return plan, planned, runner


def cells(results, name):
    plan, planned, runner = results
    column = next(each for each in plan.columns if each.name == name)
    finished = [(each, found) for each in planned if (found := runner.progress[each.job.key].result) is not None]
    return {
        row.name: read_cell(plan, row, column, [pair for pair in finished if pair[0].row in (row.name, None)])
        for row in plan.rows
    }


def test_tokens_until_the_plateau_is_left(results):
    found = cells(results, "Off the plateau")
    assert found["rope"].values == {"0": 4.0, "1": 4.0}, "3.4 after 400 of 800 steps, and 8,000 tokens in all"
    assert found["learned"].values == {"0": 8.0, "1": 8.0}
    assert found["none"].values == {} and found["none"].expected == 2


def test_the_loss_at_equal_time_follows_the_slope_of_the_two_trainings(results):
    found = cells(results, "Loss at equal time")
    assert found["learned"].values == pytest.approx({"0": 3.0, "1": 3.05})
    slope = -0.5 / math.log(4)  # from 2,000 to 8,000 tokens
    assert found["rope"].values["0"] == pytest.approx(2.5 - slope * math.log(1.2))
    assert found["rope"].values["1"] > found["rope"].values["0"] > 2.5, "a slower step has read less"
    assert (found["tisa"].values, found["tisa"].expected) == ({}, 0), "twice the time is beyond what a slope says"


def test_minimal_pairs_and_times_are_read(results):
    assert cells(results, "Minimal pairs")["rope"].values == pytest.approx({"0": 70.0, "1": 70.0})
    assert set(cells(results, "Time, 64 tokens")["rope"].values.values()) == {1.2}


def test_intervals_leave_out_of_the_deviation_what_is_stuck(results, tmp_path):
    plan, planned, runner = results
    found = collect_results(plan, planned, runner.progress, command="headway study league", places={})
    assert found["study"]["stuck"] == {"none": 2}
    at = [column["name"] for column in found["columns"]].index("Loss")
    values = {row.name: [loss_of(row.name, seed) for seed in plan.seeds] for row in plan.rows}
    pooled = pooled_deviation([each for row, each in values.items() if row != "none"])
    expected = simultaneous_intervals(
        {"rope": values["rope"]}, values["learned"], pooled=pooled, comparisons=len(plan.rows) - 1
    )["rope"]
    cell = found["cells"][at]["rope"]
    assert cell["interval"] == pytest.approx({"difference": -0.5, "half_width": expected.half_width})
    assert cell["test"] is None and found["cells"][at]["learned"]["interval"] is None
    assert verdict_mark(cell) == "▼" and write_interval(cell, found["columns"][at]).startswith("−0.500 ± 0.")
    assert any("none (2)" in line for line in notes(found))
    timed = [column["name"] for column in found["columns"]].index("Time, 64 tokens")
    assert found["cells"][timed]["rope"]["interval"] is None, "rounds of timing are not seeds"
    page = study_page(found, tmp_path / "report.html").read_text()
    for text in ("Learning rates", "diverged", "is at an end of the grid", "−0.500 ±", "none (2)"):
        assert text in page


def test_a_plan_says_what_its_grid_needs():
    plan = find_plan("league")
    with pytest.raises(ValueError, match="rates, cost"):
        replace(plan, cost=None)
    with pytest.raises(ValueError, match="name no position_rate"):
        replace(plan, rows=(*plan.rows[1:], replace(plan.rows[0], position_rate=3.0)))
    with pytest.raises(ValueError, match="rising numbers above 0"):
        RateGrid(rates=(2e-3, 1e-3), position_rates=(1.0,), steps=1)
    wrong = replace(next(each for each in plan.columns if each.value.startswith("below/")), value="below/much")
    with pytest.raises(ValueError, match="expected below/LOSS"):
        replace(plan, columns=(wrong,))
