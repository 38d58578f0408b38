"""From parallel text to batches: a shared vocabulary, tokenised pairs, sentences to translate, and test sets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headway.bench.data.reading import source_kind
from headway.bench.data.translation.batches import DevBatches, TranslationBatches
from headway.bench.data.translation.cleaning import Rules
from headway.bench.data.translation.pairs import EncodedPairs, build_pairs
from headway.bench.data.translation.parallel import ParallelText, open_parallel, split_names
from headway.bench.data.translation.test_sets import TestSet, open_test_set, read_test_set
from headway.bench.data.translation.vocabulary import train_vocabulary
from headway.bench.tasks.training.distributed import Processes
from headway.bench.tasks.training.prepared_data import begin_data, fingerprint_if_present, has_settings, status_line
from headway.bench.tasks.training.run_folder import explain_disk_errors
from headway.bench.tasks.translate.config import ParallelData, TranslateConfig
from headway.storage import atomic_path, config_hash, read_json, write_json

NOT_IN_DATA = ("data", "translated", "test")  # settings that tokenizer and pairs do not depend on
MOST_DEV_TEXT = 10_000  # number of dev pairs whose text is kept
ANY_RATIO = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A tokenizer, batches to train on, batches to evaluate on, and sentences of dev with their references."""

    tokenizer: PreTrainedTokenizerFast
    training: TranslationBatches
    dev: DevBatches
    sentences: list[tuple[str, str]]

    @property
    def fingerprint(self) -> str:
        """Return a hash of what the tokenizer and the pairs were made of."""
        return config_hash({"train": self.training.pairs.index["made_of"], "dev": self.dev.pairs.index["made_of"]})

    @property
    def dev_size(self) -> int:
        """Return the number of dev pairs that were read."""
        return int(self.dev.pairs.index["read"])


def prepare_pairs(
    config: TranslateConfig, own: Path, processes: Processes, *, show: bool, continues: bool = False
) -> Prepared:
    """Return the data of a configuration; the main process makes what is missing, in the folder `own`.

    A run that `continues` uses the data that it began with, even if the source has changed or is gone.
    """
    data, plan = config.data, config.optimisation
    folder = own if data.data is None else Path(data.data)
    if data.data is None:
        with explain_disk_errors(folder, lambda: "Files that are complete stay."):
            processes.on_main(lambda: _make(data, folder, show=show, continues=continues))
    elif not (folder / "dev.json").is_file():
        raise FileNotFoundError(
            f"data: expected data/ of an earlier run, with tokenizer/, train/ and dev/, got {folder}."
        )
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    train, dev = (EncodedPairs(folder / split, tokenizer) for split in ("train", "dev"))
    longest = int(max(train.lengths.max(), dev.lengths.max()))
    if longest > data.rules.max_tokens:
        raise ValueError(
            f"max_tokens: {folder} has sentences of {longest} tokens, got {data.rules.max_tokens}. Give at least "
            f"{longest}, or prepare the data again."
        )
    return Prepared(
        tokenizer=tokenizer,
        training=TranslationBatches(train, tokens=plan.tokens, step_tokens=plan.step_tokens, seed=config.seed),
        dev=DevBatches(dev, tokens=plan.tokens),
        sentences=[(source, target) for source, target in read_json(folder / "dev.json")[: data.translated]],
    )


def count_left_out(data: Prepared) -> dict[str, dict[str, int]]:
    """Count the pairs of each split that were left out, by reason."""
    splits = {"train": data.training.pairs, "dev": data.dev.pairs}
    return {name: dict(pairs.index["left_out"]) for name, pairs in splits.items()}


def _make(data: ParallelData, folder: Path, *, show: bool, continues: bool) -> None:
    """Make tokenizer and pairs unless they are there; after an interruption, continue."""
    settings = {name: value for name, value in asdict(data).items() if name not in NOT_IN_DATA}
    if continues and has_settings(folder, settings) and (folder / "dev.json").exists():
        return
    train, dev = open_texts(data)
    begin_data(folder, settings, [train.fingerprint(), dev.fingerprint()])
    if (folder / "dev.json").exists():
        return
    with status_line(show) as set_status:
        if (folder / "tokenizer").exists():
            tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
        elif data.tokenizer is None:
            set_status(f"training a vocabulary on {data.source}")
            tokenizer = train_vocabulary(train, data.trained_kind, data.vocab_size, folder / "tokenizer")
        else:
            if not Path(data.tokenizer).is_dir():
                raise FileNotFoundError(f"tokenizer: expected a folder, got {data.tokenizer!r}, which is not one.")
            tokenizer = AutoTokenizer.from_pretrained(data.tokenizer)
            with atomic_path(folder / "tokenizer") as temporary:
                tokenizer.save_pretrained(temporary)
        dev_rules = Rules(max_tokens=data.rules.max_tokens, max_ratio=ANY_RATIO)
        for name, text, rules in (("train", train, data.rules), ("dev", dev, dev_rules)):

            def progress(pairs: int, name: str = name) -> None:
                set_status(f"cutting {name}: {pairs:,} pairs")

            build_pairs(text, tokenizer, folder / name, rules=rules, progress=progress)
        write_json(folder / "dev.json", [[pair.source, pair.target] for pair in islice(dev, MOST_DEV_TEXT)])


def fingerprints(data: ParallelData) -> list[Any]:
    """Return fingerprints of the text that pairs are made of, as it is now; None where it is gone."""
    return [fingerprint_if_present(lambda split: open_texts(data)[split].fingerprint(), split) for split in range(2)]


def read_test_sets(data: ParallelData) -> list[TestSet]:
    """Read all test sets."""
    return [read_test_set(name, source, languages=data.languages) for name, source in data.test.items()]


def test_fingerprints(data: ParallelData) -> dict[str, Any]:
    """Return fingerprints of the test sets, as they are now; None of what is gone."""
    return {
        name: fingerprint_if_present(
            lambda source: open_test_set(source, languages=data.languages).fingerprint(), source
        )
        for name, source in data.test.items()
    }


def open_texts(data: ParallelData) -> tuple[ParallelText, ParallelText]:
    """Open the training text and the dev text."""

    def opened(source: str, target: str | None, split: str, held_out: float) -> ParallelText:
        return open_parallel(
            source, target, languages=data.languages, split=split, held_out=held_out, on_error=data.on_error
        )

    if data.dev_source is not None:
        return opened(data.source, data.target, "train", 0.0), opened(data.dev_source, data.dev_target, "dev", 0.0)
    names = split_names(data.source)
    without_split = [source_kind(name) == "files" for name in names]
    if any(without_split) != all(without_split):
        raise ValueError(
            f"dev_source: {data.source} joins files, which have no dev split, and Hub datasets, which do. Name "
            f"the text to evaluate on with --dev-source."
        )
    for name in names:
        if source_kind(name) == "hub" and name.count(":") > 2:
            raise ValueError(
                f"dev_source: expected one beside {name}, which is one split, got none. The training text would be "
                f"evaluated on. Name another split, or leave this one out of the source: {name.rpartition(':')[0]}."
            )
    share = data.held_out if all(without_split) else 0.0
    train, dev = (opened(data.source, data.target, split, share) for split in ("train", "dev"))
    return train, dev
