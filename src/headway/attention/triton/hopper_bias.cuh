// What threads read of a bias that the batch shares, in tiles of 128 x 64: a Toeplitz table, with MATRIX any matrix, with
// PLAIN nothing. Tiles are fetched to shared memory by one thread and read by two groups of 128 threads, 64 rows each.
//
// Toeplitz: fragments on one diagonal of a tile hold the same offsets, so a thread needs 9 pairs of numbers for its 32
// scores. The table (H|1, 2, padded) has the bias in units of log 2 from offset -before - 8 on, and from the next on: of any
// pair, one of the two is aligned.
//
// MATRIX: tiles lie as threads hold scores, (H|1, tiles of rows, tiles of columns, 4, 128 threads, 8) of 16 bits.
//
// Both reach as far as whole blocks of 128 queries and keys do.

#ifdef PLAIN
typedef float Numbers;
constexpr int BIAS_BYTES = 0;

struct Bias {
    __device__ __forceinline__ Bias(const Numbers*, int, int, int, int) {}
    __device__ __forceinline__ void fetch_to(u32, u32) const {}
    struct Tile {
        __device__ __forceinline__ Tile(const unsigned char*, int, int) {}
        __device__ __forceinline__ float2 at(int, int) const { return make_float2(0.0f, 0.0f); }
    };
};
typedef Bias BiasOfRows;
typedef Bias BiasOfColumns;
#elif defined(MATRIX)
typedef uint4 Numbers;
constexpr int BIAS_BYTES = GROUPS * TILE_BYTES;

struct Bias {
    const uint4* from;
    int tiles_of_row;
    __device__ __forceinline__ Bias(const Numbers* table, int start, int tile, int tiles_of_row, int)
        : from(table + ((long long)start / TILE * tiles_of_row + tile) * 512), tiles_of_row(tiles_of_row) {}
    __device__ __forceinline__ void fetch_to(u32 to, u32 barrier) const {
#pragma unroll
        for (int i = 0; i < GROUPS; i++) fetch(to + i * TILE_BYTES, from + i * tiles_of_row * 512, TILE_BYTES, barrier);
    }
    struct Tile {
        uint4 pairs[4];
        __device__ __forceinline__ Tile(const unsigned char* from, int group, int thread) {
            const uint4* of = (const uint4*)(from + group * TILE_BYTES) + thread;
#pragma unroll
            for (int part = 0; part < 4; part++) pairs[part] = of[part * 128];
        }
        __device__ __forceinline__ float2 at(int n, int r) const {  // n and r are known to the compiler
            const uint4 four = pairs[n / 2];
            return unpack_float16(n % 2 == 0 ? (r == 0 ? four.x : four.y) : (r == 0 ? four.z : four.w));
        }
    };
};
typedef Bias BiasOfRows;
typedef Bias BiasOfColumns;
#else
typedef float Numbers;
constexpr int REGION = (GROUPS + 1) * TILE + 16;  // numbers of a tile, with a margin on both sides
constexpr int BIAS_BYTES = 2 * REGION * 4;

struct Bias {
    const float* from;
    int padded;
    __device__ __forceinline__ void fetch_to(u32 to, u32 barrier) const {
#pragma unroll
        for (int i = 0; i < 2; i++) fetch(to + i * REGION * 4, from + i * padded, REGION * 4, barrier);
    }
};
__device__ __forceinline__ const float* aligned(const unsigned char* from, int first) {
    return (const float*)from + first + (first & 1 ? REGION - 1 : 0);
}

// Rows are queries: offsets rise along a row. The numbers begin 8 before the offset of the last row's first column.
struct BiasOfRows : Bias {
    __device__ __forceinline__ BiasOfRows(const Numbers* table, int start, int tile, int padded, int before)
        : Bias{table + tile * TILE - start + before - GROUPS * TILE, padded} {}
    struct Tile {
        float2 pairs[9];  // column - row fragment = -1 .. 7
        __device__ __forceinline__ Tile(const unsigned char* from, int group, int thread) {
            const float* of = aligned(
                from, GROUPS * TILE + 8 + 2 * (thread & 3) - group * TILE - (thread >> 5) * 16 - ((thread & 31) >> 2));
#pragma unroll
            for (int m = 0; m < 9; m++) pairs[m] = *(const float2*)(of + 8 * (m - 1));
        }
        __device__ __forceinline__ float2 at(int n, int r) const { return pairs[n - r + 1]; }
    };
};

// Rows are keys: offsets fall along a row. The numbers begin at offset -72 of the tile's corner.
struct BiasOfColumns : Bias {
    __device__ __forceinline__ BiasOfColumns(const Numbers* table, int start, int tile, int padded, int before)
        : Bias{table + start - tile * TILE + before - TILE, padded} {}
    struct Tile {
        const float* of;
        float2 pairs[9];  // row - column fragment = -7 .. 1; at widths beyond 64 there are no registers for them
        __device__ __forceinline__ Tile(const unsigned char* from, int group, int thread)
            : of(aligned(from, 71 + group * TILE + (thread >> 5) * 16 + ((thread & 31) >> 2) - 2 * (thread & 3))) {
#pragma unroll
            for (int m = 0; COLS == 1 && m < 9; m++) pairs[m] = *(const float2*)(of + 8 * (m - 7));
        }
        __device__ __forceinline__ float2 at(int n, int r) const {
            const float2 pair = COLS == 1 ? pairs[r - n + 7] : *(const float2*)(of + 8 * (r - n));
            return make_float2(pair.y, pair.x);
        }
    };
};
#endif
