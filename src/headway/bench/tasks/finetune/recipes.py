"""Whole configurations by name. Vary them with dataclasses.replace, or with the options of `headway finetune`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headway.bench.tasks.finetune.config import Data, FinetuneConfig, Grid, Protocol, Spans, Start

RATES = (1e-5, 2e-5, 3e-5, 4e-5)
SEEDS = (0, 1, 2, 3, 4)
SMALL = ("cola", "mrpc", "stsb", "rte", "wnli")  # fewer than 10,000 examples to train on
REPORTED = {"qqp": "accuracy", "stsb": "spearman"}  # metric of tasks that have several


def full(task: str, start: Start, data: Data) -> FinetuneConfig:
    """Return the DIET paper's grid for a task: four learning rates, five seeds.

    Paper:    Chen et al. (2021b), Table 7: learning rates 1e-5 to 4e-5, batch 32, warm-up 0.1, a checkpoint every 3.5k
              steps; 5 or 10 epochs of length 128 in English, 3 of length 512 in many languages
    Departs:  the paper does not say which tasks have 10 epochs; here the small ones, of which CoLA, with 2,680 steps,
              has one checkpoint, the last. It does not say by which metric QQP and STS-B are scored: here accuracy and
              Spearman's correlation. It names neither optimiser nor weight decay; AdamW with 0.01 is BERT's. Ke et al.
              (2021) take rates from 2e-5 to 5e-5. Rates for the built-in language's tasks are ours, for small encoders
    """
    grid, protocol = Grid(rates=RATES, seeds=SEEDS), Protocol(epochs=5, length=128)
    config = FinetuneConfig(task=task, start=start, data=data, grid=grid, protocol=protocol)
    if config.task_spec.group == "builtin":
        grid = Grid(rates=(1e-4, 3e-4, 1e-3), seeds=SEEDS)
        return replace(config, grid=grid, spans=Spans(overlap=32, max_question=24))
    protocol = replace(protocol, evaluate=3500, metric=REPORTED.get(task))
    if config.task_spec.group == "xtreme":
        protocol = replace(protocol, epochs=3, length=512)
    elif task in SMALL:
        protocol = replace(protocol, epochs=10)
    return replace(config, protocol=protocol)


def quick(task: str, start: Start, data: Data) -> FinetuneConfig:
    """Return a sweep for a first look: one learning rate, three seeds, at most three epochs, each evaluated."""
    config = full(task, start, data)
    rate = 5e-4 if config.task_spec.group == "builtin" else 3e-5
    protocol = replace(config.protocol, epochs=min(3, config.protocol.epochs), evaluate=None, metric=None)
    return replace(config, grid=Grid(rates=(rate,), seeds=(0, 1, 2)), protocol=protocol)


RECIPES: dict[str, Callable[[str, Start, Data], FinetuneConfig]] = {"full": full, "quick": quick}


def recipe(name: str) -> Callable[[str, Start, Data], FinetuneConfig]:
    """Return the recipe of a name."""
    if name not in RECIPES:
        raise ValueError(f"recipe: expected one of {', '.join(RECIPES)}, got {name!r}.")
    return RECIPES[name]
