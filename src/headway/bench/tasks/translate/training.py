"""Training of a translation model: from parallel text to a saved model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from headway.bench.data.text.tokenizers import highest_id
from headway.bench.tasks.training import checkpoint
from headway.bench.tasks.training.loop import Training
from headway.bench.tasks.training.objective import Batch
from headway.bench.tasks.training.processes import Processes
from headway.bench.tasks.training.runs import RunFolder
from headway.bench.tasks.training.saving import save_model, without_bar
from headway.bench.tasks.training.session import begun
from headway.bench.tasks.training.snapshots import Snapshots, average
from headway.bench.tasks.translate.config import FREE, TranslateConfig
from headway.bench.tasks.translate.data import Prepared, left_out, prepared
from headway.bench.tasks.translate.decode import Translator
from headway.bench.tasks.translate.objective import NextWords, dev_numbers, dev_sums
from headway.bench.tasks.translate.score import score
from headway.models.translation import TranslationConfig, TranslationModel
from headway.storage import read_json, settings, write_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What came out of a run; also in its result.json. The model is in `folder`/model.

    Args:
        tokens: of sources and targets read in training, without padding.
        loss: of training, smoothed, in the last line of the log.
        evaluation_loss, word_accuracy: of the last weights on dev, without smoothing.
        saved: which weights were saved.
        saved_loss: of these on dev.
        bleu, exact_match: of translations of dev by the saved model; None where none were asked for.
        left_out: pairs that were not used, by split and reason.
        seconds: of all training steps, without evaluations and checkpoints.
        tokens_per_second: the median of the lines of the log.
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
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: float
    tokens_per_second: float


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
    """Train in this process or, where torchrun or accelerate launch started it, in all of them together.

    Args:
        out: the run's folder; unless given, `config.default_folder`.
        resume: continue the run in that folder, or return its result if it is finished.
        progress: show a bar on a terminal, lines elsewhere.
        tensorboard: write curves to the folder's tensorboard/.
        fsdp: share the parameters out over the processes, in place of a copy in each.
        cpu: leave a GPU alone.
        graphs: on a GPU that one process has for itself, replay steps as CUDA graphs.
    """
    if fsdp and config.data.translated:
        raise NotImplementedError(
            f"translated: expected 0 with fsdp, whose weights no process has whole, got {config.data.translated}. "
            f"Translate dev with the saved model."
        )
    processes = Processes(cpu=cpu)
    config = config.resolved(processes.device.type)
    folder = RunFolder(Path(out or config.default_folder))
    with begun(folder, settings(config), processes, resume=resume, free=FREE) as finished:
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
    data = prepared(config, folder.path / "data", processes, show=progress, continues=folder.has_checkpoint)
    processes.on_main(lambda: folder.trains_on(data.fingerprint, config.data.data or folder.path / "data"))
    torch.manual_seed(config.seed)
    model = TranslationModel(model_config(config, data))
    parameters = model.num_parameters()
    snapshots = Snapshots(
        folder.path / "weights", last=config.average if config.save == "average" else 0, keep_best=config.save == "best"
    )

    def evaluate(objective: Callable[[Batch, Tensor], Tensor]) -> dict[str, float]:
        mine = dev_sums(objective, data.dev.parts(processes.rank, processes.world), processes.device)
        return {**dev_numbers(processes.total(mine)), **processes.on_main(lambda: translated(model, data))}

    training = Training(
        NextWords(model),
        parts=data.training.parts,
        evaluate=evaluate,
        plan=config.optimisation,
        rhythm=config.rhythm,
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
        saved, weights = chosen(config, snapshots, tensors)
        save_model(folder, model, weights, data.tokenizer)
        with torch.no_grad(), training.precision(), without_bar():
            found = judged(TranslationModel.from_pretrained(folder.model).to(processes.device), data)
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
            saved_loss=found["evaluation_loss"],
            bleu=found.get("bleu"),
            exact_match=found.get("exact_match"),
            left_out=left_out(data),
            seconds=last["seconds"],
            tokens_per_second=median(folder.logged("tokens_per_second")),
        )
        write_json(folder.result_file, asdict(result))
        return result

    return processes.on_main(finish)


def model_config(config: TranslateConfig, data: Prepared) -> TranslationConfig:
    """The model's configuration for the data's vocabulary and lengths."""
    tokenizer = data.tokenizer
    return config.model.config(
        length=config.data.rules.max_tokens,
        vocab_size=highest_id(tokenizer) + 1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
    )


def chosen(config: TranslateConfig, snapshots: Snapshots, last: dict[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """What is saved, in words, and the model's tensors by name."""
    if config.save == "last":
        return "the last weights", last
    if config.save == "best":
        assert snapshots.best is not None  # the last step has an evaluation and a checkpoint
        said, tensors = f"the weights of step {snapshots.best['step']}", snapshots.best_weights()
    else:
        paths = snapshots.steps(config.optimisation.steps)
        said, tensors = f"the average of {len(paths)} checkpoints", average(paths)
    return said, {name.removeprefix("model."): value for name, value in tensors.items()}


def judged(model: TranslationModel, data: Prepared) -> dict[str, float]:
    """All that an evaluation tells, of a model that one process has whole."""
    objective = NextWords(model).eval()
    return {**dev_numbers(dev_sums(objective, data.dev.parts(), model.device)), **translated(model, data)}


def translated(model: TranslationModel, data: Prepared) -> dict[str, float]:
    """Scores of the model's translations of sentences of dev; nothing where there are none."""
    if not data.sentences:
        return {}
    sources, references = (list(side) for side in zip(*data.sentences, strict=True))
    found = [best[0].text for best in Translator(model, data.tokenizer).translate(sources)]
    scores = score(found, [references])
    return {"bleu": scores.bleu, "exact_match": scores.exact_match}
