"""What an encoding does to queries, keys, scores and values, as tensors that can be compared."""

import torch
from torch.testing import assert_close

SIZES = {"num_layers": 2, "num_heads": 2, "head_dim": 4, "max_length": 16}
E = 8
TOGETHER = ["learned+tisa", "sinusoidal+diet-rel", "rope+alibi", "shaw+t5", "learned+shaw", "t5+synthesizer"]
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def random(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scale_of(enc):
    return 4**-0.5 if enc.scale is None else enc.scale


def acts(enc, layer, x, q, k, *, q_start=0, k_len=None, segments=None, documents=None):
    """All that an encoding yields for the queries q_start .. q_start + L, as tensors with a query axis.

    x: (B, L, E); q, k: (B, H, L, D) of the same positions; k_len: the number of keys, all before the last query.
    """
    length = q.shape[2]
    k_len = q_start + length if k_len is None else k_len
    found = {"embed": enc.embed(x, q_start=q_start, segments=segments, documents=documents)}
    found["q"], found["k"] = enc.rotate(q, k, layer=layer, q_start=q_start, documents=documents)
    bias = enc.bias(layer, length, k_len, q_start, segments=segments, documents=documents)
    if bias is not None:
        assert bias.shape[2:] == (length, k_len)
        found["bias"] = bias.dense(found["q"], scale=scale_of(enc)).expand(q.shape[0], q.shape[1], -1, -1)
    value_bias = enc.value_bias(layer, length, k_len, q_start)
    if value_bias is not None:
        dense = value_bias.dense(q_len=length, k_len=k_len)
        found["values"] = dense.expand(q.shape[0], q.shape[1], -1, -1, -1)
    return found


def inputs(length, *, batch=2, seed=1, same_heads=False):
    x, q, k = random(batch, length, E, seed=seed), *random(2, batch, 2, length, 4, seed=seed + 1).unbind(0)
    if same_heads:
        q, k = (t[:, :1].expand(-1, 2, -1, -1) for t in (q, k))
    return x, q, k


def same(one, other, **tolerance):
    assert one.keys() == other.keys()
    for key in one:
        assert_close(one[key], other[key], **(tolerance or EXACT), msg=lambda text, key=key: f"{key}: {text}")


def effect(enc, layer, x, q, k):
    """The acts with the scores they lead to: what a layer notices of the encoding."""
    found = acts(enc, layer, x, q, k)
    scores = scale_of(enc) * found["q"] @ found["k"].transpose(-1, -2) + found.get("bias", 0)
    return {"scores": scores} | ({"values": found["values"]} if "values" in found else {})
