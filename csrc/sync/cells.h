/* Cells: 128-byte aligned words in shared memory on which processes wait for each other.
 *
 * A cell is written by one process and read by many, or by many with one atomic operation; there
 * are no locks, so a process that is killed leaves nothing locked. Waiting is: spin for a budget of
 * nanoseconds, giving way to whoever wants the core, then sleep on the word itself (futex) in
 * slices, so that the caller can look after signals and deaths.
 */
#ifndef FASTPPO_CELLS_H
#define FASTPPO_CELLS_H

#include <stdint.h>

#define FASTPPO_CELL_BYTES 128

typedef struct {
    uint32_t value;    /* a generation: only ever counts up (modulo 2^32) */
    uint32_t sleepers; /* how many sleep on `value` */
    int32_t step;      /* where the writer stands: step of the rollout, */
    int32_t env;       /* environment, */
    int32_t state;     /* and what it is doing; */
    uint32_t ticks;    /* counts its notes of that: one that stands still has stopped */
    uint32_t awaited;  /* the count below which nobody wants to be woken by a hint */
    uint8_t pad[FASTPPO_CELL_BYTES - 28];
} fastppo_cell;

/* Publish `value` after every store before it, and wake all who sleep on the cell. */
void fastppo_post(fastppo_cell *cell, uint32_t value);

/* Add `count` to a cell that several processes write, and wake its sleeper if that is enough for
 * it. */
void fastppo_hint(fastppo_cell *cell, uint32_t count);

/* A round of work in one cell: `pieces` (at most 15) that anybody may claim, each once. What is
 * posted for round r is r << 8 | pieces << 4, and claiming counts the last four bits up. Returns the
 * value claimed, or -1 if nothing is left. */
int64_t fastppo_claim(fastppo_cell *cell);

/* The published value; every load after it sees what was stored before the post. */
uint32_t fastppo_value(fastppo_cell *cell);

/* Say what the writer is doing; whoever reads it sees what was stored before. */
void fastppo_set_state(fastppo_cell *cell, int32_t state);
int32_t fastppo_state(fastppo_cell *cell);

/* 1 as soon as the cell's value is no longer `seen`; 0 once `slice_ns` have passed. */
int fastppo_wait_change(fastppo_cell *cell, uint32_t seen, int64_t spin_ns, int64_t slice_ns);

/* 1 as soon as the cell has counted up to `target`; 0 once `slice_ns` have passed. Of all who add to
 * it only the one that completes the count wakes the sleeper, of whom there is one. */
int fastppo_wait_count(fastppo_cell *cell, uint32_t target, int64_t spin_ns, int64_t slice_ns);

#endif
