// Attention with a bias that the batch shares, on Hopper, in half precision, for head width 64.
//
// A block owns 128 queries, 64 for each of two groups of 128 threads, and goes over the keys in tiles of 64. Both groups
// read the same tiles, each at its own pace; one thread asks for the next ones.

#include "hopper.cuh"
#include "hopper_pipes.cuh"
#include "hopper_bias.cuh"

constexpr int STAGES = 3;
constexpr int WARPS = 8;
constexpr int AT_QUERIES = 0;                                         // a tile for each group
constexpr int AT_KEYS = 2 * TILE_BYTES;                               // (STAGES, k and v)
constexpr int AT_NUMBERS = AT_KEYS + STAGES * 2 * TILE_BYTES;         // (STAGES,): noise of the keys, the bias
constexpr int OF_BIAS = TILE * 4;
constexpr int NUMBERS_BYTES = OF_BIAS + BIAS_BYTES;
constexpr int AT_BARRIERS = AT_NUMBERS + STAGES * NUMBERS_BYTES;
enum Barriers { KEYS_IN = 0, KEYS_OUT = STAGES, QUERIES_IN = 2 * STAGES };

extern "C" __global__ void __launch_bounds__(256, 2) forward(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map,
    const Numbers* table,             // of tiles whose rows are queries
    const int* lengths,               // (B,), or null
    u16* out, u16* rest, float* lse,  // (B, Lq, H, 64), twice: the output, and what rounding took or null; (B, H, Lq)
    int heads, int groups, int q_len, int k_len, int causal, int table_head, int padded, int before, double scale,
    const u32* noise, double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    auto barrier = [&](int which) { return base + AT_BARRIERS + 8 * which; };

    const int group = uniform(threadIdx.x >> 7), thread = threadIdx.x & 127, lane = threadIdx.x & 31;
    const int warp = thread >> 5, row8 = lane >> 2, pair = thread & 3;
    const int blocks = (q_len + 2 * TILE - 1) / (2 * TILE), shift = k_len - q_len;
    const int block = causal ? blocks - 1 - blockIdx.x % blocks : blockIdx.x % blocks;
    const int block_q = block * 2 * TILE, start_q = block_q + group * TILE;
    const int head = (blockIdx.x / blocks) % heads;
    const long long b = blockIdx.x / blocks / heads;
    const float factor = (float)(scale * 1.4426950408889634), none = -__int_as_float(0x7f800000);
    const int length = lengths ? lengths[b] : k_len;
    auto tiles_for = [&](int queries_end) {
        const int stop = causal ? min(length, max(queries_end + shift, 0)) : length;
        return (stop + TILE - 1) / TILE;
    };
    const int loaded = tiles_for(block_q + 2 * TILE), tiles = tiles_for(start_q + TILE);
    const Dropout drop(noise, dropout, b * heads + head, q_len, k_len);

    auto load_keys = [&](int tile, int stage) {
        const u32 keys = base + AT_KEYS + stage * 2 * TILE_BYTES, full = barrier(KEYS_IN + stage);
        const u32 numbers = base + AT_NUMBERS + stage * NUMBERS_BYTES;
        const BiasOfRows bias(table + (long long)head * table_head, block_q, tile, padded, before);
#ifdef DROPOUT
        arrive_and_expect(full, 2 * TILE_BYTES + BIAS_BYTES + TILE * 4);
        fetch(numbers, drop.of_keys + tile * TILE, TILE * 4, full);
#else
        arrive_and_expect(full, 2 * TILE_BYTES + BIAS_BYTES);
#endif
        fetch_tile(keys, k_map, tile * TILE, head / groups, b, full);
        fetch_tile(keys + TILE_BYTES, v_map, tile * TILE, head / groups, b, full);
        bias.fetch_to(numbers + OF_BIAS, full);
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
        for (int tile = 0; tile < min(STAGES, loaded); tile++) load_keys(tile, tile);
    }
    __syncthreads();

    const int row0 = start_q + 16 * warp + row8;  // and row0 + 8
    const int limit[2] = {causal ? min(length, row0 + shift + 1) : length, causal ? min(length, row0 + shift + 9) : length};
#ifdef DROPOUT
    const u32 row_noise[2] = {drop.of_queries[row0], drop.of_queries[row0 + 8]};
#endif
    float acc[32], top[2] = {none, none}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 32; i++) acc[i] = 0.0f;

    wait(barrier(QUERIES_IN), 0);
    const u32 q_is = describe(base + AT_QUERIES + group * TILE_BYTES);
    Ring<STAGES> stage, old;
    if (tiles > 0) {  // that the last wait is in here, too, lets the compiler keep products in flight
        for (int tile = 0; tile < tiles; tile++) {
            products_done();
            pin(acc);
            if (tile > 0) {  // the tile before is free, and the one after the next may come in its place
                if (lane == 0) arrive(barrier(KEYS_OUT + old.at));
                if (threadIdx.x == 0 && tile - 1 + STAGES < loaded) {
                    wait(barrier(KEYS_OUT + old.at), old.parity);
                    load_keys(tile - 1 + STAGES, old.at);
                }
                old.next();
            }
            wait(barrier(KEYS_IN + stage.at), stage.parity);
            const u32 keys = uniform(base + AT_KEYS + stage.at * 2 * TILE_BYTES);
            const unsigned char* numbers = shared + AT_NUMBERS + stage.at * NUMBERS_BYTES;
            stage.next();

            float s[32];
            products_begin();
            const u32 k_is = describe(keys), v_is = describe(keys + TILE_BYTES);
            multiply(s, q_is, k_is);
            products_sent();
            const BiasOfRows::Tile bias(numbers + OF_BIAS, group, thread);
            const bool checked = (tile + 1) * TILE > min(length, causal ? start_q + shift + 1 : length);
            products_done();
            pin(s);

            float highest[2] = {none, none};
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = 4 * n + 2 * r;
                    const float2 add = bias.at(n, r);
                    s[i] = fmaf(s[i], factor, add.x);
                    s[i + 1] = fmaf(s[i + 1], factor, add.y);
                }
            }
            if (checked) keep(s, none, [&](int r, int column) { return tile * TILE + column < limit[r]; });
#pragma unroll
            for (int i = 0; i < 32; i++) highest[(i >> 1) & 1] = fmaxf(highest[(i >> 1) & 1], s[i]);
            float shrink[2];
            rise(highest, top, shrink, acc);
            total[0] *= shrink[0];
            total[1] *= shrink[1];
            const float subtract[2] = {top[0] == none ? 0.0f : top[0], top[1] == none ? 0.0f : top[1]};
            u32 weights[16];
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = 4 * n + 2 * r;
                    const float p0 = exp2_fast(s[i] - subtract[r]), p1 = exp2_fast(s[i + 1] - subtract[r]);
                    total[r] += p0 + p1;
#ifdef DROPOUT
                    const uint2 of_keys = ((const uint2*)numbers)[4 * n + pair];
                    weights[2 * n + r] =
                        pack(drop.drops(row_noise[r], of_keys.x) ? 0.0f : p0, drop.drops(row_noise[r], of_keys.y) ? 0.0f : p1);
#else
                    weights[2 * n + r] = pack(p0, p1);
#endif
                }
            }
            products_begin();
            multiply_tile(acc, weights, v_is);
            products_sent();
        }
        products_done();
        pin(acc);
    }
    // Causal: the first group needs fewer tiles than the block; what is still on its way must arrive before the block ends.
    keep_output(out, rest, lse, acc, top, total, drop.unit, b, head, heads, row0, q_len);
    for (int tile = max(tiles, 1); tile < loaded; tile++) {
        if (lane == 0) arrive(barrier(KEYS_OUT + old.at));
        if (threadIdx.x == 0 && tile - 1 + STAGES < loaded) {
            wait(barrier(KEYS_OUT + old.at), old.parity);
            load_keys(tile - 1 + STAGES, old.at);
        }
        old.next();
    }
}
