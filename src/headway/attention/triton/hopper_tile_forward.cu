// Attention whose scores are one tile. A row is weighed once: all its scores are there.

#include "hopper_tile.cuh"

constexpr int STAGES = 3;
constexpr int STAGE_BYTES = 6 * TILE_BYTES;                     // two tiles each of q, k and v
constexpr int AT_BIAS = STAGES * STAGE_BYTES;                   // (tiles of keys, groups)
constexpr int AT_NOISE = AT_BIAS + 2 * BIAS_BYTES;              // (STAGES,): of the keys
constexpr int AT_BARRIERS = AT_NOISE + STAGES * NOISE_BYTES;
SHARED_BYTES(tile_forward, AT_BARRIERS + 64)
enum Barriers { IN = 0, OUT = STAGES, BIAS_IN = 2 * STAGES };

extern "C" __global__ void __launch_bounds__(384, 1) tile_forward(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map,
    const Numbers* table, const int* lengths,  // of tiles whose rows are queries; (B,), or null
#ifdef MASK
    const u64* words,  // (B, words of 64 keys)
#endif
    u16* out, float* lse,                      // (B, Lq, H, 64); (B, H, Lq)
    int batch, int heads, int groups, int q_len, int k_len, int causal, int table_head, int tiles_of_row, int,
    int chunks, double scale, const u32* noise, double dropout) {
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
            fetch_tiles(at + 2 * TILE_BYTES, k_map, head / groups, b, full);
            fetch_tiles(at + 4 * TILE_BYTES, v_map, head / groups, b, full);
            stage.next();
        }
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;\n");
    const int thread = threadIdx.x & 127, warp = thread >> 5, row8 = lane >> 2, pair = thread & 3;
    const int part = EACH == 1 ? group : 0, own = EACH == 1 ? 0 : group;  // of the queries; of the sequences
    const int row0 = part * TILE + 16 * warp + row8, shift = k_len - q_len;  // and row0 + 8
    const float factor = (float)(scale * 1.4426950408889634), none = -__int_as_float(0x7f800000);
    const Dropout drop(noise, dropout, 0, q_len, k_len);
    float s[32 * SIDES];
    auto send_scores = [&](const Ring<STAGES>& of) {  // as soon as the sequence is there
        wait(barrier(IN + of.at), of.parity);
        const u32 at = uniform(base + of.at * STAGE_BYTES);
        products_begin();
        multiply(s, describe(at + group * TILE_BYTES), describe(at + (2 + own) * TILE_BYTES));
        products_sent();
    };
    if (BIAS_BYTES > 0) wait(barrier(BIAS_IN), 0);
    send_scores(stage);

    do {
        const u32 at = uniform(base + stage.at * STAGE_BYTES);
        const int sequence = min(b + own, batch - 1);
        const int length = lengths ? lengths[sequence] : k_len;
        const Words shown = WORDS_OF(sequence);
        const bool checked = SIDES * TILE > min(length, causal ? part * TILE + shift + 1 : length) || !shown.all(0) ||
                             !shown.all(SIDES - 1);
        int limit[2];
#pragma unroll
        for (int r = 0; r < 2; r++) limit[r] = causal ? min(length, row0 + 8 * r + shift + 1) : length;
#ifdef DROPOUT
        const u32* of_queries = Dropout(noise, 0.0, (long long)sequence * heads + head, q_len, k_len).of_queries;
        const u32 row_noise[2] = {of_queries[row0], of_queries[row0 + 8]};
        const uint2* key_noise = (const uint2*)(shared + AT_NOISE + stage.at * NOISE_BYTES + own * NOISE_BYTES / 2) + pair;
#endif
        products_done();
        pin(s);
        float top[2] = {none, none}, total[2] = {0.0f, 0.0f};
#pragma unroll
        for (int side = 0; side < SIDES; side++) {
            const Bias::Tile bias(shared + AT_BIAS + side * BIAS_BYTES, part, thread);
#pragma unroll
            for (int n = 0; n < 8; n++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = 32 * side + 4 * n + 2 * r;
                    const float2 add = bias.at(n, r);
                    s[i] = fmaf(s[i], factor, add.x);
                    s[i + 1] = fmaf(s[i + 1], factor, add.y);
                }
            }
        }
        if (checked) {
            const Words sides[2] = {shown.of(0), shown.of(SIDES - 1)};
            keep(s, none, [&](int r, int column) { return column < limit[r] && sides[column / TILE].at(column % TILE); });
        }
#pragma unroll
        for (int i = 0; i < 32 * SIDES; i++) top[(i >> 1) & 1] = fmaxf(top[(i >> 1) & 1], s[i]);
        float from[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffff, top[r], 1));
            top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffff, top[r], 2));
            from[r] = top[r] == none ? 0.0f : top[r];
        }
        u32 weights[SIDES][16];
#pragma unroll
        for (int i = 0; i < 32 * SIDES; i += 2) {
            const int r = (i >> 1) & 1;
            float p0 = exp2_fast(s[i] - from[r]), p1 = exp2_fast(s[i + 1] - from[r]);
            total[r] += p0 + p1;
#ifdef DROPOUT
            const uint2 of_keys = key_noise[i >> 2 << 2];
            if (drop.drops(row_noise[r], of_keys.x)) p0 = 0.0f;
            if (drop.drops(row_noise[r], of_keys.y)) p1 = 0.0f;
#endif
            weights[i / 32][i % 32 / 2] = pack(p0, p1);
        }
        float acc[32];
#pragma unroll
        for (int i = 0; i < 32; i++) acc[i] = 0.0f;
        products_begin();
#pragma unroll
        for (int side = 0; side < SIDES; side++) multiply_tile(acc, weights[side], describe(at + (4 + own + side) * TILE_BYTES));
        products_sent();
        const Ring<STAGES> now = stage;
        if (b + EACH < end) stage.next();
        send_scores(stage);  // of the next sequence, while the output is written; after the last, of that again
        products_done_but_last();
        pin(acc);
        if (lane == 0) arrive(barrier(OUT + now.at));
        keep_output(out, nullptr, lse, acc, from, total, drop.unit, sequence, head, heads, row0, b + own < end ? q_len : 0);
        b += EACH;
    } while (b < end);
    products_done();  // without this wait, the compiler would keep no products in flight
}
