"""What is DeBERTa's own: masks of pairs, relative positions and queries that a caller gives, two kinds of dropout."""

from __future__ import annotations

import pytest
import torch
from fusing_cases import call_of, pair, tiny_model

import headway as hw
from headway.pretrained.fusing.families.deberta import scale_of

NAMES = ["deberta", "deberta-v2", "deberta-v3"]


def base(model):
    return model.deberta if hasattr(model, "deberta") else model


@pytest.mark.parametrize("name", NAMES)
def test_every_position_of_the_table_is_read(name):
    """Lengths at which the clipped or the last bucket begins, on either side of it."""
    span = tiny_model(name).config.max_relative_positions
    for length in (span - 1, span, span + 1, 3 * span):
        model, other = pair(name, max_position_embeddings=3 * span)
        call = call_of(name, 1, length, "none")
        torch.testing.assert_close(call.compared(other), call.compared(model), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_real_buckets_up_to_the_longest_sequence(name):
    sizes = {"max_position_embeddings": 512, "num_hidden_layers": 1, "max_relative_positions": -1}
    if name != "deberta":
        sizes["position_buckets"] = 256
    model, other = pair(name, **sizes)
    for length in (129, 512):
        call = call_of(name, 1, length, "right")
        torch.testing.assert_close(call.compared(other), call.compared(model), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_of_pairs_is_taken_as_it_is(name):
    # transformers' convolution takes no mask of pairs.
    model, other = pair(name) if name == "deberta" else pair(name, conv_kernel_size=0)
    keep = torch.rand(2, 9, 9, generator=torch.Generator().manual_seed(5)) < 0.6
    keep |= torch.eye(9, dtype=torch.bool)
    hidden = torch.randn(2, 9, 36, dtype=torch.float64)
    for kind in (torch.bool, torch.long, torch.float64):
        theirs, ours = (base(each).encoder(hidden, keep.to(kind)).last_hidden_state for each in (model, other))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["deberta-v2", "deberta-v3"])
def test_queries_of_their_own(name):
    """As an enhanced mask decoder gives them: keys and values are those of another layer."""
    model, other = pair(name)
    hidden, queries = torch.randn(2, 2, 9, 36, dtype=torch.float64)
    mask = torch.ones(2, 9)
    theirs, ours = (base(each).encoder(hidden, mask, query_states=queries).last_hidden_state for each in (model, other))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_queries_of_their_own_in_version_1():
    """transformers transposes three axes there, and fails; the values are those of the queries' projection."""
    other = pair("deberta")[1]
    hidden, queries = torch.randn(2, 2, 9, 36, dtype=torch.float64)
    attention, encoder = base(other).encoder.layer[0].attention.self, base(other).encoder
    given = {"relative_pos": encoder.get_rel_pos(hidden), "rel_embeddings": encoder.get_rel_embedding()}
    whole = attention(torch.cat([hidden, hidden]), None, **given)[0]
    torch.testing.assert_close(attention(hidden, None, query_states=hidden.clone(), **given)[0], whole[:2])
    changed = attention(hidden, None, query_states=queries, **given)[0]
    assert (changed - whole[:2]).abs().max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_relative_positions_of_the_caller_are_refused(name):
    other = base(pair(name)[1])
    hidden, matrix = torch.randn(1, 9, 36, dtype=torch.float64), torch.zeros(1, 9, 9, dtype=torch.long)
    with pytest.raises(NotImplementedError, match="relative_pos: a fused encoder computes"):
        other.encoder(hidden, torch.ones(1, 9), relative_pos=matrix)
    layer = other.encoder.layer[0]
    for given, got in ((matrix, r"\(1, 9, 9\)"), (None, "None")):
        with pytest.raises(NotImplementedError, match=f"relative_pos: expected the rows of offsets .*got {got}"):
            layer(hidden, None, relative_pos=given, rel_embeddings=other.encoder.get_rel_embedding())


def test_talking_heads_are_refused_by_name():
    model = tiny_model("deberta", talking_head=True)
    with pytest.raises(NotImplementedError, match=r"attention.self cannot be fused: config.talking_head mixes"):
        hw.fuse(model)
    assert not hw.fused(model).replaced


def test_fused_says_which_products_there_are():
    words = {name: list(hw.fused(pair(name)[1]).replaced.values())[1] for name in (*NAMES, "deberta-c2p")}
    assert words["deberta"] == words["deberta-v3"] == "RelativeProducts: c2p and p2c"
    assert words["deberta-c2p"] == "RelativeProducts: c2p"
    assert list(hw.fused(pair("deberta-absolute")[1]).replaced.values())[1] == "no bias"


@pytest.mark.parametrize("which", ["dropout", "pos_dropout"])
@pytest.mark.parametrize("name", [*NAMES, "sew-d"])
def test_dropout_spreads_the_output_as_in_transformers(name, which):
    spread = []
    for model in pair(name):
        encoder = model.sew_d.encoder.encoder if name == "sew-d" else base(model).encoder
        attention = encoder.layer[0].attention.self.train()
        setattr(getattr(attention, which), "drop_prob" if name == "sew-d" else "p", 0.3)
        hidden = torch.randn(1, 12, 36, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
        mask = encoder.get_attention_mask(torch.ones(1, 12))
        given = {"relative_pos": encoder.get_rel_pos(hidden), "rel_embeddings": encoder.get_rel_embedding()}
        torch.manual_seed(11)
        with torch.no_grad():
            outputs = torch.stack([attention(hidden, mask, **given)[0] for _ in range(300)])
            attention.eval()
            without = attention(hidden, mask, **given)[0]
        spread.append((outputs.std(0).mean().item(), (outputs.mean(0) - without).abs().mean().item()))
    (theirs, shift), (ours, our_shift) = spread
    assert theirs > 0.01
    assert ours == pytest.approx(theirs, rel=0.1)
    assert our_shift == pytest.approx(shift, rel=0.5)


@pytest.mark.parametrize("name", NAMES)
def test_compiled(name, same):
    model, other = pair(name)
    other.forward = torch.compile(other.forward, backend="aot_eager", dynamic=False)
    tolerance = 1e-3 if name == "deberta" else 1e-9  # the normalisation of version 1 is in float32
    same(model, other, call_of(name, 2, 13, "right"), tolerance)


def test_the_scale_is_that_of_the_originals():
    from transformers.models.deberta_v2.modeling_deberta_v2 import scaled_size_sqrt

    for width in (6, 8, 64):
        for terms in (1, 2, 3):
            assert 1 / scaled_size_sqrt(torch.zeros(2, width), terms).item() == scale_of(width, terms)


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("name", [*NAMES, "deberta-v2-p2c", "deberta-absolute"])
def test_padding_gets_what_eager_attention_gives_it(name, padding, same):
    """The mean of all values: a loss over all tokens sees it, such as that of spans."""
    call = call_of(name, 3, 14, padding)
    assert not call.keep.all()
    call.keep = None
    same(*pair(name), call)


@pytest.mark.parametrize("name", ["deberta", "deberta-v3"])
def test_loss_of_spans_with_padding(name):
    model, other = pair(name, kind=f"Deberta{'' if name == 'deberta' else 'V2'}ForQuestionAnswering")
    inputs = call_of(name, 3, 14, "right").inputs
    spans = {"start_positions": torch.tensor([0, 1, 0]), "end_positions": torch.tensor([1, 1, 0])}
    losses = [each(**inputs, **spans).loss for each in (model, other)]
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-10)
    for loss in losses:
        loss.backward()
    of_model = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    of_other = {key: p.grad for key, p in other.named_parameters() if p.grad is not None}
    torch.testing.assert_close(of_other, of_model, rtol=1e-9, atol=1e-9)
