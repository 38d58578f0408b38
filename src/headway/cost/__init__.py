"""What position costs: time, memory, parameters and FLOPs of whole models, beside a baseline in the same run."""

from headway.cost.config import CostConfig
from headway.cost.contestant import TRANSFORMERS
from headway.cost.measure import measure
from headway.cost.published import PUBLISHED, published
from headway.cost.ratios import Ratio
from headway.cost.table import CostTable, Measurement, Timing

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
