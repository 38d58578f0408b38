// What both passes share where scores are one tile, up to 128 queries and keys, on Hopper, in half precision, for head width
// 64.
//
// A block goes over its share of the batch with one head; a warp of its own loads the next sequences meanwhile. Each of two
// groups of 128 threads owns 64 queries and meets all keys. With SMALL, up to 64 queries and keys, each has a sequence of its
// own.
//
// MASK: beside lengths, a bit for each key says whether it may be seen (hopper_words.cuh).
// MATRIX, PLAIN: a bias that the batch shares, or none. It stays in shared memory.

#include "hopper.cuh"
#include "hopper_pipes.cuh"
#include "hopper_bias.cuh"
#include "hopper_words.cuh"

#ifdef SMALL
constexpr int EACH = 2;   // sequences that a block has at a time
constexpr int SIDES = 1;  // tiles of keys that a query meets
#else
constexpr int EACH = 1;
constexpr int SIDES = 2;
#endif
constexpr int WARPS = 8;
constexpr int BLOCK = 2 * TILE;
constexpr int NOISE_BYTES = BLOCK * 4;  // of keys, in a stage

// Which sequences are a block's, from b to end. Only the last of the batch may have no other beside it.
struct Share {
    int chunk, head, b, end;
    __device__ __forceinline__ Share(int batch, int chunks) {
        chunk = blockIdx.x % chunks, head = blockIdx.x / chunks;
        const long long turns = (batch + EACH - 1) / EACH;
        b = (int)(turns * chunk / chunks) * EACH;
        end = min(batch, (int)(turns * (chunk + 1) / chunks) * EACH);
    }
};

// Two tiles: of a sequence, or of two. What lies beyond the ends is zero.
__device__ __forceinline__ void fetch_tiles(u32 to, const TensorMap& map, int head, int b, u32 barrier) {
#pragma unroll
    for (int i = 0; i < 2; i++)
        fetch_tile(to + i * TILE_BYTES, map, EACH == 1 ? i * TILE : 0, head, EACH == 1 ? b : b + i, barrier);
}

__device__ __forceinline__ void fetch_bias(u32 to, const Numbers* table, int tiles_of_row, u32 barrier) {
    if (BIAS_BYTES == 0) return;
    arrive_and_expect(barrier, SIDES * BIAS_BYTES);
#pragma unroll
    for (int i = 0; i < SIDES; i++) Bias(table, 0, i, tiles_of_row, 0).fetch_to(to + i * BIAS_BYTES, barrier);
}

// Of dropout, the numbers of the keys.
__device__ __forceinline__ void fetch_noise(
    u32 to, const u32* noise, int batch, int b, int head, int heads, int q_len, int k_len, u32 barrier) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const Dropout drop(noise, 0.0, (long long)min(b + i, batch - 1) * heads + head, q_len, k_len);
        fetch(to + i * NOISE_BYTES / EACH, drop.of_keys, NOISE_BYTES / EACH, barrier);
    }
}
