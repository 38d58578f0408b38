"""The tables of translation at size paper, held against the numbers of the papers, which are written out here."""

from __future__ import annotations

import gzip

import pytest

from headway.bench.report.study.tables import as_markdown
from headway.bench.study.cells import Cell
from headway.bench.study.collect import collect_results, relative_cells
from headway.bench.study.graph import jobs
from headway.bench.study.plans import find_plan
from headway.bench.study.runner import Progress

# Chen et al. (2021b), Table 4: SacreBLEU on newstest 2018.
DIET_4 = {
    "Vaswani et al. (sinusoidal)": {"EN-DE": 39.00, "DE-EN": 38.42, "EN-CS": 18.55, "CS-EN": 22.93},
    "Shaw et al.": {"EN-DE": 40.10, "DE-EN": 38.90, "EN-CS": 18.74, "CS-EN": 23.89},
    "DIET-REL": {"EN-DE": 39.47, "DE-EN": 38.49, "EN-CS": 18.68, "CS-EN": 23.93},
}
# Shaw et al. (2018), Table 1: BLEU on newstest2014; the percentage is Sec. 3.3's decrease in steps per second.
SHAW_1 = {
    "Vaswani et al. (sinusoidal)": {"EN-DE": 26.5, "EN-FR": 38.2},
    "Shaw et al.": {"EN-DE": 26.8, "EN-FR": 38.7, "EN-DE steps/s, %": -7},
    "big, sinusoidal": {"EN-DE": 27.9, "EN-FR": 41.2},
    "big, Shaw et al.": {"EN-DE": 29.2, "EN-FR": 41.5, "EN-DE steps/s, %": -7},
}


def figures(plan):
    return {row.name: dict(row.published) for row in plan.rows if row.published}


def columns(plan):
    return {column.name: (column.task, column.value) for column in plan.columns}


def encodings(plan):
    return {row.name: str(row.position) for row in plan.rows}


def test_table_4_of_chen_et_al():
    """Sec. 4.3: both directions of English-German and English-Czech, newstest 2018, SacreBLEU with default settings."""
    plan = find_plan("translation", "paper")
    published = figures(plan)
    assert {name: published[name] for name in DIET_4} == DIET_4
    assert columns(plan) == {task: (task, "newstest2018/bleu") for task in ("EN-DE", "DE-EN", "EN-CS", "CS-EN")}
    assert {column.digits for column in plan.columns} == {2}  # as the table prints them
    assert plan.seeds == (0,) and plan.baseline == "Vaswani et al. (sinusoidal)"
    for task, config in plan.translate.items():
        source, target = task.lower().split("-")
        assert config.data.languages == f"{source}-{target}"
        assert config.optimisation.steps == 250_000  # App. A
        assert (config.decoding.beam, config.decoding.length_penalty) == (10, 0.6)  # App. A
        assert not config.decoding.sample and not config.lowercase
        model = config.model.config()
        assert (model.encoder_layers, model.decoder_layers) == (6, 6)  # Sec. 4.3
        # Sec. 4.3 follows Vaswani et al. (2017) "closely": there Table 3 (base), Secs. 5.1, 5.3, 5.4 and 6.1.
        assert (model.hidden_size, model.intermediate_size, model.num_attention_heads) == (512, 2048, 8)
        assert (model.hidden_dropout_prob, model.label_smoothing) == (0.1, 0.1)
        plan_of_steps = config.resolved("cuda").optimisation
        assert (plan_of_steps.step_tokens, plan_of_steps.warmup) == (25_000, 4000)
        assert (plan_of_steps.betas, plan_of_steps.epsilon) == ((0.9, 0.98), 1e-9)
        assert plan_of_steps.learning_rate == pytest.approx((512 * 4000) ** -0.5)
        assert (config.save, config.average) == ("average", 5)


def test_the_table_says_how_bleu_was_computed():
    plan = find_plan("translation", "paper")
    planned = jobs(plan)
    signatures = {"EN-DE": "nrefs:1|case:mixed|version:2", "DE-EN": "nrefs:1|case:mixed|version:2", "EN-CS": "other"}
    progress = {each.job.key: Progress(job=each.job) for each in planned}
    for each in planned:
        if each.job.kind == "translate" and each.task in signatures and each.row == plan.baseline:
            sets = {name: {"bleu": 1.0, "bleu_signature": name} for name in ("newstest2017", "dev")}
            scored = {"newstest2018": {"bleu": 20.0, "bleu_signature": signatures[each.task]}, **sets}
            progress[each.job.key].record = {"result": {"scores": scored}, "seconds": 1.0}
    results = collect_results(plan, planned, progress, command="c", places={"store": "jobs"})
    said = ["SacreBLEU of EN-DE, DE-EN: nrefs:1|case:mixed|version:2.", "SacreBLEU of EN-CS: other."]
    assert list(results["study"]["notes"]) == [*plan.notes, *said]
    assert said[0] in as_markdown(results) and "paper 39.00" in as_markdown(results)


def test_both_readings_of_all_attention_layers_are_rows():
    """App. A: changes of the encoding are "applied to all the attention layers both in the encoder and decoder"."""
    plan = find_plan("translation", "paper")
    assert encodings(plan)["DIET-REL"] == "diet-rel:sharing=none"
    assert encodings(plan)["Shaw et al."] == "shaw:clip=16,sharing=head"  # Sec. 4.4: shared over heads
    both = {name: [row for row in plan.rows if row.name.startswith(name)] for name in ("Shaw et al.", "DIET-REL")}
    for rows in both.values():
        assert [dict(row.changes) for row in rows] == [{}, {"cross": "same"}]
        assert len({row.encoding for row in rows}) == 1 and rows[0].published == rows[1].published
    trained = {each.row: each.job.config for each in jobs(plan) if each.job.kind == "translate"}
    assert trained["DIET-REL, to the source too"]["model"]["changes"] == {"cross": "same"}
    assert any("to the source" in choice for choice in plan.choices)


def test_table_1_of_shaw_et_al():
    plan = find_plan("shaw-translation", "paper")
    assert figures(plan) == SHAW_1
    assert columns(plan) == {
        "EN-DE": ("EN-DE", "newstest2014/bleu"),
        "EN-FR": ("EN-FR", "newstest2014/bleu"),
        "EN-DE steps/s, %": ("EN-DE", "steps_per_second"),
    }
    assert encodings(plan) == {
        "Vaswani et al. (sinusoidal)": "sinusoidal",
        "Shaw et al.": "shaw:clip=16,sharing=none",  # Sec. 4.1: k = 16, unique per layer and head
        "big, sinusoidal": "sinusoidal",
        "big, Shaw et al.": "shaw:clip=8,sharing=head",  # Sec. 4.1: k = 8, unique per layer
        "sinusoidal + Shaw et al.": "sinusoidal+shaw:clip=16,sharing=none",  # Sec. 4.2, without figures
    }
    assert any("tokenised" in choice for choice in plan.choices)
    trained = [each for each in jobs(plan) if each.job.kind == "translate"]
    assert len(trained) == 2 * 5
    for each in trained:
        config, big = each.job.config, each.row.startswith("big")
        dropout = config["model"]["changes"].get("hidden_dropout_prob", 0.3 if big else 0.1)
        assert dropout == (0.3 if big and each.task == "EN-DE" else 0.1)  # Sec. 4.1
        assert config["optimisation"]["steps"] == (300_000 if big else 100_000)
        assert (config["save"], config["average"] if big else None) == (("average", 20) if big else ("last", None))
        assert config["data"]["languages"] == each.task.lower()
    text = [each.job.key for each in jobs(plan) if each.job.kind == "pairs"]
    assert len(set(text)) == 2, "base and big models train on the same pairs"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("EN-DE", (512, 1024, 8, 0.1)),
        ("EN-FR", (512, 1024, 8, 0.1)),
        ("EN-DE/big", (1024, 4096, 16, 0.3)),
        ("EN-FR/big", (1024, 4096, 16, 0.1)),
    ],
)
def test_the_models_of_section_4_1(name, sizes):
    config = find_plan("shaw-translation", "paper").translate[name]
    model = config.model.config()
    assert (model.encoder_layers, model.decoder_layers, model.head_dim) == (6, 6, 64)
    assert (
        model.hidden_size, model.intermediate_size, model.num_attention_heads, model.hidden_dropout_prob,
    ) == sizes  # fmt: skip
    assert model.label_smoothing == 0.1
    steps = config.resolved("cuda").optimisation
    assert (steps.tokens, steps.step_tokens, steps.warmup) == (4096, 25_000, 4000)
    assert (steps.betas, steps.epsilon) == ((0.9, 0.98), 1e-9)
    assert (config.decoding.beam, config.decoding.length_penalty) == (4, 0.6)
    assert config.data.vocab_size == 32_768


def test_tables_2_and_3_of_shaw_et_al_score_the_development_set():
    """Sec. 4.3: the base model without absolute positions, English to German, newstest2013."""
    clip, parts = find_plan("shaw-clip", "paper"), find_plan("shaw-parts", "paper")
    scores = {0: 12.5, 1: 25.5, 2: 25.8, 4: 25.9, 16: 25.8, 64: 25.9, 256: 25.8}
    assert figures(clip) == {f"k = {k}": {"EN-DE": score} for k, score in scores.items()}
    assert encodings(clip) == {f"k = {k}": f"shaw:clip={k},sharing=none" for k in scores}
    table_3 = {"keys and values": 25.8, "keys": 25.8, "values": 25.3, "neither": 12.5}
    assert figures(parts) == {name: {"EN-DE": score} for name, score in table_3.items()}
    rows = {row.name: row.choice for row in parts.rows}
    assert {name: (row.options.get("keys"), row.options.get("values")) for name, row in rows.items()} == {
        "keys and values": (True, True),
        "keys": (True, False),
        "values": (False, True),
        "neither": (None, None),
    }
    assert rows["neither"].name == "none"
    for plan in (clip, parts):
        assert columns(plan) == {"EN-DE": ("EN-DE", "newstest2013/bleu")}
        (config,) = plan.translate.values()
        assert list(config.data.test) == ["newstest2013"]
        assert config.optimisation.steps == 100_000 and config.save == "last" and config.decoding.beam == 4


# Where the text comes from.


@pytest.mark.parametrize(
    ("name", "year", "scored", "split"),
    [
        ("translation", "wmt18", "newstest2018", "test"),
        ("shaw-translation", "wmt14", "newstest2014", "test"),
        ("shaw-clip", "wmt14", "newstest2013", "validation"),
    ],
)
def test_the_hub_has_text_for_each_direction_and_the_set_that_is_scored(name, year, scored, split):
    pairs = {"EN-DE": "de-en", "DE-EN": "de-en", "EN-CS": "cs-en", "CS-EN": "cs-en", "EN-FR": "fr-en"}
    for key, config in find_plan(name, "paper").translate.items():
        pair = pairs[key.partition("/")[0]]
        assert config.data.source == f"hub:{year}:{pair}"
        assert config.data.test[scored] == f"hub:{year}:{pair}:{split}"
        assert config.data.dev_source == f"hub:{year}:{pair}:validation"


def write(folder, pair, names):
    (folder / "translation" / pair).mkdir(parents=True, exist_ok=True)
    for name in names:
        for side in pair.split("-"):
            (folder / "translation" / pair / f"{name}.{side}").write_text(f"{name} {side}\n")


WMT18_DE = ("europarl-v7.de-en", "commoncrawl.de-en", "news-commentary-v13.de-en")
WMT18_CS = ("europarl-v7.cs-en", "commoncrawl.cs-en", "news-commentary-v13.cs-en")


def test_each_direction_has_files_of_its_own(tmp_path):
    """App. A: Europarl v7, Common Crawl and News Commentary v13."""
    write(tmp_path, "de-en", [*WMT18_DE, "newstest2017", "newstest2018"])
    write(tmp_path, "cs-en", [*WMT18_CS, "newstest2017", "newstest2018"])
    packed = tmp_path / "translation" / "cs-en" / "commoncrawl.cs-en.cs"
    packed.with_name("commoncrawl.cs-en.cs.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    plan = find_plan("translation", "paper", str(tmp_path))
    for task, config in plan.translate.items():
        source, target = task.lower().split("-")
        pair, names = ("de-en", WMT18_DE) if "de" in (source, target) else ("cs-en", WMT18_CS)
        folder = tmp_path / "translation" / pair
        for side, found in ((source, config.data.source), (target, config.data.target)):
            assert [path.removesuffix(".gz") for path in found.split("+")] == [f"{folder}/{n}.{side}" for n in names]
        assert config.data.test["newstest2018"] == f"{folder}/newstest2018.{source},{folder}/newstest2018.{target}"
        assert config.data.dev_source == f"{folder}/newstest2017.{source}"
    assert ".gz" in plan.translate["EN-CS"].data.target
    assert len({each.job.key for each in jobs(plan) if each.job.kind == "pairs"}) == 4


@pytest.mark.parametrize(
    ("name", "key", "pair", "corpora", "sets"),
    [
        # Shaw et al. (2018), Sec. 4.1: WMT 2014; statmt.org/wmt14 lists these for the constrained task.
        ("shaw-translation", "EN-DE", "de-en", "europarl-v7 commoncrawl news-commentary-v9", (2013, 2014)),
        (
            *("shaw-translation", "EN-FR/big", "fr-en"),
            *("europarl-v7 commoncrawl undoc.2000 news-commentary-v9 giga-fren.release2.fixed", (2013, 2014)),
        ),
        # Chen et al. (2021a), Sec. 4.3: WMT 2015 German, WMT 2018 Czech, newstest 2015
        ("scalar-translation", "DE-EN", "de-en", "europarl-v7 commoncrawl news-commentary-v10", (2014, 2015)),
        ("scalar-translation", "EN-CS", "cs-en", "europarl-v7 commoncrawl news-commentary-v13", (2014, 2015)),
    ],
)
def test_each_year_has_corpora_of_its_own(name, key, pair, corpora, sets, tmp_path):
    german = "europarl-v7 commoncrawl news-commentary-v9 news-commentary-v10"
    french = "europarl-v7 commoncrawl undoc.2000 news-commentary-v9 giga-fren.release2.fixed"
    czech = "europarl-v7 commoncrawl news-commentary-v13"

    def files(names, pair):
        return [each if each.startswith("giga") else f"{each}.{pair}" for each in names.split()]

    for folder, names in (("de-en", german), ("fr-en", french), ("cs-en", czech)):
        write(tmp_path, folder, [*files(names, folder), *(f"newstest{year}" for year in (2013, 2014, 2015))])
    data = find_plan(name, "paper", str(tmp_path)).translate[key].data
    source, target = key.partition("/")[0].lower().split("-")
    root = tmp_path / "translation" / pair
    assert data.source.split("+") == [f"{root}/{each}.{source}" for each in files(corpora, pair)]
    assert data.target.split("+") == [f"{root}/{each}.{target}" for each in files(corpora, pair)]
    dev, test = (f"newstest{year}" for year in sets)
    assert (data.dev_source, data.dev_target) == (f"{root}/{dev}.{source}", f"{root}/{dev}.{target}")
    assert data.test[test] == f"{root}/{test}.{source},{root}/{test}.{target}"


def test_files_that_are_missing_are_named(tmp_path):
    write(tmp_path, "de-en", [*WMT18_DE[:2], "newstest2017", "newstest2018"])
    with pytest.raises(FileNotFoundError) as caught:
        find_plan("translation", "paper", str(tmp_path))
    said = str(caught.value)
    assert "EN-DE needs europarl-v7.de-en.en, europarl-v7.de-en.de, commoncrawl.de-en.en" in said
    assert "there is no news-commentary-v13.de-en.en, news-commentary-v13.de-en.de." in said


def test_the_size_for_one_gpu_chooses_on_dev_and_scores_test(tmp_path):
    folder = tmp_path / "translation"
    folder.mkdir()
    for name in ("train", "dev", "test", "newstest2015"):
        for side in ("en", "de"):
            (folder / f"{name}.{side}").write_text("a\n")
    plan = find_plan("translation", "gpu", str(tmp_path))
    (config,) = plan.translate.values()
    assert columns(plan) == {"EN-DE": ("EN-DE", "test/bleu")} and config.save == "best"
    assert list(config.data.test) == ["test", "newstest2015"]
    assert not any(row.recipe for row in find_plan("shaw-translation", "gpu", str(tmp_path)).rows)
    ablation = find_plan("shaw-clip", "gpu", str(tmp_path))
    assert columns(ablation) == {"EN-DE": ("EN-DE", "bleu")} and not ablation.translate["EN-DE"].data.test
    (folder / "test.de").unlink()
    find_plan("shaw-clip", "gpu", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"test\.de; there is no such file"):
        find_plan("translation", "gpu", str(tmp_path))


def test_steps_a_second_are_shown_beside_the_absolute_model_of_the_same_size():
    plan = find_plan("shaw-translation", "paper")
    column = next(column for column in plan.columns if column.relative)
    speeds = {"Vaswani et al. (sinusoidal)": 10.0, "Shaw et al.": 9.3, "big, sinusoidal": 4.0, "big, Shaw et al.": 3.0}
    cells = {
        (row.name, column.name): Cell(values={"0": speeds[row.name]} if row.name in speeds else {}, expected=1)
        for row in plan.rows
    }
    found = {name: dict(cell.values) for (name, _), cell in relative_cells(plan, column, cells).items()}
    assert found["Shaw et al."]["0"] == pytest.approx(-7.0) and found["big, Shaw et al."]["0"] == pytest.approx(-25.0)
    assert found["big, sinusoidal"] == {"0": 0.0} and found["sinusoidal + Shaw et al."] == {}
