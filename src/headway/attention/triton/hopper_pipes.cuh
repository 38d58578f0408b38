// Loading by the tensor memory accelerator, and barriers in shared memory that count arrivals and bytes.

struct alignas(64) TensorMap {  // of a (B, H, L, D) tensor, read in tiles of 64 x 64, zero beyond its ends
    u64 opaque[16];
};

__device__ __forceinline__ void barrier_init(u32 at, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(at), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(u32 at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(at) : "memory");
}
__device__ __forceinline__ void arrive_and_expect(u32 at, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive_after_loads(u32 at) {  // those of cp.async
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(at) : "memory");
}
__device__ __forceinline__ bool has_come(u32 at, int parity) {
    u32 done;
    asm volatile(
        "{\n.reg .pred done;\nmbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}\n"
        : "=r"(done) : "r"(at), "r"(parity) : "memory");
    return done;
}
__device__ __forceinline__ void wait(u32 at, int parity) {
    while (!has_come(at, parity)) {
    }
}

__device__ __forceinline__ void expect(const TensorMap& map) {  // that it will be used
    asm volatile("prefetch.tensormap [%0];\n" ::"l"((u64)&map) : "memory");
}
__device__ __forceinline__ void fetch_tile(
    u32 to, const TensorMap& map, int row, int head, int b, u32 barrier, int column = 0) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];\n"
        ::"r"(to), "l"((u64)&map), "r"(column), "r"(row), "r"(head), "r"(b), "r"(barrier) : "memory");
}
__device__ __forceinline__ void fetch(u32 to, const void* from, int bytes, u32 barrier) {  // side by side, in pieces of 16
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
// What generic writes put into shared memory becomes visible to products and bulk copies.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }
__device__ __forceinline__ void barriers_made() {
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    publish();
}

// Which of `count` places is next, and how often all of them were used.
template <int count>
struct Ring {
    int at = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++at == count) at = 0, parity ^= 1;
    }
};

// The compiler cannot know that all threads of a warp have the same number; addresses of products must be so.
__device__ __forceinline__ u32 uniform(u32 number) { return __shfl_sync(0xffffffff, number, 0); }
