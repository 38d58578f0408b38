"""Products of the tensor cores from tiles in every layout, on a Hopper GPU, or on the emulator that stands for one.

What the emulator takes for granted of descriptors, swizzles and boxes is checked on a GPU by the same tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import NamedTuple

import emulator
import pytest
import torch
from oracle import CUDA, DEVICE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        CUDA and torch.cuda.get_device_capability() != (9, 0), reason="wgmma is an instruction of Hopper GPUs"
    ),
    pytest.mark.skipif(
        not CUDA and (os.environ.get("TRITON_INTERPRET") != "1" or not emulator.available()),
        reason="no GPU, and TRITON_INTERPRET is not 1 or g++ not installed",
    ),
]
K, ROWS = 64, 64  # of a product: its inner length, and rows of its first factor
SWIZZLES = {16: (0, 0), 32: (3, 1), 64: (2, 2), 128: (1, 3)}  # bytes of a row: as descriptors and as maps number them


class Factor(NamedTuple):
    """One factor of a product, in boxes side by side of `width` bytes a row."""

    count: int  # of rows of the first factor, or columns of the second
    width: int
    columns: bool  # whether those lie side by side, and not the inner axis

    @property
    def box(self) -> tuple[int, int]:
        return self.width // 2, K if self.columns else self.count

    @property
    def shape(self) -> tuple[int, int]:
        return (K, max(self.count, self.width // 2)) if self.columns else (self.count, K)

    @property
    def boxes(self) -> int:
        return self.shape[1] // self.box[0]

    @property
    def box_bytes(self) -> int:
        return 2 * self.box[0] * self.box[1]

    def start(self, step: int) -> int:
        """Where the inner numbers from 16 * step on begin."""
        if self.columns:
            return 16 * self.width * step
        if self.width == 16:
            return 2 * step * self.box_bytes
        return 32 * step // self.width * self.box_bytes + 32 * step % self.width

    @property
    def description(self) -> int:
        """What a descriptor says beside the address."""
        leading, stride = self.box_bytes, 8 * self.width
        if self.width == 16 and self.columns:
            leading, stride = stride, leading
        return leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLES[self.width][0] << 62

    def tensor(self) -> torch.Tensor:
        return torch.randn(self.shape, device=DEVICE).bfloat16()

    def matrix(self, t: torch.Tensor) -> torch.Tensor:  # (count, K)
        return (t.mT if self.columns else t)[: self.count].double()


def source(a: Factor, b: Factor) -> str:
    """A kernel that fetches both factors and writes their product, (ROWS, b.count)."""
    at_b, at_barrier = 8192, 8192 + 64 * 1024
    count = b.count // 2
    numbers = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    fetches = "".join(
        f"fetch(base + {at + i * of.box_bytes}, {name}_map, {i * of.box[0]}, base + {at_barrier});\n"
        for of, name, at in ((a, "a", 0), (b, "b", at_b))
        for i in range(of.boxes)
    )
    products = "".join(
        f'asm volatile("wgmma.mma_async.sync.aligned.m64n{b.count}k16.f32.bf16.bf16 {{{numbers}}}, %{count}, '
        f'%{count + 1}, 1, 1, 1, {int(a.columns)}, {int(b.columns)};" : {operands} '
        f': "l"({a.description}ull | (base + {a.start(step)}) >> 4), '
        f'"l"({b.description}ull | (base + {at_b + b.start(step)}) >> 4));\n'
        for step in range(K // 16)
    )
    return f"""
struct alignas(64) TensorMap {{ unsigned long long opaque[16]; }};
extern "C" __device__ const int product_shared_bytes = 74 * 1024;
__device__ __forceinline__ void fetch(unsigned to, const TensorMap& map, int column, unsigned barrier) {{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {{%2, %3}}], [%4];"
        :: "r"(to), "l"((unsigned long long)&map), "r"(column), "r"(0), "r"(barrier) : "memory");
}}
extern "C" __global__ void __launch_bounds__(128) product(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, float* out) {{
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = (unsigned)__cvta_generic_to_shared(shared), barrier = base + {at_barrier};
    if (threadIdx.x == 0) {{
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :: "r"(barrier), "r"({a.boxes * a.box_bytes + b.boxes * b.box_bytes}) : "memory");
        {fetches}
    }}
    __syncthreads();
    unsigned done;
    do {{
        asm volatile("{{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], 0; "
                     "selp.u32 %0, 1, 0, done; }}" : "=r"(done) : "r"(barrier) : "memory");
    }} while (!done);
    float d[{count}];
#pragma unroll
    for (int i = 0; i < {count}; i++) d[i] = 0.0f;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    {products}
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < {count}; i++) {{
        asm volatile("" : "+f"(d[i]) :: "memory");
        const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + (i >> 1 & 1) * 8;
        out[row * {b.count} + (i >> 2) * 8 + threadIdx.x % 4 * 2 + (i & 1)] = d[i];
    }}
}}
"""


def tensor_map(t: torch.Tensor, of: Factor):
    from headway.attention.triton import cuda

    room = ctypes.create_string_buffer(2 * ctypes.sizeof(cuda.TensorMap))
    made = cuda.TensorMap.from_buffer(room, -ctypes.addressof(room) % 64)
    sizes, steps = (ctypes.c_uint64 * 2)(*reversed(t.shape)), (ctypes.c_uint64 * 1)(2 * t.stride(0))
    status = cuda.driver_here().cuTensorMapEncodeTiled(
        ctypes.byref(made), 1, 2, ctypes.c_void_p(t.data_ptr()), sizes, steps,
        (ctypes.c_uint32 * 2)(*of.box), (ctypes.c_uint32 * 2)(1, 1), 0, SWIZZLES[of.width][1], 2, 0,
    )  # fmt: skip
    assert status == 0
    made.tensor = t  # so that the emulator knows its memory
    return made


@pytest.mark.parametrize("columns", [False, True], ids=["inner axis side by side", "columns side by side"])
@pytest.mark.parametrize("width", SWIZZLES)
@pytest.mark.parametrize("count", [8, 96, 128])
def test_a_product(count, width, columns, tmp_path):
    from headway.attention.triton import cuda

    b = Factor(count, width, columns)
    if columns and count > width // 2 and count % (width // 2):
        pytest.skip("the last box would be half empty")
    for a in (Factor(ROWS, 128, False), Factor(ROWS, width, True)):
        with contextlib.nullcontext() if CUDA else emulator.emulated():
            file = tmp_path / f"product_{a.columns}.cu"
            file.write_text(source(a, b))
            kernel = cuda.Kernel(file, "product", ["--gpu-architecture=sm_90a", "-default-device"])
            first, second = a.tensor(), b.tensor()
            out = torch.full((ROWS, count), torch.nan, device=DEVICE)
            kernel((1, 1), 128, tensor_map(first, a), tensor_map(second, b), out)
        right = a.matrix(first) @ b.matrix(second).mT
        torch.testing.assert_close(out.double(), right, rtol=1e-4, atol=1e-4)
