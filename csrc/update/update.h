/* One minibatch of PPO on the flat parameters: gradients of row shards, then one Adam step.
 *
 *     pack -> for every shard: forward, loss, backward -> reduce, clip, Adam
 *
 * Shards are fixed by the minibatch's size alone and their gradients are added in a fixed tree, so
 * it does not matter who computes which, nor in what order. torch's learner is the definition.
 */
#ifndef FASTPPO_UPDATE_H
#define FASTPPO_UPDATE_H

#include <stdint.h>

#include "mlp/mlp.h"

enum { MAX_LAYERS = 64, MAX_SHARDS = 8, SHARD_ROWS = 32 };

/* Means over a minibatch, in the order of learner.STATS; the norm of the gradient comes last. */
enum { GAIN, ERROR, ENTROPY, KL, OLD_KL, CLIPPED, SUMS, STATS = SUMS + 1 };

/* A layer of the plan, and where it works. */
typedef struct {
    int64_t n, out, weight, bias, activation; /* widths, places in the parameters */
    int64_t source;            /* the layer it reads; -1: the observation */
    int64_t column;            /* the output's column where its own begin; -1: a hidden layer */
    int64_t adds;              /* a later layer reads the same source */
    int64_t y, delta;          /* outputs and their gradient, places in the workspace */
    int64_t forward, backward; /* the packed weights, places in the workspace */
} Layer;

/* A policy as the update sees it: the layers, the head, and the sizes of everything. */
typedef struct {
    Layer layer[MAX_LAYERS];
    int64_t layers, inputs, outputs, params;
    int64_t log_std;         /* its place in the parameters; -1: a categorical head */
    int64_t x, out, scratch; /* observations, outputs, the head's, places in the workspace */
    int64_t floats;          /* the size of the workspace */
} Network;

/* The samples of a rollout. */
typedef struct {
    const float *obs;                    /* [b inputs] */
    Normaliser normaliser;               /* of the observations */
    const int64_t *choice;               /* [b] for a categorical head */
    const float *act;                    /* [b outputs - 1] for a Gaussian one */
    const float *logp, *val, *adv, *ret; /* [b] */
} Batch;

/* A minibatch: which samples, and what brings their advantages to mean 0 and std 1. */
typedef struct {
    const int64_t *index;
    int64_t rows;
    float adv_mean, adv_scale;
} Minibatch;

/* The coefficients of the loss. */
typedef struct {
    float low, high, range; /* of the ratio: 1 - range, 1 + range */
    float value_range;      /* negative: the value is not clipped */
    float dual;             /* largest factor on a negative advantage; infinite: any */
    float entropy, value;   /* weights in the loss */
} Coefs;

/* The numbers of the optimiser. */
typedef struct {
    double lr, beta1, beta2, eps, max_norm;
} Adam;

/* Fill `network`; return NULL, or what is wrong with the plan. */
const char *update_network(const int64_t *plan, int64_t layers, int64_t log_std, Network *network);

/* Copy the weights to the workspace, as every shard of the minibatch reads them. */
void update_pack(const Network *network, const float *params, float *work);

/* The mean and 1 / (std + 1e-8) of a minibatch's advantages into `part`, std with ddof 1; 0 and 1
 * under two rows, and a scale of 0 where they are constant. */
void update_advantages(const Batch *batch, Minibatch *part);

/* How many shards a minibatch has, 1 to MAX_SHARDS. */
int64_t update_shards(int64_t rows);

/* grad [params] = a shard's part of the minibatch's gradient, sums [SUMS] = its statistics, summed
 * over its rows. The workspace is the caller's alone; nothing else is written. */
void update_shard(const Network *network, const Batch *batch, const Minibatch *part,
                  const Coefs *coefs, int64_t shard, const float *params, float *work,
                  float *grad, double *sums);

/* The first of the gradients, `stride` floats apart, becomes their sum, added in a binary tree;
 * returns its Euclidean norm. */
double update_reduce(float *grads, int64_t stride, int64_t shards, int64_t params);

/* params -= lr m / (sqrt(v) + eps) in Adam's step number `step` (from 1), of the gradient brought
 * down to max_norm. Source: Kingma and Ba 2015; torch.optim.Adam. */
void update_adam(const Adam *adam, int64_t step, const float *grad, double norm, int64_t params,
                 float *exp_avg, float *exp_avg_sq, float *values);

/* stats [STATS] from the shards' sums [shards SUMS]. */
void update_stats(const double *sums, int64_t shards, int64_t rows, double norm, float *stats);

#endif
