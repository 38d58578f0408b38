"""The CUDA kernels where there is no GPU: the compiler takes all that calls ask for, and calls pass what it expects.

Nothing runs, and outputs are zero. Whether they are right is for test_hopper.py, on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
from types import SimpleNamespace

import pytest
import torch
from operators import calls_of, check, names
from oracle import CUDA, draw, made

import headway as hw

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MOST_SHARED_BYTES = 227 * 1024  # of a block
FRAME_SIZE, PARAMETER = 0x11, 0x17  # of what machine code says of itself

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(CUDA or not INTERPRETED, reason="for machines without a GPU, with TRITON_INTERPRET=1"),
]


class Launch:
    """Stands for `cuda.Kernel`: compiles, and compares what is passed with what the machine code takes."""

    def __init__(self, source, name, options):
        from headway.attention.triton import cuda

        binary = cuda._compiled(source, tuple(options))
        sections = sections_of(binary)
        self.name = name
        self.parameters = [size >> 18 for _, _, size in sorted(said(sections[f".nv.info.{name}"], PARAMETER, "<IIi"))]
        self.spilled = max(size for _, size in said(sections[".nv.info"], FRAME_SIZE, "<II"))
        self.spills = self.spilled > 0
        assert 0 < cuda.shared_bytes(binary, name) <= MOST_SHARED_BYTES

    def __call__(self, blocks, threads, *arguments, together=False):
        from headway.attention.triton import cuda

        assert [ctypes.sizeof(cuda._boxed(argument)) for argument in arguments] == self.parameters
        assert min(blocks) > 0
        for argument in arguments:
            if isinstance(argument, torch.Tensor) and argument.is_floating_point():
                argument.data.zero_()  # what is written must be numbers for what comes after
        launched.append((self.name, self.spills))


launched: list[tuple[str, bool]] = []


def sections_of(binary):
    """The sections of an ELF file by name."""
    (start,) = struct.unpack_from("<Q", binary, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", binary, 0x3A)
    headers = [struct.unpack_from("<II3QQ", binary, start + i * size) for i in range(count)]
    contents = [binary[offset : offset + length] for _, _, _, _, offset, length in headers]
    return {
        contents[of_names][header[0] :].split(b"\0", 1)[0].decode(): content
        for header, content in zip(headers, contents, strict=True)
    }


def said(section, wanted, form):
    """What an .nv.info section says under one attribute."""
    at, found = 0, []
    while at < len(section):
        kind, attribute, length = struct.unpack_from("<BBH", section, at)
        at += 4
        if kind == 4:  # else the length is the value
            if attribute == wanted:
                found.append(struct.unpack_from(form, section, at))
            at += length
    return found


@pytest.fixture
def no_gpu(monkeypatch):
    """As if tensors of the CPU were a Hopper GPU's, up to the launch of a kernel."""
    from headway.attention.triton import cuda, hopper

    if cuda._nvrtc() is None:
        pytest.skip("NVRTC is not installed (pip install nvidia-cuda-nvrtc)")
    monkeypatch.setattr(cuda, "Kernel", Launch)
    monkeypatch.setattr(cuda, "tensor_map", lambda t: cuda.TensorMap())
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(hopper, "takes_kind", lambda dtype, width, device: dtype != torch.float32)
    hopper.kernel.cache_clear()
    launched.clear()
    yield
    hopper.kernel.cache_clear()


TILES = ["tile_forward", "tile_backward"]
USUAL = ["forward", "backward"]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    ("kind", "batch", "q_len", "k_len", "kernels"),
    [
        ("none", 3, 64, 50, TILES),
        ("toeplitz and low rank", 3, 128, 100, TILES),
        ("none", 2, 130, 200, USUAL),
        ("toeplitz", 2, 200, 200, USUAL),
        ("toeplitz", 1, 300, 900, USUAL),
        ("two segments", 2, 200, 200, USUAL),
        ("clipped and two segments", 2, 200, 200, USUAL),
        ("low rank", 22, 200, 200, [*USUAL, "matrix"]),
        ("dense and others", 3, 100, 50, TILES),
        ("dense", 22, 200, 300, [*USUAL, "matrix"]),
        ("relative keys", 2, 200, 200, ["forward", "rows", "backward", "settle"]),
        ("relative, reach 28", 2, 100, 200, ["forward", "rows", "backward", "settle"]),
    ],
)
def test_training(no_gpu, kind, batch, q_len, k_len, kernels, dropout):
    train(kind, torch.bfloat16, batch, q_len, k_len, dropout)
    assert [name for name, _ in launched] == kernels
    # Registers are shared out so that they suffice, but for a few numbers beside segments and at the longest reach.
    assert kind.endswith(("segments", "28")) or not any(spills for _, spills in launched)


@pytest.mark.parametrize("dropout", [[], ["-DDROPOUT"]])
@pytest.mark.parametrize(
    ("kernel", "flags"),
    [
        ("forward", []), ("forward", ["-DPLAIN"]), ("forward", ["-DMATRIX", "-DEXACT"]), ("forward", ["-DSEGMENTS"]),
        ("forward", ["-DPLAIN", "-DFACTORS"]), ("forward", ["-DPLAIN", "-DKEYS", "-DVALUES", "-DREACH=16"]),
        ("backward", ["-DSUMS"]), ("backward", ["-DPLAIN"]), ("backward", ["-DMATRIX"]),
        ("backward", ["-DSUMS", "-DSEGMENTS"]), ("backward", ["-DPLAIN", "-DKEYS", "-DREACH=16", "-DPHASE=0"]),
        ("tile_forward", ["-DPLAIN", "-DSMALL"]), ("tile_forward", ["-DMATRIX"]),
        ("tile_backward", ["-DPLAIN", "-DSMALL"]), ("tile_backward", ["-DMATRIX", "-DLEARNED"]),
        ("matrix", ["-DMATRIX"]),
    ],
)  # fmt: skip
def test_a_mask_of_keys_and_documents_beside_everything(no_gpu, kernel, flags, dropout):
    from headway.attention.triton import hopper

    compiled = functools.partial(hopper.kernel, f"hopper_{kernel}.cu", kernel, 0, torch.bfloat16, *flags, *dropout)
    without, masked = compiled(), compiled("-DMASK")
    assert len(masked.parameters) == len(without.parameters) + 1
    allowed = without.spilled + 32 * bool({"-DKEYS", "-DSEGMENTS", "-DEXACT"} & set(flags))  # a few numbers
    assert masked.spilled <= allowed
    if "tile" in kernel or "-DKEYS" in flags:
        return  # which take no documents
    packed = compiled("-DMASK", "-DDOCUMENTS")
    assert len(packed.parameters) == len(masked.parameters) + (3 if kernel == "backward" else 2)
    assert packed.spilled <= allowed + 8 * (kernel == "matrix")


@pytest.mark.parametrize(("q_len", "width"), [(200, 32), (200, 128), (384, 128), (384, 100), (200, 80)])
@pytest.mark.parametrize("kind", ["none", "toeplitz", "clipped and two segments"])
def test_training_at_other_widths(no_gpu, kind, q_len, width):
    train(kind, torch.bfloat16, 2, q_len, 200, 0.0, width=width)
    assert [name for name, _ in launched] == USUAL


@pytest.mark.parametrize("width", [32, 80, 96, 128])
@pytest.mark.parametrize(
    ("kernel", "flags"),
    [
        ("forward", []), ("forward", ["-DPLAIN"]), ("forward", ["-DMATRIX"]), ("forward", ["-DSEGMENTS", "-DDROPOUT"]),
        ("forward", ["-DPLAIN", "-DFACTORS"]), ("forward", ["-DEXACT"]), ("forward", ["-DGROUPS=3"]),
        ("forward", ["-DGROUPS=3", "-DPLAIN"]), ("forward", ["-DGROUPS=3", "-DDROPOUT", "-DMASK"]),
        ("backward", []), ("backward", ["-DPLAIN"]), ("backward", ["-DSUMS"]), ("backward", ["-DSUMS", "-DDROPOUT"]),
        ("backward", ["-DPLAIN", "-DDROPOUT"]), ("backward", ["-DSUMS", "-DSEGMENTS"]),
        ("backward", ["-DSUMS", "-DMASK"]), ("backward", ["-DSUMS", "-DDOCUMENTS", "-DMASK"]),
        ("forward", ["-DGROUPS=3", "-DDOCUMENTS"]),
    ],
)  # fmt: skip
def test_other_widths_compile_and_keep_to_registers(no_gpu, kernel, flags, width):
    from headway.attention.triton import hopper

    flags = [flag for flag in flags if width > 64 or flag != "-DGROUPS=3"]
    made = hopper.kernel(f"hopper_{kernel}.cu", kernel, 0, torch.bfloat16, f"-DWIDTH={width}", *flags)
    assert made.spilled <= (48 if kernel == "backward" and width > 64 else 0)


def test_float16_and_everything_that_may_be_left_out(no_gpu):
    lengths = torch.tensor([200, 7])
    train("toeplitz", torch.float16, 2, 200, 200, 0.0, causal=True, lengths=lengths)
    assert [name for name, _ in launched] == USUAL


@pytest.mark.parametrize(("heads", "length"), [(2, 70), (2, 3000)])
def test_inference_with_a_low_rank_bias(no_gpu, heads, length):
    """Of a few scores a matrix, of many the factors."""
    q = draw(1, heads, length, 64).bfloat16()
    bias = hw.LowRank(draw(1, heads, length, 32).float(), draw(1, heads, length, 32).float())
    hw.attention(q, q, q, bias, backend="triton")
    assert launched == [("tile_forward" if length <= 128 else "forward", False)]


@pytest.mark.parametrize(
    ("encoding", "length", "kernels"),
    [("t5", 100, TILES), ("tupe-rel", 100, TILES), ("tupe-rel", 200, [*USUAL, "matrix"]), ("t5", 200, USUAL)],
)
def test_layers_share_one_matrix(no_gpu, monkeypatch, encoding, length, kernels):
    """Where the kernels would multiply a shared bias out, that is done once; its gradients are added up first."""
    from headway.attention.triton import matrix_kernel
    from headway.models import context

    made = []
    monkeypatch.setattr(matrix_kernel, "matrix_kernel", counted(matrix_kernel.matrix_kernel, made))
    monkeypatch.setattr(context, "self_attention", functools.partial(hw.self_attention, backend="triton"))
    config = hw.preset(
        "tiny",
        encoding=encoding,
        hidden_size=128,
        num_attention_heads=2,
        num_hidden_layers=3,
        max_position_embeddings=200,
        vocab_size=50,
    )
    model = hw.EncoderForMaskedLM(config)
    words = torch.randint(50, (2, length))
    with torch.autocast("cpu", torch.bfloat16):
        model(words, labels=words).loss.backward()
    layers = 3
    assert sorted(name for name, _ in launched) == sorted(layers * kernels)
    assert len(made) == (0 if (encoding, length) == ("t5", 200) else 1)
    for name, parameter in model.encoder.encoding.named_parameters():
        assert parameter.grad is not None, name


def counted(kernel, calls):
    class Counted:
        def __getitem__(self, grid):
            def run(*arguments, **options):
                calls.append(grid)
                return kernel[grid](*arguments, **options)

            return run

    return Counted()


@pytest.mark.parametrize("length", [100, 200])
@pytest.mark.parametrize(
    "kind", ["none", "toeplitz", "toeplitz and low rank", "dense", "two segments", "relative keys and values"]
)
def test_what_the_compiler_is_told_is_so(no_gpu, kind, length):
    """Shapes, strides and dtypes that torch.compile plans with are those of the operators' results."""
    calls = calls_of(kind, "triton", 64, length, length, torch.bfloat16)
    expected = "fused_relative" if "relative" in kind else "fused"
    assert [name for name in names(calls) if name != "matrix_tables"] == [expected, f"{expected}_backward"]
    check(calls, test_utils=("test_faketensor",))


def train(kind, dtype, batch, q_len, k_len, dropout, *, width=64, **options):
    make, parameters = made(kind, batch, 4, q_len, k_len, width)
    q, k, v = (
        draw(batch, heads, length, width).to(dtype).requires_grad_()
        for heads, length in ((4, q_len), (2, k_len), (2, k_len))
    )
    bias = make(*(t.float().requires_grad_() for t in parameters))
    bias, value_bias = bias if isinstance(bias, tuple) else (bias, None)
    output = hw.attention(q, k, v, bias, value_bias, dropout=dropout, backend="triton", **options)
    output.sum().backward()
    assert q.grad.shape == q.shape and k.grad.shape == k.shape
