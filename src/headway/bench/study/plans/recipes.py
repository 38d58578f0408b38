"""Recipes of the three sizes that several plans share. Sizes quick and gpu are ours; paper is as published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headway.bench.tasks.finetune import Data, FinetuneConfig, Grid, Protocol, Spans, Start
from headway.bench.tasks.finetune.recipes import full
from headway.bench.tasks.pretrain import EncoderChoice, Intervals, Optimisation, PretrainConfig, Text
from headway.bench.tasks.pretrain.recipes import paper, paper_multilingual

ROW_MODEL = Start(model="the pretrained encoder of the row")  # the job fills in the folder
LIMIT = 20_000  # examples of a task at size gpu
PARTS = ("corpus", "glue", "xtreme", "translation")  # folders in a folder of data, of which a plan reads some


def pretraining(size: str, data: str | None, *, length: int = 128) -> PretrainConfig:
    """Return the recipe for pretraining on English, or on the built-in language at size quick."""
    if size == "quick":
        return builtin_pretraining()
    if size == "gpu":
        return small_pretraining(corpora(folder(data), english=True), kind="wordpiece", length=length)
    config = paper()
    if data is not None:
        config = replace(config, text=replace(config.text, corpus=corpora(data, english=True)))
    return replace(config, text=replace(config.text, length=length))


def multilingual_pretraining(size: str, data: str | None) -> PretrainConfig:
    """Return the recipe for pretraining on all languages of the folder, or on the built-in one at size quick."""
    if size == "quick":
        return builtin_pretraining()
    if size == "gpu":
        config = small_pretraining(corpora(folder(data)), kind="unigram", length=256)
        steps = Optimisation(steps=1200, batch=256, learning_rate=5e-4, warmup=0.1)  # 78,643,200 places of tokens
        return replace(config, optimisation=steps, intervals=Intervals(log=50, evaluate=400, checkpoint=1200, keep=1))
    config = paper_multilingual()
    return replace(config, text=replace(config.text, corpus=corpora(folder(data))))


def builtin_pretraining() -> PretrainConfig:
    """Return the recipe of a small encoder on the built-in language, which takes half a minute on one core."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return PretrainConfig(
        model=EncoderChoice(preset="tiny", changes={**sizes, **still}),
        text=Text(corpus=("builtin:20000",), length=64, validation=0.05, evaluation_rows=512),
        optimisation=Optimisation(steps=800, batch=16, learning_rate=3e-3, warmup=0.1),
        intervals=Intervals(log=50, evaluate=400, checkpoint=400, keep=1),
    )


def small_pretraining(corpus: tuple[str, ...], *, kind: str, length: int) -> PretrainConfig:
    """Return the recipe of BERT-small, which takes some minutes on one GPU."""
    return PretrainConfig(
        model=EncoderChoice(preset="bert-small"),
        text=Text(corpus=corpus, kind=kind, vocab_size=16_000, length=length),
        optimisation=Optimisation(steps=3000, batch=256, learning_rate=1e-3, warmup=0.05),
        intervals=Intervals(log=50, evaluate=1000, checkpoint=1000, keep=1),
    )


def builtin_finetuning(task: str, *, rate: float, limit: int, epochs: int = 1, batch: int = 32) -> FinetuneConfig:
    """Return the recipe for a task of the built-in language, whose answers have two words: one rate, three seeds."""
    return FinetuneConfig(
        task=task,
        start=ROW_MODEL,
        data=Data(limit=limit),
        grid=Grid(rates=(rate,), seeds=(0, 1, 2)),
        protocol=Protocol(epochs=epochs, length=64, batch=batch),
        spans=Spans(overlap=16, max_question=16, max_answer=4, count=3),
    )


def finetuning(task: str, data: Data, size: str) -> FinetuneConfig:
    """Return the recipe for a published task: the DIET paper's grid at size paper, else one rate and three seeds."""
    config = full(task, ROW_MODEL, data)
    if size == "paper":
        return config
    length = min(config.protocol.length, 256)
    protocol = replace(config.protocol, epochs=3, length=length, evaluate=None, metric=None)
    return replace(
        config,
        data=replace(data, limit=LIMIT),
        grid=Grid(rates=(1e-4,), seeds=(0, 1, 2)),
        protocol=protocol,
    )


def folder(data: str | None, *parts: str) -> str:
    """Return the folder of data; raise if there is none, or if it lacks a part.

    Text in corpus/ is looked for when it is read.
    """
    if data is None:
        named = ", ".join(f"{part}/" for part in parts or PARTS)
        raise ValueError(f"data: expected a folder with {named}, got none. Pass --data.")
    missing = [part for part in parts if part != "corpus" and not (Path(data) / part).is_dir()]
    if missing:
        raise FileNotFoundError(
            f"data: expected {', '.join(f'{part}/' for part in parts)} in {data}, got no {', '.join(missing)}. The "
            f"guide on studies (docs/guides/studies.md) says which files they hold."
        )
    return data


def corpora(data: str, *, english: bool = False) -> tuple[str, ...]:
    """List the files of DATA/corpus as LANGUAGE=FILE; names of files begin with the language, as in en-wiki.txt."""
    found = sorted(path for path in (Path(data) / "corpus").glob("*-*.*") if path.is_file())
    named = tuple(f"{path.name.split('-')[0]}={path}" for path in found)
    if english:
        named = tuple(source.partition("=")[2] for source in named if source.startswith("en="))
    if not named:
        raise FileNotFoundError(
            f"data: expected text in {Path(data) / 'corpus'}, in files such as en-wiki.txt, got none. "
            f"Names begin with the language."
        )
    return named


def languages(data: str) -> tuple[str, ...]:
    """Return the languages of the files in DATA/corpus."""
    return tuple(dict.fromkeys(named.partition("=")[0] for named in corpora(data)))


def source(data: str | None, part: str) -> str:
    """Return where a benchmark's files are: DATA/PART, or the Hub if there is no folder of data."""
    return "hub" if data is None else str(Path(data) / part)
