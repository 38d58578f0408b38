"""The model that comes out of a run, as transformers loads it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from headway.bench.tasks.training import checkpoint
from headway.bench.tasks.training.runs import RunFolder, writing
from headway.storage import atomic_path


def save_model(folder: RunFolder, model: PreTrainedModel, tensors: dict[str, Tensor], tokenizer: Any) -> None:
    """Model and tokenizer, in the run's model/."""
    if folder.model.exists():  # of an attempt that was killed before it wrote its result
        shutil.rmtree(folder.model)
    last_good = partial(checkpoint.last_good, folder.checkpoints)
    with writing(folder.model, last_good), without_bar(), atomic_path(folder.model) as temporary:
        model.save_pretrained(temporary, state_dict=tensors)
        tokenizer.save_pretrained(temporary)


@contextmanager
def without_bar() -> Iterator[None]:
    """Without transformers' progress bar, which one file does not need."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
