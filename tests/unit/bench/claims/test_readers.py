"""Readers of committed results: strict about what is there, calm about what is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.bench.claims.readers import read_results
from headway.bench.claims.settings import Setting, complete_choice
from headway.encodings import EncodingChoice


def write(path: Path, value) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def run_config(encoding="learned", *, seed=0, steps=100, **model):
    optimisation = {"steps": steps, "batch": 8, "learning_rate": 1e-3, "position_rate": 1.0, "bf16": True}
    choice = {"preset": "bert-small", "encoding": encoding, "sharing": None, "segments": "none", "options": {}}
    text = {"length": 128, "packed": False, "mask_probability": 0.15, "data": "x/wiki"}
    model = {**choice, "changes": {}, **model}
    return {"config": {"model": model, "text": text, "optimisation": optimisation, "intervals": {}, "seed": seed}}


def pretraining(root, name, loss=3.0, **config):
    folder = root / "pretraining_wiki" / name
    write(folder / "config.json", run_config(**config))
    write(folder / "result.json", {"tokens": 5e6, "evaluation_loss": loss, "parameters": 1000})
    return folder


def finetuning(root, name, task, scores, *, model=None, segments=None, kind="glue", transfer=None, file="result.json"):
    folder = root / f"{kind}_wiki" / name / task
    config = {
        "task": task, "start": {"model": model or f"runs/{name}/model", "segments": segments}, "data": {"limit": None},
        "grid": {"rates": [1e-4], "seeds": [0, 1]}, "protocol": {"epochs": 4, "length": 128, "bf16": True},
    }  # fmt: skip
    write(folder / "config.json", {"config": config})
    runs = [{"rate": 1e-4, "seed": seed, "transfer": transfer or {}} for seed in range(len(scores))]
    runs.append({"rate": 9e-4, "seed": 0, "transfer": {}})  # of a rate that was not the best
    rates = [{"rate": 1e-4, "scores": {str(seed): score for seed, score in enumerate(scores)}}, {"rate": 9e-4}]
    write(folder / file, {"task": task, "rates": rates, "runs": runs})


def setting(text):
    return Setting(complete_choice(EncodingChoice.parse(text)))


def of(results, measure):
    return [sample for sample in results.samples if sample.measure == measure]


def test_an_empty_folder_has_no_results_and_an_unknown_one_is_an_error(tmp_path):
    assert read_results(tmp_path).samples == ()
    with pytest.raises(FileNotFoundError, match=r"results: expected a folder of results, got .*nowhere.*--results"):
        read_results(tmp_path / "nowhere")


def test_the_encoding_is_read_from_the_configuration_not_from_the_name(tmp_path):
    pretraining(tmp_path, "shaw", encoding="diet-abs", sharing="layer", options={"rank": 128})
    (sample,) = of(read_results(tmp_path), "loss")
    assert sample.setting == setting("diet-abs:rank=128,sharing=layer")
    assert (sample.value, sample.unit, sample.rate) == (3.0, "seed 0", 1.0)
    assert "bert-small, 5M tokens (100 steps of 8 sequences of 128)" in sample.scale


def test_runs_that_differ_in_encoding_and_seed_alone_are_of_one_group(tmp_path):
    pretraining(tmp_path, "a")
    pretraining(tmp_path, "b", encoding="tisa", options={"kernels": 1}, seed=3)
    pretraining(tmp_path, "c", steps=200)
    pretraining(tmp_path, "d", preset="bert-base")
    groups = [sample.group for sample in of(read_results(tmp_path), "loss")]
    assert groups[0] == groups[1] and len(set(groups)) == 3


def test_a_run_that_is_not_finished_is_absent(tmp_path):
    (pretraining(tmp_path, "learned") / "result.json").unlink()
    assert read_results(tmp_path).samples == ()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: write(f / "result.json", "{"), r"learned/result.json: expected JSON"),
        (
            lambda f: write(f / "result.json", {"tokens": 1}),
            r"learned/result.json: .* lacks it \(KeyError: 'evaluation_",
        ),
        (lambda f: write(f / "config.json", {"config": {}}), r"learned/config.json: .* lacks it \(KeyError: 'model'"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, damage, message):
    damage(pretraining(tmp_path, "learned"))
    with pytest.raises(ValueError, match=message):
        read_results(tmp_path)


def test_fine_tuning_is_of_the_best_rate_by_seed(tmp_path):
    pretraining(tmp_path, "diet-rel", encoding="diet-rel", loss=2.5)
    finetuning(tmp_path, "diet-rel", "stsb", [0.6, 0.7])
    finetuning(tmp_path, "diet-rel", "cola", [0.5, 0.5], segments="input", file="summary.json")
    samples = of(read_results(tmp_path), "glue")
    assert [(s.block, s.value, s.unit) for s in samples if s.block == "stsb"] == [
        ("stsb", pytest.approx(60.0), "seed 0.0"),
        ("stsb", pytest.approx(70.0), "seed 0.1"),
    ]
    assert {s.block: s.segments for s in samples} == {"stsb": "per-head", "cola": None}
    assert {s.merit for s in samples} == {-2.5}


def test_a_fine_tuned_model_is_found_by_name_or_by_its_configuration(tmp_path):
    pretraining(tmp_path, "diet-rel", encoding="diet-rel")
    finetuning(tmp_path, "diet-rel-input-segments", "stsb", [0.6], model="/x/diet-rel/model", segments="input")
    finetuning(tmp_path, "stranger", "stsb", [0.9])
    found = read_results(tmp_path)
    (sample,) = of(found, "glue")
    assert sample.setting == setting("diet-rel") and sample.segments == "input"
    assert len(found.notes) == 1 and "stranger" in found.notes[0] and "no pretraining run" in found.notes[0]


def test_transfer_is_the_mean_over_languages_and_metrics(tmp_path):
    pretraining(tmp_path, "t5", encoding="t5")
    transfer = {"xquad": {"de": {"score": 9.0, "f1": 0.6, "exact_match": 0.4}, "zh": {"f1": 0.4, "exact_match": 0.2}}}
    finetuning(tmp_path, "t5", "squad", [0.8], kind="xtreme", transfer=transfer)
    (sample,) = of(read_results(tmp_path), "xtreme")
    assert (sample.block, sample.value) == ("xquad", pytest.approx(40.0))


def test_xnli_counts_as_xtreme_and_alone(tmp_path):
    pretraining(tmp_path, "t5", encoding="t5")
    transfer = {"xnli": {"de": {"score": 9.0, "accuracy": 0.6}, "zh": {"accuracy": 0.4}}}
    finetuning(tmp_path, "t5", "xnli", [0.8], kind="xtreme", transfer=transfer)
    found = read_results(tmp_path)
    assert [s.value for name in ("xtreme", "xnli") for s in of(found, name)] == [pytest.approx(50.0)] * 2


def measures(table=None, ranks=None):
    heads = {"r2": [[0.1, 0.2], [0.3, None]], "r2_without_first": [[0.5, 0.6], [0.7, 0.8]]}
    texts = None if ranks is None else {"ranks": {"average": ranks}}
    return {"table": table, "heads": heads, "texts": texts}


def test_analyses_give_numbers_of_heads_and_tables(tmp_path):
    pretraining(tmp_path, "learned")
    table = {"r2": 0.8, "r2_without_first": 0.9, "r2_off_diagonal": 0.7, "cosines": {"mean": 0.25}}
    kind = {"numerical": [[64.0, 63.0], [1.0, 1.0]], "relative": [[20.0, 10.0], [1.0, 1.0]]}
    write(tmp_path / "analysis/learned/measures.json", measures(table, {"whole": kind, "positions": kind}))
    found = read_results(tmp_path)
    assert [s.value for s in of(found, "head r2")] == [0.1, 0.2, 0.3]  # null is left out
    assert [s.value for s in of(found, "score rank")] == [64.0, 63.0]  # the first layer alone
    assert [s.value for s in of(found, "position rank")] == [20.0, 10.0]
    assert [s.value for name in ("table r2 off the diagonal", "cosine") for s in of(found, name)] == [0.7, 0.25]
    assert not of(found, "table r2, most steps")  # one run shows no trend


@pytest.mark.parametrize(
    ("encoding", "sharing", "counted"),
    [
        ("diet-abs", "none", [0.1, 0.2, 0.3]),
        ("diet-abs", "layer", [0.1, 0.2]),
        ("diet-abs", "head", [0.1, 0.3]),
        ("tupe-abs", None, [0.1, 0.2]),  # which shares by layers of its own accord
        ("learned+diet-abs", "layer", [0.1, 0.2, 0.3]),
    ],
)
def test_position_scores_that_layers_or_heads_share_count_once(encoding, sharing, counted, tmp_path):
    pretraining(tmp_path, "run", encoding=encoding, sharing=sharing)
    kind = {"numerical": [[64.0, 63.0]], "relative": [[20.0, 20.0]]}
    write(tmp_path / "analysis/run/measures.json", measures(None, {"whole": kind, "positions": kind}))
    found = read_results(tmp_path)
    assert [s.value for s in of(found, "head r2")] == counted
    assert len(of(found, "position rank")) == (1 if sharing == "head" else 2)
    assert len(of(found, "score rank")) == 2  # words' own


def test_a_trend_is_between_the_shortest_and_the_longest_run(tmp_path):
    for steps, r2 in ((500, 0.2), (100, 0.1), (900, 0.6)):
        pretraining(tmp_path, f"learned-{steps}", steps=steps)
        table = {"r2": 0.0, "r2_without_first": 0.0, "r2_off_diagonal": r2, "cosines": {"mean": 0.0}}
        write(tmp_path / f"analysis/learned-{steps}/measures.json", measures(table))
    found = read_results(tmp_path)
    (short,), (long,) = of(found, "table r2, fewest steps"), of(found, "table r2, most steps")
    assert (short.value, long.value) == (0.1, 0.6)
    assert short.group == long.group and "100 and 900 steps" in long.scale


def test_losses_by_length_are_multiples_of_the_length_of_training(tmp_path):
    pretraining(tmp_path, "tisa", encoding="tisa")
    write(tmp_path / "lengths_wiki/tisa.json", {"losses": {"128": 3.0, "256": 3.1, "300": 9.0, "1024": None}})
    found = [s for s in read_results(tmp_path).samples if "length" in s.measure]
    assert {s.measure: s.value for s in found} == {"loss at 1 x length": 3.0, "loss at 2 x length": 3.1}


def translated(root, systems, rows=()):
    for name, encoding in (("sin", "sinusoidal"), ("shaw-a", "shaw")):
        config = run_config(encoding)["config"]
        config["optimisation"]["step_tokens"] = 1000
        write(root / "translation/multi30k" / name / "config.json", {"config": {**config, "data": {}}})
    scores = {name: {"bleu": bleu, "bleu_signature": "s", "sentences": 9} for name, bleu in systems.items()}
    record = {"systems": scores, "bootstrap": {"samples": 1000, "rows": list(rows)}}
    return write(root / "translation/multi30k/scores.json", record)


def test_translations_are_of_the_run_whose_folder_or_name_they_have(tmp_path):
    translated(tmp_path, {"runs/sin/test.hyp": 30.0, "out/shaw-a.hyp": 31.0, "who.hyp": 5.0})
    found = read_results(tmp_path)
    assert {s.setting.encoding.name: s.value for s in of(found, "bleu")} == {"sinusoidal": 30.0, "shaw": 31.0}
    assert len(found.notes) == 1 and "who.hyp" in found.notes[0]


def test_the_paired_bootstrap_gives_the_interval_of_a_difference(tmp_path):
    row = {"metric": "BLEU", "mean": 0.0, "interval": 0.6}
    first = {**row, "system": "sin.hyp", "score": 30.0, "p_value": None}
    second = {**row, "system": "shaw-a.hyp", "score": 31.0, "p_value": 0.05}
    translated(tmp_path, {"sin.hyp": 30.0, "shaw-a.hyp": 31.0}, [first, second])
    assert read_results(tmp_path).errors["shaw-a", "sin", "multi30k"] == pytest.approx(1.0)  # 5 %: 0 is its end
    translated(tmp_path, {"sin.hyp": 30.0, "shaw-a.hyp": 30.0}, [first, {**second, "score": 30.0, "p_value": 1.0}])
    assert read_results(tmp_path).errors["sin", "shaw-a", "multi30k"] == pytest.approx(0.6 * 2**0.5)


def test_costs_are_rounds_of_rows(tmp_path):
    timing = {"seconds": [0.001, 0.002]}
    rows = [
        {"row": row, "model": "bert-base", "length": 128, "training": timing, "inference": None}
        for row in ("transformers", "learned", "diet-abs:rank=64:sharing=layer", "shaw:values=false")
    ]
    record = {"measurements": rows, "environment": {"gpu": "G", "torch": "2"}}
    write(tmp_path / "benchmarks/results/pretraining_n128_g_2026-01-02.json", record)
    for name in ("other_2026-01-03", "other_2026-01-03_2", "other"):  # of a day twice; without a date
        write(tmp_path / f"results/cost/{name}.json", record)
    found = of(read_results(tmp_path / "results"), "training time")
    assert len(found) == 4 * 3 * 2  # files, rows that are ours, rounds
    newest = sorted({(s.size, Path(s.source).stem) for s in found})
    assert [size for size, _ in newest[:3]] == [0.0, 20260102.0, 20260103.0]
    assert newest[3][1] == "other_2026-01-03_2" and newest[3][0] > 20260103.0
    assert setting("diet-abs:rank=64,sharing=layer") in {s.setting for s in found}
    assert setting("shaw:values=false") in {s.setting for s in found}
    assert [s.value for s in found[:2]] == [1.0, 2.0]


def study_results(size="gpu"):
    row = {"sharing": None, "options": {}, "changes": {}, "segments": "input", "position_rate": 10.0}
    columns = [
        {"name": "Loss", "source": "pretrain", "value": "evaluation_loss", "task": ""},
        {"name": "Named", "source": "pretrain", "value": "masked_accuracy", "task": ""},
        {"name": "STS-B", "source": "finetune", "value": "score", "task": "stsb"},
        {"name": "256 tokens", "source": "lengths", "value": "256", "task": ""},
        {"name": "Avg", "source": "mean", "value": "", "task": "STS-B"},
    ]
    return {
        "study": {"name": "encodings", "size": size},
        "rows": [{**row, "name": "t", "encoding": "tisa"}],
        "columns": columns,
        "cells": [{"t": {"values": {"0": value, "1": value + 1}}} for value in (3.0, 0.4, 60.0, 3.5, 60.0)],
        "recipes": {"pretraining": {"text": {"length": 128}, "model": {"preset": "bert-small"}}},
        "pretraining": [{"row": "t", "seed": 0, "tokens": 7e6, "evaluation_loss": 3.0}],
        "analysis": {"t": {"toeplitz_r2": [[1.0, 1.0]], "ranks": {"positions": {"relative": [[5.0, 6.0]]}}}},
    }


def test_studies_give_the_seeds_of_their_cells(tmp_path):
    write(tmp_path / "studies/encodings-gpu/results.json", study_results())
    found = read_results(tmp_path)
    values = {name: [(s.unit, s.value) for s in of(found, name)] for name in ("loss", "glue", "loss at 2 x length")}
    assert values == {
        "loss": [("seed 0", 3.0), ("seed 1", 4.0)],
        "glue": [("seed 0", 60.0), ("seed 1", 61.0)],
        "loss at 2 x length": [("seed 0", 3.5), ("seed 1", 4.5)],
    }
    assert [s.segments for s in of(found, "glue")] == ["input"] * 2
    assert {s.rate for s in found.samples} == {10.0} and "bert-small, 7M tokens" in found.samples[0].scale
    assert [s.value for s in of(found, "position rank")] == [5.0, 6.0]


def test_probes_and_tasks_at_chance_and_further_trainings_are_no_benchmarks(tmp_path):
    study = study_results()
    read = [("stsb", "score"), ("xnli", "transfer/xnli/accuracy"), ("squad", "transfer/mlqa/f1")]
    others = [("probe:swap", "transfer/probe:swap/accuracy"), ("squad", "dev/f1"), ("rte", "score"), ("mrpc", "score")]
    columns = [
        *({"name": task, "source": "finetune", "task": task, "value": value} for task, value in (*read, *others)),
        {"name": "256 tokens, trained on", "source": "lengths", "value": "256", "task": "longer"},
    ]
    cells = [{"t": {"values": {"0": 50.0}}} for _ in columns]
    write(tmp_path / "studies/league/results.json", {**study, "columns": columns, "cells": cells})
    found = read_results(tmp_path)
    assert [s.block for s in of(found, "glue")] == ["stsb"]
    assert [s.block for s in of(found, "xtreme")] == ["xnli", "squad"] and len(of(found, "xnli")) == 1
    assert of(found, "loss at 2 x length") == []


def test_the_rate_that_a_row_chose_is_its_rate(tmp_path):
    study = study_results()
    study["pretraining"][0] |= {"learning_rate": 1e-3, "position_rate": 3.0}
    write(tmp_path / "studies/league/results.json", study)
    assert {(s.rate, s.rate_chosen) for s in of(read_results(tmp_path), "loss")} == {(3.0, True)}


def test_the_built_in_language_decides_nothing(tmp_path):
    write(tmp_path / "studies/quick/results.json", study_results("quick"))
    found = read_results(tmp_path)
    assert found.samples == () and "built-in language" in found.notes[0]
