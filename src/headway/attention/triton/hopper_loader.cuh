// The loader of the backward kernel: one warp that brings, ahead of the groups, the keys and values of each block and all
// that a tile of queries takes: queries, gradients of the output, and the numbers of the queries (`OF_...`).

struct Loader {
    u32 base;  // of shared memory
    Walk walk;
    const TensorMap &q_map, &k_map, &v_map, &grad_map;
    const float *lse, *delta;
    const Numbers* table;  // of this head
    int padded, before;
    const float *steps, *q_segments;  // SEGMENTS
    int q_padded, q_segments_batch;
    const u32* noise;
    double dropout;
    int head, heads, groups, q_len;
#ifdef RELATIVE
    const u16 *key_rows, *value_rows;
    const float* ends;
    int begin;
#endif

    __device__ __forceinline__ void load_keys(const Ring<BLOCKS>& block) const {
        const u32 keys = base + AT_KEYS + block.at * 4 * COLS * TILE_BYTES, full = barrier_at(base, KEYS_IN + block.at);
        wait(barrier_at(base, KEYS_OUT + block.at), block.parity ^ 1);
        arrive_and_expect(full, 4 * COLS * TILE_BYTES);
        for (int i = 0; i < 2 * COLS; i++) {
            const int row = walk.start_k + (i & 1) * TILE, column = i / 2 * TILE;
            fetch_tile(keys + i * TILE_BYTES, k_map, row, head / groups, walk.b, full, column);
            fetch_tile(keys + (2 * COLS + i) * TILE_BYTES, v_map, row, head / groups, walk.b, full, column);
        }
    }
    // By one thread, what can be fetched whole.
    __device__ __forceinline__ void fetch_queries(u32 queries, u32 numbers, int start_q, u32 full) const {
#ifdef RELATIVE
        const bool close = end_of(walk, 0, q_len, begin) == 0 || end_of(walk, 1, q_len, begin) == 0;
        const int more = close ? ((key_rows != nullptr) + (value_rows != nullptr)) * ROWS_BYTES : 0;
        const long long rows = (((long long)walk.b * heads + head) * walk.tiles + walk.tile) * (ROWS_BYTES / 2);
#else
        const int more = 0;
#endif
        arrive_and_expect(full, 2 * COLS * TILE_BYTES + BIAS_BYTES + (NOISY + 2 * SEGMENTED) * TILE * 4 + more);
#ifdef KEYS
        if (close) fetch(numbers + OF_ROWS, key_rows + rows, ROWS_BYTES, full);
#endif
#ifdef VALUES
        if (close) fetch(numbers + OF_ROWS + ROWS_BYTES, value_rows + rows, ROWS_BYTES, full);
#endif
        if (NOISY) {
            const Dropout drop(noise, dropout, (long long)walk.b * heads + head, q_len, walk.k_len);
            fetch(numbers + NOISE, drop.of_queries + start_q, TILE * 4, full);
        }
        if (SEGMENTED) {
            const float* of_head = steps + ((long long)walk.b * heads + head) * q_padded;
            fetch(numbers + OF_STEPS, of_head + start_q, TILE * 4, full);
            fetch(numbers + OF_SEGMENTS, q_segments + (long long)walk.b * q_segments_batch + start_q, TILE * 4, full);
        }
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            fetch_tile(queries + c * TILE_BYTES, q_map, start_q, head, walk.b, full, c * TILE);
            fetch_tile(queries + (COLS + c) * TILE_BYTES, grad_map, start_q, head, walk.b, full, c * TILE);
        }
        BiasOfColumns(table, walk.start_k, walk.tile, padded, before).fetch_to(numbers + OF_BIAS, full);
    }
    // By the warp, what ends where the queries do.
    __device__ __forceinline__ void load_numbers(u32 numbers, int start_q) const {
        const int lane = threadIdx.x & 31;
        const long long of_pair = (long long)walk.b * heads + head;
        auto load = [&](int at, const float* from) {  // a number for each query
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = start_q + lane + 32 * i, bytes = row < q_len ? 4 : 0;
                asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n"
                             ::"r"(numbers + at + (lane + 32 * i) * 4), "l"(from + (bytes ? row : 0)), "r"(bytes));
            }
        };
        load(OF_DELTA, delta + of_pair * q_len);
#ifdef RELATIVE
#pragma unroll
        for (int of = 0; of < 2; of++) {
            const int end = end_of(walk, of, q_len, begin);
            const float* there = ends + (of_pair * 2 + (end > 0)) * 2 * q_len;
            load(of * GROUP_BYTES, end ? there : lse + of_pair * q_len);
            load(of * GROUP_BYTES + TILE * 4, end ? there + q_len : delta + of_pair * q_len);
        }
#else
        load(0, lse + of_pair * q_len);
#endif
    }
    __device__ __forceinline__ void run() {
        const int lane = threadIdx.x & 31;
        Ring<STAGES> stage;
        Ring<BLOCKS> block;
        int turn = -1;
        auto begin_block = [&] {
            if (walk.turn == turn) return;
            turn = walk.turn;
            if (lane == 0) load_keys(block);
            block.next();
        };
        do {
            if (!LATE) begin_block();
            const int start_q = walk.tile * TILE;
            const u32 queries = base + AT_QUERIES + stage.at * 2 * COLS * TILE_BYTES;
            const u32 numbers = base + AT_NUMBERS + stage.at * NUMBERS_BYTES;
            const u32 full = barrier_at(base, QUERIES_IN + stage.at);
            wait(barrier_at(base, QUERIES_OUT + stage.at), stage.parity ^ 1);
            if (lane == 0) fetch_queries(queries, numbers, start_q, full);
            load_numbers(numbers, start_q);
            arrive_after_loads(full);
            stage.next();
            if (LATE) begin_block();  // whose place is free later than that of the queries
        } while (walk.next());
        asm volatile("cp.async.wait_all;\n" ::: "memory");
    }
};
