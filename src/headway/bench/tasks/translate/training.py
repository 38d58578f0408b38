"""Training of a translation model: from parallel text to a saved model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from headway.bench.data.text.tokenizers import highest_id
from headway.bench.data.translation.test_sets import TestSet
from headway.bench.tasks.training import checkpoint
from headway.bench.tasks.training.checkpoint import Snapshots, average, save_model, without_bar
from headway.bench.tasks.training.distributed import Processes, begin_run
from headway.bench.tasks.training.loop import Training
from headway.bench.tasks.training.objective import Batch
from headway.bench.tasks.training.run_folder import RunFolder
from headway.bench.tasks.translate.config import FREE, TranslateConfig
from headway.bench.tasks.translate.data import Prepared, count_left_out, prepare_pairs, read_test_sets
from headway.bench.tasks.translate.decode import Translator
from headway.bench.tasks.translate.objective import NextWords, dev_numbers, dev_sums
from headway.bench.tasks.translate.score import score
from headway.models.translation import TranslationConfig, TranslationModel
from headway.storage import atomic_path, file_name, read_json, settings, write_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The result of a run, which is also in its result.json. The model is in `folder`/model.

    Args:
        tokens: source and target tokens read in training, without padding.
        loss: training loss, with label smoothing, in the last line of the log.
        evaluation_loss, word_accuracy: of the last weights on dev, without smoothing.
        saved: which weights were saved.
        saved_loss: loss of the saved weights on dev.
        bleu, exact_match: scores of the saved model on `translated` pairs of dev; None if there are none.
        scores: scores of the saved model on "dev" and on each test set, with sacrebleu's signatures. `of` is the number
            of sentences in the whole set, and `in_parts` that of sentences that were too long to translate whole.
        left_out: number of pairs that were not used, by split and reason.
        seconds: duration of all training steps, without evaluations and checkpoints.
        tokens_per_second: median over the lines of the log.
        steps_per_second: mean over all training steps.
    """

    folder: str
    parameters: int
    steps: int
    epochs: float
    tokens: int
    loss: float
    evaluation_loss: float
    word_accuracy: float
    saved: str
    saved_loss: float
    bleu: float | None = None
    exact_match: float | None = None
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: float
    tokens_per_second: float
    steps_per_second: float | None = None  # results from before it was written have none


def run(
    config: TranslateConfig,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    progress: bool = True,
    tensorboard: bool = False,
    fsdp: bool = False,
    cpu: bool = False,
    graphs: bool = True,
) -> Result:
    """Train in this process or, if torchrun or accelerate launch started it, in all of them together.

    Args:
        out: folder of the run; under runs/, named after its settings, unless given.
        resume: continue the run in that folder, or return its result if it is finished.
        progress: show a bar on a terminal, lines elsewhere.
        tensorboard: write curves to the folder's tensorboard/.
        fsdp: shard the parameters over the processes instead of copying them to each.
        cpu: do not use a GPU.
        graphs: replay steps as CUDA graphs on a GPU that one process has to itself.
    """
    if fsdp and config.data.translated:
        raise NotImplementedError(
            f"data.translated: expected 0 with --fsdp, because no process has all weights during training, got "
            f"{config.data.translated}. To score dev, name it as a test set, which the saved model translates."
        )
    processes = Processes(cpu=cpu)
    config = config.resolved(processes.device.type)
    folder = RunFolder(Path(out or config.default_folder))
    with begin_run(folder, settings(config), processes, resume=resume, free=FREE) as finished:
        if finished:
            return Result(**{**read_json(folder.result_file), "folder": str(folder.path)})
        return _train(config, folder, processes, progress=progress, tensorboard=tensorboard, fsdp=fsdp, graphs=graphs)


def _train(
    config: TranslateConfig,
    folder: RunFolder,
    processes: Processes,
    *,
    progress: bool,
    tensorboard: bool,
    fsdp: bool,
    graphs: bool,
) -> Result:
    tests = processes.on_main(lambda: read_test_sets(config.data))  # first, so that a missing file is not found last
    data = prepare_pairs(config, folder.path / "data", processes, show=progress, continues=folder.has_checkpoint)
    processes.on_main(lambda: folder.check_data(data.fingerprint, config.data.data or folder.path / "data"))
    torch.manual_seed(config.seed)
    model = TranslationModel(model_config(config, data))
    parameters = model.num_parameters()
    snapshots = Snapshots(
        folder.path / "weights", last=config.average if config.save == "average" else 0, keep_best=config.save == "best"
    )

    def evaluate(objective: Callable[[Batch, Tensor], Tensor]) -> dict[str, float]:
        mine = dev_sums(objective, data.dev.parts(processes.rank, processes.world), processes.device)
        return {**dev_numbers(processes.sum(mine)), **processes.on_main(lambda: dev_scores(model))}

    def dev_scores(model: TranslationModel) -> dict[str, float]:
        if not data.sentences:
            return {}
        found = score_set(Translator(model, data.tokenizer), dev_set(data), config)[0]
        return {"bleu": found["bleu"], "exact_match": found["exact_match"]}

    training = Training(
        NextWords(model),
        parts=data.training.parts,
        evaluate=evaluate,
        optimisation=config.optimisation,
        intervals=config.intervals,
        tokens=data.training.tokens_per_step,
        seed=config.seed,
        folder=folder,
        processes=processes,
        fsdp=fsdp,
        dynamic=True,
        graphs=graphs,
        snapshots=snapshots,
    )
    last = dict(training.run(show=progress, tensorboard=tensorboard))
    tensors = checkpoint.model_tensors(model, wanted=processes.main)

    def finish() -> Result:
        saved, weights = select_weights(config, snapshots, tensors)
        save_model(folder, model, weights, data.tokenizer)
        with torch.no_grad(), training.precision(), without_bar():
            trained = TranslationModel.from_pretrained(folder.model).to(processes.device)
            objective = NextWords(trained).eval()
            saved_loss = dev_numbers(dev_sums(objective, data.dev.parts(), trained.device))["evaluation_loss"]
        scores = score_saved_model(folder, data, tests, config, device=str(processes.device))
        steps = config.optimisation.steps
        result = Result(
            folder=str(folder.path),
            parameters=parameters,
            steps=steps,
            epochs=steps / data.training.steps_per_epoch,
            tokens=round(steps * training.tokens),
            loss=last["loss"],
            evaluation_loss=last["evaluation_loss"],
            word_accuracy=last["word_accuracy"],
            saved=saved,
            saved_loss=saved_loss,
            bleu=scores["dev"]["bleu"] if "dev" in scores else None,
            exact_match=scores["dev"]["exact_match"] if "dev" in scores else None,
            scores=scores,
            left_out=count_left_out(data),
            seconds=last["seconds"],
            steps_per_second=steps / last["seconds"],
            tokens_per_second=median(folder.logged("tokens_per_second")),
        )
        write_json(folder.result_file, asdict(result))
        return result

    return processes.on_main(finish)


def model_config(config: TranslateConfig, data: Prepared) -> TranslationConfig:
    """Make the model's configuration for the vocabulary and lengths of the data."""
    tokenizer = data.tokenizer
    return config.model.config(
        length=config.data.rules.max_tokens,
        vocab_size=highest_id(tokenizer) + 1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
    )


def select_weights(
    config: TranslateConfig, snapshots: Snapshots, last: dict[str, Tensor]
) -> tuple[str, dict[str, Tensor]]:
    """Return a description of the weights to save, and these weights by name."""
    if config.save == "last":
        return "the last weights", last
    if config.save == "best":
        assert snapshots.best is not None  # the last step has an evaluation and a checkpoint
        said, tensors = f"the weights of step {snapshots.best['step']}", snapshots.best_weights()
    else:
        paths = snapshots.steps(config.optimisation.steps)
        said, tensors = f"the average of {len(paths)} checkpoints", average(paths)
    return said, {name.removeprefix("model."): value for name, value in tensors.items()}


def dev_set(data: Prepared) -> TestSet:
    """Return the pairs of dev that are translated, as a test set."""
    sources, references = (list(side) for side in zip(*data.sentences, strict=True))
    return TestSet(name="dev", sentences=sources, references=references, fingerprint=[])


def score_set(translator: Translator, test: TestSet, config: TranslateConfig) -> tuple[dict[str, Any], list[str]]:
    """Translate a test set; return its scores and the translations."""
    split_before = translator.split
    found = [best[0].text for best in translator.translate(test.sentences, **asdict(config.decoding))]
    scores = score(found, [test.references], lowercase=config.lowercase)
    return {**asdict(scores), "of": len(found), "in_parts": translator.split - split_before}, found


def score_saved_model(
    folder: RunFolder, data: Prepared, tests: Sequence[TestSet], config: TranslateConfig, *, device: str
) -> dict[str, dict[str, Any]]:
    """Score the saved model on dev and on all test sets, as `headway translate decode` translates them.

    The translations of test sets are kept in the run's translations/, one file for each.
    """
    if not data.sentences and not tests:
        return {}
    scores = {}
    translator = Translator.load(folder.model, device=device)
    if data.sentences:
        scores["dev"] = score_set(translator, dev_set(data), config)[0] | {"of": data.dev_size}
    for test in tests:
        found, translations = score_set(translator, test, config)
        scores[test.name] = {**found, "fingerprint": test.fingerprint}
        with atomic_path(folder.path / "translations" / f"{file_name(test.name)}.txt") as temporary:
            temporary.write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
    return scores
