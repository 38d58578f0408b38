// The gradients of attention with relative keys and values (Shaw et al., 2018) on Hopper, in half precision, for head width
// 64. Two kernels: the gradients of q with what those of the tables need, and the gradients of k and v. The forward pass is
// that of hopper_forward.cu.
//
// The gradients of a query's scores sum to 0. What they sum to here is an error of delta, which knows the output only as it
// was rounded: it is taken from the gradients of the table and, in delta, from those of the keys. Where one weight stands
// alone, or all that count are at one end of the table, nothing but that error would be left.

#include "hopper.cuh"
#include "hopper_pipes.cuh"
#include "hopper_relative.cuh"

constexpr int STAGES = 2;
constexpr int KEY_STAGES = STRIDE > 57 ? 2 : 3;  // as many as let two blocks be on a multiprocessor

extern "C" __global__ void __launch_bounds__(128, 3) query(
    const u16* q, const u16* k, const u16* v, const u16* grad,  // (B, H|Hk, L, 64), any strides but the last
    const u16* key_table, const u16* value_table, const int* lengths, const float* lse, float* delta,  // better at the end
    u16* dq,                          // (B, Lq, H, 64)
    u16* dscores, u16* weights,       // (H, B, Lq, COUNT): of each place of a table
    u16* key_rows, u16* value_rows,   // (B, H, blocks, 64, STRIDE): what scores and their gradients look up, for `key`
    float* ends,                      // (B, H, 2, 3, Lq): for tiles at either end lse, delta, and that of weights not dropped
    int q_batch, int q_head, int q_row, int k_batch, int k_head, int k_row, int v_batch, int v_head, int v_row,
    int grad_batch, int grad_head, int grad_row,
    int batch, int heads, int groups, int q_len, int k_len, int causal, int begin, double scale, const u32* noise,
    double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    const u32 at_q = base, at_grad = base + TILE_BYTES, at_keys = base + 2 * TILE_BYTES, at_values = base + 3 * TILE_BYTES;
    const u32 at_k = base + 4 * TILE_BYTES, at_v = at_k + STAGES * TILE_BYTES;
    u16* of_keys = (u16*)(shared + (4 + 2 * STAGES) * TILE_BYTES);  // scores, which their gradients replace in place
    u16* of_values = of_keys + TILE * STRIDE;                       // gradients of weights, which weights replace, too
    const u32* key_noise = (const u32*)(of_values + TILE * STRIDE);  // DROPOUT: (STAGES, TILE), of the keys
    const u32 at_noise = (u32)__cvta_generic_to_shared(key_noise);

    const int thread = threadIdx.x, warp = thread >> 5, row8 = (thread & 31) >> 2, pair = thread & 3;
    const int head = blockIdx.x % heads, slot = blockIdx.x / heads, slots = gridDim.x / heads;
    const int blocks = (q_len + TILE - 1) / TILE, shift = k_len - q_len;
    const float factor = (float)(scale * 1.4426950408889634), none = -__int_as_float(0x7f800000);
#ifdef KEYS
    load_tile(at_keys, key_table + head * TILE * TILE, TILE, 0, TILE);
#endif
#ifdef VALUES
    load_tile(at_values, value_table + head * TILE * TILE, TILE, 0, TILE);
#endif

    for (int item = slot; item < batch * blocks; item += slots) {
        const long long b = item / blocks;
        const int block = causal ? blocks - 1 - item % blocks : item % blocks, start_q = block * TILE;
        const u16* k_of = k + b * k_batch + (long long)(head / groups) * k_head;
        const u16* v_of = v + b * v_batch + (long long)(head / groups) * v_head;
        const int length = lengths ? lengths[b] : k_len;
        const int stop = causal ? min(length, max(start_q + TILE + shift, 0)) : length;
        const int tiles = (stop + TILE - 1) / TILE;

        __syncthreads();  // the block before is done with shared memory
        load_tile(at_q, q + b * q_batch + (long long)head * q_head, q_row, start_q, q_len);
        load_tile(at_grad, grad + b * grad_batch + (long long)head * grad_head, grad_row, start_q, q_len);
        const long long of_pair = b * heads + head;
        const Dropout drop(noise, dropout, of_pair, q_len, k_len);
        auto load_keys = [&](int tile) {
            const int stage = tile % STAGES;
            load_tile(at_k + stage * TILE_BYTES, k_of, k_row, tile * TILE, k_len);
            load_tile(at_v + stage * TILE_BYTES, v_of, v_row, tile * TILE, k_len);
            load_noise(at_noise + stage * TILE * 4, drop.of_keys + tile * TILE);
        };
        if (tiles > 0) load_keys(0);
        loads_sent();

        const int row0 = start_q + 16 * warp + row8;  // and row0 + 8
        const long long at_row = of_pair * q_len + row0;
        const Rows rows(thread, start_q, begin);
        float lse_of[2], delta_of[2], left[2] = {0.0f, 0.0f}, right[2] = {0.0f, 0.0f};
        float v_left[2] = {0.0f, 0.0f}, v_right[2] = {0.0f, 0.0f};
        int limit[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool inside = row0 + 8 * r < q_len;
            lse_of[r] = inside ? lse[at_row + 8 * r] : __int_as_float(0x7f800000);
            delta_of[r] = inside ? delta[at_row + 8 * r] : 0.0f;
            limit[r] = causal ? min(length, row0 + 8 * r + shift + 1) : length;
        }
#ifdef DROPOUT
        const u32 row_noise[2] = {drop.of_queries[row0], drop.of_queries[row0 + 8]};
#endif
        float dq_acc[32], sum[2] = {0.0f, 0.0f}, weight[2] = {0.0f, 0.0f};  // of a row's gradients of scores and weights
        Ends far, far_weights;
#pragma unroll
        for (int i = 0; i < 32; i++) dq_acc[i] = 0.0f;

        for (int tile = 0; tile < tiles; tile++) {
            const int stage = tile % STAGES;
            asm volatile("cp.async.wait_group 0;\n" ::: "memory");
            products_done();  // of the tile before: its keys are free now
            publish();
            __syncthreads();
            if (tile + 1 < tiles) load_keys(tile + 1);
            loads_sent();

            float s[32], dp[32];
            if (tile == 0) {
                // A warp's 16 rows of both, for the kernel of keys: whole pieces of 16 bytes.
                const long long from = (of_pair * blocks + block) * TILE * STRIDE + warp * 16 * STRIDE;
                const int lane = thread & 31;
#ifdef KEYS
                whole_product(s, at_q, at_keys);
                rows.fill(of_keys, s, 1.4426950408889634f);
                for (int piece = lane; piece < 2 * STRIDE; piece += 32)
                    *(uint4*)(key_rows + from + 8 * piece) = *(const uint4*)(of_keys + warp * 16 * STRIDE + 8 * piece);
#endif
#ifdef VALUES
                whole_product(s, at_grad, at_values);
                rows.fill(of_values, s, 1.0f);
                for (int piece = lane; piece < 2 * STRIDE; piece += 32)
                    *(uint4*)(value_rows + from + 8 * piece) = *(const uint4*)(of_values + warp * 16 * STRIDE + 8 * piece);
#endif
                __syncwarp();
#pragma unroll
                for (int r = 0; r < 2; r++) {
#ifdef KEYS
                    left[r] = number(of_keys[rows.at[r] + LEFT]);
                    right[r] = number(of_keys[rows.at[r] + RIGHT]);
#endif
#ifdef VALUES
                    v_left[r] = number(of_values[rows.at[r] + LEFT]);
                    v_right[r] = number(of_values[rows.at[r] + RIGHT]);
#endif
                }
            }
            const u32 q_is = describe(at_q), grad_is = describe(at_grad);
            const u32 k_is = describe(at_k + stage * TILE_BYTES), v_is = describe(at_v + stage * TILE_BYTES);
            products_begin();
            multiply(s, q_is, k_is);
            multiply(dp, grad_is, v_is);
            products_sent();
            const bool checked = (tile + 1) * TILE > min(length, causal ? start_q + shift + 1 : length);
            const int first_offset = tile * TILE - (start_q + 16 * warp + 15) - begin;
            const int side = side_of(first_offset, first_offset + 78);
            products_done();
            pin(s);
            pin(dp);
            if (checked) keep(s, none, [&](int r, int column) { return tile * TILE + column < limit[r]; });

            u32 packed[16];
            auto differentiate = [&](auto close) {  // in tiles close to the diagonal or away from it
                constexpr bool CLOSE = decltype(close)::value;
                float of_tile[2] = {0.0f, 0.0f}, of_weights[2] = {0.0f, 0.0f};  // the latter not scaled
                float more_of[2], of_value[2];  // what all scores of a row share, and all gradients of weights, scaled
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    more_of[r] = (CLOSE ? 0.0f : (side < 0 ? left[r] : right[r])) - lse_of[r];
                    of_value[r] = fmaf(CLOSE ? 0.0f : (side < 0 ? v_left[r] : v_right[r]), drop.unit, -delta_of[r]);
                }
#pragma unroll
                for (int n = 0; n < 8; n++) {
#ifdef DROPOUT
                    const uint2 noise_of = ((const uint2*)(key_noise + stage * TILE))[4 * n + pair];
#endif
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const int i = 4 * n + 2 * r, x = rows.place[r] + tile * TILE + 8 * n;
                        float2 more = make_float2(more_of[r], more_of[r]);
#ifdef KEYS
                        if (CLOSE) {
                            more = rows.pair(of_keys, r, x);
                            more = make_float2(more.x + more_of[r], more.y + more_of[r]);
                        }
#endif
#ifdef VALUES
                        if (CLOSE) {
                            const float2 add = rows.pair(of_values, r, x);
                            dp[i] += add.x;
                            dp[i + 1] += add.y;
                        }
#endif
                        const float p0 = exp2_fast(fmaf(s[i], factor, more.x)), p1 = exp2_fast(fmaf(s[i + 1], factor, more.y));
                        float d0 = fmaf(dp[i], drop.unit, of_value[r]), d1 = fmaf(dp[i + 1], drop.unit, of_value[r]);
                        float w0 = p0, w1 = p1;
#ifdef DROPOUT
                        if (drop.drops(row_noise[r], noise_of.x)) w0 = 0.0f, d0 = -delta_of[r];
                        if (drop.drops(row_noise[r], noise_of.y)) w1 = 0.0f, d1 = -delta_of[r];
#endif
                        d0 *= p0;
                        d1 *= p1;
                        packed[2 * n + r] = pack(d0, d1);
                        of_tile[r] += d0 + d1;
                        of_weights[r] += w0 + w1;
                        if (!CLOSE) continue;
#ifdef KEYS
                        far.add(r, x, d0, d1);
                        rows.put(of_keys, r, x, packed[2 * n + r]);
#endif
                        w0 *= drop.unit;
                        w1 *= drop.unit;
                        far_weights.add(r, x, w0, w1);
                        rows.put(of_values, r, x, pack(w0, w1));
                    }
                }
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    of_weights[r] *= drop.unit;
                    sum[r] += of_tile[r];
                    weight[r] += of_weights[r];
                    if (CLOSE) continue;
                    (side < 0 ? far.left[r] : far.right[r]) += of_tile[r];
                    (side < 0 ? far_weights.left[r] : far_weights.right[r]) += of_weights[r];
                }
            };
            if (side == 0) differentiate(Flag<true>());
            else differentiate(Flag<false>());
            products_begin();
            multiply_tile(dq_acc, packed, k_is);
            products_sent();
        }
        products_done();
        pin(dq_acc);
        asm volatile("cp.async.wait_group 0;\n" ::: "memory");
        const float unit = (float)scale;
#pragma unroll
        for (int i = 0; i < 32; i++) dq_acc[i] *= unit;

        const int position = start_q + 16 * warp + begin;
        sum_over_row(sum);
#ifdef DROPOUT
        sum_over_row(weight);
#endif
        far_weights.meet();
        far.meet();
        float each[2];  // what is taken from a gradient for each unit of weight
#pragma unroll
        for (int r = 0; r < 2; r++) {
            each[r] = sum[r];
#ifdef DROPOUT
            each[r] = weight[r] > 0.0f ? sum[r] / weight[r] : 0.0f;
#endif
            far.left[r] -= each[r] * far_weights.left[r];
            far.right[r] -= each[r] * far_weights.right[r];
        }

        u32 a[STEPS][4];
        auto store = [&](u16* to) {
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
#pragma unroll
                for (int part = 0; part < 4; part++) {
                    const int row = row0 + 8 * (part & 1), x = 16 * step + 8 * (part >> 1) + 2 * pair;
                    if (row < q_len) *(u32*)(to + (((long long)head * batch + b) * q_len + row) * COUNT + x) = a[step][part];
                }
            }
        };
#ifdef KEYS
        auto better = [&](int r, int x) {
            const int at = rows.at[r] + x;
            return pack(fmaf(-each[r], number(of_values[at]), number(of_keys[at])), 0.0f);
        };
        collect(a, rows, better, far, position, tiles * TILE);
        store(dscores);
        const u32 keys_is = describe(at_keys);
        products_begin();
#pragma unroll
        for (int step = 0; step < STEPS; step++) multiply_from_registers(dq_acc, a[step], keys_is + step * (2048 >> 4));
        products_sent();
#endif
        products_done();
        pin(dq_acc);
#ifdef VALUES
        collect(a, rows, [&](int r, int x) { return (u32)of_values[rows.at[r] + x]; }, far_weights, position, tiles * TILE);
        store(weights);
#endif
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int i = 4 * n + 2 * r, row = row0 + 8 * r;
                if (row < q_len) {
                    u16* to = dq + ((b * q_len + row) * heads + head) * TILE + 8 * n + 2 * pair;
                    *(u32*)to = pack(dq_acc[i], dq_acc[i + 1]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (row0 + 8 * r >= q_len) continue;
            const float better_delta = delta_of[r] + sum[r], of_value = pair ? v_right[r] : v_left[r];
            if (pair == 2) delta[at_row + 8 * r] = better_delta;
            if (pair >= 2) continue;
            float* to = ends + (of_pair * 2 + pair) * 3 * q_len + row0 + 8 * r;
            to[0] = lse_of[r] - (pair ? right[r] : left[r]);
            to[q_len] = NOISY ? better_delta : better_delta - of_value;
            to[2 * q_len] = better_delta - of_value * drop.unit;
        }
    }
}

extern "C" __global__ void __launch_bounds__(128, 2) key(
    const u16* q, const u16* k, const u16* v, const u16* grad, const int* lengths, const float* lse, const float* delta,
    const u16* key_rows, const u16* value_rows, const float* ends,  // as `query` wrote them
    u16* dk, u16* dv,                                               // (B, Lk, H, 64)
    int q_batch, int q_head, int q_row, int k_batch, int k_head, int k_row, int v_batch, int v_head, int v_row,
    int grad_batch, int grad_head, int grad_row,
    int heads, int groups, int q_len, int k_len, int causal, int begin, double scale, const u32* noise, double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    const u32 at_k = base, at_v = base + TILE_BYTES, at_q = base + 2 * TILE_BYTES;
    const u32 at_grad = at_q + KEY_STAGES * TILE_BYTES, at_numbers = at_grad + KEY_STAGES * TILE_BYTES;
    const u32 at_rows = at_numbers + KEY_STAGES * 4 * TILE * 4;
    // Of each stage lse, delta, that of weights not dropped, noise; then the rows of keys and of values.
    const float* numbers_of = (const float*)(shared + 2 * (1 + KEY_STAGES) * TILE_BYTES);
    const u16* all_rows = (const u16*)(numbers_of + KEY_STAGES * 4 * TILE);

    const int thread = threadIdx.x, warp = thread >> 5, row8 = (thread & 31) >> 2, pair = thread & 3;
    const int key_blocks = (k_len + TILE - 1) / TILE, blocks = (q_len + TILE - 1) / TILE, shift = k_len - q_len;
    const int start_k = (blockIdx.x % key_blocks) * TILE, head = (blockIdx.x / key_blocks) % heads;
    const long long b = blockIdx.x / key_blocks / heads, of_pair = b * heads + head;
    const float factor = (float)(scale * 1.4426950408889634), none = -__int_as_float(0x7f800000);
    const u16* q_of = q + b * q_batch + (long long)head * q_head;
    const u16* grad_of = grad + b * grad_batch + (long long)head * grad_head;
    const int length = lengths ? lengths[b] : k_len;
    const int first_tile = causal ? max(start_k - shift, 0) / TILE : 0;
    const int tiles = start_k < length ? blocks : first_tile;

    auto side_of_tile = [&](int tile) {
        const int first = start_k - tile * TILE - (TILE - 1) - begin;
        return side_of(first, first + 2 * (TILE - 1));
    };
    const Dropout drop(noise, dropout, of_pair, q_len, k_len);
    auto load_queries = [&](int tile) {
        const int stage = tile % KEY_STAGES, row = tile * TILE + (thread & 63), side = side_of_tile(tile);
        load_tile(at_q + stage * TILE_BYTES, q_of, q_row, tile * TILE, q_len);
        load_tile(at_grad + stage * TILE_BYTES, grad_of, grad_row, tile * TILE, q_len);
        const float* at_end = ends + (of_pair * 2 + (side > 0)) * 3 * q_len;
        const float* source = side ? at_end + (thread < TILE ? 0 : q_len) : (thread < TILE ? lse : delta) + of_pair * q_len;
        const int bytes = row < q_len ? 4 : 0, inside = bytes ? row : 0;
        const u32 target = at_numbers + (stage * 4 * TILE + thread) * 4;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(target), "l"(source + inside), "r"(bytes));
#if defined(DROPOUT) && defined(VALUES)
        if (side && thread < TILE)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(target + 2 * TILE * 4),
                         "l"(at_end + 2 * q_len + inside), "r"(bytes));
#endif
        load_noise(at_numbers + (stage * 4 + 3) * TILE * 4, drop.of_queries + tile * TILE);
        if (side) return;
        const long long from = (of_pair * blocks + tile) * TILE * STRIDE;
        for (int piece = thread; piece < 8 * STRIDE; piece += 128) {
            const u32 to = at_rows + (stage * 2 * TILE * STRIDE + 8 * piece) * 2;
#ifdef KEYS
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(key_rows + from + 8 * piece));
#endif
#ifdef VALUES
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to + TILE * STRIDE * 2),
                         "l"(value_rows + from + 8 * piece));
#endif
        }
    };
    load_tile(at_k, k + b * k_batch + (long long)(head / groups) * k_head, k_row, start_k, k_len);
    load_tile(at_v, v + b * v_batch + (long long)(head / groups) * v_head, v_row, start_k, k_len);
    for (int tile = first_tile; tile < first_tile + KEY_STAGES - 1; tile++) {
        if (tile < tiles) load_queries(tile);
        loads_sent();
    }

    const int row0 = start_k + 16 * warp + row8, lead = (REACH + begin) & 1;  // and row0 + 8
    int from_query[2];                                                        // queries before it do not see this key
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int of_key = row0 + 8 * r;
        from_query[r] = of_key >= length ? q_len : (causal ? of_key - shift : 0);
    }
#ifdef DROPOUT
    const u32 row_noise[2] = {drop.of_keys[row0], drop.of_keys[row0 + 8]};
#endif
    float s[32], dp[32], dk_acc[32], dv_acc[32];
#pragma unroll
    for (int i = 0; i < 32; i++) dk_acc[i] = dv_acc[i] = 0.0f;
    pin(dk_acc);
    pin(dv_acc);
    auto scores = [&](int stage) {
        const u32 k_is = describe(at_k), v_is = describe(at_v);
        const u32 q_is = describe(at_q + stage * TILE_BYTES), grad_is = describe(at_grad + stage * TILE_BYTES);
        products_begin();
        multiply(s, k_is, q_is);
        multiply(dp, v_is, grad_is);
        products_sent();
    };
    auto all_loaded = [&] {  // and all threads are done with what lay there
        publish();
        __syncthreads();
    };
    asm volatile("cp.async.wait_group %0;\n" ::"n"(KEY_STAGES - 2) : "memory");
    all_loaded();
    scores(first_tile % KEY_STAGES);

    for (int tile = first_tile; tile < tiles; tile++) {
        const int stage = tile % KEY_STAGES, start_q = tile * TILE;
        const u32 q_is = describe(at_q + stage * TILE_BYTES), grad_is = describe(at_grad + stage * TILE_BYTES);
        const bool checked =
            start_q + TILE > q_len || start_k + TILE > length || (causal && start_q < start_k + TILE - 1 - shift);
        const u16* of_keys = all_rows + stage * 2 * TILE * STRIDE + lead;
        const u16* of_values = of_keys + TILE * STRIDE;
        asm volatile("cp.async.wait_group 0;\n" ::: "memory");
        products_done();
        pin(s);
        pin(dp);
        pin(dk_acc);
        pin(dv_acc);
        all_loaded();
        if (tile + KEY_STAGES - 1 < tiles) load_queries(tile + KEY_STAGES - 1);
        loads_sent();
        if (checked)
            keep(s, none, [&](int r, int column) { return start_q + column >= from_query[r] && start_q + column < q_len; });

        const float2* lse_of = (const float2*)(numbers_of + stage * 4 * TILE) + pair;
        const float2* delta_of = lse_of + TILE / 2;
        u32 weights[16], packed[16];
        auto weigh = [&](auto close) {  // in tiles close to the diagonal or away from it, where lse and delta know the end
            constexpr bool CLOSE = decltype(close)::value;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                const float2 subtract = lse_of[4 * n], delta_is = delta_of[4 * n];
                float2 more[2], of_value[2];
                more[0] = more[1] = of_value[0] = of_value[1] = make_float2(0.0f, 0.0f);
                if (CLOSE) {
                    const int column = 8 * n + 2 * pair, at0 = column * STRIDE, at1 = at0 + STRIDE;
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const int x = row0 + 8 * r - (start_q + column) - begin + REACH + LEFT;
                        const int x0 = min(max(x, LEFT), RIGHT), x1 = min(max(x - 1, LEFT), RIGHT);
#ifdef KEYS
                        more[r] = make_float2(number(of_keys[at0 + x0]), number(of_keys[at1 + x1]));
#endif
#ifdef VALUES
                        of_value[r] = make_float2(number(of_values[at0 + x0]), number(of_values[at1 + x1]));
#endif
                    }
                }
                float2 undropped = delta_is;
#if defined(DROPOUT) && defined(VALUES)
                if (!CLOSE) undropped = delta_of[TILE / 2 + 4 * n];
#endif
#ifdef DROPOUT
                const uint2 of_queries = ((const uint2*)delta_of)[TILE + 4 * n];
#endif
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = 4 * n + 2 * r;
                    s[i] = exp2_fast(fmaf(s[i], factor, more[r].x) - subtract.x);
                    s[i + 1] = exp2_fast(fmaf(s[i + 1], factor, more[r].y) - subtract.y);
                    if (CLOSE) {
                        dp[i] += of_value[r].x;
                        dp[i + 1] += of_value[r].y;
                    }
                    dp[i] = fmaf(dp[i], drop.unit, -undropped.x);
                    dp[i + 1] = fmaf(dp[i + 1], drop.unit, -undropped.y);
                    float w0 = s[i], w1 = s[i + 1];
#ifdef DROPOUT
                    if (drop.drops(of_queries.x, row_noise[r])) w0 = 0.0f, dp[i] = -delta_is.x;
                    if (drop.drops(of_queries.y, row_noise[r])) w1 = 0.0f, dp[i + 1] = -delta_is.y;
#endif
                    weights[2 * n + r] = pack(w0, w1);
                }
            }
        };
        if (side_of_tile(tile) == 0) weigh(Flag<true>());
        else weigh(Flag<false>());
        products_begin();
        multiply_tile(dv_acc, weights, grad_is);
        products_sent();
#pragma unroll
        for (int i = 0; i < 16; i++) packed[i] = pack(s[2 * i] * dp[2 * i], s[2 * i + 1] * dp[2 * i + 1]);
        products_begin();
        multiply_tile(dk_acc, packed, q_is);
        products_sent();
        if (KEY_STAGES == 2) {
            asm volatile("cp.async.wait_group 0;\n" ::: "memory");
            all_loaded();
        }
        scores((tile + 1) % KEY_STAGES);  // where there is no other tile, any: nobody reads them
    }
    products_done();
    pin(s);
    pin(dp);
    pin(dk_acc);
    pin(dv_acc);
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");
    keep_gradients(dk, dv, dk_acc, dv_acc, (float)scale, drop.unit, b, head, heads, row0, k_len);
}
