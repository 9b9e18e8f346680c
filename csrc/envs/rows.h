/* Environments whose state is a record of memory and whose code is three functions.
 *
 * A row has the Episode, then the state and the options of its resets at the places of Rows. The
 * functions return -1 if they fail; they are compiled from Python by Numba, or the user's own C:
 *
 *     reset(state, rng, options)         begins an episode in a state of zeros
 *     step(state, action, rng, &reward)  returns 1 if the episode has terminated, else 0
 *     observe(state, obs)                writes the observation
 *
 * Their definition is the Python functions themselves (compiled_envs/definition.py).
 */
#ifndef FASTPPO_ROWS_H
#define FASTPPO_ROWS_H

#include <stdint.h>

typedef struct { uint64_t seed, draws; } Stream; /* Philox is keyed by the first, counts by the last */

typedef struct {
    int32_t (*reset)(void *state, Stream *rng, const void *options);
    int32_t (*step)(void *state, const void *action, Stream *rng, double *reward);
    int32_t (*observe)(const void *state, void *obs);
} Functions;

/* `start` is the episode's first step in the count of the run; it is truncated after `limit`. */
typedef struct {
    Stream rng;
    int64_t number, start, length, limit;
} Episode;

/* Rows `stride` bytes apart; env0 is the number of the first one in the run of this seed. */
typedef struct {
    Functions call;
    uint8_t *rows, *before; /* before [state bytes]: the state of one row before a step */
    int64_t stride, state, state_bytes, options, obs_bytes, act_bytes, env0;
    int64_t floats; /* of an observation, if it is one array of float32; else 0 */
    uint64_t seed;
} Rows;

/* Where a step is recorded, each [e]; `final` is the last observation of an episode that ends. */
typedef struct {
    const uint8_t *act;
    double *reward;
    uint8_t *term, *trunc, *obs, *final;
    int64_t *length;
} Record;

/* Take step `now` of the run in rows [from, to) that have not taken it, and begin the next episode
 * where one ends. Return the first row that failed, as it was before, or -1. */
int64_t rows_step(const Rows *rows, const Record *record, int64_t now, int64_t from, int64_t to);

#endif
