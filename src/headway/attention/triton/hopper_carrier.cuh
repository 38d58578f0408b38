// The carrier of the backward kernel: one thread that takes the tiles of gradients of q, which the groups sum in slots of
// shared memory, to memory, each when it is its block's turn, and for whoever comes last brings what the others summed.

struct Carrier {
    u32 base;       // of shared memory
    int* modes;
    Walk walk;      // begun
    float* sums_q;
    u32* counters;  // how many have added to each tile, where several blocks do
    long long place;
    int ways;
    u32* pending = nullptr;  // the counter of a copy on its way
#ifdef DOCUMENTS
    long long last = -1, last_but_one = -1;  // tiles that were copied
#endif

    __device__ __forceinline__ void copied() {  // all copies have arrived, and the others may know
        asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
        if (!pending) return;
        asm volatile("fence.proxy.async.global;\n" ::: "memory");
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;\n" ::"l"(pending) : "memory");
        pending = nullptr;
    }
    __device__ __forceinline__ void my_turn(const Carry& carry) {
        if (walk.teams == 1) {
            // The copy of this tile's earlier sum must have arrived. Two others may be on their way only where at least
            // two followed it: not in the last block of keys, which copies nothing, nor where a round of tiles is short.
#ifdef DOCUMENTS
            const bool whole = carry.tile == last || carry.tile == last_but_one;
#else
            const bool whole = carry.rank + 1 == carry.seen || walk.tiles - walk.first < 6;
#endif
            if (whole)
                asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
            else
                asm volatile("cp.async.bulk.wait_group 2;\n" ::: "memory");
            asm volatile("fence.proxy.async.global;\n" ::: "memory");
            return;
        }
        u32 count;
        for (;;) {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(count) : "l"(counters + carry.tile) : "memory");
            if (count == carry.expected) break;
            copied();
        }
        asm volatile("fence.proxy.async.global;\n" ::: "memory");
    }
    // The slot is free: what was copied from it has been read, and the groups are done with it.
    __device__ __forceinline__ void prepare(int t, const Carry& carry) {
        const u32 at = slot_of(t), ready = barrier_at(base, SLOT_READY + at);
        modes[at] = carry.rank + 1 < carry.seen ? EMPTY : (carry.seen > 1 ? SUMMED : ALONE);
        if (modes[at] == SUMMED) {
            my_turn(carry);
            arrive_and_expect(ready, SLOT_BYTES);
            fetch(base + AT_SLOTS + at * SLOT_BYTES, sums_q + carry.tile * (SLOT_BYTES / 4), SLOT_BYTES, ready);
        } else {
            arrive(ready);
        }
    }
    // What the groups put into the slot, unless they were the last, who have given it to dq.
    __device__ __forceinline__ void take(int t, const Carry& carry) {
        if (carry.rank + 1 == carry.seen) {
            if (walk.teams == 1) return;
            if (carry.seen == 1) my_turn(carry);
            if (pending) copied();
            asm volatile("red.release.gpu.global.add.u32 [%0], %1;\n"
                         ::"l"(counters + carry.tile), "r"(1 + walk.key_blocks - carry.seen) : "memory");
            return;
        }
        const u32 here = base + AT_SLOTS + slot_of(t) * SLOT_BYTES;
        my_turn(carry);
        float* memory = sums_q + carry.tile * (SLOT_BYTES / 4);
        if (pending) copied();
        if (carry.rank == 0)
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
                         ::"l"(memory), "r"(here), "n"(SLOT_BYTES) : "memory");
        else
            asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
                         ::"l"(memory), "r"(here), "n"(SLOT_BYTES) : "memory");
        asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
#ifdef DOCUMENTS
        last_but_one = last;
        last = carry.tile;
#endif
        if (walk.teams > 1) pending = counters + carry.tile;
    }
    __device__ __forceinline__ void run() {
        int t = 0;
        Carry now = walk.carry(place, ways), then = now;
        bool prepared = false, more;
        do {
            if (SLOTS == 1) asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
            if (!prepared) prepare(t, now);
            more = walk.next();
            prepared = false;
            if (more) {
                then = walk.carry(place, ways);
                // Ahead, unless the sum that is fetched is the one that this step makes.
                if (SLOTS > 1 && ((walk.teams == 1 && then.tile != now.tile) || then.rank + 1 < then.seen)) {
                    asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
                    prepare(t + 1, then);
                    prepared = true;
                }
            }
            const u32 done = barrier_at(base, SLOT_DONE + slot_of(t));
            if (!has_come(done, parity_of_slot(t))) {
                if (pending) copied();
                wait(done, parity_of_slot(t));
            }
            take(t, now);
            now = then;
            t++;
        } while (more);
        copied();
    }
};
