"""Parameters of encoders beside the figures of papers: whole models as in DIET, those of positions as in TISA."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import AlbertConfig, AutoModel, BertConfig, LongformerConfig, PreTrainedConfig, RobertaConfig

from headway.encodings import encoding
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionCount:
    """Parameters of positions in one model: counted in it, and by a formula.

    Args:
        length: tokens of the longest text; None where there is no limit.
        counted: in the rows of the table that positions use, or in the encoding.
        formula: n d, positions times width, or 3 S H L, kernels, heads and layers, which give the same number.
        said: what the paper says of the number in words; the cells of its table are lost in the text that we have.
    """

    model: str
    length: int | None
    counted: int
    formula: str
    by_formula: int
    said: str = ""


KERNELS = (1, 3, 5)
RELEASED: dict[str, tuple[PreTrainedConfig, str]] = {  # base models as released, and Secs. 2 and 4.2
    "BERT base": (BertConfig(), "typically n = 512"),
    "RoBERTa base": (RobertaConfig(vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1), ""),
    "ALBERT base": (AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072), ""),
    "Longformer base": (
        LongformerConfig(vocab_size=50_265, max_position_embeddings=4098, type_vocab_size=1, attention_window=512),
        "n = 4096, eight times as many",
    ),
}


def position_parameter_table() -> list[PositionCount]:
    """Count the parameters of positions in released models and in TISA (Wennberg and Henter 2021, Table 2).

    Models are built on the device "meta" from the configurations that they were released with.
    """
    rows = []
    for model, (config, said) in RELEASED.items():
        with torch.device("meta"):
            table = AutoModel.from_config(config).embeddings.position_embeddings
        length = table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
        width = getattr(config, "embedding_size", config.hidden_size)
        rows.append(
            PositionCount(
                model=model,
                length=length,
                counted=length * table.weight.shape[1],
                formula=f"{length} x {width}",
                by_formula=length * width,
                said=said,
            )
        )
    heads, layers = BertConfig().num_attention_heads, BertConfig().num_hidden_layers
    for kernels in KERNELS:
        with torch.device("meta"):
            built = encoding(f"tisa:kernels={kernels}", num_layers=layers, num_heads=heads, head_dim=64)
        rows.append(
            PositionCount(
                model=f"TISA, S = {kernels}",
                length=None,
                counted=sum(parameter.numel() for parameter in built.parameters()),
                formula=f"3 x {kernels} x {heads} x {layers}",
                by_formula=3 * kernels * heads * layers,
                said="several orders of magnitude fewer" if kernels == KERNELS[0] else "",
            )
        )
    return rows
