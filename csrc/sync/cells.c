/* Cells with futexes on Linux, and with short sleeps elsewhere. */
#define _GNU_SOURCE
#include "sync/cells.h"

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
/* Shared futexes, not PRIVATE ones: several processes map the memory of the word. */
static void sleep_on(uint32_t *field, uint32_t seen, int64_t deadline) {
    struct timespec until = {deadline / 1000000000, deadline % 1000000000};
    syscall(SYS_futex, field, FUTEX_WAIT_BITSET, seen, &until, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void wake_all(uint32_t *field) {
    syscall(SYS_futex, field, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}
#else
/* Without shared futexes: sleep a millisecond at a time. */
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

/* Sequentially consistent on both sides: "store value, load sleepers" here and "store sleepers,
 * load value" in the waiter are Dekker's pattern; a weaker memory order can lose a wake-up. */
void fastppo_post(fastppo_cell *cell, uint32_t value) {
    atomic_store(word(&cell->value), value);
    if (atomic_load(word(&cell->sleepers))) wake_all(&cell->value);
}

static int differs(uint32_t value, uint32_t seen) { return value != seen; }

static int reached(uint32_t value, uint32_t target) { return (int32_t)(value - target) >= 0; }

void fastppo_hint(fastppo_cell *cell, uint32_t count) {
    uint32_t value = atomic_fetch_add(word(&cell->value), count) + count;
    if (atomic_load(word(&cell->sleepers)) && reached(value, atomic_load(word(&cell->awaited))))
        wake_all(&cell->value);
}

int64_t fastppo_claim(fastppo_cell *cell) {
    uint32_t value = atomic_load(word(&cell->value));
    while ((value & 15) < (value >> 4 & 15))
        if (atomic_compare_exchange_weak(word(&cell->value), &value, value + 1)) return value;
    return -1;
}

uint32_t fastppo_value(fastppo_cell *cell) { return atomic_load(word(&cell->value)); }

/* Release and acquire: a worker writes its error before it sets the state that reports it. */
void fastppo_set_state(fastppo_cell *cell, int32_t state) {
    atomic_store_explicit((_Atomic int32_t *)&cell->state, state, memory_order_release);
}

int32_t fastppo_state(fastppo_cell *cell) {
    return atomic_load_explicit((_Atomic int32_t *)&cell->state, memory_order_acquire);
}

typedef int (*Over)(uint32_t value, uint32_t mark);

static int spin(fastppo_cell *cell, Over over, uint32_t mark, int64_t until) {
    do {
        for (int i = 0; i < 32; i++) {
            if (over(fastppo_value(cell), mark)) return 1;
            relax();
        }
        yield_core(); /* a process with work must not wait for a spinning one */
    } while (now_ns() < until);
    return 0;
}

static int wait_until(fastppo_cell *cell, Over over, uint32_t mark, uint32_t awaited,
                      int64_t spin_ns, int64_t slice_ns) {
    uint32_t value;
    if (over(fastppo_value(cell), mark)) return 1;
    int64_t start = now_ns(), deadline = start + slice_ns;
    if (spin_ns > 0 && spin(cell, over, mark, start + (spin_ns < slice_ns ? spin_ns : slice_ns)))
        return 1;
    atomic_store(word(&cell->awaited), awaited);
    atomic_fetch_add(word(&cell->sleepers), 1);
    while (!over(value = fastppo_value(cell), mark) && now_ns() < deadline) {
        errno = 0;
        sleep_on(&cell->value, value, deadline);
        if (errno == EINTR) break; /* let the caller run its signal handlers */
    }
    atomic_fetch_sub(word(&cell->sleepers), 1);
    return over(fastppo_value(cell), mark);
}

int fastppo_wait_change(fastppo_cell *cell, uint32_t seen, int64_t spin_ns, int64_t slice_ns) {
    return wait_until(cell, differs, seen, seen + 1, spin_ns, slice_ns);
}

int fastppo_wait_count(fastppo_cell *cell, uint32_t target, int64_t spin_ns, int64_t slice_ns) {
    return wait_until(cell, reached, target, target, spin_ns, slice_ns);
}
