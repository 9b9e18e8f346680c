#define _GNU_SOURCE
#include "cells.h"

#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#ifdef _WIN32
#include <windows.h>
static void yield_core(void) { SwitchToThread(); }
#else
#include <sched.h>
static void yield_core(void) { sched_yield(); }
#endif

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static int64_t now_ns(void) {
    struct timespec at;
#ifdef _WIN32
    timespec_get(&at, TIME_UTC);
#else
    clock_gettime(CLOCK_MONOTONIC, &at);
#endif
    return (int64_t)at.tv_sec * 1000000000 + at.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb");
#endif
}

static _Atomic uint32_t *word(uint32_t *field) { return (_Atomic uint32_t *)field; }

#ifdef __linux__
/* Shared (not PRIVATE) futexes: the word lives in memory that several processes map. */
static void sleep_on(uint32_t *field, uint32_t seen, int64_t deadline) {
    struct timespec until = {deadline / 1000000000, deadline % 1000000000};
    syscall(SYS_futex, field, FUTEX_WAIT_BITSET, seen, &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void wake_all(uint32_t *field) {
    syscall(SYS_futex, field, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}
#else
/* No shared futex here: sleep a millisecond at a time. */
static void sleep_on(uint32_t *field, uint32_t seen, int64_t deadline) {
    (void)field, (void)seen, (void)deadline;
#ifdef _WIN32
    Sleep(1);
#else
    struct timespec nap = {0, 1000000};
    nanosleep(&nap, NULL);
#endif
}

static void wake_all(uint32_t *field) { (void)field; }
#endif

/* Sequential consistency on both sides: "store value, load sleepers" here against "store sleepers,
 * load value" in the waiter is Dekker's pattern, and anything weaker can lose a wake-up. */
void fastppo_post(fastppo_cell *cell, uint32_t value) {
    atomic_store(word(&cell->value), value);
    if (atomic_load(word(&cell->sleepers))) wake_all(&cell->value);
}

void fastppo_hint(fastppo_cell *cell) {
    atomic_fetch_add(word(&cell->value), 1);
    if (atomic_load(word(&cell->sleepers))) wake_all(&cell->value);
}

int64_t fastppo_claim(fastppo_cell *cell) {
    uint32_t value = atomic_load(word(&cell->value));
    while ((value & 15) < (value >> 4 & 15))
        if (atomic_compare_exchange_weak(word(&cell->value), &value, value + 1)) return value;
    return -1;
}

uint32_t fastppo_value(fastppo_cell *cell) { return atomic_load(word(&cell->value)); }

/* Release and acquire: a worker that failed has written its error before it says so. */
void fastppo_set_state(fastppo_cell *cell, int32_t state) {
    atomic_store_explicit((_Atomic int32_t *)&cell->state, state, memory_order_release);
}

int32_t fastppo_state(fastppo_cell *cell) {
    return atomic_load_explicit((_Atomic int32_t *)&cell->state, memory_order_acquire);
}

static int spin_until_change(fastppo_cell *cell, uint32_t seen, int64_t until) {
    do {
        for (int i = 0; i < 32; i++) {
            if (fastppo_value(cell) != seen) return 1;
            relax();
        }
    } while (now_ns() < until);
    return 0;
}

int fastppo_wait_change(fastppo_cell *cell, uint32_t seen, int64_t spin_ns, int64_t slice_ns) {
    if (fastppo_value(cell) != seen) return 1;
    int64_t start = now_ns(), deadline = start + slice_ns;
    if (spin_ns > 0) {
        if (spin_until_change(cell, seen, start + (spin_ns < slice_ns ? spin_ns : slice_ns)))
            return 1;
        yield_core();
    }
    atomic_fetch_add(word(&cell->sleepers), 1);
    while (fastppo_value(cell) == seen && now_ns() < deadline) {
        errno = 0;
        sleep_on(&cell->value, seen, deadline);
        if (errno == EINTR) break; /* let the caller run its signal handlers */
    }
    atomic_fetch_sub(word(&cell->sleepers), 1);
    return fastppo_value(cell) != seen;
}
