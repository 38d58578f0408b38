// What the backward pass of attention with relative keys and values (Shaw et al., 2018) does beside scores, on Hopper, in
// half precision, for head width 64. Both passes themselves are those of hopper_forward.cu and hopper_backward.cu.

#include "hopper.cuh"
#include "hopper_pipes.cuh"
#include "hopper_relative.cuh"

SHARED_BYTES(rows, 4 * TILE_BYTES + TILE * STRIDE * 2 + TILE * 4)
SHARED_BYTES(settle, 10 * TILE_BYTES + 2 * (TILE / 8 * KEPT * FRAGMENT * 2) + 16)

// Before them: what scores near the diagonal look up, as queries meet the table of keys, gradients of the output that of
// values; delta, and what lse and delta are to tiles at either end of the tables.
extern "C" __global__ void __launch_bounds__(128) rows(
    const u16* q, const u16* grad,     // (B, H, Lq, 64), any strides but the last
    const u16* out, const float* lse,  // (B, Lq, H, 64); (B, H, Lq)
    const u16* key_table, const u16* value_table,
    u16* key_rows, u16* value_rows,    // (B, H, blocks, 8, SEEN, 8 x 8)
    float* delta, float* ends,         // (B, H, Lq); (B, H, 2, 2, Lq): lse, and delta of weights not dropped
    float* row_sums,                   // (B, H, parts, 2, blocks of 64), or null: become zero
    int q_batch, int q_head, int q_row, int grad_batch, int grad_head, int grad_row,
    int parts, int batch, int heads, int groups, int q_len, int k_len, int causal, int begin, double scale,
    const u32* noise, double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    const u32 at_q = base, at_grad = base + TILE_BYTES, at_keys = base + 2 * TILE_BYTES, at_values = base + 3 * TILE_BYTES;
    u16* looked_up = (u16*)(shared + 4 * TILE_BYTES);
    float* of_rows = (float*)(looked_up + TILE * STRIDE);  // delta

    const int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31, pair = thread & 3;
    const int head = blockIdx.x % heads, slot = blockIdx.x / heads, slots = gridDim.x / heads;
    const int blocks = (q_len + TILE - 1) / TILE;
    const Dropout drop(noise, dropout, 0, q_len, k_len);
    if (key_table) load_tile(at_keys, key_table + head * TILE * TILE, TILE, 0, TILE);
    if (value_table) load_tile(at_values, value_table + head * TILE * TILE, TILE, 0, TILE);

    for (int item = slot; item < batch * blocks; item += slots) {
        const long long b = item / blocks, of_pair = b * heads + head;
        const int start_q = item % blocks * TILE, row0 = start_q + 16 * warp + (lane >> 2);  // and row0 + 8
        __syncthreads();  // the block before is done with shared memory
        load_tile(at_q, q + b * q_batch + (long long)head * q_head, q_row, start_q, q_len);
        load_tile(at_grad, grad + b * grad_batch + (long long)head * grad_head, grad_row, start_q, q_len);
        uint4 pieces[4] = {};  // of the output, as `load_tile` has them
#pragma unroll
        for (int part = 0; part < 4; part++) {
            const int row = start_q + (thread >> 3) + 16 * part;
            const u16* of_row = out + ((b * q_len + row) * heads + head) * TILE;
            if (row < q_len) pieces[part] = *(const uint4*)(of_row + (thread & 7) * 8);
        }
        for (int i = thread; row_sums && i < parts * 2 * TILE; i += 128)
            row_sums[((of_pair * parts * 2 + i / TILE) * blocks * TILE) + start_q + i % TILE] = 0.0f;
        asm volatile("cp.async.wait_all;\n" ::: "memory");
#pragma unroll
        for (int part = 0; part < 4; part++) {
            const int row = (thread >> 3) + 16 * part;
            const uint4 of_grad = *(const uint4*)(shared + TILE_BYTES + row * 128 + (((thread & 7) ^ (row & 7)) << 4));
            const u32 first[4] = {pieces[part].x, pieces[part].y, pieces[part].z, pieces[part].w};
            const u32 second[4] = {of_grad.x, of_grad.y, of_grad.z, of_grad.w};
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 one = unpack(first[i]), other = unpack(second[i]);
                sum = fmaf(one.x, other.x, fmaf(one.y, other.y, sum));
            }
#pragma unroll
            for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
            if ((thread & 7) == 0) {
                of_rows[row] = sum;
                if (start_q + row < q_len) delta[of_pair * q_len + start_q + row] = sum;
            }
        }
        publish();
        __syncthreads();

        const Rows rows(thread, start_q, begin);
        float of_table[32], end[2][2] = {}, value_end[2][2] = {};  // (rows, left and right)
        auto meet = [&](u32 queries, u32 table, float unit, u16* to, float (&at_end)[2][2]) {
            whole_product(of_table, queries, table);
            rows.fill(looked_up, of_table, unit);
            const u16* of_pairs = looked_up + (16 * warp + 2 * pair) * STRIDE + ((REACH + begin) & 1);
            u32* of_warp = (u32*)(to + ((of_pair * blocks + start_q / TILE) * 8 + 2 * warp) * SEEN * FRAGMENT) + lane;
#pragma unroll
            for (int eight = 0; eight < 2; eight++) {
#pragma unroll
                for (int seen = 0; seen < SEEN; seen++) {
                    const int x = 8 * (SEEN_FROM + seen) + (lane >> 2) - 2 * pair - PHASE + REACH + LEFT;
                    const u16* at = of_pairs + 8 * eight * STRIDE;
                    const u32 first = at[min(max(x, LEFT), RIGHT)], second = at[STRIDE + min(max(x - 1, LEFT), RIGHT)];
                    of_warp[(eight * SEEN + seen) * FRAGMENT / 2] = first | second << 16;
                }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                at_end[r][0] = number(looked_up[rows.at[r] + LEFT]);
                at_end[r][1] = number(looked_up[rows.at[r] + RIGHT]);
            }
            __syncwarp();
        };
        if (key_table) meet(at_q, at_keys, 1.4426950408889634f, key_rows, end);
        if (value_table) meet(at_grad, at_values, 1.0f, value_rows, value_end);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = row0 + 8 * r;
            if (row >= q_len || pair >= 2) continue;
            float* to = ends + (of_pair * 2 + pair) * 2 * q_len + row;
            to[0] = lse[of_pair * q_len + row] - (pair ? end[r][1] : end[r][0]);
            to[q_len] = of_rows[row - start_q] - (pair ? value_end[r][1] : value_end[r][0]) * drop.unit;
        }
    }
}

// d (64 x 64) += a^T b of two tiles in shared memory.
__device__ __forceinline__ void add_transposed_product(float (&d)[32], u32 a, u32 b) {
    products_begin();
#pragma unroll
    for (int step = 0; step < 4; step++)
        asm volatile("{\n" DESCRIBE2 "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " " NUMBERS32
                     ", a, b, 1, 1, 1, 1, 1;\n}\n"
                     : ALL32("+f", d) : "r"(describe(a) + step * (2048 >> 4)), "r"(describe(b) + step * (2048 >> 4)));
    products_sent();
}

// After them: the gradients of the tables, summed over a share of the rows, and what the table of keys does to that of q.
//
// A query has the gradients of its scores one by one near the diagonal, the sum of those at the left end, and the sum of
// all. They add to nothing: what they add to is an error of delta, which knows the output only as it was rounded, and is
// taken from them by their weights.
extern "C" __global__ void __launch_bounds__(128) settle(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap grad_map,  // (B, H, Lq, 64)
    const __grid_constant__ TensorMap dq_map, const __grid_constant__ TensorMap weights_map,  // (B, H, Lq, PLACES)
    const u16* dscores,                             // (B, H, tiles of queries, 8, KEPT, 8 x 8)
    const float* row_sums,                          // (B, H, parts, 2, tiles of 64): at the left end, of all
    const u16* key_table, const int* lengths, u16* dq,  // (H, 64, 64); (B,) or null; (B, Lq, H of pitch, 64)
    float* sums,                                    // (tables, H, slots, 2 * REACH + 1, 64)
    int pitch, int parts, int batch, int heads, int groups, int q_len, int k_len, int causal, int begin, double scale,
    const u32* noise, double dropout) {
    constexpr int PIECES = PLACES / 8, KEPT_BYTES = TILE / 8 * KEPT * FRAGMENT * 2;
    constexpr int WEIGHTS = 0, GRAD = TILE_BYTES, Q = 2 * TILE_BYTES, DQ = 3 * TILE_BYTES, AT_KEPT = 4 * TILE_BYTES;
    constexpr int STAGE_BYTES = AT_KEPT + KEPT_BYTES, SCORES = 2 * STAGE_BYTES, AT_TABLE = SCORES + TILE_BYTES;
#ifdef KEYS
    constexpr int OF_KEYS = 2 * TILE_BYTES + KEPT_BYTES;
#else
    constexpr int OF_KEYS = 0;
#endif
#ifdef VALUES
    constexpr int OF_VALUES = TILE_BYTES;
#else
    constexpr int OF_VALUES = 0;
#endif
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    const u32 barriers = base + AT_TABLE + TILE_BYTES;  // of the two stages

    const int thread = threadIdx.x, warp = thread >> 5, lane = thread & 31, row8 = lane >> 2, pair = thread & 3;
    const int head = blockIdx.x % heads, slot = blockIdx.x / heads, slots = gridDim.x / heads;
    const int blocks = (q_len + TILE - 1) / TILE, items = batch * blocks;

    auto load = [&](int item, int turn) {
        const u32 to = base + turn * STAGE_BYTES, full = barriers + 8 * turn;
        const int b = item / blocks, start_q = item % blocks * TILE;
        const long long eight = (((long long)b * heads + head) * blocks * TILE + start_q) / 8;
        arrive_and_expect(full, TILE_BYTES + OF_VALUES + OF_KEYS);
        fetch_tile(to + WEIGHTS, weights_map, start_q, head, b, full);
#ifdef VALUES
        fetch_tile(to + GRAD, grad_map, start_q, head, b, full);
#endif
#ifdef KEYS
        fetch(to + AT_KEPT, dscores + eight * KEPT * FRAGMENT, KEPT_BYTES, full);
        fetch_tile(to + Q, q_map, start_q, head, b, full);
        fetch_tile(to + DQ, dq_map, start_q, head, b, full);
#endif
    };
    if (thread == 0) {
        barrier_init(barriers, 1);
        barrier_init(barriers + 8, 1);
        barriers_made();
        load(slot, 0);  // there are at least as many items as slots
    }
#ifdef KEYS
    float left_of[2] = {}, all_of[2] = {};  // of the next tile, this thread's share of its two rows' sums
    auto load_sums = [&](int item) {
        const float* of_tile = row_sums + ((long long)(item / blocks) * heads + head) * parts * 2 * blocks * TILE +
                               item % blocks * TILE + 16 * warp + row8 + pair * 2 * blocks * TILE;
#pragma unroll
        for (int r = 0; r < 2 && pair < parts; r++) {
            left_of[r] = of_tile[8 * r];
            all_of[r] = of_tile[blocks * TILE + 8 * r];
        }
#pragma unroll 1
        for (int part = pair + 4; part < parts; part += 4) {
            of_tile += 4 * 2 * blocks * TILE;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                left_of[r] += of_tile[8 * r];
                all_of[r] += of_tile[blocks * TILE + 8 * r];
            }
        }
    };
    load_sums(slot);
    for (int piece = thread; piece < TILE * 8; piece += 128) {  // as places lie in memory; those before meet zeros only
        const int row = piece >> 3, column = piece & 7, from = max(row - (MARGIN - LEFT), 0);
        *(uint4*)(shared + AT_TABLE + row * 128 + ((column ^ (row & 7)) << 4)) =
            *(const uint4*)(key_table + (head * TILE + from) * TILE + column * 8);
    }
#endif
    float of_keys[32] = {}, of_values[32] = {};
    Ring<2> stage;
    for (int item = slot; item < items; item += slots, stage.next()) {
        const int turn = uniform(stage.at);
        const u32 here = base + turn * STAGE_BYTES;
        const long long b = item / blocks;
        const int start_q = item % blocks * TILE;
        __syncthreads();  // all are done with the other stage
        if (thread == 0 && item + slots < items) load(item + slots, turn ^ 1);
        wait(barriers + 8 * turn, stage.parity);
#ifdef VALUES
        add_transposed_product(of_values, here + WEIGHTS, here + GRAD);
#endif
#ifdef KEYS
        const int mine = (16 * warp + row8) * 128 + 4 * pair;  // of a tile; and 8 rows on
        const unsigned char* loaded = shared + turn * STAGE_BYTES + mine;
        // Of a row's fragments, the numbers of one key after another are 8 apart.
        const u16* kept = (const u16*)(shared + turn * STAGE_BYTES + AT_KEPT) + 2 * warp * KEPT * FRAGMENT +
                          8 * (row8 + 2 * pair + PHASE - REACH - MARGIN - 8 * KEPT_FROM) + row8;
        float left[2] = {left_of[0], left_of[1]}, all[2] = {all_of[0], all_of[1]};
        sum_over_row(left);
        sum_over_row(all);
        u32 scores[16] = {};
        float dq_acc[32];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = start_q + 16 * warp + row8 + 8 * r, first = row + begin - REACH - MARGIN;  // key of place 0
            int seen = lengths ? lengths[b] : k_len;
            if (causal) seen = min(seen, row + k_len - q_len + 1);
            const int from = max(0, -first), to = seen - first;  // places of keys that count
            // At the left end, of keys that are not in a whole eight, and so not in the sum.
            const int cut = max(from, ((row + begin - REACH + 1) & ~7) - first);
            float close[2] = {0.0f, 0.0f}, weight = 0.0f, within[16], share[16];
#pragma unroll
            for (int n = 0; n < PIECES; n++) {
                const int place = 8 * r * 128 + ((n ^ row8) << 4);
                const float2 of = unpack(*(const u32*)(loaded + WEIGHTS + place));
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int x = 8 * n + 2 * pair + e;
                    const float score = number(kept[r * KEPT * FRAGMENT + 8 * (8 * n + e)]);
                    if (n == 0 && x <= MARGIN && x >= cut && x < to) close[0] += score;
                    within[2 * n + e] = x > MARGIN && x < MARGIN + 2 * REACH && x >= from && x < to ? score : 0.0f;
                    close[1] += within[2 * n + e];
                    share[2 * n + e] = x >= MARGIN && x <= MARGIN + 2 * REACH ? (e ? of.y : of.x) : 0.0f;
                    weight += share[2 * n + e];
                }
            }
            sum_over_row(close);
            weight += __shfl_xor_sync(0xffffffff, weight, 1);
            weight += __shfl_xor_sync(0xffffffff, weight, 2);
            const float at_left = left[r] + close[0], at_right = all[r] - at_left - close[1];
            const float error = weight > 0.0f ? all[r] / weight : 0.0f;
#pragma unroll
            for (int n = 0; n < PIECES; n++) {
                float both[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int x = 8 * n + 2 * pair + e;
                    both[e] = x == MARGIN ? at_left : (x == MARGIN + 2 * REACH ? at_right : within[2 * n + e]);
                    both[e] = fmaf(-error, share[2 * n + e], both[e]);
                }
                scores[2 * n + r] = pack(both[0], both[1]);
                *(u32*)(shared + SCORES + mine + 8 * r * 128 + ((n ^ row8) << 4)) = scores[2 * n + r];
            }
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const float2 so_far = unpack(*(const u32*)(loaded + DQ + 8 * r * 128 + ((n ^ row8) << 4)));
                dq_acc[4 * n + 2 * r] = so_far.x;
                dq_acc[4 * n + 2 * r + 1] = so_far.y;
            }
        }
        publish();
        __syncthreads();
        if (item + slots < items) load_sums(item + slots);
        products_begin();
        multiply_tile(dq_acc, scores, describe(base + AT_TABLE));
        products_sent();
        add_transposed_product(of_keys, base + SCORES, here + Q);
        products_done_but_last();
        pin(dq_acc);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = start_q + 16 * warp + row8 + 8 * r;
            keep_row<8>(dq + ((b * q_len + row) * pitch + head) * TILE, dq_acc + 2 * r, 1.0f, row < q_len);
        }
#endif
        products_done();
        pin(of_keys);
        pin(of_values);
    }
    auto keep_sums = [&](const float (&of)[32], int which) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int place = 16 * warp + row8 + 8 * r - MARGIN;
            if (place < 0 || place > 2 * REACH) continue;
            float* to = sums + (((which * heads + head) * slots + slot) * (2 * REACH + 1) + place) * TILE + 2 * pair;
#pragma unroll
            for (int n = 0; n < 8; n++) *(float2*)(to + 8 * n) = make_float2(of[4 * n + 2 * r], of[4 * n + 2 * r + 1]);
        }
    };
#ifdef KEYS
    keep_sums(of_keys, 0);
#endif
#ifdef VALUES
    keep_sums(of_values, OF_KEYS > 0);
#endif
}
