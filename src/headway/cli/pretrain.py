"""`headway pretrain`: masked-language-model pretraining, from text to a saved model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.options import check_made, check_trained, given, pairs, seed_option, tell_of_new

if TYPE_CHECKING:
    from headway.bench.tasks.pretrain import Result


def pretrain(
    recipe: Annotated[str, typer.Option(help="Where to begin: quick, small, paper or paper-multilingual.")] = "quick",
    model: Annotated[str | None, typer.Option(help="Preset: bert-base, bert-small or tiny.")] = None,
    encoding: Annotated[str | None, typer.Option(help="A name of `headway list`, or several joined by +.")] = None,
    sharing: Annotated[str | None, typer.Option(help="Of the encoding's parameters: none, head or layer.")] = None,
    segments: Annotated[str | None, typer.Option(help="none, input or per-head.")] = None,
    option: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Of the encoding.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Anything else of the model, such as hidden_dropout_prob=0."),
    ] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            help="File, folder, hub:NAME or builtin, or LANGUAGE= and one of these; may be given several times."
        ),
    ] = None,
    text_field: Annotated[str | None, typer.Option(help="Of jsonl, parquet and Hub rows: where the text is.")] = None,
    skip_bad_lines: Annotated[bool, typer.Option("--skip-bad-lines", help="Leave them out, do not stop.")] = False,
    tokenizer: Annotated[str | None, typer.Option(help="Folder or Hub name; else one is trained.")] = None,
    kind: Annotated[str | None, typer.Option(help="Of the tokenizer to train: wordpiece, unigram, word.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Of the tokenizer to train.")] = None,
    data: Annotated[str | None, typer.Option(help="data/ of an earlier run, in place of corpus and tokenizer.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a sequence.")] = None,
    packed: Annotated[
        bool, typer.Option("--packed", help="Several texts a sequence, no padding; else whole sentences of one.")
    ] = False,
    validation: Annotated[float | None, typer.Option(help="Share of the documents to evaluate on.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of the weights.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences of a step, in all processes together.")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Parts of a process's share; more take less memory.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The highest.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Share of the steps in which it rises.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of matrices.")] = None,
    position_rate: Annotated[
        float | None, typer.Option(help="Times the learning rate, for the encoding's parameters; short runs want 10.")
    ] = None,
    seed: Annotated[int | None, seed_option("Of weights, order, masks and dropout.")] = None,
    bf16: Annotated[bool | None, typer.Option("--bf16/--no-bf16", help="bfloat16; else on a GPU only.")] = None,
    compiled: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="torch.compile; else on a GPU only.")
    ] = None,
    graphs: Annotated[bool, typer.Option("--graphs/--no-graphs", help="On a GPU, replay steps as CUDA graphs.")] = True,
    log_every: Annotated[int | None, typer.Option(help="Steps between lines of log.jsonl.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Steps between evaluations.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    keep: Annotated[int | None, typer.Option(help="Checkpoints to keep.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; else runs/NAME-HASH.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves for TensorBoard.")] = False,
    fsdp: Annotated[bool, typer.Option("--fsdp", help="Share parameters out over the processes (FSDP2).")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Leave a GPU alone.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Pretrain an encoder on masked words, from raw text to a model that transformers loads.

    Trains a tokenizer if none is given, cuts the text into sequences, trains, and saves. Without a corpus it learns the
    built-in language, in a few minutes on a laptop. Killed at any moment, it goes on with --resume and ends the same.

    \b
    Examples:
      headway pretrain --encoding diet-abs --option rank=32
      headway pretrain --recipe small --corpus books.txt --encoding tisa --out runs/tisa
      torchrun --nproc-per-node 8 -m headway pretrain --recipe paper --encoding diet-rel
    """
    from headway.cli.failures import told

    with told():
        from headway.bench.tasks.pretrain import run
        from headway.bench.tasks.pretrain.recipes import recipe as named

        unused: dict[str, Any] = {
            "corpus": corpus,
            "text-field": text_field,
            "skip-bad-lines": skip_bad_lines or None,
            "kind": kind,
        }
        unused |= {"tokenizer": tokenizer, "vocab-size": vocab_size, "validation": validation}
        check_made(data, unused)
        check_trained(tokenizer, {"kind": kind, "vocab-size": vocab_size})
        config = named(recipe)
        config = replace(
            config,
            model=given(
                config.model,
                preset=model,
                encoding=encoding,
                sharing=sharing,
                segments=segments,
                options=pairs("option", option),
                changes=pairs("set", change),
            ),
            text=given(
                config.text,
                corpus=tuple(corpus) if corpus else None,
                text_field=text_field,
                skip_bad_lines=skip_bad_lines or None,
                tokenizer=tokenizer,
                kind=kind,
                vocab_size=vocab_size,
                data=data,
                length=length,
                packed=packed or None,
                validation=validation,
            ),
            optimisation=given(
                config.optimisation,
                steps=steps,
                batch=batch,
                accumulate=accumulate,
                learning_rate=learning_rate,
                warmup=warmup,
                weight_decay=weight_decay,
                position_rate=position_rate,
                bf16=bf16,
                compile=compiled,
            ),
            rhythm=given(config.rhythm, log=log_every, evaluate=evaluate_every, checkpoint=checkpoint_every, keep=keep),
            seed=config.seed if seed is None else seed,
        )
        tell_of_new(out or config.default_folder, resume=resume)
        result = run(
            config, out, resume=resume, progress=not quiet, tensorboard=tensorboard, fsdp=fsdp, cpu=cpu, graphs=graphs
        )
        tell(result)


def tell(result: Result) -> None:
    """Name what was written, once, and let the other processes go."""
    from accelerate import PartialState

    state = PartialState()
    if state.is_main_process:
        _tell_of_skipped(Path(result.folder) / "data" / "shards" / "index.json")
        typer.echo(
            f"{result.parameters:,} parameters, {result.steps:,} steps of {result.tokens // result.steps:,} tokens, "
            f"{result.tokens_per_second:,.0f} tokens/s\n"
            f"evaluation: loss {result.evaluation_loss:.3f}, {result.masked_accuracy:.1%} of masked words named\n"
            f"wrote {result.folder}: {', '.join(sorted(path.name for path in Path(result.folder).glob('[!.]*')))}\n"
            f'load it with headway.models.EncoderForMaskedLM.from_pretrained("{result.folder}/model")'
        )
    state.destroy_process_group()


def _tell_of_skipped(index: Path) -> None:
    """How much --skip-bad-lines left out; nothing where the text was made by another run."""
    from headway.storage import read_json

    found = read_json(index) if index.is_file() else {}
    if found.get("skipped"):
        first = next(problem for shard in found["shards"] for problem in shard.get("problems", []))
        typer.echo(f"left out {found['skipped']:,} bad lines of the text, such as {first.split('. ')[0]}; see {index}")
