"""Surgery on headway's own encoders, such as `headway pretrain` makes; a `Surgeon`.

The result is another encoder of headway's: supplemented by TISA, "learned" becomes "learned+tisa"; replaced, "tisa".
What an encoder's configuration cannot express is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headway.encodings import ENCODINGS, EncodingChoice, SegmentInput, Together, option_names, parts_of
from headway.pretrained.conversion.conversion import Conversion


def plan(model: Any, to: EncodingChoice, mode: str, max_length: int | None) -> Conversion:
    """Check what is asked, and fill in what the model decides."""
    config = model.config
    if config.attention != "full":
        raise NotImplementedError(
            f"model: expected attention='full', got {config.attention!r}, whose keys are mixtures of all positions: a "
            f"bias has no score of one position for another to be added to."
        )
    own = count_positions(model)
    if max_length not in (None, own) and mode == "supplement":
        raise ValueError(
            f"max_length: expected {own}, the model's positions, which stay in mode 'supplement', got {max_length}. "
            f"Use mode='replace' for other lengths."
        )
    _check_options(model, mode, to)
    to = replace(to, sharing=_sharing(model, to, mode))
    conversion = Conversion(encoding=str(to), mode=mode, max_length=own if max_length is None else max_length)
    if conversion.replaces:
        check_positions_alone(model)
    return conversion


def build(model: Any, conversion: Conversion) -> Any:
    """Build the converted model, its new encoding as drawn."""
    own, added = model.config.choice, conversion.choice
    name, options = added.name, added.options
    if not conversion.replaces:
        name, options = f"{own.name}+{name}", {**own.options, **options}
    choice = EncodingChoice(name, options, added.sharing, own.segments, own.segment_sharing)
    return _build_with(model, choice, max_position_embeddings=conversion.max_length)


def build_without_positions(model: Any, conversion: Conversion) -> Any:
    """Build the model with its positions taken out."""
    check_positions_alone(model)
    own = model.config.choice
    return _build_with(model, EncodingChoice("none").with_segments(own.segments, own.segment_sharing))


def count_positions(model: Any) -> int:
    """Count the positions that the model was made for."""
    return int(model.config.max_position_embeddings)


def count_removed(model: Any) -> int:
    """Count the parameters that are gone when positions are replaced."""
    return sum(parameter.numel() for parameter in model.base_model.encoding.parameters())


def check_positions_alone(model: Any) -> None:
    """Raise for an encoding that does something else than add to the input or to the scores."""
    for part in parts_of(model.base_model.encoding):
        if part.meets_query or set(part.places) - {"input", "scores"}:
            does = "meets the words' queries" if part.meets_query else f"acts on {' and '.join(part.places)}"
            raise NotImplementedError(
                f"model: expected positions that add to the input, or numbers to the scores, got {part.name}, which "
                f"{does}: no bias of positions alone does that. Use mode='supplement' and start='zero' or 'random'."
            )


def _build_with(model: Any, choice: EncodingChoice, **changes: Any) -> Any:
    """Copy the model with another encoding; where the old one is part of it, its parameters stay.

    If the old encoding added to the input, the mean over positions of what it added stays there: in the segments'
    table or, without one, in the embeddings of all words. Where these embeddings are also the output's, the scores of
    all words change there by one number, which the softmax does not see.
    """
    config, base = model.config, model.base_model
    changed = type(config).from_dict({**config.to_dict(), "encoding": str(choice), **changes})
    options = {"add_pooling_layer": False} if base is model and base.pooler is None else {}
    converted = type(model)(changed, **options).to(model.device, model.dtype)
    prefix = "" if base is model else f"{model.base_model_prefix}."
    stays = choice.name.startswith(f"{config.choice.name}+")
    lost, unknown = converted.load_state_dict(_state(model, f"{prefix}encoding.", stays), strict=False)
    wrong = [*unknown, *(name for name in lost if not name.startswith(f"{prefix}encoding."))]
    assert not wrong, f"a converted model has the weights of its original, got {wrong}"
    if not stays:
        _fold_mean(base, converted.base_model)
        _keep_scale(base, converted.base_model)
    converted.train(model.training)
    return converted


def _state(model: Any, prefix: str, stays: bool) -> dict[str, Tensor]:
    """Return all tensors but the old encoding's; if it stays, these too, under the names they have in a sum."""
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(prefix)}
    if stays:
        encoding = model.base_model.encoding
        inside = "" if isinstance(encoding, Together) else "parts.0."
        state |= {f"{prefix}{inside}{name}": tensor for name, tensor in encoding.state_dict().items()}
    return state


@torch.no_grad()
def _fold_mean(old: Any, new: Any) -> None:
    """Add the mean of what the old encoding adds to the input to every token's input."""
    if "input" not in old.encoding.places:
        return
    reached = min(count_positions(old), new.config.max_position_embeddings)
    nothing = torch.zeros(1, reached, old.config.hidden_size, dtype=torch.float64, device=old.device)
    mean = old.encoding.embed(nothing)[0].mean(0)
    table = new.segments.table if isinstance(new.segments, SegmentInput) else new.words.weight
    table.copy_(table.double() + mean)


@torch.no_grad()
def _keep_scale(old: Any, new: Any) -> None:
    """Multiply the queries so that scores keep the old encoding's scale (TUPE's) where the new one has another."""
    usual = old.config.head_dim**-0.5
    ratio = (old.encoding.scale or usual) / (new.encoding.scale or usual)
    if ratio != 1:
        for layer in new.layers:
            for part in (layer.attention.qkv.weight, layer.attention.qkv.bias):
                part[: old.config.hidden_size] *= ratio


def _staying(model: Any, mode: str) -> list[Any]:
    """List the encodings of positions that the converted model keeps."""
    return parts_of(model.base_model.encoding) if mode == "supplement" else []


def _sharing(model: Any, to: EncodingChoice, mode: str) -> str | None:
    """Choose the sharing of the converted model, which holds for all its encodings of positions."""
    own: str | None = model.config.choice.sharing
    asked = to.sharing
    others = {part.name: part.sharing for part in _staying(model, mode) if part.default_sharing is not None}
    if ENCODINGS[to.name].default_sharing is None and asked is None:
        return own if others else None
    wanted = asked or "none"
    if set(others.values()) <= {wanted}:
        return wanted
    if asked is None:
        return own  # those that stay decide
    named = ", ".join(f"{sharing} of {name}" for name, sharing in others.items())
    raise ValueError(
        f"sharing: expected that of the encodings that stay ({named}), because all encodings of positions have one, "
        f"got {asked!r}. Leave it out."
    )


def _check_options(model: Any, mode: str, to: EncodingChoice) -> None:
    """Raise where an encoding that stays has another value of an option: an encoder has one value of each for all."""
    for name, value in to.options.items():
        for part in _staying(model, mode):
            if part.name in ENCODINGS and name in option_names(type(part)) and getattr(part, name) != value:
                raise ValueError(
                    f"{name}: expected {getattr(part, name)}, that of {part.name}, which stays and has the same "
                    f"option, got {value}. Leave it out, or use mode='replace'."
                )
