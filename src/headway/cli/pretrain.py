"""`headway pretrain`: masked-language-model pretraining, from text to a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from accelerate import PartialState

from headway.bench.tasks.pretrain import PretrainConfig, Result, run
from headway.bench.tasks.pretrain.recipes import RECIPES
from headway.bench.tasks.pretrain.recipes import recipe as named
from headway.cli.options import configured, note_fresh_start
from headway.cli.settings import Changes
from headway.storage import read_json

SHOWN = (
    *("model=model.preset", "model.encoding", "start=start.model"),
    *("text.corpus", "text.tokenizer", "text.data", "text.length"),
    *("optimisation.steps", "optimisation.batch", "optimisation.learning_rate", "seed"),
)
AUTO = "transformers.AutoModelForMaskedLM"
TRAINED = ("text.kind", "text.vocab_size")  # of a tokenizer
MADE = ("text.corpus", "text.text_field", "text.skip_bad_lines", "text.tokenizer", "text.validation", *TRAINED)


@configured(PretrainConfig, SHOWN, recipe=named, run=run)
def pretrain(
    recipe: Annotated[str, typer.Option(is_eager=True, help=f"Where to begin: {', '.join(RECIPES)}.")] = "quick",
    *,
    given: Changes,
    options: dict[str, Any],
) -> None:
    """Pretrain an encoder on masked words, from raw text to a model that transformers loads.

    Trains a tokenizer if none is given, cuts the text into sequences, trains, and saves. Without a corpus it learns the
    built-in language, in a few minutes on a laptop. With --start it continues the training of a model: one of ours, one
    that `headway convert` made, or any of transformers that predicts masked words. A run that was killed continues with
    --resume and ends with the same weights.

    \b
    Examples:
      headway pretrain --encoding diet-abs:rank=32
      headway pretrain --recipe small --corpus books.txt --encoding tisa \\
        --out runs/tisa
      headway pretrain --start runs/bert-tisa --corpus books.txt --steps 2000
      torchrun --nproc-per-node 8 -m headway pretrain --recipe paper \\
        --encoding diet-rel
    """
    if given.get("start.model") is not None:
        others = [path for path in given if path.startswith("model.")]
        given.refuse(others, "beside --start", advice="Its own model is taken; `headway convert` changes positions.")
        given.refuse(("text.tokenizer", *TRAINED), "beside --start", advice="Its own tokenizer is taken.")
    if "text.data" in given:
        given.refuse(MADE, f"beside --data, because {given.get('text.data')} is made already")
    if given.get("text.tokenizer") is not None:
        given.refuse(TRAINED, f"beside --tokenizer, because {given.get('text.tokenizer')} is trained already")
    config = given.apply(named(recipe))
    note_fresh_start(options["out"] or config.default_folder, resume=options["resume"])
    show(run(config, **options), "headway.models.EncoderForMaskedLM" if config.start.model is None else AUTO)


def show(result: Result, loader: str) -> None:
    """Name what was written, and what loads it, once, and let the other processes go."""
    state = PartialState()
    if state.is_main_process:
        _report_skipped(Path(result.folder) / "data" / "shards" / "index.json")
        typer.echo(
            f"{result.parameters:,} parameters, {result.steps:,} steps of {result.tokens // result.steps:,} tokens, "
            f"{result.tokens_per_second:,.0f} tokens/s\n"
            f"evaluation: loss {result.evaluation_loss:.3f}, {result.masked_accuracy:.1%} of masked words named\n"
            f"wrote {result.folder}: {', '.join(sorted(path.name for path in Path(result.folder).glob('[!.]*')))}\n"
            f'load it with {loader}.from_pretrained("{result.folder}/model")'
        )
    state.destroy_process_group()


def _report_skipped(index: Path) -> None:
    """Say how many bad lines were left out; nothing where the text was made by another run."""
    found = read_json(index) if index.is_file() else {}
    if found.get("skipped"):
        first = next(problem for shard in found["shards"] for problem in shard.get("problems", []))
        typer.echo(f"left out {found['skipped']:,} bad lines of the text, such as {first.split('. ')[0]}; see {index}")
