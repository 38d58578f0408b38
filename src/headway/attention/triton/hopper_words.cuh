// MASK: which keys of a sequence may be seen at all. Each key has a bit, in words of 64 for whole blocks of 128 keys; bits
// beyond the last key that is seen are 0. Without MASK every key may be seen.

struct Words {
#ifdef MASK
    const u64* first;  // of the sequence
    u64 bits;          // of a tile, from this thread's pair of keys in fragment 0 on: see `of`
    __device__ __forceinline__ Words(const u64* words, int b, int k_len) : first(words + (k_len + 127) / 128 * 2 * b) {}
    __device__ __forceinline__ bool all(int tile) const { return first[tile] == ~0ull; }
    __device__ __forceinline__ bool one(int key) const { return first[key / TILE] >> (key % TILE) & 1; }
    __device__ __forceinline__ Words of(int tile) const {
        Words of_tile = *this;
        of_tile.bits = first[tile] >> (2 * (threadIdx.x & 3));
        return of_tile;
    }
    __device__ __forceinline__ bool at(int column) const { return bits >> (column - 2 * (threadIdx.x & 3)) & 1; }
#else
    __device__ __forceinline__ bool all(int) const { return true; }
    __device__ __forceinline__ bool one(int) const { return true; }
    __device__ __forceinline__ Words of(int) const { return {}; }
    __device__ __forceinline__ bool at(int) const { return true; }
#endif
};
#ifdef MASK
#define WORDS_OF(b) Words(words, b, k_len)
#else
#define WORDS_OF(b) Words()
#endif
