"""What position costs: time, memory, parameters and FLOPs of whole models, beside a baseline in the same run."""

from headway.bench.cost.config import CostConfig
from headway.bench.cost.contestant import TRANSFORMERS
from headway.bench.cost.rounds import measure
from headway.bench.cost.table import (
    PUBLISHED_RATIOS,
    CostTable,
    Measurement,
    Timing,
    print_table,
    published_ratio,
)

__all__ = [
    "PUBLISHED_RATIOS",
    "TRANSFORMERS",
    "CostConfig",
    "CostTable",
    "Measurement",
    "Timing",
    "measure",
    "print_table",
    "published_ratio",
]
