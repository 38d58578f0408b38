"""What was done to a model: the part of its configuration that says so."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headway.encodings import Dimensions, Encoding, EncodingChoice
from headway.encodings.choice import with_one_encoding
from headway.pretrained.conversion.families import FAMILIES

MODES = ("supplement", "replace")
BIASES = ("tisa", "diet-rel", "diet-abs", "t5", "alibi")  # what `convert` adds
SHAW = "shaw"  # what checkpoints of the types relative_key and relative_key_query have


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The bias of a converted model.

    mode "supplement" is Eq. (4a) of Wennberg and Henter (2021): position embeddings stay, a bias is added to the
    scores. "replace" is Eq. (4b): one row, the same for every position, takes the place of their table.
    """

    encoding: str  # NAME[:OPTION=VALUE,...], see `EncodingChoice`
    mode: str
    max_length: int  # longest text of training; the limit of encodings that do not extend
    meets_keys: bool = False  # whether keys meet Shaw's table too (relative_key_query)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {self.mode!r}.")
        if self.choice.name not in (*BIASES, SHAW):
            raise ValueError(f"to: expected one of {', '.join(BIASES)}, got {self.choice.name!r}.")

    @property
    def choice(self) -> EncodingChoice:
        """The encoding with all its options."""
        return EncodingChoice.parse(self.encoding)

    @property
    def replaces(self) -> bool:
        return self.mode == "replace"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, config: Any) -> Conversion:
        """Read the conversion from a converted model's configuration."""
        given = config.position_bias
        if given is None:
            raise ValueError(
                f"config: expected position_bias, which says what is added to the scores, got none in "
                f"{type(config).__name__}. Make converted models with headway.convert; load them with from_pretrained."
            )
        return cls(**with_one_encoding(given))

    def build(self, config: Any, layers: int) -> Encoding:
        """Build the encoding for a model's sizes."""
        family = FAMILIES[config.source_type]
        heads = getattr(config, family.heads)
        head_dim = getattr(config, family.width) // heads
        dims = Dimensions(num_layers=layers, num_heads=heads, head_dim=head_dim, max_length=self.max_length)
        return self.choice.build(dims)
