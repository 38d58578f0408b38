"""From raw text to batches: a tokenizer, shards, and the batches of training and evaluation."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headway.bench.data import EvaluationBatches, MlmBatches, Shards, build_shards, open_corpus, train_tokenizer
from headway.bench.data.text.corpora import Corpus
from headway.bench.tasks.pretrain.config import LANGUAGE, PretrainConfig, Text, without_language
from headway.bench.tasks.training.distributed import Processes
from headway.bench.tasks.training.objective import Batch
from headway.bench.tasks.training.prepared_data import begin_data, fingerprint_if_present, has_settings, status_line
from headway.bench.tasks.training.run_folder import explain_disk_errors
from headway.bench.tasks.training.settings import Optimisation
from headway.storage import atomic_path, settings

UNKNOWN = 0.2  # share of the tokens above which a tokenizer does not fit the text
CHECKED_ROWS = 1000
NOT_IN_DATA = ("data", "evaluation_rows", "mask_probability")  # settings that tokenizer and shards do not depend on


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedText:
    """A tokenizer, batches to train on, and batches of other documents to evaluate on, always masked the same way."""

    tokenizer: PreTrainedTokenizerFast
    training: MlmBatches
    held_out: EvaluationBatches

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of tokenizer and rows."""
        return self.training.shards.fingerprint

    @property
    def tokens_per_row(self) -> float:
        """Return the mean number of tokens in a training row, without padding."""
        return self.training.tokens_per_row

    def parts(self, step: int, optimisation: Optimisation, rank: int, world: int) -> list[Batch]:
        """Return the parts of a step's batch that a process computes."""
        count = optimisation.parts(world)
        return [_with_lengths(self.training.batch(step, part, count)) for part in optimisation.own_parts(rank, world)]

    def held_out_part(self, number: int, part: int, parts: int) -> Batch:
        return _with_lengths(self.held_out.batch(number, part, parts))


def prepare_text(
    config: PretrainConfig, own: Path, processes: Processes, *, show: bool, continues: bool = False
) -> PreparedText:
    """Prepare the text of a configuration; the main process makes what is missing, in the folder `own`.

    A run that `continues` reads the data that it began with, even if the corpus has changed or no longer exists.
    """
    text = config.text
    folder = own if text.data is None else Path(text.data)
    if text.data is None:
        with explain_disk_errors(folder, lambda: "Complete files stay."):
            processes.on_main(lambda: _make(text, folder, show=show, continues=continues))
    tokenizer = AutoTokenizer.from_pretrained(_existing(folder / "tokenizer"))
    shards = {split: Shards(folder / "shards", split, tokenizer=tokenizer) for split in ("train", "validation")}
    if shards["train"].max_length != text.length:
        raise ValueError(
            f"length: expected {shards['train'].max_length}, of the rows in {folder}, got {text.length}. "
            f"Pass --length {shards['train'].max_length}, or leave --data out."
        )
    if shards["train"].packed != text.packed:
        raise ValueError(
            f"packed: expected {shards['train'].packed}, as the rows in {folder} are, got {text.packed}. "
            f"{'Pass' if shards['train'].packed else 'Leave out'} --set text.packed=true, or leave --data out."
        )
    _check_languages(shards["train"])
    if processes.rank == 0:
        _warn_unseen(shards)
    _check_known(shards["validation"])
    plan, masked = config.optimisation, text.mask_probability
    static = bool(plan.compile) or processes.device.type == "cuda"  # compiled once, recorded once
    return PreparedText(
        tokenizer=tokenizer,
        training=MlmBatches(
            shards["train"],
            plan.batch,
            seed=config.seed,
            mask_probability=masked,
            smoothing=text.smoothing,
            static=static,
        ),
        held_out=EvaluationBatches(  # no more rows at a time than in training
            shards["validation"],
            plan.batch // plan.accumulate,
            rows=text.evaluation_rows,
            mask_probability=masked,
            static=static,
        ),
    )


def _check_languages(shards: Shards) -> None:
    """Raise if all of a language is held out, as happens to a file of one document."""
    missing = [name for name, of in shards.index["languages"].items() if of["rows"] and name not in shards.languages]
    if missing:
        raise ValueError(
            f"validation: all text of {', '.join(missing)} is held out, because whole documents are. Put blank lines "
            f"between documents, or lower the share with --set text.validation=SHARE."
        )


def _warn_unseen(shards: dict[str, Shards]) -> None:
    """Warn of languages of which nothing is held out, so that the evaluation says nothing about them."""
    unseen = sorted(set(shards["train"].languages) - set(shards["validation"].languages))
    if unseen:
        warnings.warn(
            f"validation: nothing of {', '.join(unseen)} is held out, so that evaluation_loss does not say how well "
            f"it is learned. Raise it with --set text.validation=SHARE, or put blank lines between its documents.",
            stacklevel=2,
        )


def _check_known(shards: Shards) -> None:
    """Raise if many tokens are unknown: a model would learn to predict [UNK], and score well by that."""
    tokens = shards.batch(range(min(len(shards), CHECKED_ROWS)))
    unknown = (tokens == shards.specials["unk"]).sum() / (tokens != shards.specials["pad"]).sum()
    if unknown > UNKNOWN:
        raise ValueError(
            f"text: {unknown:.0%} of its tokens are unknown to the tokenizer. Train a larger one with "
            f"--set text.vocab_size=SIZE, or give another --tokenizer."
        )


def _load_tokenizer(source: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"tokenizer: expected a folder with a tokenizer, or a name on the Hub, got {source!r}: {error}"
        ) from error


def _make(text: Text, folder: Path, *, show: bool, continues: bool) -> None:
    """Make tokenizer and shards, unless they exist; after an interruption it continues."""
    own = {name: value for name, value in settings(text).items() if name not in NOT_IN_DATA}
    index = folder / "shards" / "index.json"
    if continues and has_settings(folder, own) and index.exists():
        return
    corpora = [_corpus(source, text) for source in text.corpus]
    begin_data(folder, own, [corpus.fingerprint() for corpus in corpora])
    if index.exists():
        return
    with status_line(show) as set_status:
        if (folder / "tokenizer").exists():
            tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
        elif text.tokenizer is None:
            set_status(f"training a tokenizer on {', '.join(text.corpus)}")
            tokenizer = train_tokenizer(
                corpora, text.trained_kind, text.vocab_size, folder / "tokenizer", smoothing=text.smoothing
            )
        else:
            tokenizer = _load_tokenizer(text.tokenizer)
            with atomic_path(folder / "tokenizer") as temporary:
                tokenizer.save_pretrained(temporary)
        build_shards(
            corpora,
            tokenizer,
            folder / "shards",
            max_length=text.length,
            packed=text.packed,
            validation=text.validation,
            progress=lambda documents, tokens: set_status(f"cutting text: {documents:,} documents, {tokens:,} tokens"),
        )


def fingerprints(text: Text) -> list[Any]:
    """Return a fingerprint of each corpus as it is today; None for one that no longer exists."""
    return [
        fingerprint_if_present(lambda source: _corpus(source, text).fingerprint(), source) for source in text.corpus
    ]


def _corpus(source: str, text: Text) -> Corpus:
    """Open the corpus of SOURCE or LANGUAGE=SOURCE."""
    language = LANGUAGE.match(source)
    return open_corpus(
        without_language(source),
        language=language[1] if language else None,
        text_field=text.text_field,
        on_error="skip" if text.skip_bad_lines else "raise",
    )


def _existing(path: Path) -> Path:
    """Return a folder that exists: transformers would look for a missing one on the Hub."""
    if not path.is_dir():
        raise FileNotFoundError(
            f"data: expected a folder with tokenizer/ and shards/, such as data/ of a finished run, got {path.parent}."
        )
    return path


def _with_lengths(batch: Batch) -> Batch:
    """Replace the attention mask by lengths, for which attention has faster paths on every device."""
    if "attention_mask" in batch:
        batch["lengths"] = batch.pop("attention_mask").sum(1)
    return batch
