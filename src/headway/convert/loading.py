"""A model to convert, from a folder or the Hub, with the head it was saved with: safetensors only, no code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoModel
from transformers.utils import logging

from headway.analysis.loading import check_folder
from headway.convert.families import check_family
from headway.convert.registry import MODELS


def load_original(source: str) -> Any:
    """The model, in the class that its configuration names, else without a head."""
    if Path(source).is_dir():
        check_folder(Path(source))
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"model: expected a folder with config.json, or a name on the Hub, got {source!r}: {error}"
        ) from error
    check_family(config.model_type)
    named = [getattr(transformers, name, None) for name in config.architectures or []]
    kind = next((known for known in named if known in MODELS), AutoModel)
    with quiet():
        model, info = kind.from_pretrained(
            source, config=config, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    missing = sorted(name for name in info["missing_keys"] if "pooler" not in name)  # only a task's head uses that
    if missing:
        raise ValueError(
            f"model: expected all weights of {type(model).__name__} in {source!r}, got none for {missing[0]} "
            f"({len(missing)} in all), which would be random numbers. Check that config.json belongs to the weights."
        )
    return model.eval()


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' bars and reports: what is missing raises."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
