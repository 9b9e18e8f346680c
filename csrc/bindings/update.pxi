"""The update of csrc/update/ as an object that holds its arrays; part of kernels.pyx."""

from cpython.exc cimport PyErr_CheckSignals
from libc.math cimport INFINITY

from fastppo.errors import KernelError

cdef extern from "update/update.h" nogil:
    cpdef enum: MAX_SHARDS, SUMS, STATS
    ctypedef struct Network:
        int64_t inputs, outputs, params, memory, log_std, floats
        Image image
    ctypedef struct Batch:
        const void *obs
        const int64_t *stacks
        Normaliser normaliser
        const int64_t *choice
        const uint8_t *legal
        const uint8_t *first
        const float *state
        const float *act
        const float *logp
        const float *val
        const float *adv
        const float *ret
    ctypedef struct Minibatch:
        const int64_t *index
        int64_t rows
        float adv_mean, adv_scale
    ctypedef struct Coefs:
        float low, high, range, value_range, dual, entropy, value
    ctypedef struct Adam:
        double lr, beta1, beta2, eps, max_norm
    const char *update_network(const int64_t *plan, int64_t layers, int64_t log_std,
                               Network *network)
    void update_pack(const Network *network, const float *params, float *work)
    void update_advantages(const Batch *batch, Minibatch *part)
    int64_t update_shards(const Network *network, int64_t rows)
    void update_shard(const Network *network, const Batch *batch, const Minibatch *part,
                      const Coefs *coefs, int64_t shard, const float *params, float *work,
                      float *grad, double *sums)
    double update_reduce(float *grads, int64_t stride, int64_t shards, int64_t params)
    void update_adam(const Adam *adam, int64_t step, const float *grad, double norm,
                     int64_t params, float *exp_avg, float *exp_avg_sq, float *values)
    void update_stats(const double *sums, int64_t shards, int64_t rows, double norm, float *stats)


cdef int network_of(plan, log_std, Network *network) except -1:
    """Fill `network` from a plan; raises ValueError for a wrong plan."""
    cdef View rows = view_of(plan, c'l', 2, IN)
    cdef const char *fault
    if rows.columns != PLAN_COLUMNS:
        raise ValueError(f"plan does not have {PLAN_COLUMNS} columns")
    fault = update_network(<const int64_t *>rows.data, rows.rows,
                           -1 if log_std is None else log_std, network)
    if fault != NULL:
        raise ValueError("plan: " + fault.decode())
    return 0


def update_sizes(plan, log_std):
    cdef Network network
    network_of(plan, log_std, &network)
    return network.params, network.floats


cdef void *floats(array, int64_t n, int flags) except NULL:
    """The memory of an array float32 [n]; raises ValueError for another size."""
    cdef View view = view_of(array, c'f', 1, flags)
    if view.rows != n:
        raise KernelError(f"update: an array has {view.rows} floats, wanted {n}")
    return view.data


cdef class Update:
    """The base of machine.kernels.MinibatchUpdate.

    `minibatch` equals `begin`, then every `shard` in any order, then `finish`. The bits depend
    neither on that order nor on the processes that compute the shards.
    """
    cdef Network network
    cdef Batch batch
    cdef Minibatch part
    cdef Coefs coefs
    cdef Adam adam
    cdef float *params
    cdef float *exp_avg
    cdef float *exp_avg_sq
    cdef float *grads
    cdef int64_t stride
    cdef double *sums
    cdef float *work
    cdef const int64_t *order
    cdef int64_t places
    cdef bint normalised
    cdef object arrays

    def __init__(self, plan, log_std, double limit, memory, samples, order, terms):
        network_of(plan, log_std, &self.network)
        self._take_memory(*memory)
        self._take_samples(*samples, limit)
        self._take_order(order, len(samples[2]))
        self.set_coefficients(terms)
        self.arrays = memory, samples, order  # held for as long as their memory is used

    def _take_memory(self, params, exp_avg, exp_avg_sq, grads, sums, work):
        cdef int64_t n = self.network.params
        cdef View rows = view_of(grads, c'f', 2, OUT), totals = view_of(sums, c'd', 2, OUT)
        if rows.rows != MAX_SHARDS or rows.columns < n:
            raise ValueError(f"grads is {rows.rows, rows.columns}, wanted {MAX_SHARDS, n} or wider")
        if totals.rows != MAX_SHARDS or totals.columns != SUMS:
            raise ValueError(f"sums is {totals.rows, totals.columns}, wanted {MAX_SHARDS, SUMS}")
        self.params = <float *>floats(params, n, OUT)
        if exp_avg is not None:
            self.exp_avg = <float *>floats(exp_avg, n, OUT)
            self.exp_avg_sq = <float *>floats(exp_avg_sq, n, OUT)
        self.grads, self.stride, self.sums = <float *>rows.data, rows.columns, <double *>totals.data
        self.work = <float *>floats(work, self.network.floats, OUT)

    def _take_samples(self, obs, act, logp, val, adv, ret, mean, scale, stacks, legal, first, state,
                      float limit):
        cdef View x = observations(obs, self.network.image)
        cdef const int64_t *numbers = NULL
        cdef bint discrete = self.network.log_std < 0
        cdef View a = view_of(act, c'l', 1, IN) if discrete else view_of(act, c'f', 2, IN)
        cdef int64_t columns = 1 if discrete else self.network.outputs - 1
        if stacks is not None:
            numbers = self._stacks(stacks, &x)
        if x.columns != self.network.inputs:
            raise ValueError(f"obs has {x.columns} columns, wanted {self.network.inputs}")
        if a.rows != x.rows or a.columns != columns:
            raise ValueError(f"act is {a.rows, a.columns}, wanted {x.rows, columns}")
        cdef View choices
        cdef const uint8_t *mask = NULL
        if legal is not None:
            choices = view_of(legal.view("u1"), c'B', 2, IN)
            mask = <const uint8_t *>choices.data
            if choices.rows != x.rows or choices.columns != self.network.outputs - 1:
                raise ValueError(f"legal is {choices.rows, choices.columns}, wanted"
                                 f" {x.rows, self.network.outputs - 1}")
        cdef View begins = View(NULL, 0, 0, 0), memory = View(NULL, 0, 0, 0)
        if self.network.memory:
            begins, memory = view_of(first.view("u1"), c'B', 1, IN), view_of(state, c'f', 2, IN)
            expect(begins, "first", x.rows, 1)
            expect(memory, "state", x.rows, self.network.memory)
        self.batch = Batch(
            x.data, numbers, normaliser_of(mean, scale, limit, x.columns),
            <const int64_t *>a.data, mask, <const uint8_t *>begins.data,
            <const float *>memory.data, <const float *>a.data,
            <const float *>floats(logp, x.rows, IN), <const float *>floats(val, x.rows, IN),
            <const float *>floats(adv, x.rows, IN), <const float *>floats(ret, x.rows, IN))

    cdef const int64_t *_stacks(self, stacks, View *x) except NULL:
        """The numbers of frames; `x`, the frames [f bytes], becomes a view of observations."""
        cdef View numbers = view_of(stacks, c'l', 2, IN)
        cdef const int64_t *found = <const int64_t *>numbers.data
        cdef Image *image = &self.network.image
        cdef int64_t i, depth = numbers.columns, planes = image.frames * image.channels
        if not 1 <= depth <= planes or planes % depth or image.last and depth != image.frames:
            raise ValueError(f"stacks has {depth} columns, for {planes} planes")
        image.frames, image.channels = depth, planes // depth
        for i in range(numbers.rows * numbers.columns):
            if found[i] < 0 or found[i] >= x.rows:
                raise ValueError(f"stacks has {found[i]}, of {x.rows} frames")
        x.rows, x.columns = numbers.rows, x.columns * depth
        return found

    def _take_order(self, order, int64_t rows):
        cdef View places = view_of(order, c'l', 1, IN)
        cdef int64_t i
        self.order, self.places = <const int64_t *>places.data, places.rows
        for i in range(self.places):
            if self.order[i] < 0 or self.order[i] >= rows:
                raise ValueError(f"order[{i}] is {self.order[i]}, of {rows} samples")

    def set_coefficients(self, terms):
        """Use these UpdateCoefficients from now on."""
        cdef double clip_range, entropy_coef, value_coef, max_grad_norm, adam_eps
        (clip_range, clip_range_vf, entropy_coef, value_coef, dual_clip, max_grad_norm,
         norm_advantages, betas, adam_eps) = terms
        self.coefs = Coefs(1 - clip_range, 1 + clip_range, clip_range,
                           -1 if clip_range_vf is None else clip_range_vf,
                           INFINITY if dual_clip is None else dual_clip, entropy_coef, value_coef)
        self.adam = Adam(0, betas[0], betas[1], adam_eps, max_grad_norm)
        self.normalised = norm_advantages

    def shards(self, int64_t rows):
        """The number of shards of a minibatch of `rows` samples, 1 to MAX_SHARDS."""
        return update_shards(&self.network, rows)

    cpdef int64_t begin(self, int64_t first, int64_t last) except -1:
        """Start on the samples order[first:last], at the current params; returns their shards."""
        if first < 0 or last > self.places or first >= last:
            raise KernelError(f"update: places {first} to {last} of an order of {self.places}")
        self.part = Minibatch(self.order + first, last - first, 0, 1)
        with nogil:
            if self.normalised:
                update_advantages(&self.batch, &self.part)
            update_pack(&self.network, self.params, self.work)
        return update_shards(&self.network, self.part.rows)

    cpdef int shard(self, int64_t shard) except -1:
        """Write one shard's gradient and statistics into its rows of memory.grads and .sums."""
        if shard < 0 or shard >= update_shards(&self.network, self.part.rows) or not self.part.rows:
            raise KernelError(f"update: no minibatch with a shard {shard} has begun")
        with nogil:
            update_shard(&self.network, &self.batch, &self.part, &self.coefs, shard, self.params,
                         self.work, self.grads + shard * self.stride, self.sums + shard * SUMS)
        return 0

    cpdef int add_up(self, double weight) except -1:
        """Make the first rows of grads and sums the sums of all shards; grads times `weight`."""
        cdef int64_t shards = update_shards(&self.network, self.part.rows), i, s
        if not self.part.rows:
            raise KernelError("update: no minibatch has begun")
        with nogil:
            update_reduce(self.grads, self.stride, shards, self.network.params)
            for i in range(self.network.params):
                self.grads[i] = <float>(weight * self.grads[i])
            for s in range(1, shards):
                for i in range(SUMS):
                    self.sums[i] += self.sums[s * SUMS + i]
        return 0

    cpdef int finish(self, int64_t step, double lr, stats, bint added=False) except -1:
        """Add up the shards, clip, take the Adam step and fill stats, as `minibatch` does.

        `added`: they are added up already, in the first row; the rows of stats are this process's.
        """
        cdef float *out = <float *>floats(stats, STATS, OUT)
        cdef int64_t shards = update_shards(&self.network, self.part.rows), n = self.network.params
        cdef double norm
        if added:
            shards = 1
        if step < 1 or not (self.part.rows or added):
            raise KernelError(f"update: no minibatch has begun, or its step {step} is below 1")
        if self.exp_avg == NULL:
            raise KernelError("update: the memory has no moments of Adam to finish with")
        self.adam.lr = lr
        with nogil:
            norm = update_reduce(self.grads, self.stride, shards, n)
            update_adam(&self.adam, step, self.grads, norm, n, self.exp_avg, self.exp_avg_sq,
                        self.params)
            update_stats(self.sums, shards, max(self.part.rows, 1), norm, out)
        return 0

    def minibatch(self, int64_t first, int64_t last, int64_t step, double lr, stats):
        """One Adam step, its number `step` counted from 1, on the samples order[first:last].

        Fills stats f32 [STATS] in the order of statistics.LOSSES; the norm is that before clipping.
        """
        cdef int64_t shard
        for shard in range(self.begin(first, last)):
            self.shard(shard)
            PyErr_CheckSignals()  # Ctrl-C waits for one shard, not for the epoch
        self.finish(step, lr, stats)
