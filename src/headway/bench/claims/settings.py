"""Which encoding a claim asks for, and which one a result is of: an `EncodingChoice` and the model's attention.

The encoding of a result is read from the configuration that its run wrote, never from a folder's name. What the
configuration leaves open is filled in from the library.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from headway.encodings.base import Dimensions
from headway.encodings.choice import EncodingChoice, with_one_encoding
from headway.encodings.registry import ENCODINGS, option_names
from headway.encodings.scalar_and_diet import AbsScalar, DietAbs
from headway.models import PRESETS
from headway.models.translation import TRANSLATION_PRESETS

EARLIER_NAMES = {"rel-scalar": "diet-rel"}  # one encoding under two names: results of either count for both
PROJECTED = 32  # length to which Chen et al. (2021b), Sec. 4.1, project the keys of GLUE's texts


@dataclass(frozen=True, slots=True)
class Setting:
    """An encoding in a model with full attention or Linformer's.

    Args:
        encoding: of a result, complete, without segments; of a claim, as far as the claim says.
        attention: full or linformer.
    """

    encoding: EncodingChoice
    attention: str = "full"

    @classmethod
    @cache
    def parse(cls, text: str, attention: str = "full") -> Setting:
        """Read what a claim asks for from the text of an encoding.

        Options that the text does not name have their defaults; sharing that it does not name may be any, the
        encoding's own preferred; segments are those of fine-tuned pairs, and may be any likewise.
        """
        return cls(EncodingChoice.parse(text), attention)

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> Setting:
        """Read the setting from the part "model" of a run's configuration."""
        changes = model.get("changes") or {}
        text = with_one_encoding(model)["encoding"]
        return _complete_setting(text, head_width(model.get("preset", "")), changes.get("attention", "full"))

    def fits(self, found: Setting) -> bool:
        """Return whether a result's setting is one that this asks for."""
        asked, other = complete_choice(self.encoding), found.encoding
        if (_latest_name(asked.name), self.attention) != (_latest_name(other.name), found.attention):
            return False
        if self.encoding.sharing is not None and asked.sharing != other.sharing:
            return False
        return all(value in (None, other.options[name]) for name, value in asked.options.items())

    def preference(self, found: Setting) -> tuple[bool, str]:
        """Return a key for sorting settings that fit: the default sharing comes before others."""
        default = complete_choice(EncodingChoice(self.encoding.name)).sharing
        return found.encoding.sharing != default, str(found)

    @property
    def has_parameters(self) -> bool:
        """Return whether any of the encodings has parameters."""
        return _has_parameters(self.encoding.name)

    def __str__(self) -> str:
        return str(self.encoding) + ("" if self.attention == "full" else f", {self.attention}")

    def arguments(self) -> str:
        """Write the setting as options of `headway pretrain` and `headway translate train`."""
        text = f"--encoding {self.encoding.with_segments(None)}"
        if self.attention == "linformer":
            text += " --set model.changes.attention=linformer"
            text += f" --set model.changes.projected_length={PROJECTED}"
        return text

    @property
    def folder(self) -> str:
        """Return a name for the folder of a run, without its segments."""
        text = str(self.encoding.with_segments(None))
        for sign, written in (("sharing=", ""), (":", "-"), (",", "-"), ("=", ""), ("+", "-and-")):
            text = text.replace(sign, written)
        return text + ("" if self.attention == "full" else f"-{self.attention}")


def _latest_name(name: str) -> str:
    return EARLIER_NAMES.get(name, name)


@cache
def _has_parameters(name: str) -> bool:
    smallest = Dimensions(num_layers=1, num_heads=1, head_dim=4, max_length=4)
    return any(True for _ in EncodingChoice(name).build(smallest).parameters())


@cache
def _complete_setting(text: str, width: int | None, attention: str) -> Setting:
    return Setting(complete_choice(EncodingChoice.parse(text), width).with_segments(None), attention)


@cache
def complete_choice(choice: EncodingChoice, width: int | None = None) -> EncodingChoice:
    """Fill in what a choice leaves open: the defaults of options and of sharing, and the rank, a head's width."""
    options: dict[str, Any] = {}
    for name in choice.names:
        options |= default_options(name)
    options |= choice.options
    if options.get("rank", 0) is None and any(issubclass(kind, AbsScalar | DietAbs) for kind in choice.kinds):
        options["rank"] = width
    sharing = next((kind.default_sharing for kind in choice.kinds if kind.default_sharing is not None), None)
    return replace(choice, options=options, sharing=choice.sharing or sharing)


@cache
def default_options(name: str) -> Mapping[str, Any]:
    """Return the options of an encoding with their defaults."""
    parameters = inspect.signature(ENCODINGS[name]).parameters
    return {option: parameters[option].default for option in option_names(ENCODINGS[name])}


def head_width(preset: str) -> int | None:
    """Return the width of a head in a preset; None where there is no such preset."""
    sizes = PRESETS.get(preset) or TRANSLATION_PRESETS.get(preset)
    return None if sizes is None else sizes["hidden_size"] // sizes["num_attention_heads"]
