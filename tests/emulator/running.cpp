// Fibers, the order in which they run, where they meet, and launches.
#include "machine.h"

#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {
Machine machine;

namespace {
constexpr size_t STACK_BYTES = 128 * 1024, PAGE = 4096;
std::vector<u8*> free_stacks;
std::vector<u8*> stacks_in_use;
void* launcher;  // the launching thread's stack pointer
void (*entry)(void**);
void** arguments;
std::string message;
u64 fault;
sigjmp_buf after_fault;

struct Guarded {
    u8 *memory, *data;
    size_t bytes, room;
    const u8* original;
};
std::vector<Guarded> guarded;

u8* take_stack() {
    if (free_stacks.empty()) {
        void* made = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) fail("no memory for the stack of a thread");
        mprotect(made, PAGE, PROT_NONE);
        free_stacks.push_back((u8*)made);
    }
    u8* stack = free_stacks.back();
    free_stacks.pop_back();
    stacks_in_use.push_back(stack);
    return stack;
}
}  // namespace

// Saves what a function must keep, and goes on where the other fiber was.
extern "C" void emulator_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
constexpr int SAVED = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.type emulator_switch, %function
emulator_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
#else
#error "the emulator switches between fibers on x86-64 and on ARM64 only"
#endif

const void* here() { return (const u8*)__builtin_return_address(0) - 1; }

u64 draw() {  // xorshift
    u64& x = machine.random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x >> 16;
}

static std::string name_of(const Where& where) {  // launching.py puts the lines of the source in its place
    char text[40];
    snprintf(text, sizeof(text), "<%#llx>", (u64)where.place);
    return where.place ? text : "?";
}

void fail(const char* format, ...) {
    char text[4096];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    message = text;
    if (Fiber* fiber = machine.now) {
        const uint3 at = fiber->block->index;
        message += " (thread " + std::to_string(fiber->index) + " of block " + std::to_string(at.x) + ", " +
                   std::to_string(at.y);
        if (fiber->where.place) message += ", last seen at " + name_of(fiber->where);
        message += ")";
    }
    siglongjmp(after_fault, 1);
}

void make_ready(Fiber* fiber) {
    fiber->waits_for = nullptr;
    fiber->polls = false;
    machine.ready[fiber->warp->level].push_back(fiber);
    machine.progress++;
}

void wake_polling(Block* of, u64 at) {
    auto& polling = machine.polling;
    for (size_t i = polling.size(); i-- > 0;) {
        Fiber* fiber = polling[i];
        if (fiber->waited_at != at || (of && fiber->block != of)) continue;
        polling[i] = polling.back();
        polling.pop_back();
        make_ready(fiber);
    }
}

static void report_deadlock() {
    std::map<std::string, std::string> waiting;  // what and where -> which threads
    for (auto& block : machine.blocks)
        for (Fiber& fiber : block->fibers) {
            if (fiber.finished) continue;
            std::string what = "block " + std::to_string(block->index.x) + ", " + std::to_string(block->index.y) + ": " +
                               (fiber.waits_for ? fiber.waits_for : "?") + " at " + name_of(fiber.where);
            if (fiber.polls) {
                char where[64];
                snprintf(where, sizeof(where), fiber.waited_at < (1 << 20) ? " (barrier at %llu)" : " (memory at %#llx)",
                         fiber.waited_at < (1 << 20) ? fiber.waited_at - SHARED_FROM : fiber.waited_at);
                what += where;
            }
            std::string& list = waiting[what];
            list += (list.empty() ? "" : " ") + std::to_string(fiber.index);
        }
    std::string all = "deadlock: no thread can go on.\n";
    for (auto& [what, threads] : waiting) all += "  " + what + ": threads " + threads.substr(0, 200) + "\n";
    message = all.substr(0, 3900);
    siglongjmp(after_fault, 1);
}

// Who runs next of those who may: chance decides, or one warp goes before others as far as it can.
static Fiber* take_ready() {
    if (machine.levels && draw() % 1000 == 0) {
        auto& warps = machine.blocks[draw() % machine.blocks.size()]->warps;
        warps[draw() % warps.size()].level = draw() % LEVELS;
    }
    for (auto& ready : machine.ready) {
        if (ready.empty()) continue;
        const size_t which = draw() % ready.size();
        Fiber* fiber = ready[which];
        ready[which] = ready.back();
        ready.pop_back();
        return fiber;
    }
    return nullptr;
}

// Which copy arrives next: any, or the one that was asked for last, or stores after all others.
static size_t choose_transfer() {
    const auto& transfers = machine.transfers;
    if (machine.transfer_order == Machine::ANY) return draw() % transfers.size();
    size_t best = 0;
    for (size_t i = 1; i < transfers.size(); i++) {
        const bool later = transfers[i]->number > transfers[best]->number;
        const int kind = (transfers[i]->group != 0) - (transfers[best]->group != 0);  // of a store above 0
        if (machine.transfer_order == Machine::STORES_LAST && kind ? kind < 0 : later) best = i;
    }
    return best;
}

// Null when all have finished. Copies arrive at random times, and at the latest when nobody can go on.
static Fiber* next_fiber() {
    static u64 progress_at_poll, rounds;
    auto& transfers = machine.transfers;
    for (;;) {
        if (!transfers.empty() && draw() % machine.eagerness == 0) run_transfer(choose_transfer());
        if (Fiber* fiber = take_ready()) return fiber;
        if (!transfers.empty()) {
            run_transfer(choose_transfer());
            continue;
        }
        if (machine.alive == 0) return nullptr;
        rounds = machine.progress == progress_at_poll ? rounds + 1 : 0;
        if (machine.polling.empty() || rounds > 2) report_deadlock();
        std::vector<Fiber*> all;
        all.swap(machine.polling);
        for (Fiber* fiber : all) make_ready(fiber);
        progress_at_poll = machine.progress;
    }
}

static void run(Fiber* fiber, void** from) {
    machine.now = fiber;
    threadIdx = {fiber->index, 0, 0};
    blockIdx = fiber->block->index;
    emulator_switch(from, fiber->stack_pointer);
}

static void go_on(Fiber* self) {
    Fiber* next = next_fiber();
    if (next != self) run(next, &self->stack_pointer);
}

void block_fiber(const char* what, Where where) {
    Fiber* self = machine.now;
    self->waits_for = what;
    self->where = where;
    go_on(self);
}

void poll_fiber(const char* what, u64 at, Where where) {
    Fiber* self = machine.now;
    self->polls = true;
    self->waited_at = at;
    machine.polling.push_back(self);
    block_fiber(what, where);
}

static void live() {  // a fiber's whole life
    entry(arguments);
    Fiber* self = machine.now;
    finish_thread(*self);
    self->finished = true;
    machine.progress++;
    machine.alive--;
    Block& block = *self->block;
    block.alive--;
    self->warp->alive &= ~(1u << self->lane);
    leave_meetings(*self->warp);
    leave_named_barriers(block);
    if (block.alive == 0) finish_block(block);
    void* nowhere;
    Fiber* next = next_fiber();
    if (next) run(next, &nowhere);
    machine.now = nullptr;
    emulator_switch(&nowhere, launcher);
    __builtin_unreachable();
}

static void prepare(Fiber& fiber) {
    u8* stack = take_stack();
    void** top = (void**)(stack + STACK_BYTES - 64);
#if defined(__x86_64__)
    *--top = nullptr;  // so that the stack is aligned as after a call
    *--top = (void*)live;
    for (int i = 0; i < SAVED; i++) *--top = nullptr;
#else
    top -= 20;
    memset(top, 0, 160);
    top[11] = (void*)live;
#endif
    fiber.stack_pointer = top;
}

void meet(const char* what, u32 mask, void* mine, Where where, Act act) {
    Fiber* self = machine.now;
    Warp& warp = *self->warp;
    self->where = where;
    if (!(mask >> self->lane & 1)) fail("%s: the mask %#x leaves out lane %u, which calls it", what, mask, self->lane);
    Meeting* found = nullptr;
    for (Meeting& meeting : warp.meetings)
        if (meeting.what == what && meeting.mask == mask && meeting.where.line == where.line &&
            !(meeting.here >> self->lane & 1))
            found = &meeting;
    if (!found) {
        warp.meetings.push_back({what, where, mask, 0, {}, act});
        found = &warp.meetings.back();
    }
    found->here |= 1u << self->lane;
    found->of_lanes[self->lane] = mine;
    if (found->here == (mask & warp.alive)) {
        Meeting complete = *found;
        warp.meetings.erase(warp.meetings.begin() + (found - warp.meetings.data()));
        complete.act(warp, complete.of_lanes, complete.here);
        for (u32 lane = 0; lane < 32; lane++)
            if (lane != self->lane && complete.here >> lane & 1) make_ready(warp.lanes[lane]);
        machine.progress++;
        return;
    }
    block_fiber(what, where);
}

void leave_meetings(Warp& warp) {
    for (size_t i = 0; i < warp.meetings.size();) {
        Meeting complete = warp.meetings[i];
        if (complete.here != (complete.mask & warp.alive)) {
            i++;
            continue;
        }
        warp.meetings.erase(warp.meetings.begin() + i);
        complete.act(warp, complete.of_lanes, complete.here);
        for (u32 lane = 0; lane < 32; lane++)
            if (complete.here >> lane & 1) make_ready(warp.lanes[lane]);
    }
}

namespace {
struct Shuffled {
    u64 given, taken;
    Shuffle how;
    int by, width;
};
struct Vote {
    bool vote;
    u32 votes;
};
}  // namespace

u64 shuffle(u32 mask, u64 bits, Shuffle how, int by, int width, Where where) {
    if (width < 1 || width > 32 || (width & (width - 1))) fail("shuffle: a width of %d", width);
    Shuffled mine = {bits, bits, how, by, width};
    meet("shuffle", mask, &mine, where, [](Warp&, void** of_lanes, u32 lanes) {
        for (int lane = 0; lane < 32; lane++) {
            if (!(lanes >> lane & 1)) continue;
            Shuffled& mine = *(Shuffled*)of_lanes[lane];
            const int first = lane / mine.width * mine.width, last = first + mine.width - 1;
            int from = mine.how == FROM_LANE ? first + (mine.by & (mine.width - 1))
                       : mine.how == FROM_UP ? lane - mine.by
                       : mine.how == FROM_DOWN ? lane + mine.by
                                               : lane ^ mine.by;
            if (from < first || from > last) from = lane;
            if (!(lanes >> from & 1)) fail("shuffle: lane %d reads lane %d, which takes no part", lane, from);
            mine.taken = ((Shuffled*)of_lanes[from])->given;
        }
    });
    return mine.taken;
}

u32 ballot(u32 mask, bool vote, Where where) {
    Vote mine = {vote, 0};
    meet("vote", mask, &mine, where, [](Warp&, void** of_lanes, u32 lanes) {
        u32 votes = 0;
        for (int lane = 0; lane < 32; lane++)
            if (lanes >> lane & 1) votes |= (u32)((Vote*)of_lanes[lane])->vote << lane;
        for (int lane = 0; lane < 32; lane++)
            if (lanes >> lane & 1) ((Vote*)of_lanes[lane])->votes = votes;
    });
    return mine.votes;
}

void sync_warp(u32 mask, const char* what, Where where) {
    meet(what, mask, nullptr, where, [](Warp&, void**, u32) {});
}

void set_registers(u32 count, Where where) {
    if (count < 24 || count > 256 || count % 8) fail("setmaxnreg: %u registers", count);
    if (machine.now->lane == 0) warp().trace = (warp().trace ^ count) * 0x9E3779B97F4A7C15ull;
    sync_warp(ALL_LANES, "setmaxnreg", where);
}

static void release(NamedBarrier& barrier) {
    for (Fiber* fiber : barrier.waiting) make_ready(fiber);
    barrier.waiting.clear();
    barrier.arrived = barrier.expected = 0;
    machine.progress++;
}

void sync_block(Where where) {
    Fiber* self = machine.now;
    NamedBarrier& barrier = self->block->named[0];
    if (++barrier.arrived == self->block->alive) return release(barrier);
    barrier.waiting.push_back(self);
    block_fiber("__syncthreads", where);
}

void leave_named_barriers(Block& block) {  // a thread that has finished is not waited for
    NamedBarrier& barrier = block.named[0];
    if (barrier.arrived > 0 && barrier.expected == 0 && barrier.arrived == block.alive) release(barrier);
}

void named_barrier(u32 which, u32 threads, bool waits, Where where) {
    Fiber* self = machine.now;
    self->where = where;
    if (which > 15) fail("bar: barrier %u of 16", which);
    if (threads == 0 || threads % 32) fail("bar: %u threads, which are not whole warps", threads);
    NamedBarrier& barrier = self->block->named[which];
    if (barrier.arrived > 0 && barrier.expected != threads)
        fail("bar: barrier %u counts %u threads, and a thread comes that counts %u", which, barrier.expected, threads);
    barrier.expected = threads;
    machine.progress++;
    if (++barrier.arrived == threads) return release(barrier);
    if (!waits) return;
    barrier.waiting.push_back(self);
    block_fiber("bar.sync", where);
}

void touched(const void* global) {
    machine.progress++;
    wake_polling(nullptr, (u64)global);
}

// A load in a loop that waits for others: whoever finds the same number twice lets them go on.
u32 load_polled(const void* global, Where where) {
    Fiber* self = machine.now;
    u32 value = *(const volatile u32*)global;
    if (self->polled == global && self->polled_value == value) {
        poll_fiber("ld.acquire", (u64)global, where);
        value = *(const volatile u32*)global;
    }
    self->polled = global;
    self->polled_value = value;
    return value;
}

// The memory of tensors, copied to where pages before and behind cannot be reached.
extern "C" void* emulator_guard(const void* original, size_t bytes, int at_end) {
    const size_t odd = (size_t)original % 64, pages = (bytes + odd + 64 + PAGE - 1) / PAGE * PAGE;
    u8* memory = (u8*)mmap(nullptr, pages + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    mprotect(memory, PAGE, PROT_NONE);
    mprotect(memory + PAGE + pages, PAGE, PROT_NONE);
    u8* data = memory + PAGE + odd;
    if (at_end) {
        const size_t last = (size_t)(memory + PAGE + pages - bytes);
        data = (u8*)(last - (last - odd) % 64);
    }
    memset(memory + PAGE, 0xff, pages);
    memcpy(data, original, bytes);
    guarded.push_back({memory, data, bytes, pages, (const u8*)original});
    return data;
}

// Copies results back; gives the number of the first tensor that was written beside, or -1.
extern "C" int emulator_unguard(int copies_back) {
    int beside = -1;
    for (size_t i = 0; i < guarded.size(); i++) {
        const Guarded& of = guarded[i];
        for (u8* p = of.memory + PAGE; p < of.memory + PAGE + of.room; p++)
            if ((p < of.data || p >= of.data + of.bytes) && *p != 0xff && beside < 0) beside = (int)i;
        if (copies_back) memcpy((void*)of.original, of.data, of.bytes);
        munmap(of.memory, of.room + 2 * PAGE);
    }
    guarded.clear();
    return beside;
}

static std::string whose(u64 address) {
    for (size_t i = 0; i < guarded.size(); i++) {
        const Guarded& of = guarded[i];
        const u64 first = (u64)of.data, last = first + of.bytes;
        if (address >= (u64)of.memory && address < (u64)of.memory + of.room + 2 * PAGE) {
            char text[160];
            snprintf(text, sizeof(text), "%llu bytes %s the memory of tensor %zu of the launch", address < first ? first - address : address - last,
                     address < first ? "before" : "behind the end of", i);
            return text;
        }
    }
    for (u8* stack : stacks_in_use)
        if (address >= (u64)stack && address < (u64)stack + PAGE) return "behind a thread's stack: too many local numbers";
    for (auto& block : machine.blocks)
        if (address >= (u64)block->shared - (1 << 22) && address < (u64)block->shared + (1 << 22)) {
            char text[120];
            snprintf(text, sizeof(text), "byte %lld of shared memory, of which the launch has %u", (long long)(address - (u64)block->shared),
                     block->shared_bytes);
            return text;
        }
    char text[64];
    snprintf(text, sizeof(text), "address %#llx, which belongs to nothing", address);
    return text;
}

static void on_fault(int signal, siginfo_t* info, void* context) {
#if defined(__x86_64__)
    fault = (u64)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    fault = (u64)((ucontext_t*)context)->uc_mcontext.pc;
#endif
    if (signal == SIGSEGV || signal == SIGBUS) {
        const std::string where = whose((u64)info->si_addr);
        fail("memory out of bounds at <%#llx>: %s", fault, where.c_str());
    }
    fail("at <%#llx> an address that is not aligned for what is read or written, or an index outside of an array", fault);
}

// Shared memory of a block, before an unreachable page; behind its end, bytes that are checked.
static u8* map_shared(u32 bytes) {
    const size_t pages = (bytes + PAGE - 1) / PAGE * PAGE;
    u8* memory = (u8*)mmap(nullptr, pages + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(memory, PAGE, PROT_NONE);
    mprotect(memory + PAGE + pages, PAGE, PROT_NONE);
    memset(memory + PAGE, 0xff, pages);
    return memory + PAGE;
}

static void unmap_shared(u8* shared, u32 bytes) {
    munmap(shared - PAGE, (bytes + PAGE - 1) / PAGE * PAGE + 2 * PAGE);
}

static void make_block(uint3 index, u32 threads, u32 shared_bytes) {
    machine.blocks.push_back(std::make_unique<Block>());
    Block& block = *machine.blocks.back();
    block.index = index;
    block.shared_bytes = shared_bytes;
    block.shared = map_shared(shared_bytes);
    block.seen = map_shared(shared_bytes);
    block.alive = block.of = threads;
    machine.alive += threads;
    block.fibers.resize(threads);
    block.warps.resize((threads + 31) / 32);
    for (u32 i = 0; i < threads; i++) {
        Fiber& fiber = block.fibers[i];
        Warp& warp = block.warps[i / 32];
        fiber.index = i;
        fiber.lane = i % 32;
        fiber.block = warp.block = &block;
        fiber.warp = &warp;
        warp.first = i / 32 * 32;
        warp.lanes[i % 32] = &fiber;
        warp.alive |= 1u << (i % 32);
        prepare(fiber);
    }
    const bool groups = draw() % 2;  // whether four warps have one level
    for (size_t i = 0; machine.levels && i < block.warps.size(); i++)
        block.warps[i].level = groups && i % 4 ? block.warps[i - 1].level : draw() % LEVELS;
    for (Fiber& fiber : block.fibers) machine.ready[fiber.warp->level].push_back(&fiber);
}

static void choose_order() {  // anew for each block, or for all that run together
    const u64 eagerness[] = {64, ~0ull, ~0ull, ~0ull};
    machine.eagerness = eagerness[draw() % 4];
    machine.levels = draw() % 2;
    machine.transfer_order = (Machine::Order)(draw() % 3);
}

static void clear() {
    for (auto& block : machine.blocks) {
        unmap_shared(block->shared, block->shared_bytes);
        unmap_shared(block->seen, block->shared_bytes);
    }
    machine.blocks.clear();
    for (auto& ready : machine.ready) ready.clear();
    machine.polling.clear();
    machine.transfers.clear();
    machine.now = nullptr;
    machine.alive = 0;
    free_stacks.insert(free_stacks.end(), stacks_in_use.begin(), stacks_in_use.end());
    stacks_in_use.clear();
}

// Runs a kernel. Gives 0, or 1 and what went wrong.
extern "C" int emulator_launch(
    void (*kernel)(void**), void** given, u32 blocks_x, u32 blocks_y, u32 threads, u32 shared_bytes, int together,
    u64 seed, char* text, size_t room) {
    entry = kernel;
    arguments = given;
    message.clear();
    fault = 0;
    machine.random = (seed + 1) * 0x9E3779B97F4A7C15ull;
    for (int i = 0; i < 8; i++) draw();
    gridDim = {blocks_x, blocks_y, 1};
    blockDim = {threads, 1, 1};

    static u8 signal_stack[64 * 1024];
    stack_t other = {}, before = {};
    other.ss_sp = signal_stack;
    other.ss_size = sizeof(signal_stack);
    sigaltstack(&other, &before);
    struct sigaction action = {}, old[3];
    const int signals[3] = {SIGSEGV, SIGBUS, SIGILL};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 3; i++) sigaction(signals[i], &action, &old[i]);

    std::vector<uint3> order;
    for (u32 y = 0; y < blocks_y; y++)
        for (u32 x = 0; x < blocks_x; x++) order.push_back({x, y, 0});
    for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[draw() % i]);
    volatile int status = 0;
    if (sigsetjmp(after_fault, 1) == 0) {
        if (threads == 0 || threads > 1024) fail("a block of %u threads", threads);
        if (shared_bytes > 227 * 1024) fail("%u bytes of shared memory, and a block has at most %u", shared_bytes, 227 * 1024);
        for (size_t i = 0; i < order.size();) {
            const size_t until = together ? order.size() : i + 1;
            choose_order();
            for (; i < until; i++) make_block(order[i], threads, shared_bytes);
            run(next_fiber(), &launcher);
            clear();
        }
    } else {
        status = 1;
    }
    clear();
    for (int i = 0; i < 3; i++) sigaction(signals[i], &old[i], nullptr);
    sigaltstack(&before, nullptr);
    snprintf(text, room, "%s", message.c_str());
    return status;
}
}  // namespace emulator
