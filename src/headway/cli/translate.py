"""`headway translate`: train a translation model, translate text with it, score translations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.options import seed_option

if TYPE_CHECKING:
    from headway.bench.tasks.translate import Result, TranslateConfig

translate = typer.Typer(
    help="Train a translation model, translate text with it, score translations.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@translate.command()
def train(
    recipe: Annotated[
        str, typer.Option(help="Where to begin: quick, small, shaw-base, shaw-big or diet-base.")
    ] = "quick",
    model: Annotated[str | None, typer.Option(help="Preset: shaw-base, diet-base, big, small or tiny.")] = None,
    encoding: Annotated[str | None, typer.Option(help="A name of `headway list`, or several joined by +.")] = None,
    sharing: Annotated[str | None, typer.Option(help="Of the encoding's parameters: none, head or layer.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--encoding-option", metavar="NAME=VALUE", help="Of the encoding, such as clip=16 or values=false."
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Anything else of the model, such as hidden_dropout_prob=0."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            help="Text file (with --target), file of sentence TAB translation, .jsonl, hub:NAME, "
            "or builtin[:PAIRS[:SEED]]."
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Text file that translates --source line by line.")] = None,
    dev_source: Annotated[str | None, typer.Option(help="To evaluate on; else a share of --source.")] = None,
    dev_target: Annotated[str | None, typer.Option(help="Translations of --dev-source.")] = None,
    held_out: Annotated[float | None, typer.Option(help="That share of a file, by its sentences.")] = None,
    languages: Annotated[str | None, typer.Option(help="Direction of .jsonl and Hub rows, such as en-de.")] = None,
    on_error: Annotated[
        str | None, typer.Option(help="raise stops at rows that cannot be read, skip leaves them out and counts.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at pairs that are not fit to learn from, in place of counting them.")
    ] = False,
    max_tokens: Annotated[int | None, typer.Option(help="Longest side of a pair.")] = None,
    max_ratio: Annotated[float | None, typer.Option(help="Longer side over shorter side, in tokens.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Folder; else one is trained.")] = None,
    kind: Annotated[str | None, typer.Option(help="Of the tokenizer to train: bpe, unigram, word.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Of the tokenizer to train.")] = None,
    data: Annotated[str | None, typer.Option(help="data/ of an earlier run, in place of texts and tokenizer.")] = None,
    translated: Annotated[int | None, typer.Option(help="Dev pairs to translate and score in each evaluation.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of the weights.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Source and target tokens of a batch, at most.")] = None,
    step_tokens: Annotated[int | None, typer.Option(help="Target tokens of a step, about.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The highest; else Vaswani et al.'s, by width.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Steps in which it rises.")] = None,
    position_rate: Annotated[
        float | None,
        typer.Option(help="Times the learning rate, for the encoding's parameters; short runs want 10."),
    ] = None,
    clip: Annotated[float | None, typer.Option(help="Largest norm of the gradients; else none.")] = None,
    save: Annotated[str | None, typer.Option(help="As the model: average, best (on dev) or last.")] = None,
    average: Annotated[int | None, typer.Option(help="Checkpoints to average.")] = None,
    seed: Annotated[int | None, seed_option("Of weights, order and dropout.")] = None,
    bf16: Annotated[bool | None, typer.Option("--bf16/--no-bf16", help="bfloat16; else on a GPU only.")] = None,
    compiled: Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile; else not.")] = None,
    graphs: Annotated[bool, typer.Option("--graphs/--no-graphs", help="On a GPU, replay steps as CUDA graphs.")] = True,
    log_every: Annotated[int | None, typer.Option(help="Steps between lines of log.jsonl.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Steps between evaluations.")] = None,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    keep: Annotated[int | None, typer.Option(help="Checkpoints to keep to resume from.")] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; else runs/NAME-HASH.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves for TensorBoard.")] = False,
    fsdp: Annotated[bool, typer.Option("--fsdp", help="Share parameters out over the processes (FSDP2).")] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Leave a GPU alone.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Train an encoder-decoder, from parallel text to a model that `headway translate decode` and transformers load.

    Trains a shared vocabulary if none is given, tokenises, trains, and saves. Without a source it learns to translate
    the built-in language, in about a minute. Killed at any moment, it goes on with --resume and ends the same.

    \b
    Examples:
      headway translate train --encoding diet-rel --out runs/quick
      headway translate train --recipe small --source train.en --target train.de --dev-source dev.en --dev-target dev.de
      headway translate train --recipe small --source pairs.tsv --encoding shaw --encoding-option clip=4
      torchrun --nproc-per-node 8 -m headway translate train --recipe shaw-big
    """
    from headway.cli.failures import told

    with told():
        from headway.bench.tasks.translate import run
        from headway.bench.tasks.translate.recipes import recipe as named
        from headway.cli.options import check_made, check_trained, given, pairs, tell_of_new

        unused: dict[str, Any] = {
            "source": source,
            "target": target,
            "dev-source": dev_source,
            "dev-target": dev_target,
        }
        unused |= {"held-out": held_out, "tokenizer": tokenizer, "kind": kind, "vocab-size": vocab_size}
        unused |= {"languages": languages, "on-error": on_error, "max-ratio": max_ratio, "strict": strict or None}
        check_made(data, unused)
        check_trained(tokenizer, {"kind": kind, "vocab-size": vocab_size})
        if dev_source is not None and held_out is not None:
            raise ValueError("held_out: expected none beside dev_source, of which all is dev, got both.")
        config = named(recipe)
        if encoding is not None and encoding != config.model.encoding:  # the recipe's options are of its own encoding
            config = replace(config, model=replace(config.model, encoding=encoding, sharing=None, options={}))
        config = replace(
            config,
            model=given(
                config.model,
                preset=model,
                sharing=sharing,
                options=_added(config.model.options, pairs("encoding-option", option)),
                changes=_added(config.model.changes, pairs("set", change)),
            ),
            data=_data(
                config,
                dev_source=dev_source,
                dev_target=dev_target,
                held_out=held_out,
                languages=languages,
                on_error=on_error,
                rules=given(config.data.rules, strict=strict or None, max_tokens=max_tokens, max_ratio=max_ratio),
                tokenizer=tokenizer,
                kind=kind,
                vocab_size=vocab_size,
                data=data,
                translated=translated,
                source=source,
                target=target,
            ),
            optimisation=given(
                config.optimisation,
                steps=steps,
                tokens=tokens,
                step_tokens=step_tokens,
                learning_rate=learning_rate,
                warmup=warmup,
                position_rate=position_rate,
                clip=clip,
                bf16=bf16,
                compile=compiled,
            ),
            rhythm=given(config.rhythm, log=log_every, evaluate=evaluate_every, checkpoint=checkpoint_every, keep=keep),
            save=save or config.save,
            average=config.average if average is None else average,
            seed=config.seed if seed is None else seed,
        )
        if held_out is not None and config.data.source.split(":")[0] in ("builtin", "hub"):
            raise ValueError(
                f"held_out: expected none beside {config.data.source}, which has a dev split of its own, got "
                f"{held_out}. Leave --held-out out, or give a file as --source."
            )
        tell_of_new(out or config.default_folder, resume=resume)
        result = run(
            config, out, resume=resume, progress=not quiet, tensorboard=tensorboard, fsdp=fsdp, cpu=cpu, graphs=graphs
        )
        tell(result)


@translate.command()
def decode(
    model: Annotated[str, typer.Option(help="Folder such as model/ of a run.")],
    source: Annotated[str, typer.Argument(metavar="INPUT", help="Text file, a sentence a line; - is standard input.")],
    out: Annotated[str | None, typer.Option(help="File to write, whole or not at all; else standard output.")] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses that live at a time; 1 is greedy; else 4.")] = None,
    length_penalty: Annotated[float, typer.Option(help="Alpha of ((5 + length) / 6)^alpha.")] = 0.6,
    n_best: Annotated[
        int, typer.Option(help="Translations a line; above 1 as lines of NUMBER TAB SCORE TAB TEXT.")
    ] = 1,
    limit: Annotated[
        int | None, typer.Option(help="Longer lines, in tokens, are translated in parts; else the model's length.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Of the sources of a batch, padding counted.")] = 4096,
    max_length_ratio: Annotated[
        float, typer.Option(help="A translation has at most this many times its source ...")
    ] = 1.0,
    max_length_plus: Annotated[int, typer.Option(help="... and this many tokens.")] = 50,
    sample: Annotated[bool, typer.Option("--sample", help="Draw at random, in place of searching.")] = False,
    temperature: Annotated[float, typer.Option(help="Of sampling.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Of sampling: words to draw from.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Of sampling: their probability together.")] = None,
    seed: Annotated[int | None, seed_option("Of sampling.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Threads, on a CPU; else all cores.")] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Leave a GPU alone.")] = False,
) -> None:
    """Translate text, a sentence a line, in the order of the lines.

    Empty lines give empty lines. From standard input each line is translated as it comes.

    \b
    Examples:
      headway translate decode test.en --model runs/en-de/model --out test.hyp
      echo "A dog runs." | headway translate decode - --model runs/en-de/model --beam 10 --n-best 3
    """
    from headway.cli.failures import told

    with told():
        import torch

        from headway.bench.tasks.translate import Translator
        from headway.bench.tasks.translate.stream import blocks, check_output, output
        from headway.models.translation import Decoding

        check_output(out)
        if not sample and (temperature, top_k, top_p, seed) != (1.0, None, None, None):
            raise ValueError("temperature, top_k, top_p, seed: expected --sample beside them, got a search without it.")
        if sample and beam is not None:
            raise ValueError("beam: expected none beside --sample, which does not search, got both. Leave --beam out.")
        decoding: dict[str, Any] = {"length_penalty": length_penalty, "n_best": n_best}
        decoding |= {"max_length_ratio": max_length_ratio, "max_length_plus": max_length_plus}
        if sample:
            decoding |= {"sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        elif beam is not None:
            decoding["beam"] = beam
        Decoding(**decoding)  # refuses before the model is read
        if jobs is not None:
            if jobs < 1:
                raise ValueError(f"jobs: expected at least 1, got {jobs}.")
            torch.set_num_threads(jobs)
        translator = Translator.load(model, device="cpu" if cpu else None, limit=limit, tokens=tokens)
        done = 0
        with output(out) as file:
            for block in blocks(source):
                for found in translator.translate(block, **decoding):
                    done += 1
                    for each in found:
                        file.write(f"{done}\t{each.score:.4f}\t{each.text}\n" if n_best > 1 else f"{each.text}\n")
                file.flush()
        if translator.split:
            typer.echo(f"{translator.split} lines of more than {translator.limit} tokens in parts", err=True)
        if out is not None:
            typer.echo(f"wrote {out}: {done:,} lines translated", err=True)


@translate.command()
def score(
    systems: Annotated[
        list[str], typer.Argument(metavar="TRANSLATIONS...", help="Text files; several are compared with the first.")
    ],
    reference: Annotated[list[str], typer.Option(help="Text file; may be given several times.")],
    samples: Annotated[
        int | None, typer.Option(help="Of the paired bootstrap, for several systems; else 1000.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes, for several systems; else 1.")] = None,
    out: Annotated[str | None, typer.Option(help="Also write the numbers, as JSON.")] = None,
) -> None:
    """Score translations with SacreBLEU and chrF, and compare systems with its paired bootstrap.

    \b
    Examples:
      headway translate score test.hyp --reference test.de
      headway translate score sinusoidal.hyp shaw.hyp diet-rel.hyp --reference test.de --out scores.json
    """
    from headway.cli.failures import told

    with told():
        from dataclasses import asdict

        from headway.bench.tasks.translate import compare
        from headway.bench.tasks.translate import score as scored
        from headway.bench.tasks.translate.stream import check_output, read_lines
        from headway.storage import write_json

        check_output(out)
        if len(set(systems)) < len(systems):
            raise ValueError(f"translations: expected each file once, got {', '.join(systems)}.")
        for name, value in (("samples", samples), ("jobs", jobs)):
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}.")
            if value is not None and len(systems) < 2:
                raise ValueError(f"{name}: expected several files to compare, got {systems[0]}. Leave --{name} out.")
        samples, jobs = samples or 1000, jobs or 1
        texts = {name: read_lines(name) for name in systems}
        references = [read_lines(name) for name in reference]
        found = {name: scored(lines, references) for name, lines in texts.items()}
        for name, each in found.items():
            typer.echo(
                f"{name}: BLEU {each.bleu:.2f}, chrF {each.chrf:.2f}, exact {each.exact_match:.2%}, "
                f"length {each.length_ratio:.3f}, {each.sentences:,} lines"
            )
        first = next(iter(found.values()))
        typer.echo(f"BLEU: {first.bleu_signature}\nchrF: {first.chrf_signature}")
        compared = compare(texts, references, samples=samples, jobs=jobs) if len(texts) > 1 else []
        for row in compared:
            beside = "" if row.p_value is None else f", p = {row.p_value:.4f} beside {systems[0]}"
            typer.echo(f"{row.system}: {row.metric} {row.mean:.2f} ± {row.interval:.2f} (95 %){beside}")
        if out is not None:
            numbers = {"systems": {name: asdict(each) for name, each in found.items()}}
            write_json(out, {**numbers, "bootstrap": {"samples": samples, "rows": [asdict(row) for row in compared]}})
            typer.echo(f"wrote {out}")


def _data(config: TranslateConfig, **values: Any) -> Any:
    """The data that are asked for; a new source forgets the recipe's target, languages and dev text."""
    from headway.cli.options import given

    start = config.data
    if values["source"] is not None:
        start = replace(start, target=None, dev_source=None, dev_target=None, languages=None)
    return given(start, **values)


def _added(before: Any, more: dict[str, Any] | None) -> dict[str, Any]:
    return {**before, **(more or {})}


def tell(result: Result) -> None:
    """Name what was written, once, and let the other processes go."""
    from accelerate import PartialState

    state = PartialState()
    if state.is_main_process:
        for split, reasons in result.left_out.items():
            if reasons:
                counts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
                typer.echo(f"left out of {split}: {counts}")
        scores = "" if result.bleu is None else f", BLEU {result.bleu:.1f}, exact {result.exact_match:.1%}"
        typer.echo(
            f"{result.parameters:,} parameters, {result.steps:,} steps of {result.tokens // result.steps:,} tokens, "
            f"{result.epochs:.1f} epochs, {result.tokens_per_second:,.0f} tokens/s\n"
            f"dev: loss {result.saved_loss:.3f}{scores} with {result.saved}\n"
            f"wrote {result.folder}: {', '.join(sorted(path.name for path in Path(result.folder).glob('[!.]*')))}\n"
            f"translate with: headway translate decode INPUT --model {result.folder}/model"
        )
    state.destroy_process_group()
