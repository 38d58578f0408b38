// Sums along the diagonals of a tile of gradients of scores (64 keys x 64 queries), by one warp.
//
// Fragments of 8 x 8 on one diagonal hold the same offsets. The tensor cores add them, exactly: a product with two
// identities below one another adds two fragments that are side by side, of two neighbouring diagonals at a time. Columns
// are reversed by it, so that offsets rise along a row. The 8 rows that are left of a diagonal are shifted against one
// another in shared memory (`lines`), and added there.

constexpr int LINE = 136;              // numbers from one row to the next
constexpr int LINES_BYTES = 8 * LINE * 4;
#ifdef BFLOAT16
constexpr u32 ONE = 0x3f80;
#else
constexpr u32 ONE = 0x3c00;
#endif

struct Diagonals {
    float* lines;
    u32 reversed[2];   // identities of 8 x 8 with columns in reverse, as a thread holds them
    u32 below, above;  // which row of four fragments a thread finds: of diagonals from the main one down, and above it
    u32 later;         // 32 where that is of a later pair of columns of fragments

    __device__ __forceinline__ Diagonals(float* lines) : lines(lines) {
        const int lane = threadIdx.x & 31, row = lane & 7, second = lane >> 4, next = (lane >> 3) & 1;
        for (int i = lane; i < 8 * LINE; i += 32) lines[i] = 0.0f;
        __syncwarp();
        const int column = 7 - (lane >> 2), first = 2 * (lane & 3);
        reversed[0] = column == first ? ONE : (column == first + 1 ? ONE << 16 : 0);
        reversed[1] = __shfl_sync(0xffffffff, reversed[0], lane);  // the same, which the compiler need not know
        // Of each diagonal two fragments, the second one down and one to the right.
        below = (8 * (second + next) + row) * 128 + ((second ^ row) << 4);
        above = (8 * second + row) * 128 + ((((1 + second + next) & 1) ^ row) << 4);
        later = (1 + second + next) / 2 * 32;
    }

    // d (two fragments) += those in a[0] and a[2], and those in a[1] and a[3].
    __device__ __forceinline__ void add(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3) const {
        asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                     : FOUR("+f", d, 0) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(reversed[0]), "r"(reversed[1]));
    }
    __device__ __forceinline__ void load(u32 (&a)[4], u32 from) const {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                     : FOUR("=r", a, 0) : "r"(from) : "memory");
    }
    // Rows move by two, so that diagonals of even rows lie below one another, and those of odd rows.
    __device__ __forceinline__ void put(int diagonal, float first, float second) const {
        const int row = (threadIdx.x & 31) >> 2, pair = threadIdx.x & 3;
        *(float2*)(lines + row * LINE + 8 * (diagonal + 7) + 2 * pair + (row & 6)) = make_float2(first, second);
    }

    // Fills the lines with the sums of the tile in shared memory.
    __device__ __forceinline__ void sum(u32 tile) const {
#pragma unroll
        for (int two = 0; two < 4; two++) {  // diagonals 2 * two and the next one down; one more up, and the next one up
            float down[4] = {0.0f, 0.0f, 0.0f, 0.0f}, up[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < 4 - two; i++) {
                const bool last = i == 3 - two;  // with which the next ones end before
                u32 a[4], b[4];
                load(a, ((tile + below) ^ (32 * i)) + 2 * (two + i) * 1024);
                load(b, ((tile + above) ^ ((32 * (two + i) + later) & 96)) + 2 * i * 1024);
                add(down, a[0], a[1], a[2], last ? 0 : a[3]);
                add(up, b[0], last ? 0 : b[1], last ? 0 : b[2], last ? 0 : b[3]);
            }
            put(2 * two, down[0], down[1]);
            put(2 * two + 1, down[2], down[3]);
            put(-2 * two - 1, up[0], up[1]);
            if (two < 3) put(-2 * two - 2, up[2], up[3]);
        }
    }

    // Adds the lines to 128 numbers in memory, those of offsets from -63 on. Of a place only one warp does so, in order.
    __device__ __forceinline__ void add_to(float* memory) const {
        const int lane = threadIdx.x & 31;
        const float4* of_row = (const float4*)lines + lane;
        float4 even = of_row[0], odd = of_row[LINE / 4];
#pragma unroll
        for (int row = 2; row < 8; row++) {
            const float4 four = of_row[row * LINE / 4];
            float4& to = row & 1 ? odd : even;
            to.x += four.x;
            to.y += four.y;
            to.z += four.z;
            to.w += four.w;
        }
        float left_of = __shfl_up_sync(0xffffffff, odd.w, 1);
        if (lane == 0) left_of = 0.0f;
        asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n"
                     ::"l"(memory + 4 * lane), "f"(even.x + left_of), "f"(even.y + odd.x), "f"(even.z + odd.y),
                     "f"(even.w + odd.z) : "memory");
    }
};
