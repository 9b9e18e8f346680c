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
        int64_t stride, state, state_bytes, options, obs_bytes, act_bytes, env0
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


cdef uint8_t *memory_of(array, int64_t *stride) except NULL:
    """The memory of an array, and the bytes between its rows; valid while it is referenced."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(array, &buffer, PyBUF_STRIDES | PyBUF_WRITABLE)
    stride[0] = buffer.strides[0]
    PyBuffer_Release(&buffer)
    return <uint8_t *>buffer.buf


cdef class EnvRows:
    """See machine.kernels.EnvRows."""
    cdef Rows rows
    cdef int64_t count, steps
    cdef uint8_t *record[6]
    cdef int64_t strides[6]
    cdef object arrays

    def __init__(self, functions, rows, before, offsets, uint64_t seed, int64_t env0, record):
        cdef size_t reset, step, observe
        reset, step, observe = functions
        reward, fin = record[0], record[4]
        self.rows.call = Functions(<void *>reset, <void *>step, <void *>observe)
        self.rows.rows = memory_of(rows, &self.rows.stride)
        self.rows.before = memory_of(before, &self.rows.state_bytes)
        self.rows.state, self.rows.options = offsets
        self.rows.state_bytes, self.rows.obs_bytes = before.nbytes, fin.nbytes // len(fin)
        self.rows.seed, self.rows.env0 = seed, env0
        self.steps, self.count = reward.shape
        for i, array in enumerate(record):
            self.record[i] = memory_of(array, &self.strides[i])
        self.arrays = rows, before, record  # held for as long as their memory is used

    def step(self, int64_t t, int64_t now, int64_t start, int64_t stop, act):
        """Takes step `t` of a rollout, `now` of the run, in rows [start, stop); see rows_step.

        act [e ...] are their actions as the environments take them.
        """
        cdef Record at
        cdef int64_t stride
        if not (0 <= t < self.steps and 0 <= start < stop <= self.count
                and len(act) == stop - start):
            raise ValueError(f"no step {t} of rows {start, stop}")
        at.act = memory_of(act, &stride)
        self.rows.act_bytes = act.nbytes // (stop - start)
        at.act -= start * self.rows.act_bytes
        at.reward = <double *>(self.record[0] + t * self.strides[0])
        at.term = self.record[1] + t * self.strides[1]
        at.trunc = self.record[2] + t * self.strides[2]
        at.obs = self.record[3] + (t + 1) * self.strides[3]
        at.final = self.record[4]
        at.length = <int64_t *>(self.record[5] + t * self.strides[5])
        with nogil:
            failed = rows_step(&self.rows, &at, now, start, stop)
        return failed
