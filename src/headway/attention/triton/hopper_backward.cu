// The gradients of attention with a bias that the batch shares, on Hopper, in half precision: those of q, k, v and of a
// Toeplitz bias, making each score once.
//
// A block has two groups of 128 threads; each owns 64 keys and goes over the queries in tiles of 64. The gradient of q is
// summed over the block's 128 keys by the tensor cores, over all keys in memory (`sums_q`): `teams` blocks share the keys of
// a sequence and head, and take turns at each tile of queries in an order that is always the same (`rank`). So every sum
// has one order, and scores are made once. Four more warps work beside: the loader brings tiles (hopper_loader.cuh), the
// carrier takes gradients of q to memory (hopper_carrier.cuh), and two adders see to SUMS.
//
// All blocks that share keys must run at the same time; they start at different tiles, so that turns are rarely waited for.
//
// SUMS: the gradient of a Toeplitz bias is wanted. The adder of a group reads its gradients of scores, as they lie in shared
// memory for the gradient of q (hopper_diagonals.cuh), and those who compute have nothing to do with it.
//
// KEYS, VALUES: relative keys, relative values (hopper_relative.cuh) take the place of a bias. What scores and gradients of
// weights near the diagonal add is looked up (`key_rows`, `value_rows`); of tiles away from it lse and delta know. Of the
// gradients of scores the table of keys needs those near the diagonal one by one (`dscores`), and sums of each row
// (`row_sums`): of all, and of whole pieces of 8 keys that are at the left end. Such sums are one more product, with ones
// (`AT_ONES`). What the table does to the gradient of q, hopper_relative.cu adds.
//
// MASK: beside lengths, a bit for each key says whether it may be seen (hopper_words.cuh). DOCUMENTS: a query sees the keys
// of its own text, and a block of keys meets a range of tiles of queries; who adds to a tile when is in a table (`turns`).
//
// SEGMENTS: beside the bias, a step for each query, to be added where the key is of segment 1; two numbers of each head, one
// for each segment of the query. Their gradients are sums of registers.

#include "hopper.cuh"
#include "hopper_pipes.cuh"
#include "hopper_bias.cuh"
#include "hopper_words.cuh"
#include "hopper_documents.cuh"
#include "hopper_walk.cuh"
#include "hopper_diagonals.cuh"
#include "hopper_backward.cuh"
#include "hopper_carrier.cuh"
#include "hopper_loader.cuh"

#if WIDTH > 64 && !defined(SUMS)
#define FEWER "40"
#define MORE "232"
#else
#define FEWER "56"
#define MORE "224"
#endif

#ifdef RELATIVE
SHARED_BYTES(backward, AT_MODES + 16 + 2048)  // up to AT_ONES, which is rounded, and 1024 from there
#elif defined(SUMS)
SHARED_BYTES(backward, AT_LINES + 2 * LINES_BYTES)
#else
SHARED_BYTES(backward, AT_LINES)
#endif

extern "C" __global__ void __launch_bounds__(384, 1) backward(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap grad_map,
    const float* lse, const float* delta,      // (B, H, Lq)
    const Numbers* table, const int* lengths,  // a matrix: of tiles whose rows are keys; (B,), or null
#ifdef MASK
    const u64* words,                          // (B, words of 64 keys)
#endif
#ifdef DOCUMENTS
    const int* q_documents, const int* k_documents,  // (B, blocks of 128, RECORD)
    const u32* turns,                          // (B, blocks of keys, tiles of queries)
#endif
    const float* steps,                        // SEGMENTS: (B, H, queries), in units of log 2
    const float* q_segments, const float* k_segments,  // SEGMENTS: (B|1, queries), (B|1, keys), 0 or 1
    u16* dq, u16* dk, u16* dv,                 // (B, L, H of pitch, WIDTH)
    float* sums_q,                             // (slots, H, ways, tiles of queries, 64 x columns of both groups' SHARE)
    u32* counters,                             // (slots, H, ways, tiles of queries), zero
    float* sums,                               // SUMS: (slots, teams, groups, H, span) from offset -before - 63 on, zero
    float* sums_of_steps,                      // SEGMENTS: (slots, H, teams, WARPS, 2)
#ifdef RELATIVE
    const u16* key_rows, const u16* value_rows,  // (B, H, tiles of queries, 8, SEEN, 8 x 8)
    const float* ends,                           // (B, H, 2, 2, Lq): for tiles at either end lse and delta
    u16* dscores,                                // KEYS: (B, H, tiles of queries, 8, KEPT, 8 x 8)
    float* row_sums,                             // KEYS: (B, H, teams, groups, 2, tiles of 64), zero: left end, all
    int begin,
#endif
    int batch, int heads, int groups, int q_len, int k_len, int causal, int table_head, int padded, int before,
    int q_padded, int q_segments_batch, int k_segments_batch, int span, int slots, int teams, int ways, int pitch,
    double scale, const u32* noise, double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    auto barrier = [&](int which) { return barrier_at(base, which); };
    int* modes = (int*)(shared + AT_MODES);

    const int group = uniform(threadIdx.x >> 7), lane = threadIdx.x & 31;
    const int head = blockIdx.x % heads, slot = blockIdx.x / heads % slots, member = blockIdx.x / heads / slots;
    const int tiles = (q_len + TILE - 1) / TILE, key_blocks = (k_len + BLOCK - 1) / BLOCK, shift = k_len - q_len;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(barrier(QUERIES_IN + i), 33);
            barrier_init(barrier(QUERIES_OUT + i), WARPS);
        }
        for (int i = 0; i < 2; i++) {
            barrier_init(barrier(KEYS_IN + i), 1);
            barrier_init(barrier(KEYS_OUT + i), WARPS);
            barrier_init(barrier(DS_IN + i), WARPS);
            barrier_init(barrier(SLOT_READY + i), 1);
            barrier_init(barrier(SLOT_DONE + i), WARPS);
            barrier_init(barrier(DS_OUT + i), 1);
            barrier_init(barrier(DS_OUT + 2 + i), 1);
        }
        barriers_made();
    }
#ifdef KEYS
    if (threadIdx.x < 256) {
        const int row = threadIdx.x >> 5, piece = ((threadIdx.x >> 2) & 7) ^ row;
        ((u32*)(shared + AT_ONES))[threadIdx.x] = row == 0 || piece < row ? ONES : 0;
    }
    publish();
#endif
    __syncthreads();
    Walk walk = {
        lengths,
#ifdef MASK
        words,
#endif
#ifdef DOCUMENTS
        q_documents, k_documents, turns, 0,
#endif
        batch, slot, slots, member, teams, key_blocks, tiles, shift, k_len, causal,
    };

    // Of 384 times 168 registers, those that move data leave most to those that compute.
    if (group == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 " FEWER ";\n");
    if (threadIdx.x >= 320) {  // the adders, one for each group
#ifdef SUMS
        if (!walk.begin()) return;
        const int of = uniform((threadIdx.x >> 5) - 10);
        const Diagonals diagonals((float*)(shared + AT_LINES + of * LINES_BYTES));
        float* own = sums + ((((long long)slot * teams + member) * 2 + of) * heads + head) * span + before + of * TILE;
        int t = 0;
        do {
            const int at = t & 1;
            wait(barrier(DS_IN + at), (t >> 1) & 1);
            diagonals.sum(base + AT_DS + (at * 2 + of) * TILE_BYTES);
            __syncwarp();
            if (lane == 0) arrive(barrier(DS_OUT + 2 * of + at));
            diagonals.add_to(own + walk.start_k - walk.tile * TILE);
            __syncwarp();
            t++;
        } while (walk.next());
#endif
        return;
    }
    if (threadIdx.x >= 288) {
        if (threadIdx.x > 288 || !walk.begin()) return;
        Carrier{base, modes, walk, sums_q, counters, ((long long)slot * heads + head) * ways, ways}.run();
        return;
    }

    if (threadIdx.x >= 256) {
        if (!walk.begin()) return;
        Loader{
            base, walk, q_map, k_map, v_map, grad_map, lse, delta, table + (long long)head * table_head, padded, before,
            steps, q_segments, q_padded, q_segments_batch, noise, dropout, head, heads, groups, q_len,
#ifdef RELATIVE
            key_rows, value_rows, ends, begin,
#endif
        }.run();
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 " MORE ";\n");
    if (!walk.begin()) return;
    const int thread = threadIdx.x & 127, warp = thread >> 5, row8 = lane >> 2, pair = thread & 3;
    const float factor = (float)(scale * 1.4426950408889634), unit = (float)scale;
    u32 at_keys = base + AT_KEYS;  // of the block whose scores are made
    float s[32], dp[32], dk_acc[SUMS_OF_ROWS], dv_acc[SUMS_OF_ROWS], dq_own[LATE ? 1 : SHARE / 2];
    auto& dq_acc = either<LATE>(s, dq_own);
#ifdef KEYS
    float row_acc[4];  // sums of a tile's gradients of scores for two queries: as the columns of `AT_ONES`, two of them
    int sums_b = 0, sums_row = 0, sums_key = 0;  // of that tile
#endif
    auto scores = [&](u32 queries) {
        const u32 q_is = describe(queries), grad_is = describe(queries + COLS * TILE_BYTES);
        const u32 k_is = describe(at_keys + group * TILE_BYTES), v_is = describe(at_keys + (2 * COLS + group) * TILE_BYTES);
        products_begin();
        multiply<WIDTH, 2, 1>(s, k_is, q_is);
        multiply<WIDTH, 2, 1>(dp, v_is, grad_is);
        products_sent();
    };
#pragma unroll
    for (int i = 0; i < SUMS_OF_ROWS; i++) dk_acc[i] = dv_acc[i] = 0.0f;

    // What is left to do of the tile before: its gradient of q.
    int before_b = walk.b, before_row = 0;
    u32 before_keys = at_keys;
    auto send_dq = [&](int at) {  // of both groups' dS there
        products_begin();
        multiply_columns(
            dq_acc, describe(base + AT_DS + at * 2 * TILE_BYTES),
            describe(before_keys + group * (LATE ? 2 * TILE_BYTES : 2 * SHARE)));
#ifdef KEYS
        multiply_narrow(row_acc, describe(base + AT_DS + (at * 2 + group) * TILE_BYTES), describe(base + AT_ONES));
#endif
        products_sent();
    };
#ifdef KEYS
    auto add_row_sums = [&] {
        const long long part = (((long long)sums_b * heads + head) * teams + member) * 2 + group;
        float* sums_of = row_sums + part * 2 * tiles * TILE + sums_row + 16 * warp + row8;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int left = (sums_row + 16 * warp + row8 + 8 * r + begin - REACH + 1 - sums_key) >> 3;  // whole pieces
            if (left > 0 && pair == (left < 8 ? left >> 1 : 0))
                add_to(sums_of + 8 * r, left < 8 && (left & 1) ? row_acc[2 * r + 1] : row_acc[2 * r]);
            if (pair == 0) add_to(sums_of + tiles * TILE + 8 * r, row_acc[2 * r]);
        }
    };
#endif
    auto hand_over = [&](int t) {
        const int at = slot_of(t);
        wait(barrier(SLOT_READY + at), parity_of_slot(t));
        float4* place = (float4*)(shared + AT_SLOTS + at * SLOT_BYTES) + group * (SHARE / 8 * 128) + thread;
        const int mode = modes[at];
        if (mode == EMPTY) {
#pragma unroll
            for (int n = 0; n < SHARE / 8; n++)
                place[n * 128] = make_float4(dq_acc[4 * n], dq_acc[4 * n + 1], dq_acc[4 * n + 2], dq_acc[4 * n + 3]);
            return;
        }
        if (mode == SUMMED) {
#pragma unroll
            for (int n = 0; n < SHARE / 8; n++) {
                const float4 others = place[n * 128];
                dq_acc[4 * n] += others.x;
                dq_acc[4 * n + 1] += others.y;
                dq_acc[4 * n + 2] += others.z;
                dq_acc[4 * n + 3] += others.w;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = before_row + 16 * warp + row8 + 8 * r;
            u16* to = dq + (((long long)before_b * q_len + row) * pitch + head) * WIDTH + group * SHARE;
            keep_row<SHARE / 8>(to, dq_acc + 2 * r, unit, row < q_len, WIDTH % (2 * SHARE) ? WIDTH - group * SHARE : SHARE);
        }
    };

#ifdef DROPOUT
    u32 row_noise[2];
    auto load_noise = [&] {
        const Dropout drop(noise, dropout, (long long)walk.b * heads + head, q_len, k_len);
        const int row = walk.start_k + group * TILE + 16 * warp + row8;  // padded to whole blocks
        row_noise[0] = drop.of_keys[row];
        row_noise[1] = drop.of_keys[row + 8];
    };
    load_noise();
#endif
    const Dropout drop(noise, dropout, 0, q_len, k_len);
    auto keep_sums = [&](int row0) {  // of a block of keys, and begin anew
        keep_gradients(dk, dv, dk_acc, dv_acc, unit, drop.unit, before_b, head, pitch, row0, k_len);
#pragma unroll
        for (int i = 0; i < SUMS_OF_ROWS; i++) dk_acc[i] = dv_acc[i] = 0.0f;
    };
#ifdef SEGMENTS
    float segment[2], of_all[2], of_second[2];  // of this thread's two keys; sums over all queries, and over those of segment 1
    float of_step[2] = {0.0f, 0.0f};            // of queries of segment 0, and of segment 1
    auto load_segments = [&] {
        const float* of = k_segments + (long long)walk.b * k_segments_batch + walk.start_k + group * TILE + 16 * warp + row8;
#pragma unroll
        for (int r = 0; r < 2; r++) segment[r] = of[8 * r], of_all[r] = of_second[r] = 0.0f;
    };
    load_segments();
#endif
    Ring<STAGES> stage;
    Ring<BLOCKS> block;
    int t = 0;
    bool more = true, fresh = false;  // whether there is another tile; whether this is the first of another block of keys
    wait(barrier(KEYS_IN), 0);
    wait(barrier(QUERIES_IN), 0);
    u32 queries = base + AT_QUERIES;
    scores(queries);
    while (more) {
        const int start_q = walk.tile * TILE, start_k = walk.start_k + group * TILE;
        const int row0 = start_k + 16 * warp + row8;  // and row0 + 8
        const u32 q_is = describe(queries), grad_is = describe(queries + COLS * TILE_BYTES);
        const unsigned char* numbers = shared + AT_NUMBERS + stage.at * NUMBERS_BYTES;
        const float2* lse_of = (const float2*)(numbers + group * GROUP_BYTES) + pair;
        const float2* delta_of = (const float2*)(numbers + OF_DELTA) + pair;
        const bool checked =  // whether pairs may not count
            start_q + TILE > q_len || start_k + TILE > walk.length || (causal && start_q < start_k + TILE - 1 - shift) ||
            !walk.shown().all(start_k / TILE) || !walk.texts().one(start_q, start_k);
        const BiasOfColumns::Tile bias(numbers + OF_BIAS, group, thread);
        products_done();
        pin(s);
        pin(dp);

        const int last = uniform((t - 1) & 1);
        auto send_dq_before = [&] {
            if (t > 0) wait(barrier(DS_IN + last), ((t - 1) >> 1) & 1);
            send_dq(last);
        };
        if (!LATE) send_dq_before();

        u32 weights[16], packed[16];
        auto weigh = [&](int n) {  // the scores of a fragment of queries
            const float2 subtract = lse_of[4 * n];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = 4 * n + 2 * r;
                float2 add = bias.at(n, r);
#ifdef SEGMENTS
                const float2 step = ((const float2*)(numbers + OF_STEPS))[4 * n + pair];
                add.x = fmaf(step.x, segment[r], add.x);
                add.y = fmaf(step.y, segment[r], add.y);
#endif
                // The same sum; which order is faster depends on what else needs registers.
                s[i] = exp2_fast(NOISY ? fmaf(s[i], factor, add.x) - subtract.x : fmaf(s[i], factor, add.x - subtract.x));
                s[i + 1] =
                    exp2_fast(NOISY ? fmaf(s[i + 1], factor, add.y) - subtract.y : fmaf(s[i + 1], factor, add.y - subtract.y));
            }
        };
#ifdef RELATIVE
        // Of this warp's first keys, how many eights they are after the first queries' own position.
        const int eight = uniform((start_k + 16 * warp - start_q) / 8 - (begin >> 3));
        auto weigh_close = [&](int n) {  // the same near the diagonal
            const u32* rows = (const u32*)(numbers + OF_ROWS) + lane;
            const float2 subtract = lse_of[4 * n];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = 4 * n + 2 * r, seen = min(max(eight - SEEN_FROM + r - n, 0), SEEN - 1);
                const u32* at = rows + (n * SEEN + seen) * FRAGMENT / 2;
                float2 add = make_float2(0.0f, 0.0f);
#ifdef KEYS
                add = unpack(*at);
#endif
                s[i] = exp2_fast(fmaf(s[i], factor, add.x) - subtract.x);
                s[i + 1] = exp2_fast(fmaf(s[i + 1], factor, add.y) - subtract.y);
#ifdef VALUES
                add = unpack(at[ROWS_BYTES / 4]);
                dp[i] += add.x;
                dp[i + 1] += add.y;
#endif
            }
        };
#endif
        auto drop_some = [&](int n) {
#ifdef DROPOUT
            const uint2 of_queries = ((const uint2*)(numbers + NOISE))[4 * n + pair];
#endif
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = 4 * n + 2 * r;
                float w0 = s[i], w1 = s[i + 1], of_dropped0 = 0.0f, of_dropped1 = 0.0f;
#ifdef RELATIVE
                const float2 subtract = lse_of[TILE / 2 + 4 * n];  // that of weights which are not dropped
                dp[i] = fmaf(dp[i], drop.unit, -subtract.x);
                dp[i + 1] = fmaf(dp[i + 1], drop.unit, -subtract.y);
                of_dropped0 = -delta_of[4 * n].x;
                of_dropped1 = -delta_of[4 * n].y;
#endif
#ifdef DROPOUT
                if (drop.drops(of_queries.x, row_noise[r])) w0 = 0.0f, dp[i] = of_dropped0;
                if (drop.drops(of_queries.y, row_noise[r])) w1 = 0.0f, dp[i + 1] = of_dropped1;
#endif
                weights[2 * n + r] = pack(w0, w1);
            }
        };
        auto differentiate = [&](int n) {
            const float2 subtract = delta_of[4 * n];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = 4 * n + 2 * r;
#ifdef RELATIVE
                const float d0 = s[i] * dp[i], d1 = s[i + 1] * dp[i + 1];
#else
                const float d0 = s[i] * fmaf(dp[i], drop.unit, -subtract.x);
                const float d1 = s[i + 1] * fmaf(dp[i + 1], drop.unit, -subtract.y);
#endif
#ifdef SEGMENTS
                const float2 of_query = ((const float2*)(numbers + OF_SEGMENTS))[4 * n + pair];
                of_all[r] += d0 + d1;
                of_second[r] = fmaf(d0, of_query.x, fmaf(d1, of_query.y, of_second[r]));
#endif
                packed[2 * n + r] = pack(d0, d1);
            }
        };
#if defined(DROPOUT) || WIDTH > 64
#define BY_FRAGMENTS
#endif
#if defined(RELATIVE) || defined(BY_FRAGMENTS)
        int from_query[2];
#pragma unroll
        for (int r = 0; r < 2; r++) from_query[r] = walk.first_query(row0 + 8 * r, q_len);
#endif
#ifdef BY_FRAGMENTS
        // With dropout exponentials cost little beside the rest, if all is done to a fragment before the next; at widths beyond
        // 64 this takes the fewest registers.
        auto fragments = [&](auto all) {  // whether all pairs of the tile count
            u32 of_text = 0;
            if (!decltype(all)::value) of_text = walk.texts().of_keys(row0, start_q);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                weigh(n);
#pragma unroll
                for (int i = 4 * n; !decltype(all)::value && i < 4 * n + 4; i++) {
                    const int query = start_q + 8 * n + 2 * pair + (i & 1);
                    const bool counts = query >= from_query[(i >> 1) & 1] && query < q_len;
                    s[i] = counts && Documents::at(of_text, (i >> 1) & 1, 8 * n + (i & 1)) ? s[i] : 0.0f;
                }
                drop_some(n);
                differentiate(n);
            }
        };
#endif
#ifdef RELATIVE
        if (end_of(walk, group, q_len, begin) == 0) {
#pragma unroll
            for (int n = 0; n < 8; n++) weigh_close(n);
            if (checked)
                keep(s, 0.0f, [&](int r, int column) {
                    return start_q + column >= from_query[r] && start_q + column < q_len;
                });
#ifdef DROPOUT
#pragma unroll
            for (int n = 0; n < 8; n++) {
                drop_some(n);
                differentiate(n);
            }
#endif
        } else {
#ifdef DROPOUT
            fragments(Flag<true>());
#else
#pragma unroll
            for (int n = 0; n < 8; n++) weigh(n);
#endif
        }
#elif defined(BY_FRAGMENTS)
        if (checked) fragments(Flag<false>());
        else fragments(Flag<true>());
#else
#pragma unroll
        for (int n = 0; n < 8; n++) weigh(n);
        if (checked) {
            int from_query[2];
#pragma unroll
            for (int r = 0; r < 2; r++) from_query[r] = walk.first_query(row0 + 8 * r, q_len);
            const u32 of_text = walk.texts().of_keys(row0, start_q);
            keep(s, 0.0f, [&](int r, int column) {
                const int query = start_q + column;
                return query >= from_query[r] && query < q_len && Documents::at(of_text, r, column);
            });
        }
#endif
#ifndef BY_FRAGMENTS
#pragma unroll
        for (int n = 0; n < 8; n++) drop_some(n);
#endif
        products_begin();
        multiply_tile(dv_acc, weights, grad_is);
        products_sent();
#ifndef BY_FRAGMENTS
#pragma unroll
        for (int n = 0; n < 8; n++) differentiate(n);
#endif
        auto store_ds = [&] {  // the gradient of the scores, for the gradient of q of both groups
#ifdef SUMS
            wait(barrier(DS_OUT + 2 * group + (t & 1)), ((t >> 1) & 1) ^ 1);
#endif
            const u32 to = base + AT_DS + ((t & 1) * 2 + group) * TILE_BYTES + (16 * warp + (lane & 15)) * 128;
#pragma unroll
            for (int two = 0; two < 4; two++) {
                const u32 place = to + (((2 * two + (lane >> 4)) ^ (lane & 7)) << 4);
                asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(place),
                             "r"(packed[4 * two]), "r"(packed[4 * two + 1]), "r"(packed[4 * two + 2]), "r"(packed[4 * two + 3])
                             : "memory");
            }
        };
        auto send_dk = [&] {
            products_begin();
            multiply_tile(dk_acc, packed, q_is);
            products_sent();
        };
        const bool owed = t > 0 && !(LATE && fresh);  // whether the gradient of q of the tile before is to be handed over
        if (LATE) {
            send_dq_before();
            send_dk();
            store_ds();
        }
        products_done_but_last();  // that gradient is there
        pin(dq_acc);
#ifdef KEYS
        pin(row_acc);
#endif
        if (owed) hand_over(t - 1);
        if (!LATE) store_ds();
        publish();
        __syncwarp();
        if (lane == 0) {
            arrive(barrier(DS_IN + (t & 1)));
            if (owed) arrive(barrier(SLOT_DONE + (LATE ? 0 : last)));
            if (!LATE && fresh) arrive(barrier(KEYS_OUT + (block.at ^ 1)));
        }
        if (!LATE) send_dk();

        // The next tile's scores. Where there is none, any others: nobody reads them.
        const bool ends = walk.left == 1;
        const int at_stage = stage.at;
        before_b = walk.b;
        before_row = start_q;
        before_keys = at_keys;
        if (LATE) {
            products_done();  // for all tiles: waited for in the branch below, products would be made one by one
            pin(dk_acc);
            pin(dv_acc);
            if (lane == 0) arrive(barrier(QUERIES_OUT + at_stage));
        }
        if (LATE && ends) {  // the keys leave, and nothing may be left to do with them
            wait(barrier(DS_IN + (t & 1)), (t >> 1) & 1);
            send_dq(uniform(t & 1));
            products_done();
            pin(dq_acc);
            if (lane == 0) arrive(barrier(KEYS_OUT));
            keep_sums(row0);
            hand_over(t);
            publish();
            __syncwarp();
            if (lane == 0) arrive(barrier(SLOT_DONE));
        }
        more = walk.next();
        fresh = ends && more;
        if (fresh) {
            block.next();
            at_keys = uniform(base + AT_KEYS + block.at * 4 * COLS * TILE_BYTES);
            wait(barrier(KEYS_IN + block.at), block.parity);
        }
        if (more) {
            stage.next();
            wait(barrier(QUERIES_IN + stage.at), stage.parity);
        }
        queries = uniform(base + AT_QUERIES + stage.at * 2 * COLS * TILE_BYTES);
        scores(queries);
#ifdef KEYS
        const int kept = eight - KEPT_FROM;  // of this warp's first fragment, its place among those that are kept
        if (kept >= -1 && kept < KEPT + 7) {
            const long long first = (((long long)before_b * heads + head) * tiles * 8 + start_q / 8) * KEPT;
            u32* to = (u32*)(dscores + (first + kept) * FRAGMENT) + lane;
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int r = 0; r < 2; r++)
                    if ((u32)(kept + r - n) < KEPT) to[(n * KEPT + r - n) * FRAGMENT / 2] = packed[2 * n + r];
            }
        }
#endif
        products_done_but_last();  // of this tile, all but the gradient of q is done
        pin(dk_acc);
        pin(dv_acc);
        if (!LATE && lane == 0) arrive(barrier(QUERIES_OUT + at_stage));
#ifdef KEYS
        if (t > 0) add_row_sums();
        sums_b = before_b, sums_row = start_q, sums_key = start_k;
#endif
        if (ends) {
            if (!LATE) keep_sums(row0);
#ifdef DROPOUT
            if (more) load_noise();
#endif
#ifdef SEGMENTS
#pragma unroll
            for (int r = 0; r < 2; r++) {
                of_step[0] = fmaf(segment[r], of_all[r] - of_second[r], of_step[0]);
                of_step[1] = fmaf(segment[r], of_second[r], of_step[1]);
            }
            if (more) load_segments();
#endif
        }
        t++;
    }
    products_done();
    pin(s);
    pin(dp);
    if (!LATE) {
        wait(barrier(DS_IN + ((t - 1) & 1)), ((t - 1) >> 1) & 1);
        send_dq((t - 1) & 1);
        products_done();
        pin(dq_acc);
#ifdef KEYS
        pin(row_acc);
        add_row_sums();
#endif
        hand_over(t - 1);
        publish();
        __syncwarp();
        if (lane == 0) arrive(barrier(SLOT_DONE + ((t - 1) & 1)));
    }
#ifdef SEGMENTS
#pragma unroll
    for (int which = 0; which < 2; which++) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) of_step[which] += __shfl_xor_sync(0xffffffff, of_step[which], step);
        const long long place = (((long long)slot * heads + head) * teams + member) * WARPS + (threadIdx.x >> 5);
        if (lane == 0) sums_of_steps[2 * place + which] = of_step[which];
    }
#endif
}
