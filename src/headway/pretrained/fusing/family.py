"""What a family of models is: which of transformers' modules compute attention, and where their bias comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from typing import Any, ClassVar, NamedTuple

import transformers
from torch import Tensor

from headway.bias import Bias

# Names in transformers' registries. Attention is the same. The first is for models that are loaded by name, the others
# for fused ones. Masks are what attention needs to know, or, in models that work on their mask themselves, the same but
# never None, or numbers that are added to the scores.
BY_NAME, FUSED, MASKED, ADDED = "headway", "headway_fused", "headway_masked", "headway_added"


def check_implementation(config: Any) -> None:
    """Raise ValueError if somebody gave a fused model another attention, which would not understand structures."""
    if config._attn_implementation not in (FUSED, MASKED, ADDED):
        raise ValueError(
            f"attn_implementation: the model was fused, and then set to {config._attn_implementation!r}, which cannot "
            f"take its bias as a structure. Call headway.unfuse(model) before you set another."
        )


class BiasAndMask(NamedTuple):
    """What headway's attention is given in place of what transformers would add to the scores."""

    bias: Bias | None
    mask: Tensor | None


class Fused:
    """Base of the classes that make modules of transformers pass on structures in place of matrices.

    A module is fused by giving it a class that inherits from a subclass of this one and from its own class. It keeps
    its parameters, their names and its settings.
    """

    STRUCTURE: ClassVar[str] = ""  # what is added to the scores, in words
    EXPECTS: ClassVar[dict[str, tuple[str, ...]]] = {}  # methods of the original, and their parameters after self

    def bias_and_mask(self, position_bias: Tensor | None, mask: Tensor | None, q: Tensor, k: Tensor) -> BiasAndMask:
        """Return bias and mask of attention, from what the module passes to the attention interface."""
        raise NotImplementedError

    def structure(self) -> str:
        """Describe what is added to the scores of this module."""
        return self.STRUCTURE

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        """Return the reason why this one module cannot be fused, or None."""
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Models that compute attention alike.

    Args:
        models: values of `config.model_type`.
        file: name of transformers' module, after "transformers.models.".
        parts: name of a class of that file -> the subclass of `Fused` for it.
        interface: name of a class that calls the attention interface unchanged -> what is added to its scores.
        left: name of a class that stays transformers' own -> the reason.
        implementation: form of masks that the models need, one of those in this file.
    """

    models: tuple[str, ...]
    file: str
    parts: dict[str, type[Fused]] = field(default_factory=dict)
    interface: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    implementation: str = FUSED

    def original(self, name: str) -> type:
        """Return a class of transformers' file; raise NotImplementedError if this version has none."""
        found: type | None = getattr(import_module(f"transformers.models.{self.file}"), name, None)
        if found is None:
            raise NotImplementedError(
                f"transformers {transformers.__version__} has no {name} in {self.file}; headway knows this family from "
                f"another version. Install one that docs/fuse.md names."
            )
        return found

    def check_version(self) -> None:
        """Raise NotImplementedError unless the classes and methods are those that the family was written for."""
        for name, part in self.parts.items():
            original = self.original(name)
            for method, expected in part.EXPECTS.items():
                found = tuple(signature(getattr(original, method)).parameters) if hasattr(original, method) else ()
                if tuple(each for each in found if each not in ("self", "kwargs")) != expected:
                    raise NotImplementedError(
                        f"{name}.{method}: expected the parameters {', '.join(expected)}, got "
                        f"{', '.join(found) or 'no such method'} in transformers {transformers.__version__}. The "
                        f"attention of this version looks different; the model is unchanged."
                    )
        for name in self.interface:
            self.original(name)
