"""The CUDA driver must be told which context a thread uses, where torch tells only its own library."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
from headway.attention.triton import cuda


def a_driver(current, status=0):
    """One that notes what it is asked; `current`: the context of this thread, or none."""
    calls = []

    def of_thread(context):
        context._obj.value = current
        return 0

    def retain(context, device):
        calls.append(("retained", device))
        context._obj.value = 77
        return status

    def use(context):
        calls.append(("set", context.value))
        return 0

    def explain(_, text):
        text._obj.value = b"no such device"

    return calls, SimpleNamespace(
        cuCtxGetCurrent=of_thread, cuDevicePrimaryCtxRetain=retain, cuCtxSetCurrent=use, cuGetErrorString=explain
    )


@pytest.mark.parametrize(("current", "asked"), [(None, [("retained", 3), ("set", 77)]), (5, [])])
def test_a_thread_without_a_context_gets_that_of_the_device(current, asked, monkeypatch):
    calls, driver = a_driver(current)
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert cuda.driver_here() is driver
    assert calls == asked


def test_what_the_driver_says_is_passed_on(monkeypatch):
    _, driver = a_driver(None, status=101)
    monkeypatch.setattr(cuda, "_driver", lambda: driver)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(RuntimeError, match=r"CUDA: no such device \(101\)"):
        cuda.driver_here()
