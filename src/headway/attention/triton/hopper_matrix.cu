// The gradient of a bias that is a matrix, summed over the batch, on Hopper, in half precision, for head width 64.

#include "hopper.cuh"

struct Pairs {  // a thread's numbers of a tile (hopper_bias.cuh)
    uint4 four[4];
    __device__ __forceinline__ Pairs(const uint4* of) {
#pragma unroll
        for (int part = 0; part < 4; part++) four[part] = __ldg(of + part * 128);
    }
    __device__ __forceinline__ void stay() {  // packed: unpacked before a loop, they would take twice the registers
#pragma unroll
        for (int part = 0; part < 4; part++)
            asm volatile("" : "+r"(four[part].x), "+r"(four[part].y), "+r"(four[part].z), "+r"(four[part].w));
    }
    __device__ __forceinline__ float2 at(int n, int r) const {  // n and r are known to the compiler
        const uint4 own = four[n / 2];
        return unpack_float16(n % 2 == 0 ? (r == 0 ? own.x : own.y) : (r == 0 ? own.z : own.w));
    }
};

// The gradient of the matrix: a block owns a tile of 128 x 128 of it and goes over its share of the batch, two times
// 128 threads of 64 rows each. What is summed, the bias too, stays in registers.
extern "C" __global__ void __launch_bounds__(256, 1) matrix(
    const u16* q, const u16* k, const u16* v, const u16* grad, const float* lse, const float* delta,
    const uint4* table, const int* lengths,    // as for `forward`; (B,), or null
    float* sums,                               // (chunks, H, Lq, Lk)
    int q_batch, int q_head, int q_row, int k_batch, int k_head, int k_row, int v_batch, int v_head, int v_row,
    int grad_batch, int grad_head, int grad_row,
    int batch, int heads, int groups, int q_len, int k_len, int causal, int table_head, int tiles_of_row, int,
    int chunks, double scale, const u32* noise, double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    constexpr int STAGE_BYTES = 8 * TILE_BYTES + 1024;  // two tiles each of q, the gradient, k and v; noise of the keys

    const int thread = threadIdx.x & 127, half = threadIdx.x >> 7, warp = thread >> 5, row8 = (thread & 31) >> 2, pair = thread & 3;
    const int tiles_q = (q_len + 127) / 128, tiles_k = (k_len + 127) / 128, shift = k_len - q_len;
    const int chunk = blockIdx.x % chunks, tile_k = blockIdx.x / chunks % tiles_k;
    const int tile_q = blockIdx.x / chunks / tiles_k % tiles_q, head = blockIdx.x / chunks / tiles_k / tiles_q;
    const int start_q = tile_q * 128 + half * TILE, start_k = tile_k * 128;
    const float factor = (float)(scale * 1.4426950408889634);
    const bool seen = !causal || start_k <= tile_q * 128 + 127 + shift;
    const int end = seen ? (int)((long long)batch * (chunk + 1) / chunks) : 0;

    auto from = [&](int b) {  // the next sequence that has keys here
        while (b < end && lengths && lengths[b] <= start_k) b++;
        return b;
    };
    auto load = [&](int b, int stage) {
        const u32 at = base + stage * STAGE_BYTES + half * TILE_BYTES;
        const long long key_head = head / groups;
        int rows = start_q, keys = start_k + half * TILE;
        asm volatile("" : "+r"(rows), "+r"(keys));  // else addresses take registers all along
        load_tile(at, q + (long long)b * q_batch + (long long)head * q_head, q_row, rows, q_len);
        load_tile(at + 2 * TILE_BYTES, grad + (long long)b * grad_batch + (long long)head * grad_head, grad_row, rows, q_len);
        load_tile(at + 4 * TILE_BYTES, k + (long long)b * k_batch + key_head * k_head, k_row, keys, k_len);
        load_tile(at + 6 * TILE_BYTES, v + (long long)b * v_batch + key_head * v_head, v_row, keys, k_len);
#ifdef DROPOUT
        if (threadIdx.x < 32) {
            const Dropout drop(noise, dropout, (long long)b * heads + head, q_len, k_len);
            const u32 target = base + stage * STAGE_BYTES + 8 * TILE_BYTES + 16 * threadIdx.x;
            const u32* source = drop.of_keys + start_k + 4 * threadIdx.x;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(target), "l"(source));
        }
#endif
    };

    int b = from((int)((long long)batch * chunk / chunks)), stage = 0;
    if (b < end) load(b, 0);
    loads_sent();
    const int row0 = start_q + 16 * warp + row8;  // and row0 + 8
    const uint4* of_tile = table + (long long)head * table_head + ((long long)start_q / TILE * tiles_of_row + 2 * tile_k) * 512 + thread;
    Pairs left(of_tile), right(of_tile + 512);

    float acc[2][32];
#pragma unroll
    for (int i = 0; i < 32; i++) acc[0][i] = acc[1][i] = 0.0f;

    while (b < end) {
        const int next = from(b + 1);
        if (next < end) load(next, stage ^ 1);
        loads_sent();
        const long long at_row = ((long long)b * heads + head) * q_len + row0;
        const int length = lengths ? lengths[b] : k_len;
        float lse_of[2], delta_of[2];
        int limit[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool inside = row0 + 8 * r < q_len;
            lse_of[r] = inside ? lse[at_row + 8 * r] : __int_as_float(0x7f800000);
            delta_of[r] = inside ? delta[at_row + 8 * r] : 0.0f;
            limit[r] = causal ? min(length, row0 + 8 * r + shift + 1) : length;
        }
        const bool checked = start_k + 128 > min(length, causal ? start_q + shift + 1 : length);
        const Dropout drop(noise, dropout, (long long)b * heads + head, q_len, k_len);
#ifdef DROPOUT
        const u32 row_noise[2] = {drop.of_queries[row0], drop.of_queries[row0 + 8]};
        const uint2* key_noise = (const uint2*)(shared + stage * STAGE_BYTES + 8 * TILE_BYTES) + pair;
#endif
        asm volatile("cp.async.wait_group 1;\n" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
        __syncthreads();

        left.stay();
        right.stay();
        const u32 at = base + stage * STAGE_BYTES;
        const u32 q_is = describe(at + half * TILE_BYTES), grad_is = describe(at + (2 + half) * TILE_BYTES);
        float both_s[2][32], both_dp[2][32];
        products_begin();
#pragma unroll
        for (int side = 0; side < 2; side++) {
            multiply(both_s[side], q_is, describe(at + (4 + side) * TILE_BYTES));
            multiply(both_dp[side], grad_is, describe(at + (6 + side) * TILE_BYTES));
            products_sent();
        }
#pragma unroll
        for (int side = 0; side < 2; side++) {
            float(&s)[32] = both_s[side], (&dp)[32] = both_dp[side];
            if (side == 0)  // the other side's go on meanwhile
                asm volatile("wgmma.wait_group.sync.aligned 1;\n" ::: "memory");
            else
                products_done();
            pin(s);
            pin(dp);
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = 4 * n + 2 * r;
                    const float2 add = side == 0 ? left.at(n, r) : right.at(n, r);
                    s[i] = exp2_fast(fmaf(s[i], factor, add.x) - lse_of[r]);
                    s[i + 1] = exp2_fast(fmaf(s[i + 1], factor, add.y) - lse_of[r]);
                }
            }
            if (checked)
                keep(s, 0.0f, [&](int r, int column) { return start_k + side * TILE + column < limit[r]; });
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = 4 * n + 2 * r;
#ifdef DROPOUT
                    const uint2 of_keys = key_noise[side * TILE / 2 + 4 * n];
                    if (drop.drops(row_noise[r], of_keys.x)) dp[i] = 0.0f;
                    if (drop.drops(row_noise[r], of_keys.y)) dp[i + 1] = 0.0f;
#endif
                    acc[side][i] = fmaf(s[i], fmaf(dp[i], drop.unit, -delta_of[r]), acc[side][i]);
                    acc[side][i + 1] = fmaf(s[i + 1], fmaf(dp[i + 1], drop.unit, -delta_of[r]), acc[side][i + 1]);
                }
            }
        }
        __syncthreads();
        b = next;
        stage ^= 1;
    }
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");

    float* own = sums + ((long long)chunk * heads + head) * q_len * k_len;
#pragma unroll
    for (int side = 0; side < 2; side++) {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int row = row0 + 8 * ((i >> 1) & 1), column = start_k + side * TILE + 8 * (i >> 2) + 2 * pair + (i & 1);
            if (row < q_len && column < k_len) own[(long long)row * k_len + column] = acc[side][i];
        }
    }
}
