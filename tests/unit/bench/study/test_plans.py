"""Every plan at every size: it builds, its rows are what the papers' are, its figures are consistent."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from headway.bench.data.transfer.tasks import TaskData, find_task
from headway.bench.data.translation.wmt import NEWSTEST_SENTENCES, TRAINING
from headway.bench.study.graph import jobs
from headway.bench.study.plans import PLANS, find_plan
from headway.bench.study.plans.cost_tables import TABLE_6
from headway.bench.study.plans.glue_tables import TABLE_2, TABLE_8, TABLE_9
from headway.bench.study.plans.rows import FASTER, of_size
from headway.bench.study.plans.xtreme_tables import QUESTIONS, TABLE_3, TABLE_5
from headway.bench.study.runner import Runner
from headway.bench.study.store import Store

ONLY_QUICK = ("quick", "questions")
NO_PAPER = tuple(name for name in PLANS if name.startswith("league"))  # no paper has these studies


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    (root / "corpus").mkdir()
    for language in ("en", "de"):
        (root / "corpus" / f"{language}-text.txt").write_text("one two three\n")
    for number in range(3):
        (root / "corpus" / f"en-wiki-{number:02}.txt").write_text("one two three\n")
    for part in ("glue", "translation/europarl", *(f"xtreme/{name}" for name in ("xnli", "squad", *QUESTIONS))):
        (root / part).mkdir(parents=True)
    for split in ("train", "dev", "test"):
        for language in ("en", "de"):
            for folder in ("translation", "translation/europarl"):
                (root / folder / f"{split}.{language}").write_text("one\n")
    for corpora in TRAINING.values():
        for language, names in corpora.items():
            for name in (*names, *NEWSTEST_SENTENCES):
                for side in (language, "en"):
                    path = root / "translation" / f"{language}-en" / f"{name}.{side}"
                    path.parent.mkdir(exist_ok=True)
                    path.write_text("one\n")
    tydiqa(root, "dev", "en", "three")
    return str(root)


def tydiqa(root, split, language, answer):
    """A file with one question."""
    folder = root / "xtreme" / "tydiqa" / f"tydiqa-goldp-v1.1-{split}"
    folder.mkdir(exist_ok=True)
    answers = [{"text": answer, "answer_start": 8}]
    entry = {"context": "one two three", "qas": [{"id": "1", "question": "what?", "answers": answers}]}
    (folder / f"tydiqa.goldp.{language}.{split}.json").write_text(json.dumps({"data": [{"paragraphs": [entry]}]}))


@pytest.mark.parametrize("size", ["quick", "gpu", "paper"])
@pytest.mark.parametrize("name", [name for name in PLANS if name not in ONLY_QUICK])
def test_every_plan_builds_at_every_size(name, size, data, tmp_path):
    if size == "paper" and name in NO_PAPER:
        with pytest.raises(ValueError, match="expected quick or gpu"):
            find_plan(name, size, data)
        return
    plan = find_plan(name, size, data)
    assert (plan.name, plan.size) == (name, size)
    planned = jobs(plan)
    runner = Runner([each.job for each in planned], Store(tmp_path))  # raises where a need does not stand before
    filled = {each.row for each in planned if each.row} or {row.name for row in plan.rows}  # the cost of all is one job
    assert filled == {row.name for row in plan.rows}
    assert len(runner.progress) <= len(planned)
    if size == "paper" and not name.startswith(("tisa", "encodings")):  # TISA's recipe is another; ours is no table
        assert any(row.published for row in plan.rows)


def test_the_plan_that_lies_with_its_results_still_makes_their_jobs(data):
    """results/studies/same-token, a file of one's own: the other seed, and two ways to fine-tune on one task."""
    folder = Path(__file__).parents[4] / "results" / "studies" / "same-token"
    results = json.loads((folder / "results.json").read_text())
    plan = find_plan(str(folder / "plan.py"), "gpu", data)
    assert [row.name for row in plan.rows] == [row["name"] for row in results["rows"]]
    tuned = [each for each in jobs(plan) if each.job.kind == "finetune" and each.row == "tisa"]
    assert [(each.task, each.seed) for each in tuned] == [("stsb", 2), ("stsb, 30 x", 2)]
    assert [each.job.config["protocol"].get("position_rate", 1.0) for each in tuned] == [1.0, 30.0]
    assert len({each.job.key for each in tuned}) == 2
    with pytest.raises(ValueError, match="no STS-B"):
        find_plan(str(folder / "plan.py"), "quick", None)


@pytest.mark.parametrize("name", [name for name in PLANS if name not in (*ONLY_QUICK, "cost")])
def test_the_folder_of_data_reaches_the_jobs(name, data):
    for each in jobs(find_plan(name, "gpu", data)):
        if each.job.kind in ("text", "pairs", "finetune", "simple", "translate", "pretrain", "trial"):
            assert data in json.dumps(each.job.config), each.job.label


def test_a_plan_says_what_its_folder_must_have(data, tmp_path):
    with pytest.raises(
        ValueError, match=r"folder with corpus/, glue/, xtreme/xnli/, xtreme/squad/, .*xtreme/tydiqa/, got none"
    ):
        find_plan("xtreme", "gpu")
    with pytest.raises(ValueError, match=r"data: expected a folder with translation/, got none\. Pass --data"):
        find_plan("translation", "gpu")
    with pytest.raises(FileNotFoundError, match=r"expected corpus/, glue/ in .*, got no glue"):
        find_plan("glue", "gpu", str(tmp_path))
    (tmp_path / "translation").mkdir()
    with pytest.raises(FileNotFoundError, match=r"one sentence a line in .*train\.en, .*; there is no such file"):
        find_plan("translation", "gpu", str(tmp_path))


def test_the_main_job_has_what_it_promises():
    plan = find_plan("quick")
    assert len(plan.rows) >= 10
    assert {column.source for column in plan.columns} == {"pretrain", "finetune", "translate"}
    assert all(len(config.grid.seeds) >= 3 for config in plan.finetune.values())
    tuned = {each.row: each.job.config for each in jobs(plan) if each.task == "builtin:role-questions" and each.row}
    assert {config["start"]["segments"] for config in tuned.values()} == {"input", "per-head"}
    assert {row.place for row in plan.rows} == {"nowhere", "input", "per-head"}
    kinds = {each.job.kind for each in jobs(plan)}
    assert kinds == {"text", "simple", "pretrain", "finetune", "pairs", "translate", "analyse", "cost"}


def test_the_main_job_asks_of_pairs_with_segments_and_says_who_guesses():
    plan = find_plan("quick")
    inference = next(column for column in plan.columns if column.name == "Inference")
    assert inference.task == "builtin:roles" and inference.chance == 50.0
    guesses = {claim.column for claim in plan.claims if not claim.than}
    assert guesses == {"Acceptability", "Inference"}


def test_questions_are_asked_of_the_models_of_the_main_job():
    pretrained = [
        {each.job.key for each in jobs(find_plan(name)) if each.job.kind == "pretrain"} for name in ONLY_QUICK
    ]
    assert pretrained[1] and pretrained[1] < pretrained[0]
    steps = [
        config.data.limit // config.protocol.batch
        for task, config in find_plan("questions").finetune.items()
        if config.task == "builtin:questions"
    ]
    assert [column.name for column in find_plan("questions").columns[1:]] == [f"Two facts, {n} steps" for n in steps]


@pytest.mark.parametrize("name", ONLY_QUICK)
def test_a_plan_of_one_size_says_so(name):
    with pytest.raises(ValueError, match="size: expected quick, the only one of this plan, got 'gpu'"):
        find_plan(name, "gpu")


@pytest.mark.parametrize("rows", [TABLE_2, TABLE_8, TABLE_9])
def test_published_averages_of_glue_are_averages(rows):
    """Of the seven numbers; the paper rounds them."""
    for row in rows:
        found = dict(row.published)
        average = found.pop("Avg")
        assert fmean(found.values()) == pytest.approx(average, abs=0.11), row.name


def test_published_averages_of_xtreme_are_averages():
    """One line of the paper is 0.16 beside its own average."""
    off = {}
    for row in (*TABLE_3, *TABLE_5):
        found = dict(row.published)
        average = found.pop("Avg")
        if fmean(found.values()) != pytest.approx(average, abs=0.11):
            off[row.name] = round(average - fmean(found.values()), 2)
    assert off == {"DIET-REL, share heads": -0.16}


def test_lines_that_stand_in_two_tables_have_the_same_figures():
    for one, two in ((TABLE_2, TABLE_8), (TABLE_8, TABLE_9), (TABLE_3, TABLE_5)):
        both = {row.name: row for row in one}
        for row in two:
            if row.name in both:
                assert row == both[row.name]


# Chen et al. (2021b), Table 6, and Table 1: BERT-base and BERT-small, training and inference.
PARAMETERS = {  # millions, + Δ in percent and a score: English and GLUE, multilingual and XTREME
    "Devlin et al. (learned)": (110.1, None, 84.8, 178.9, None, 55.3),
    "Shaw et al.": (112.9, 2.5, 85.2, 181.7, 1.7, 57.9),
    "DIET-REL": (109.9, 0.0, 85.2, 178.7, 0.0, 58.0),
    "DIET-REL, share": (109.7, 0.0, 85.0, 178.5, 0.0, 57.3),
    "DIET-ABS, rank 128": (128.6, 16.8, 85.3, 197.4, 10.0, 56.8),
    "DIET-ABS, rank 128, share": (111.3, 1.1, 85.2, 180.1, 0.6, 58.9),
}
TIMES = {
    "Shaw et al.": (1.13, 1.33, 1.24, 1.65),
    "Ke et al. (TUPE)": (1.01, 1.19, 1.04, 1.27),
    "DIET-ABS": (1.00, 1.00, 1.00, 1.01),
    "DIET-REL": (1.00, 1.00, 1.00, 1.00),
}


def test_table_6_has_the_scores_of_its_rows(data):
    plan = find_plan("parameters", "paper", data)
    names = ["English", "English, + Δ", "GLUE", "multilingual", "multilingual, + Δ", "XTREME"]
    assert [column.name for column in plan.columns] == names
    assert {row.name: tuple(row.published.get(name) for name in names) for row in plan.rows} == PARAMETERS
    asked = {(each.part, each.job.kind, each.row) for each in jobs(plan)}
    for row in PARAMETERS:
        assert ("", "parameters", row) in asked
        for part in ("GLUE", "XTREME"):
            assert {(part, "pretrain", row), (part, "finetune", row)} <= asked
    same = {each.job.key for each in jobs(find_plan("glue", "paper", data)) if each.row == "DIET-REL"}
    assert same == {each.job.key for each in jobs(plan) if (each.part, each.row) == ("GLUE", "DIET-REL")}
    smaller = find_plan("parameters", "gpu", data)  # of models of another size
    assert all("GLUE" not in row.published and "English" in row.published for row in smaller.rows)
    assert not find_plan("parameters").parts
    for part in plan.parts.values():
        assert set(part.choices) <= set(plan.choices)
    assert len(set(plan.choices)) == len(plan.choices)


def test_table_1_has_times_and_steps_a_second():
    plan = find_plan("cost", "paper")
    names = [f"{model} {mode}" for model in ("bert-base", "bert-small") for mode in ("training", "inference")]
    assert [column.name for column in plan.columns] == [each for name in names for each in (name, f"{name}, steps/s")]
    found = {row.name: tuple(row.published[name] for name in names) for row in plan.rows if row.published}
    assert found == TIMES
    assert plan.baseline == "Devlin et al. (learned)" and plan.choices


def test_parameters_are_counted_as_the_paper_counts():
    from headway.bench.study.kinds import parameters

    plan = find_plan("parameters")
    for each, (row, figures) in zip(jobs(plan), TABLE_6, strict=True):
        found = parameters(each.job.config, {}, None)["millions"]
        assert found["English"] == pytest.approx(figures[0], abs=0.06), row.name
        assert found["multilingual"] == pytest.approx(figures[3], abs=0.06), row.name


def test_two_percentages_of_table_6_are_not_those_of_its_counts():
    """Where there are fewer parameters the table prints +0.0%."""
    off = {}
    baseline = TABLE_6[0][1]
    for row, figures in TABLE_6[1:]:
        for at in (0, 3):
            more = max(0.0, 100.0 * (figures[at] / baseline[at] - 1.0))
            if abs(more - figures[at + 1]) > 0.1:
                off[row.name, figures[at + 1]] = round(more, 1)
    assert off == {("Shaw et al.", 1.7): 1.6, ("DIET-ABS, rank 128", 10.0): 10.3}


def test_equal_work_of_two_plans_is_one_job():
    """Segments come in with fine-tuning, so both rows begin with one pretraining; other plans share it too."""
    glue, ablation = (
        {each.job.key: each.job for each in jobs(find_plan(name)) if each.job.kind == "pretrain"}
        for name in ("glue", "xtreme-ablation")
    )
    assert len(glue) == 8
    assert glue.keys() & ablation.keys()


@pytest.mark.parametrize("name", ["diet-abs 128", "transformer-xl", "tupe-abs", "abs-scalar"])
def test_a_row_of_the_encodings_study_can_be_chosen_alone(name, data):
    plan = find_plan("encodings", "gpu", data)
    kinds = [each.job.kind for each in jobs(plan) if each.row == name]
    pretrained = ["pretrain"] * len(plan.pretraining_seeds(plan.row(name)))
    assert sorted(kinds) == ["analyse", *["finetune"] * 5, "lengths", *pretrained]
    if name == "diet-abs 128":
        assert plan.row(name).choice.sharing == "none" and plan.row(name).choice.options == {"rank": 128}


@pytest.mark.parametrize("name", ["encodings", "glue", "xtreme"])
def test_only_full_attention_is_analysed(name, data):
    """A key of Linformer's stands for all positions: there are no scores of one position for another to read."""
    plan = find_plan(name, "gpu", data)
    others = {row.name for row in plan.rows if row.changes.get("attention", "full") != "full"}
    analysed = {each.row for each in jobs(plan) if each.job.kind == "analyse"}
    assert others and analysed == {row.name for row in plan.rows} - others


def test_a_task_may_begin_with_the_model_of_another():
    plan = replace(find_plan("glue"), after={"builtin:roles": "builtin:role-questions"})
    made = {each.task: each.job for each in jobs(plan) if each.row == plan.baseline and each.job.kind == "finetune"}
    assert made["builtin:roles"].needs == {"pretrain": made["builtin:role-questions"].key}
    with pytest.raises(ValueError, match="after: expected each task to come after the one it begins with"):
        replace(plan, after={"builtin:role-questions": "builtin:roles"})


def test_a_changed_recipe_is_another_job():
    plan = find_plan("quick")
    other = replace(plan, pretrain=replace(plan.pretrain, seed=1), seeds=(1,))
    keys, others = ({each.job.key for each in jobs(each)} for each in (plan, other))
    shared = {key.split("-")[0] for key in keys & others}
    assert shared == {"text", "simple", "pairs", "cost"}


def test_xtreme_on_one_gpu_asks_in_the_languages_of_pretraining(data, tmp_path):
    plan = find_plan("xtreme", "gpu", data)
    assert {config.data.languages for config in plan.finetune.values()} == {("de", "en")}
    assert [column.name for column in plan.columns] == list(TABLE_3[0].published)
    assert "mlqa@dev=" in plan.finetune["squad"].data.transfer[1]  # there is no folder with its test
    assert "mlqa=" in find_plan("xtreme", "paper", data).finetune["squad"].data.transfer[1]  # and then it raises
    (Path(data) / "xtreme" / "mlqa" / "test").mkdir()
    assert "mlqa=" in find_plan("xtreme", "gpu", data).finetune["squad"].data.transfer[1]
    assert all(config.data.languages == () for config in find_plan("xtreme", "paper", data).finetune.values())


def test_xtreme_on_one_gpu_does_without_tydiqa(data, tmp_path):
    fewer = tmp_path / "data"
    shutil.copytree(data, fewer, ignore=shutil.ignore_patterns("tydiqa"))
    plan = find_plan("xtreme", "gpu", str(fewer))
    assert not any("TyDiQA" in column.name for column in plan.columns)
    assert not any("tydiqa" in source for source in plan.finetune["squad"].data.transfer)
    assert plan.columns[-1].task == "XNLI,XQuAD F1,XQuAD EM,MLQA F1,MLQA EM"
    with pytest.raises(FileNotFoundError, match="tydiqa"):
        find_plan("xtreme", "paper", str(fewer))


def test_xtreme_on_one_gpu_asks_training_questions_of_tydiqa_where_the_others_have_no_answers(data, tmp_path):
    other = tmp_path / "data"
    shutil.copytree(data, other, ignore=shutil.ignore_patterns("tydiqa.goldp*"))
    (other / "corpus" / "ko-text.txt").write_text("one two three\n")
    tydiqa(other, "dev", "en", "")
    tydiqa(other, "train", "en", "three")
    with pytest.raises(ValueError, match=r"expected TyDiQA's dev with answers, or .* than English, got neither"):
        find_plan("xtreme", "gpu", str(other))
    for language in ("ko", "sw"):
        tydiqa(other, "train", language, "three")
    questions = find_plan("xtreme", "gpu", str(other)).finetune["squad"]
    assert questions.data.train == (f"{other}/xtreme/squad", f"tydiqa={other}/xtreme/tydiqa")
    assert [(each.task.name, each.split) for each in questions.training] == [("squad", "train"), ("tydiqa", "train")]
    assert questions.transferring[-1] == TaskData(find_task("tydiqa"), "train", f"{other}/xtreme/tydiqa", ("ko",))
    assert find_plan("xtreme", "gpu", data).finetune["squad"].transferring[-1].split == "dev"


def test_rows_of_each_size():
    """Ranks are the paper's on one GPU, whose heads are as wide; numbers added to scores learn faster there."""
    wide = next(row for row in TABLE_5 if row.choice.options.get("rank") == 128)
    assert of_size((wide,), "paper") == (wide,)
    quick, gpu = (of_size((wide,), size)[0] for size in ("quick", "gpu"))
    assert (quick.choice.options["rank"], gpu.choice.options["rank"]) == (16, 128)
    assert (quick.position_rate, gpu.position_rate) == (1.0, FASTER)
    assert not quick.published and not gpu.published
    projected = next(row for row in TABLE_3 if row.changes)
    assert of_size((projected,), "gpu", shorter=2)[0].changes["projected_length"] == 128


def test_some_rows_are_pretrained_again_and_nothing_else_is_done_with_them(data):
    plan = find_plan("encodings", "gpu", data)
    assert (
        plan.again
        and plan.pretraining_seeds(plan.row("tisa")) == (0, 1)
        and plan.pretraining_seeds(plan.row("none")) == (0,)
    )
    second = [each for each in jobs(plan) if each.seed == 1]
    assert {each.row for each in second} == set(plan.again)
    assert {each.job.kind for each in second} == {"pretrain"}
    assert all(each.job.config["seed"] == 1 for each in second)
    with pytest.raises(ValueError, match="again: expected some of"):
        replace(plan, again=("nobody",))
