// Attention with a bias that the batch shares, on Hopper, in half precision.
//
// A block owns 64 queries for each of its GROUPS of 128 threads, and goes over the keys in tiles of 64. All groups read the
// same tiles, each at its own pace; the warps take turns to ask for later ones.
//
// Weights are measured from `top`, which need not be the highest score: the exponentials of a tile are made at once, and
// only if they come out too large does top rise, and the tile is weighed again. So most tiles need no maximum.
//
// SEGMENTS: beside the bias, a step for each query, to be added where the key is of segment 1.
// FACTORS: beside the bias, a low-rank one: a vector of 64 for each query and each key, whose product is added.
// EXACT: what rounding takes from the weights joins the output too, so that gradients which nearly cancel do not see it.
// KEYS, VALUES: relative keys, relative values (hopper_relative.cuh), for the place of each key seen from each query.
// MASK: beside lengths, a bit for each key says whether it may be seen (hopper_words.cuh).
// DOCUMENTS: a query sees the keys of its own text (hopper_documents.cuh); not beside relative keys and values.
// WEIGHTS: what each place of a table has of the weights is wanted, for the backward pass.

#include "hopper.cuh"
#include "hopper_pipes.cuh"
#include "hopper_bias.cuh"
#include "hopper_words.cuh"
#include "hopper_documents.cuh"
#ifdef FACTORS
constexpr bool FACTORED = true;
#else
constexpr bool FACTORED = false;
#endif
#if defined(KEYS) || defined(VALUES)
#define RELATIVE
#include "hopper_relative.cuh"
constexpr int PLACES_BYTES = TILE * STRIDE * 2;
constexpr int TABLES = 2;  // of keys and of values
constexpr bool WIDE = REACH > 16;
#if defined(VALUES) || defined(WEIGHTS)
#define PLACED
#endif
#else
constexpr int PLACES_BYTES = 0, TABLES = 0;
constexpr bool WIDE = FACTORED || BIAS_BYTES > TILE_BYTES;
#endif

// How many tiles are in shared memory, and how many are asked for beyond the current one: fewer, if more lies there.
constexpr int STAGES = WIDE ? 3 : 4, AHEAD = WIDE ? 1 : 2;
constexpr int WARPS = 4 * GROUPS, BLOCK = GROUPS * TILE;  // BLOCK: queries
constexpr int KEY_BYTES = (2 * COLS + FACTORED) * TILE_BYTES;  // k, v, and the factors of keys
constexpr int AT_QUERIES = 0;                                  // (GROUPS, COLS)
constexpr int AT_FACTORS = GROUPS * COLS * TILE_BYTES;         // of the queries
constexpr int AT_TABLES = AT_FACTORS + FACTORED * GROUPS * TILE_BYTES;
constexpr int AT_KEYS = AT_TABLES + TABLES * TILE_BYTES;  // (STAGES,)
constexpr int AT_PLACES = AT_KEYS + STAGES * KEY_BYTES;   // (2, 64, STRIDE): scores of the table, then weights in place
constexpr int AT_NUMBERS = AT_PLACES + 2 * PLACES_BYTES;  // (STAGES,): noise of the keys, their segments, the bias
constexpr int OF_SEGMENTS = TILE * 4;
constexpr int OF_BIAS = OF_SEGMENTS + SEGMENTED * TILE * 4;
constexpr int NUMBERS_BYTES = OF_BIAS + BIAS_BYTES;
constexpr int AT_BARRIERS = AT_NUMBERS + STAGES * NUMBERS_BYTES;
SHARED_BYTES(forward, AT_BARRIERS + 128)
enum Barriers { KEYS_IN = 0, KEYS_OUT = STAGES, QUERIES_IN = 2 * STAGES };

#ifdef BFLOAT16
constexpr float ABOVE = 40.0f, MOST = 1e12f;  // how far above the highest score `top` is set; the most that weights sum to
#else
constexpr float ABOVE = 0.0f, MOST = 16384.0f;
#endif

// Where scores of a thread's two rows are above `top`, it rises to where weights are small; what was summed shrinks.
__device__ __forceinline__ void rise_above(
    const float (&s)[32], float (&top)[2], float (&total)[2], float (&acc)[SUMS_OF_ROWS], float (&shrink)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float highest = s[2 * r];
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (((i >> 1) & 1) == r) highest = fmaxf(highest, s[i]);
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 2));
        const float higher = highest > top[r] ? highest + ABOVE : top[r];
        shrink[r] = higher == top[r] ? 1.0f : exp2_fast(top[r] - higher);
        top[r] = higher;
        total[r] *= shrink[r];
#pragma unroll
        for (int n = 0; n < SUMS_OF_ROWS / 4; n++) {
            acc[4 * n + 2 * r] *= shrink[r];
            acc[4 * n + 2 * r + 1] *= shrink[r];
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, COLS == 1 ? 2 : 1) forward(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map,
    const __grid_constant__ TensorMap left_map, const __grid_constant__ TensorMap right_map,  // FACTORS, in float16
    const u16* key_table, const u16* value_table,  // KEYS, VALUES: (H, 64, 64), that of keys scaled
    const Numbers* table,                          // of tiles whose rows are queries
    const int* lengths,                            // (B,), or null
#ifdef MASK
    const u64* words,                              // (B, words of 64 keys)
#endif
#ifdef DOCUMENTS
    const int* q_documents, const int* k_documents,  // (B, blocks of 128, RECORD)
#endif
    const float* steps, const float* k_segments,   // SEGMENTS: (B, H, queries), in units of log 2; (B|1, keys), 0 or 1
    u16* out, u16* rest, float* lse,  // (B, Lq, H, WIDTH), twice: the output, and what rounding took or null; (B, H, Lq)
#ifdef RELATIVE
    u16* of_places,                   // WEIGHTS: (B, H, Lq, PLACES)
#endif
    int heads, int groups, int q_len, int k_len, int causal, int table_head, int padded, int before,
    int q_padded, int segments_batch, int left_heads, int right_heads, int begin,
    double scale, const u32* noise, double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    if (threadIdx.x == 0) {
        expect(q_map);
        expect(k_map);
        expect(v_map);
        if (FACTORED) expect(left_map);
        if (FACTORED) expect(right_map);
    }
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    auto barrier = [&](int which) { return base + AT_BARRIERS + 8 * which; };

    const int group = uniform(threadIdx.x >> 7), thread = threadIdx.x & 127, lane = threadIdx.x & 31;
    const int warp = thread >> 5, row8 = lane >> 2, pair = thread & 3, which = uniform(threadIdx.x >> 5);
    const int blocks = (q_len + BLOCK - 1) / BLOCK, shift = k_len - q_len;
    const int head = blockIdx.y, b = blockIdx.x / blocks, block = blockIdx.x - b * blocks;
    // Tables reach as far as whole 128 queries. Where the last block would pass them, it repeats some of the one before.
    const int first_q = (causal ? blocks - 1 - block : block) * BLOCK;
    const int block_q = GROUPS == 2 ? first_q : min(first_q, ((q_len + 127) & ~127) - BLOCK);
    const int start_q = block_q + group * TILE;
    const int head_of_keys = uniform(head / groups);
    const float factor = (float)(scale * 1.4426950408889634), none = -__int_as_float(0x7f800000);
    const int length = lengths ? lengths[b] : k_len;
    const Words shown = WORDS_OF(b);
    const Documents documents = DOCUMENTS_OF(b);
#ifdef DOCUMENTS
    const int* record = documents.queries + block_q / 128 * RECORD;
    int first_tile = record[FIRST_TILE], end_tile = record[END_TILE];
    if (GROUPS > 2) {  // and of the next 128 queries
        first_tile = min(first_tile, record[RECORD + FIRST_TILE]);
        end_tile = max(end_tile, record[RECORD + END_TILE]);
    }
#else
    constexpr int first_tile = 0;
#endif
    auto tiles_for = [&](int queries_end) {
        const int stop = causal ? min(length, max(queries_end + shift, 0)) : length;
#ifdef DOCUMENTS
        return max(min((stop + TILE - 1) / TILE, end_tile) - first_tile, 0);
#else
        return (stop + TILE - 1) / TILE;
#endif
    };
    const int loaded = tiles_for(block_q + BLOCK), tiles = tiles_for(start_q + TILE);  // one less, if not as many
    const Dropout drop(noise, dropout, (long long)b * heads + head, q_len, k_len);

    auto load_keys = [&](int number) {
        const int stage = number % STAGES, tile = first_tile + number;
        const u32 keys = base + AT_KEYS + stage * KEY_BYTES, full = barrier(KEYS_IN + stage);
        const u32 numbers = base + AT_NUMBERS + stage * NUMBERS_BYTES;
        arrive_and_expect(full, KEY_BYTES + BIAS_BYTES + (NOISY + SEGMENTED) * TILE * 4);
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            fetch_tile(keys + c * TILE_BYTES, k_map, tile * TILE, head_of_keys, b, full, c * TILE);
            fetch_tile(keys + (COLS + c) * TILE_BYTES, v_map, tile * TILE, head_of_keys, b, full, c * TILE);
        }
        if (FACTORED) fetch_tile(keys + 2 * COLS * TILE_BYTES, right_map, tile * TILE, min(head, right_heads - 1), 0, full);
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
        arrive_and_expect(barrier(QUERIES_IN), (COLS + FACTORED) * GROUPS * TILE_BYTES);
        for (int i = 0; i < GROUPS; i++) {
            const u32 to = base + i * TILE_BYTES, row = block_q + i * TILE;
#pragma unroll
            for (int c = 0; c < COLS; c++)
                fetch_tile(base + AT_QUERIES + (i * COLS + c) * TILE_BYTES, q_map, row, head, b, barrier(QUERIES_IN), c * TILE);
            if (FACTORED) fetch_tile(to + AT_FACTORS, left_map, row, min(head, left_heads - 1), 0, barrier(QUERIES_IN));
        }
        if (loaded > 0) load_keys(0);
    }
#ifdef RELATIVE
    const u16* of_group = group ? value_table : key_table;
    if (of_group) load_tile(base + AT_TABLES + group * TILE_BYTES, of_group + head * TILE * TILE, TILE, 0, TILE);
    asm volatile("cp.async.wait_all;\n" ::: "memory");
    publish();
#endif
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
    float acc[SUMS_OF_ROWS], top[2] = {none, none}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < SUMS_OF_ROWS; i++) acc[i] = 0.0f;

    wait(barrier(QUERIES_IN), 0);
    const u32 q_is = describe(base + AT_QUERIES + group * COLS * TILE_BYTES);
#ifdef RELATIVE
    const Rows rows(thread, start_q, begin);
    u16* in_places = (u16*)(shared + AT_PLACES + group * PLACES_BYTES);
    float left[2] = {0.0f, 0.0f}, right[2] = {0.0f, 0.0f};
    Ends far;
#endif
#ifdef KEYS
    {
        float of_table[32];
        whole_product(of_table, base + AT_QUERIES + group * TILE_BYTES, base + AT_TABLES);
        rows.fill(in_places, of_table, 1.4426950408889634f);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            left[r] = number(in_places[rows.at[r] + LEFT]);
            right[r] = number(in_places[rows.at[r] + RIGHT]);
        }
    }
#endif
#ifdef PLACED
    u32 a[STEPS][4] = {};  // weights of places
#endif
    if (tiles > 0) {  // that the last wait is in here, too, lets the compiler keep products in flight
        for (int tile = 0; tile < tiles; tile++) {
            const int stage = tile % STAGES;
            wait(barrier(KEYS_IN + stage), tile / STAGES & 1);
            const u32 keys = base + AT_KEYS + stage * KEY_BYTES;
            const unsigned char* numbers = shared + AT_NUMBERS + stage * NUMBERS_BYTES;
            const bool all_shown = shown.all(first_tile + tile) && documents.one(start_q, (first_tile + tile) * TILE);

            float s[32];
            products_begin();
            const u32 k_is = describe(keys), v_is = describe(keys + COLS * TILE_BYTES);
            multiply<WIDTH>(s, q_is, k_is);
#ifdef FACTORS
            add_product_of_float16(
                s, describe(base + AT_FACTORS + group * TILE_BYTES), describe(keys + 2 * COLS * TILE_BYTES));
#endif
            products_sent();
            const int later = tile + AHEAD;  // which takes the place of a tile that is long read
            if (tile > 0 && later < loaded && which == tile % WARPS) {
                if (later >= STAGES) wait(barrier(KEYS_OUT + later % STAGES), (later / STAGES - 1) & 1);
                if (lane == 0) load_keys(later);
            }
            const BiasOfRows::Tile bias(numbers + OF_BIAS, group, thread);
            const bool checked =
                !all_shown || (first_tile + tile + 1) * TILE > min(length, causal ? start_q + shift + 1 : length);
            products_done();
            pin(s);
            pin(acc);
            if (lane == 0 && tile > 0) arrive(barrier(KEYS_OUT + (tile - 1) % STAGES));

            auto add_to_scores = [&](auto number_at) {
#pragma unroll
                for (int n = 0; n < 8; n++) {
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const int i = 4 * n + 2 * r;
                        const float2 add = number_at(n, r);
                        s[i] = fmaf(s[i], factor, add.x);
                        s[i + 1] = fmaf(s[i + 1], factor, add.y);
#ifdef SEGMENTS
                        const float2 segment = ((const float2*)(numbers + OF_SEGMENTS))[4 * n + pair];
                        s[i] = fmaf(step[r], segment.x, s[i]);
                        s[i + 1] = fmaf(step[r], segment.y, s[i + 1]);
#endif
                    }
                }
            };
#ifdef RELATIVE
            const int first_offset = tile * TILE - (start_q + 16 * warp + 15) - begin;  // of this warp's rows
            const int side = side_of(first_offset, first_offset + 78);
#endif
#ifdef KEYS
            if (side == 0) {
                add_to_scores([&](int n, int r) { return rows.pair(in_places, r, rows.place[r] + tile * TILE + 8 * n); });
            } else {
                const float end[2] = {side < 0 ? left[0] : right[0], side < 0 ? left[1] : right[1]};
                add_to_scores([&](int n, int r) { return make_float2(end[r], end[r]); });
            }
#else
            add_to_scores([&](int n, int r) { return bias.at(n, r); });
#endif
            if (checked) {
                const Words here = shown.of(first_tile + tile);
                const u32 of_text = documents.of_queries(row0, (first_tile + tile) * TILE);
                keep(s, none, [&](int r, int column) {
                    const int key = (first_tile + tile) * TILE + column;
                    return key < limit[r] && here.at(column) && documents.at(of_text, r, column);
                });
            }

            u32 weights[16], lost[16];  // and what rounding takes from them
            float of_tile[2], kept[2];  // sums of weights, and of those that are not dropped
            auto weigh = [&](const float (&from)[2]) {
                of_tile[0] = of_tile[1] = kept[0] = kept[1] = 0.0f;
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
                        const float kept0 = drop0 ? 0.0f : p0, kept1 = drop1 ? 0.0f : p1;
                        kept[r] += kept0 + kept1;
#else
                        const float kept0 = p0, kept1 = p1;
#endif
                        weights[2 * n + r] = pack(kept0, kept1);
#ifdef EXACT
                        const float2 rounded = unpack(weights[2 * n + r]);
                        lost[2 * n + r] = pack(kept0 - rounded.x, kept1 - rounded.y);
#endif
                    }
                }
            };
            if (tile > 0) weigh(top);
            if (tile == 0 || __any_sync(0xffffffff, !(of_tile[0] < MOST && of_tile[1] < MOST))) {  // or not a number
                float shrink[2];
                rise_above(s, top, total, acc, shrink);
#ifdef PLACED
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    far.left[r] *= shrink[r];
                    far.right[r] *= shrink[r];
                    if (tile > 0) rows.shrink(in_places, r, shrink[r], tile * TILE);
                }
#endif
                const float from[2] = {top[0] == none ? 0.0f : top[0], top[1] == none ? 0.0f : top[1]};
                weigh(from);
            }
            total[0] += of_tile[0];
            total[1] += of_tile[1];
#ifdef PLACED
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (side != 0) (side < 0 ? far.left[r] : far.right[r]) += NOISY ? kept[r] : of_tile[r];
            }
            if (side == 0) {
#pragma unroll
                for (int n = 0; n < 8; n++) {
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const int x = rows.place[r] + tile * TILE + 8 * n;
                        const float2 both = unpack(weights[2 * n + r]);
                        far.add(r, x, both.x, both.y);
                        rows.put(in_places, r, x, weights[2 * n + r]);
                    }
                }
            }
#endif
            products_begin();
            multiply_tile(acc, weights, v_is);
#ifdef EXACT
            multiply_tile(acc, lost, v_is);
#endif
            products_sent();
        }
        products_done();
        pin(acc);
#ifdef PLACED
#ifndef BFLOAT16
#pragma unroll
        for (int r = 0; r < 2; r++) {  // sums at the ends must fit into float16
            float sum = total[r] + __shfl_xor_sync(0xffffffff, total[r], 1);
            sum += __shfl_xor_sync(0xffffffff, sum, 2);
            const float steps_up = sum > MOST ? ceilf(log2f(sum / MOST)) : 0.0f, shrink = exp2_fast(-steps_up);
            if (!__any_sync(0xffffffff, steps_up > 0.0f)) continue;
            top[r] += steps_up;
            total[r] *= shrink;
            far.left[r] *= shrink;
            far.right[r] *= shrink;
            rows.shrink(in_places, r, shrink, tiles * TILE);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                acc[4 * n + 2 * r] *= shrink;
                acc[4 * n + 2 * r + 1] *= shrink;
            }
        }
#endif
        far.meet();
        collect(a, rows, [&](int r, int x) { return (u32)in_places[rows.at[r] + x]; }, far, start_q + 16 * warp + begin, tiles * TILE);
#endif
#ifdef VALUES
        products_begin();
        const u32 values_is = describe(base + AT_TABLES + TILE_BYTES);
#pragma unroll
        for (int step = 0; step < STEPS; step++) multiply_from_registers(acc, a[step], values_is + step * (2048 >> 4));
        products_sent();
        products_done();
        pin(acc);
#endif
    }
    keep_output(out, rest, lse, acc, top, total, drop.unit, b, head, heads, row0, q_len);
#ifdef WEIGHTS
#pragma unroll
    for (int part = 0; part < 4; part++) {
        const int row = row0 + 8 * (part & 1);
        const float share = total[part & 1] > 0.0f ? drop.unit / total[part & 1] : 0.0f;
        const int first = 8 * (part >> 1) + 2 * pair;
        u16* to = of_places + (((long long)b * heads + head) * q_len + row) * PLACES + first + MARGIN - LEFT;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const float2 both = unpack(a[step][part]);
            if (row < q_len && 16 * step + first <= RIGHT) *(u32*)(to + 16 * step) = pack(both.x * share, both.y * share);
        }
    }
#endif
}
