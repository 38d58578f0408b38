// Where the numbers of relative keys and values lie (Shaw et al., 2018, eqs. 3 and 4), for the kernels that use them.
//
// A query meets the few vectors of a table once, by a product of its own (64 queries x 64 places of the table); a score
// near the diagonal looks its number up in shared memory, and all others are at one of the two ends. Likewise weights:
// those near the diagonal are put in their places, the others summed, and one product with the table follows.
//
// Place x of a table holds the vector of offset x - REACH - 2, the outermost ones repeated beyond LEFT and RIGHT. In shared
// memory the rows of queries are SKEW + 1 numbers apart: those of one key lie SKEW apart, so that two keys from an even
// one on are one aligned word for every query, and the 8 rows of a fragment are in different banks.

constexpr int LEFT = 2, RIGHT = 2 * REACH + 2;        // places of the outermost offsets
constexpr int SKEW = (2 * REACH + 12) / 16 * 16 + 8;  // an odd multiple of 8 above 2 * REACH + 4
constexpr int STRIDE = SKEW + 1;
constexpr int STEPS = (RIGHT + 18) / 16;              // of products with a table

// In memory a query has PLACES, of which that of the leftmost offset is number MARGIN. Those before it are for gradients of
// scores of an eight of keys that the left end cuts: whole eights there are in a sum.
constexpr int MARGIN = 6, PLACES = (2 * REACH + MARGIN + 16) / 16 * 16;

#ifdef PHASE  // the position of the first query, modulo 8
// The backward pass has keys and queries in eights: a fragment is 8 keys x 8 queries, side by side in memory, of which each
// thread of a warp has two queries, as the tensor cores do. Eight queries look up SEEN fragments: those within reach, one
// before them, which is at the left end, and one behind. They keep KEPT fragments of gradients of scores: those within reach
// and a MARGIN. Both are counted from the eight of the queries' own position on.
constexpr int FRAGMENT = 64, LAST = (PHASE + REACH + 6) >> 3;
constexpr int SEEN_FROM = ((PHASE - REACH + 1) >> 3) - 1, SEEN = LAST + 2 - SEEN_FROM;
constexpr int KEPT_FROM = (PHASE - REACH - MARGIN) >> 3, KEPT = LAST + 1 - KEPT_FROM;
#endif

__device__ __forceinline__ float number(u16 half) {
#ifdef BFLOAT16
    return __uint_as_float((u32)half << 16);
#else
    float full;
    asm("cvt.f32.f16 %0, %1;\n" : "=f"(full) : "h"(half));
    return full;
#endif
}

// Where a thread's two rows of queries lie in shared memory, and the place of its first key.
struct Rows {
    int place[2];          // of this thread's pair of keys 0 and 1 in each row
    int at[2], low, high;  // starts of the rows; the places a pair is clamped to
    __device__ __forceinline__ Rows(int thread, int start_q, int begin) {
        const int local = 16 * (thread >> 5) + ((thread & 31) >> 2), lead = (REACH + begin) & 1;
        low = (local + lead) & 1;
        high = RIGHT + low;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            at[r] = (local + 8 * r) * STRIDE + lead;
            place[r] = 2 * (thread & 3) - (start_q + local + 8 * r) - begin + REACH + LEFT;
        }
    }
    __device__ __forceinline__ float2 pair(const u16* rows, int r, int x) const {
        return unpack(*(const u32*)(rows + at[r] + min(max(x, low), high)));
    }
    // A row's numbers of all places, from a product's registers.
    __device__ __forceinline__ void fill(u16* rows, const float (&of_places)[32], float unit) const {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int x = 8 * n + 2 * (threadIdx.x & 3);
                const u32 both = pack(of_places[4 * n + 2 * r] * unit, of_places[4 * n + 2 * r + 1] * unit);
                if (8 * n <= RIGHT + 2 && x <= RIGHT + 2) rows[at[r] + x] = (u16)both;
                if (8 * n <= RIGHT + 2 && x + 1 <= RIGHT + 2) rows[at[r] + x + 1] = (u16)(both >> 16);
            }
        }
        __syncwarp();
    }
    // Numbers in their places that belong to keys from 0 to `keys` - 1 shrink.
    __device__ __forceinline__ void shrink(u16* rows, int r, float by, int keys) const {
        __syncwarp();
        for (int x = LEFT + 1 + (threadIdx.x & 3); x < RIGHT; x += 4) {
            const int key = x - place[r] + 2 * (threadIdx.x & 3);
            if (key >= 0 && key < keys) rows[at[r] + x] = (u16)pack(number(rows[at[r] + x]) * by, 0.0f);
        }
        __syncwarp();
    }
    // Two halves in their places, where one of them has a place of its own. The other may fall on that of an end, which
    // no other thread reads: to a row whose pairs begin at even places the left end is places 0 and 1, to the others 1
    // and 2, and likewise on the right.
    __device__ __forceinline__ void put(u16* rows, int r, int x, u32 both) const {
        if (x >= LEFT && x < RIGHT) *(u32*)(rows + at[r] + x) = both;
    }
};

// A thread's numbers for its two rows, summed over the four threads that share them.
__device__ __forceinline__ void sum_over_row(float (&number)[2]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        number[r] += __shfl_xor_sync(0xffffffff, number[r], 1);
        number[r] += __shfl_xor_sync(0xffffffff, number[r], 2);
    }
}

// Sums of a row at the two ends.
struct Ends {
    float left[2], right[2];
    __device__ __forceinline__ Ends() { left[0] = left[1] = right[0] = right[1] = 0.0f; }
    __device__ __forceinline__ void add(int r, int x, float first, float second) {
        if (x <= LEFT) left[r] += first;
        if (x < LEFT) left[r] += second;
        if (x >= RIGHT) right[r] += first;
        if (x >= RIGHT - 1) right[r] += second;
    }
    __device__ __forceinline__ void meet() {  // over the four threads of a row
        sum_over_row(left);
        sum_over_row(right);
    }
};

// What lies in this thread's two of the eight places from `first` on: the half that `at_place` gives for a row and a place
// of keys from 0 to `keys` - 1 (WHOLE: all keys within reach are among them), and at the ends the sums.
template <bool WHOLE, class Halves>
__device__ __forceinline__ u32 placed(
    const Rows& rows, const Halves& at_place, const Ends& ends, int r, int first, int keys) {
    if (first > RIGHT) return 0;
    u32 both = 0;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int x = first + 2 * (threadIdx.x & 3) + e, key = x - rows.place[r] + 2 * (threadIdx.x & 3);
        u32 half = at_place(r, x);
        if (!WHOLE && (key < 0 || key >= keys)) half = 0;
        if (first <= LEFT) half = x < LEFT ? 0 : (x == LEFT ? pack(ends.left[r], 0.0f) : half);
        if (first + 7 >= RIGHT) half = x > RIGHT ? 0 : (x == RIGHT ? pack(ends.right[r], 0.0f) : half);
        both |= (half & 0xffff) << (16 * e);
    }
    return both;
}

// The same of all places, as the tensor cores take their first factor, with ends that have met. `position`: of this
// warp's first row.
template <class Halves>
__device__ __forceinline__ void collect(
    u32 (&a)[STEPS][4], const Rows& rows, const Halves& at_place, const Ends& ends, int position, int keys) {
    __syncwarp();
    const bool whole = position - REACH + 1 >= 0 && position + 15 + REACH - 1 < keys;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
#pragma unroll
        for (int part = 0; part < 4; part++) {
            const int r = part & 1, first = 16 * step + 8 * (part >> 1);
            a[step][part] = whole ? placed<true>(rows, at_place, ends, r, first, keys)
                                  : placed<false>(rows, at_place, ends, r, first, keys);
        }
    }
}

// Which end a fragment lies at, or 0 near the diagonal; its offsets go from first to last.
__device__ __forceinline__ int side_of(int first, int last) { return last <= -REACH ? -1 : (first >= REACH ? 1 : 0); }

// d = a b^T of two tiles in shared memory, to the end.
__device__ __forceinline__ void whole_product(float (&d)[32], u32 a, u32 b) {
    const u32 a_is = describe(a), b_is = describe(b);
    products_begin();
    multiply(d, a_is, b_is);
    products_sent();
    products_done();
    pin(d);
}
