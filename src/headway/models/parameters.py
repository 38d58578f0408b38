"""Parameters of encoders, counted as in the DIET paper, beside the figures of the paper."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from headway.models.config import EncoderConfig
from headway.models.heads import EncoderForMaskedLM
from headway.models.layers import Pooler
from headway.models.presets import preset

ENGLISH, MULTILINGUAL = 30_522, 120_000  # sizes of the vocabularies: that of BERT, and Sec. 4.2


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterCount:
    """Parameters of one model with an English and a multilingual vocabulary, and the paper's figures in millions."""

    model: str
    english: int
    paper_english: float
    multilingual: int
    paper_multilingual: float


# Chen et al. (2021b), Table 6: the model's encoding, and the paper's numbers. "share" is between layers (Sec. 4.4).
# Of Shaw et al. the paper says that heads share (Sec. 4.4), not where offsets are clipped. With keys and values and no
# positions at the input, only K from 1021 to 1050 gives its numbers (tests/unit/models/test_parameters.py); 1023 is
# twice 512, less one. Texts of 512 positions look up no more than the middle half of these tables.
PAPER: dict[str, tuple[str, float, float]] = {
    "Devlin et al. (learned, input)": ("learned:segments=input", 110.1, 178.9),
    "Shaw et al.": ("shaw:clip=1023,sharing=head,segments=input", 112.9, 181.7),
    "DIET-REL": ("diet-rel:segments=per-head", 109.9, 178.7),
    "DIET-REL, share": ("diet-rel:sharing=layer,segments=per-head", 109.7, 178.5),
    "DIET-ABS, rank 128": ("diet-abs:rank=128,segments=per-head", 128.6, 197.4),
    "DIET-ABS, rank 128, share": ("diet-abs:rank=128,sharing=layer,segments=per-head", 111.3, 180.1),
}


def parameter_table() -> list[ParameterCount]:
    """Count the models of Table 6 of Chen et al. (2021b): BERT-base with 512 positions."""
    return [
        ParameterCount(
            model=model,
            english=pretraining_parameters(preset("bert-base", vocab_size=ENGLISH, encoding=encoding)),
            paper_english=english,
            multilingual=pretraining_parameters(preset("bert-base", vocab_size=MULTILINGUAL, encoding=encoding)),
            paper_multilingual=multilingual,
        )
        for model, (encoding, english, multilingual) in PAPER.items()
    ]


def pretraining_parameters(config: EncoderConfig) -> int:
    """Count parameters as in released BERT models, with pooler and the heads for masked words and the next sentence.

    The model is built on the device "meta", which takes no memory.
    """
    with torch.device("meta"):
        parts: list[nn.Module] = [EncoderForMaskedLM(config), Pooler(config), nn.Linear(config.hidden_size, 2)]
    return sum(parameter.numel() for part in parts for parameter in part.parameters())
