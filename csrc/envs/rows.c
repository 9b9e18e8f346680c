/* Steps environments that are records, one after the other. */
#include "envs/rows.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "rng/noise.h"

static int32_t observe(const Rows *rows, const void *state, uint8_t *obs) {
    memset(obs, 0, (size_t)rows->obs_bytes);
    return rows->call.observe(state, obs);
}

/* Begin the episode after that of row e, at step `start`; return whether its functions failed. */
static int32_t begin_next(const Rows *rows, int64_t e, Episode *episode, int64_t start,
                          uint8_t *obs) {
    uint8_t *row = (uint8_t *)episode;
    episode->number += episode->number < 0 ? -1 : 1; /* the warm-up's are -1, -2, ... */
    episode->start = start;
    episode->length = 0;
    episode->rng.seed = noise_word(rows->seed, ENV_SEED, (uint32_t)(rows->env0 + e),
                                   (uint32_t)episode->number, 0) >> 1;
    episode->rng.draws = 0;
    memset(row + rows->state, 0, (size_t)rows->state_bytes);
    if (rows->call.reset(row + rows->state, &episode->rng, row + rows->options) < 0) return -1;
    return observe(rows, row + rows->state, obs);
}

/* Take a step in row e, and return whether a function failed. */
static int32_t step_row(const Rows *rows, const Record *record, int64_t e, Episode *episode) {
    uint8_t *state = (uint8_t *)episode + rows->state, *obs = record->obs + e * rows->obs_bytes;
    double reward = NAN;
    int32_t term = rows->call.step(state, record->act + e * rows->act_bytes, &episode->rng, &reward);
    if (term < 0 || !(fabs(reward) <= FLT_MAX) || observe(rows, state, obs) < 0) return -1;
    record->reward[e] = reward;
    episode->length++;
    int trunc = episode->length >= episode->limit;
    if (!term && !trunc) return 0;
    record->term[e] = term > 0;
    record->trunc[e] = (uint8_t)trunc;
    record->length[e] = episode->length;
    memcpy(record->final + e * rows->obs_bytes, obs, (size_t)rows->obs_bytes);
    return begin_next(rows, e, episode, episode->start + episode->length, obs);
}

int64_t rows_step(const Rows *rows, const Record *record, int64_t now, int64_t from, int64_t to) {
    for (int64_t e = from; e < to; e++) {
        Episode *episode = (Episode *)(rows->rows + e * rows->stride), before = *episode;
        uint8_t *state = (uint8_t *)episode + rows->state;
        if (episode->start + episode->length > now) continue;
        memcpy(rows->before, state, (size_t)rows->state_bytes);
        if (step_row(rows, record, e, episode) < 0) {
            *episode = before;
            memcpy(state, rows->before, (size_t)rows->state_bytes);
            return e;
        }
    }
    return -1;
}
