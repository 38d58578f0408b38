"""Parameters that layers or heads share (Chen et al. 2021b, Sec. 4.4), in every encoding that has any."""

import pytest
from acting import effect, inputs, same
from torch.testing import assert_close

from headway.encodings import ENCODINGS

SHARED = [name for name in ENCODINGS if ENCODINGS[name].default_sharing is not None]


def shareable(enc):
    """The parameters that belong to a layer and a head; TUPE's table of positions and its LayerNorm serve all."""
    common = ("table", "norm.weight", "norm.bias") if enc.name.startswith("tupe") else ()
    return [parameter for key, parameter in enc.named_parameters() if key not in common]


@pytest.mark.parametrize("name", SHARED)
def test_layers_that_share_act_alike(build, name):
    enc = build(name, sharing="layer", num_layers=3)
    first, *others = (effect(enc, layer, *inputs(9)) for layer in range(3))
    for other in others:
        same(first, other, rtol=0, atol=0)
    assert all(parameter.shape[0] == 1 for parameter in shareable(enc))


@pytest.mark.parametrize("name", SHARED)
def test_heads_that_share_act_alike(build, name):
    enc = build(name, sharing="head")
    for layer in range(2):
        found = effect(enc, layer, *inputs(9, same_heads=True))
        for value in found.values():
            assert_close(value[:, 0], value[:, 1], rtol=0, atol=1e-12)
    assert all(parameter.shape[:2] == (2, 1) for parameter in shareable(enc))


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("sharing", ["none", "head", "layer"])
def test_what_does_not_share_acts_differently(build, name, sharing):
    enc = build(name, sharing=sharing)
    assert enc.sharing == sharing
    one, other = (effect(enc, layer, *inputs(9, same_heads=True)) for layer in range(2))
    for key in one:
        if sharing != "layer":
            assert (one[key] - other[key]).abs().max().item() > 1e-3
        if sharing != "head":
            assert (one[key][:, 0] - one[key][:, 1]).abs().max().item() > 1e-3


@pytest.mark.parametrize("name", SHARED)
def test_sharing_divides_the_parameters(build, name):
    counts = {
        sharing: sum(parameter.numel() for parameter in shareable(build(name, sharing=sharing, num_layers=3)))
        for sharing in ("none", "head", "layer")
    }
    assert counts["none"] == 3 * counts["layer"] == 2 * counts["head"] > 0
