"""Whole configurations by name. Vary them with dataclasses.replace, or with options of `headway translate train`."""

from __future__ import annotations

from collections.abc import Callable

from headway.bench.data.translation.cleaning import Rules
from headway.bench.tasks.training.settings import Intervals
from headway.bench.tasks.translate.config import Optimisation, ParallelData, TranslateConfig, TranslatorChoice

WMT14 = ParallelData(source="hub:wmt14:de-en", languages="en-de")


def quick() -> TranslateConfig:
    """A small model on the built-in language, a minute or two on two cores. The numbers are ours.

    Sentences have at most 12 words. Measured on 500 sentences of dev: sinusoidal and diet-rel translate more than 99 of
    100 exactly; none translates fewer than 40, because without word order subject and object look the same.
    """
    return TranslateConfig(
        model=TranslatorChoice(
            preset="tiny", changes={"norm": "pre", "hidden_dropout_prob": 0.0, "label_smoothing": 0.0}
        ),
        data=ParallelData(
            source="builtin:20000:0:max_depth=1:max_words=12:nouns=12:verbs=6:intransitives=4:adjectives=6",
            rules=Rules(max_tokens=64),
            translated=200,
        ),
        optimisation=Optimisation(
            steps=1200, tokens=1024, step_tokens=1000, warmup=150, learning_rate=1.5e-3, clip=1.0
        ),
        intervals=Intervals(log=40, evaluate=400, checkpoint=40),
        save="average",
        average=8,
    )


def small() -> TranslateConfig:
    """Four layers of 256 for tens or hundreds of thousands of pairs: an hour or less on one GPU.

    The numbers are ours. The checkpoint with the lowest loss on dev is saved, because the model soon overfits so few
    pairs.
    """
    return TranslateConfig(
        model=TranslatorChoice(preset="small", changes={"hidden_dropout_prob": 0.3}),
        data=ParallelData(vocab_size=8000, rules=Rules(max_tokens=128)),
        optimisation=Optimisation(steps=10_000, tokens=8192, step_tokens=8192, warmup=2000, learning_rate=1e-3),
        intervals=Intervals(log=100, evaluate=500, checkpoint=500),
        save="best",
    )


def shaw_base() -> TranslateConfig:
    """Shaw et al.'s base model on WMT 2014 English-German.

    Paper:    Shaw et al. (2018), Sec. 4.1: 32,768 word pieces, 4096 source and target tokens a GPU and about 25,000 a
              step, Adam (0.9, 0.98, 1e-9), 4,000 warm-up steps, label smoothing 0.1, clipping distance 16, unique
              representations per layer and head, 100,000 steps, no checkpoint averaging
    Departs:  byte-pair encoding in place of word pieces. Encodings are in the decoder's and encoder's self-attention.
              For the paper's absolute baseline pass --encoding sinusoidal
    """
    return TranslateConfig(
        model=TranslatorChoice(preset="shaw-base", encoding="shaw:clip=16,sharing=none"),
        data=WMT14,
        optimisation=Optimisation(steps=100_000, tokens=4096, step_tokens=25_000, warmup=4000),
        intervals=Intervals(log=100, evaluate=5000, checkpoint=5000),
        save="last",
    )


def shaw_big() -> TranslateConfig:
    """Shaw et al.'s big model on WMT 2014 English-German.

    Paper:    Shaw et al. (2018), Sec. 4.1: as the base model, with dropout 0.3 (0.1 for English-French), clipping
              distance 8, unique representations per layer, 300,000 steps, the average of the last 20 checkpoints
    Departs:  as `shaw_base`. The paper saves checkpoints every ten minutes, here it is every 1,500 steps
    """
    return TranslateConfig(
        model=TranslatorChoice(preset="big", encoding="shaw:clip=8,sharing=head"),
        data=WMT14,
        optimisation=Optimisation(steps=300_000, tokens=4096, step_tokens=25_000, warmup=4000),
        intervals=Intervals(log=100, evaluate=6000, checkpoint=1500),
        save="average",
        average=20,
    )


def diet_base() -> TranslateConfig:
    """Chen et al.'s model on WMT 2018 English-German.

    Paper:    Chen et al. (2021b), Sec. 4.3 and App. A: six layers, the setup of Vaswani et al. (2017), Adam, 250K
              steps; any change of the position encoding in all attention layers of encoder and decoder
    Departs:  batches, warm-up and smoothing are those of Vaswani et al. (2017), Secs. 5.1 to 5.4, which the paper
              follows "closely". Training text (Europarl v7, Common Crawl, News Commentary v13) is to be given as files;
              the Hub's wmt18 has more. Cross-attention has no position unless asked (--set model.changes.cross=same)
    """
    return TranslateConfig(
        model=TranslatorChoice(preset="diet-base", encoding="diet-rel"),
        data=ParallelData(source="hub:wmt18:de-en", languages="en-de"),
        optimisation=Optimisation(steps=250_000, tokens=4096, step_tokens=25_000, warmup=4000),
        intervals=Intervals(log=100, evaluate=5000, checkpoint=5000),
        save="average",
        average=5,
    )


RECIPES: dict[str, Callable[[], TranslateConfig]] = {
    "quick": quick,
    "small": small,
    "shaw-base": shaw_base,
    "shaw-big": shaw_big,
    "diet-base": diet_base,
}


def recipe(name: str) -> TranslateConfig:
    """Return the configuration of a name."""
    if name not in RECIPES:
        raise ValueError(f"recipe: expected one of {', '.join(RECIPES)}, got {name!r}.")
    return RECIPES[name]()
