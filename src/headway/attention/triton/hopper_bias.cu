// Attention with a bias that the batch shares, on Hopper, in half precision, for head width 64. Four kernels: forward, the
// gradients of q, those of k and v, and that of the bias.
//
// A Toeplitz bias: fragments on one diagonal of a tile hold the same offsets. So a thread needs 9 pairs of the bias for
// its 32 scores, and sums along diagonals start with plain additions of registers; what remains of those, 8 rows for each
// of 4 warps, passes once through shared memory. Every sum has one owner and one order.
//
// MATRIX: any other bias, as a matrix whose tiles lie as threads hold scores, so that each reads its own 64 bytes.
// SUMS: the gradient of a Toeplitz bias is wanted.

#include "hopper.cuh"

constexpr int STAGES = 3;

#ifdef MATRIX
typedef uint4 Numbers;  // (H|1, tiles of rows, tiles of columns, 4, 128 threads, 8) of 16 bits, in units of log 2

// The bias of a row of tiles; table_head is in pieces of 16 bytes.
struct Bias {
    const uint4* of;
    uint4 pairs[4];
    __device__ __forceinline__ Bias(const Numbers* table, int head, int table_head, int row_tile, int tiles_of_row) {
        of = table + (long long)head * table_head + (long long)row_tile * tiles_of_row * 512 + (threadIdx.x & 127);
    }
    __device__ __forceinline__ void load(int tile) {
#pragma unroll
        for (int part = 0; part < 4; part++) pairs[part] = __ldg(of + tile * 512 + part * 128);
    }
    __device__ __forceinline__ void stay() {  // packed: unpacked before a loop, they would take twice the registers
#pragma unroll
        for (int part = 0; part < 4; part++)
            asm volatile("" : "+r"(pairs[part].x), "+r"(pairs[part].y), "+r"(pairs[part].z), "+r"(pairs[part].w));
    }
    __device__ __forceinline__ float2 at(int n, int r) const {  // n and r are known to the compiler
        const uint4 four = pairs[n / 2];
        return unpack_float16(n % 2 == 0 ? (r == 0 ? four.x : four.y) : (r == 0 ? four.z : four.w));
    }
};
typedef Bias BiasOfRows;
typedef Bias BiasOfColumns;
#define PLACE(start) (start) / TILE, padded
#else
constexpr int ROW = 72;  // numbers of a warp's row of diagonals: 9 fragments
typedef float Numbers;   // (H|1, 2, padded): the bias in units of log 2 from offset -before - 8 on, and from the next

// Tiles whose rows are queries. Fragments on one diagonal share their numbers: column - row fragment = -1 .. 7.
struct BiasOfRows {
    const float* of;  // this thread's first number, column 2 * pair of its first row; pairs of numbers are aligned
    float2 pairs[9];
    __device__ __forceinline__ BiasOfRows(const Numbers* table, int head, int table_head, int row0, int padded, int before) {
        const int first = 2 * (threadIdx.x & 3) - row0 + before + 8;
        of = table + (long long)head * table_head + (first & 1 ? padded - 1 : 0) + first;
    }
    __device__ __forceinline__ void load(int tile) {
#pragma unroll
        for (int m = 0; m < 9; m++) pairs[m] = __ldg((const float2*)(of + tile * TILE + 8 * (m - 1)));
    }
    __device__ __forceinline__ float2 at(int n, int r) const { return pairs[n - r + 1]; }
};

// Tiles whose rows are keys, along which offsets fall: row - column fragment = -7 .. 1.
struct BiasOfColumns {
    const float* of;  // the number before that of the first row, column 2 * pair
    float2 pairs[9];
    __device__ __forceinline__ BiasOfColumns(const Numbers* table, int head, int table_head, int row0, int padded, int before) {
        const int first = row0 - 2 * (threadIdx.x & 3) - 1 + before + 8;
        of = table + (long long)head * table_head + (first & 1 ? padded - 1 : 0) + first;
    }
    __device__ __forceinline__ void load(int tile) {
#pragma unroll
        for (int m = 0; m < 9; m++) pairs[m] = __ldg((const float2*)(of - tile * TILE + 8 * (m - 7)));
    }
    __device__ __forceinline__ float2 at(int n, int r) const {
        const float2 pair = pairs[r - n + 7];
        return make_float2(pair.y, pair.x);
    }
};
#define PLACE(start) (start) + 16 * warp + row8, padded, before
#endif

extern "C" __global__ void __launch_bounds__(128, 4) forward(
    const u16* q, const u16* k, const u16* v,  // (B, H|Hk, L, 64), any strides but the last
    const Numbers* table,  // of tiles whose rows are queries
    const int* lengths,  // (B,), or null
    u16* out, u16* rest, float* lse,  // (B, Lq, H, 64), twice: the output, and what rounding took or null; (B, H, Lq)
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

    auto load_keys = [&](int tile) {
        const int stage = tile % STAGES;
        load_tile(at_k + stage * TILE_BYTES, k_of, k_row, tile * TILE, k_len);
        load_tile(at_v + stage * TILE_BYTES, v_of, v_row, tile * TILE, k_len);
    };
    load_tile(at_q, q + b * q_batch + (long long)head * q_head, q_row, start_q, q_len);
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ahead++) {
        if (ahead < tiles) load_keys(ahead);
        loads_sent();
    }

    const int row0 = start_q + 16 * warp + row8;  // and row0 + 8
    const int limit[2] = {causal ? min(length, row0 + shift + 1) : length, causal ? min(length, row0 + shift + 9) : length};
    BiasOfRows bias(table, head, table_head, PLACE(start_q));

    const Dropout drop(noise, dropout, b * heads + head, q_len, k_len);
#ifdef DROPOUT
    const u32 row_noise[2] = {drop.of_queries[row0], drop.of_queries[row0 + 8]};
#endif
    float acc[32], top[2] = {none, none}, total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 32; i++) acc[i] = 0.0f;

    if (tiles > 0) {  // that the last wait is in here, too, lets the compiler keep products in flight
        for (int tile = 0; tile < tiles; tile++) {
            const int stage = tile % STAGES;
            asm volatile("cp.async.wait_group %0;\n" ::"n"(STAGES - 2) : "memory");
            products_done();
            pin(acc);
            asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
            __syncthreads();
            if (tile + STAGES - 1 < tiles) load_keys(tile + STAGES - 1);
            loads_sent();

            float s[32];
            products_begin();
            const u64 q_is = describe(at_q), k_is = describe(at_k + stage * TILE_BYTES);
            const u64 v_is = describe(at_v + stage * TILE_BYTES);
            multiply(s, q_is, k_is);
            products_sent();
            bias.load(tile);
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
    }
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");
    keep_output(out, rest, lse, acc, top, total, drop.unit, b, head, heads, row0, q_len);
}

extern "C" __global__ void __launch_bounds__(128, 3) query(
    const u16* q, const u16* k, const u16* v, const u16* grad,  // (B, H|Hk, L, 64), any strides but the last
    const float* lse, const float* delta,                       // (B, H, Lq)
    const Numbers* table, const int* lengths,                   // as above
    u16* dq, float* sums,  // (B, Lq, H, 64); SUMS: (slots, H, 2, span) from offset -before on, zero
    int q_batch, int q_head, int q_row, int k_batch, int k_head, int k_row, int v_batch, int v_head, int v_row,
    int grad_batch, int grad_head, int grad_row,
    int batch, int heads, int groups, int q_len, int k_len, int causal, int table_head, int padded, int before, int span,
    double scale, const u32* noise, double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    const u32 at_q = base, at_grad = at_q + TILE_BYTES, at_k = at_grad + TILE_BYTES;
    const u32 at_v = at_k + STAGES * TILE_BYTES;
    const int thread = threadIdx.x, warp = thread >> 5, row8 = (thread & 31) >> 2, pair = thread & 3;
    const int head = blockIdx.x % heads, slot = blockIdx.x / heads, slots = gridDim.x / heads;
    const int blocks = (q_len + TILE - 1) / TILE, shift = k_len - q_len;
    const float factor = (float)(scale * 1.4426950408889634);
#ifdef SUMS
    float* rows = (float*)(shared + (2 + 2 * STAGES) * TILE_BYTES);  // (4 warps, 8, ROW)
    float* own = sums + (((long long)slot * heads + head) * 2 + (thread >> 6)) * span + (thread & 63);
#endif

    for (int item = slot; item < batch * blocks; item += slots) {
        const long long b = item / blocks;
        const int block = causal ? blocks - 1 - item % blocks : item % blocks, start_q = block * TILE;
        const u16* k_of = k + b * k_batch + (long long)(head / groups) * k_head;
        const u16* v_of = v + b * v_batch + (long long)(head / groups) * v_head;
        const int length = lengths ? lengths[b] : k_len;
        int stop = length;
        if (causal) stop = min(stop, max(start_q + TILE + shift, 0));
        const int tiles = (stop + TILE - 1) / TILE;

        auto load_keys = [&](int tile) {
            const int stage = tile % STAGES;
            load_tile(at_k + stage * TILE_BYTES, k_of, k_row, tile * TILE, k_len);
            load_tile(at_v + stage * TILE_BYTES, v_of, v_row, tile * TILE, k_len);
        };
        __syncthreads();  // the block before is done with shared memory
        load_tile(at_q, q + b * q_batch + (long long)head * q_head, q_row, start_q, q_len);
        load_tile(at_grad, grad + b * grad_batch + (long long)head * grad_head, grad_row, start_q, q_len);
#pragma unroll
        for (int ahead = 0; ahead < STAGES - 1; ahead++) {
            if (ahead < tiles) load_keys(ahead);
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
        BiasOfRows bias(table, head, table_head, PLACE(start_q));

        const Dropout drop(noise, dropout, b * heads + head, q_len, k_len);
#ifdef DROPOUT
        const u32 row_noise[2] = {drop.of_queries[row0], drop.of_queries[row0 + 8]};
#endif
        float dq_acc[32];
#pragma unroll
        for (int i = 0; i < 32; i++) dq_acc[i] = 0.0f;
#ifdef SUMS
        float* out = own + before - start_q - TILE;
        float carry = 0.0f;
#endif

        for (int tile = 0; tile < tiles; tile++) {
            const int stage = tile % STAGES;
            asm volatile("cp.async.wait_group %0;\n" ::"n"(STAGES - 2) : "memory");
            products_done();  // of the tile before: its keys are free now
            asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
            __syncthreads();
            if (tile + STAGES - 1 < tiles) load_keys(tile + STAGES - 1);
            loads_sent();

            float s[32], dp[32];
            products_begin();
            const u64 q_is = describe(at_q), grad_is = describe(at_grad);
            const u64 k_is = describe(at_k + stage * TILE_BYTES), v_is = describe(at_v + stage * TILE_BYTES);
            multiply(s, q_is, k_is);
            multiply(dp, grad_is, v_is);
            products_sent();

            bias.load(tile);
#ifdef SUMS
            const float so_far = out[tile * TILE];
#endif
            const bool checked = (tile + 1) * TILE > min(length, causal ? start_q + shift + 1 : length);
            products_done();
            pin(s);
            pin(dp);

#ifdef SUMS
            float2 along[9];
#pragma unroll
            for (int m = 0; m < 9; m++) along[m] = make_float2(0.0f, 0.0f);
#endif
            u32 packed[16];
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = 4 * n + 2 * r;
                    const float2 add = bias.at(n, r);
                    s[i] = exp2_fast(fmaf(s[i], factor, add.x) - lse_of[r]);
                    s[i + 1] = exp2_fast(fmaf(s[i + 1], factor, add.y) - lse_of[r]);
                }
            }
            if (checked) keep(s, 0.0f, [&](int r, int column) { return tile * TILE + column < limit[r]; });
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = 4 * n + 2 * r;
#ifdef DROPOUT
                    const uint2 of_keys = noise_pair(drop.of_keys + tile * TILE + 8 * n + 2 * pair);
                    if (drop.drops(row_noise[r], of_keys.x)) dp[i] = 0.0f;
                    if (drop.drops(row_noise[r], of_keys.y)) dp[i + 1] = 0.0f;
#endif
                    const float d0 = s[i] * fmaf(dp[i], drop.unit, -delta_of[r]);
                    const float d1 = s[i + 1] * fmaf(dp[i + 1], drop.unit, -delta_of[r]);
#ifdef SUMS
                    along[n - r + 1].x += d0;
                    along[n - r + 1].y += d1;
#endif
                    packed[2 * n + r] = pack(d0, d1);
                }
            }
            products_begin();
            multiply_tile(dq_acc, packed, k_is);
            products_sent();

#ifdef SUMS
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
#endif
        }
#ifdef SUMS
        if (tiles > 0) out[tiles * TILE] += carry;
#endif
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
    const Numbers* table, const int* lengths,  // a matrix: of tiles whose rows are keys; else as above
    u16* dk, u16* dv,                          // (B, Lk, H, 64)
    int q_batch, int q_head, int q_row, int k_batch, int k_head, int k_row, int v_batch, int v_head, int v_row,
    int grad_batch, int grad_head, int grad_row,
    int heads, int groups, int q_len, int k_len, int causal, int table_head, int padded, int before, double scale,
    const u32* noise, double dropout) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = (u32)__cvta_generic_to_shared(shared);
    const u32 at_k = base, at_v = at_k + TILE_BYTES, at_q = at_v + TILE_BYTES;
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
    BiasOfColumns bias(table, head, table_head, PLACE(start_k));

    const Dropout drop(noise, dropout, b * heads + head, q_len, k_len);
#ifdef DROPOUT
    const u32 row_noise[2] = {drop.of_keys[row0], drop.of_keys[row0 + 8]};
#endif
    float dk_acc[32], dv_acc[32];
#pragma unroll
    for (int i = 0; i < 32; i++) dk_acc[i] = dv_acc[i] = 0.0f;

    if (tiles > first_tile) {
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
            multiply(s, k_is, q_is);
            multiply(dp, v_is, grad_is);
            products_sent();

            bias.load(tile);
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
                    const int i = 4 * n + 2 * r;
                    const float2 add = bias.at(n, r);
                    s[i] = exp2_fast(fmaf(s[i], factor, add.x) - subtract.x);
                    s[i + 1] = exp2_fast(fmaf(s[i + 1], factor, add.y) - subtract.y);
                }
            }
            if (checked)
                keep(s, 0.0f, [&](int r, int column) {
                    return start_q + column >= from_query[r] && start_q + column < q_len;
                });
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = 4 * n + 2 * r;
#ifdef DROPOUT
                    const uint2 of_queries = noise_pair(drop.of_queries + start_q + 8 * n + 2 * pair);
                    const bool drop0 = drop.drops(of_queries.x, row_noise[r]);
                    const bool drop1 = drop.drops(of_queries.y, row_noise[r]);
                    weights[2 * n + r] = pack(drop0 ? 0.0f : s[i], drop1 ? 0.0f : s[i + 1]);
                    if (drop0) dp[i] = 0.0f;
                    if (drop1) dp[i + 1] = 0.0f;
#else
                    weights[2 * n + r] = pack(s[i], s[i + 1]);
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
                    const float d0 = fmaf(dp[i], drop.unit, -subtract.x), d1 = fmaf(dp[i + 1], drop.unit, -subtract.y);
                    packed[2 * n + r] = pack(s[i] * d0, s[i + 1] * d1);
                }
            }
            products_begin();
            multiply_tile(dk_acc, packed, q_is);
            products_sent();
        }
        products_done();
        pin(dk_acc);
        pin(dv_acc);
    }
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");
    keep_gradients(dk, dv, dk_acc, dv_acc, (float)scale, drop.unit, b, head, heads, row0, k_len);
}

#ifdef MATRIX
// The gradient of the matrix: a block owns a tile of 128 x 128 of it and goes over its share of the batch, two times
// 128 threads of 64 rows each. What is summed, the bias too, stays in registers.
extern "C" __global__ void __launch_bounds__(256, 1) bias_grad(
    const u16* q, const u16* k, const u16* v, const u16* grad, const float* lse, const float* delta,
    const Numbers* table, const int* lengths,  // as for `query`
    float* sums,                               // (chunks, H, Lq, Lk)
    int q_batch, int q_head, int q_row, int k_batch, int k_head, int k_row, int v_batch, int v_head, int v_row,
    int grad_batch, int grad_head, int grad_row,
    int batch, int heads, int groups, int q_len, int k_len, int causal, int table_head, int padded, int before,
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
    // Tiles beyond the ends have no table: any other's numbers do, for what comes of them is not kept.
    BiasOfRows left(table, head, table_head, PLACE(min(start_q, (q_len - 1) / TILE * TILE))), right = left;
    left.load(2 * tile_k);
    right.load(min(2 * tile_k + 1, (k_len - 1) / TILE));

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
        const u64 q_is = describe(at + half * TILE_BYTES), grad_is = describe(at + (2 + half) * TILE_BYTES);
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
#endif
