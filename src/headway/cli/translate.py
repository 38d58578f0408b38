"""`headway translate`: train a translation model, translate text with it, score translations."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from accelerate import PartialState

from headway.bench.data.reading import source_kind
from headway.bench.tasks.translate import Result, TranslateConfig, Translator, compare, run
from headway.bench.tasks.translate import score as scores_of
from headway.bench.tasks.translate.decode import TOKENS
from headway.bench.tasks.translate.recipes import RECIPES
from headway.bench.tasks.translate.recipes import recipe as named
from headway.bench.tasks.translate.stream import blocks, check_output, file_lines, output
from headway.cli.options import configured, note_fresh_start
from headway.cli.settings import Changes, function_settings
from headway.models.translation import Decoding
from headway.storage import write_json

TRAIN = (
    *("model=model.preset", "model.encoding", "data.source", "data.target", "data.dev_source", "data.dev_target"),
    *("data.test", "data.data", "optimisation.steps", "optimisation.tokens", "optimisation.learning_rate", "seed"),
)
TRAINED = ("data.kind", "data.vocab_size")  # of a tokenizer
READ = ("source", "target", "dev_source", "dev_target", "held_out", "on_error", "tokenizer")
MADE = (*(f"data.{name}" for name in READ), "data.rules.max_ratio", "data.rules.strict", *TRAINED)
DECODE = ("beam", "length_penalty", "n_best", "sample", "temperature", "top_k", "top_p", "seed")


@configured(TranslateConfig, TRAIN, recipe=named, run=run)
def train(
    recipe: Annotated[str, typer.Option(is_eager=True, help=f"Where to begin: {', '.join(RECIPES)}.")] = "quick",
    *,
    given: Changes,
    options: dict[str, Any],
) -> None:
    """Train an encoder-decoder, from parallel text to a model that `headway translate decode` and transformers load.

    Trains a shared vocabulary if none is given, tokenises, trains, and saves. Without a source it learns to translate
    the built-in language, in about a minute. A run that was killed continues with --resume and ends the same. Test sets
    are translated once, by the saved model, with the settings decoding.*, such as --set decoding.beam=10.

    \b
    Examples:
      headway translate train --encoding diet-rel --out runs/quick
      headway translate train --recipe small --source train.en \\
        --target train.de --dev-source dev.en --dev-target dev.de
      headway translate train --recipe small --source pairs.tsv \\
        --test news=news.en,news.de --encoding shaw:clip=4
      torchrun --nproc-per-node 8 -m headway translate train --recipe shaw-big
    """
    if "data.data" in given:
        given.refuse(MADE, f"beside --data, because {given.get('data.data')} is made already")
    if given.get("data.tokenizer") is not None:
        given.refuse(TRAINED, f"beside the tokenizer {given.get('data.tokenizer')}, which is trained already")
    if "data.dev_source" in given:
        given.refuse(["data.held_out"], "beside --dev-source, of which all is dev")
    config = named(recipe)
    if "data.source" in given:  # another source forgets what belongs to the recipe's
        data = replace(config.data, target=None, dev_source=None, dev_target=None, languages=None, test={})
        config = replace(config, data=data)
    config = given.apply(config)
    if source_kind(config.data.source) != "files":
        given.refuse(["data.held_out"], f"beside {config.data.source}, which has a dev split of its own")
    note_fresh_start(options["out"] or config.default_folder, resume=options["resume"])
    show(run(config, **options))


@configured(Decoding, DECODE)
def decode(
    model: Annotated[str, typer.Option(help="Folder such as model/ of a run.")],
    source: Annotated[str, typer.Argument(metavar="INPUT", help="Text file, a sentence a line; - is standard input.")],
    out: Annotated[str | None, typer.Option(help="File to write, whole or not at all; else standard output.")] = None,
    *,
    given: Changes,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Number of tokens beyond which a line is translated in parts; the model's length unless given."
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the sources of a batch, padding counted.")] = TOKENS,
    jobs: Annotated[
        int | None, typer.Option(metavar="<int>", min=1, help="Number of CPU threads; all cores unless given.")
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Do not use a GPU.")] = False,
) -> None:
    """Translate text, a sentence a line, in the order of the lines.

    Empty lines give empty lines. From standard input each line is translated as it comes. With --n-best, lines are
    NUMBER TAB SCORE TAB TEXT.

    \b
    Examples:
      headway translate decode test.en --model runs/en-de/model --out test.hyp
      echo "A dog runs." | headway translate decode - --model runs/en-de/model \\
        --beam 10 --n-best 3
    """
    check_output(out)
    if given.get("sample"):
        given.refuse(["beam"], "beside --sample, which does not search")
    decoding = given.build(Decoding)  # refuses before the model is read
    if jobs is not None:
        torch.set_num_threads(jobs)
    translator = Translator.load(model, device="cpu" if cpu else None, limit=limit, tokens=tokens)
    done = 0
    with output(out) as file:
        for block in blocks(source):
            for found in translator.translate(block, **given.values):
                done += 1
                for each in found:
                    file.write(f"{done}\t{each.score:.4f}\t{each.text}\n" if decoding.n_best > 1 else f"{each.text}\n")
            file.flush()
    if translator.split:
        typer.echo(f"{translator.split} lines of more than {translator.limit} tokens in parts", err=True)
    if out is not None:
        typer.echo(f"wrote {out}: {done:,} lines translated", err=True)


@configured(None, (), run=compare)
def score(
    systems: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Translations; several files are compared with the first.")
    ],
    reference: Annotated[
        list[str], typer.Option(metavar="FILE", help="Reference translation; may be given several times.")
    ],
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Also write the numbers, as JSON.")] = None,
    *,
    options: dict[str, Any],
) -> None:
    """Score translations with SacreBLEU and chrF, and compare systems with its paired bootstrap.

    \b
    Examples:
      headway translate score test.hyp --reference test.de
      headway translate score sinusoidal.hyp shaw.hyp diet-rel.hyp \\
        --reference test.de --out scores.json
    """
    check_output(out)
    if len(set(systems)) < len(systems):
        raise ValueError(f"translations: expected each file once, got {', '.join(systems)}.")
    usual = {name: each.default for name, each in function_settings(compare).items()}
    for name in ("samples", "jobs"):
        if len(systems) < 2 and options[name] != usual[name]:
            raise ValueError(f"{name}: expected several files to compare, got {systems[0]}. Leave --{name} out.")
    texts = {name: list(file_lines(name)) for name in systems}
    references = [list(file_lines(name)) for name in reference]
    found = {name: scores_of(lines, references, lowercase=options["lowercase"]) for name, lines in texts.items()}
    for name, each in found.items():
        typer.echo(
            f"{name}: BLEU {each.bleu:.2f}, chrF {each.chrf:.2f}, exact {each.exact_match:.2%}, "
            f"length {each.length_ratio:.3f}, {each.sentences:,} lines"
        )
    first = next(iter(found.values()))
    typer.echo(f"BLEU: {first.bleu_signature}\nchrF: {first.chrf_signature}")
    compared = compare(texts, references, **options) if len(texts) > 1 else []
    for row in compared:
        beside = "" if row.p_value is None else f", p = {row.p_value:.4f} beside {systems[0]}"
        typer.echo(f"{row.system}: {row.metric} {row.mean:.2f} ± {row.interval:.2f} (95 %){beside}")
    if out is not None:
        numbers = {"systems": {name: asdict(each) for name, each in found.items()}}
        write_json(
            out, {**numbers, "bootstrap": {"samples": options["samples"], "rows": [asdict(row) for row in compared]}}
        )
        typer.echo(f"wrote {out}")


def show(result: Result) -> None:
    """Name what was written, once, and let the other processes go."""

    state = PartialState()
    if state.is_main_process:
        for split, reasons in result.left_out.items():
            if reasons:
                counts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
                typer.echo(f"left out of {split}: {counts}")
        typer.echo(
            f"{result.parameters:,} parameters, {result.steps:,} steps of {result.tokens // result.steps:,} tokens, "
            f"{result.epochs:.1f} epochs, {result.tokens_per_second:,.0f} tokens/s\n"
            f"dev: loss {result.saved_loss:.3f} with {result.saved}"
        )
        for name, scores in result.scores.items():
            part = "" if scores["sentences"] == scores["of"] else f" of {scores['of']:,}"
            typer.echo(
                f"{name}: BLEU {scores['bleu']:.2f}, exact {scores['exact_match']:.1%}, {scores['sentences']:,}{part} "
                f"sentences; {scores['bleu_signature']}"
            )
        typer.echo(
            f"wrote {result.folder}: {', '.join(sorted(path.name for path in Path(result.folder).glob('[!.]*')))}\n"
            f"translate with: headway translate decode INPUT --model {result.folder}/model"
        )
    state.destroy_process_group()
