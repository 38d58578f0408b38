// What the warps of the backward kernel share: where things lie in shared memory, the barriers, and products of its own.

#if defined(KEYS) || defined(VALUES)
#define RELATIVE
#include "hopper_relative.cuh"
constexpr bool WIDE = SEEN > 7;                                    // beyond, three stages do not fit
constexpr int ROWS_BYTES = TILE / 8 * SEEN * FRAGMENT * 2;         // what a tile of queries looks up of a table
constexpr int GROUP_BYTES = 2 * TILE * 4;                          // its lse and delta, as they are to a group's keys
#ifdef BFLOAT16
constexpr u32 ONES = 0x3f803f80;  // two
#else
constexpr u32 ONES = 0x3c003c00;
#endif
__device__ __forceinline__ void add_to(float* to, float number) {  // of a place only one warp does so, in order
    asm volatile("red.global.add.f32 [%0], %1;\n" ::"l"(to), "f"(number) : "memory");
}
#else
constexpr bool WIDE = false;
constexpr int ROWS_BYTES = 0, GROUP_BYTES = 0;
#endif

// LATE: a head is wider than 64, and there are neither registers nor room for all that is under way at narrower ones. A
// group's gradient of q is made where its scores were; there is one slot, and one block of keys, at a time.
constexpr bool LATE = COLS > 1;
constexpr int STAGES = WIDE || LATE ? 2 : 3;      // of queries and gradients of the output
constexpr int BLOCKS = LATE ? 1 : 2;              // of keys and values
constexpr int SLOTS = LATE ? 1 : 2;               // of tiles of the gradient of q
constexpr int SHARE = LATE ? TILE : SUMS_OF_ROWS; // columns of the gradient of q that a group makes, for the whole block
constexpr int SLOT_BYTES = TILE * 2 * SHARE * 4;
constexpr int WARPS = 8;                          // that compute

// Shared memory, from a multiple of 1024 on.
constexpr int AT_QUERIES = 0;                                        // (STAGES, q and grad, COLS)
constexpr int AT_KEYS = AT_QUERIES + STAGES * 2 * COLS * TILE_BYTES; // (BLOCKS, k and v, COLS, groups)
constexpr int AT_DS = AT_KEYS + BLOCKS * 4 * COLS * TILE_BYTES;      // (2, groups): keys x queries
constexpr int AT_SLOTS = AT_DS + 2 * 2 * TILE_BYTES;                 // (SLOTS,)
constexpr int AT_NUMBERS = AT_SLOTS + SLOTS * SLOT_BYTES;            // (STAGES,): see below
constexpr int OF_DELTA = GROUP_BYTES ? 2 * GROUP_BYTES : TILE * 4;  // behind lse, or lse and delta of both groups
constexpr int NOISE = OF_DELTA + TILE * 4;                        // of the queries
constexpr int OF_STEPS = NOISE + TILE * 4;                        // SEGMENTS: steps and segments of the queries
constexpr int OF_SEGMENTS = OF_STEPS + SEGMENTED * TILE * 4;
constexpr int OF_BIAS = OF_SEGMENTS + SEGMENTED * TILE * 4;       // the bias
constexpr int OF_ROWS = OF_BIAS + BIAS_BYTES;                     // RELATIVE: of keys, and of values
constexpr int NUMBERS_BYTES = OF_ROWS + 2 * ROWS_BYTES;
constexpr int AT_BARRIERS = AT_NUMBERS + STAGES * NUMBERS_BYTES;
constexpr int AT_MODES = AT_BARRIERS + 160;
constexpr int AT_LINES = AT_MODES + 16;                           // SUMS: of each group
constexpr int AT_ONES = (AT_MODES + 16 + 1023) / 1024 * 1024;     // KEYS: (8, 64): ones, in row r > 0 of the first 8 * r keys

enum Barriers {
    QUERIES_IN = 0, QUERIES_OUT = 3, KEYS_IN = 6, KEYS_OUT = 8, DS_IN = 10, SLOT_READY = 12, SLOT_DONE = 14,
    DS_OUT = 16,  // SUMS: (groups, 2)
};
__device__ __forceinline__ u32 barrier_at(u32 base, int which) { return base + AT_BARRIERS + 8 * which; }
__device__ __forceinline__ int slot_of(int t) { return SLOTS == 1 ? 0 : t & 1; }
__device__ __forceinline__ int parity_of_slot(int t) { return SLOTS == 1 ? t & 1 : (t >> 1) & 1; }
enum Modes { EMPTY, ALONE, SUMMED };  // what a slot holds for the groups: fill it; nothing to add; what others summed

#ifdef RELATIVE
// The end of the tables at which all pairs of a group's tile are, and count; 0: they are looked up.
__device__ __forceinline__ int end_of(const Walk& walk, int group, int q_len, int begin) {
    const int start_q = walk.tile * TILE, start_k = walk.start_k + group * TILE;
    const int first = start_k - start_q - (TILE - 1) - begin, last = first + 2 * (TILE - 1);
    if (start_q + TILE > q_len || start_k + TILE > walk.length || !walk.shown().all(start_k / TILE)) return 0;
    if (walk.causal && last + begin > walk.shift) return 0;
    return side_of(first, last);
}
#endif

// d = a^T b for 64, 32 or 16 columns of b: a (128 x 64) and b with columns side by side, 64 rows of each in a tile.
__device__ __forceinline__ void multiply_columns(float (&d)[32], u32 a, u32 b) { multiply_columns<2>(d, a, b); }
__device__ __forceinline__ void multiply_columns(float (&d)[16], u32 a, u32 b) {
#define COLUMNS(first) "{\n.reg .b64 a, b;\nmov.b64 a, {%16, 0x40000040};\nmov.b64 b, {%17, 0x40000040};\n"                 \
    "wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE " " NUMBERS16 ", a, b, " first ", 1, 1, 1, 1;\n}\n"
    asm volatile(COLUMNS("0") : ALL16("=f", d) : "r"(a), "r"(b));
#pragma unroll
    for (int step = 1; step < 8; step++)
        asm volatile(COLUMNS("1") : ALL16("+f", d) : "r"(a + (2048 >> 4) * step), "r"(b + (2048 >> 4) * step));
}
__device__ __forceinline__ void multiply_columns(float (&d)[8], u32 a, u32 b) {
#define FEW_COLUMNS(first) "{\n.reg .b64 a, b;\nmov.b64 a, {%8, 0x40000040};\nmov.b64 b, {%9, 0x40000040};\n"               \
    "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE " {%0, %1, %2, %3, %4, %5, %6, %7}, a, b, " first            \
    ", 1, 1, 1, 1;\n}\n"
    asm volatile(FEW_COLUMNS("0") : FOUR("=f", d, 0), FOUR("=f", d, 4) : "r"(a), "r"(b));
#pragma unroll
    for (int step = 1; step < 8; step++)
        asm volatile(FEW_COLUMNS("1") : FOUR("+f", d, 0), FOUR("+f", d, 4)
                     : "r"(a + (2048 >> 4) * step), "r"(b + (2048 >> 4) * step));
}

// Which of two arrays.
template <bool FIRST, class A, class B>
__device__ __forceinline__ auto& either(A& first, B& second) {
    if constexpr (FIRST) return first;
    else return second;
}

#ifdef KEYS
// d (64 x 8) = a^T b^T: a (64 x 64) with columns side by side, b (8 x 64) in rows.
__device__ __forceinline__ void multiply_narrow(float (&d)[4], u32 a, u32 b) {
#define NARROW(first) "{\n.reg .b64 a, b;\nmov.b64 a, {%4, 0x40000040};\nmov.b64 b, {%5, 0x40000040};\n"                    \
    "wgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE "." TYPE " {%0, %1, %2, %3}, a, b, " first ", 1, 1, 1, 0;\n}\n"
    asm volatile(NARROW("0") : FOUR("=f", d, 0) : "r"(a), "r"(b));
#pragma unroll
    for (int step = 1; step < 4; step++)
        asm volatile(NARROW("1") : FOUR("+f", d, 0) : "r"(a + (2048 >> 4) * step), "r"(b + 2 * step));
}
#endif
