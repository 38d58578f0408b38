"""Trace the rows of `benchmarks.cliffs` as a Hopper GPU would get them, on a machine without one.

    python tests/unit/attention/traced_cliffs.py LIBRARY

LIBRARY is `cuda_without_a_gpu.cpp` compiled. Tensors have shapes and no memory, so that nothing runs
but what plans a call and what operators say of their results. Prints a line of JSON for each row: its name, the
backends that `auto` takes, and what went wrong.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
from pathlib import Path

ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # before torch
sys.path.append(str(Path(__file__).parents[3]))

import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from benchmarks import attention_inputs  # noqa: E402
from benchmarks.attention_rows import train  # noqa: E402
from benchmarks.cliff_rows import CLIFFS, backend_of, rows  # noqa: E402

importlib.import_module("headway.attention.triton.hopper")._capable = lambda device: True
randn = torch.randn


class NoGenerator:
    """A generator of a device that is not there; nothing is drawn."""

    def __init__(self, device):
        pass

    def manual_seed(self, seed):
        return None


def trace(row):
    """Make a call forward, and forward and backward; return what `auto` would take."""
    x = attention_inputs.Inputs(512, 2, form=row.form, parameters=attention_inputs.BIASES[row.bias].reads)
    (attend,) = row.settings.values()
    with torch.no_grad():
        output = attend(x)
    assert (output.shape, output.dtype, output.device.type) == (x.q.shape, x.q.dtype, "cuda")
    for name, grad in train(attend, x, row.wanted).items():
        like = x.q if name == "output" else getattr(x, name)
        assert (grad.shape, grad.dtype) == (like.shape, like.dtype), name
    return backend_of(row, x)


def main():
    torch.Generator = NoGenerator
    torch.randn = lambda *size, generator=None, **options: randn(*size, **options)
    with FakeTensorMode():
        for name, row in rows(True, CLIFFS).items():
            if not name.startswith("torch"):  # whose kernels are its own
                try:
                    found = {"backend": trace(row)}
                except Exception as error:
                    found = {"problem": f"{type(error).__name__}: {str(error)[:1500]}"}
                print(json.dumps({"name": name, **found}), flush=True)


if __name__ == "__main__":
    main()
