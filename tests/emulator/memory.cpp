// Shared memory, its barriers, and copies by the asynchronous engines.
//
// A copy is asked for, and arrives later: at a random time, and at the latest when nobody can go on without it. Products and
// bulk copies see shared memory through a view of its own (`Block::seen`), which what threads write reaches at a fence
// (fence.proxy.async); a fence of any thread of the block counts for all.
#include "machine.h"

namespace emulator {
u8* Block::at(u8* memory, u32 address, u32 bytes, const char* what) {
    if (address < SHARED_FROM || (u64)address + bytes > (u64)SHARED_FROM + shared_bytes)
        fail("%s: %u bytes at %lld of shared memory, of which the launch has %u", what, bytes,
             (long long)address - SHARED_FROM, shared_bytes);
    return memory + (address - SHARED_FROM);
}

u8* Block::view() {
    if (fenced) memcpy(seen, shared, shared_bytes);
    fenced = false;
    return seen;
}

void fence_async() { block().fenced = true; }

u8* shared_memory() { return block().shared; }

u32 shared_address(const void* generic) {
    const Block& of = block();
    const u64 offset = (u64)generic - (u64)of.shared;
    if (offset > of.shared_bytes) fail("an address in shared memory is asked for of what is not there");
    return SHARED_FROM + (u32)offset;
}

// Barriers. What their state is stands here; the 8 bytes in shared memory hold a mark, to see whether somebody writes there.
static const u64 MARK = 0x5ba221e2ba221e25ull;

static Barrier* find(Block& of, u32 at) {
    for (Barrier& barrier : of.barriers)
        if (barrier.at == at) return &barrier;
    return nullptr;
}

static Barrier& barrier_of(Block& of, u32 at, const char* what) {
    Barrier* barrier = find(of, at);
    if (!barrier) fail("%s: at %lld of shared memory no barrier was made", what, (long long)at - SHARED_FROM);
    if (memcmp(of.at(of.shared, at, 8, what), &MARK, 8))
        fail("%s: somebody wrote over the barrier at %u", what, at - SHARED_FROM);
    return *barrier;
}

void barrier_init(u32 at, u32 arrivals, Where where) {
    Block& of = block();
    machine.now->where = where;
    if (at % 8) fail("mbarrier.init: address %u is no multiple of 8", at);
    if (arrivals == 0 || arrivals >= 1 << 20) fail("mbarrier.init: %u arrivals", arrivals);
    memcpy(of.at(of.shared, at, 8, "mbarrier.init"), &MARK, 8);
    memcpy(of.at(of.seen, at, 8, "mbarrier.init"), &MARK, 8);
    if (find(of, at)) fail("mbarrier.init: there is a barrier at %u already", at - SHARED_FROM);
    of.barriers.push_back({at, arrivals, arrivals, 0, 0});
}

static void complete(Block& of, Barrier& barrier) {
    machine.progress++;
    if (barrier.pending > 0 || barrier.bytes != 0) return;
    barrier.pending = barrier.count;
    barrier.phase++;
    wake_polling(&of, barrier.at);
}

static void arrive_at(Block& of, u32 at, u32 arrivals, const char* what) {
    Barrier& barrier = barrier_of(of, at, what);
    if (barrier.pending < arrivals)
        fail("%s: the barrier at %u counts %u arrivals, and more come", what, at - SHARED_FROM, barrier.count);
    barrier.pending -= arrivals;
    complete(of, barrier);
}

static void bytes_arrived(Block& of, u32 at, u32 bytes, const char* what) {
    Barrier& barrier = barrier_of(of, at, what);
    barrier.bytes -= bytes;
    if (barrier.bytes < -(1 << 20)) fail("%s: the barrier at %u never expected these bytes", what, at - SHARED_FROM);
    complete(of, barrier);
}

void barrier_expect(u32 at, u32 bytes, Where where) {
    machine.now->where = where;
    Barrier& barrier = barrier_of(block(), at, "mbarrier.expect_tx");
    barrier.bytes += bytes;
    if (barrier.bytes >= 1 << 20) fail("mbarrier.expect_tx: %lld bytes", barrier.bytes);
}

void barrier_arrive(u32 at, u32 arrivals, u32 expected_bytes, Where where) {
    machine.now->where = where;
    if (expected_bytes) barrier_expect(at, expected_bytes, where);
    arrive_at(block(), at, arrivals, "mbarrier.arrive");
}

bool barrier_passed(u32 at, u32 parity, Where where) {
    machine.now->where = where;
    if (parity > 1) fail("mbarrier.try_wait.parity: parity %u", parity);
    for (int i = 0; i < 2; i++) {
        const Barrier& barrier = barrier_of(block(), at, "mbarrier.try_wait");
        if ((barrier.phase & 1) != parity) return true;
        if (i == 0) poll_fiber("mbarrier.try_wait", at, where);
    }
    return false;
}

// cp.async: by one thread, in order.
static void carry_out(Block& of, const Copy& copy) {
    u8* to = of.at(of.shared, copy.to, copy.size, "cp.async");
    if (copy.bytes) memcpy(to, (const void*)copy.from, copy.bytes);
    memset(to + copy.bytes, 0, copy.size - copy.bytes);
    machine.progress++;
}

void copy_async(u32 to, u64 from, u32 size, u32 bytes, Where where) {
    machine.now->where = where;
    if (size != 4 && size != 8 && size != 16) fail("cp.async: %u bytes", size);
    if (to % size || from % size) fail("cp.async: addresses are no multiples of %u", size);
    block().at(block().shared, to, size, "cp.async");
    memset(block().shared + (to - SHARED_FROM), 0xff, size);  // not to be read yet
    machine.now->copies.push_back({to, size, bytes < size ? bytes : size, from});
}

void copies_commit() { machine.now->copy_groups.push_back(machine.now->copies.size()); }

void copies_wait(u32 groups) {
    Fiber& self = *machine.now;
    if (self.copy_groups.size() <= groups) return;
    const size_t done = self.copy_groups.size() - groups, count = self.copy_groups[done - 1];
    for (size_t i = 0; i < count; i++) carry_out(*self.block, self.copies[i]);
    self.copies.erase(self.copies.begin(), self.copies.begin() + count);
    self.copy_groups.erase(self.copy_groups.begin(), self.copy_groups.begin() + done);
    for (size_t& end : self.copy_groups) end -= count;
}

void copies_wait_all() {
    copies_commit();
    copies_wait(0);
}

static Transfer& send(Transfer::Kind kind, Where where) {
    machine.transfers.push_back(std::make_unique<Transfer>());
    Transfer& made = *machine.transfers.back();
    made.kind = kind;
    made.number = ++machine.transfers_sent;
    made.block = machine.now->block;
    made.fiber = machine.now;
    made.where = machine.now->where = where;
    return made;
}

void arrive_after_copies(u32 barrier, Where where) {
    barrier_of(block(), barrier, "cp.async.mbarrier.arrive");
    Transfer& made = send(Transfer::ARRIVE, where);
    made.barrier = barrier;
    made.copies.swap(machine.now->copies);
    machine.now->copy_groups.clear();
}

// Bulk copies.
struct Map {  // as `cuTensorMapEncodeTiled` in launching.py writes it
    u64 mark, address;
    u32 rank, element_bytes, swizzle, box[5];
    u32 sizes[5];
    u32 unused;
    u64 strides[4];
};
static_assert(sizeof(Map) <= 128);
static const u64 MAP_MARK = 0x7e4507e4507e4507ull;

void check_map(u64 map, Where where) {
    machine.now->where = where;
    if (map % 64) fail("a tensor map must lie at a multiple of 64 bytes");
    if (((const Map*)map)->mark != MAP_MARK) fail("this is no tensor map");
}

void bulk_fetch(u32 to, u64 from, u32 bytes, u32 barrier, Where where) {
    machine.now->where = where;
    if (bytes % 16 || to % 16 || from % 16) fail("cp.async.bulk: addresses and bytes must be multiples of 16");
    barrier_of(block(), barrier, "cp.async.bulk");
    u8* target = block().at(block().shared, to, bytes, "cp.async.bulk");
    memset(target, 0xff, bytes);
    memset(block().view() + (to - SHARED_FROM), 0xff, bytes);
    Transfer& made = send(Transfer::FETCH, where);
    made.shared = to, made.global = from, made.bytes = bytes, made.barrier = barrier;
}

void bulk_store(u64 to, u32 from, u32 bytes, bool add, Where where) {
    machine.now->where = where;
    if (bytes % 16 || to % 16 || from % 16) fail("cp.async.bulk: addresses and bytes must be multiples of 16");
    block().at(block().shared, from, bytes, "cp.async.bulk");
    Transfer& made = send(Transfer::STORE, where);
    made.shared = from, made.global = to, made.bytes = bytes, made.add = add, made.group = machine.now->next_group;
    machine.now->bulk_open++;
}

static u32 box_bytes(const Map& map) {
    u32 bytes = map.element_bytes;
    for (u32 i = 0; i < map.rank; i++) bytes *= map.box[i];
    return bytes;
}

static Transfer& send_tensor(Transfer::Kind kind, u64 map, const int* coordinates, int rank, u32 shared, Where where) {
    check_map(map, where);
    const Map& of = *(const Map*)map;
    if ((u32)rank != of.rank) fail("cp.async.bulk.tensor: %d coordinates, and the map has %u", rank, of.rank);
    if (shared % 128) fail("cp.async.bulk.tensor: address %u of shared memory is no multiple of 128", shared - SHARED_FROM);
    block().at(block().shared, shared, box_bytes(of), "cp.async.bulk.tensor");
    Transfer& made = send(kind, where);
    made.shared = shared, made.bytes = box_bytes(of), made.rank = rank;
    memcpy(made.map, (const void*)map, sizeof(Map));
    memcpy(made.coordinates, coordinates, rank * sizeof(int));
    return made;
}

void tensor_fetch(u32 to, u64 map, const int* coordinates, int rank, u32 barrier, Where where) {
    machine.now->where = where;
    barrier_of(block(), barrier, "cp.async.bulk.tensor");
    Transfer& made = send_tensor(Transfer::TENSOR_FETCH, map, coordinates, rank, to, where);
    made.barrier = barrier;
    memset(block().shared + (to - SHARED_FROM), 0xff, made.bytes);
    memset(block().view() + (to - SHARED_FROM), 0xff, made.bytes);
}

void tensor_store(u64 map, const int* coordinates, int rank, u32 from, bool add, Where where) {
    Transfer& made = send_tensor(Transfer::TENSOR_STORE, map, coordinates, rank, from, where);
    made.add = add;
    if (add) fail("cp.reduce.async.bulk.tensor is not emulated");
    made.group = machine.now->next_group;
    machine.now->bulk_open++;
}

// Goes over the rows of a box: `row` gets an address in shared memory, a pointer to global memory or null, and elements.
template <class Row> static void each_piece(const Transfer& of, Row piece) {
    const Map& map = *(const Map*)of.map;
    const u32 count = of.bytes / map.element_bytes, per_piece = 16 / map.element_bytes;
    for (u32 first = 0; first < count; first += per_piece) {
        u32 left = first, inside = per_piece;
        u64 from = map.address;
        bool out = false;
        for (u32 axis = 0; axis < map.rank; axis++) {
            const long long at = (long long)of.coordinates[axis] + left % map.box[axis];
            left /= map.box[axis];
            if (axis == 0) {
                if (at < 0 || at >= map.sizes[0]) out = true;
                else inside = map.sizes[0] - at < per_piece ? (u32)(map.sizes[0] - at) : per_piece;
                if (at < 0 && at + per_piece > 0) fail("cp.async.bulk.tensor: a column before the first is not emulated");
                from += at * map.element_bytes;
            } else {
                out |= at < 0 || at >= map.sizes[axis];
                from += at * map.strides[axis - 1];
            }
        }
        u32 shared = of.shared + first * map.element_bytes;
        shared ^= (shared >> 3) & (((1u << map.swizzle) - 1) << 4);  // swizzle: 0, or 1 to 3 bits from bit 4 on
        piece(shared, out ? nullptr : (u8*)from, inside * map.element_bytes);
    }
}

static void read_source(Transfer& of) {
    Block& block = *of.block;
    const u8* view = block.view();
    of.data.resize(of.bytes);
    memcpy(of.data.data(), view + (of.shared - SHARED_FROM), of.bytes);
    of.read = true;
}

static void write_target(const Transfer& of) {
    if (of.kind == Transfer::TENSOR_STORE) {
        each_piece(of, [&](u32 shared, u8* to, u32 bytes) {
            if (to) memcpy(to, of.data.data() + (shared - of.shared), bytes);
        });
    } else if (of.add) {
        for (u32 i = 0; i < of.bytes; i += 4) *(float*)(of.global + i) += *(const float*)(of.data.data() + i);
    } else {
        memcpy((void*)of.global, of.data.data(), of.bytes);
    }
}

void run_transfer(size_t which) {
    auto& transfers = machine.transfers;
    Transfer& next = *transfers[which];
    Block& block = *next.block;
    const bool stores = next.kind == Transfer::STORE || next.kind == Transfer::TENSOR_STORE;
    if (stores && !next.read) return read_source(next);
    std::unique_ptr<Transfer> of = std::move(transfers[which]);
    transfers[which] = std::move(transfers.back());
    transfers.pop_back();
    machine.progress++;
    switch (of->kind) {
        case Transfer::FETCH:
            memcpy(block.at(block.shared, of->shared, of->bytes, "cp.async.bulk"), (const void*)of->global, of->bytes);
            memcpy(block.view() + (of->shared - SHARED_FROM), (const void*)of->global, of->bytes);
            bytes_arrived(block, of->barrier, of->bytes, "cp.async.bulk");
            break;
        case Transfer::TENSOR_FETCH: {
            u8 *own = block.shared - SHARED_FROM, *view = block.view() - SHARED_FROM;
            each_piece(*of, [&](u32 shared, const u8* from, u32 bytes) {
                for (u8* memory : {own, view}) {
                    memset(memory + shared, 0, 16);
                    if (from) memcpy(memory + shared, from, bytes);
                }
            });
            bytes_arrived(block, of->barrier, of->bytes, "cp.async.bulk.tensor");
            break;
        }
        case Transfer::ARRIVE:
            for (const Copy& copy : of->copies) carry_out(block, copy);
            arrive_at(block, of->barrier, 1, "cp.async.mbarrier.arrive");
            break;
        case Transfer::STORE:
        case Transfer::TENSOR_STORE:
            write_target(*of);
            break;
    }
}

void bulk_commit() {
    Fiber& self = *machine.now;
    self.bulk_groups.push_back(self.next_group++);
    self.bulk_open = 0;
}

void bulk_wait(u32 groups, bool read_only) {
    Fiber& self = *machine.now;
    if (self.bulk_groups.size() <= groups) return;
    const u64 last = self.bulk_groups[self.bulk_groups.size() - groups - 1];
    auto& transfers = machine.transfers;
    for (bool again = true; again;) {
        again = false;
        for (size_t i = 0; i < transfers.size(); i++) {
            Transfer& of = *transfers[i];
            if (of.fiber != &self || of.group == 0 || of.group > last || (read_only && of.read)) continue;
            run_transfer(i);
            again = true;
            break;
        }
    }
    if (read_only) return;
    while (!self.bulk_groups.empty() && self.bulk_groups.front() <= last) self.bulk_groups.pop_front();
}

void finish_thread(Fiber& fiber) {
    fiber.where = {};
    if (!fiber.copies.empty()) fail("a thread ends while its cp.async are on their way");
    for (const Product& product : fiber.warp->products)
        if (product.lanes >> fiber.lane & 1) fail("a thread ends while products are on their way");
}

void finish_block(Block& block) {
    for (auto& transfer : machine.transfers)
        if (transfer->block == &block && !transfer->read) {
            machine.now->where = transfer->where;
            fail("the block ends while a copy from or to its shared memory is on its way");
        }
    for (u32 i = block.shared_bytes; i % 4096; i++)
        if (block.shared[i] != 0xff) fail("somebody wrote %u bytes behind the end of shared memory", i - block.shared_bytes);
    check_products(block);
}
}  // namespace emulator
