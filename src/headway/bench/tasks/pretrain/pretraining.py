"""Masked-language-model pretraining: from text to a saved model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from headway.bench.tasks.pretrain.config import FREE, PretrainConfig
from headway.bench.tasks.pretrain.start import load_start
from headway.bench.tasks.pretrain.text import PreparedText, prepare_text
from headway.bench.tasks.training import checkpoint
from headway.bench.tasks.training.checkpoint import save_model
from headway.bench.tasks.training.distributed import Processes, begin_run
from headway.bench.tasks.training.loop import Training
from headway.bench.tasks.training.objective import Batch, MaskedWords
from headway.bench.tasks.training.run_folder import RunFolder
from headway.models import EncoderForMaskedLM
from headway.storage import read_json, settings, write_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """The result of a run; also in its result.json. The model is in `folder`/model.

    Args:
        tokens: number of tokens read in training, without padding.
        loss: training loss in the last line of the log.
        seconds: seconds of all training steps, without evaluations and checkpoints.
        tokens_per_second: median over the lines of the log, of which the first includes compilation.
    """

    folder: str
    parameters: int
    steps: int
    tokens: int
    loss: float
    evaluation_loss: float
    masked_accuracy: float
    seconds: float
    tokens_per_second: float


def run(
    config: PretrainConfig,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    progress: bool = True,
    tensorboard: bool = False,
    fsdp: bool = False,
    cpu: bool = False,
    graphs: bool = True,
) -> Result:
    """Pretrain in this process or, where torchrun or accelerate launch started it, in all of them together.

    Args:
        out: folder of the run; under runs/, named after its settings, unless given.
        resume: continue the run in that folder, or return its result if it is finished.
        progress: show a bar on a terminal, lines elsewhere.
        tensorboard: write curves to the folder's tensorboard/.
        fsdp: shard parameters over the processes instead of keeping a copy in each.
        cpu: do not use a GPU.
        graphs: on a GPU that one process has for itself, replay steps as CUDA graphs.
    """
    processes = Processes(cpu=cpu)
    config = config.resolved(processes.device.type)
    config.optimisation.parts(processes.world)
    folder = RunFolder(Path(out or config.default_folder))
    with begin_run(folder, settings(config), processes, resume=resume, free=FREE) as finished:
        if finished:
            return Result(**{**read_json(folder.result_file), "folder": str(folder.path)})
        return _train(config, folder, processes, progress=progress, tensorboard=tensorboard, fsdp=fsdp, graphs=graphs)


def _train(
    config: PretrainConfig,
    folder: RunFolder,
    processes: Processes,
    *,
    progress: bool,
    tensorboard: bool,
    fsdp: bool,
    graphs: bool,
) -> Result:
    text = prepare_text(config, folder.path / "data", processes, show=progress, continues=folder.has_checkpoint)
    processes.on_main(lambda: folder.check_data(text.fingerprint, config.text.data or folder.path / "data"))
    torch.manual_seed(config.seed)
    model = _model(config, text)
    parameters = model.num_parameters()
    training = Training(
        MaskedWords(model),
        parts=lambda step, rank, world: text.parts(step, config.optimisation, rank, world),
        evaluate=lambda objective: evaluate_held_out(objective, text, processes),
        optimisation=config.optimisation,
        intervals=config.intervals,
        tokens=config.optimisation.batch * text.tokens_per_row,
        seed=config.seed,
        folder=folder,
        processes=processes,
        fsdp=fsdp,
        graphs=graphs and isinstance(model, EncoderForMaskedLM),  # other models may read their masks on the host
    )
    last = training.run(show=progress, tensorboard=tensorboard)
    tensors = checkpoint.model_tensors(model, wanted=processes.main)

    def finish() -> Result:
        save_model(folder, model, tensors, text.tokenizer)
        result = Result(
            folder=str(folder.path),
            parameters=parameters,
            steps=config.optimisation.steps,
            tokens=round(config.optimisation.steps * training.tokens),
            loss=last["loss"],
            evaluation_loss=last["evaluation_loss"],
            masked_accuracy=last["masked_accuracy"],
            seconds=last["seconds"],
            tokens_per_second=median(folder.logged("tokens_per_second")),
        )
        write_json(folder.result_file, asdict(result))
        return result

    return processes.on_main(finish)


def _model(config: PretrainConfig, text: PreparedText) -> PreTrainedModel:
    """Make a new encoder, or load the model to start from."""
    if config.start.model is not None:
        return load_start(config.start, text.tokenizer, config.text.length)
    return EncoderForMaskedLM(
        config.model.config(
            length=config.text.length,
            vocab_size=text.training.shards.vocab_size,
            pad_token_id=text.tokenizer.pad_token_id,
        )
    )


def evaluate(config: PretrainConfig, *, cpu: bool = False) -> dict[str, float]:
    """Return the loss and the accuracy that a model to start from has on held-out text, before any training."""
    processes = Processes(cpu=cpu)
    config = config.resolved(processes.device.type)
    text = prepare_text(config, Path(config.text.data or ""), processes, show=False)
    objective = MaskedWords(load_start(config.start, text.tokenizer, config.text.length)).to(processes.device).eval()
    with torch.inference_mode():
        return evaluate_held_out(objective, text, processes)


def evaluate_held_out(
    objective: Callable[[Batch, Tensor], Tensor], text: PreparedText, processes: Processes
) -> dict[str, float]:
    """Return loss and accuracy on documents that are not trained on, with the same masks every time."""
    sums = torch.zeros(3, dtype=torch.float64, device=processes.device)
    one = torch.ones((), device=processes.device)
    for number in range(len(text.held_out)):
        batch = text.held_out_part(number, processes.rank, processes.world)
        sums += objective({name: processes.to_device(value) for name, value in batch.items()}, one)
    loss, named, masked = processes.sum(sums).tolist()
    return {"evaluation_loss": loss / masked, "masked_accuracy": named / masked}


def load_checkpoint(path: Path) -> tuple[EncoderForMaskedLM, Any]:
    """Load the model of a checkpoint, RUN/checkpoints/step-..., and the tokenizer of its finished run."""
    run_folder = RunFolder(path.parent.parent)
    if not (path / "model.safetensors").is_file() or not run_folder.model.is_dir():
        raise FileNotFoundError(
            f"checkpoint: expected a checkpoint of a finished run, RUN/checkpoints/step-..., got {path}. Runs keep the "
            f"last ones, as many as intervals.keep."
        )
    model = EncoderForMaskedLM.from_pretrained(run_folder.model)
    tensors = load_file(path / "model.safetensors")
    found = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    missing, unknown = model.load_state_dict(found, strict=False)
    known = dict(model.named_parameters())  # tied parameters stand there once, as in a checkpoint
    lost = [*unknown, *(name for name in missing if name in known)]
    if lost:
        raise ValueError(f"checkpoint: expected the tensors of {run_folder.model} in {path}, got others: {lost[0]}.")
    return model.eval(), AutoTokenizer.from_pretrained(run_folder.model)
