// Attention without gradients on the CPU, in float32, with a Toeplitz bias and products of queries and of keys with a
// vector for each offset, or without any bias.
//
// Scores are made transposed, keys by queries: a vector holds the scores of one key and neighbouring queries. So the
// bias of a vector is one unaligned load (of its values, reversed), maxima and sums take no step across lanes, and the
// weights lie as the second product reads them. Only queries are packed; keys and values are read where they are.
//
// Vectors of offsets are packed too, a row for each of their numbers, in which the greatest offset stands first. Then
// what a vector of scores is multiplied with is one unaligned load, one number further for the next query.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#elif defined(__x86_64__)
#error this processor has no AVX: the kernels of torch are faster here
#else
constexpr int LANES = 4;
#endif

// Tiles of sums that fill the registers and leave some for what is multiplied: keys by vectors of queries for the
// scores, rows of queries by vectors of columns for the output.
#if defined(__AVX512F__) || !defined(__x86_64__)
constexpr int KEYS = 8, ROWS = 12;  // of 32 registers
#else
constexpr int KEYS = 4, ROWS = 6;  // of 16
#endif
constexpr int QUERY_VECTORS = 3, COLUMN_VECTORS = 2;
constexpr int QUERIES = QUERY_VECTORS * LANES;  // one block
constexpr int BLOCK_K = 128;  // its scores, with the keys and values that pass, stay near the core
constexpr int TABLE = BLOCK_K + QUERIES;  // offsets between a block of queries and one of keys, and one more

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef float Unaligned __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));

#define INLINE inline __attribute__((always_inline))

INLINE Vector load(const float* p) { return *reinterpret_cast<const Unaligned*>(p); }
INLINE void store(float* p, Vector x) { *reinterpret_cast<Unaligned*>(p) = x; }
INLINE Vector splat(float x) { return x - Vector{}; }
INLINE Vector larger(Vector a, Vector b) { return a > b ? a : b; }  // b where one is NaN

// e^x for x <= 0, to about 1e-7 of itself; 0 from -88 down, NaN for NaN.
INLINE Vector exponential(Vector x) {
    const float log2e = 1.44269504f;
    const Vector shift = splat(12582912.0f + 127.0f);  // 1.5 * 2^23: adding it rounds; 127: the bias of an exponent
    x = larger(splat(-88.02969f), x);
    const Vector rounded = x * log2e + shift;
    const Vector f = x * log2e - (rounded - shift);
    Vector p = f * 1.32646799e-3f + 9.67150299e-3f;  // 2^f for |f| <= 1/2
    p = p * f + 5.55073377e-2f;
    p = p * f + 2.40222422e-1f;
    p = p * f + 6.93146978e-1f;
    p = p * f + 1.0f;
    return p * (Vector)((Integers)rounded << 23);
}

struct Products {  // of vectors with the vector of each offset
    const float *vectors, *table;  // table: (heads, width, q_len + k_len - 1), greatest offset first; or null
    int64_t strides[3], table_stride, width;  // strides of batch, head and row of the vectors
};

struct Call {  // packed by op.py
    const float *q, *k, *v, *bias;  // bias: null where there is none
    const int64_t* lengths;  // (B,) or null
    float* out;
    int64_t batch, heads, groups, q_len, k_len, width, v_width;
    int64_t q_strides[3], k_strides[3], v_strides[3], out_strides[3];  // of batch, head and row
    int64_t bias_strides[2];  // of batch and head
    Products of_queries, of_keys;
    float scale;
    int32_t causal, threads;
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel of the runtime in use, or null
};

struct Scores {
    const float* queries;  // packed: (width, block of queries), scaled
    const float* keys;
    int64_t stride, width, count;
    const float* bias;  // of the first key and query; one less for the next key, one more for the next query
    const float *own, *own_table;  // packed: (own_width, block of queries), (own_width, TABLE); of queries
    const float *vectors, *key_table;  // of keys: one for each row, (key_width, TABLE)
    int64_t own_width, key_width, vector_stride;  // widths are 0 where there are no products
    bool edge;  // whether some query does not see some key: query r sees key n if r >= n + first
    int64_t first;
    float* out;  // (count, block of queries)
};

// Scores of N keys from `key` on; `most` is the greatest score of each query so far.
template <int N, int C>
INLINE void score_tile(const Scores& x, int64_t key, Vector* most) {
    constexpr int Q = C * LANES;
    const float* keys = x.keys + key * x.stride;
    Vector sum[N][C] = {};
    for (int64_t d = 0; d < x.width; d++) {
        Vector column[C];
        for (int c = 0; c < C; c++) column[c] = load(x.queries + d * Q + c * LANES);
        for (int n = 0; n < N; n++) {
            const Vector element = splat(keys[n * x.stride + d]);
            for (int c = 0; c < C; c++) sum[n][c] += element * column[c];
        }
    }
    const int64_t last = x.count - 1 - key;  // of the first key here: where the offset to the first query stands
    if (x.own_width > 0) {
        Vector product[N][C] = {};  // summed up by itself, as the formula does, so that it rounds as little
        for (int64_t d = 0; d < x.own_width; d++) {
            const float* table = x.own_table + d * TABLE + last;
            Vector column[C];
            for (int c = 0; c < C; c++) column[c] = load(x.own + d * Q + c * LANES);
            for (int n = 0; n < N; n++)
                for (int c = 0; c < C; c++) product[n][c] += column[c] * load(table - n + c * LANES);
        }
        for (int n = 0; n < N; n++)
            for (int c = 0; c < C; c++) sum[n][c] += product[n][c];
    }
    if (x.key_width > 0) {
        Vector product[N][C] = {};
        for (int64_t d = 0; d < x.key_width; d++) {
            const float* table = x.key_table + d * TABLE + last;
            for (int n = 0; n < N; n++) {
                const Vector element = splat(x.vectors[(key + n) * x.vector_stride + d]);
                for (int c = 0; c < C; c++) product[n][c] += element * load(table - n + c * LANES);
            }
        }
        for (int n = 0; n < N; n++)
            for (int c = 0; c < C; c++) sum[n][c] += product[n][c];
    }
    if (x.bias)
        for (int n = 0; n < N; n++)
            for (int c = 0; c < C; c++) sum[n][c] += load(x.bias - (key + n) + c * LANES);
    if (x.edge)
        for (int n = 0; n < N; n++)
            for (int c = 0; c < C; c++) {
                Integers row;
                for (int lane = 0; lane < LANES; lane++) row[lane] = c * LANES + lane;
                sum[n][c] = row >= (int32_t)(key + n + x.first) ? sum[n][c] : splat(-INFINITY);
            }
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++) {
            store(x.out + (key + n) * Q + c * LANES, sum[n][c]);
            most[c] = larger(most[c], sum[n][c]);
        }
}

template <int C>
void score_block(const Scores& x, Vector* most) {
    int64_t key = 0;
    Vector m[C];
    for (int c = 0; c < C; c++) m[c] = most[c];
    for (; key + KEYS <= x.count; key += KEYS) score_tile<KEYS, C>(x, key, m);
    for (; key + KEYS / 2 <= x.count; key += KEYS / 2) score_tile<KEYS / 2, C>(x, key, m);
    for (; key < x.count; key++) score_tile<1, C>(x, key, m);
    for (int c = 0; c < C; c++) most[c] = m[c];
}

struct Sums {
    const float* weights;  // (count, block of queries)
    int64_t weights_stride;
    const float* values;
    int64_t values_stride, count;
    const float* earlier;  // sums over earlier keys, or null
    int64_t earlier_stride;
    const float *before, *after;  // factors of each query: of the earlier sums, and of the result
    float* out;
    int64_t out_stride;
};

template <int R, int C>
INLINE void value_tile(const Sums& x, int64_t row, int64_t column) {
    const float *values = x.values + column, *weights = x.weights + row;
    Vector sum[R][C] = {};
    for (int64_t key = 0; key < x.count; key++) {
        Vector value[C];
        for (int c = 0; c < C; c++) value[c] = load(values + c * LANES);
        for (int r = 0; r < R; r++) {
            const Vector weight = splat(weights[r]);
            for (int c = 0; c < C; c++) sum[r][c] += weight * value[c];
        }
        values += x.values_stride;
        weights += x.weights_stride;
    }
    if (x.earlier) {
        const float* earlier = x.earlier + row * x.earlier_stride + column;
        for (int r = 0; r < R; r++, earlier += x.earlier_stride)
            for (int c = 0; c < C; c++) sum[r][c] += load(earlier + c * LANES) * x.before[row + r];
    }
    float* out = x.out + row * x.out_stride + column;
    for (int r = 0; r < R; r++, out += x.out_stride)
        for (int c = 0; c < C; c++) store(out + c * LANES, sum[r][c] * x.after[row + r]);
}

template <int C>
void value_columns(const Sums& x, int64_t rows, int64_t column) {
    int64_t row = 0;
    for (; row + ROWS <= rows; row += ROWS) value_tile<ROWS, C>(x, row, column);
    for (; row + ROWS / 3 <= rows; row += ROWS / 3) value_tile<ROWS / 3, C>(x, row, column);
    for (; row < rows; row++) value_tile<1, C>(x, row, column);
}

void value_block(const Sums& x, int64_t rows, int64_t width) {
    int64_t column = 0;
    for (; column + COLUMN_VECTORS * LANES <= width; column += COLUMN_VECTORS * LANES)
        value_columns<COLUMN_VECTORS>(x, rows, column);
    for (; column < width; column += LANES) value_columns<1>(x, rows, column);
}

int64_t whole(int64_t width) { return (width + LANES - 1) / LANES * LANES; }

struct Floats {
    explicit Floats(int64_t count) : p(static_cast<float*>(operator new(count * sizeof(float), LINE))) {
        std::memset(p, 0, count * sizeof(float));
    }
    Floats(const Floats&) = delete;
    ~Floats() { operator delete(p, LINE); }
    operator float*() { return p; }
    static constexpr std::align_val_t LINE{64};
    float* p;
};

struct Scratch {  // of one thread
    explicit Scratch(const Call& x)
        : queries(x.width * QUERIES), bias(x.k_len + QUERIES), sums(QUERIES * whole(x.v_width)),
          values(x.v_width % LANES ? BLOCK_K * whole(x.v_width) : 0), own(x.of_queries.width * QUERIES),
          own_table(x.of_queries.width * TABLE), key_table(x.of_keys.width * TABLE) {}
    Floats queries, bias, sums, values, own, own_table, key_table;
    alignas(64) float scores[BLOCK_K * QUERIES], before[QUERIES], after[QUERIES];
};

// Vectors of the offsets between `queries` queries from `first` on and `keys` keys from `start` on.
void pack_table(const Call& x, const Products& from, int64_t h, int64_t first, int64_t queries, int64_t start,
                int64_t keys, float* to) {
    const int64_t offsets = x.q_len + x.k_len - 1, greatest = x.k_len - start - keys + first;
    const int64_t count = std::min(queries + keys - 1, offsets - greatest);
    const float* table = from.table + h * from.table_stride + greatest;
    for (int64_t d = 0; d < from.width; d++) std::memcpy(to + d * TABLE, table + d * offsets, count * sizeof(float));
}

const float* vectors_of(const Products& x, int64_t b, int64_t h, int64_t row) {
    return x.vectors + b * x.strides[0] + h * x.strides[1] + row * x.strides[2];
}

// The queries of one sequence and head from `first` on, C vectors of them or fewer.
template <int C>
void attend(const Call& x, Scratch& s, int64_t b, int64_t h, int64_t first) {
    constexpr int Q = C * LANES;
    const int64_t rows = std::min<int64_t>(Q, x.q_len - first), columns = whole(x.v_width);
    const float* q = x.q + b * x.q_strides[0] + h * x.q_strides[1] + first * x.q_strides[2];
    const float* k = x.k + b * x.k_strides[0] + h / x.groups * x.k_strides[1];
    const float* v = x.v + b * x.v_strides[0] + h / x.groups * x.v_strides[1];
    float* out = x.out + b * x.out_strides[0] + h * x.out_strides[1] + first * x.out_strides[2];
    const int64_t past = x.k_len - x.q_len + first;  // in causal order the last key that the first query sees
    int64_t keys = x.lengths ? std::min(x.lengths[b], x.k_len) : x.k_len;  // torch.compile leaves lengths unchecked
    if (x.causal) keys = std::min(keys, past + rows);
    if (keys <= 0) {
        for (int64_t r = 0; r < rows; r++) std::memset(out + r * x.out_strides[2], 0, x.v_width * sizeof(float));
        return;
    }
    for (int r = 0; r < Q; r++)
        for (int64_t d = 0; d < x.width; d++)
            s.queries[d * Q + r] = r < rows ? q[r * x.q_strides[2] + d] * x.scale : 0.0f;
    for (int r = 0; r < rows && x.of_queries.table; r++) {
        const float* vector = vectors_of(x.of_queries, b, h, first + r);
        for (int64_t d = 0; d < x.of_queries.width; d++) s.own[d * Q + r] = vector[d];
    }
    if (x.bias) {  // of query first + r and key j: s.bias[k_len - 1 - j + r]
        const float* end = x.bias + b * x.bias_strides[0] + h * x.bias_strides[1] + x.k_len - 1 + x.q_len - 1 - first;
        for (int64_t t = x.k_len - keys; t < x.k_len + Q - 1; t++) s.bias[t] = t < x.k_len + rows - 1 ? end[-t] : 0.0f;
    }
    Vector most[C], total[C] = {};
    for (int c = 0; c < C; c++) most[c] = splat(-INFINITY);
    for (int64_t start = 0; start < keys; start += BLOCK_K) {
        const int64_t count = std::min<int64_t>(BLOCK_K, keys - start);
        if (x.of_queries.table) pack_table(x, x.of_queries, h, first, Q, start, count, s.own_table);
        if (x.of_keys.table) pack_table(x, x.of_keys, h, first, Q, start, count, s.key_table);
        Vector base[C], sum[C] = {};
        for (int c = 0; c < C; c++) base[c] = most[c];
        score_block<C>({s.queries, k + start * x.k_strides[2], x.k_strides[2], x.width, count,
                        x.bias ? s.bias + x.k_len - 1 - start : nullptr, s.own, s.own_table,
                        x.of_keys.table ? vectors_of(x.of_keys, b, h, start) : nullptr, s.key_table,
                        x.of_queries.width, x.of_keys.width, x.of_keys.strides[2],
                        x.causal && start + count - 1 > past,
                        start - past, s.scores},
                       most);
        for (int c = 0; c < C; c++) {
            const Vector old = base[c];
            base[c] = most[c] == splat(-INFINITY) ? Vector{} : most[c];  // a query that saw nothing yet
            const Vector factor = exponential(old - base[c]);
            store(s.before + c * LANES, factor);
            total[c] *= factor;
        }
        for (int64_t n = 0; n < count; n++)
            for (int c = 0; c < C; c++) {
                float* at = s.scores + n * Q + c * LANES;
                const Vector weight = exponential(load(at) - base[c]);
                sum[c] += weight;
                store(at, weight);
            }
        const bool last = start + count == keys, direct = last && x.v_width == columns;
        for (int c = 0; c < C; c++) {
            total[c] += sum[c];
            const Vector inverse = total[c] == Vector{} ? Vector{} : 1.0f / total[c];
            store(s.after + c * LANES, last ? inverse : splat(1.0f));
        }
        const float* values = v + start * x.v_strides[2];
        int64_t stride = x.v_strides[2];
        if (x.v_width != columns) {
            for (int64_t n = 0; n < count; n++)
                std::memcpy(s.values + n * columns, values + n * stride, x.v_width * sizeof(float));
            values = s.values, stride = columns;
        }
        value_block({s.scores, Q, values, stride, count, start ? s.sums.p : nullptr, columns, s.before, s.after,
                     direct ? out : s.sums.p, direct ? x.out_strides[2] : columns},
                    rows, columns);
    }
    if (x.v_width != columns)
        for (int64_t r = 0; r < rows; r++)
            std::memcpy(out + r * x.out_strides[2], s.sums + r * columns, x.v_width * sizeof(float));
}

// As few vectors of queries as are left.
template <int C>
void attend_rest(const Call& x, Scratch& s, int64_t b, int64_t h, int64_t first) {
    if constexpr (C > 1)
        if (x.q_len - first <= (C - 1) * LANES) return attend_rest<C - 1>(x, s, b, h, first);
    attend<C>(x, s, b, h, first);
}

struct Work {
    const Call& call;
    std::atomic<int64_t> next{0};
};

void work(void* shared) {
    auto& [x, next] = *static_cast<Work*>(shared);
    Scratch s(x);
    const int64_t blocks = (x.q_len + QUERIES - 1) / QUERIES, count = x.batch * x.heads * blocks;
    for (int64_t i; (i = next.fetch_add(1)) < count;)
        attend_rest<QUERY_VECTORS>(x, s, i / blocks / x.heads, i / blocks % x.heads, i % blocks * QUERIES);
}

}  // namespace

extern "C" void headway_attention(const Call* call) {
    Work shared{*call};
    if (call->threads == 1) return work(&shared);
    if (call->parallel) return call->parallel(work, &shared, call->threads, 0);
    std::vector<std::thread> others;
    for (int t = 1; t < call->threads; t++) others.emplace_back(work, &shared);
    work(&shared);
    for (auto& other : others) other.join();
}
