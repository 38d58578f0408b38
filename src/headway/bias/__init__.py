"""Structured biases: what an encoding yields and attention consumes."""

from headway.bias.base import Bias, Structured, ValueBias
from headway.bias.dense import Dense
from headway.bias.low_rank import LowRank
from headway.bias.products import RelativeProducts
from headway.bias.relative import EdgeKeys, EdgeValues, RelativeKeys, RelativeValues
from headway.bias.segment import SegmentTable
from headway.bias.sums import Sum, ValueSum
from headway.bias.toeplitz import Toeplitz

__all__ = [
    "Bias",
    "Dense",
    "EdgeKeys",
    "EdgeValues",
    "LowRank",
    "RelativeKeys",
    "RelativeProducts",
    "RelativeValues",
    "SegmentTable",
    "Structured",
    "Sum",
    "Toeplitz",
    "ValueBias",
    "ValueSum",
]
