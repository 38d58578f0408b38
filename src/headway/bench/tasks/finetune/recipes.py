"""Whole configurations by name. Vary them with dataclasses.replace, or with the options of `headway finetune`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headway.bench.data.transfer.tasks import find_task
from headway.bench.tasks.finetune.config import Data, FinetuneConfig, Grid, Protocol, Spans, Start

SMALL = ("cola", "mrpc", "stsb", "rte", "wnli")  # fewer than 10,000 examples to train on


def full(task: str, start: Start, data: Data) -> FinetuneConfig:
    """The DIET paper's grid: four learning rates, five seeds.

    Paper:    Chen et al. (2021b), Table 7: learning rates 1e-5 to 4e-5, batch 32, warm-up 0.1; 5 or 10 epochs of length
              128 in English, 3 of length 512 in many languages
    Departs:  the paper does not say which tasks have 10 epochs; here the small ones. It names neither optimiser nor
              weight decay; AdamW with 0.01 is BERT's. Ke et al. (2021) take 2e-5 to 5e-5. The built-in language's
              tasks, for small encoders, have rates of our own
    """
    group = find_task(task).group
    rates: tuple[float, ...] = (1e-5, 2e-5, 3e-5, 4e-5)
    spans = Spans()
    if group == "builtin":
        rates, protocol = (1e-4, 3e-4, 1e-3), Protocol(epochs=5, length=128)
        spans = Spans(overlap=32, max_question=24)
    elif group == "xtreme":
        protocol = Protocol(epochs=3, length=512)
    else:
        protocol = Protocol(epochs=10 if task in SMALL else 5, length=128)
    grid = Grid(rates=rates, seeds=(0, 1, 2, 3, 4))
    return FinetuneConfig(task=task, start=start, data=data, grid=grid, protocol=protocol, spans=spans)


def quick(task: str, start: Start, data: Data) -> FinetuneConfig:
    """One learning rate, three seeds, three epochs at most: a first look."""
    config = full(task, start, data)
    rate = 5e-4 if config.task_spec.group == "builtin" else 3e-5
    protocol = replace(config.protocol, epochs=min(3, config.protocol.epochs))
    return replace(config, grid=Grid(rates=(rate,), seeds=(0, 1, 2)), protocol=protocol)


RECIPES: dict[str, Callable[[str, Start, Data], FinetuneConfig]] = {"full": full, "quick": quick}


def recipe(name: str) -> Callable[[str, Start, Data], FinetuneConfig]:
    if name not in RECIPES:
        raise ValueError(f"recipe: expected one of {', '.join(RECIPES)}, got {name!r}.")
    return RECIPES[name]
