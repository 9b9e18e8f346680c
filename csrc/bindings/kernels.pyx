"""Typed entry points of the compiled kernels, called through fastppo/machine/kernels.py.

Typed memoryviews check dtype and contiguity, or `view_of` does where a call per environment step
must be cheap; integer comparisons check the sizes. kernels.py turns an error raised here into a
KernelError. The C runs without the GIL.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS,
    PyBUF_FORMAT,
    PyBUF_STRIDES,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.stdint cimport int16_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

cdef extern from "rollout/returns.h" nogil:
    void c_gae "gae"(const float *rew, const float *val, const float *nxt, const uint8_t *term,
                     const uint8_t *trunc, const uint8_t *valid, int64_t steps, int64_t envs,
                     double gamma, double lam, float *adv)
    void discounted_f32(const float *rew, const uint8_t *ended, const uint8_t *valid, int64_t steps,
                        int64_t envs, double gamma, double *carry, double *out)
    void discounted_f64(const double *rew, const uint8_t *ended, const uint8_t *valid,
                        int64_t steps, int64_t envs, double gamma, double *carry, double *out)
    void merge_moments_f32(const float *x, int64_t rows, int64_t columns, double *count,
                           double *mean, double *m2)
    void merge_moments_f64(const double *x, int64_t rows, int64_t columns, double *count,
                           double *mean, double *m2)
    int64_t c_first_nonfinite "first_nonfinite"(const float *x, int64_t n)

cdef extern from "rng/noise.h" nogil:
    uint32_t noise_word(uint64_t seed, uint32_t purpose, uint32_t env, uint32_t step,
                        uint32_t component)
    void noise_uniform(uint64_t seed, uint32_t purpose, uint32_t env, uint32_t step, int64_t rows,
                       int64_t columns, float *out)
    void noise_normal(uint64_t seed, uint32_t purpose, uint32_t env, uint32_t step, int64_t rows,
                      int64_t columns, float *out)
    void noise_permutation(uint64_t seed, uint32_t iteration, uint32_t epoch, int64_t n,
                           int64_t *out)

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

cdef extern from "network/forward.h" nogil:
    enum: PLAN_COLUMNS, ROWS, STACK_FLOATS
    ctypedef struct Image:
        int64_t frames, channels, places, last
    ctypedef struct Layout:
        int64_t floats, outputs, packed, params, inputs, memory
        Image image
    ctypedef struct Normaliser:
        const float *mean
        const float *scale
        float limit
    ctypedef struct Memory:
        const float *before
        float *after
    const char *plan_layout(const int64_t *plan, int64_t layers, Layout *layout)
    void plan_pack(const int64_t *plan, int64_t layers, const float *params, float *packed)
    void plan_forward(const int64_t *plan, int64_t layers, const Layout *layout,
                     const float *packed, const Normaliser *normaliser, const void *obs,
                     int64_t n, Memory memory, float *work, float *out)

cdef extern from "network/heads.h" nogil:
    enum: MAX_CHOICES
    void c_categorical "sample_categorical"(const float *logits, int64_t stride, const float *u,
                                            int64_t n, int64_t k, int64_t *act, float *logp)
    void c_gaussian "sample_gaussian"(const float *mean, int64_t stride, const float *log_std,
                                      const float *z, int64_t n, int64_t k, float *act, float *logp)


def gae(const float[:, ::1] rew not None, const float[:, ::1] val not None,
        const float[:, ::1] nxt not None, term, trunc, valid, double gamma, double lam,
        float[:, ::1] adv not None):
    cdef const uint8_t[:, ::1] terminal = term.view("u1"), truncated = trunc.view("u1")
    cdef const uint8_t[:, ::1] counted = valid.view("u1")
    cdef int64_t steps = rew.shape[0], envs = rew.shape[1]
    if steps and envs:
        with nogil:
            c_gae(&rew[0, 0], &val[0, 0], &nxt[0, 0], &terminal[0, 0], &truncated[0, 0],
                  &counted[0, 0], steps, envs, gamma, lam, &adv[0, 0])


ctypedef fused real:
    float
    double


cdef void sum_discounted(const real[:, ::1] rew, const uint8_t[:, ::1] ended,
                         const uint8_t[:, ::1] valid, double gamma, double[::1] carry,
                         double[:, ::1] out) noexcept nogil:
    cdef int64_t steps = rew.shape[0], envs = rew.shape[1]
    if real is float:
        discounted_f32(&rew[0, 0], &ended[0, 0], &valid[0, 0], steps, envs, gamma, &carry[0],
                       &out[0, 0])
    else:
        discounted_f64(&rew[0, 0], &ended[0, 0], &valid[0, 0], steps, envs, gamma, &carry[0],
                       &out[0, 0])


def discounted(rew, ended, valid, double gamma, double[::1] carry not None,
               double[:, ::1] out not None):
    cdef const uint8_t[:, ::1] ends = ended.view("u1"), counted = valid.view("u1")
    cdef const float[:, ::1] single
    cdef const double[:, ::1] double_
    if rew.size and rew.itemsize == 4:
        single = rew
        with nogil:
            sum_discounted(single, ends, counted, gamma, carry, out)
    elif rew.size:
        double_ = rew
        with nogil:
            sum_discounted(double_, ends, counted, gamma, carry, out)


cdef void merge_rows(const real[:, ::1] x, double[::1] count, double[::1] mean,
                     double[::1] m2) noexcept nogil:
    if real is float:
        merge_moments_f32(&x[0, 0], x.shape[0], x.shape[1], &count[0], &mean[0], &m2[0])
    else:
        merge_moments_f64(&x[0, 0], x.shape[0], x.shape[1], &count[0], &mean[0], &m2[0])


def merge_moments(x, double[::1] count not None, double[::1] mean not None,
                  double[::1] m2 not None):
    cdef const float[:, ::1] single
    cdef const double[:, ::1] double_
    if x.size and x.itemsize == 4:
        single = x
        with nogil:
            merge_rows(single, count, mean, m2)
    elif x.size:
        double_ = x
        with nogil:
            merge_rows(double_, count, mean, m2)


cdef enum:
    IN = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT
    IN_ROWS = PyBUF_STRIDES | PyBUF_FORMAT  # rows are contiguous, and may lie apart
    OUT = IN | PyBUF_WRITABLE

cdef struct View:
    void *data
    int64_t rows, columns, stride  # the stride of rows in elements; columns is 1 in one dimension


cdef Py_ssize_t size_of(char kind) noexcept:
    return 1 if kind == c'B' else 2 if kind == c'h' else 4 if kind == c'f' else 8


cdef View view_of(array, char kind, int ndim, int flags) except *:
    """The memory of an array of this dtype, rank and layout; valid while `array` is referenced.

    Takes 80 ns, where a typed memoryview takes 350. kind: f float32, d float64, l int64,
    h int16, B uint8. Raises ValueError or BufferError for another array.
    """
    cdef Py_buffer buffer
    cdef View view
    cdef bint fits
    PyObject_GetBuffer(array, &buffer, flags)
    fits = buffer.ndim == ndim and buffer.format[1] == 0
    fits = fits and (buffer.format[0] == kind or kind == c'l' and buffer.format[0] == c'q')
    fits = fits and buffer.itemsize == size_of(kind)  # a C long may have 32 bits
    if fits:
        view.data, view.rows, view.columns = buffer.buf, buffer.shape[0], 1
        view.stride = buffer.strides[0] // buffer.itemsize
        fits = buffer.strides[0] % buffer.itemsize == 0
        if ndim == 2:
            view.columns = buffer.shape[1]
            fits = fits and (view.columns == 1 or buffer.strides[1] == buffer.itemsize)
    PyBuffer_Release(&buffer)
    if not fits:
        raise ValueError("wrong dtype, rank or layout")
    return view


cdef void expect(View view, name, int64_t rows, int64_t columns) except *:
    """Raise ValueError unless the array has these sizes."""
    if view.rows != rows or view.columns != columns:
        raise ValueError(f"{name} is {view.rows, view.columns}, wanted {rows, columns}")


def uniform(uint64_t seed, uint32_t purpose, uint32_t env0, int64_t step, out):
    cdef View fill = view_of(out, c'f', 2, OUT)
    with nogil:
        noise_uniform(seed, purpose, env0, <uint32_t>step, fill.rows, fill.columns,
                      <float *>fill.data)


def normal(uint64_t seed, uint32_t purpose, uint32_t env0, int64_t step, out):
    cdef View fill = view_of(out, c'f', 2, OUT)
    with nogil:
        noise_normal(seed, purpose, env0, <uint32_t>step, fill.rows, fill.columns,
                     <float *>fill.data)


def word(uint64_t seed, uint32_t purpose, uint32_t env, int64_t step, uint32_t component=0):
    return noise_word(seed, purpose, env, <uint32_t>step, component)


def permutation(uint64_t seed, int64_t iteration, int64_t epoch, int64_t[::1] out not None):
    if out.shape[0]:
        with nogil:
            noise_permutation(seed, <uint32_t>iteration, <uint32_t>epoch, out.shape[0], &out[0])


cdef int layout_of(View plan, Layout *layout) except -1:
    """Fill `layout` from a plan; raises ValueError for a wrong plan."""
    cdef const char *fault
    if plan.columns != PLAN_COLUMNS:
        raise ValueError(f"plan does not have {PLAN_COLUMNS} columns")
    fault = plan_layout(<const int64_t *>plan.data, plan.rows, layout)
    if fault != NULL:
        raise ValueError("plan: " + fault.decode())
    return 0


def packed_size(plan):
    cdef Layout layout
    layout_of(view_of(plan, c'l', 2, IN), &layout)
    return layout.packed


def pack(plan, params, packed):
    cdef Layout layout
    cdef View rows = view_of(plan, c'l', 2, IN)
    cdef View flat = view_of(params, c'f', 1, IN), fill = view_of(packed, c'f', 1, OUT)
    layout_of(rows, &layout)
    if flat.rows < layout.params:
        raise ValueError(f"params has {flat.rows} floats, the plan reads {layout.params}")
    if fill.rows != layout.packed:
        raise ValueError(f"packed has {fill.rows} floats, the plan needs {layout.packed}")
    with nogil:
        plan_pack(<const int64_t *>rows.data, rows.rows, <const float *>flat.data,
                 <float *>fill.data)


cdef const float *moments(array, int64_t inputs) except? NULL:
    """The memory of mean or scale [inputs]; NULL for None."""
    cdef View view
    if array is None:
        return NULL
    view = view_of(array, c'f', 1, IN)
    if view.rows != inputs:
        raise ValueError(f"mean and scale are not of size {inputs}")
    return <const float *>view.data


cdef Normaliser normaliser_of(mean, scale, float limit, int64_t inputs) except *:
    if (mean is None) != (scale is None):
        raise ValueError("mean and scale are given together, or both None")
    return Normaliser(moments(mean, inputs), moments(scale, inputs), limit)


cdef View observations(obs, Image image) except *:
    """The memory of observations [n inputs]: float32, or the bytes of images."""
    return view_of(obs, c'B' if image.places else c'f', 2, IN)


cdef Memory state_of_rows(before, after, int64_t rows, int64_t size) except *:
    """The memory of rows before and, unless it is None, after a step."""
    cdef Memory memory = Memory(NULL, NULL)
    cdef View view
    if size:
        view = view_of(before, c'f', 2, IN)
        expect(view, "before", rows, size)
        memory.before = <const float *>view.data
        if after is not None:
            view = view_of(after, c'f', 2, OUT)
            expect(view, "after", rows, size)
            memory.after = <float *>view.data
    return memory


def forward(plan, packed, mean, scale, obs, out, double limit=10.0, before=None, after=None):
    cdef Layout layout
    cdef View rows = view_of(plan, c'l', 2, IN), weights = view_of(packed, c'f', 1, IN)
    cdef View x, y = view_of(out, c'f', 2, OUT)
    cdef Normaliser normaliser
    cdef Memory memory
    cdef float *work = NULL
    layout_of(rows, &layout)
    x = observations(obs, layout.image)
    normaliser = normaliser_of(mean, scale, limit, layout.inputs)
    if x.columns != layout.inputs or weights.rows != layout.packed:
        raise ValueError(f"obs has {x.columns} columns and packed {weights.rows} floats, "
                         f"the plan wants {layout.inputs} and {layout.packed}")
    if y.rows != x.rows or y.columns != layout.outputs:
        raise ValueError(f"out is {y.rows, y.columns}, wanted {x.rows, layout.outputs}")
    memory = state_of_rows(before, after, x.rows, layout.memory)
    if layout.floats > STACK_FLOATS:
        work = <float *>aligned_alloc(64, ROWS * layout.floats * sizeof(float))
        if work == NULL:
            raise MemoryError(f"no memory for {ROWS * layout.floats} floats")
    with nogil:
        plan_forward(<const int64_t *>rows.data, rows.rows, &layout, <const float *>weights.data,
                    &normaliser, x.data, x.rows, memory, work, <float *>y.data)
    free(work)


def sample_categorical(logits, u, act, logp):
    cdef View x = view_of(logits, c'f', 2, IN_ROWS), noise = view_of(u, c'f', 1, IN)
    cdef View i = view_of(act, c'l', 1, OUT), p = view_of(logp, c'f', 1, OUT)
    if x.columns < 1 or x.columns > MAX_CHOICES:
        raise ValueError(f"{x.columns} choices, but 1 to {MAX_CHOICES} are supported")
    if noise.rows != x.rows or i.rows != x.rows or p.rows != x.rows:
        raise ValueError(f"u, act and logp are not of size {x.rows}")
    with nogil:
        c_categorical(<const float *>x.data, x.stride, <const float *>noise.data, x.rows,
                      x.columns, <int64_t *>i.data, <float *>p.data)


def sample_gaussian(mean, log_std, z, act, logp):
    cdef View x = view_of(mean, c'f', 2, IN_ROWS), spread = view_of(log_std, c'f', 1, IN)
    cdef View noise = view_of(z, c'f', 2, IN)
    cdef View a = view_of(act, c'f', 2, OUT), p = view_of(logp, c'f', 1, OUT)
    if noise.rows != x.rows or a.rows != x.rows or p.rows != x.rows:
        raise ValueError(f"z, act and logp do not have the {x.rows} rows of mean")
    if spread.rows != x.columns or noise.columns != x.columns or a.columns != x.columns:
        raise ValueError(f"log_std, z and act do not have the {x.columns} columns of mean")
    with nogil:
        c_gaussian(<const float *>x.data, x.stride, <const float *>spread.data,
                   <const float *>noise.data, x.rows, x.columns, <float *>a.data,
                   <float *>p.data)


def first_nonfinite(x):
    cdef Py_buffer view
    cdef int64_t at
    PyObject_GetBuffer(x, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    try:
        if view.itemsize != 4 or view.format[0] != c'f' or view.format[1] != 0:
            raise ValueError("not float32")
        at = c_first_nonfinite(<const float *>view.buf, view.len // 4)
    finally:
        PyBuffer_Release(&view)
    return at


include "update.pxi"
include "gru.pxi"
include "pixels.pxi"
include "envs.pxi"
