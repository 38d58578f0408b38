// In which order the backward kernel goes over sequences, blocks of keys and tiles of queries, and takes turns at tiles.

constexpr int BLOCK = 2 * TILE;  // keys of a block

// One step of the carrier: which tile of `sums_q`, how many add to it before and in all, what its counter then says.
struct Carry {
    long long tile;
    int rank, seen;
    u32 expected;
};

// The blocks of keys that this block of threads owns, in order: of each, a range of tiles of queries.
struct Walk {
    const int* lengths;
#ifdef MASK
    const u64* words;
#endif
#ifdef DOCUMENTS
    const int *q_documents, *k_documents;
    const u32* turns;  // (B, blocks of keys, tiles of queries): `rank` and `seen`, in 16 bits each
    int end;           // of the range of tiles
#endif
    int batch, slot, slots, member, teams, key_blocks, tiles, shift, k_len, causal;
    int turn, item, b, start_k, length, first, tile, left;  // left: steps of this block of keys
    __device__ __forceinline__ bool next_block() {
        for (;;) {
            turn += teams;
            item = turn / key_blocks;
            b = slot + item * slots;
            if (b >= batch) return false;
            const int block = turn - item * key_blocks;
            start_k = block * BLOCK;
            length = lengths ? lengths[b] : k_len;
#ifdef DOCUMENTS  // ranges hold a tile at least, and each tile is in one
            const int* record = texts().keys + block * RECORD;
            first = record[FIRST_TILE];
            end = record[END_TILE];
            left = end - first;
            tile = first + member * left / teams;
            return true;
#else
            first = block && causal ? max(start_k - shift, 0) / TILE : 0;
            tile = max(first, member * tiles / teams);
            left = block && start_k >= length ? 0 : tiles - first;
            if (left > 0) return true;
#endif
        }
    }
    __device__ __forceinline__ bool begin() {
        turn = member - teams;
        return next_block();
    }
    __device__ __forceinline__ bool next() {
        if (--left == 0) return next_block();
#ifdef DOCUMENTS
        if (++tile == end) tile = first;
#else
        if (++tile == tiles) tile = first;
#endif
        return true;
    }
    // Queries before it do not see this key.
    __device__ __forceinline__ int first_query(int key, int q_len) const {
        return key >= length || !shown().one(key) ? q_len : (causal ? key - shift : 0);
    }
    __device__ __forceinline__ Words shown() const { return WORDS_OF(b); }
#ifdef DOCUMENTS
    __device__ __forceinline__ Documents texts() const {
        return Documents(q_documents, k_documents, b, tiles * TILE, k_len);
    }
    __device__ __forceinline__ u32 turn_at() const {
        return turns[((long long)b * key_blocks + start_k / BLOCK) * tiles + tile];
    }
    __device__ __forceinline__ int seen() const { return turn_at() >> 16; }
    __device__ __forceinline__ int rank() const { return turn_at() & 0xffff; }
#else
    __device__ __forceinline__ Documents texts() const { return {}; }
    // Blocks of keys that a tile's queries see, but at least the first.
    __device__ __forceinline__ int seen() const {
        const int keys = causal ? min(length, (tile + 1) * TILE + shift) : length;
        return max((keys + BLOCK - 1) / BLOCK, 1);
    }
    // How many blocks add to this tile before this one. Those of a round start evenly spaced and go round.
    __device__ __forceinline__ int rank() const {
        if (teams == 1) return turn - item * key_blocks;
        const int start = item * key_blocks, round = turn / teams * teams;
        const int from = max(0, start - round), to = min(teams, start + seen() - round);
        const int begun = ((tile + 1) * teams + tiles - 1) / tiles;  // those that start at this tile or before
        const int before = max(0, round - start);
        if (member < begun) return before + max(0, min(begun, to) - (member + 1));
        return before + to - member - 1 + max(0, min(begun, to) - from);
    }
#endif
    __device__ __forceinline__ Carry carry(long long place, int ways) const {
        const int before = rank();
        const int way = ways > 1 ? item & 1 : 0, used = ways > 1 ? item >> 1 : item;
        return {(place + way) * tiles + tile, before, seen(), (u32)(used * key_blocks + before)};
    }
};
