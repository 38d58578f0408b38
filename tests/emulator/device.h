// What a CUDA kernel sees of the emulated GPU: CUDA's keywords, built-in variables and functions. It includes no header of
// the host's, whose names could meet those of a kernel. The functions are in the .cpp files beside it.
#pragma once

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }

extern uint3 threadIdx, blockIdx;  // of the thread that runs
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

#define EMULATOR_HERE int line = __builtin_LINE()

namespace emulator {
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
struct Where {
    int line;
    const void* place;  // in the machine code
};
const void* here();  // where it is called

// Warps and blocks.
enum Shuffle { FROM_LANE, FROM_UP, FROM_DOWN, FROM_XOR };
u64 shuffle(u32 mask, u64 bits, Shuffle how, int by, int width, Where where);
u32 ballot(u32 mask, bool vote, Where where);
void sync_warp(u32 mask, const char* what, Where where);
void sync_block(Where where);
void named_barrier(u32 which, u32 threads, bool waits, Where where);
void touched(const void* global);  // by an atomic operation, which another thread may wait for
u32 load_polled(const void* global, Where where);
void set_registers(u32 count, Where where);

// Shared memory.
u8* shared_memory();
u32 shared_address(const void* generic);
void barrier_init(u32 at, u32 arrivals, Where where);
void barrier_arrive(u32 at, u32 arrivals, u32 expected_bytes, Where where);
void barrier_expect(u32 at, u32 bytes, Where where);
bool barrier_passed(u32 at, u32 parity, Where where);

// Copies. Tensor maps are the emulator's own (`cuTensorMapEncodeTiled` in launching.py writes them).
void copy_async(u32 to, u64 from, u32 size, u32 bytes, Where where);
void copies_commit();
void copies_wait(u32 groups);
void copies_wait_all();
void arrive_after_copies(u32 barrier, Where where);
void check_map(u64 map, Where where);
void tensor_fetch(u32 to, u64 map, const int* coordinates, int rank, u32 barrier, Where where);
void tensor_store(u64 map, const int* coordinates, int rank, u32 from, bool add, Where where);
void bulk_fetch(u32 to, u64 from, u32 bytes, u32 barrier, Where where);
void bulk_store(u64 to, u32 from, u32 bytes, bool add, Where where);
void bulk_commit();
void bulk_wait(u32 groups, bool read_only);
void fence_async();  // generic writes become visible to products and bulk copies

// Products.
void multiply(int n, bool bf16, float* const* d, u64 a, u64 b, bool adds, int a_sign, int b_sign, bool a_columns,
              bool b_columns, Where where);
void multiply(int n, bool bf16, float* const* d, const u32 (&a)[4], u64 b, bool adds, int a_sign, int b_sign,
              bool b_columns, Where where);
void products_fence(Where where);
void products_commit(Where where);
void products_wait(u32 groups, Where where);
void multiply_sync(bool bf16, float* const* d, const u32 (&a)[4], const u32 (&b)[2], const float (&c)[4], Where where);
void load_matrices(u32* const* to, int count, u32 from, bool transposed, Where where);
void store_matrices(u32 to, const u32* from, int count, bool transposed, Where where);

// Numbers.
u16 to_half(float number);
float from_half(u16 half);
u16 to_bfloat16(float number);
float exp2_approximate(float number);
template <class To, class From> inline To bits_of(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof(To));
    return to;
}
inline u32 three_bits(u32 a, u32 b, u32 c, u32 table) {  // lop3
    u32 made = 0;
    for (int i = 0; i < 8; i++)
        if (table >> i & 1) made |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return made;
}
inline u32 pack_half(float high, float low) { return (u32)to_half(high) << 16 | to_half(low); }
inline u32 pack_bfloat16(float high, float low) { return (u32)to_bfloat16(high) << 16 | to_bfloat16(low); }
template <class T> inline u64 wide(T value) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    u64 bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    return bits;
}
template <class T> inline T narrow(u64 bits) {
    T value;
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}
template <class T> inline void add_in_memory(u64 at, T number) {
    *(T*)at += number;
    touched((const void*)at);
}

// Calls a kernel with pointers to its arguments, as the driver's launch has them.
template <unsigned... I> struct Sequence {};
template <class... A, unsigned... I> inline void call(void (*kernel)(A...), void** given, Sequence<I...>) {
    kernel(*(A*)given[I]...);
}
template <class... A> inline void call(void (*kernel)(A...), void** given) {
    call(kernel, given, Sequence<__integer_pack(sizeof...(A))...>());
}
template <class... A> inline int sizes(void (*)(A...), u64* to) {
    ((*to++ = sizeof(A)), ...);
    return sizeof...(A);
}
}  // namespace emulator

inline unsigned long __cvta_generic_to_shared(const void* generic) { return emulator::shared_address(generic); }

template <class T> inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMULATOR_HERE) {
    return emulator::narrow<T>(emulator::shuffle(mask, emulator::wide(value), emulator::FROM_LANE, lane, width, {line, emulator::here()}));
}
template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATOR_HERE) {
    return emulator::narrow<T>(emulator::shuffle(mask, emulator::wide(value), emulator::FROM_UP, by, width, {line, emulator::here()}));
}
template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, EMULATOR_HERE) {
    return emulator::narrow<T>(emulator::shuffle(mask, emulator::wide(value), emulator::FROM_DOWN, by, width, {line, emulator::here()}));
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32, EMULATOR_HERE) {
    return emulator::narrow<T>(emulator::shuffle(mask, emulator::wide(value), emulator::FROM_XOR, by, width, {line, emulator::here()}));
}
inline unsigned __ballot_sync(unsigned mask, bool vote, EMULATOR_HERE) { return emulator::ballot(mask, vote, {line, emulator::here()}); }
inline int __any_sync(unsigned mask, bool vote, EMULATOR_HERE) { return emulator::ballot(mask, vote, {line, emulator::here()}) != 0; }
inline int __all_sync(unsigned mask, bool vote, EMULATOR_HERE) { return emulator::ballot(mask, !vote, {line, emulator::here()}) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffff, EMULATOR_HERE) { emulator::sync_warp(mask, "__syncwarp", {line, emulator::here()}); }
inline void __syncthreads(EMULATOR_HERE) { emulator::sync_block({line, emulator::here()}); }
inline void __threadfence() {}
inline void __threadfence_block() {}
template <class T> inline T __ldg(const T* from) { return *from; }
template <class T> inline T atomicAdd(T* at, T number) {
    const T before = *at;
    emulator::add_in_memory((unsigned long long)at, number);
    return before;
}

inline float __int_as_float(int bits) { return emulator::bits_of<float>(bits); }
inline float __uint_as_float(unsigned bits) { return emulator::bits_of<float>(bits); }
inline int __float_as_int(float number) { return emulator::bits_of<int>(number); }
inline unsigned __float_as_uint(float number) { return emulator::bits_of<unsigned>(number); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(bits) : 32; }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)((((unsigned long long)high << 32) | low) >> (by & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((((unsigned long long)high << 32) | low) << (by & 31)) >> 32);
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const unsigned long long all = ((unsigned long long)high << 32) | low;
    unsigned made = 0;
    for (int i = 0; i < 4; i++) made |= (unsigned)(all >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
    return made;
}

#ifndef EMULATOR_ITSELF  // which has the host's headers
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float fmaxf(float a, float b) { return a > b || b != b ? a : b; }
inline float fminf(float a, float b) { return a < b || b != b ? a : b; }
inline float fabsf(float a) { return __builtin_fabsf(a); }
inline float log2f(float a) { return __builtin_log2f(a); }
inline float exp2f(float a) { return __builtin_exp2f(a); }
inline float ceilf(float a) { return __builtin_ceilf(a); }
inline float floorf(float a) { return __builtin_floorf(a); }
inline float sqrtf(float a) { return __builtin_sqrtf(a); }
inline float rsqrtf(float a) { return 1.0f / __builtin_sqrtf(a); }

#define EMULATOR_LARGER(type)                                         \
    inline type min(type a, type b) { return b < a ? b : a; }         \
    inline type max(type a, type b) { return a < b ? b : a; }
EMULATOR_LARGER(int)
EMULATOR_LARGER(unsigned)
EMULATOR_LARGER(long long)
EMULATOR_LARGER(unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
inline long long min(long long a, int b) { return min(a, (long long)b); }
inline long long min(int a, long long b) { return min((long long)a, b); }
inline long long max(long long a, int b) { return max(a, (long long)b); }
inline long long max(int a, long long b) { return max((long long)a, b); }
#endif
