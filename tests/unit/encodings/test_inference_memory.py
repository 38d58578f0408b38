"""Without gradients an encoding keeps its last biases, and notices every change of its parameters.

The dense matrix of a kept bias is worked out once, which is what makes a learned bias free on a CPU; a stale one would
be a silent error, so each way of changing a parameter has its test.
"""

import copy
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.testing import assert_close

from headway.encodings import ENCODINGS
from headway.encodings.base import Dimensions

SIZES = {"num_layers": 2, "num_heads": 2, "head_dim": 4, "max_length": 16}
CLOSE = {"rtol": 1e-12, "atol": 1e-12}  # with gradients torch may multiply the same matrices in another order


MEET_THE_QUERY = (
    "shaw",
    "music-transformer",
    "transformer-xl",
)  # their bias depends on q: there is nothing to work out once
KEPT = [name for name in ENCODINGS if "scores" in ENCODINGS[name].places and name not in MEET_THE_QUERY]
LEARNED = [name for name in KEPT if name != "alibi"]


def fresh(enc, layer=0, length=5, q_start=0):
    """The bias as it is in training, worked out now."""
    with torch.enable_grad():
        return enc.bias(layer, length, q_start + length, q_start).dense().detach()


def step_of_sgd(enc):
    optimizer = torch.optim.SGD(enc.parameters(), lr=0.5)
    with torch.enable_grad():
        (enc.bias(0, 5, 5).dense() ** 2).sum().backward()
    optimizer.step()


def fused_step(enc):
    optimizer = torch.optim.AdamW(enc.parameters(), lr=0.5, foreach=True)
    with torch.enable_grad():
        (enc.bias(0, 5, 5).dense() ** 2).sum().backward()
    optimizer.step()


def data_add(enc):
    for parameter in enc.parameters():
        parameter.data.add_(0.25)  # leaves the version counter as it is


def data_replaced(enc):
    for parameter in enc.parameters():
        parameter.data = torch.randn_like(parameter)


def one_element(enc):
    for parameter in enc.parameters():
        parameter.detach().view(-1)[:].mul_(-1.5)


def through_numpy(enc):
    for parameter in enc.parameters():
        parameter.detach().numpy()[...] += 0.5  # torch does not see it


def load(enc):
    state = {key: value + 0.5 for key, value in enc.state_dict().items()}
    enc.load_state_dict(state)


def reset(enc):
    enc.reset_parameters()


CHANGES = [step_of_sgd, fused_step, data_add, data_replaced, one_element, through_numpy, load, reset]


@pytest.mark.parametrize("name", ENCODINGS)
def test_what_meets_the_query_is_not_kept(build, name):
    enc = build(name)
    bias = enc.bias(0, 5, 5)
    assert (bias is not None and not bias.needs_query) == (name in KEPT)
    if name in MEET_THE_QUERY:
        with torch.no_grad():
            enc.bias(0, 5, 5)
        assert enc._frozen == {}


@pytest.mark.parametrize("name", KEPT)
def test_unchanged_parameters_give_the_same_object(build, name):
    enc = build(name)
    with torch.no_grad():
        first = enc.bias(0, 5, 5)
        assert enc.bias(0, 5, 5) is first
        assert enc.bias(0, 5, 5, 0) is first
        assert_close(first.dense(), fresh(enc), **CLOSE)
        assert first.dense_once(torch.float64) is enc.bias(0, 5, 5).dense_once(torch.float64)
        assert_close(first.dense_once(torch.float64), fresh(enc), **CLOSE)
    assert not first.requires_grad


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", LEARNED)
def test_any_change_gives_a_fresh_bias(build, name, change):
    enc = build(name)
    with torch.no_grad():
        before = enc.bias(0, 5, 5)
        matrix = before.dense_once(torch.float64)
        copied = matrix.clone()
        change(enc)
        after = enc.bias(0, 5, 5)
        assert after is not before
        assert_close(after.dense_once(torch.float64), fresh(enc), **CLOSE)
        assert (after.dense_once(torch.float64) - copied).abs().max().item() > 1e-6
        assert_close(before.dense(), copied, rtol=0, atol=0)  # who holds the old one still has the old one
        assert_close(before.dense_once(torch.float64), copied, rtol=0, atol=0)
        assert enc.bias(0, 5, 5) is after


@pytest.mark.parametrize("name", KEPT)
def test_a_change_of_dtype_gives_a_fresh_bias(build, name):
    enc = build(name).float()
    with torch.no_grad():
        single = enc.bias(0, 5, 5)
        enc.double()
        double = enc.bias(0, 5, 5)
        assert double is not single
        assert double.dtype == torch.float64
        assert_close(double.dense_once(torch.float64), fresh(enc), **CLOSE)


@pytest.mark.parametrize("name", KEPT)
def test_lengths_starts_and_layers_are_kept_apart(build, name):
    enc = build(name, sharing="none") if ENCODINGS[name].default_sharing else build(name)
    with torch.no_grad():
        for _ in range(2):
            for layer in range(2):
                for length, q_start in ((5, 0), (3, 2), (1, 4), (4, 0), (4, 1), (2, 3)):
                    got = enc.bias(layer, length, q_start + length, q_start).dense_once(torch.float64)
                    assert_close(got, fresh(enc, layer, length, q_start), **CLOSE)
        first = [enc.bias(layer, 5, 5) for layer in range(2)]
        assert all(enc.bias(layer, 5, 5) is first[layer] for layer in range(2))  # one does not drive out the other


@pytest.mark.parametrize("name", LEARNED)
def test_layers_that_share_share_the_object(build, name):
    enc = build(name) if ENCODINGS[name].default_sharing is None else build(name, sharing="layer")
    with torch.no_grad():
        one, other = enc.bias(0, 5, 5), enc.bias(1, 5, 5)
        assert_close(one.dense(), other.dense(), rtol=0, atol=0)
        if enc.layer_set(1) == 0:
            assert one is other


@pytest.mark.parametrize("name", LEARNED)
def test_training_is_not_touched_by_what_inference_kept(build, name):
    enc = build(name)
    with torch.no_grad():
        kept = enc.bias(0, 5, 5)
    trained = enc.bias(0, 5, 5)
    assert trained is not kept
    assert trained.requires_grad
    trained.dense().sum().backward()
    assert all(parameter.grad is not None for parameter in enc.parameters())


@pytest.mark.parametrize("name", LEARNED)
def test_inference_mode_and_no_grad_share(build, name):
    enc = build(name)
    with torch.inference_mode():
        first = enc.bias(0, 5, 5)
        matrix = first.dense_once(torch.float64)
    with torch.no_grad():
        assert enc.bias(0, 5, 5) is first
    weight = torch.ones_like(matrix).requires_grad_()
    (weight * matrix).sum().backward()  # an inference tensor could not be saved for this
    assert_close(weight.grad, matrix, rtol=0, atol=0)


@pytest.mark.parametrize("name", [*KEPT, "shaw", "transformer-xl"])
def test_memory_stays_bounded(build, name):
    """A hundred lengths of decoding leave no hundred matrices behind."""
    enc = build(name, max_length=128)
    with torch.no_grad():
        for n in range(1, 101):
            enc.bias(0, 1, n, n - 1)
    assert len(enc._frozen) <= 2 * SIZES["num_layers"]
    assert copy.deepcopy(enc)._frozen == {}


@pytest.mark.parametrize("name", ["learned+tisa", "t5+diet-rel", "diet-abs+alibi", "tupe-abs+t5"])
def test_together(build, name):
    enc = build(name)
    with torch.no_grad():
        before = enc.bias(0, 5, 5)
        assert_close(before.dense_once(torch.float64), fresh(enc), **CLOSE)
        again = enc.bias(0, 5, 5)
        assert again is before
        for parameter in enc.parameters():
            parameter.data.add_(0.25)
            assert_close(enc.bias(0, 5, 5).dense_once(torch.float64), fresh(enc), **CLOSE)


@pytest.mark.parametrize("name", LEARNED)
def test_per_head_segments_see_each_batch(build, name):
    """Ids differ from batch to batch: a kept bias must not carry those of the last one."""
    enc = build(name, segments="per-head")
    one, other = torch.tensor([[0, 0, 0, 1, 1]]), torch.tensor([[0, 1, 1, 1, 1]])
    with torch.no_grad():
        for ids in (one, other, one):
            got = enc.bias(0, 5, 5, segments=ids).dense()
            with torch.enable_grad():
                expected = enc.bias(0, 5, 5, segments=ids).dense().detach()
            assert_close(got, expected, **CLOSE)
            assert (got - enc.bias(0, 5, 5, segments=other.flip(1)).dense()).abs().max().item() > 1e-3


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # of torch itself
@pytest.mark.parametrize("name", ["diet-rel", "tisa", "diet-abs"])
def test_derivatives_by_transforms_are_those_of_the_parameters(name):
    """A kept copy has none; and what stands for many biases is not kept."""
    enc = ENCODINGS[name](Dimensions(**SIZES)).double()
    parameters = {key: torch.randn_like(value) for key, value in enc.named_parameters()}
    change = {key: torch.randn_like(value) for key, value in parameters.items()}

    def total(given):
        return torch.func.functional_call(enc, given, (), strict=True)

    enc.forward = lambda: enc.bias(0, 5, 5).dense().square().sum()
    want = torch.func.jvp(total, (parameters,), (change,))[1]
    with torch.no_grad():
        total(parameters)
        assert_close(torch.func.jvp(total, (parameters,), (change,))[1], want, **CLOSE)
        stacked = {key: torch.stack([value, change[key]]) for key, value in parameters.items()}
        assert_close(torch.func.vmap(total)(stacked), torch.stack([total(parameters), total(change)]), **CLOSE)
        assert_close(total(parameters), total({**parameters}), **CLOSE)


def test_threads_may_share_an_encoding():
    """Each of them finds other lengths kept, and forgets some."""
    enc = ENCODINGS["t5"](Dimensions(**SIZES))
    interval = sys.getswitchinterval()

    def serve(first):
        with torch.no_grad():
            return all(enc.bias(0, 1 + n % 7, 9).shape[2] == 1 + n % 7 for n in range(first, first + 1000))

    sys.setswitchinterval(1e-6)  # as unlucky as can be
    try:
        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(serve, range(8)))
    finally:
        sys.setswitchinterval(interval)
