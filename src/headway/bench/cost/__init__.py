"""What position costs: time, memory, parameters and FLOPs of whole models, beside a baseline in the same run."""

from headway.bench.cost.config import CostConfig
from headway.bench.cost.contestant import TRANSFORMERS
from headway.bench.cost.measure import measure
from headway.bench.cost.published import PUBLISHED, published
from headway.bench.cost.ratios import Ratio
from headway.bench.cost.table import CostTable, Measurement, Timing

__all__ = [
    "PUBLISHED",
    "TRANSFORMERS",
    "CostConfig",
    "CostTable",
    "Measurement",
    "Ratio",
    "Timing",
    "measure",
    "published",
]
