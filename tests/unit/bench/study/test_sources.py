"""A study whose text has changed since it began must not go on with half of the old one."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from headway.bench.study.graph import jobs
from headway.bench.study.job import run_job
from headway.bench.study.kinds import sources_changed_since
from headway.bench.study.plan import Column, Plan, Row
from headway.bench.study.store import Store, write_records
from headway.bench.study.study import Study
from headway.bench.tasks.finetune import Data, Start
from headway.bench.tasks.finetune.recipes import quick
from headway.bench.tasks.pretrain import EncoderChoice, Optimisation, PretrainConfig, Text
from headway.bench.tasks.pretrain.text import fingerprints
from headway.bench.tasks.training.prepared_data import sources_changed
from headway.bench.tasks.translate import Optimisation as TranslationOptimisation
from headway.bench.tasks.translate import ParallelData, TranslateConfig, TranslatorChoice
from headway.bench.tasks.translate.data import read_test_sets
from headway.storage import plain_settings, write_json

LINES = [f"the {animal} sees the {thing}" for animal in ("cat", "dog", "bird") for thing in ("house", "tree", "sea")]


def of_text(folder):
    (folder / "corpus.txt").write_text("\n\n".join(f"{n} {line}" for n, line in enumerate(LINES * 20)))
    pretrain = PretrainConfig(
        model=EncoderChoice(preset="tiny"),
        text=Text(corpus=(str(folder / "corpus.txt"),), length=16, vocab_size=45, validation=0.2),
        optimisation=Optimisation(steps=1, batch=2, learning_rate=1e-3),
    )
    return planned(folder, Column(name="Loss", source="pretrain", value="evaluation_loss"), pretrain=pretrain)


def of_pairs(folder):
    (folder / "corpus.txt").write_text("\n".join(f"{n} {line}\t{line} {n}" for n, line in enumerate(LINES * 20)))
    (folder / "corpus.txt").rename(folder / "corpus.tsv")
    config = TranslateConfig(
        model=TranslatorChoice(encoding="none"),
        data=ParallelData(source=str(folder / "corpus.tsv"), vocab_size=280, held_out=0.2),
        optimisation=TranslationOptimisation(steps=1),
    )
    loss = Column(name="Loss", source="translate", task="pairs", value="evaluation_loss")
    return planned(folder, loss, translate={"pairs": config})


def of_tasks(folder):
    """Files of a task, which simple classifiers read, and fine-tuning after them."""
    (folder / "corpus.tsv").write_text(
        "\n".join(["sentence\tlabel", *(f"{line}\t{n % 2}" for n, line in enumerate(LINES))])
    )
    source = f"sst2@dev={folder / 'corpus.tsv'}"
    config = quick("sst2", Start(model="m"), Data(train=(source,), dev=(source,)))
    pretrain = PretrainConfig(
        model=EncoderChoice(preset="tiny"),
        text=Text(corpus=("builtin:100",)),
        optimisation=Optimisation(steps=1, batch=2, learning_rate=1e-3),
    )
    return planned(
        folder, Column(name="Task", source="finetune", task="sst2"), pretrain=pretrain, finetune={"sst2": config}
    )


def others(folder, job):
    done = Store(folder / "out" / "jobs").result(job.key)
    return sources_changed_since(job.kind, job.config, folder / "out" / "jobs" / job.key, done["result"])


def planned(folder, column, **parts):
    plan = Plan(
        name="small",
        size="tiny",
        title="",
        rows=(Row(name="none", encoding="none"),),
        columns=(column,),
        baseline="none",
        **parts,
    )
    first = jobs(plan)[0].job
    run_job(Store(folder / "out" / "jobs").write_request(first))
    (folder / "out" / "plan.json").write_text('{"name": "small", "size": "tiny"}')
    return plan, first


@pytest.mark.parametrize("make", [of_text, of_pairs, of_tasks])
def test_files_that_changed_are_refused_and_files_that_are_gone_are_not_missed(make, tmp_path):
    plan, first = make(tmp_path)
    source = next(tmp_path.glob("corpus.*"))
    assert first.kind in ("text", "pairs", "simple") and not others(tmp_path, first)
    before = source.read_text()
    source.write_text(before + before.splitlines()[0] + "\n")
    with pytest.raises(
        ValueError, match=r"^'(text|parallel|simple).*' was done with files that have changed since.*another --out"
    ):
        Study(plan, tmp_path / "out").run(None, console=Console(), command="")
    source.write_text(before)
    assert not others(tmp_path, first)
    source.unlink()
    assert not others(tmp_path, first)


def test_jobs_that_read_no_files_are_not_asked(tmp_path):
    assert not sources_changed_since("cost", {}, Path(tmp_path), {})


def test_results_from_before_files_were_written_down_are_taken(tmp_path):
    _, first = of_tasks(tmp_path)
    assert not sources_changed_since(first.kind, {}, Path(tmp_path), {"baselines": {}})


def test_a_result_that_was_kept_tells_of_changed_files_too(tmp_path):
    plan, first = of_tasks(tmp_path)
    done = Store(tmp_path / "out" / "jobs").result(first.key)
    write_records(tmp_path / "kept", {first.key: done})
    with (tmp_path / "corpus.tsv").open("a") as file:
        file.write("\nanother\t1")
    with pytest.raises(ValueError, match="'simple classifiers, sst2' was done with files that have changed"):
        Study(plan, tmp_path / "new", kept=tmp_path / "kept").run(None, console=Console(), command="")


def test_text_that_was_made_here_must_be_the_one_of_what_is_kept(tmp_path):
    plan, first = of_text(tmp_path)
    done = Store(tmp_path / "out" / "jobs").result(first.key)
    assert done["result"]["fingerprint"]
    write_records(tmp_path / "kept", {first.key: {**done, "result": {**done["result"], "fingerprint": "another"}}})
    with pytest.raises(ValueError, match=r"differ from those of the results in .*kept: fingerprint was another and is"):
        Study(plan, tmp_path / "out", kept=tmp_path / "kept").run(None, console=Console(), command="")


def test_a_file_that_is_gone_hides_no_change_of_another(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(f"{name} {n} {line}" for n, line in enumerate(LINES * 20)))
    text = Text(corpus=(str(tmp_path / "one.txt"), str(tmp_path / "two.txt")), length=16, vocab_size=45)
    write_json(tmp_path / "data" / "text.json", {"sources": fingerprints(text)})
    (tmp_path / "one.txt").unlink()
    assert not sources_changed(tmp_path / "data", fingerprints(text))
    (tmp_path / "two.txt").write_text("another\n\ntext")
    assert sources_changed(tmp_path / "data", fingerprints(text))


def test_a_test_set_that_changed_since_it_was_scored_is_noticed(tmp_path):
    """Also one that was replaced by as many other sentences; one that is gone is not missed."""
    for side in ("en", "de"):
        (tmp_path / f"news.{side}").write_text("a\nb\n")
    data = ParallelData(source="builtin:20", test={"news": f"{tmp_path}/news.en,{tmp_path}/news.de"})
    config = TranslateConfig(
        model=TranslatorChoice(encoding="none"), data=data, optimisation=TranslationOptimisation(steps=1)
    )
    (test,) = read_test_sets(data)
    result = json.loads(json.dumps({"scores": {"news": {"bleu": 1.0, "fingerprint": test.fingerprint}}}))
    settings = json.loads(json.dumps(plain_settings(config)))
    assert not sources_changed_since("translate", settings, tmp_path, result)
    (tmp_path / "news.de").write_text("a\nc\n")
    assert sources_changed_since("translate", settings, tmp_path, result)
    (tmp_path / "news.de").unlink()
    assert not sources_changed_since("translate", settings, tmp_path, result)
