// The emulated GPU's own state: threads as fibers, warps, blocks, copies on their way. One host thread runs them all.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#define EMULATOR_ITSELF
#include "device.h"

namespace emulator {
constexpr u32 SHARED_FROM = 1024;  // the first kilobyte of shared memory is the system's, as on Hopper
constexpr u32 ALL_LANES = 0xffffffff;

struct Block;
struct Warp;

struct Copy {  // of cp.async
    u32 to, size, bytes;
    u64 from;
};

struct Fiber {
    void* stack_pointer = nullptr;
    Block* block = nullptr;
    Warp* warp = nullptr;
    u32 index = 0, lane = 0;
    bool finished = false;
    const char* waits_for = nullptr;  // null: it runs, or could
    Where where = {};
    u64 waited_at = 0;                // which barrier or memory it polls
    bool polls = false;
    const void* polled = nullptr;     // the last address that was polled and found as it was
    u32 polled_value = 0;
    u64 polled_progress = 0;
    std::vector<Copy> copies;         // not arrived
    std::vector<size_t> copy_groups;  // where in `copies` each group ends
    int bulk_open = 0;                // bulk stores since the last commit
    std::deque<u64> bulk_groups;
    u64 next_group = 1;
};

// Where lanes of a warp meet; the last to come acts for all.
typedef void (*Act)(Warp& warp, void** of_lanes, u32 lanes);
struct Meeting {
    const char* what;
    Where where;
    u32 mask, here;
    void* of_lanes[32];
    Act act;
};

struct Chain {  // accumulators of products that follow one another, of one warp's 16 rows
    float* at[32] = {};
    int n = 0, open = 0;
    float values[16][256];
};
struct Product {
    int n;
    bool bf16, from_registers, adds, a_columns, b_columns;
    int a_sign, b_sign;
    u64 a, b;
    u32 registers[32][4];
    u32 lanes = 0;
    bool done = false;
    Where where;
    std::shared_ptr<Chain> chain;
};

struct Warp {
    Block* block = nullptr;
    u32 first = 0, alive = 0;  // the index of its first thread; lanes that have not finished
    Fiber* lanes[32] = {};
    std::vector<Meeting> meetings;
    std::deque<Product> products;
    size_t before = 0;  // products that are no longer in the list
    size_t issued[32] = {};
    std::deque<size_t> groups;  // where each ends
    bool fenced = false;
    u64 trace = 0;  // of what the four warps of a group must do alike
    int level = 0;  // in which queue its lanes wait for their turn
};

struct Barrier {
    u32 at;
    u32 count, pending;
    long long bytes;
    u32 phase;
};

struct NamedBarrier {
    u32 expected = 0, arrived = 0;
    std::vector<Fiber*> waiting;
};

struct Block {
    uint3 index;
    u8 *shared = nullptr, *seen = nullptr;  // the second: as products and bulk copies see it
    u32 shared_bytes = 0;
    bool fenced = false;  // the view is to be renewed
    u32 alive = 0, of = 0;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<Barrier> barriers;
    NamedBarrier named[16];

    u8* view();  // shared memory as products and bulk copies read it
    u8* at(u8* memory, u32 address, u32 bytes, const char* what);
};

struct Transfer {  // on its way
    enum Kind { FETCH, TENSOR_FETCH, STORE, TENSOR_STORE, ARRIVE } kind;
    Block* block;
    Fiber* fiber;
    u32 shared, bytes, barrier;
    u64 global;
    bool add = false;
    int coordinates[5], rank = 0;
    u8 map[128];
    std::vector<Copy> copies;
    u64 number = 0, group = 0;  // the second: of a store
    bool read = false;  // of a store: the source is read, into `data`
    std::vector<u8> data;
    Where where;
};

constexpr int LEVELS = 8;
struct Machine {
    std::vector<Fiber*> ready[LEVELS], polling;  // who may run, the first level before all others
    bool levels = false;                         // whether warps have levels of their own
    std::vector<std::unique_ptr<Transfer>> transfers;
    std::vector<std::unique_ptr<Block>> blocks;
    Fiber* now = nullptr;
    u64 random = 1, progress = 0;
    u64 eagerness = 8;  // of how many switches one is followed by a copy that arrives
    enum Order { ANY, NEWEST_FIRST, STORES_LAST } transfer_order = ANY;
    u64 transfers_sent = 0;
    u32 alive = 0;
};
extern Machine machine;

u64 draw();                           // a random number
inline Block& block() { return *machine.now->block; }
inline Warp& warp() { return *machine.now->warp; }
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
void block_fiber(const char* what, Where where);  // the running fiber, until somebody makes it ready
void poll_fiber(const char* what, u64 at, Where where);
void make_ready(Fiber* fiber);
void wake_polling(Block* block, u64 at);
void meet(const char* what, u32 mask, void* mine, Where where, Act act);
void leave_meetings(Warp& warp);      // after a lane has finished
void leave_named_barriers(Block& block);
void run_transfer(size_t which);
void finish_block(Block& block);
void finish_thread(Fiber& fiber);
void check_products(Block& block);
}  // namespace emulator
