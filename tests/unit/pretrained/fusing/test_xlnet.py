"""What only XLNet has: memory, two streams, halves of a batch that read backwards, clamped positions."""

from __future__ import annotations

import pytest
import torch
from fusing_cases import Call, pair
from transformers.models.xlnet.modeling_xlnet import XLNetModel

CONFIGURATIONS = {
    "plain": {},
    "clamped": {"clamp_len": 5},
    "backwards": {"bi_data": True},
    "causal": {"attn_type": "uni"},
    "same length": {"attn_type": "uni", "same_length": True},
    "short memory": {"mem_len": 5, "reuse_len": 4},
}


@pytest.fixture
def _positions_in_float64(monkeypatch):
    """Two streams multiply positions in float32 with weights, whatever their numbers are."""
    original = XLNetModel.positional_embedding
    monkeypatch.setattr(XLNetModel, "positional_embedding", staticmethod(lambda *args: original(*args).double()))


def tokens(batch, length, seed=0):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, 60, (batch, length), generator=draw)
    return {"input_ids": ids, "token_type_ids": torch.randint(0, 4, (batch, length), generator=draw)}


def permutation(batch, length, alone, seed=1):
    """Return what two streams need: who sees whom in a random order, of which the first may see nobody, and targets."""
    draw = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(length, generator=draw) for _ in range(batch)])
    hidden = (order[:, :, None] <= order[:, None, :]).double()
    targets = torch.zeros(batch, 3, length, dtype=torch.float64)
    for row in range(batch):
        for i, rank in enumerate((0, 1, length - 1)):
            targets[row, i, order[row].tolist().index(rank)] = 1
    if not alone:
        hidden[order == 0, :2] = 0
    return {"perm_mask": hidden, "target_mapping": targets}


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("changes", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_memory(changes, segments, same):
    model, other = pair("xlnet", **changes)
    inputs = tokens(4, 9)
    if not segments:
        del inputs["token_type_ids"]
    mems = model(**inputs, use_mems=True).mems
    for a, b in zip(mems, other(**inputs, use_mems=True).mems, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-9)
    after = tokens(4, 7, seed=3)
    if not segments:
        del after["token_type_ids"]
    mems = [each.detach() for each in mems]
    same(model, other, Call({**after, "mems": mems}, None))
    if "attn_type" not in changes:
        keep = torch.ones(4, 7, dtype=torch.float64)
        keep[0, :3] = keep[1, -2:] = 0
        same(model, other, Call({**after, "mems": mems, "attention_mask": keep}, None))


@pytest.mark.usefixtures("_positions_in_float64")
@pytest.mark.parametrize("remembered", [0, 6])
@pytest.mark.parametrize("name", ["plain", "clamped", "backwards"])
def test_two_streams(name, remembered, same):
    model, other = pair("xlnet", **CONFIGURATIONS[name])
    inputs = {**tokens(4, 9), **permutation(4, 9, alone=remembered > 0)}
    if remembered:
        draw = torch.Generator().manual_seed(4)
        inputs["mems"] = [torch.randn(remembered, 4, 36, generator=draw, dtype=torch.float64) for _ in range(2)]
    same(model, other, Call(inputs, None))
    theirs, ours = (each(**inputs, output_attentions=True).attentions for each in (model, other))
    for a, b in zip(theirs, ours, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-9)


@pytest.mark.usefixtures("_positions_in_float64")
def test_a_target_that_sees_nobody():
    """It gets the mean of all values. Eager attention's gradient of its scores, which 1e30 swallows, is not ours."""
    model, other = pair("xlnet")
    inputs = {**tokens(4, 9), **permutation(4, 9, alone=True)}
    theirs, ours = (each(**inputs, output_attentions=True) for each in (model, other))
    torch.testing.assert_close(ours.last_hidden_state, theirs.last_hidden_state, rtol=0, atol=1e-9)
    for a, b in zip(theirs.attentions, ours.attentions, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-9)
    assert (theirs.attentions[0][1] == 1 / 9).any()


@pytest.mark.parametrize("use_mems", [False, True])
def test_generation(use_mems):
    model, other = (each.to(torch.float32) for each in pair("xlnet-causal", attn_type="bi"))
    asked = {"max_new_tokens": 6, "do_sample": False, "use_mems": use_mems, "output_scores": True}
    ids = tokens(2, 6)["input_ids"]
    theirs, ours = (each.generate(ids, return_dict_in_generate=True, **asked) for each in (model, other))
    assert torch.equal(theirs.sequences, ours.sequences)
    for a, b in zip(theirs.scores, ours.scores, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-4)


def test_an_odd_batch_cannot_read_backwards():
    with pytest.raises(ValueError, match=r"expected an even number of sequences \(config.bi_data\), got 3"):
        pair("xlnet", bi_data=True)[1](**tokens(3, 5))


def test_the_layers_get_no_matrix_of_segments():
    other = pair("xlnet")[1]
    given = []
    attention = other.layer[1].rel_attn
    attention.register_forward_pre_hook(lambda module, args: given.append((args[5], module.segments.k.shape)))
    other(**tokens(2, 9))
    assert given == [(None, (2, 1, 9, 4))]
    assert attention.segments is None
