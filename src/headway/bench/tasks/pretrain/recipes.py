"""Whole configurations by name. Vary them with dataclasses.replace, or with the options of `headway pretrain`."""

from __future__ import annotations

from collections.abc import Callable

from headway.bench.tasks.pretrain.config import EncoderChoice, PretrainConfig, Text
from headway.bench.tasks.training.settings import Intervals, Optimisation


def quick() -> PretrainConfig:
    """Return two layers on the built-in language: two or three minutes on a laptop. The rates are ours."""
    return PretrainConfig(
        model=EncoderChoice(preset="tiny"),
        text=Text(corpus=("builtin:20000",), length=64, validation=0.05),
        optimisation=Optimisation(steps=1000, batch=32, learning_rate=2e-3, warmup=0.1),
        intervals=Intervals(log=50, evaluate=250, checkpoint=250),
    )


def small() -> PretrainConfig:
    """Return BERT-small on a text of your own: some hours on one GPU. The rates are ours, for a batch of 256."""
    return PretrainConfig(
        model=EncoderChoice(preset="bert-small"),
        text=Text(length=128),
        optimisation=Optimisation(steps=50_000, batch=256, learning_rate=5e-4, warmup=0.025),
        intervals=Intervals(log=100, evaluate=2500, checkpoint=2500),
    )


def paper() -> PretrainConfig:
    """Return BERT-base as the DIET paper pretrains it in English.

    Paper:    Chen et al. (2021b), App. A and Table 7: 500K steps of 4096 sequences of 128 tokens, learning rate 0.0018,
              warm-up 0.025, a checkpoint every 20K steps, masked words only; Sec. 4.1: WordPiece
    Departs:  the paper read Wikipedia and Books; Books is not in public hands, so add a copy of your own as a second
              corpus. It says 30,000 words; its parameter counts (Table 6) are those of BERT's 30,522. It names neither
              optimiser nor weight decay; these are AdamW with BERT's constants (Devlin et al. 2019, App. A.2)
    """
    return PretrainConfig(
        model=EncoderChoice(preset="bert-base"),
        text=Text(corpus=("hub:wikimedia/wikipedia:20231101.en",), kind="wordpiece", vocab_size=30_522, length=128),
        optimisation=Optimisation(steps=500_000, batch=4096, learning_rate=0.0018, warmup=0.025),
        intervals=Intervals(log=100, evaluate=5000, checkpoint=20_000),
    )


def paper_multilingual() -> PretrainConfig:
    """Return BERT-base as the DIET paper pretrains it in 100 languages, which are given as corpora.

    Paper:    Chen et al. (2021b), Table 7: 125K steps of 4096 sequences of 512 tokens; Sec. 4.2: 120,000 words, and
              Wikipedia in 100 languages "similar to (Lample and Conneau, 2019)"
    Departs:  as `paper`. The paper does not say how languages are drawn; the work that it names draws them with
              exponent 0.5 (Lample and Conneau 2019, Sec. 3.1), multilingual BERT, and we by default, with 0.7
    """
    return PretrainConfig(
        model=EncoderChoice(preset="bert-base"),
        text=Text(kind="unigram", vocab_size=120_000, length=512, smoothing=0.5),
        optimisation=Optimisation(steps=125_000, batch=4096, learning_rate=0.0018, warmup=0.025),
        intervals=Intervals(log=100, evaluate=5000, checkpoint=20_000),
    )


RECIPES: dict[str, Callable[[], PretrainConfig]] = {
    "quick": quick,
    "small": small,
    "paper": paper,
    "paper-multilingual": paper_multilingual,
}


def recipe(name: str) -> PretrainConfig:
    """Return the recipe with a name."""
    if name not in RECIPES:
        raise ValueError(f"recipe: expected one of {', '.join(RECIPES)}, got {name!r}.")
    return RECIPES[name]()
