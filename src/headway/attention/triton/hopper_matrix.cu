// The gradient of a bias that is a matrix, summed over the batch, on Hopper, in half precision, for head width 64.
//
// A block owns a tile of 128 x 128 of the matrix, 64 rows for each of two groups of 128 threads, and goes over its share of
// the batch. What is summed stays in registers. A warp of its own loads what the next sequence needs. Compiled with MATRIX.
//
// MASK, DOCUMENTS: which keys may be seen (hopper_words.cuh), and by whom (hopper_documents.cuh).

#include "hopper.cuh"
#include "hopper_pipes.cuh"
#include "hopper_bias.cuh"
#include "hopper_words.cuh"
#include "hopper_documents.cuh"

constexpr int STAGES = 2;
constexpr int WARPS = 8;
constexpr int BLOCK = 2 * TILE;
constexpr int STAGE_BYTES = 8 * TILE_BYTES;                  // two tiles each of q, the gradient, k and v
constexpr int NUMBERS_BYTES = 4 * BLOCK * 4;                 // lse, delta, noise of queries and of keys
constexpr int AT_NUMBERS = STAGES * STAGE_BYTES;             // (STAGES + 1,): still read when the tiles no longer are
constexpr int AT_BIAS = AT_NUMBERS + (STAGES + 1) * NUMBERS_BYTES;  // (column tiles, groups)
constexpr int AT_BARRIERS = AT_BIAS + 2 * BIAS_BYTES;
SHARED_BYTES(matrix, AT_BARRIERS + 64)
enum Barriers { IN = 0, OUT = STAGES, BIAS_IN = 2 * STAGES };

// Groups take turns at the tensor cores: one multiplies while the other works on what it got.
__device__ __forceinline__ void my_turn(int group) { asm volatile("bar.sync %0, 256;\n" ::"r"(1 + group) : "memory"); }
__device__ __forceinline__ void your_turn(int group) { asm volatile("bar.arrive %0, 256;\n" ::"r"(1 + group) : "memory"); }

extern "C" __global__ void __launch_bounds__(384, 1) matrix(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap grad_map,
    const float* lse, const float* delta,      // (B, H, Lq)
    const Numbers* table, const int* lengths,  // of tiles whose rows are queries; (B,), or null
#ifdef MASK
    const u64* words,                          // (B, words of 64 keys)
#endif
#ifdef DOCUMENTS
    const int* q_documents, const int* k_documents,  // (B, blocks of 128, RECORD)
#endif
    float* sums,                               // (chunks, H, Lq, Lk)
    int batch, int heads, int groups, int q_len, int k_len, int causal, int table_head, int tiles_of_row, int,
    int chunks, double scale, const u32* noise, double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    auto barrier = [&](int which) { return base + AT_BARRIERS + 8 * which; };

    const int group = uniform(threadIdx.x >> 7), lane = threadIdx.x & 31;
    const int tiles_q = (q_len + BLOCK - 1) / BLOCK, tiles_k = (k_len + BLOCK - 1) / BLOCK, shift = k_len - q_len;
    const int chunk = blockIdx.x % chunks, tile_k = blockIdx.x / chunks % tiles_k;
    const int tile_q = blockIdx.x / chunks / tiles_k % tiles_q, head = blockIdx.x / chunks / tiles_k / tiles_q;
    const int block_q = tile_q * BLOCK, start_k = tile_k * BLOCK;
    const bool seen = !causal || start_k <= block_q + BLOCK - 1 + shift;
    const int end = seen ? (int)((long long)batch * (chunk + 1) / chunks) : 0;
    auto from = [&](int b) {  // the next sequence that has keys here
#ifdef DOCUMENTS
        while (b < end) {
            const int* record = DOCUMENTS_OF(b).queries + tile_q * RECORD;
            if (record[FIRST_TILE] < 2 * tile_k + 2 && record[END_TILE] > 2 * tile_k) break;
            b++;
        }
#else
        while (b < end && lengths && lengths[b] <= start_k) b++;
#endif
        return b;
    };
    int b = from((int)((long long)batch * chunk / chunks));

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(barrier(IN + i), 33);
            barrier_init(barrier(OUT + i), WARPS);
        }
        barrier_init(barrier(BIAS_IN), 1);
        barriers_made();
    }
    __syncthreads();
    Ring<STAGES> stage;
    Ring<STAGES + 1> place;  // of numbers

    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
        if (threadIdx.x >= 256 + 32 || b >= end) return;
        if (lane == 0) {
            arrive_and_expect(barrier(BIAS_IN), 2 * BIAS_BYTES);
            for (int i = 0; i < 2; i++)
                Bias(table + (long long)head * table_head, block_q, 2 * tile_k + i, tiles_of_row, 0)
                    .fetch_to(base + AT_BIAS + i * BIAS_BYTES, barrier(BIAS_IN));
        }
        for (; b < end; b = from(b + 1)) {
            const u32 at = base + stage.at * STAGE_BYTES, full = barrier(IN + stage.at);
            const u32 numbers = base + AT_NUMBERS + place.at * NUMBERS_BYTES;
            const Dropout drop(noise, dropout, (long long)b * heads + head, q_len, k_len);
            wait(barrier(OUT + stage.at), stage.parity ^ 1);
            if (lane == 0) {
#ifdef DROPOUT
                arrive_and_expect(full, 8 * TILE_BYTES + 2 * BLOCK * 4);
                fetch(numbers + 2 * BLOCK * 4, drop.of_queries + block_q, BLOCK * 4, full);
                fetch(numbers + 3 * BLOCK * 4, drop.of_keys + start_k, BLOCK * 4, full);
#else
                arrive_and_expect(full, 8 * TILE_BYTES);
#endif
                for (int i = 0; i < 2; i++) {
                    fetch_tile(at + i * TILE_BYTES, q_map, block_q + i * TILE, head, b, full);
                    fetch_tile(at + (2 + i) * TILE_BYTES, grad_map, block_q + i * TILE, head, b, full);
                    fetch_tile(at + (4 + i) * TILE_BYTES, k_map, start_k + i * TILE, head / groups, b, full);
                    fetch_tile(at + (6 + i) * TILE_BYTES, v_map, start_k + i * TILE, head / groups, b, full);
                }
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int row = block_q + lane + 32 * (i & 3), bytes = row < q_len ? 4 : 0;
                const float* source = (i < 4 ? lse : delta) + ((long long)b * heads + head) * q_len + (bytes ? row : 0);
                const u32 target = numbers + (lane + 32 * i) * 4;
                asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(target), "l"(source), "r"(bytes));
            }
            arrive_after_loads(full);
            stage.next();
            place.next();
        }
        asm volatile("cp.async.wait_all;\n" ::: "memory");
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
    const int thread = threadIdx.x & 127, warp = thread >> 5, row8 = lane >> 2, pair = thread & 3;
    const int own_row = group * TILE + 16 * warp + row8, row0 = block_q + own_row;  // and row0 + 8
    const float factor = (float)(scale * 1.4426950408889634);
    const Dropout drop(noise, dropout, 0, q_len, k_len);
    float acc[64];
#pragma unroll
    for (int i = 0; i < 64; i++) acc[i] = 0.0f;
    if (b < end) wait(barrier(BIAS_IN), 0);
    if (group == 1) your_turn(0);

    for (; b < end; b = from(b + 1)) {
        const u32 at = uniform(base + stage.at * STAGE_BYTES);
        const float* all_numbers = (const float*)(shared + AT_NUMBERS + place.at * NUMBERS_BYTES);
        const float* numbers = all_numbers + own_row;
        wait(barrier(IN + stage.at), stage.parity);
        float s[64], dp[64];
        my_turn(group);
        products_begin();
        multiply(s, describe(at + group * TILE_BYTES), describe(at + 4 * TILE_BYTES));
        products_sent();
        multiply(dp, describe(at + (2 + group) * TILE_BYTES), describe(at + 6 * TILE_BYTES));
        products_sent();
        const float lse_of[2] = {numbers[0], numbers[8]}, delta_of[2] = {numbers[BLOCK], numbers[BLOCK + 8]};
        const int length = lengths ? lengths[b] : k_len;
        const Words shown = WORDS_OF(b);
        const Documents documents = DOCUMENTS_OF(b);
        const bool checked = start_k + BLOCK > min(length, causal ? block_q + group * TILE + shift + 1 : length) ||
                             !shown.all(2 * tile_k) || !shown.all(2 * tile_k + 1) ||
                             !documents.one(block_q + group * TILE, start_k) ||
                             !documents.one(block_q + group * TILE, start_k + TILE);
        int limit[2];
#pragma unroll
        for (int r = 0; r < 2; r++) limit[r] = causal ? min(length, row0 + 8 * r + shift + 1) : length;
#ifdef DROPOUT
        const u32 row_noise[2] = {__float_as_uint(numbers[2 * BLOCK]), __float_as_uint(numbers[2 * BLOCK + 8])};
        const uint2* key_noise = (const uint2*)(all_numbers + 3 * BLOCK) + pair;
#endif
        products_done_but_last();
        pin(s);
        auto weigh = [&](auto all) {  // whether every pair of the tile counts
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const Bias::Tile bias(shared + AT_BIAS + side * BIAS_BYTES, group, thread);
                const Words here = shown.of(2 * tile_k + side);
                u32 of_text = 0;
                if (!decltype(all)::value) of_text = documents.of_queries(row0, start_k + side * TILE);
#pragma unroll
                for (int n = 0; n < 8; n++) {
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const int i = 32 * side + 4 * n + 2 * r;
                        const float2 add = bias.at(n, r);
                        s[i] = exp2_fast(fmaf(s[i], factor, add.x) - lse_of[r]);
                        s[i + 1] = exp2_fast(fmaf(s[i + 1], factor, add.y) - lse_of[r]);
                        if (decltype(all)::value) continue;
                        const int left = limit[r] - start_k - TILE * side - 8 * n - 2 * pair;  // keys that count from here on
                        const bool first = here.at(8 * n + 2 * pair) && documents.at(of_text, r, 8 * n);
                        const bool second = here.at(8 * n + 2 * pair + 1) && documents.at(of_text, r, 8 * n + 1);
                        s[i] = left > 0 && first ? s[i] : 0.0f;
                        s[i + 1] = left > 1 && second ? s[i + 1] : 0.0f;
                    }
                }
            }
        };
        if (checked) weigh(Flag<false>());
        else weigh(Flag<true>());
        products_done();
        pin(dp);
        your_turn(group ^ 1);
        if (lane == 0) arrive(barrier(OUT + stage.at));  // the tiles are read
#pragma unroll
        for (int i = 0; i < 64; i += 2) {
            const int r = (i >> 1) & 1;
#ifdef DROPOUT
            const uint2 of_keys = key_noise[i >> 2 << 2];
            if (drop.drops(row_noise[r], of_keys.x)) dp[i] = 0.0f;
            if (drop.drops(row_noise[r], of_keys.y)) dp[i + 1] = 0.0f;
#endif
            acc[i] = fmaf(s[i], fmaf(dp[i], drop.unit, -delta_of[r]), acc[i]);
            acc[i + 1] = fmaf(s[i + 1], fmaf(dp[i + 1], drop.unit, -delta_of[r]), acc[i + 1]);
        }
        stage.next();
        place.next();
    }

    float* own = sums + ((long long)chunk * heads + head) * q_len * k_len;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const int row = row0 + 8 * ((i >> 1) & 1), column = start_k + 8 * (i >> 2) + 2 * pair + (i & 1);
        if (row < q_len && column < k_len) own[(long long)row * k_len + column] = acc[i];
    }
}
