/* A rollout of environments that are rows, by a compiled policy: act and step, without Python.
 *
 * Its definition is LocalActor (stepping/actors.py) beside Serial (vecenv.py).
 */
#ifndef FASTPPO_ROLLOUT_H
#define FASTPPO_ROLLOUT_H

#include <stdint.h>

#include "envs/rows.h"
#include "network/forward.h"

/* A network of a plan and its head: categorical where log_std is NULL, else Gaussian. What the
 * environment gets of a Gaussian action is clipped to [low, high] [a], or where `scaled` is true
 * mapped there from [-1, 1]. `seed` and `env0` are those of the noise; work, out and noise are
 * scratch. */
typedef struct {
    const int64_t *plan;
    int64_t layers;
    const Layout *layout;
    const float *packed;
    Normaliser normaliser;
    const float *log_std, *low, *high;
    int64_t components;
    int scaled;
    uint64_t seed;
    float *work, *out, *noise, *sent; /* noise and sent [e components], out [e outputs] */
} Policy;

/* What a step of a rollout writes, each [t e ...]; the bytes between its steps are in `strides`. */
enum { REWARD, TERM, TRUNC, OBS, LENGTH, ACT, LOGP, VAL, NXT, ARRAYS };
typedef struct {
    uint8_t *array[ARRAYS];
    int64_t stride[ARRAYS];
    uint8_t *final;
    int64_t envs;
} Rollout;

/* Why a rollout has stopped: all steps are taken or the time is over, the policy's answer is not
 * finite, a row has failed, an observation is not finite. */
enum { GOING, POLICY_FAILED, ROW_FAILED, NOT_FINITE };

/* Where it stopped: before step t, at row `row` if that has failed. */
typedef struct {
    int64_t t, row;
    int reason;
    double acting; /* seconds */
} Stop;

/* Take steps t .. steps - 1 for `seconds` at most. Step t is `now + t` of the run for its rows, and
 * `first + t` for the noise. What has been done before is done again with the same result. */
Stop rows_rollout(const Rows *rows, const Policy *policy, const Rollout *rollout, int64_t t,
                  int64_t steps, int64_t now, int64_t first, double seconds);

#endif
