"""A training step, all of it on the device, and the model that the runs of a sweep train in turn.

On a GPU a step is recorded as a CUDA graph once for each width of a batch, then replayed. Recording takes as long as
many steps, so a run copies its weights into the tensors of the run before it, and replays that run's graphs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from headway.bench.data.transfer.encoded import Resident
from headway.bench.recording import NotRecorded, Recordings
from headway.bench.tasks.finetune.config import FinetuneConfig
from headway.bench.tasks.finetune.data import SweepData
from headway.bench.tasks.finetune.model import TransferLoss
from headway.bench.tasks.training import checkpoint
from headway.bench.tasks.training.distributed import Processes
from headway.bench.tasks.training.loop import seed_dropout
from headway.bench.tasks.training.optimizer import adamw, encoding_parameters, rates_as_tensors, set_rate
from headway.bench.tasks.training.run_folder import RunStopped
from headway.models import EncoderConfig


class TrainingStep:
    """Trains on one batch: computes loss and gradients, and updates the weights.

    Args:
        batch: number of sequences, the same in every step.
        clip: largest norm of the gradient.
        record: replay steps as CUDA graphs, one for each width.
    """

    def __init__(
        self,
        loss: TransferLoss,
        optimizer: Optimizer,
        train: Resident,
        *,
        batch: int,
        clip: float,
        bf16: bool,
        record: bool,
    ) -> None:
        self.loss, self.optimizer, self.train = loss, optimizer, train
        self.clip, self.bf16 = clip, bf16
        device = train.device
        self.chosen = torch.zeros(batch, dtype=torch.int64, device=device)
        self.count = torch.full((), float(batch), device=device)
        self.value, self.norm = torch.zeros((), device=device), torch.zeros((), device=device)
        self.recordings = Recordings(on=record, optimizer=optimizer)
        if record:
            rates_as_tensors(optimizer, device)

    def __call__(
        self, chosen: NDArray[np.int64], *, rate: float, seed: int
    ) -> tuple[Tensor, Tensor]:  # loss, and norm of the gradient before clipping; the next step overwrites them
        """Train on the chosen sequences, with a learning rate and a seed for dropout."""
        self.chosen.copy_(self.train.numbers(chosen))
        set_rate(self.optimizer, rate)
        seed_dropout(self.train.device, seed)
        width = self.train.width(chosen)
        try:
            self.recordings(width, lambda: self._compute(width))
        except NotRecorded as error:
            raise RunStopped(
                f"A step of width {width} could not be recorded as a CUDA graph: {error} "
                f"Start again with --resume and --no-graphs."
            ) from error
        return self.value, self.norm

    def _compute(self, width: int) -> None:
        """Compute a step. It can be recorded, because it never waits for the device and reads nothing from the host."""
        batch = self.train.batch(self.chosen, width)
        with torch.autocast(self.train.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.loss(batch, self.count)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.loss.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.value.copy_(loss.detach())
        self.norm.copy_(norm)


class SharedModel:
    """A model on its device, its optimizer and its step, which all runs of a sweep in one process use in turn.

    Args:
        model: the first run's model; later runs must have models of the same configuration.
        graphs: on a GPU, replay steps as CUDA graphs where the model allows it.
    """

    def __init__(
        self, config: FinetuneConfig, model: PreTrainedModel, data: SweepData, processes: Processes, *, graphs: bool
    ) -> None:
        self.config, self.processes = config, processes
        self.model = model
        self.loss = TransferLoss(model, config.task_spec.kind).to(processes.device)
        rate = config.protocol.position_rate
        if rate != 1 and next(encoding_parameters(model), None) is None:
            raise ValueError(
                f"position_rate: got {rate:g}, but this model has no encoding of headway with parameters, to which it "
                f"would apply. Leave it out, and set the learning rate."
            )
        self.optimizer = adamw(self.loss, weight_decay=config.protocol.weight_decay, position_rate=rate)
        self.train = Resident(data.train, processes.device)
        on = graphs and processes.device.type == "cuda"
        self.record = on and is_recordable(model, length=config.protocol.length)
        self.step = self._new_step()

    def _new_step(self) -> TrainingStep:
        protocol = self.config.protocol
        return TrainingStep(
            self.loss,
            self.optimizer,
            self.train,
            batch=min(protocol.batch, len(self.train.lengths)),
            clip=protocol.clip,
            bf16=bool(protocol.bf16),
            record=self.record,
        )

    @torch.no_grad()
    def begin(self, model: PreTrainedModel) -> None:
        """Start a new run: copy the model's weights into this one and reset the optimizer, both in place."""
        self.model.load_state_dict(model.state_dict())
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def resume(self, checkpoints: Path) -> dict[str, Any]:
        """Load the last checkpoint, if there is one, and return its numbers.

        Loading gives the optimizer new tensors, so that steps must be recorded anew.
        """
        saved = checkpoint.load(checkpoints, self.loss, self.optimizer)
        if saved is None:
            return {"step": 0}
        self.step = self._new_step()
        return saved


def is_recordable(model: PreTrainedModel, *, length: int) -> bool:
    """Return whether a model's steps can be recorded as CUDA graphs, which must not read values on the host.

    Our encoders do not, up to the length they were made for; beyond it encodings may build new tables.
    """
    config = model.config
    return isinstance(config, EncoderConfig) and length <= config.max_position_embeddings
