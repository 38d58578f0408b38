"""From parallel text to batches: a shared vocabulary, tokenised pairs, and what is translated in evaluations."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headway.bench.data.translation.batches import DevBatches, TranslationBatches
from headway.bench.data.translation.cleaning import Rules
from headway.bench.data.translation.pairs import EncodedPairs, build_pairs
from headway.bench.data.translation.parallel import ParallelText, open_parallel
from headway.bench.data.translation.vocabulary import train_vocabulary
from headway.bench.tasks.training.preparing import claim, claimed, if_there, telling
from headway.bench.tasks.training.processes import Processes
from headway.bench.tasks.training.runs import writing
from headway.bench.tasks.translate.config import ParallelData, TranslateConfig
from headway.storage import atomic_path, config_hash, read_json, write_json

NOT_IN_DATA = ("data", "translated")  # settings that the data do not depend on
MOST_DEV_TEXT = 10_000  # pairs of dev whose text is kept
ANY_RATIO = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A tokenizer, batches to train on, batches to evaluate on, and sentences of dev with their translations."""

    tokenizer: PreTrainedTokenizerFast
    training: TranslationBatches
    dev: DevBatches
    sentences: list[tuple[str, str]]

    @property
    def fingerprint(self) -> str:
        """What tells tokenizer and pairs from others."""
        return config_hash({"train": self.training.pairs.index["made_of"], "dev": self.dev.pairs.index["made_of"]})


def prepared(
    config: TranslateConfig, own: Path, processes: Processes, *, show: bool, continues: bool = False
) -> Prepared:
    """The data of a configuration; what is not there yet the main process makes, in the folder `own`.

    A run that `continues` takes what it began with, although the source may have changed or gone since.
    """
    data, plan = config.data, config.optimisation
    folder = own if data.data is None else Path(data.data)
    if data.data is None:
        with writing(folder, lambda: "What is whole of it stays."):
            processes.on_main(lambda: _make(data, folder, show=show, continues=continues))
    elif not (folder / "dev.json").is_file():
        raise FileNotFoundError(
            f"data: expected data/ of an earlier run, with tokenizer/, train/ and dev/, got {folder}."
        )
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    train, dev = (EncodedPairs(folder / split, tokenizer) for split in ("train", "dev"))
    longest = int(max(train.lengths.max(), dev.lengths.max()))
    if longest > data.rules.max_tokens:
        raise ValueError(f"max_tokens: expected at least {longest}, as in {folder}, got {data.rules.max_tokens}.")
    return Prepared(
        tokenizer=tokenizer,
        training=TranslationBatches(train, tokens=plan.tokens, step_tokens=plan.step_tokens, seed=config.seed),
        dev=DevBatches(dev, tokens=plan.tokens),
        sentences=[(source, target) for source, target in read_json(folder / "dev.json")[: data.translated]],
    )


def left_out(data: Prepared) -> dict[str, dict[str, int]]:
    """How many pairs of each split were left out, by reason."""
    splits = {"train": data.training.pairs, "dev": data.dev.pairs}
    return {name: dict(pairs.index["left_out"]) for name, pairs in splits.items()}


def _make(data: ParallelData, folder: Path, *, show: bool, continues: bool) -> None:
    """Tokenizer and pairs, unless they are there; interrupted, it goes on."""
    settings = {name: value for name, value in asdict(data).items() if name not in NOT_IN_DATA}
    if continues and claimed(folder, settings) and (folder / "dev.json").exists():
        return
    train, dev = texts(data)
    claim(folder, settings, [train.fingerprint(), dev.fingerprint()])
    if (folder / "dev.json").exists():
        return
    with telling(show) as tell:
        if (folder / "tokenizer").exists():
            tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
        elif data.tokenizer is None:
            tell(f"training a vocabulary on {data.source}")
            tokenizer = train_vocabulary(train, data.trained_kind, data.vocab_size, folder / "tokenizer")
        else:
            if not Path(data.tokenizer).is_dir():
                raise FileNotFoundError(f"tokenizer: expected a folder, got {data.tokenizer!r}, which is none.")
            tokenizer = AutoTokenizer.from_pretrained(data.tokenizer)
            with atomic_path(folder / "tokenizer") as temporary:
                tokenizer.save_pretrained(temporary)
        dev_rules = Rules(max_tokens=data.rules.max_tokens, max_ratio=ANY_RATIO)
        for name, text, rules in (("train", train, data.rules), ("dev", dev, dev_rules)):

            def progress(pairs: int, name: str = name) -> None:
                tell(f"cutting {name}: {pairs:,} pairs")

            build_pairs(text, tokenizer, folder / name, rules=rules, progress=progress)
        write_json(folder / "dev.json", [[pair.source, pair.target] for pair in islice(dev, MOST_DEV_TEXT)])


def fingerprints(data: ParallelData) -> list[Any]:
    """Of what the pairs are read from, as it is today; None of what is gone."""
    return [if_there(lambda split: texts(data)[split].fingerprint(), split) for split in range(2)]


def texts(data: ParallelData) -> tuple[ParallelText, ParallelText]:
    """What to train on and what to evaluate on."""

    def opened(source: str, target: str | None, split: str, held_out: float) -> ParallelText:
        return open_parallel(
            source, target, languages=data.languages, split=split, held_out=held_out, on_error=data.on_error
        )

    if data.dev_source is not None:
        return opened(data.source, data.target, "train", 0.0), opened(data.dev_source, data.dev_target, "dev", 0.0)
    kind, *rest = data.source.split(":")
    if kind == "hub" and len(rest) > 2:
        raise ValueError(
            f"dev_source: expected one beside {data.source}, which is one split, got none: what is trained on would "
            f"be evaluated on. Name another split, or leave this one out: hub:{':'.join(rest[:2])}."
        )
    share = 0.0 if kind in ("hub", "builtin") else data.held_out
    train, dev = (opened(data.source, data.target, split, share) for split in ("train", "dev"))
    return train, dev
