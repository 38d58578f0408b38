"""transformers' BERT in its settings: which mask and kernels its attention gets, what its head sees."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends
from torch.testing import assert_close

from headway.bench.cost import CostConfig
from headway.bench.cost.contestant import Contestant, with_formula_attention
from headway.bench.cost.steps import Case, LossOnly, MaskedBatch, TimedModel

B, L = 2, 24
NO_MASK = ("transformers:mask=false", "transformers:mask=false,kernels=cudnn", "transformers:mask=false,head=masked")


def build(text):
    torch.manual_seed(0)
    return Contestant(text).build("tiny", length=L, dropout=0.1, segments="input")


def inputs_and_labels(text, model):
    words = MaskedBatch.random(B, L, model.config.vocab_size, seed=0, device="cpu")
    labels = words.masked_labels() if Contestant(text).at_masked_places else words.all_labels()
    return words.inputs(segments=False), labels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("transformers:mask=no", "expected mask to be one of true, false, got 'no'"),
        ("transformers:head=no", "expected head to be one of all, masked, got 'no'"),
        ("transformers:kernel=cudnn", "expected options among compile, graphs, mask, kernels, head, got kernel"),
        ("transformers:kernels=cudnn", "kernels=cudnn expects mask=false"),
        ("transformers:mask", r"expected NAME\[:OPTION=VALUE"),
    ],
)
def test_wrong_settings_say_what_is_right(text, message):
    with pytest.raises(ValueError, match=message):
        Contestant(text).check()


@pytest.mark.parametrize("text", ["transformers", *NO_MASK])
def test_all_settings_are_the_same_model(text):
    """The same weights, output and loss; the copy has transformers' eager attention."""
    theirs, model = build("transformers").eval(), build(text).eval()
    inputs, labels = inputs_and_labels(text, model)
    want, found = theirs(**inputs, **inputs_and_labels("transformers", theirs)[1]), model(**inputs, **labels)
    assert_close(found.loss, want.loss)
    assert_close(model.base_model(**inputs).last_hidden_state, theirs.base_model(**inputs).last_hidden_state)
    twin = with_formula_attention(model)
    assert twin.config._attn_implementation == "eager" and model.config._attn_implementation != "eager"
    assert_close(twin(**inputs, **labels).loss, want.loss)


def test_the_head_sees_the_masked_places_alone():
    model = build("transformers:head=masked")
    inputs, labels = inputs_and_labels("transformers:head=masked", model)
    assert model(**inputs, **labels).logits.shape == (labels["labels"].numel(), model.config.vocab_size)


@pytest.mark.parametrize("text", NO_MASK)
def test_no_mask_reaches_torch_as_it_comes(text, monkeypatch):
    masks, run = [], F.scaled_dot_product_attention

    def spy(*args, attn_mask=None, **given):
        masks.append(attn_mask)
        return run(*args, attn_mask=attn_mask, **given)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)  # some versions then make one
    model = build(text)
    inputs, labels = inputs_and_labels(text, model)
    model(**inputs, **labels)
    assert masks == [None] * model.config.num_hidden_layers


@pytest.mark.parametrize("text", NO_MASK)
def test_no_mask_reaches_torch_when_compiled(text):
    """transformers' own mask is a tensor then, up to version 5.17 at least, and None in 5.22."""
    model, graphs = build(text), []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    inputs, labels = inputs_and_labels(text, model)
    torch.compile(LossOnly(model), dynamic=False, backend=keep)(inputs, labels).backward()
    (graph,) = graphs
    calls = [node for node in graph.graph.nodes if node.target is F.scaled_dot_product_attention]
    assert [node.kwargs["attn_mask"] for node in calls] == [None] * model.config.num_hidden_layers
    assert all(len(node.args) == 3 for node in calls)


def test_cudnn_comes_first_and_only_there(monkeypatch):
    orders, run = [], F.scaled_dot_product_attention

    def spy(*args, **given):
        orders.append(_cur_sdpa_kernel_backends(with_priority=True))
        return run(*args, **given)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    before = _cur_sdpa_kernel_backends(with_priority=True)
    for text in ("transformers:mask=false,kernels=cudnn", "transformers:mask=false"):
        model = build(text)
        model.base_model(**inputs_and_labels(text, model)[0])
    layers = model.config.num_hidden_layers
    assert all(order[0] == SDPBackend.CUDNN_ATTENTION for order in orders[:layers])
    assert orders[layers:] == [before] * layers
    assert _cur_sdpa_kernel_backends(with_priority=True) == before


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # of torch's compiler
@pytest.mark.parametrize(
    ("text", "compiles", "replays"),
    [("transformers:compile=false,graphs=false", 0, 0), ("transformers:compile=false", 0, 1), ("transformers", 1, 1)],
)
def test_what_a_row_leaves_out_is_left_out(text, compiles, replays):
    config = CostConfig(
        encodings=(text,), models=("tiny",), lengths=(16,), batch=2, device="cpu", graphs=None, compile=True
    ).resolved(cores=2)
    timed = TimedModel(Case(config=config, row=text, model="tiny", length=16, threads=torch.get_num_threads()))
    assert timed.compiles == bool(compiles)
    assert isinstance(timed.loss, LossOnly) == (not compiles)
    assert timed.contestant.replays == bool(replays)
