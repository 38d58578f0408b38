"""One update of the weights, all of it on the device; on a GPU it is recorded once for each width and then replayed."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from headway.bench.data.transfer.encoded import Resident
from headway.bench.recording import NotRecorded, Recordings
from headway.bench.tasks.finetune.model import TransferLoss
from headway.bench.tasks.training.loop import seed_dropout
from headway.bench.tasks.training.optimizer import hold_rates, set_rate
from headway.bench.tasks.training.runs import RunStopped
from headway.models import EncoderConfig


class Update:
    """Batch, loss, gradients and optimizer of a run.

    Args:
        batch: sequences of a step; always as many.
        clip: greatest norm of the gradient.
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
            hold_rates(optimizer, device)

    def __call__(
        self, chosen: NDArray[np.int64], *, rate: float, seed: int
    ) -> tuple[Tensor, Tensor]:  # loss and norm of the gradient before clipping; the next step writes over them
        self.chosen.copy_(self.train.numbers(chosen))
        set_rate(self.optimizer, rate)
        seed_dropout(self.train.device, seed)
        width = self.train.width(chosen)
        try:
            self.recordings(width, lambda: self._step(width))
        except NotRecorded as error:
            raise RunStopped(
                f"graphs: expected a step of width {width} that can be recorded, got: {error} "
                f"Start again with --resume and --no-graphs."
            ) from error
        return self.value, self.norm

    def _step(self, width: int) -> None:
        """Nothing here waits for the device, or depends on anything but what lies there."""
        batch = self.train.batch(self.chosen, width)
        with torch.autocast(self.train.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.loss(batch, self.count)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.loss.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.value.copy_(loss.detach())
        self.norm.copy_(norm)


def recordable(model: PreTrainedModel, *, length: int) -> bool:
    """Whether a step can be recorded: that of our encoders reads no value on the host, others may.

    Beyond the length that an encoder was made for, encodings may make their tables anew.
    """
    config = model.config
    return isinstance(config, EncoderConfig) and length <= config.max_position_embeddings
