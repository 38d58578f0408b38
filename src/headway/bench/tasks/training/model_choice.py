"""What a run trains: a preset of ours with an encoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.bench.tasks.training.plan import check_changes
from headway.encodings import EncodingChoice


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelChoice:
    """A preset with an encoding; `EncoderChoice` and `TranslatorChoice` say of which kind of model.

    Args:
        encoding: NAME[:OPTION=VALUE,...], such as diet-abs:rank=64,sharing=layer; see `EncodingChoice`.
        changes: other settings of the model's configuration, in place of the preset's.
    """

    preset: str = "tiny"
    encoding: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config()

    @property
    def choice(self) -> EncodingChoice:
        """The encoding with all its options."""
        return EncodingChoice.parse(self.encoding)

    def config(self, *, length: int = 1, **rest: Any) -> Any:
        """Make the model's configuration, with room for `length` positions."""
        raise NotImplementedError

    def _settings(
        self, presets: Mapping[str, Mapping[str, Any]], length: int, rest: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Collect what replaces the preset's settings."""
        check_changes(self.changes, ("encoding",), length)
        longest = max(length, {**presets.get(self.preset, {}), **self.changes}.get("max_position_embeddings", 1))
        return {"encoding": self.encoding, **self.changes, "max_position_embeddings": longest, **rest}
