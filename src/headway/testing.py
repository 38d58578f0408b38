"""Tests that every kind of bias must pass. Inherit them, and define `make` and `by_hand`.

```python
from headway.testing import BiasContract


class TestMyBias(BiasContract):
    def make(self, dtype, requires_grad):
        values = torch.randn(1, self.num_heads, self.k_len, dtype=dtype, requires_grad=requires_grad)
        return MyBias(values, q_len=self.q_len)

    def by_hand(self, bias, q, i, j, b, h):
        return bias.values[0, h, j].item()  # the formula for one element, as the paper writes it
```

Run it with pytest. Tests of a bias that is added to values inherit from `ValueBiasContract` instead, and `by_hand`
returns a list of `width` numbers. pytest is needed only when a test runs.
"""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.testing import assert_close

from headway.bias import Bias, Dense, LowRank, RelativeValues, Structured, Toeplitz

__all__ = ["BiasContract", "ValueBiasContract"]


class BiasContract:
    """Tests of one kind of score bias.

    A subclass defines `make` and `by_hand`, which read the sizes below as attributes of `self`; tests change `q_len`
    and `k_len`. The global random state is seeded before every call of `make`, so that it can use plain `torch.randn`.
    """

    LENGTHS: ClassVar[tuple[tuple[int, int], ...]] = ((5, 7), (7, 5), (1, 3), (3, 1), (1, 1))  # (Lq, Lk)
    batch = 2
    num_heads = 3
    q_len = 5
    k_len = 7
    width = 2  # D
    scale = 0.7

    def make(self, dtype: torch.dtype, requires_grad: bool) -> Any:
        """Make the bias with random parameters of this dtype, which require a gradient or not."""
        raise NotImplementedError

    def by_hand(self, bias: Any, q: Tensor, i: int, j: int, b: int, h: int) -> Any:
        """Compute one element by the formula, in plain Python; q, (B, H, Lq, D), is for kinds that depend on it."""
        raise NotImplementedError

    # Building blocks of the tests.

    def made(self, dtype: torch.dtype = torch.float64, requires_grad: bool = False) -> tuple[Any, Tensor]:
        """Make the bias and a query; every call returns equal ones."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            q = torch.randn(self.batch, self.num_heads, self.q_len, self.width, dtype=dtype)
            return self.make(dtype, requires_grad), q

    def dense(self, bias: Any, q: Tensor) -> Tensor:
        """Compute the dense bias at the lengths of the test."""
        result: Tensor = bias.bind(self.q_len, self.k_len).dense(q, scale=self.scale)
        return result

    def formula(self, bias: Any, q: Tensor) -> Tensor:  # (B, H, Lq, Lk)
        """Compute every element by hand."""
        return torch.tensor(
            [
                [
                    [[self.by_hand(bias, q, i, j, b, h) for j in range(self.k_len)] for i in range(self.q_len)]
                    for h in range(self.num_heads)
                ]
                for b in range(self.batch)
            ],
            dtype=torch.float64,
        )

    def others(self) -> list[Any]:
        """Make biases of other kinds to add."""
        size = self.q_len + self.k_len - 1
        return [
            Dense(torch.linspace(-1, 1, self.q_len * self.k_len, dtype=torch.float64).view(1, 1, self.q_len, -1)),
            Toeplitz(torch.linspace(0, 2, self.num_heads * size, dtype=torch.float64).view(1, -1, size)),
            LowRank(
                torch.linspace(-1, 0, self.batch * self.q_len, dtype=torch.float64).view(-1, 1, self.q_len, 1),
                torch.linspace(1, 3, self.num_heads * self.k_len, dtype=torch.float64).view(1, -1, self.k_len, 1),
            ),
        ]

    # The contract.

    def test_dense_is_the_formula(self) -> None:
        for lengths in self.LENGTHS:
            self.q_len, self.k_len = lengths
            bias, q = self.made()
            dense, expected = self.dense(bias, q), self.formula(bias, q)
            assert expected.abs().sum() > 0, "a bias of zeros would show nothing"
            assert_close(dense.expand_as(expected), expected, rtol=1e-12, atol=1e-12)

    def test_shape(self) -> None:
        for lengths in self.LENGTHS:
            self.q_len, self.k_len = lengths
            bias, q = self.made()
            assert bias.batch in (1, self.batch)
            assert bias.heads in (1, self.num_heads)
            for own, asked in zip(bias.lengths, (self.q_len, self.k_len), strict=True):
                assert own in (None, asked)
            bound = bias.bind(self.q_len, self.k_len)
            assert type(bound) is type(bias)
            assert bound.shape == (bias.batch, bias.heads, self.q_len, self.k_len)
            dense = self.dense(bias, q)
            meets = isinstance(bias, Bias) and bias.needs_query
            assert dense.shape[:4] == ((self.batch, self.num_heads, *bound.shape[2:]) if meets else bound.shape)
            assert dense.dtype == torch.float64

    def test_a_tile_is_a_slice(self) -> None:
        bias, q = self.made()
        whole = self.dense(bias, q)
        bound = bias.bind(self.q_len, self.k_len)
        m, n = self.q_len, self.k_len
        for i0, i1, j0, j1 in ((0, m, 0, n), (0, 1, 0, 1), (m - 1, m, n - 1, n), (1, m - 1, 2, n), (2, m, 0, 3)):
            tile = bound.tile(i0, i1, j0, j1)
            assert type(tile) is type(bias)
            assert tile.lengths == (i1 - i0, j1 - j0)
            contract = self._resized(i1 - i0, j1 - j0)
            assert_close(contract.dense(tile, q[:, :, i0:i1]), whole[:, :, i0:i1, j0:j1], rtol=1e-12, atol=1e-12)

    def test_a_tile_outside_is_refused(self) -> None:
        import pytest

        bound = self.made()[0].bind(self.q_len, self.k_len)
        for wrong in ((0, self.q_len + 1, 0, 1), (0, 1, 0, self.k_len + 1), (2, 2, 0, 1), (0, 1, -1, 2)):
            with pytest.raises(ValueError, match=r"tile: expected a non-empty (query|key) range"):
                bound.tile(*wrong)

    def test_other_lengths_are_refused_with_both_numbers(self) -> None:
        import pytest

        bound = self.made()[0].bind(self.q_len, self.k_len)
        with pytest.raises(ValueError, match=rf"query length {self.q_len + 4} \(from q\), got {self.q_len} from"):
            bound.bind(self.q_len + 4, self.k_len)
        with pytest.raises(ValueError, match=rf"key length {self.k_len + 4} \(from k\), got {self.k_len} from"):
            bound.bind(self.q_len, self.k_len + 4)

    def test_gradient(self) -> None:
        bias, q = self.made(requires_grad=True)
        learned = [t for t in bias.tensors.values() if t.is_floating_point()]
        assert bias.requires_grad
        assert all(t.requires_grad for t in learned), "make(requires_grad=True) must reach every floating tensor"
        if isinstance(bias, Bias) and bias.needs_query:
            learned.append(q.requires_grad_())

        def dense(*given: Tensor) -> Tensor:
            fresh = iter(given)
            tensors = [next(fresh) if t.is_floating_point() else t for t in bias.tensors.values()]
            return self.dense(bias.rebuilt(tensors), given[-1] if q.requires_grad else q)

        assert torch.autograd.gradcheck(dense, learned)

    def test_to_another_dtype_keeps_integers(self) -> None:
        bias = self.made()[0]
        for dtype in (torch.float32, torch.bfloat16):
            moved = bias.to(dtype)
            assert type(moved) is type(bias)
            assert moved.dtype == dtype
            for before, after in zip(bias.tensors.values(), moved.tensors.values(), strict=True):
                assert after.dtype == (dtype if before.is_floating_point() else before.dtype)
                assert_close(after, before.to(after.dtype), rtol=0, atol=0)

    def test_to_another_device_takes_every_tensor(self) -> None:
        moved = self.made()[0].to("meta")
        assert moved.device.type == "meta"
        assert {t.device.type for t in moved.tensors.values()} == {"meta"}

    def test_detach(self) -> None:
        bias, q = self.made(requires_grad=True)
        detached = bias.detach()
        assert type(detached) is type(bias)
        assert bias.requires_grad and not detached.requires_grad
        assert_close(self.dense(detached, q), self.dense(bias, q).detach(), rtol=0, atol=0)

    def test_repr_names_kind_and_shape(self) -> None:
        bias = self.made(requires_grad=True)[0].bind(self.q_len, self.k_len)
        for term in bias.terms:
            assert f"{type(term).__name__}(" in repr(bias)
            assert f"of shape ({term.batch}, {term.heads}, {self.q_len}, {self.k_len})" in repr(bias)
        assert "float64, learned" in repr(bias)
        assert "learned" not in repr(bias.detach())

    def test_frozen_keeps_what_it_was(self) -> None:
        bias, q = self.made(requires_grad=True)
        bias = bias.bind(self.q_len, self.k_len)
        before = self.dense(bias, q).detach().clone()
        frozen = bias.frozen()
        assert not frozen.requires_grad
        if not bias.needs_query:
            assert_close(frozen.dense_once(torch.float32), before.float())
        with torch.no_grad():
            for tensor in bias.tensors.values():
                tensor.zero_()
        assert_close(self.dense(frozen, q), before, rtol=0, atol=0)
        assert not torch.equal(self.dense(bias, q), before)
        if not bias.needs_query:
            assert_close(frozen.dense_once(torch.float32), before.float())
            assert_close(frozen.dense_once(torch.float64), before)
            kept = frozen.bind(self.q_len, self.k_len)
            assert kept.dense_once(torch.float64) is frozen.dense_once(torch.float64)

    def test_pickle(self) -> None:
        bias, q = self.made(requires_grad=True)
        bias = bias.bind(self.q_len, self.k_len)
        again = pickle.loads(pickle.dumps(bias))
        assert type(again) is type(bias)
        assert repr(again) == repr(bias)
        assert_close(self.dense(again, q), self.dense(bias, q), rtol=0, atol=0)

    def test_sums_with_other_kinds(self) -> None:
        bias, q = self.made()
        own = self.dense(bias, q)
        assert bias + None is bias
        assert None + bias is bias
        others = self.others()
        for other in others:
            expected = own + self.dense(other, q)
            assert_close(self.dense(bias + other, q), expected)
            assert_close(self.dense(other + bias, q), expected)
        total: Structured = sum([bias, *others])
        assert all(not term.terms[1:] for term in total.terms), "a sum is flat"
        assert_close(self.dense(total, q), own + sum(self.dense(other, q) for other in others))

    def test_values_are_checked(self) -> None:
        import pytest

        bias = self.made()[0]
        bias.check_values()
        tensors = list(bias.tensors.values())
        for index, tensor in enumerate(tensors):
            if tensor.is_floating_point():
                for wrong in (torch.nan, torch.inf, -torch.inf):
                    spoiled = tensor.clone()
                    spoiled.view(-1)[-1] = wrong
                    with pytest.raises(ValueError, match="expected finite values, got NaN or infinity"):
                        bias.rebuilt([*tensors[:index], spoiled, *tensors[index + 1 :]]).check_values()

    def _resized(self, q_len: int, k_len: int) -> Any:
        contract = type(self)()
        contract.q_len, contract.k_len = q_len, k_len
        return contract


class ValueBiasContract(BiasContract):
    """What a bias that is added to the values must pass; `by_hand` returns a list of `width` numbers."""

    def dense(self, bias: Any, q: Tensor) -> Tensor:
        result: Tensor = bias.dense(q_len=self.q_len, k_len=self.k_len)
        return result

    def others(self) -> list[Any]:
        table = torch.linspace(-1, 1, self.num_heads * 3 * self.width, dtype=torch.float64)
        return [RelativeValues(table.view(self.num_heads, 3, self.width), q_start=1)]

    def test_weigh_is_the_weighted_sum(self) -> None:
        for lengths in self.LENGTHS:
            self.q_len, self.k_len = lengths
            bias, _ = self.made()
            weights = torch.rand(self.batch, self.num_heads, self.q_len, self.k_len, dtype=torch.float64)
            expected = torch.einsum("bhij,bhijd->bhid", weights, self.formula(bias, weights))
            assert_close(bias.weigh(weights), expected)

    test_frozen_keeps_what_it_was = None  # type: ignore[assignment]  # there is no dense matrix to keep
