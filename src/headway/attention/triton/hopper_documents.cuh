// DOCUMENTS: packed texts, of which a query sees the keys of its own alone. Texts are numbered; of each block of 128 queries
// or keys a record says which texts its rows belong to, those of either tile if they all are of one, and which tiles of the
// other side it meets: from the first one to the last one with a pair that may attend. Without DOCUMENTS all are one text.

constexpr int RECORD = 132;                                    // numbers of a record: 128 texts, and
enum Record { ONE_TEXT = 128, FIRST_TILE = 130, END_TILE = 131 };  // of either tile the only text, or -1; the tiles it meets

struct Documents {
#ifdef DOCUMENTS
    const int *queries, *keys;  // of the sequence, a record for each block
    __device__ __forceinline__ Documents(const int* of_queries, const int* of_keys, int b, int q_len, int k_len)
        : queries(of_queries + (q_len + 127) / 128 * RECORD * b), keys(of_keys + (k_len + 127) / 128 * RECORD * b) {}
    static __device__ __forceinline__ int one_text(const int* side, int start) {
        return side[start / 128 * RECORD + ONE_TEXT + start / TILE % 2];
    }
    // Whether the tiles of queries and of keys from these on are all of one text.
    __device__ __forceinline__ bool one(int start_q, int start_k) const {
        const int text = one_text(queries, start_q);
        return text >= 0 && text == one_text(keys, start_k);
    }
    static __device__ __forceinline__ const int* texts(const int* side, int row) {
        return side + row / 128 * RECORD + row % 128;
    }
    // A bit for each of a thread's 32 numbers: whether its row and its column are of one text.
    static __device__ __forceinline__ u32 pairs(const int* rows, int row0, const int* columns, int start) {
        const int* of_rows = texts(rows, row0);
        const int first = of_rows[0], second = of_rows[8];
        const int2* of_columns = (const int2*)texts(columns, start) + (threadIdx.x & 3);
        u32 bits = 0;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int2 two = of_columns[4 * n];
            bits |= (u32)(two.x == first) << (4 * n) | (u32)(two.y == first) << (4 * n + 1);
            bits |= (u32)(two.x == second) << (4 * n + 2) | (u32)(two.y == second) << (4 * n + 3);
        }
        return bits;
    }
    // Of such bits that of row r of two, and this column.
    static __device__ __forceinline__ bool at(u32 bits, int r, int column) {
        return bits >> (4 * (column >> 3) + 2 * r + (column & 1)) & 1;
    }
    // Rows are queries, or keys.
    __device__ __forceinline__ u32 of_queries(int row0, int start_k) const { return pairs(queries, row0, keys, start_k); }
    __device__ __forceinline__ u32 of_keys(int row0, int start_q) const { return pairs(keys, row0, queries, start_q); }
#else
    __device__ __forceinline__ bool one(int, int) const { return true; }
    static __device__ __forceinline__ bool at(u32, int, int) { return true; }
    __device__ __forceinline__ u32 of_queries(int, int) const { return ~0u; }
    __device__ __forceinline__ u32 of_keys(int, int) const { return ~0u; }
#endif
};
#ifdef DOCUMENTS
#define DOCUMENTS_OF(b) Documents(q_documents, k_documents, b, q_len, k_len)
#else
#define DOCUMENTS_OF(b) Documents()
#endif
