"""The module that pickled sums of earlier versions refer to; both classes are now in `headway.bias.base`."""

from headway.bias.base import Sum, ValueSum

__all__ = ["Sum", "ValueSum"]
