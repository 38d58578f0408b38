"""Calls of attention as GPUs get them, traced on a machine without one: what is planned, and what operators promise.

A slip that only a GPU would meet otherwise: an operator whose fake implementation takes other arguments than itself, a
line that torch.compile cannot trace, gradients of other shapes than their tensors.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
HERE = Path(__file__).parent
COMPILER = shutil.which("g++")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """`cuda_without_a_gpu.cpp`, for this torch."""
    if COMPILER is None or torch.version.cuda is not None:
        pytest.skip("for a torch without CUDA, beside g++")
    torch_folder = Path(torch.__file__).parent
    library = tmp_path_factory.mktemp("cuda") / "cuda_without_a_gpu.so"
    includes = [f"-I{torch_folder}/include", f"-I{torch_folder}/include/torch/csrc/api/include"]
    places = [f"-L{torch_folder}/lib", f"-Wl,-rpath,{torch_folder}/lib", "-lc10", "-ltorch_cpu"]
    source = HERE / "cuda_without_a_gpu.cpp"
    command = [COMPILER, "-shared", "-fPIC", "-O0", "-std=c++20", *includes, "-o", library, source, *places]
    subprocess.run(command, check=True)
    return library


@pytest.mark.parametrize(("major", "compiled"), [("9", 5), ("8", 1)])
def test_every_call_is_traced(library, major, compiled):
    process = subprocess.run(
        [sys.executable, HERE / "traced_calls.py", library, major], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    groups = [json.loads(line) for line in process.stdout.splitlines()]
    assert [f"{group['group']}: {group['problem']}" for group in groups if "problem" in group] == []
    chosen = {kind: backend for group in groups for kind, backend in group["chosen"].items()}
    assert chosen["sum"] == chosen["everything"] == "triton" and chosen["edge keys and values"] == "eager"
    assert sum(group["group"].startswith("compiled") for group in groups) == compiled


def test_rows_of_the_benchmark_of_cliffs_are_traced(library):
    """What has no general kernel says so by name, and everything else has outputs and gradients of the right shapes."""
    process = subprocess.run(
        [sys.executable, HERE / "traced_cliffs.py", library], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-3000:]
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    problems = {line["name"]: line["problem"] for line in lines if "problem" in line}
    refused = ("Dense",)
    assert {name for name, text in problems.items() if "'triton' cannot run this call" not in text} == set()
    assert all(name.startswith(refused) and name.endswith("general kernels") for name in problems), problems
    chosen = {line["name"]: line["backend"]["forward"] for line in lines if "backend" in line}
    assert chosen["Toeplitz, D = 256"] == chosen["no bias, boolean key mask"] == "triton"
    assert chosen["DeBERTa, c2p + p2c, 512 rows by buckets"] == "triton"
    assert chosen["Transformer-XL (q + v over all offsets)"] == "triton"
    assert len(lines) == 56
