/* Cells: 128-byte aligned words in shared memory, through which processes wait for each other.
 *
 * A cell is written by one process and read by many, or written by many with one atomic operation.
 * There are no locks, so a killed process leaves nothing locked. A waiter spins for some
 * nanoseconds, yielding the core to other processes, then sleeps on the word (futex) in slices, so
 * that its caller can handle signals and dead processes.
 */
#ifndef FASTPPO_CELLS_H
#define FASTPPO_CELLS_H

#include <stdint.h>

#define FASTPPO_CELL_BYTES 128

typedef struct {
    uint32_t value;    /* a generation, which only counts up (modulo 2^32) */
    uint32_t sleepers; /* the number of processes asleep on `value` */
    int32_t step;      /* the writer's position: step of the rollout */
    int32_t env;       /* and environment */
    int32_t state;     /* the writer's state, a code of the caller's */
    uint32_t ticks;    /* the number of positions recorded; constant while the writer hangs */
    uint32_t awaited;  /* the count that the sleepers wait for */
    uint8_t pad[FASTPPO_CELL_BYTES - 28];
} fastppo_cell;

/* Publish `value` after all stores before it, and wake the sleepers of the cell. */
void fastppo_post(fastppo_cell *cell, uint32_t value);

/* Add `count` to a cell that several processes write, and wake its sleeper if the cell has reached
 * the count that it waits for. */
void fastppo_hint(fastppo_cell *cell, uint32_t count);

/* Claim one piece of a round of work. Round r with `pieces` (at most 15) is posted as r << 8 |
 * pieces << 4; a claim increments the last four bits, so each piece is claimed once. Returns the
 * value before the increment, or -1 if no piece is left. */
int64_t fastppo_claim(fastppo_cell *cell);

/* The published value; loads after this call see the stores before the post. */
uint32_t fastppo_value(fastppo_cell *cell);

/* Set the writer's state; a process that reads it sees the stores before it. */
void fastppo_set_state(fastppo_cell *cell, int32_t state);
int32_t fastppo_state(fastppo_cell *cell);

/* 1 as soon as the cell's value is no longer `seen`; 0 once `slice_ns` have passed. */
int fastppo_wait_change(fastppo_cell *cell, uint32_t seen, int64_t spin_ns, int64_t slice_ns);

/* 1 as soon as the cell has counted up to `target`; 0 once `slice_ns` have passed. There is one
 * sleeper; of the processes that add to the cell, the one that completes the count wakes it. */
int fastppo_wait_count(fastppo_cell *cell, uint32_t target, int64_t spin_ns, int64_t slice_ns);

#endif
