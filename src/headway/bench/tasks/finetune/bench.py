"""What the runs of a sweep train, one after the other: a model on its device, its optimizer and its update.

Recording a step takes as long as many steps do, and every width of a batch has a recording. So a run puts its weights
where those of the run before are, and replays what is recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from headway.bench.data.transfer.encoded import Resident
from headway.bench.tasks.finetune.config import FinetuneConfig
from headway.bench.tasks.finetune.data import Material
from headway.bench.tasks.finetune.model import TransferLoss
from headway.bench.tasks.finetune.update import Update, recordable
from headway.bench.tasks.training import checkpoint
from headway.bench.tasks.training.optimizer import adamw, encoding_parameters
from headway.bench.tasks.training.processes import Processes


class Bench:
    """Of one sweep and one process.

    Args:
        model: the first run's; the runs after it must have models of the same configuration.
        graphs: on a GPU, replay steps as CUDA graphs where the model allows it.
    """

    def __init__(
        self, config: FinetuneConfig, model: PreTrainedModel, data: Material, processes: Processes, *, graphs: bool
    ) -> None:
        self.config, self.processes = config, processes
        self.model = model
        self.loss = TransferLoss(model, config.task_set.kind).to(processes.device)
        rate = config.protocol.position_rate
        if rate != 1 and next(encoding_parameters(model), None) is None:
            raise ValueError(
                f"position_rate: expected 1 for a model whose encodings have no parameters of headway's, got {rate:g}. "
                "Give the rate of everything as learning rate."
            )
        self.optimizer = adamw(self.loss, weight_decay=config.protocol.weight_decay, position_rate=rate)
        self.train = Resident(data.train, processes.device)
        on = graphs and processes.device.type == "cuda"
        self.record = on and recordable(model, length=config.protocol.length)
        self.update = self._update()

    def _update(self) -> Update:
        protocol = self.config.protocol
        return Update(
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
        """A run with the model's weights, and an optimizer that has seen no gradient; no tensor moves."""
        self.model.load_state_dict(model.state_dict())
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def resumed(self, checkpoints: Path) -> dict[str, Any]:
        """Go on from the last checkpoint, if there is one, and return its numbers. The optimizer then has new tensors,
        which no recording knows."""
        saved = checkpoint.load(checkpoints, self.loss, self.optimizer)
        if saved is None:
            return {"step": 0}
        self.update = self._update()
        return saved
