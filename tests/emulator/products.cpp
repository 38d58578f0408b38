// Products of the tensor cores, and moving fragments of 8 x 8 between registers and shared memory.
//
// A wgmma is four products of 16 rows, one for each warp of the group, which need not come at the same time. Its registers
// hold NaN until a wait; shared memory is read when a group is committed, or as late as that wait, as chance has it.
#include "machine.h"

#include <cmath>

namespace emulator {
u16 to_half(float number) {  // nearest, ties to even
    const u32 bits = bits_of<u32>(number), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return 0x7fff;
    if (magnitude >= 0x477ff000) return (u16)(sign | 0x7c00);
    if (magnitude < 0x38800000) {  // below the smallest normal number
        const float scaled = __builtin_fabsf(number) * 16777216.0f;  // 2^24
        return (u16)(sign | (u32)__builtin_rintf(scaled));
    }
    const u32 odd = magnitude >> 13 & 1;
    return (u16)(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}
float from_half(u16 half) {
    const u32 sign = (u32)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31) return bits_of<float>(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) {
        const float number = (float)fraction * 0x1p-24f;
        return sign ? -number : number;
    }
    return bits_of<float>(sign | (exponent + 112) << 23 | fraction << 13);
}
u16 to_bfloat16(float number) {
    const u32 bits = bits_of<u32>(number);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float exp2_approximate(float number) {  // subnormal numbers are zero
    const float made = __builtin_exp2f(number);
    return made < 0x1p-126f ? 0.0f : made;
}

static const float* half_table() {
    static std::vector<float> table;
    if (table.empty())
        for (u32 i = 0; i < 65536; i++) table.push_back(from_half((u16)i));
    return table.data();
}
static float number_of(u16 bits, bool bf16) {
    static const float* halves = half_table();
    return bf16 ? bits_of<float>((u32)bits << 16) : halves[bits];
}

namespace {
// Where an operand of a wgmma lies, as its descriptor says. An element (i, k) has its k side by side, or with `columns` its i.
struct Operand {
    u32 start, leading, stride, bits;  // bytes; address bits that the swizzle changes
    bool columns;
    Operand(u64 description, bool columns) : columns(columns) {
        start = (u32)(description & 0x3fff) << 4;
        leading = (u32)(description >> 16 & 0x3fff) << 4;
        stride = (u32)(description >> 32 & 0x3fff) << 4;
        const u32 mode = description >> 62, offset = description >> 49 & 7;
        if (offset) fail("wgmma: a base offset of %u is not emulated", offset);
        bits = mode == 0 ? 0 : 4 - mode;  // 1: 128 bytes, 2: 64, 3: 32
    }
    u32 address(u32 i, u32 k) const {
        u32 at = start;
        if (!columns) {
            if (bits) at += (i & 7) * (16u << bits) + (i >> 3) * stride + k * 2;
            else at += (i & 7) * 16 + (i >> 3) * stride + (k & 7) * 2 + (k >> 3) * leading;
        } else {
            const u32 wide = 8u << bits;  // of one atom
            if (bits) at += i % wide * 2 + i / wide * leading + (k & 7) * (16u << bits) + (k >> 3) * stride;
            else at += (i & 7) * 2 + (i >> 3) * stride + (k & 7) * 16 + (k >> 3) * leading;
        }
        at &= 0x3ffff;
        return at ^ ((at >> 3) & (((1u << bits) - 1) << 4));
    }
};
const float POISON = bits_of<float>(0x7fc0dead);
}  // namespace

static void compute(Warp& warp, Product& product) {
    Block& block = *warp.block;
    machine.now->where = product.where;
    u8* view = block.view();
    const int n = product.n;
    static float a[16][16], b[16][256];
    // Of an operand, `count` from `first` on: eight numbers side by side at a time, which a swizzle keeps together.
    auto read = [&](const Operand& operand, u32 first, u32 count, auto put) {
        const u32 rows = operand.columns ? 16 : count, eights = operand.columns ? count / 8 : 2;
        for (u32 row = 0; row < rows; row++)
            for (u32 eight = 0; eight < eights; eight++) {
                const u32 i = first + (operand.columns ? 8 * eight : row), k = operand.columns ? row : 8 * eight;
                u16 bits[8];
                memcpy(bits, block.at(view, operand.address(i, k), 16, "wgmma"), 16);
                for (u32 e = 0; e < 8; e++)
                    put(i - first + (operand.columns ? e : 0), k + (operand.columns ? 0 : e), number_of(bits[e], product.bf16));
            }
    };
    if (product.from_registers) {
        for (int lane = 0; lane < 32; lane++)
            for (int part = 0; part < 4; part++) {
                const u32 both = product.registers[lane][part];
                const int row = lane / 4 + 8 * (part & 1), column = 2 * (lane & 3) + 8 * (part >> 1);
                a[row][column] = number_of((u16)both, product.bf16);
                a[row][column + 1] = number_of((u16)(both >> 16), product.bf16);
            }
    } else {
        read(Operand(product.a, product.a_columns), 16 * (warp.first / 32 % 4), 16,
             [&](u32 i, u32 k, float number) { a[i][k] = number; });
    }
    read(Operand(product.b, product.b_columns), 0, (u32)n, [&](u32 j, u32 k, float number) { b[k][j] = number; });
    const float sign = (float)(product.a_sign * product.b_sign);
    for (int i = 0; i < 16; i++) {
        float* to = product.chain->values[i];
        if (!product.adds)
            for (int j = 0; j < n; j++) to[j] = 0.0f;
        for (int k = 0; k < 16; k++) {
            const float factor = sign * a[i][k];
            for (int j = 0; j < n; j++) to[j] += factor * b[k][j];
        }
    }
    product.done = true;
}

static int row_of(int lane, int i) { return lane / 4 + 8 * (i >> 1 & 1); }
static int column_of(int lane, int i) { return 8 * (i >> 2) + 2 * (lane & 3) + (i & 1); }

static void issue(const Product& like, float* const* d, const u32* registers) {
    Fiber& self = *machine.now;
    Warp& warp = *self.warp;
    const u32 lane = self.lane;
    self.where = like.where;
    if (!warp.fenced) fail("wgmma: there was no wgmma.fence since the last wait");
    for (int i = 1; i < like.n / 2; i++)
        if (d[i] != d[0] + i) fail("wgmma: accumulators that do not lie side by side are not emulated");
    const size_t which = warp.issued[lane]++ - warp.before;
    const bool first = which == warp.products.size();
    if (first) {
        warp.products.push_back(like);
        warp.trace = (warp.trace ^ (like.b + like.n + (like.adds ? 7919 : 0))) * 0x9E3779B97F4A7C15ull;
    }
    Product& product = warp.products[which];
    if (product.n != like.n || product.bf16 != like.bf16 || product.adds != like.adds || product.b != like.b ||
        product.from_registers != like.from_registers || product.a != like.a || product.a_columns != like.a_columns ||
        product.b_columns != like.b_columns)
        fail("wgmma: lanes of a warp differ in what they multiply");
    product.lanes |= 1u << lane;
    std::shared_ptr<Chain> chain;
    for (size_t i = 0; i < which && !chain; i++)
        if (warp.products[i].chain->at[lane] == d[0]) chain = warp.products[i].chain;
    if (chain && chain->n != like.n) fail("wgmma: products of %d and of %d columns on the same registers", chain->n, like.n);
    if (first) product.chain = chain ? chain : std::make_shared<Chain>();
    if (first) product.chain->n = like.n, product.chain->open++;
    if (chain && chain != product.chain) fail("wgmma: lanes of a warp differ in the registers they use");
    if (!chain) {
        product.chain->at[lane] = d[0];
        if (like.adds)
            for (int i = 0; i < like.n / 2; i++)
                product.chain->values[row_of(lane, i)][column_of(lane, i)] = d[0][i];
    }
    if (registers) memcpy(product.registers[lane], registers, 16);
    for (int i = 0; i < like.n / 2; i++) d[0][i] = POISON;
}

static void check_size(int n) {
    if (n < 8 || n > 256 || n % 8) fail("wgmma: %d columns", n);
}

void multiply(int n, bool bf16, float* const* d, u64 a, u64 b, bool adds, int a_sign, int b_sign, bool a_columns,
              bool b_columns, Where where) {
    check_size(n);
    Product like = {n, bf16, false, adds, a_columns, b_columns, a_sign, b_sign, a, b};
    like.where = where;
    issue(like, d, nullptr);
}
void multiply(int n, bool bf16, float* const* d, const u32 (&a)[4], u64 b, bool adds, int a_sign, int b_sign,
              bool b_columns, Where where) {
    check_size(n);
    Product like = {n, bf16, true, adds, false, b_columns, a_sign, b_sign, 0, b};
    like.where = where;
    issue(like, d, a);
}

static void whole_warp(Warp& warp, const char* what) {
    if (warp.alive != ALL_LANES) fail("%s: some lanes of the warp have ended", what);
    for (int lane = 1; lane < 32; lane++)
        if (warp.issued[lane] != warp.issued[0]) fail("%s: lanes of the warp have sent different numbers of products", what);
}

void products_fence(Where where) {
    meet("wgmma.fence", ALL_LANES, nullptr, where, [](Warp& warp, void**, u32) {
        whole_warp(warp, "wgmma.fence");
        warp.fenced = true;
    });
}

void products_commit(Where where) {
    meet("wgmma.commit_group", ALL_LANES, nullptr, where, [](Warp& warp, void**, u32) {
        whole_warp(warp, "wgmma.commit_group");
        warp.groups.push_back(warp.issued[0]);
        if (draw() % 2)
            for (Product& product : warp.products)
                if (!product.done) compute(warp, product);
    });
}

void products_wait(u32 groups, Where where) {
    u32 mine = groups;
    meet("wgmma.wait_group", ALL_LANES, &mine, where, [](Warp& warp, void** of_lanes, u32) {
        whole_warp(warp, "wgmma.wait_group");
        warp.fenced = false;
        const u32 groups = *(u32*)of_lanes[0];
        while (warp.groups.size() > groups) {
            const size_t end = warp.groups.front();
            warp.groups.pop_front();
            for (; warp.before < end; warp.before++) {
                Product& product = warp.products.front();
                if (!product.done) compute(warp, product);
                Chain& chain = *product.chain;
                if (--chain.open == 0)
                    for (int lane = 0; lane < 32; lane++)
                        for (int i = 0; i < chain.n / 2; i++)
                            chain.at[lane][i] = chain.values[row_of(lane, i)][column_of(lane, i)];
                warp.products.pop_front();
            }
        }
    });
}

void check_products(Block& block) {
    for (size_t i = 0; i + 3 < block.warps.size(); i += 4)
        for (size_t warp = i + 1; warp < i + 4; warp++)
            if (block.warps[warp].trace != block.warps[i].trace)
                fail("wgmma or setmaxnreg: warps %zu and %zu of one group of four did not do the same", i, warp);
}

// mma.sync of 16 x 8 x 16.
namespace {
struct Small {
    bool bf16;
    u32 a[4], b[2];
    float c[4], d[4];
};
struct Fragments {
    u32 address, numbers[4];
    int count;
    bool transposed;
};
}  // namespace

void multiply_sync(bool bf16, float* const* d, const u32 (&a)[4], const u32 (&b)[2], const float (&c)[4], Where where) {
    Small mine = {bf16, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {c[0], c[1], c[2], c[3]}, {}};
    meet("mma.sync", ALL_LANES, &mine, where, [](Warp& warp, void** of_lanes, u32) {
        whole_warp(warp, "mma.sync");
        float a[16][16], b[16][8];
        const bool bf16 = ((Small*)of_lanes[0])->bf16;
        for (int lane = 0; lane < 32; lane++) {
            const Small& of = *(Small*)of_lanes[lane];
            for (int e = 0; e < 2; e++) {
                for (int part = 0; part < 4; part++)
                    a[lane / 4 + 8 * (part & 1)][2 * (lane & 3) + 8 * (part >> 1) + e] =
                        number_of((u16)(of.a[part] >> (16 * e)), bf16);
                for (int part = 0; part < 2; part++)
                    b[2 * (lane & 3) + 8 * part + e][lane / 4] = number_of((u16)(of.b[part] >> (16 * e)), bf16);
            }
        }
        for (int lane = 0; lane < 32; lane++) {
            Small& of = *(Small*)of_lanes[lane];
            for (int i = 0; i < 4; i++) {
                float sum = of.c[i];
                for (int k = 0; k < 16; k++) sum += a[row_of(lane, i)][k] * b[k][2 * (lane & 3) + (i & 1)];
                of.d[i] = sum;
            }
        }
    });
    for (int i = 0; i < 4; i++) *d[i] = mine.d[i];
}

// Lanes 8 * m to 8 * m + 7 give the rows of fragment m; of each fragment a lane has two numbers side by side.
void load_matrices(u32* const* to, int count, u32 from, bool transposed, Where where) {
    Fragments mine = {from, {}, count, transposed};
    meet("ldmatrix", ALL_LANES, &mine, where, [](Warp& warp, void** of_lanes, u32) {
        Block& block = *warp.block;
        for (int m = 0; m < ((Fragments*)of_lanes[0])->count; m++) {
            u16 rows[8][8];
            for (int row = 0; row < 8; row++) {
                const u32 address = ((Fragments*)of_lanes[8 * m + row])->address;
                if (address % 16) fail("ldmatrix: address %u is no multiple of 16", address);
                memcpy(rows[row], block.at(block.shared, address, 16, "ldmatrix"), 16);
            }
            for (int lane = 0; lane < 32; lane++) {
                Fragments& of = *(Fragments*)of_lanes[lane];
                const int i = lane / 4, j = 2 * (lane & 3);
                of.numbers[m] = of.transposed ? rows[j][i] | (u32)rows[j + 1][i] << 16 : rows[i][j] | (u32)rows[i][j + 1] << 16;
            }
        }
    });
    for (int m = 0; m < count; m++) *to[m] = mine.numbers[m];
}

void store_matrices(u32 to, const u32* from, int count, bool transposed, Where where) {
    Fragments mine = {to, {}, count, transposed};
    memcpy(mine.numbers, from, 4 * count);
    meet("stmatrix", ALL_LANES, &mine, where, [](Warp& warp, void** of_lanes, u32) {
        Block& block = *warp.block;
        for (int m = 0; m < ((Fragments*)of_lanes[0])->count; m++) {
            u16 rows[8][8];
            for (int lane = 0; lane < 32; lane++) {
                const Fragments& of = *(Fragments*)of_lanes[lane];
                const int i = lane / 4, j = 2 * (lane & 3);
                (of.transposed ? rows[j][i] : rows[i][j]) = (u16)of.numbers[m];
                (of.transposed ? rows[j + 1][i] : rows[i][j + 1]) = (u16)(of.numbers[m] >> 16);
            }
            for (int row = 0; row < 8; row++) {
                const u32 address = ((Fragments*)of_lanes[8 * m + row])->address;
                if (address % 16) fail("stmatrix: address %u is no multiple of 16", address);
                memcpy(block.at(block.shared, address, 16, "stmatrix"), rows[row], 16);
            }
        }
    });
}
}  // namespace emulator
