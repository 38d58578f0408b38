"""The base class of all models: how they are initialized, loaded and checkpointed as transformers models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

from headway.encodings import Encoding


class HeadwayPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """A transformers model with the encoding that its configuration names."""

    supports_gradient_checkpointing = True
    _input_embed_layer = "words"
    _resettable: ClassVar[tuple[type[nn.Module], ...]] = (Encoding,)  # modules with a reset_parameters to call

    def __init__(self, config: Any) -> None:
        config.check()
        super().__init__(config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if not isinstance(module, self._resettable):
            super()._init_weights(module)
            return
        # Loaded parameters stay; only those that a checkpoint lacks, and buffers, are initialized.
        loaded = [(p, p.clone()) for p in module.parameters() if getattr(p, "_is_hf_initialized", False)]
        module.reset_parameters()  # type: ignore[operator]
        for parameter, value in loaded:
            parameter.copy_(value)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load as transformers does, except that a tensor without a place in this model is an error, not a warning."""
        asked = kwargs.get("attn_implementation")
        if asked not in (None, "eager"):
            raise ValueError(
                f"attn_implementation: expected none, got {asked!r}. headway chooses how to attend in each call, "
                f"by its bias, lengths and device. Leave it out."
            )
        wants_info = kwargs.pop("output_loading_info", False)
        model, info = super().from_pretrained(pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs)
        unknown = sorted(info["unexpected_keys"])
        if unknown:
            shown = ", ".join(unknown[:8]) + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else "")
            raise ValueError(
                f"{pretrained_model_name_or_path}: expected tensors of {cls.__name__} with {model._choices()}, "
                f"got also {shown}. Load it with the configuration it was saved with."
            )
        return (model, info) if wants_info else model

    def _choices(self) -> str:
        """Describe the choices of the configuration that tensors depend on."""
        return f"encoding {self.config.encoding!r}"

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        asked = {"use_reentrant": False, **(gradient_checkpointing_kwargs or {})}
        if asked["use_reentrant"]:
            raise ValueError(
                "use_reentrant: expected False, got True. Biases that layers share come from outside the checkpointed "
                "layer, and reentrant checkpointing would lose their gradients."
            )
        super().gradient_checkpointing_enable(gradient_checkpointing_kwargs=asked, **kwargs)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the reports and progress bars of transformers, where everything that matters in them raises an error."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
