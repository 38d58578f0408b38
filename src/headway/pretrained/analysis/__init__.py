"""What a model's positions learned: read it, measure it, say it in numbers."""

try:
    import scipy  # noqa: F401
    import threadpoolctl  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "headway.pretrained.analysis needs scikit-learn: pip install 'headway[metrics]'"
    ) from error

from headway.pretrained.analysis.anatomy import Layer, Reading
from headway.pretrained.analysis.fused_models import FusedModel, read_fused
from headway.pretrained.analysis.head_measures import Curves, Fits, HeadMeasures, bias_curves, measure_heads
from headway.pretrained.analysis.hugging_face import FAMILIES, PartPaths
from headway.pretrained.analysis.loading import load_model, load_tokenizer, read
from headway.pretrained.analysis.measures import Measures, analyze
from headway.pretrained.analysis.patterns import KINDS, Patterns, Thresholds, attention_patterns
from headway.pretrained.analysis.position_table import (
    TableMeasures,
    cosine_distribution,
    cosine_matrix,
    find_seam,
    measure_table,
)
from headway.pretrained.analysis.scores import Scores, position_scores, segment_attention, segment_scores, text_scores
from headway.pretrained.analysis.text_measures import Ranks, TextMeasures, TextRanks, measure_texts, ranks
from headway.pretrained.analysis.tisa_fit import TisaFit, fit_tisa
from headway.pretrained.analysis.toeplitz import Diagonals, diagonals, toeplitz_fit, toeplitz_r2, windowed_r2

__all__ = [
    "FAMILIES",
    "KINDS",
    "Curves",
    "Diagonals",
    "Fits",
    "FusedModel",
    "HeadMeasures",
    "Layer",
    "Measures",
    "PartPaths",
    "Patterns",
    "Ranks",
    "Reading",
    "Scores",
    "TableMeasures",
    "TextMeasures",
    "TextRanks",
    "Thresholds",
    "TisaFit",
    "analyze",
    "attention_patterns",
    "bias_curves",
    "cosine_distribution",
    "cosine_matrix",
    "diagonals",
    "find_seam",
    "fit_tisa",
    "load_model",
    "load_tokenizer",
    "measure_heads",
    "measure_table",
    "measure_texts",
    "position_scores",
    "ranks",
    "read",
    "read_fused",
    "segment_attention",
    "segment_scores",
    "text_scores",
    "toeplitz_fit",
    "toeplitz_r2",
    "windowed_r2",
]
