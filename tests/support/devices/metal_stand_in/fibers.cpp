// Test-only: runs threadgroups one after the other, the threads of each as fibers that change at barriers, in shuffled order,
// so that a missing barrier shows as a wrong value and a barrier that some threads skip as a fault.
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

extern "C" typedef void (*stand_in_body)(void* const* buffers);

namespace {

const size_t kStack = 1 << 18;
const uint32_t kMaxWidth = 1024;
enum State { kReady, kWaiting, kDone };

struct Fiber {
    jmp_buf at;
    ucontext_t first;
    char* stack;
    State state;
    int line;
    bool begun;
};

Fiber fibers[kMaxWidth];
uint64_t slots[kMaxWidth];
jmp_buf scheduler;
ucontext_t home;
uint32_t lane, width, group, groups, simd_width, random_state;
stand_in_body body;
void* const* arguments;
bool fresh;
char message[256];

uint32_t random_word() {  // xorshift32
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

void fiber_main() {
    for (;;) {
        body(arguments);
        fibers[lane].state = kDone;
        if (_setjmp(fibers[lane].at) == 0) _longjmp(scheduler, 1);
    }
}

void resume(uint32_t which) {
    lane = which;
    Fiber& fiber = fibers[which];
    fiber.state = kReady;
    if (_setjmp(scheduler) != 0) return;
    if (fiber.begun) _longjmp(fiber.at, 1);
    fiber.begun = true;
    getcontext(&fiber.first);
    fiber.first.uc_stack.ss_sp = fiber.stack;
    fiber.first.uc_stack.ss_size = kStack;
    fiber.first.uc_link = &home;
    makecontext(&fiber.first, fiber_main, 0);
    setcontext(&fiber.first);
}

void shuffle(uint32_t* order) {
    for (uint32_t i = 0; i < width; ++i) order[i] = i;
    for (uint32_t i = width - 1; i > 0; --i) {
        uint32_t j = random_word() % (i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

// One stretch from barrier to barrier. Gives whether the threadgroup goes on.
bool stretch(uint32_t* order) {
    shuffle(order);
    for (uint32_t i = 0; i < width && !message[0]; ++i, fresh = false) resume(order[i]);
    uint32_t waiting = 0;
    for (uint32_t i = 0; i < width; ++i) {
        waiting += fibers[i].state == kWaiting;
        if (!message[0] && fibers[i].state == kWaiting && fibers[i].line != fibers[0].line)
            snprintf(message, sizeof message, "threads wait at barriers of lines %d and %d", fibers[0].line, fibers[i].line);
    }
    if (!message[0] && waiting && waiting != width)
        snprintf(message, sizeof message, "%u of %u threads wait at a barrier that the others never reach", waiting, width);
    return waiting && !message[0];
}

}  // namespace

extern "C" {

void stand_in_barrier(int line) {
    fibers[lane].state = kWaiting;
    fibers[lane].line = line;
    if (_setjmp(fibers[lane].at) == 0) _longjmp(scheduler, 1);
}

uint32_t stand_in_lane() { return lane; }
uint32_t stand_in_width() { return width; }
uint32_t stand_in_group() { return group; }
uint32_t stand_in_groups() { return groups; }
uint32_t stand_in_simd_width() { return simd_width; }
uint64_t* stand_in_slots() { return slots; }

void stand_in_poison(void* at, size_t nbytes) {
    if (fresh) memset(at, 0xC5, nbytes);
}

void stand_in_fault(const char* what, int line) {
    if (!message[0]) snprintf(message, sizeof message, "line %d: %s", line, what);
}

// Runs threadgroups of `n_threads`; gives "" or what went wrong. Not reentrant.
const char* stand_in_launch(stand_in_body kernel_body, void* const* buffers, uint32_t n_groups, uint32_t n_threads,
                            uint32_t n_simd, uint32_t seed) {
    static uint32_t order[kMaxWidth];
    message[0] = 0;
    if (n_threads == 0 || n_threads > kMaxWidth) {
        snprintf(message, sizeof message, "%u threads a threadgroup", n_threads);
        return message;
    }
    body = kernel_body, arguments = buffers, groups = n_groups, width = n_threads, simd_width = n_simd;
    random_state = seed * 2654435761u | 1u;
    for (uint32_t i = 0; i < width; ++i) {
        if (!fibers[i].stack) fibers[i].stack = static_cast<char*>(malloc(kStack));
        fibers[i].begun = false;
    }
    for (group = 0; group < groups && !message[0]; ++group) {
        fresh = true;
        while (stretch(order)) {}
    }
    return message;
}

}
