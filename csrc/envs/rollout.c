/* Rollouts of rows: forward pass, sampling, recording and steps of all rows, one step at a time. */
#define _POSIX_C_SOURCE 199309L
#include "envs/rollout.h"

#include <math.h>
#include <time.h>

#include "network/heads.h"
#include "rng/noise.h"
#include "rollout/returns.h"

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *at(const Rollout *rollout, int name, int64_t t) {
    return rollout->array[name] + t * rollout->stride[name];
}

static void forward(const Policy *policy, const void *obs, int64_t n, float *out) {
    plan_forward(policy->plan, policy->layers, policy->layout, policy->packed, &policy->normaliser,
                 obs, n, (Memory){NULL, NULL}, policy->work, out);
}

/* x in [low, high], as numpy.clip of arrays: of equal numbers the bound. */
static float clipped(float x, float low, float high) {
    x = x > low ? x : low;
    return x < high ? x : high;
}

/* The Gaussian actions act [n a] as the environment takes them. */
static void map_to_bounds(const Policy *policy, const float *act, int64_t n) {
    int64_t width = policy->components;
    for (int64_t i = 0; i < n * width; i++) {
        float low = policy->low[i % width], high = policy->high[i % width], x = act[i];
        if (policy->scaled) x = low + (clipped(x, -1.0f, 1.0f) + 1.0f) / 2.0f * (high - low);
        policy->sent[i] = clipped(x, low, high);
    }
}

/* Choose and record the actions of step t; return those that the environments get, or NULL where
 * the policy's answer is not finite. */
static const void *act_in(const Policy *policy, const Rollout *rollout, uint32_t env0, int64_t t,
                          int64_t step) {
    int64_t n = rollout->envs, width = policy->layout->outputs, k = policy->components;
    float *logp = at(rollout, LOGP, t), *val = at(rollout, VAL, t);
    void *act = at(rollout, ACT, t);
    forward(policy, at(rollout, OBS, t), n, policy->out);
    for (int64_t e = 0; e < n; e++) val[e] = policy->out[e * width + width - 1];
    if (!policy->log_std) {
        noise_uniform(policy->seed, ACT_NOISE, env0, (uint32_t)step, n, 1, policy->noise);
        sample_categorical(policy->out, width, policy->noise, n, width - 1, act, logp);
        return first_nonfinite(logp, n) < 0 ? act : NULL;
    }
    noise_normal(policy->seed, ACT_NOISE, env0, (uint32_t)step, n, k, policy->noise);
    sample_gaussian(policy->out, width, policy->log_std, policy->noise, n, k, act, logp);
    if (first_nonfinite(act, n * k) >= 0) return NULL;
    map_to_bounds(policy, act, n);
    return policy->sent;
}

/* Compute the values of the final observations that step t has truncated, each once: a later step
 * writes over them. Return whether a final observation of this step is not finite. */
static int value_truncations(const Rows *rows, const Policy *policy, const Rollout *rollout,
                             int64_t t) {
    const uint8_t *term = at(rollout, TERM, t), *trunc = at(rollout, TRUNC, t);
    float *nxt = at(rollout, NXT, t);
    for (int64_t e = 0; e < rollout->envs; e++) {
        if (!(term[e] || trunc[e]) || !isnan(nxt[e])) continue;
        const uint8_t *final = rollout->final + e * rows->obs_bytes;
        if (rows->floats && first_nonfinite((const float *)final, rows->floats) >= 0) return 1;
        if (term[e]) continue;
        forward(policy, final, 1, policy->out);
        nxt[e] = policy->out[policy->layout->outputs - 1];
    }
    return 0;
}

Stop rows_rollout(const Rows *rows, const Policy *policy, const Rollout *rollout, int64_t t,
                  int64_t steps, int64_t now, int64_t first, double seconds) {
    Stop stop = {t, -1, GOING, 0.0};
    double begin = seconds_now(), end = begin + seconds;
    for (; stop.t < steps && begin < end; stop.t++) {
        t = stop.t;
        const void *act = act_in(policy, rollout, (uint32_t)rows->env0, t, first + t);
        double acted = seconds_now();
        stop.acting += acted - begin;
        if (!act) {
            stop.reason = POLICY_FAILED;
            return stop;
        }
        Record record = {act, at(rollout, REWARD, t), at(rollout, TERM, t), at(rollout, TRUNC, t),
                         at(rollout, OBS, t + 1), rollout->final, at(rollout, LENGTH, t)};
        stop.row = rows_step(rows, &record, now + t, 0, rollout->envs);
        if (stop.row >= 0) {
            stop.reason = ROW_FAILED;
            return stop;
        }
        const float *obs = at(rollout, OBS, t + 1);
        if (value_truncations(rows, policy, rollout, t) ||
            (rows->floats && first_nonfinite(obs, rollout->envs * rows->floats) >= 0)) {
            stop.reason = NOT_FINITE;
            return stop;
        }
        begin = seconds_now();
    }
    return stop;
}
