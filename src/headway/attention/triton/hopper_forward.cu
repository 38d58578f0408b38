// Attention with a bias that the batch shares, on Hopper, in half precision, for head width 64.
//
// A block owns 128 queries, 64 for each of two groups of 128 threads, and goes over the keys in tiles of 64. Both groups
// read the same tiles, each at its own pace; the warps take turns to ask for later ones.
//
// Weights are measured from `top`, which need not be the highest score: the exponentials of a tile are made at once, and
// only if they come out too large does top rise, and the tile is weighed again. So most tiles need no maximum.
//
// SEGMENTS: beside the bias, a step for each query, to be added where the key is of segment 1.

#include "hopper.cuh"
#include "hopper_pipes.cuh"
#include "hopper_bias.cuh"

// How many tiles are in shared memory, and how many are asked for beyond the current one. Those of a matrix are large.
#ifdef MATRIX
constexpr int STAGES = 3, AHEAD = 1;
#else
constexpr int STAGES = 4, AHEAD = 2;
#endif
constexpr int WARPS = 8;
constexpr int AT_QUERIES = 0;                                  // a tile for each group
constexpr int AT_KEYS = 2 * TILE_BYTES;                        // (STAGES, k and v)
constexpr int AT_NUMBERS = AT_KEYS + STAGES * 2 * TILE_BYTES;  // (STAGES,): noise of the keys, their segments, the bias
constexpr int OF_SEGMENTS = TILE * 4;
constexpr int OF_BIAS = OF_SEGMENTS + SEGMENTED * TILE * 4;
constexpr int NUMBERS_BYTES = OF_BIAS + BIAS_BYTES;
constexpr int AT_BARRIERS = AT_NUMBERS + STAGES * NUMBERS_BYTES;
enum Barriers { KEYS_IN = 0, KEYS_OUT = STAGES, QUERIES_IN = 2 * STAGES };

#ifdef BFLOAT16
constexpr float ABOVE = 40.0f, MOST = 1e12f;  // how far above the highest score `top` is set; the most that weights sum to
#else
constexpr float ABOVE = 0.0f, MOST = 16384.0f;
#endif

// Where scores of a thread's two rows are above `top`, it rises to where weights are small; what was summed shrinks.
__device__ __forceinline__ void rise_above(const float (&s)[32], float (&top)[2], float (&total)[2], float (&acc)[32]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float highest = s[2 * r];
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (((i >> 1) & 1) == r) highest = fmaxf(highest, s[i]);
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 2));
        const float higher = highest > top[r] ? highest + ABOVE : top[r];
        const float shrink = higher == top[r] ? 1.0f : exp2_fast(top[r] - higher);
        top[r] = higher;
        total[r] *= shrink;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            acc[4 * n + 2 * r] *= shrink;
            acc[4 * n + 2 * r + 1] *= shrink;
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) forward(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map,
    const Numbers* table,                         // of tiles whose rows are queries
    const int* lengths,                           // (B,), or null
    const float* steps, const float* k_segments,  // SEGMENTS: (B, H, queries), in units of log 2; (B|1, keys), 0 or 1
    u16* out, u16* rest, float* lse,  // (B, Lq, H, 64), twice: the output, and what rounding took or null; (B, H, Lq)
    int heads, int groups, int q_len, int k_len, int causal, int table_head, int padded, int before,
    int q_padded, int segments_batch, double scale, const u32* noise, double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    if (threadIdx.x == 0) {
        expect(q_map);
        expect(k_map);
        expect(v_map);
    }
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    auto barrier = [&](int which) { return base + AT_BARRIERS + 8 * which; };

    const int group = uniform(threadIdx.x >> 7), thread = threadIdx.x & 127, lane = threadIdx.x & 31;
    const int warp = thread >> 5, row8 = lane >> 2, pair = thread & 3, which = uniform(threadIdx.x >> 5);
    const int blocks = (q_len + 2 * TILE - 1) / (2 * TILE), shift = k_len - q_len;
    const int head = blockIdx.y, b = blockIdx.x / blocks, block = blockIdx.x - b * blocks;
    const int block_q = (causal ? blocks - 1 - block : block) * 2 * TILE, start_q = block_q + group * TILE;
    const int head_of_keys = uniform(head / groups);
    const float factor = (float)(scale * 1.4426950408889634), none = -__int_as_float(0x7f800000);
    const int length = lengths ? lengths[b] : k_len;
    auto tiles_for = [&](int queries_end) {
        const int stop = causal ? min(length, max(queries_end + shift, 0)) : length;
        return (stop + TILE - 1) / TILE;
    };
    const int loaded = tiles_for(block_q + 2 * TILE), tiles = tiles_for(start_q + TILE);  // one less, if not as many
    const Dropout drop(noise, dropout, (long long)b * heads + head, q_len, k_len);

    auto load_keys = [&](int tile) {
        const int stage = tile % STAGES;
        const u32 keys = base + AT_KEYS + stage * 2 * TILE_BYTES, full = barrier(KEYS_IN + stage);
        const u32 numbers = base + AT_NUMBERS + stage * NUMBERS_BYTES;
        arrive_and_expect(full, 2 * TILE_BYTES + BIAS_BYTES + (NOISY + SEGMENTED) * TILE * 4);
        fetch_tile(keys, k_map, tile * TILE, head_of_keys, b, full);
        fetch_tile(keys + TILE_BYTES, v_map, tile * TILE, head_of_keys, b, full);
        BiasOfRows(table + (long long)head * table_head, block_q, tile, padded, before).fetch_to(numbers + OF_BIAS, full);
        if (NOISY) fetch(numbers, drop.of_keys + tile * TILE, TILE * 4, full);
        if (SEGMENTED) fetch(numbers + OF_SEGMENTS, k_segments + (long long)b * segments_batch + tile * TILE, TILE * 4, full);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(barrier(KEYS_IN + i), 1);
            barrier_init(barrier(KEYS_OUT + i), WARPS);
        }
        barrier_init(barrier(QUERIES_IN), 1);
        barriers_made();
        arrive_and_expect(barrier(QUERIES_IN), 2 * TILE_BYTES);
        for (int i = 0; i < 2; i++)
            fetch_tile(base + AT_QUERIES + i * TILE_BYTES, q_map, block_q + i * TILE, head, b, barrier(QUERIES_IN));
        if (loaded > 0) load_keys(0);
    }
    __syncthreads();
    if (lane == 0 && 0 < which && which <= AHEAD && which < loaded) load_keys(which);

    const int row0 = start_q + 16 * warp + row8;  // and row0 + 8
    const int limit[2] = {causal ? min(length, row0 + shift + 1) : length, causal ? min(length, row0 + shift + 9) : length};
#ifdef DROPOUT
    const u32 row_noise[2] = {drop.of_queries[row0], drop.of_queries[row0 + 8]};
#endif
#ifdef SEGMENTS
    const float* steps_of = steps + ((long long)b * heads + head) * q_padded + row0;  // padded to whole blocks
    const float step[2] = {steps_of[0], steps_of[8]};
#endif
    float acc[32], top[2] = {none, none}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 32; i++) acc[i] = 0.0f;

    wait(barrier(QUERIES_IN), 0);
    const u32 q_is = describe(base + AT_QUERIES + group * TILE_BYTES);
    if (tiles > 0) {  // that the last wait is in here, too, lets the compiler keep products in flight
        for (int tile = 0; tile < tiles; tile++) {
            const int stage = tile % STAGES;
            wait(barrier(KEYS_IN + stage), tile / STAGES & 1);
            const u32 keys = base + AT_KEYS + stage * 2 * TILE_BYTES;
            const unsigned char* numbers = shared + AT_NUMBERS + stage * NUMBERS_BYTES;

            float s[32];
            products_begin();
            const u32 k_is = describe(keys), v_is = describe(keys + TILE_BYTES);
            multiply(s, q_is, k_is);
            products_sent();
            const int later = tile + AHEAD;  // which takes the place of a tile that is long read
            if (tile > 0 && later < loaded && which == tile % WARPS) {
                if (later >= STAGES) wait(barrier(KEYS_OUT + later % STAGES), (later / STAGES - 1) & 1);
                if (lane == 0) load_keys(later);
            }
            const BiasOfRows::Tile bias(numbers + OF_BIAS, group, thread);
            const bool checked = (tile + 1) * TILE > min(length, causal ? start_q + shift + 1 : length);
            products_done();
            pin(s);
            pin(acc);
            if (lane == 0 && tile > 0) arrive(barrier(KEYS_OUT + (tile - 1) % STAGES));

#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = 4 * n + 2 * r;
                    const float2 add = bias.at(n, r);
                    s[i] = fmaf(s[i], factor, add.x);
                    s[i + 1] = fmaf(s[i + 1], factor, add.y);
#ifdef SEGMENTS
                    const float2 segment = ((const float2*)(numbers + OF_SEGMENTS))[4 * n + pair];
                    s[i] = fmaf(step[r], segment.x, s[i]);
                    s[i + 1] = fmaf(step[r], segment.y, s[i + 1]);
#endif
                }
            }
            if (checked) keep(s, none, [&](int r, int column) { return tile * TILE + column < limit[r]; });

            u32 weights[16];
            float of_tile[2];
            auto weigh = [&](const float (&from)[2]) {
                of_tile[0] = of_tile[1] = 0.0f;
#pragma unroll
                for (int n = 0; n < 8; n++) {
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const int i = 4 * n + 2 * r;
                        const float p0 = exp2_fast(s[i] - from[r]), p1 = exp2_fast(s[i + 1] - from[r]);
                        of_tile[r] += p0 + p1;
#ifdef DROPOUT
                        const uint2 of_keys = ((const uint2*)numbers)[4 * n + pair];
                        const bool drop0 = drop.drops(row_noise[r], of_keys.x), drop1 = drop.drops(row_noise[r], of_keys.y);
                        weights[2 * n + r] = pack(drop0 ? 0.0f : p0, drop1 ? 0.0f : p1);
#else
                        weights[2 * n + r] = pack(p0, p1);
#endif
                    }
                }
            };
            if (tile > 0) weigh(top);
            if (tile == 0 || __any_sync(0xffffffff, !(of_tile[0] < MOST && of_tile[1] < MOST))) {  // or not a number
                rise_above(s, top, total, acc);
                const float from[2] = {top[0] == none ? 0.0f : top[0], top[1] == none ? 0.0f : top[1]};
                weigh(from);
            }
            total[0] += of_tile[0];
            total[1] += of_tile[1];
            products_begin();
            multiply_tile(acc, weights, v_is);
            products_sent();
        }
        products_done();
        pin(acc);
    }
    keep_output(out, rest, lse, acc, top, total, drop.unit, b, head, heads, row0, q_len);
}
