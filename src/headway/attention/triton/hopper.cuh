// What the Hopper kernels share: tiles of 64 x 64 in half precision, products by the tensor cores, dropout.
//
// A block of 128 threads owns 64 queries (or keys) and goes over the keys (or queries) in tiles of 64. Scores and their
// gradients stay in registers, in the tensor cores' layout: of each fragment of 8 x 8 a thread holds two numbers side by
// side, in row (thread & 31) / 4 from column 2 * (thread & 3) on. Its 32 numbers of a tile are those of 8 fragments, in
// two rows 8 apart: number 4 * n + 2 * r + e lies in fragment n, row r, column e.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

#ifdef BFLOAT16
#define TYPE "bf16"
#else
#define TYPE "f16"
#endif

#ifdef DROPOUT
constexpr bool NOISY = true;
#else
constexpr bool NOISY = false;
#endif
#ifdef SEGMENTS
constexpr bool SEGMENTED = true;
#else
constexpr bool SEGMENTED = false;
#endif

#ifndef WIDTH
#define WIDTH 64  // of a head: 32, 64, 80, 96 or 128
#endif
#ifndef GROUPS
#define GROUPS 2  // of 128 threads that compute, in a block
#endif

constexpr int TILE = 64;                     // queries, keys and columns
constexpr int TILE_BYTES = TILE * TILE * 2;  // 8 KiB: 64 rows of 128 bytes, 16-byte pieces swizzled within 8 rows

// Rows of q, k, v and their gradients take COLS tiles side by side; what lies beyond their width in the last one is zero.
constexpr int COLS = (WIDTH + TILE - 1) / TILE;
constexpr int SUMS_OF_ROWS = (WIDTH + 31) / 32 * 16;  // numbers of a thread, of 64 rows of such sums; whole 32 columns

// How much shared memory a kernel needs, for those who launch it: cuda.py reads it from the compiled code.
#define SHARED_BYTES(kernel, bytes) extern "C" __device__ const int kernel##_shared_bytes = bytes;

// Every tile is read by the tensor cores from shared memory with the 128-byte swizzle, 1024 bytes for 8 rows: that is what
// the upper half of a description says, always. The lower half is the address, in units of 16 bytes.
__device__ __forceinline__ u32 describe(u32 address) { return ((address & 0x3FFFF) >> 4) | (1 << 16); }
#define DESCRIBE2 ".reg .b64 a, b;\nmov.b64 a, {%32, 0x40000040};\nmov.b64 b, {%33, 0x40000040};\n"

#define NUMBERS32                                                                                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                      \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define FOUR(how, d, i) how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3])
#define ALL32(how, d)                                                                                              \
    FOUR(how, d, 0), FOUR(how, d, 4), FOUR(how, d, 8), FOUR(how, d, 12), FOUR(how, d, 16), FOUR(how, d, 20),       \
        FOUR(how, d, 24), FOUR(how, d, 28)

// d (64 x 64) = a (64 x width) b^T (width x 64), both in shared memory, in products of 16 columns; the first only writes d.
// From one tile of 64 columns to the next there are so many tiles.
template <int width = TILE, int apart_a = 1, int apart_b = 1>
__device__ __forceinline__ void multiply(float (&d)[32], u32 a, u32 b) {
    asm volatile("{\n" DESCRIBE2 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " NUMBERS32
                 ", a, b, 0, 1, 1, 0, 0;\n}\n"
                 : ALL32("=f", d) : "r"(a), "r"(b));
#pragma unroll
    for (int step = 1; step < (width + 15) / 16; step++) {
        const u32 next = step / 4 * (TILE_BYTES >> 4), columns = 2 * (step % 4);
        asm volatile("{\n" DESCRIBE2 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " NUMBERS32
                     ", a, b, 1, 1, 1, 0, 0;\n}\n"
                     : ALL32("+f", d) : "r"(a + apart_a * next + columns), "r"(b + apart_b * next + columns));
    }
}

// d (64 x 128) = a (64 x 64) b^T (64 x 128), both in shared memory.
#define NUMBERS64                                                                                                  \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                      \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define ALL64(how, d)                                                                                              \
    ALL32(how, d), FOUR(how, d, 32), FOUR(how, d, 36), FOUR(how, d, 40), FOUR(how, d, 44), FOUR(how, d, 48),       \
        FOUR(how, d, 52), FOUR(how, d, 56), FOUR(how, d, 60)
#define WIDE(first)                                                                                                \
    "{\n.reg .b64 a, b;\nmov.b64 a, {%64, 0x40000040};\nmov.b64 b, {%65, 0x40000040};\n"                           \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " " NUMBERS64 ", a, b, " first ", 1, 1, 0, 0;\n}\n"
__device__ __forceinline__ void multiply(float (&d)[64], u32 a, u32 b) {
    asm volatile(WIDE("0") : ALL64("=f", d) : "r"(a), "r"(b));
#pragma unroll
    for (int step = 1; step < 4; step++)
        asm volatile(WIDE("1") : ALL64("+f", d) : "r"(a + 2 * step), "r"(b + 2 * step));
}

// d += a b^T in the same way, of tiles in float16 whatever the type of the call.
__device__ __forceinline__ void add_product_of_float16(float (&d)[32], u32 a, u32 b) {
#pragma unroll
    for (int step = 0; step < 4; step++)
        asm volatile("{\n" DESCRIBE2 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " NUMBERS32
                     ", a, b, 1, 1, 1, 0, 0;\n}\n"
                     : ALL32("+f", d) : "r"(a + 2 * step), "r"(b + 2 * step));
}

// d (64 x 64) += a (64 x 16) b (16 x 64): a in registers, b in shared memory with its 64 columns side by side.
__device__ __forceinline__ void multiply_from_registers(float (&d)[32], const u32 (&a)[4], u32 b) {
    asm volatile(
        "{\n.reg .b64 b;\nmov.b64 b, {%36, 0x40000040};\nwgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE
        " " NUMBERS32 ", {%32, %33, %34, %35}, b, 1, 1, 1, 1;\n}\n"
        : ALL32("+f", d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

// The same with 32 columns of b.
#define NUMBERS16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define ALL16(how, d) FOUR(how, d, 0), FOUR(how, d, 4), FOUR(how, d, 8), FOUR(how, d, 12)
__device__ __forceinline__ void multiply_from_registers(float (&d)[16], const u32 (&a)[4], u32 b) {
    asm volatile(
        "{\n.reg .b64 b;\nmov.b64 b, {%20, 0x40000040};\nwgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE
        " " NUMBERS16 ", {%16, %17, %18, %19}, b, 1, 1, 1, 1;\n}\n"
        : ALL16("+f", d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

// Some of the numbers, as an array of their own.
template <int first, int count, int all>
__device__ __forceinline__ float (&part_of(float (&d)[all]))[count] {
    static_assert(first + count <= all, "no more than there are");
    return *(float(*)[count])(d + first);
}

// d (64 x columns) += a (64 x 64) b (64 x columns): a packed in registers as scores are held, b in shared memory, in tiles
// of 64 columns that lie behind one another; of the last one perhaps the first 32 only.
template <int count>
__device__ __forceinline__ void multiply_tile(float (&d)[count], const u32 (&a)[16], u32 b) {
#pragma unroll
    for (int step = 0; step < 4; step++) {
        const u32 part[4] = {a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3]};
        if constexpr (count < 32) {
            multiply_from_registers(d, part, b + step * (2048 >> 4));
        } else {
            multiply_from_registers(part_of<0, 32>(d), part, b + step * (2048 >> 4));
            if constexpr (count > 32) {
                constexpr int rest = count - 32 < 32 ? count - 32 : 32;
                multiply_from_registers(part_of<32, rest>(d), part, b + (TILE_BYTES >> 4) + step * (2048 >> 4));
            }
        }
    }
}

// d (64 x 64) = a^T (64 x 64 * tiles) b (64 * tiles x 64): rows of both in shared memory, with columns side by side.
template <int tiles>
__device__ __forceinline__ void multiply_columns(float (&d)[32], u32 a, u32 b) {
#define TRANSPOSED(first)                                                                                          \
    "{\n" DESCRIBE2 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " NUMBERS32 ", a, b, " first ", 1, 1, 1, 1;\n}\n"
    asm volatile(TRANSPOSED("0") : ALL32("=f", d) : "r"(a), "r"(b));
#pragma unroll
    for (int step = 1; step < 4 * tiles; step++)
        asm volatile(TRANSPOSED("1") : ALL32("+f", d) : "r"(a + (2048 >> 4) * step), "r"(b + (2048 >> 4) * step));
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void products_sent() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void products_done_but_last() { asm volatile("wgmma.wait_group.sync.aligned 1;\n" ::: "memory"); }
__device__ __forceinline__ void products_done() { asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory"); }

// Keeps the compiler from reading the numbers before the products are done.
template <int count>
__device__ __forceinline__ void pin(float (&d)[count]) {
#pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+f"(d[i])::"memory");
}

template <bool IT_IS> struct Flag { static constexpr bool value = IT_IS; };

// Where `counts` (which row of two, column in the tile) is false, the number becomes `otherwise`. Most tiles need no check;
// the compiler would check every number of every tile, could it move this out of its branch.
template <int count, class Counts>
__device__ __forceinline__ void keep(float (&d)[count], float otherwise, Counts counts) {
#pragma unroll
    for (int i = 0; i < count; i++) {
        if (!counts((i >> 1) & 1, 8 * (i >> 2) + 2 * (threadIdx.x & 3) + (i & 1))) d[i] = otherwise;
        asm volatile("" : "+f"(d[i]));
    }
}

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;\n" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// Rows first to first + 63 of a matrix, zero from `rows` on, by each 128 threads that call it.
__device__ __forceinline__ void load_tile(u32 to, const u16* from, int stride, int first, int rows) {
#pragma unroll
    for (int part = 0; part < 4; part++) {
        const int piece = (threadIdx.x & 127) + 128 * part, row = piece >> 3, column = piece & 7;
        const int bytes = first + row < rows ? 16 : 0;
        const u16* source = from + (long long)(bytes ? first + row : 0) * stride + column * 8;
        const u32 target = to + row * 128 + ((column ^ (row & 7)) << 4);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(target), "l"(source), "r"(bytes));
    }
}

// Dropout, as `kept` in tiles.py: by the product of the query's random number and the key's. Those of queries come first;
// both are padded to blocks of 128, so that pairs are aligned and need no check.
struct Dropout {
    const u32 *of_queries, *of_keys;
    u32 threshold;
    float unit;  // what kept weights are multiplied by
    __device__ __forceinline__ Dropout(const u32* noise, double chance, long long pair, int q_len, int k_len) {
        of_queries = of_keys = nullptr;
#ifdef DROPOUT
        const int queries = (q_len + 127) & ~127, keys = (k_len + 127) & ~127;
        of_queries = noise + pair * (queries + keys);
        of_keys = of_queries + queries;
        threshold = (u32)((float)chance * 4294967296.0f);
        unit = 1.0f / (1.0f - (float)chance);
#else
        unit = 1.0f;
#endif
    }
    __device__ __forceinline__ bool drops(u32 of_query, u32 of_key) const {
        return of_query * of_key < threshold;
    }
};

__device__ __forceinline__ float2 unpack_float16(u32 both) {
    float2 apart;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}\n"
        : "=f"(apart.x), "=f"(apart.y) : "r"(both));
    return apart;
}
__device__ __forceinline__ float2 unpack(u32 both) {
#ifdef BFLOAT16
    return make_float2(__int_as_float(both << 16), __int_as_float(both & 0xffff0000));
#else
    return unpack_float16(both);
#endif
}

// Of each 4 neighbouring threads, number j has the pairs of columns of fragment j instead of its own pairs of 4 fragments:
// 16 bytes side by side.
__device__ __forceinline__ uint4 side_by_side(u32 a, u32 b, u32 c, u32 d) {
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
    const u32 first = __shfl_xor_sync(0xffffffff, odd ? a : b, 1), second = __shfl_xor_sync(0xffffffff, odd ? c : d, 1);
    (odd ? a : b) = first;
    (odd ? c : d) = second;
    const u32 third = __shfl_xor_sync(0xffffffff, upper ? a : c, 2), fourth = __shfl_xor_sync(0xffffffff, upper ? b : d, 2);
    (upper ? a : c) = third;
    (upper ? b : d) = fourth;
    return make_uint4(a, b, c, d);
}

// The row of a tile that a warp's thread has, times `factor`, in half precision; `to` is where the row begins, of which no
// more than `columns` are kept.
template <int fragments>
__device__ __forceinline__ void keep_row(
    u16* to, const float* numbers, float factor, bool inside, int columns = 8 * fragments) {
#pragma unroll
    for (int n = 0; n < fragments; n += 4) {
        u32 pairs[4] = {};
#pragma unroll
        for (int i = 0; i < 4 && n + i < fragments; i++)
            pairs[i] = pack(numbers[4 * (n + i)] * factor, numbers[4 * (n + i) + 1] * factor);
        const uint4 piece = side_by_side(pairs[0], pairs[1], pairs[2], pairs[3]);
        const bool all = fragments % 4 == 0 && columns >= 8 * fragments;
        if (inside && (all || 8 * n + 8 * (threadIdx.x & 3) < columns)) *(uint4*)(to + 8 * n + 8 * (threadIdx.x & 3)) = piece;
    }
}

// The output of a thread's two rows, what rounding took from it if `rest` is given, and the log2 of their denominators; a
// row that saw nothing is zero.
__device__ __forceinline__ void keep_output(
    u16* out, u16* rest, float* lse, const float (&acc)[SUMS_OF_ROWS], const float (&top)[2], float (&total)[2], float unit,
    long long b, int head, int heads, int row0, int q_len) {
    const float none = -__int_as_float(0x7f800000);
    const int pair = threadIdx.x & 3;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        total[r] += __shfl_xor_sync(0xffffffff, total[r], 1);
        total[r] += __shfl_xor_sync(0xffffffff, total[r], 2);
        const int row = row0 + 8 * r;
        const bool inside = row < q_len, seen = total[r] > 0.0f;
        const float share = seen ? unit / total[r] : 0.0f;
        if (inside && pair == 0) lse[(b * heads + head) * q_len + row] = seen ? top[r] + log2f(total[r]) : -none;
        const long long place = ((b * q_len + row) * heads + head) * WIDTH;
        keep_row<SUMS_OF_ROWS / 4>(out + place, acc + 2 * r, share, inside, WIDTH);
        if (!rest) continue;
        float lost[SUMS_OF_ROWS];
#pragma unroll
        for (int n = 0; n < SUMS_OF_ROWS / 4; n++) {
            const float first = acc[4 * n + 2 * r] * share, second = acc[4 * n + 2 * r + 1] * share;
            const float2 kept = unpack(pack(first, second));
            lost[4 * n] = first - kept.x;
            lost[4 * n + 1] = second - kept.y;
        }
        keep_row<SUMS_OF_ROWS / 4>(rest + place, lost, 1.0f, inside, WIDTH);
    }
}

// The gradients of a thread's two keys and values. From one row to the next there are `pitch` heads in memory.
__device__ __forceinline__ void keep_gradients(
    u16* dk, u16* dv, const float (&dk_acc)[SUMS_OF_ROWS], const float (&dv_acc)[SUMS_OF_ROWS], float unit, float v_unit,
    long long b, int head, int pitch, int row0, int k_len) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = row0 + 8 * r;
        const long long place = ((b * k_len + row) * pitch + head) * WIDTH;
        keep_row<SUMS_OF_ROWS / 4>(dk + place, dk_acc + 2 * r, unit, row < k_len, WIDTH);
        keep_row<SUMS_OF_ROWS / 4>(dv + place, dv_acc + 2 * r, v_unit, row < k_len, WIDTH);
    }
}
