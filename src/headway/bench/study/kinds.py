"""The function of each kind of job: it takes a configuration, the folders of the jobs it needs and its own folder.

Each returns the job's result, and continues where an earlier attempt was killed, because the tasks that it calls do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]
Inputs = Mapping[str, Path]
Kind = Callable[[Config, Inputs, Path], dict[str, Any]]

TEXTS = 16  # rows of held-out documents that an analysis reads
TOKENS_BY_LENGTH = 2**17  # most tokens on which the loss at each length is measured
SHOWN_PIXELS = 64  # side of the pictures in a result
SHOWN_OFFSETS = 32  # offsets to either side in the curves of a result


def text(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Train a tokenizer, unless another job's is given, and cut the corpus into rows, which all encodings share."""
    from headway.bench.tasks.pretrain import EncoderChoice, Optimisation, PretrainConfig, Text
    from headway.bench.tasks.pretrain.text import prepare_text
    from headway.bench.tasks.training.distributed import Processes
    from headway.storage import restore

    pretraining = PretrainConfig(
        model=EncoderChoice(encoding="none"),
        text=restore(Text, config),
        optimisation=Optimisation(steps=1, batch=1, learning_rate=1.0, compile=False),
    )
    if "tokenizer" in inputs:
        tokenizer = str(inputs["tokenizer"] / "data" / "tokenizer")
        pretraining = replace(pretraining, text=replace(pretraining.text, tokenizer=tokenizer))
    prepared = prepare_text(pretraining, folder / "data", Processes(cpu=True), show=False)
    shards = prepared.training.shards
    counts = {"words": len(prepared.tokenizer), "rows": len(shards), "tokens": shards.num_tokens}
    return {**counts, "corpus": config["corpus"], "fingerprint": prepared.fingerprint}


def pretrain(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Pretrain an encoder on masked words; the result has the curves of the losses."""
    from headway.bench.tasks.pretrain import PretrainConfig
    from headway.storage import read_json, restore

    pretraining = restore(PretrainConfig, config)
    data = str(inputs["text"] / "data")
    pretraining = replace(pretraining, text=replace(pretraining.text, data=data))
    chosen = {}
    if "rates" in inputs:
        found = read_json(inputs["rates"])
        chosen = {name: found[name] for name in ("learning_rate", "position_rate")}
        pretraining = replace(pretraining, optimisation=replace(pretraining.optimisation, **chosen))
    return {**_run_pretraining(pretraining, folder), **chosen}


def further(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Continue from a pretrained model; with a `rate`, at that share of the rates of its pretraining."""
    from headway.bench.tasks.training.run_folder import RunFolder
    from headway.storage import read_json

    before, asked = RunFolder(inputs["pretrain"] / "run"), _started(config, inputs)
    if "rate" in config:
        made = read_json(before.config_file)["config"]["optimisation"]
        optimisation = replace(
            asked.optimisation,
            learning_rate=config["rate"] * made["learning_rate"],
            position_rate=made["position_rate"],
        )
        asked = replace(asked, optimisation=optimisation)
    return _run_pretraining(asked, folder)


def held_out(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Evaluate a model on the held-out text of its pretraining."""
    from headway.bench.tasks.pretrain import evaluate

    return evaluate(_started(config, inputs))


def _started(config: Config, inputs: Inputs) -> Any:
    """Return a configuration of pretraining that begins with the model and the text of other jobs."""
    from headway.bench.tasks.pretrain import PretrainConfig
    from headway.storage import restore

    asked = restore(PretrainConfig, config)
    return replace(
        asked,
        start=replace(asked.start, model=str(inputs["pretrain"] / "run" / "model")),
        text=replace(asked.text, data=str(inputs["text"] / "data")),
    )


def _run_pretraining(config: Any, folder: Path) -> dict[str, Any]:
    """Pretrain in a folder; return the result with the curves of the losses."""
    from headway.bench.tasks.pretrain import run
    from headway.bench.tasks.training.run_folder import RunFolder
    from headway.storage import read_json

    result = asdict(run(config, folder / "run", resume=True))
    run_folder = RunFolder(folder / "run")
    result["curves"] = {name: _curve(run_folder.log_file, name) for name in ("loss", "evaluation_loss")}
    result["environment"] = read_json(run_folder.config_file)["environment"]
    return result


def trial(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Pretrain to try a pair of learning rates; keep the numbers and not the model. The loss is null if it diverged."""
    import shutil

    from headway.bench.tasks.training.run_folder import Diverged, RunFolder

    try:
        result = pretrain(config, inputs, folder)
    except Diverged as error:
        result = {"evaluation_loss": None, "tokens": None, "why": str(error)}
    for path in (RunFolder(folder / "run").checkpoints, RunFolder(folder / "run").model):
        shutil.rmtree(path, ignore_errors=True)
    return result


def rates(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Choose the pair of learning rates with the lowest held-out loss; `tried` has the whole grid.

    With a `share`, the trainings were of a smaller model, and the learning rate is that share of the chosen one.
    """
    from headway.storage import read_json

    found = [(pair, read_json(inputs[str(number)])) for number, pair in enumerate(config["pairs"])]
    tried = [
        {
            "learning_rate": rate,
            "position_rate": position_rate,
            "loss": each["evaluation_loss"],
            "tokens": each["tokens"],
        }
        for (rate, position_rate), each in found
    ]
    finite = [each for each in tried if each["loss"] is not None]
    if not finite:
        raise ValueError("rates: the training diverged with every pair of rates. Try lower ones.")
    best = min(finite, key=lambda each: float(each["loss"]))
    edges = []
    for name in ("learning_rate", "position_rate"):
        values = sorted({each[name] for each in tried})
        if len(values) > 1 and best[name] in (values[0], values[-1]):
            edges.append(name)
    return {
        **best,
        "learning_rate": config.get("share", 1.0) * best["learning_rate"],
        "at_an_end": edges,
        "tried": tried,
    }


def masked_words(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Give a pretrained encoder a head that predicts masked words: its own, or a new one that shares its words."""
    from headway.pretrained.analysis.loading import load_tokenizer, load_with_head

    return _save_model(folder, load_with_head(config["model"], seed=config["seed"]), load_tokenizer(config["model"]))


def convert(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Supplement or replace the positions of a pretrained encoder; without a change, copy it."""
    from headway.bench.tasks.pretrain import load_checkpoint
    from headway.pretrained.analysis.loading import load_tokenizer
    from headway.pretrained.conversion import convert
    from headway.pretrained.conversion.run import load_original

    source = str(inputs["pretrain"] / "run" / "model") if "pretrain" in inputs else config["model"]
    if (Path(source) / "state.json").is_file():
        model, tokenizer = load_checkpoint(Path(source))
    else:
        model = load_original(source, converts=bool(config["change"]))
        tokenizer = load_tokenizer(source)
    if config["change"]:
        change = {name: value for name, value in config["change"].items() if name != "to"}
        model = convert(model, config["change"]["to"], tokenizer=tokenizer, **change)
    return _save_model(folder, model, tokenizer)


def checkpoint(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Save the model of one checkpoint of a pretraining."""
    from headway.bench.tasks.pretrain import load_checkpoint

    path = inputs["pretrain"] / "run" / "checkpoints" / f"step-{config['step']:08d}"
    return _save_model(folder, *load_checkpoint(path))


def _save_model(folder: Path, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Save a model and its tokenizer where the jobs that need them look; return the job's result."""
    from headway.models.pretrained import quiet_transformers
    from headway.storage import atomic_path, environment

    if not (target := folder / "run" / "model").exists():
        with atomic_path(target) as temporary, quiet_transformers():
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
    return {"parameters": sum(each.numel() for each in model.parameters()), "environment": environment()}


def finetune(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Fine-tune on one task, with every learning rate and seed of the grid."""
    import headway.pretrained.conversion  # noqa: F401  registers converted models with transformers
    from headway.bench.tasks.finetune import FinetuneConfig, run
    from headway.bench.tasks.finetune.data import fingerprints
    from headway.storage import read_json, restore

    sweep = restore(FinetuneConfig, config)
    sources = fingerprints(sweep)
    start = replace(sweep.start, model=str(inputs["pretrain"] / "run" / "model"))
    result = asdict(run(replace(sweep, start=start), folder / "run", resume=True))
    return {**result, "sources": sources, "environment": read_json(folder / "run" / "config.json")["environment"]}


def simple(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Score the most frequent label and a bag of words on a task, as baselines for the models."""
    from headway.bench.tasks.finetune import FinetuneConfig
    from headway.bench.tasks.finetune.baselines import baseline_scores
    from headway.bench.tasks.finetune.data import fingerprints
    from headway.storage import restore

    sweep = restore(FinetuneConfig, config)
    sources = fingerprints(sweep)
    return {"baselines": baseline_scores(sweep), "sources": sources}


def pairs(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Learn a vocabulary and tokenise parallel text, which all encodings share."""
    from headway.bench.tasks.training.distributed import Processes
    from headway.bench.tasks.translate import Optimisation, ParallelData, TranslateConfig, TranslatorChoice
    from headway.bench.tasks.translate.data import prepare_pairs
    from headway.storage import restore

    translation = TranslateConfig(
        model=TranslatorChoice(encoding="none"), data=restore(ParallelData, config), optimisation=Optimisation(steps=1)
    )
    prepared = prepare_pairs(translation, folder / "data", Processes(cpu=True), show=False)
    counts = {"words": len(prepared.tokenizer), "rows": len(prepared.training.pairs)}
    return {**counts, "corpus": [config["source"]], "fingerprint": prepared.fingerprint}


def translate(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Train an encoder-decoder, and score its translations of dev and of the test sets."""
    from headway.bench.tasks.translate import TranslateConfig, run
    from headway.storage import read_json, restore

    translation = restore(TranslateConfig, config)
    data = replace(translation.data, data=str(inputs["pairs"] / "data"))
    result = asdict(run(replace(translation, data=data), folder / "run", resume=True))
    return {**result, "environment": read_json(folder / "run" / "config.json")["environment"]}


def analyse(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Analyse a pretrained model: save all measures in analysis/, and return those that the study's page shows."""
    from headway.pretrained.analysis import analyze, load_model, load_tokenizer, read
    from headway.storage import environment, write_json

    model_folder = str(inputs["pretrain"] / "run" / "model")
    model, tokenizer = load_model(model_folder), load_tokenizer(model_folder)
    measures = analyze(
        model,
        tokenizer,
        _held_out_texts(inputs["text"] / "data", tokenizer) if "text" in inputs else None,
        positions=config["positions"],
        kernels=tuple(config["kernels"]),
        text_length=config["positions"],
        carried=False,
    )
    settings = {
        "model": getattr(model.config, "encoding", model.config.model_type),
        "weights": None,
        "folder": model_folder,
        **config,
    }
    write_json(folder / "analysis" / "config.json", {"config": settings, "environment": environment()})
    measures.save(folder / "analysis")
    table = read(model).positions
    return {**_describe_heads(measures), "table": None if table is None else _describe_table(measures, table)}


def _describe_table(measures: Any, table: Any) -> dict[str, Any]:
    """Return what a study's page shows of E_P E_P^T: its Toeplitz R², and a small picture."""
    from headway.pretrained.analysis.head_measures import shrink
    from headway.pretrained.analysis.measures import to_plain
    from headway.pretrained.analysis.position_table import gram

    measured = measures.table
    small = shrink(gram(table[: measures.model.positions]), SHOWN_PIXELS)[0]
    picture: Any = to_plain(small)
    return {
        "r2": measured.r2,
        "r2_without_first": measured.r2_without_first,
        "r2_off_diagonal": measured.r2_off_diagonal,
        "positions": len(measured.norms),
        "seam": measured.seam.start,
        "picture": picture,
    }


def lengths(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Measure the loss on held-out text in rows of each length; null where a model has no positions for it.

    With an `encoding` the model gets the options of that.
    """
    import torch

    from headway.bench.tasks.pretrain.start import with_encoding
    from headway.models import EncoderForMaskedLM
    from headway.pretrained.analysis import load_tokenizer
    from headway.pretrained.conversion.comparison import loss_by_length

    model_folder = inputs["pretrain"] / "run" / "model"
    tokenizer = load_tokenizer(str(model_folder))
    model = EncoderForMaskedLM.from_pretrained(model_folder)
    if "encoding" in config:
        model = with_encoding(model, config["encoding"])
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    rows = -(-TOKENS_BY_LENGTH // model.config.max_position_embeddings)
    texts = _held_out_texts(inputs["text"] / "data", tokenizer, rows)
    losses = loss_by_length(model, tokenizer, texts, config["lengths"], tokens=TOKENS_BY_LENGTH)
    return {"losses": {str(length): loss for length, loss in losses.items()}}


def minimal_pairs(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Score minimal pairs by pseudo-likelihood."""
    import torch

    from headway.bench.data.transfer.minimal_pairs import fingerprints
    from headway.bench.tasks.minimal_pairs import score_pairs
    from headway.pretrained.analysis.loading import load_masked_words, load_tokenizer

    folder_of_model = str(inputs["pretrain"] / "run" / "model")
    model = load_masked_words(folder_of_model).to("cuda" if torch.cuda.is_available() else "cpu")
    scores = score_pairs(model, load_tokenizer(folder_of_model), config["source"])
    return {**scores.to_json(), "sources": fingerprints(config["source"])}


def cost(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Measure time, memory and FLOPs of whole models."""
    from headway.bench.cost import CostConfig, measure
    from headway.storage import restore

    return measure(restore(CostConfig, config), progress=lambda text: print(text, flush=True)).to_json()


def parameters(config: Config, inputs: Inputs, folder: Path) -> dict[str, Any]:
    """Count the parameters of a model as the DIET paper does."""
    from headway.models.parameters import pretraining_parameters
    from headway.models.presets import preset

    counts = {
        vocabulary: pretraining_parameters(preset(config["preset"], vocab_size=words, **config["model"]))
        for vocabulary, words in config["vocabularies"].items()
    }
    return {"millions": {name: count / 1e6 for name, count in counts.items()}}


KINDS: dict[str, Kind] = {
    "text": text,
    "pretrain": pretrain,
    "trial": trial,
    "further": further,
    "held-out": held_out,
    "rates": rates,
    "minimal-pairs": minimal_pairs,
    "masked-words": masked_words,
    "convert": convert,
    "checkpoint": checkpoint,
    "finetune": finetune,
    "simple": simple,
    "pairs": pairs,
    "translate": translate,
    "analyse": analyse,
    "lengths": lengths,
    "cost": cost,
    "parameters": parameters,
}


def sources_changed_since(kind: str, config: Config, folder: Path, result: Mapping[str, Any]) -> bool:
    """Return whether files that a finished job read have changed since."""
    from headway.bench.data.transfer.minimal_pairs import fingerprints as of_minimal_pairs
    from headway.bench.tasks.finetune import FinetuneConfig
    from headway.bench.tasks.finetune.data import fingerprints as of_tasks
    from headway.bench.tasks.pretrain import Text
    from headway.bench.tasks.pretrain.text import fingerprints as of_text
    from headway.bench.tasks.training.prepared_data import fingerprint_if_present, fingerprints_changed, sources_changed
    from headway.bench.tasks.translate import ParallelData, TranslateConfig
    from headway.bench.tasks.translate.data import fingerprints as of_pairs
    from headway.bench.tasks.translate.data import test_fingerprints as of_test_sets
    from headway.storage import restore

    if kind == "text":
        return sources_changed(folder / "data", of_text(restore(Text, config)))
    if kind == "minimal-pairs":
        today = fingerprint_if_present(of_minimal_pairs, config["source"])
        return today is not None and fingerprints_changed(result["sources"], today)
    if kind == "pairs":
        return sources_changed(folder / "data", of_pairs(restore(ParallelData, config)))
    if kind in ("finetune", "simple") and "sources" in result:
        return fingerprints_changed(result["sources"], of_tasks(restore(FinetuneConfig, config)))
    if kind == "translate":
        now = of_test_sets(restore(TranslateConfig, config).data)
        before = [result["scores"][name]["fingerprint"] for name in now]
        return fingerprints_changed(before, list(now.values()))
    return False


def _curve(log: Path, name: str) -> list[tuple[int, float]]:
    import json

    entries = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    return [(entry["step"], entry[name]) for entry in entries if name in entry]


def _held_out_texts(data: Path, tokenizer: Any, count: int = TEXTS) -> list[str]:
    """Return the text of the first rows of documents that were not trained on."""
    from headway.bench.data import Shards

    shards = Shards(data / "shards", "validation", tokenizer=tokenizer)
    return [tokenizer.decode(shards[at][0], skip_special_tokens=True) for at in range(min(count, len(shards)))]


def _describe_heads(measures: Any) -> dict[str, Any]:
    """Return what a study's page shows of the heads: curves near the diagonal, R², kinds and ranks."""
    import numpy as np

    from headway.pretrained.analysis.measures import to_plain

    heads = measures.heads
    near = np.abs(heads.offsets) <= SHOWN_OFFSETS
    ranks = None if measures.texts is None else measures.texts.ranks
    return {
        "offsets": heads.offsets[near].tolist(),
        "curves": heads.mean[..., near].round(4).tolist(),  # (layers, H, offsets): mean position score
        "toeplitz_r2": np.asarray(heads.r2, dtype=float).round(4).tolist(),
        "kinds": heads.kinds.tolist(),
        "head_dim": measures.model.head_dim,
        "same_token": None if measures.texts is None else to_plain(measures.texts.same_token),
        "ranks": None
        if ranks is None
        else {kind: {"effective": r.effective.round(2).tolist(), "relative": r.relative.round(2).tolist()}
              for kind, r in ranks.average.items()},
    }  # fmt: skip
