"""The entry points of the GRU of csrc/gru/; part of kernels.pyx."""

cdef extern from "gru/gru.h" nogil:
    enum: GATES
    enum: KEPT
    ctypedef struct Unroll:
        int64_t size, steps
        const int64_t *sizes
    int64_t unroll_work(int64_t size, int64_t rows)
    void unroll_forward(const Unroll *unroll, const float *x, const float *weight,
                        const float *bias, const float *state, float *work, float *prev,
                        float *kept, float *out)
    void unroll_backward(const Unroll *unroll, const float *weight, const float *dout,
                         const float *prev, const float *kept, float *work, float *dx,
                         float *inner)


cdef Unroll unroll_of(View sizes, View weight, int64_t rows) except *:
    """The Unroll of `rows` samples; raises ValueError for wrong sizes or a wrong weight."""
    cdef Unroll unroll
    cdef int64_t total = 0, last = rows, t
    unroll.size, unroll.steps = weight.columns, sizes.rows
    unroll.sizes = <const int64_t *>sizes.data
    for t in range(sizes.rows):
        if not 0 < unroll.sizes[t] <= last:
            raise ValueError("sizes are not all above 0, or one is above the size before it")
        last = unroll.sizes[t]
        total += last
    if total != rows or not rows:
        raise ValueError(f"sizes are of {total} samples, the arrays have {rows}")
    expect(weight, "weight", GATES * weight.columns, weight.columns)
    return unroll


def unroll_floats(int64_t size, int64_t rows):
    return unroll_work(size, rows)


def unroll(sizes, x, weight, bias, state, work, prev, kept, out):
    cdef View into = view_of(x, c'f', 2, IN), matrix = view_of(weight, c'f', 2, IN)
    cdef View start = view_of(bias, c'f', 1, IN), first = view_of(state, c'f', 2, IN)
    cdef View place = view_of(work, c'f', 1, OUT), before = view_of(prev, c'f', 2, OUT)
    cdef View keep = view_of(kept, c'f', 2, OUT), fill = view_of(out, c'f', 2, OUT)
    cdef Unroll run = unroll_of(view_of(sizes, c'l', 1, IN), matrix, into.rows)
    cdef int64_t gates = GATES * run.size
    expect(into, "x", into.rows, gates)
    expect(start, "bias", gates, 1)
    expect(first, "state", run.sizes[0], run.size)
    expect(place, "work", unroll_work(run.size, run.sizes[0]), 1)
    expect(before, "prev", into.rows, run.size)
    expect(keep, "kept", into.rows, KEPT * run.size)
    expect(fill, "out", into.rows, run.size)
    with nogil:
        unroll_forward(&run, <const float *>into.data, <const float *>matrix.data,
                       <const float *>start.data, <const float *>first.data,
                       <float *>place.data, <float *>before.data, <float *>keep.data,
                       <float *>fill.data)


def unroll_back(sizes, weight, dout, prev, kept, work, dx, inner):
    cdef View matrix = view_of(weight, c'f', 2, IN), given = view_of(dout, c'f', 2, IN)
    cdef View before = view_of(prev, c'f', 2, IN), keep = view_of(kept, c'f', 2, IN)
    cdef View place = view_of(work, c'f', 1, OUT)
    cdef View outer = view_of(dx, c'f', 2, OUT), fill = view_of(inner, c'f', 2, OUT)
    cdef Unroll run = unroll_of(view_of(sizes, c'l', 1, IN), matrix, given.rows)
    cdef int64_t gates = GATES * run.size
    expect(given, "dout", given.rows, run.size)
    expect(before, "prev", given.rows, run.size)
    expect(keep, "kept", given.rows, KEPT * run.size)
    expect(place, "work", unroll_work(run.size, run.sizes[0]), 1)
    expect(outer, "dx", given.rows, gates)
    expect(fill, "inner", given.rows, gates)
    with nogil:
        unroll_backward(&run, <const float *>matrix.data, <const float *>given.data,
                        <const float *>before.data, <const float *>keep.data,
                        <float *>place.data, <float *>outer.data, <float *>fill.data)
