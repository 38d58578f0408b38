// Attention with a Toeplitz bias on Hopper, in half precision, for head width 64. Three kernels: forward, the gradients of
// q and of the bias, and the gradients of k and v.
//
// Fragments on one diagonal of a tile hold the same offsets. So a thread needs 9 pairs of the bias for its 32 scores, and
// sums along diagonals start with plain additions of registers; what remains of those, 8 rows for each of 4 warps, passes
// once through shared memory. Every sum has one owner and one order.

#include "hopper.cuh"

constexpr int STAGES = 3;
constexpr int ROW = 72;  // numbers of a warp's row of diagonals: 9 fragments

extern "C" __global__ void __launch_bounds__(128, 4) forward(
    const u16* q, const u16* k, const u16* v,  // (B, H|Hk, L, 64), any strides but the last
    const float* table,  // (H|1, 2, padded): the bias in units of log 2 from offset -before - 8 on, and from the next
    const int* lengths,  // (B,), or null
    u16* out, float* lse,  // (B, Lq, H, 64) and (B, H, Lq)
    int q_batch, int q_head, int q_row, int k_batch, int k_head, int k_row, int v_batch, int v_head, int v_row,
    int heads, int groups, int q_len, int k_len, int causal, int table_head, int padded, int before, double scale,
    const u32* noise, double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    const u32 at_q = base, at_k = base + TILE_BYTES, at_v = at_k + STAGES * TILE_BYTES;

    const int thread = threadIdx.x, warp = thread >> 5, row8 = (thread & 31) >> 2, pair = thread & 3;
    const int blocks = (q_len + TILE - 1) / TILE, shift = k_len - q_len;
    const int block = causal ? blocks - 1 - blockIdx.x % blocks : blockIdx.x % blocks, start_q = block * TILE;
    const int head = (blockIdx.x / blocks) % heads;
    const long long b = blockIdx.x / blocks / heads;
    const float factor = (float)(scale * 1.4426950408889634), none = -__int_as_float(0x7f800000);
    const u16* k_of = k + b * k_batch + (long long)(head / groups) * k_head;
    const u16* v_of = v + b * v_batch + (long long)(head / groups) * v_head;
    const int length = lengths ? lengths[b] : k_len;
    int stop = length;
    if (causal) stop = min(stop, max(start_q + TILE + shift, 0));
    const int tiles = (stop + TILE - 1) / TILE;

    load_tile(at_q, q + b * q_batch + (long long)head * q_head, q_row, start_q, q_len);
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ahead++) {
        if (ahead < tiles) {
            load_tile(at_k + ahead * TILE_BYTES, k_of, k_row, ahead * TILE, k_len);
            load_tile(at_v + ahead * TILE_BYTES, v_of, v_row, ahead * TILE, k_len);
        }
        loads_sent();
    }

    const int row0 = start_q + 16 * warp + row8;  // and row0 + 8
    const int limit[2] = {causal ? min(length, row0 + shift + 1) : length, causal ? min(length, row0 + shift + 9) : length};
    const int first = 2 * pair - row0 + before + 8;  // place in the table of this thread's first number
    const float* bias_of = table + (long long)head * table_head + (first & 1 ? padded - 1 : 0) + first;

    const Dropout drop(noise, dropout, b * heads + head, q_len, k_len);
#ifdef DROPOUT
    const u32 row_noise[2] = {drop.of_queries[row0], drop.of_queries[row0 + 8]};
#endif
    float acc[32], top[2] = {none, none}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 32; i++) acc[i] = 0.0f;

    for (int tile = 0; tile < tiles; tile++) {
        const int stage = tile % STAGES;
        asm volatile("cp.async.wait_group %0;\n" ::"n"(STAGES - 2) : "memory");
        products_done();
        pin(acc);
        asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
        __syncthreads();
        const int next = tile + STAGES - 1;
        if (next < tiles) {
            load_tile(at_k + (next % STAGES) * TILE_BYTES, k_of, k_row, next * TILE, k_len);
            load_tile(at_v + (next % STAGES) * TILE_BYTES, v_of, v_row, next * TILE, k_len);
        }
        loads_sent();

        float s[32];
        products_begin();
        const u64 q_is = describe(at_q), k_is = describe(at_k + stage * TILE_BYTES);
        const u64 v_is = describe(at_v + stage * TILE_BYTES);
#pragma unroll
        for (int step = 0; step < 4; step++) multiply(s, q_is + 2 * step, k_is + 2 * step, step != 0);
        products_sent();
        float2 bias[9];
#pragma unroll
        for (int m = 0; m < 9; m++) bias[m] = __ldg((const float2*)(bias_of + tile * TILE + 8 * (m - 1)));
        const bool checked = (tile + 1) * TILE > min(length, causal ? start_q + shift + 1 : length);
        products_done();
        pin(s);

        float highest[2] = {none, none};
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = 4 * n + 2 * r, m = n - r + 1;
                s[i] = fmaf(s[i], factor, bias[m].x);
                s[i + 1] = fmaf(s[i + 1], factor, bias[m].y);
                if (checked) {
                    const int column = tile * TILE + 8 * n + 2 * pair;
                    if (column >= limit[r]) s[i] = none;
                    if (column + 1 >= limit[r]) s[i + 1] = none;
                }
                highest[r] = fmaxf(highest[r], fmaxf(s[i], s[i + 1]));
            }
        }
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
                const uint2 of_keys = noise_pair(drop.of_keys + tile * TILE + 8 * n + 2 * pair);
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
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");
    keep_output(out, lse, acc, top, total, drop.unit, b, head, heads, row0, q_len);
}

extern "C" __global__ void __launch_bounds__(128, 3) query_and_toeplitz(
    const u16* q, const u16* k, const u16* v, const u16* grad,  // (B, H|Hk, L, 64), any strides but the last
    const float* lse, const float* delta,                       // (B, H, Lq)
    const float* table, const int* lengths,                     // as above
    u16* dq, float* sums,  // (B, Lq, H, 64); (slots, H, 2, span) from offset -before on, zero
    int q_batch, int q_head, int q_row, int k_batch, int k_head, int k_row, int v_batch, int v_head, int v_row,
    int grad_batch, int grad_head, int grad_row,
    int batch, int heads, int groups, int q_len, int k_len, int causal, int table_head, int padded, int before, int span,
    double scale, const u32* noise, double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    const u32 at_q = base, at_grad = base + TILE_BYTES, at_k = base + 2 * TILE_BYTES;
    const u32 at_v = at_k + STAGES * TILE_BYTES;
    float* rows = (float*)(shared + (2 + 2 * STAGES) * TILE_BYTES);  // (4 warps, 8, ROW)

    const int thread = threadIdx.x, warp = thread >> 5, row8 = (thread & 31) >> 2, pair = thread & 3;
    const int head = blockIdx.x % heads, slot = blockIdx.x / heads, slots = gridDim.x / heads;
    const int blocks = (q_len + TILE - 1) / TILE, shift = k_len - q_len;
    const float factor = (float)(scale * 1.4426950408889634);
    float* own = sums + (((long long)slot * heads + head) * 2 + (thread >> 6)) * span + (thread & 63);

    for (int item = slot; item < batch * blocks; item += slots) {
        const long long b = item / blocks;
        const int block = causal ? blocks - 1 - item % blocks : item % blocks, start_q = block * TILE;
        const u16* k_of = k + b * k_batch + (long long)(head / groups) * k_head;
        const u16* v_of = v + b * v_batch + (long long)(head / groups) * v_head;
        const int length = lengths ? lengths[b] : k_len;
        int stop = length;
        if (causal) stop = min(stop, max(start_q + TILE + shift, 0));
        const int tiles = (stop + TILE - 1) / TILE;

        __syncthreads();  // the block before is done with shared memory
        load_tile(at_q, q + b * q_batch + (long long)head * q_head, q_row, start_q, q_len);
        load_tile(at_grad, grad + b * grad_batch + (long long)head * grad_head, grad_row, start_q, q_len);
#pragma unroll
        for (int ahead = 0; ahead < STAGES - 1; ahead++) {
            if (ahead < tiles) {
                load_tile(at_k + ahead * TILE_BYTES, k_of, k_row, ahead * TILE, k_len);
                load_tile(at_v + ahead * TILE_BYTES, v_of, v_row, ahead * TILE, k_len);
            }
            loads_sent();
        }

        const int row0 = start_q + 16 * warp + row8;  // and row0 + 8
        const long long at_row = (b * heads + head) * q_len + row0;
        float lse_of[2], delta_of[2];
        int limit[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool inside = row0 + 8 * r < q_len;
            lse_of[r] = inside ? lse[at_row + 8 * r] : __int_as_float(0x7f800000);
            delta_of[r] = inside ? delta[at_row + 8 * r] : 0.0f;
            limit[r] = causal ? min(length, row0 + 8 * r + shift + 1) : length;
        }
        // Place in the table of this thread's first number, column 2 * pair of row row0; pairs of numbers are aligned.
        const int first = 2 * pair - row0 + before + 8;
        const float* bias_of = table + (long long)head * table_head + (first & 1 ? padded - 1 : 0) + first;

        const Dropout drop(noise, dropout, b * heads + head, q_len, k_len);
#ifdef DROPOUT
        const u32 row_noise[2] = {drop.of_queries[row0], drop.of_queries[row0 + 8]};
#endif
        float dq_acc[32];
#pragma unroll
        for (int i = 0; i < 32; i++) dq_acc[i] = 0.0f;
        float carry = 0.0f;
        float* out = own + before - start_q - TILE;

        for (int tile = 0; tile < tiles; tile++) {
            const int stage = tile % STAGES;
            asm volatile("cp.async.wait_group %0;\n" ::"n"(STAGES - 2) : "memory");
            products_done();  // of the tile before: its keys are free now
            asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
            __syncthreads();
            const int next = tile + STAGES - 1;
            if (next < tiles) {
                load_tile(at_k + (next % STAGES) * TILE_BYTES, k_of, k_row, next * TILE, k_len);
                load_tile(at_v + (next % STAGES) * TILE_BYTES, v_of, v_row, next * TILE, k_len);
            }
            loads_sent();

            float s[32], dp[32];
            products_begin();
            const u64 q_is = describe(at_q), grad_is = describe(at_grad);
            const u64 k_is = describe(at_k + stage * TILE_BYTES), v_is = describe(at_v + stage * TILE_BYTES);
#pragma unroll
            for (int step = 0; step < 4; step++) multiply(s, q_is + 2 * step, k_is + 2 * step, step != 0);
#pragma unroll
            for (int step = 0; step < 4; step++) multiply(dp, grad_is + 2 * step, v_is + 2 * step, step != 0);
            products_sent();

            float2 bias[9];  // fragments on one diagonal share it: column fragment - row fragment = -1 .. 7
#pragma unroll
            for (int m = 0; m < 9; m++) bias[m] = __ldg((const float2*)(bias_of + tile * TILE + 8 * (m - 1)));
            const float so_far = out[tile * TILE];
            const bool checked = (tile + 1) * TILE > min(length, causal ? start_q + shift + 1 : length);
            products_done();
            pin(s);
            pin(dp);

            float2 along[9];
#pragma unroll
            for (int m = 0; m < 9; m++) along[m] = make_float2(0.0f, 0.0f);
            u32 packed[16];
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = 4 * n + 2 * r, m = n - r + 1;
                    float p0 = exp2_fast(fmaf(s[i], factor, bias[m].x) - lse_of[r]);
                    float p1 = exp2_fast(fmaf(s[i + 1], factor, bias[m].y) - lse_of[r]);
                    if (checked) {
                        const int column = tile * TILE + 8 * n + 2 * pair;
                        if (column >= limit[r]) p0 = 0.0f;
                        if (column + 1 >= limit[r]) p1 = 0.0f;
                    }
#ifdef DROPOUT
                    const uint2 of_keys = noise_pair(drop.of_keys + tile * TILE + 8 * n + 2 * pair);
                    dp[i] = drop.drops(row_noise[r], of_keys.x) ? 0.0f : dp[i] * drop.unit;
                    dp[i + 1] = drop.drops(row_noise[r], of_keys.y) ? 0.0f : dp[i + 1] * drop.unit;
#endif
                    const float d0 = p0 * (dp[i] - delta_of[r]), d1 = p1 * (dp[i + 1] - delta_of[r]);
                    along[m].x += d0;
                    along[m].y += d1;
                    packed[2 * n + r] = pack(d0, d1);
                }
            }
            products_begin();
            multiply_tile(dq_acc, packed, k_is);
            products_sent();

            // Row row8 of this warp's fragments, from column -8 on; then each thread adds up one diagonal of 64.
#pragma unroll
            for (int m = 0; m < 9; m++) *(float2*)(rows + (warp * 8 + row8) * ROW + 8 * m + 2 * pair) = along[m];
            __syncthreads();
            float below = 0.0f, above = 0.0f;  // offsets (thread & 63) - 64 and (thread & 63), of two of the four warps
#pragma unroll
            for (int w = 0; w < 2; w++) {
                const int from = 2 * (thread >> 6) + w;
#pragma unroll
                for (int line = 0; line < 8; line++) {
                    const int at = (thread & 63) + 16 * from + line;
                    const float* numbers = rows + (from * 8 + line) * ROW;
                    if (at < 64) above += numbers[at + 8];
                    if (at >= 56) below += numbers[at - 56];
                }
            }
            out[tile * TILE] = so_far + carry + below;
            carry = above;
        }
        if (tiles > 0) out[tiles * TILE] += carry;
        products_done();
        pin(dq_acc);
        asm volatile("cp.async.wait_group 0;\n" ::: "memory");
        const float unit = (float)scale;
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = 4 * n + 2 * r, row = row0 + 8 * r;
                if (row < q_len) {
                    u16* to = dq + ((b * q_len + row) * heads + head) * TILE + 8 * n + 2 * pair;
                    *(u32*)to = pack(dq_acc[i] * unit, dq_acc[i + 1] * unit);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(128, 2) key_and_value(
    const u16* q, const u16* k, const u16* v, const u16* grad, const float* lse, const float* delta,
    const float* table, const int* lengths,  // as above
    u16* dk, u16* dv,                        // (B, Lk, H, 64)
    int q_batch, int q_head, int q_row, int k_batch, int k_head, int k_row, int v_batch, int v_head, int v_row,
    int grad_batch, int grad_head, int grad_row,
    int heads, int groups, int q_len, int k_len, int causal, int table_head, int padded, int before, double scale,
    const u32* noise, double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    const u32 at_k = base, at_v = base + TILE_BYTES, at_q = base + 2 * TILE_BYTES;
    const u32 at_grad = at_q + STAGES * TILE_BYTES, at_numbers = at_grad + STAGES * TILE_BYTES;
    const float* numbers = (const float*)(shared + 2 * (1 + STAGES) * TILE_BYTES);  // (STAGES, lse and delta, TILE)

    const int thread = threadIdx.x, warp = thread >> 5, row8 = (thread & 31) >> 2, pair = thread & 3;
    const int key_blocks = (k_len + TILE - 1) / TILE, blocks = (q_len + TILE - 1) / TILE, shift = k_len - q_len;
    const int start_k = (blockIdx.x % key_blocks) * TILE, head = (blockIdx.x / key_blocks) % heads;
    const long long b = blockIdx.x / key_blocks / heads;
    const float factor = (float)(scale * 1.4426950408889634);
    const u16* q_of = q + b * q_batch + (long long)head * q_head;
    const u16* grad_of = grad + b * grad_batch + (long long)head * grad_head;
    const float* number_of = (thread < TILE ? lse : delta) + (b * heads + head) * q_len;
    const int length = lengths ? lengths[b] : k_len;
    const int first_tile = causal ? max(start_k - shift, 0) / TILE : 0;
    const int tiles = start_k < length ? blocks : first_tile;

    auto load_queries = [&](int tile) {
        const int stage = tile % STAGES, row = tile * TILE + (thread & 63);
        load_tile(at_q + stage * TILE_BYTES, q_of, q_row, tile * TILE, q_len);
        load_tile(at_grad + stage * TILE_BYTES, grad_of, grad_row, tile * TILE, q_len);
        const u32 target = at_numbers + (stage * 2 * TILE + thread) * 4;
        const int bytes = row < q_len ? 4 : 0;
        const float* source = number_of + (bytes ? row : 0);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(target), "l"(source), "r"(bytes));
    };
    load_tile(at_k, k + b * k_batch + (long long)(head / groups) * k_head, k_row, start_k, k_len);
    load_tile(at_v, v + b * v_batch + (long long)(head / groups) * v_head, v_row, start_k, k_len);
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ahead++) {
        if (first_tile + ahead < tiles) load_queries(first_tile + ahead);
        loads_sent();
    }

    const int row0 = start_k + 16 * warp + row8;  // and row0 + 8
    int from_query[2];                            // queries before it do not see this key
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int key = row0 + 8 * r;
        from_query[r] = key >= length ? q_len : (causal ? key - shift : 0);
    }
    // Place in the table of the number before that of row row0, column 2 * pair: along a row of queries offsets fall.
    const int first = row0 - 2 * pair - 1 + before + 8;
    const float* bias_of = table + (long long)head * table_head + (first & 1 ? padded - 1 : 0) + first;

    const Dropout drop(noise, dropout, b * heads + head, q_len, k_len);
#ifdef DROPOUT
    const u32 row_noise[2] = {drop.of_keys[row0], drop.of_keys[row0 + 8]};
#endif
    float dk_acc[32], dv_acc[32];
#pragma unroll
    for (int i = 0; i < 32; i++) dk_acc[i] = dv_acc[i] = 0.0f;

    for (int tile = first_tile; tile < tiles; tile++) {
        const int stage = tile % STAGES, start_q = tile * TILE;
        asm volatile("cp.async.wait_group %0;\n" ::"n"(STAGES - 2) : "memory");
        products_done();
        asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
        __syncthreads();
        if (tile + STAGES - 1 < tiles) load_queries(tile + STAGES - 1);
        loads_sent();

        float s[32], dp[32];
        products_begin();
        const u64 k_is = describe(at_k), v_is = describe(at_v);
        const u64 q_is = describe(at_q + stage * TILE_BYTES), grad_is = describe(at_grad + stage * TILE_BYTES);
#pragma unroll
        for (int step = 0; step < 4; step++) multiply(s, k_is + 2 * step, q_is + 2 * step, step != 0);
#pragma unroll
        for (int step = 0; step < 4; step++) multiply(dp, v_is + 2 * step, grad_is + 2 * step, step != 0);
        products_sent();

        float2 bias[9];  // row fragment - column fragment = -7 .. 1
#pragma unroll
        for (int m = 0; m < 9; m++) bias[m] = __ldg((const float2*)(bias_of - start_q + 8 * (m - 7)));
        const bool checked =
            start_q + TILE > q_len || start_k + TILE > length || (causal && start_q < start_k + TILE - 1 - shift);
        products_done();
        pin(s);
        pin(dp);

        const float2* lse_of = (const float2*)(numbers + stage * 2 * TILE) + pair;
        const float2* delta_of = lse_of + TILE / 2;
        u32 weights[16], packed[16];
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 subtract = lse_of[4 * n];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = 4 * n + 2 * r, m = r - n + 7, query = start_q + 8 * n + 2 * pair;
                float p0 = exp2_fast(fmaf(s[i], factor, bias[m].y) - subtract.x);
                float p1 = exp2_fast(fmaf(s[i + 1], factor, bias[m].x) - subtract.y);
                if (checked) {
                    if (query < from_query[r] || query >= q_len) p0 = 0.0f;
                    if (query + 1 < from_query[r] || query + 1 >= q_len) p1 = 0.0f;
                }
                s[i] = p0;
                s[i + 1] = p1;
#ifdef DROPOUT
                const uint2 of_queries = noise_pair(drop.of_queries + query);
                const bool drop0 = drop.drops(of_queries.x, row_noise[r]);
                const bool drop1 = drop.drops(of_queries.y, row_noise[r]);
                weights[2 * n + r] = pack(drop0 ? 0.0f : p0, drop1 ? 0.0f : p1);
                dp[i] = drop0 ? 0.0f : dp[i] * drop.unit;
                dp[i + 1] = drop1 ? 0.0f : dp[i + 1] * drop.unit;
#else
                weights[2 * n + r] = pack(p0, p1);
#endif
            }
        }
        products_begin();
        multiply_tile(dv_acc, weights, grad_is);
        products_sent();
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float2 subtract = delta_of[4 * n];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = 4 * n + 2 * r;
                packed[2 * n + r] = pack(s[i] * (dp[i] - subtract.x), s[i + 1] * (dp[i + 1] - subtract.y));
            }
        }
        products_begin();
        multiply_tile(dk_acc, packed, q_is);
        products_sent();
    }
    products_done();
    pin(dk_acc);
    pin(dv_acc);
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");
    keep_gradients(dk, dv, dk_acc, dv_acc, (float)scale, drop.unit, b, head, heads, row0, k_len);
}
