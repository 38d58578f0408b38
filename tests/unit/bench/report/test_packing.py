"""Packed arrays come back, read by a decoder that is written another way."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from headway.bench.report.packing import pack


def test_arrays_come_back_within_half_a_step(unpacked):
    draw = np.random.default_rng(0)
    arrays = {
        "coarse": (draw.normal(size=(3, 5, 7)), 8),  # 105 bytes: what follows must begin at an even place
        "fine": (draw.normal(size=(2, 31)) * 1e6, 16),
        "whole": (np.arange(-300, 301)[None], 16),
    }
    packed = pack(arrays)
    for name, (array, bits) in arrays.items():
        axes = tuple(range(1, array.ndim))
        step = np.ptp(array, axis=axes, keepdims=True) / (2**bits - 1)
        assert (np.abs(unpacked(packed, name) - array) <= 0.5001 * step).all()
        assert packed["index"][name]["at"] % 2 == 0


def test_each_row_has_its_own_range(unpacked):
    small_and_large = np.array([[0.0, 1e-6, 2e-6], [0.0, 1e6, 2e6]])
    assert_allclose(unpacked(pack({"x": (small_and_large, 8)}), "x"), small_and_large, rtol=1e-2)


def test_a_constant_row_keeps_its_value(unpacked):
    assert_allclose(unpacked(pack({"x": (np.full((2, 4), -3.5), 8)}), "x"), -3.5)


def test_what_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="expected finite numbers"):
        pack({"x": (np.array([[1.0, np.nan]]), 8)})
