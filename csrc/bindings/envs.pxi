"""The steps of csrc/envs/ as an object that holds its arrays; part of kernels.pyx."""

cdef extern from "envs/rows.h" nogil:
    ctypedef struct Functions:
        void *reset
        void *step
        void *observe
    ctypedef struct Rows:
        Functions call
        uint8_t *rows
        uint8_t *before
        int64_t stride, state, state_bytes, options, obs_bytes, act_bytes, env0, floats
        uint64_t seed
    ctypedef struct Record:
        const uint8_t *act
        double *reward
        uint8_t *term
        uint8_t *trunc
        uint8_t *obs
        uint8_t *final
        int64_t *length
    int64_t rows_step(const Rows *rows, const Record *record, int64_t now, int64_t start,
                      int64_t stop)

cdef extern from "envs/rollout.h" nogil:
    enum: REWARD, TERM, TRUNC, OBS, LENGTH, ACT, LOGP, VAL, NXT, ARRAYS
    ctypedef struct Policy:
        const int64_t *plan
        int64_t layers
        const Layout *layout
        const float *packed
        Normaliser normaliser
        const float *log_std
        const float *low
        const float *high
        int64_t components
        bint scaled
        uint64_t seed
        float *work
        float *out
        float *noise
        float *sent
    ctypedef struct Rollout:
        uint8_t *array[ARRAYS]
        int64_t stride[ARRAYS]
        uint8_t *final
        int64_t envs
    cpdef enum: GOING, POLICY_FAILED, ROW_FAILED, NOT_FINITE
    ctypedef struct Stop:
        int64_t t, row
        int reason
        double acting
    Stop rows_rollout(const Rows *rows, const Policy *policy, const Rollout *rollout, int64_t t,
                      int64_t steps, int64_t now, int64_t first, double seconds)


cdef uint8_t *memory_of(array, int64_t *stride) except NULL:
    """The memory of an array, valid while it is referenced, and the bytes between its rows."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(array, &buffer, PyBUF_STRIDES | PyBUF_WRITABLE)
    if stride != NULL:
        stride[0] = buffer.strides[0]
    PyBuffer_Release(&buffer)
    return <uint8_t *>buffer.buf


cdef class EnvRows:
    """Steps rows, with given actions or with a policy that acts; see machine/kernels.py."""
    cdef Rows rows
    cdef Rollout rollout
    cdef int64_t steps
    cdef object arrays

    def __init__(self, functions, rows, before, offsets, uint64_t seed, int64_t env0, final,
                 arrays):
        cdef size_t reset, step, observe
        reset, step, observe = functions
        self.rows.call = Functions(<void *>reset, <void *>step, <void *>observe)
        self.rows.rows = memory_of(rows, &self.rows.stride)
        self.rows.before = memory_of(before, NULL)
        self.rows.state, self.rows.options = offsets
        self.rows.state_bytes, self.rows.obs_bytes = before.nbytes, final.nbytes // len(final)
        self.rows.floats = self.rows.obs_bytes // 4 if final.dtype == "f4" else 0
        self.rows.seed, self.rows.env0 = seed, env0
        self.steps, self.rollout.envs = arrays[0].shape
        self.rollout.final = memory_of(final, NULL)
        for i, array in enumerate(arrays):
            self.rollout.array[i] = memory_of(array, &self.rollout.stride[i])
        self.arrays = rows, before, final, arrays  # held for as long as their memory is used

    def step(self, int64_t t, int64_t now, int64_t start, int64_t stop, act):
        """Takes step `t` of a rollout, `now` of the run, in rows [start, stop); see rows_step.

        act [e ...] are their actions as the environments take them.
        """
        cdef Record at
        cdef int64_t failed
        if not (0 <= t < self.steps and 0 <= start < stop <= self.rollout.envs
                and len(act) == stop - start):
            raise ValueError(f"no step {t} of rows {start, stop}")
        self.rows.act_bytes = act.nbytes // (stop - start)
        at.act = memory_of(act, NULL) - start * self.rows.act_bytes
        at.reward = <double *>self.place(REWARD, t)
        at.term, at.trunc = self.place(TERM, t), self.place(TRUNC, t)
        at.obs, at.final = self.place(OBS, t + 1), self.rollout.final
        at.length = <int64_t *>self.place(LENGTH, t)
        with nogil:
            failed = rows_step(&self.rows, &at, now, start, stop)
        return failed

    cdef uint8_t *place(self, int name, int64_t t):
        return self.rollout.array[name] + t * self.rollout.stride[name]

    def run(self, plan, packed, mean, scale, log_std, double limit, bounds, bint scaled,
            uint64_t seed, scratch, int64_t t, int64_t steps, int64_t now, int64_t first,
            double seconds):
        """Acts and takes steps t .. steps - 1; see rows_rollout, whose Stop is returned.

        `bounds` are low and high f32 [a] of Gaussian actions; `scratch` f32 arrays for noise,
        actions [e a] and the network's output [e p].
        """
        cdef Layout layout
        cdef Policy policy
        cdef Stop stop
        cdef View rows = view_of(plan, c'l', 2, IN), weights = view_of(packed, c'f', 1, IN)
        cdef View noise = view_of(scratch[0], c'f', 2, OUT), out = view_of(scratch[2], c'f', 2, OUT)
        layout_of(rows, &layout)
        policy.plan, policy.layers, policy.layout = <const int64_t *>rows.data, rows.rows, &layout
        policy.packed, policy.scaled, policy.seed = <const float *>weights.data, scaled, seed
        policy.normaliser = normaliser_of(mean, scale, limit, layout.inputs)
        policy.components = noise.columns
        policy.noise, policy.out = <float *>noise.data, <float *>out.data
        policy.sent = <float *>view_of(scratch[1], c'f', 2, OUT).data
        policy.log_std = policy.low = policy.high = policy.work = NULL
        self.rows.act_bytes = 8
        if log_std is not None:
            policy.log_std = <const float *>floats(log_std, noise.columns, IN)
            policy.low = <const float *>floats(bounds[0], noise.columns, IN)
            policy.high = <const float *>floats(bounds[1], noise.columns, IN)
            self.rows.act_bytes = 4 * noise.columns
        if (layout.memory or weights.rows != layout.packed or out.columns != layout.outputs
                or noise.rows != self.rollout.envs or out.rows != self.rollout.envs
                or self.rows.obs_bytes != layout.inputs * (1 if layout.image.places else 4)
                or len(self.arrays[3]) != ARRAYS or not 0 <= t <= steps <= self.steps):
            raise ValueError("the policy does not fit its plan, or the rows")
        if layout.floats > STACK_FLOATS:
            policy.work = <float *>aligned_alloc(64, ROWS * layout.floats * sizeof(float))
            if policy.work == NULL:
                raise MemoryError(f"no memory for {ROWS * layout.floats} floats")
        with nogil:
            stop = rows_rollout(&self.rows, &policy, &self.rollout, t, steps, now, first, seconds)
        free(policy.work)
        return stop
