/* loss = policy - entropy * mean entropy + value * 0.5 mean (val - ret)^2, for a block of rows.
 *
 * SIMD lanes hold rows; sums over choices, components or rows run in index order. The unused rows
 * of a short block are computed and ignored. Source: Schulman et al. 2017, arXiv:1707.06347,
 * equations 7 and 9.
 */
#include "update/loss.h"

#include "network/likelihood.h"

#define EACH_ROW(r) for (int64_t r = 0; r < BLOCK; r++)

/* The intermediate results of a block. */
typedef struct {
    const int64_t *index;
    int64_t live, params;          /* used rows; number of action parameters */
    float *out, *scratch;          /* [params + 1, BLOCK], [params BLOCK] */
    float logp[BLOCK], ent[BLOCK]; /* under the current policy */
    float slope[BLOCK];            /* d loss / d logp */
    int64_t chosen[BLOCK];
} Rows;

/* Makes the probabilities of illegal choices 0. */
ALWAYS_INLINE void mask_rows(const uint8_t *legal, Rows *rows) {
    for (int64_t r = 0; r < rows->live; r++)
        for (int64_t i = 0; i < rows->params; i++)
            if (!legal[rows->index[r] * rows->params + i]) rows->out[i * BLOCK + r] = -1e38f;
}

/* The choice of each row and its log-probability: NaN for a choice that does not exist. */
ALWAYS_INLINE void choose_rows(const int64_t *choice, Rows *rows) {
    for (int64_t r = 0; r < rows->live; r++) {
        int64_t act = choice[rows->index[r]], legal = act >= 0 && act < rows->params;
        rows->chosen[r] = legal ? act : 0;
        rows->logp[r] = legal ? rows->out[act * BLOCK + r] : NAN;
    }
}

/* Turns the logits in `out` into log-probabilities, and writes all probabilities to `scratch`. */
ALWAYS_INLINE void categorical(const int64_t *choice, Rows *rows) {
    float *out = rows->out, *p = rows->scratch, top[BLOCK], sum[BLOCK] = {0}, log_sum[BLOCK];
    int64_t all = rows->params * BLOCK;
    EACH_ROW(r) top[r] = out[r];
    for (int64_t i = BLOCK; i < all; i += BLOCK)
        EACH_ROW(r) top[r] = choose(out[i + r] > top[r], out[i + r], top[r]);
    for (int64_t i = 0; i < all; i += BLOCK)
        EACH_ROW(r) {
            p[i + r] = fast_exp(out[i + r] - top[r]);
            sum[r] += p[i + r];
        }
    EACH_ROW(r) {
        log_sum[r] = fast_log(sum[r]);
        sum[r] = 1.0f / sum[r];
        rows->ent[r] = 0.0f;
    }
    for (int64_t i = 0; i < all; i += BLOCK)
        EACH_ROW(r) {
            out[i + r] = choice_logp(out[i + r], top[r], log_sum[r]);
            p[i + r] *= sum[r];
            rows->ent[r] = fma32(-p[i + r], out[i + r], rows->ent[r]);
        }
    choose_rows(choice, rows);
}

ALWAYS_INLINE void categorical_gradient(float entropy, Rows *rows) {
    float *out = rows->out, *p = rows->scratch;
    for (int64_t i = 0; i < rows->params * BLOCK; i += BLOCK)
        EACH_ROW(r)
            out[i + r] = p[i + r] * fma32(entropy, out[i + r] + rows->ent[r], -rows->slope[r]);
    for (int64_t r = 0; r < rows->live; r++) out[rows->chosen[r] * BLOCK + r] += rows->slope[r];
}

/* Writes the distances of actions from their means, in standard deviations, to `scratch`. */
ALWAYS_INLINE void gaussian(const float *act, const float *log_std, Rows *rows) {
    float ent = 0.0f;
    EACH_ROW(r) rows->logp[r] = 0.0f;
    for (int64_t i = 0; i < rows->params; i++) {
        Normal normal = normal_of(log_std[i]);
        float *z = rows->scratch + i * BLOCK, *mean = rows->out + i * BLOCK;
        for (int64_t r = 0; r < rows->live; r++) z[r] = act[rows->index[r] * rows->params + i];
        EACH_ROW(r) {
            z[r] = deviation(normal, z[r], mean[r]);
            rows->logp[r] += log_density(normal, z[r]);
        }
        ent += 0.5f - normal.peak;
    }
    EACH_ROW(r) rows->ent[r] = ent;
}

ALWAYS_INLINE void gaussian_gradient(const float *log_std, float entropy, float *log_std_grad,
                                     Rows *rows) {
    for (int64_t i = 0; i < rows->params; i++) {
        Normal normal = normal_of(log_std[i]);
        float *z = rows->scratch + i * BLOCK, *mean = rows->out + i * BLOCK;
        EACH_ROW(r) {
            mean[r] = rows->slope[r] * (z[r] * normal.precision);
            z[r] = fma32(rows->slope[r], fma32(z[r], z[r], -1.0f), -entropy);
        }
        for (int64_t r = 0; r < rows->live; r++) log_std_grad[i] += z[r];
    }
}

/* mean(max(-adv ratio, -adv clip(ratio, low, high))), at most -adv dual where adv < 0. Comparisons
 * are written so that a NaN is kept. */
ALWAYS_INLINE void surrogate(const Batch *batch, const Minibatch *part, const Coefs *coefs,
                             float weight, Rows *rows, double *sums) {
    float adv[BLOCK] = {0}, log_ratio[BLOCK] = {0}, ratio[BLOCK], gain[BLOCK];
    for (int64_t r = 0; r < rows->live; r++) {
        adv[r] = batch->adv[rows->index[r]];
        log_ratio[r] = rows->logp[r] - batch->logp[rows->index[r]];
    }
    EACH_ROW(r) {
        adv[r] = (adv[r] - part->adv_mean) * part->adv_scale;
        ratio[r] = fast_exp(log_ratio[r]);
        float free = -adv[r] * ratio[r];
        float limited = -adv[r] * clamp(ratio[r], coefs->low, coefs->high);
        float bound = choose(adv[r] < 0.0f, -adv[r] * coefs->dual, INFINITY);
        gain[r] = choose(limited > free, limited, free);
        rows->slope[r] = weight * choose(limited > free, 0.0f, free);
        rows->slope[r] = choose(gain[r] > bound, 0.0f, rows->slope[r]);
        gain[r] = choose(gain[r] > bound, bound, gain[r]);
    }
    for (int64_t r = 0; r < rows->live; r++) {
        sums[GAIN] += gain[r];
        sums[ENTROPY] += rows->ent[r];
        sums[KL] += ((double)ratio[r] - 1.0) - log_ratio[r];
        sums[OLD_KL] -= log_ratio[r];
        sums[CLIPPED] += fabsf(ratio[r] - 1.0f) > coefs->range;
    }
}

/* 0.5 mean (val - ret)^2. */
ALWAYS_INLINE void value_plain(const Batch *batch, float weight, Rows *rows, double *sums) {
    float *val = rows->out + rows->params * BLOCK;
    for (int64_t r = 0; r < rows->live; r++) {
        float error = val[r] - batch->ret[rows->index[r]];
        sums[ERROR] += 0.5f * error * error;
        val[r] = weight * error;
    }
}

/* 0.5 mean max((val - ret)^2, (near - ret)^2); near = val clipped around the recorded value. */
ALWAYS_INLINE void value_clipped(const Batch *batch, float range, float weight, Rows *rows,
                                 double *sums) {
    float *val = rows->out + rows->params * BLOCK;
    for (int64_t r = 0; r < rows->live; r++) {
        float ret = batch->ret[rows->index[r]], was = batch->val[rows->index[r]];
        float change = val[r] - was, moved = clamp(change, -range, range);
        float error = val[r] - ret, near = was + moved - ret;
        float plain = error * error, clipped = near * near;
        float share = clipped > plain ? 1.0f : clipped == plain ? 0.5f : 0.0f; /* as torch.max */
        sums[ERROR] += 0.5f * (clipped <= plain ? plain : clipped);
        near = moved < change || moved > change ? 0.0f : near;
        val[r] = weight * fma32(share, near - error, error);
    }
}

ALWAYS_INLINE void update_loss_body(const Batch *batch, const Minibatch *part, const Coefs *coefs,
                                    const int64_t *index, int64_t live, int64_t outputs,
                                    const float *log_std, float *out, float *scratch,
                                    float *log_std_grad, double *sums) {
    Rows rows = {index, live, outputs - 1, out, scratch, {0}, {0}, {0}, {0}};
    float weight = 1.0f / (float)part->rows, entropy = weight * coefs->entropy;
    if (batch->legal) mask_rows(batch->legal, &rows);
    if (log_std_grad)
        gaussian(batch->act, log_std, &rows);
    else
        categorical(batch->choice, &rows);
    surrogate(batch, part, coefs, weight, &rows, sums);
    if (log_std_grad)
        gaussian_gradient(log_std, entropy, log_std_grad, &rows);
    else
        categorical_gradient(entropy, &rows);
    if (coefs->value_range < 0.0f)
        value_plain(batch, weight * coefs->value, &rows, sums);
    else
        value_clipped(batch, coefs->value_range, weight * coefs->value, &rows, sums);
}

DISPATCH(update_loss,
         (const Batch *batch, const Minibatch *part, const Coefs *coefs, const int64_t *index,
          int64_t live, int64_t outputs, const float *log_std, float *out, float *scratch,
          float *log_std_grad, double *sums),
         (batch, part, coefs, index, live, outputs, log_std, out, scratch, log_std_grad, sums))
