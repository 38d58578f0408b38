"""One attention function for learned structured biases; `headway.attention` is the function itself."""

from headway.attention.call import BACKENDS, Explanation, attention, explain, self_attention
from headway.attention.triton.multiplied import for_layers

__all__ = ["BACKENDS", "Explanation", "attention", "explain", "for_layers", "self_attention"]
