/* One minibatch of PPO on the flat parameters: gradients of shards of rows, then one Adam step.
 *
 *     pack -> for every shard: forward, loss, backward -> reduce, clip, Adam
 *
 * The minibatch alone, by its size and the beginnings of its sequences, determines the shards, and
 * their gradients are added in a fixed tree, so neither the order of shards nor the process that
 * computes one changes a bit. The definition is torch's learner (learner.py).
 */
#ifndef FASTPPO_UPDATE_H
#define FASTPPO_UPDATE_H

#include <stdint.h>

#include "network/forward.h"

enum { MAX_LAYERS = 64, MAX_SHARDS = 8, SHARD_ROWS = 32 };

/* Networks with more parameters have shards of twice as many rows, if these are two shards at
 * least: every shard leaves a gradient of all parameters to be read and added. They also compute
 * it in the workspace and copy it: it is written in columns, which takes 1.25 times as long in
 * shared memory, whose pages are small. */
enum { MANY_PARAMS = 1 << 19 };

/* Means over a minibatch, in the order of statistics.LOSSES; then the norm of the
 * gradient. */
enum { GAIN, ERROR, ENTROPY, KL, OLD_KL, CLIPPED, SUMS, STATS = SUMS + 1 };

/* A layer of the plan, with its places in the workspace. */
typedef struct {
    Shape shape;
    int64_t weight, bias;      /* places in the parameters */
    int64_t source;            /* the layer it reads; -1: the observation */
    int64_t column;            /* its first column of the output; -1: a hidden layer */
    int64_t adds;              /* a later layer reads the same source */
    int64_t y, delta;          /* outputs and their gradient, places in the workspace */
    int64_t delta_row;         /* the stride of its rows; 0: there is one row at a time */
    int64_t carry;             /* of a scan: the gradient that a step leaves to the one before */
    int64_t forward, backward; /* the packed weights, places in the workspace */
    int64_t panels;            /* the gradient of a convolution, a place in the workspace */
} Layer;

/* The layers and the head of a policy, and all sizes. */
typedef struct {
    Layer layer[MAX_LAYERS];
    int64_t layers, inputs, outputs, params, memory;
    int64_t most_rows;       /* of a block: BLOCK, or more if a sequence is longer */
    Image image;             /* the layout of the observation, if it is one */
    int64_t log_std;         /* its offset in the parameters; -1: a categorical head */
    int64_t x, out, scratch; /* observations, outputs, scratch of the head, in the workspace */
    int64_t own;             /* a shard's gradient, there; -1: in the caller's memory at once */
    int64_t floats;          /* the size of the workspace */
} Network;

/* The samples of a rollout. */
typedef struct {
    const void *obs;                     /* [b inputs], float32 or the bytes of images, or frames */
    const int64_t *stacks;               /* [b image.frames] the frames of a sample; or NULL */
    Normaliser normaliser;               /* of the observations */
    const int64_t *choice;               /* [b] for a categorical head */
    const uint8_t *legal;                /* [b outputs - 1] its choices; NULL: all are */
    const uint8_t *first;                /* [b] 1: a sequence begins; NULL without memory */
    const float *state;                  /* [b memory] the memory before a sample */
    const float *act;                    /* [b outputs - 1] for a Gaussian one */
    const float *logp, *val, *adv, *ret; /* [b] */
} Batch;

/* A minibatch: its samples, and the numbers that normalise their advantages. With memory they are
 * whole sequences, none of which is longer than most_rows. */
typedef struct {
    const int64_t *index;
    int64_t rows;
    float adv_mean, adv_scale;
} Minibatch;

/* The coefficients of the loss. */
typedef struct {
    float low, high, range; /* clipping of the ratio: 1 - range, 1 + range */
    float value_range;      /* negative: the value is not clipped */
    float dual;             /* dual clip; infinite: none */
    float entropy, value;   /* weights in the loss */
} Coefs;

/* The numbers of the optimiser. */
typedef struct {
    double lr, beta1, beta2, eps, max_norm;
} Adam;

/* Fill `network`; return NULL, or the reason why the plan is invalid. */
const char *update_network(const int64_t *plan, int64_t layers, int64_t log_std, Network *network);

/* Pack the weights in the workspace, for all shards of the minibatch. */
void update_pack(const Network *network, const float *params, float *work);

/* The mean and 1 / (std + 1e-8) of a minibatch's advantages into `part`, std with ddof 1; 0 and 1
 * under two rows, and a scale of 0 where they are constant. */
void update_advantages(const Batch *batch, Minibatch *part);

/* The number of shards of a minibatch, 1 to MAX_SHARDS. */
int64_t update_shards(const Network *network, int64_t rows);

/* grad [params] = a shard's part of the minibatch's gradient, sums [SUMS] = its statistics, summed
 * over its rows. Writes to nothing else but `work`, which no other shard may use meanwhile. */
void update_shard(const Network *network, const Batch *batch, const Minibatch *part,
                  const Coefs *coefs, int64_t shard, const float *params, float *work,
                  float *grad, double *sums);

/* Replace the first of the gradients, `stride` floats apart, by their sum, added in a binary tree;
 * return its Euclidean norm. */
double update_reduce(float *grads, int64_t stride, int64_t shards, int64_t params);

/* Adam's step number `step` (from 1), values -= lr m / (sqrt(v) + eps), on the gradient clipped to
 * max_norm; none if the norm is not finite. Source: Kingma and Ba 2015; torch.optim.Adam. */
void update_adam(const Adam *adam, int64_t step, const float *grad, double norm, int64_t params,
                 float *exp_avg, float *exp_avg_sq, float *values);

/* stats [STATS] from the shards' sums [shards SUMS]. */
void update_stats(const double *sums, int64_t shards, int64_t rows, double norm, float *stats);

#endif
