"""`fuse`, `unfuse` and `fused`: transformers' models, in place, on headway's attention."""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel

from headway.pretrained.fusing.family import ADDED, FUSED, MASKED, Family, Fused
from headway.pretrained.fusing.interface import register
from headway.pretrained.fusing.registry import family_of, fused_class

M = TypeVar("M", bound=nn.Module)

NOT_FUSED = "the model is not fused"
RECORD = "_headway_fused"  # attribute of a fused model: submodule -> its attention implementation before


@dataclass(frozen=True)
class Fusing:
    """What `fuse` did to a model.

    Args:
        replaced: name of an attention module -> the structure that is added to its scores.
        left: name of an attention module that is still transformers' own -> the reason.
    """

    replaced: dict[str, str]
    left: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{name}: {what}" for name, what in self.replaced.items()]
        lines += [f"{name}: left to transformers, {why}" for name, why in self.left.items()]
        return "\n".join(lines) or "no attention modules"


def fuse(model: M) -> M:
    """Give a transformers model headway's attention, in place, and return it.

    Outputs and gradients stay the same, weights, their names and the configuration too, so that `save_pretrained`
    writes a plain checkpoint. `unfuse` puts everything back; `fused` says what was replaced. Queries in the padding
    that may attend to nothing get zeros, where transformers gives them the mean of all values.

    Raises:
        TypeError: it is not a transformers model, but one that wraps it or a part of one.
        ValueError: the model, or a part of it, is fused already.
        NotImplementedError: headway does not know its attention; the message says why. The model is unchanged.
    """
    family = _checked(model)
    swaps = _swaps(model, family)
    if not swaps and not _names(model, family, family.interface):
        raise NotImplementedError(f"model: {type(model).__name__} has no attention that can be fused.")
    register()
    for module, replacement in swaps:
        _change_class(module, replacement)
    setattr(model, RECORD, _exchange_implementations(model, family.implementation))
    return model


def unfuse(model: M) -> M:
    """Undo `fuse`, in place, and return the model."""
    before = getattr(model, RECORD, None)
    if before is None:
        raise ValueError(f"model: {type(model).__name__} is not fused. Give unfuse the model that fuse was given.")
    for module in model.modules():
        if isinstance(module, Fused):
            ancestors = type(module).__mro__
            _change_class(module, ancestors[ancestors.index(Fused) + 1])
    for name, implementation in before.items():
        part: Any = model.get_submodule(name)
        part.config._attn_implementation = {"": implementation}
    delattr(model, RECORD)
    return model


def fused(model: nn.Module) -> Fusing:
    """Return which attention modules of a model run on headway's attention, and why the others do not."""
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model: expected a transformers model, got {type(model).__name__}.")
    family = family_of(model)
    parts = {family.original(name) for name in family.parts}
    through_interface = _names(model, family, family.interface)
    replaced: dict[str, str] = {}
    left = _names(model, family, family.left)
    for name, module in model.named_modules():
        if isinstance(module, Fused) or name in through_interface:
            reason = _why_not_ours(module)
            if reason is None:
                replaced[name] = module.structure() if isinstance(module, Fused) else through_interface[name]
            else:
                left[name] = reason
        elif type(module) in parts:
            left[name] = NOT_FUSED
    return Fusing(replaced, left)


def _why_not_ours(module: Any) -> str | None:
    """Return why a module that could run on headway's attention does not, or None if it does."""
    if isinstance(module, Fused) and (
        type(module).bias_and_mask is Fused.bias_and_mask or not hasattr(module, "config")
    ):
        return None  # it calls headway's attention itself, whatever the configuration says
    found = module.config._attn_implementation
    if found in (FUSED, MASKED, ADDED):
        return None
    return f"attn_implementation was set to {found!r} after fusing" if isinstance(module, Fused) else NOT_FUSED


def _checked(model: Any) -> Family:
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"model: expected a transformers model, got {type(model).__name__}. Fuse the model inside a wrapper: "
            f"get_base_model() of PEFT, [0].auto_model of sentence-transformers, .module of DDP, the model that was "
            f"given to torch.compile. A single layer cannot be fused."
        )
    for name, module in model.named_modules():
        if isinstance(module, Fused) or getattr(module, RECORD, None) is not None:
            where = f"its part {name!r}" if name and getattr(model, RECORD, None) is None else type(model).__name__
            raise ValueError(f"model: {where} is fused already. Call headway.unfuse on what was fused first.")
    family = family_of(model)
    family.check_version()
    return family


def _swaps(model: nn.Module, family: Family) -> list[tuple[nn.Module, type]]:
    """Return the modules to be replaced, each with its new class; raise NotImplementedError if one cannot be.

    All or none: layers hand a structure on to one another, which a layer that is not fused would not understand.
    """
    swaps: list[tuple[nn.Module, type]] = []
    parts: dict[Any, type[Fused]] = {family.original(name): part for name, part in family.parts.items()}
    for name, module in model.named_modules():
        for original, part in parts.items():
            if not isinstance(module, original) or (type(module) in parts and type(module) is not original):
                continue
            reason: str | None = f"it is a {type(module).__name__}, not transformers' {original.__name__}"
            if type(module) is original:
                reason = part.why_not(module) or _why_not_forward(module)
            if reason is not None:
                raise NotImplementedError(f"model: {name} cannot be fused: {reason}. The model is unchanged.")
            swaps.append((module, fused_class(original, part)))
    return swaps


def _held_forward(module: nn.Module) -> list[str]:
    """Return which attributes of a module hold the forward method of its class, as accelerate's hooks do."""
    held = {name: vars(module).get(name) for name in ("forward", "_old_forward")}
    return [name for name, method in held.items() if getattr(method, "__func__", None) is type(module).forward]


def _why_not_forward(module: nn.Module) -> str | None:
    if "forward" not in vars(module) or _held_forward(module):
        return None
    return "its forward method is not its class's own; somebody replaced it on this module"


def _change_class(module: nn.Module, kind: type) -> None:
    """Give a module another class; a hook that holds its forward method gets that of the new class."""
    held = _held_forward(module)
    module.__class__ = kind
    for name in held:
        setattr(module, name, MethodType(kind.forward, module))  # type: ignore[attr-defined]


def _names(model: nn.Module, family: Family, classes: dict[str, Any]) -> dict[str, Any]:
    """Return the names of the modules of these classes of the family's file, each with the value of its class."""
    originals = {family.original(name): what for name, what in classes.items()}
    return {name: originals[type(module)] for name, module in model.named_modules() if type(module) in originals}


def _exchange_implementations(model: nn.Module, name_of_ours: str) -> dict[str, str]:
    """Set headway's attention for the model and the models inside it; return what was set before."""
    before: dict[str, str] = {}
    seen: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, PreTrainedModel) and id(module.config) not in seen:
            seen.add(id(module.config))
            before[name] = module.config._attn_implementation
            module.config._attn_implementation = {"": name_of_ours}
    return before
