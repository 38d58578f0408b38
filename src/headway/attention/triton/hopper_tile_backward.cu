// All gradients of attention whose scores are one tile.
//
// Sums over a row are exact, as all its scores are there: nothing of the forward pass but one number per row is needed.
// Weights and gradients of scores pass through shared memory; from there each group takes the gradients of 64 keys and values.
//
// LEARNED: the gradient of the bias is wanted, and stays in registers.

#include "hopper_tile.cuh"

constexpr int STAGES = 2;
constexpr int STAGE_BYTES = 8 * TILE_BYTES;                     // two tiles each of q, the gradient, k and v
constexpr int AT_WEIGHTS = STAGES * STAGE_BYTES;                // (tiles of keys, groups): queries x keys
constexpr int AT_DS = AT_WEIGHTS + 4 * TILE_BYTES;              // gradients of scores, in the same way
constexpr int AT_BIAS = AT_DS + 4 * TILE_BYTES;                 // (tiles of keys, groups)
constexpr int AT_NOISE = AT_BIAS + 2 * BIAS_BYTES;              // (STAGES,): of the keys
constexpr int AT_BARRIERS = AT_NOISE + STAGES * NOISE_BYTES;
SHARED_BYTES(tile_backward, AT_BARRIERS + 64)
enum Barriers { IN = 0, OUT = STAGES, BIAS_IN = 2 * STAGES };

// Those who pass weights and gradients of scores to one another: both groups, or each alone.
__device__ __forceinline__ void meet(int own) {
    asm volatile("bar.sync %0, %1;\n" ::"r"(1 + own), "n"(256 / EACH) : "memory");
}

// Half precision numbers of a warp's 16 rows and 16 columns go to a tile; `row` is where the thread's row begins.
__device__ __forceinline__ void put(u32 row, int two, const u32 (&four)[4]) {
    const int lane = threadIdx.x & 31;
    const u32 place = row + (((2 * two + (lane >> 4)) ^ (lane & 7)) << 4);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n"
                 ::"r"(place), "r"(four[0]), "r"(four[1]), "r"(four[2]), "r"(four[3]) : "memory");
}

extern "C" __global__ void __launch_bounds__(384, 1) tile_backward(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap grad_map,
    const float* lse,                          // (B, H, Lq)
    const Numbers* table, const int* lengths,  // of tiles whose rows are queries; (B,), or null
#ifdef MASK
    const u64* words,  // (B, words of 64 keys)
#endif
    u16* dq, u16* dk, u16* dv,                 // (B, L, H of pitch, 64)
    float* sums,                               // LEARNED: (chunks, sequences at a time, H, Lq, Lk)
    int batch, int heads, int groups, int q_len, int k_len, int causal, int table_head, int tiles_of_row, int,
    int chunks, int pitch, double scale, const u32* noise, double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    auto barrier = [&](int which) { return base + AT_BARRIERS + 8 * which; };

    const int group = uniform(threadIdx.x >> 7), lane = threadIdx.x & 31;
    const Share share(batch, chunks);
    const int head = share.head, end = share.end;
    int b = share.b;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(barrier(IN + i), 1);
            barrier_init(barrier(OUT + i), WARPS);
        }
        barrier_init(barrier(BIAS_IN), 1);
        barriers_made();
    }
    __syncthreads();
    Ring<STAGES> stage;

    if (group == 2) {  // the loader
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;\n");
        if (threadIdx.x > 256) return;
        fetch_bias(base + AT_BIAS, table + (long long)head * table_head, tiles_of_row, barrier(BIAS_IN));
        for (; b < end; b += EACH) {
            const u32 at = base + stage.at * STAGE_BYTES, full = barrier(IN + stage.at);
            wait(barrier(OUT + stage.at), stage.parity ^ 1);
            arrive_and_expect(full, STAGE_BYTES + NOISY * NOISE_BYTES);
            if (NOISY)
                fetch_noise(base + AT_NOISE + stage.at * NOISE_BYTES, noise, batch, b, head, heads, q_len, k_len, full);
            fetch_tiles(at, q_map, head, b, full);
            fetch_tiles(at + 2 * TILE_BYTES, grad_map, head, b, full);
            fetch_tiles(at + 4 * TILE_BYTES, k_map, head / groups, b, full);
            fetch_tiles(at + 6 * TILE_BYTES, v_map, head / groups, b, full);
            stage.next();
        }
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;\n");
    const int thread = threadIdx.x & 127, warp = thread >> 5, row8 = lane >> 2, pair = thread & 3;
    const int part = EACH == 1 ? group : 0, own = EACH == 1 ? 0 : group;  // of the queries or keys; of the sequences
    const int row0 = part * TILE + 16 * warp + row8, shift = k_len - q_len;  // and row0 + 8; a query, then a key
    const float factor = (float)(scale * 1.4426950408889634), nothing = __int_as_float(0x7f800000);
    const Dropout drop(noise, dropout, 0, q_len, k_len);
#ifdef LEARNED
    float acc[32 * SIDES];
#pragma unroll
    for (int i = 0; i < 32 * SIDES; i++) acc[i] = 0.0f;
#endif
    if (BIAS_BYTES > 0) wait(barrier(BIAS_IN), 0);

    for (; b < end; b += EACH) {
        const u32 at = uniform(base + stage.at * STAGE_BYTES);
        const int sequence = min(b + own, batch - 1), queries = b + own < end ? q_len : 0;
        const long long of_pair = (long long)sequence * heads + head;
        float lse_of[2];  // of a query that is not there, as of one that sees nothing
#pragma unroll
        for (int r = 0; r < 2; r++) lse_of[r] = row0 + 8 * r < queries ? lse[of_pair * q_len + row0 + 8 * r] : nothing;
        const int length = lengths ? lengths[sequence] : k_len;
        const Words shown = WORDS_OF(sequence);
        const bool checked = SIDES * TILE > min(length, causal ? part * TILE + shift + 1 : length) || !shown.all(0) ||
                             !shown.all(SIDES - 1);
        int limit[2];
#pragma unroll
        for (int r = 0; r < 2; r++) limit[r] = causal ? min(length, row0 + 8 * r + shift + 1) : length;
#ifdef DROPOUT
        const u32* of_queries = Dropout(noise, 0.0, of_pair, q_len, k_len).of_queries;
        const u32 row_noise[2] = {of_queries[row0], of_queries[row0 + 8]};
        const uint2* key_noise = (const uint2*)(shared + AT_NOISE + stage.at * NOISE_BYTES + own * NOISE_BYTES / 2) + pair;
#endif
        wait(barrier(IN + stage.at), stage.parity);
        float s[32 * SIDES], dp[32 * SIDES];
        products_begin();
        multiply(s, describe(at + group * TILE_BYTES), describe(at + (4 + own) * TILE_BYTES));
        multiply(dp, describe(at + (2 + group) * TILE_BYTES), describe(at + (6 + own) * TILE_BYTES));
        products_sent();
        products_done();
        pin(s);
        pin(dp);
        meet(own);  // nobody reads what is in shared memory of the sequence before

        const u32 own_row = group * TILE_BYTES + (16 * warp + (lane & 15)) * 128;
        float delta[2] = {0.0f, 0.0f};
        auto weigh = [&](auto all) {  // whether every pair counts
#pragma unroll
            for (int side = 0; side < SIDES; side++) {
                const Bias::Tile bias(shared + AT_BIAS + side * BIAS_BYTES, part, thread);
                const Words here = shown.of(side);
#pragma unroll
                for (int two = 0; two < 4; two++) {
                    u32 weights[4];
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const int n = 2 * two + j / 2, r = j % 2, i = 32 * side + 4 * n + 2 * r;
                        const float2 add = bias.at(n, r);
                        float p0 = exp2_fast(fmaf(s[i], factor, add.x) - lse_of[r]);
                        float p1 = exp2_fast(fmaf(s[i + 1], factor, add.y) - lse_of[r]);
                        if (!decltype(all)::value) {
                            const int left = limit[r] - TILE * side - 8 * n - 2 * pair;  // keys that count from here on
                            p0 = left > 0 && here.at(8 * n + 2 * pair) ? p0 : 0.0f;
                            p1 = left > 1 && here.at(8 * n + 2 * pair + 1) ? p1 : 0.0f;
                        }
                        float kept0 = p0, kept1 = p1;
#ifdef DROPOUT
                        const uint2 of_keys = key_noise[32 * side + 4 * n];
                        if (drop.drops(row_noise[r], of_keys.x)) kept0 = dp[i] = 0.0f;
                        if (drop.drops(row_noise[r], of_keys.y)) kept1 = dp[i + 1] = 0.0f;
#endif
                        delta[r] = fmaf(p0, dp[i], fmaf(p1, dp[i + 1], delta[r]));
                        s[i] = p0, s[i + 1] = p1;
                        weights[j] = pack(kept0, kept1);
                    }
                    put(base + AT_WEIGHTS + side * 2 * TILE_BYTES + own_row, two, weights);
                }
            }
        };
        if (checked) weigh(Flag<false>());
        else weigh(Flag<true>());
#pragma unroll
        for (int r = 0; r < 2; r++) {
            delta[r] += __shfl_xor_sync(0xffffffff, delta[r], 1);
            delta[r] += __shfl_xor_sync(0xffffffff, delta[r], 2);
            delta[r] *= drop.unit;
        }
        u32 packed[SIDES][16];
#pragma unroll
        for (int side = 0; side < SIDES; side++) {
#pragma unroll
            for (int two = 0; two < 4; two++) {
                u32 four[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int r = j % 2, i = 32 * side + 4 * (2 * two + j / 2) + 2 * r;
                    const float d0 = s[i] * fmaf(dp[i], drop.unit, -delta[r]);
                    const float d1 = s[i + 1] * fmaf(dp[i + 1], drop.unit, -delta[r]);
#ifdef LEARNED
                    acc[i] += d0;
                    acc[i + 1] += d1;
#endif
                    four[j] = packed[side][4 * two + j] = pack(d0, d1);
                }
                put(base + AT_DS + side * 2 * TILE_BYTES + own_row, two, four);
            }
        }
        publish();
        meet(own);  // weights and gradients of scores are there

        float dq_acc[32], dk_acc[32], dv_acc[32];
#pragma unroll
        for (int i = 0; i < 32; i++) dq_acc[i] = 0.0f;
        products_begin();
        const u32 columns = group * SIDES * TILE_BYTES;  // of all queries
        multiply_columns<SIDES>(dv_acc, describe(base + AT_WEIGHTS + columns), describe(at + (2 + own) * TILE_BYTES));
        multiply_columns<SIDES>(dk_acc, describe(base + AT_DS + columns), describe(at + own * TILE_BYTES));
#pragma unroll
        for (int side = 0; side < SIDES; side++)
            multiply_tile(dq_acc, packed[side], describe(at + (4 + own + side) * TILE_BYTES));
        products_sent();
        products_done();
        pin(dq_acc);
        pin(dk_acc);
        pin(dv_acc);
        if (lane == 0) arrive(barrier(OUT + stage.at));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = row0 + 8 * r;
            u16* to = dq + (((long long)sequence * q_len + row) * pitch + head) * TILE;
            keep_row<8>(to, dq_acc + 2 * r, (float)scale, row < queries);
        }
        keep_gradients(dk, dv, dk_acc, dv_acc, (float)scale, drop.unit, sequence, head, pitch, row0,
                       b + own < end ? k_len : 0);
        stage.next();
    }
#ifdef LEARNED
    float* to = sums + (((long long)share.chunk * EACH + own) * heads + head) * q_len * k_len;
#pragma unroll
    for (int i = 0; i < 32 * SIDES; i++) {
        const int row = row0 + 8 * ((i >> 1) & 1), column = 8 * (i >> 2) + 2 * pair + (i & 1);
        if (row < q_len && column < k_len) to[row * k_len + column] = acc[i];
    }
#endif
}
