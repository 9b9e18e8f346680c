/* The steps of a GRU, with the matrix products of dense.c. */
#include "gru/gru.h"

#include <string.h>

#include "network/dense.h"
#include "simd/fastmath.h"

/* The parts of `work`; a block has a multiple of TALL rows. */
typedef struct {
    float *packed, *hidden, *gates;
    int64_t hidden_row, gates_row;
} Work;

static int64_t packed_most(int64_t size) {
    return most(packed_floats(size, GATES * size), packed_floats(GATES * size, size));
}

static int64_t block_of(int64_t rows) { return (rows + TALL - 1) / TALL * TALL; }

static Work parts_of(const Unroll *unroll, float *work) {
    Work parts = {.packed = work, .hidden_row = row_of(unroll->size)};
    parts.gates_row = row_of(GATES * unroll->size);
    parts.hidden = work + packed_most(unroll->size);
    parts.gates = parts.hidden + block_of(unroll->sizes[0]) * parts.hidden_row;
    return parts;
}

int64_t unroll_work(int64_t size, int64_t rows) {
    return packed_most(size) + block_of(rows) * (row_of(size) + row_of(GATES * size));
}

/* h = (1 - z) n + z h with n = tanh(x + r (W h + b)); stores r, z, n and W h + b in `kept`. */
ALWAYS_INLINE void gru_step(int64_t size, const float *restrict x, const float *restrict gates,
                            float *restrict kept, float *restrict hidden) {
    for (int64_t i = 0; i < size; i++) {
        float r = sigmoid(x[i] + gates[i]), z = sigmoid(x[size + i] + gates[size + i]);
        float inner = gates[2 * size + i], n = fast_tanh(fma32(r, inner, x[2 * size + i]));
        hidden[i] = fma32(z, hidden[i] - n, n);
        kept[i] = r;
        kept[size + i] = z;
        kept[2 * size + i] = n;
        kept[3 * size + i] = inner;
    }
}

ALWAYS_INLINE void unroll_step_body(int64_t size, const Work *work, int64_t rows, const float *x,
                                    float *prev, float *kept, float *out) {
    for (int64_t r = 0; r < rows; r++, prev += size, out += size) {
        float *hidden = work->hidden + r * work->hidden_row;
        memcpy(prev, hidden, (size_t)size * sizeof *prev);
        gru_step(size, x, work->gates + r * work->gates_row, kept, hidden);
        memcpy(out, hidden, (size_t)size * sizeof *out);
        x += GATES * size;
        kept += KEPT * size;
    }
}

DISPATCH(unroll_step,
         (int64_t size, const Work *work, int64_t rows, const float *x, float *prev, float *kept,
          float *out),
         (size, work, rows, x, prev, kept, out))

void unroll_forward(const Unroll *unroll, const float *x, const float *weight, const float *bias,
                    const float *state, float *work, float *prev, float *kept, float *out) {
    int64_t size = unroll->size, rows;
    Work parts = parts_of(unroll, work);
    pack_forward(weight, bias, size, GATES * size, parts.packed);
    for (int64_t r = 0; r < unroll->sizes[0]; r++)
        memcpy(parts.hidden + r * parts.hidden_row, state + r * size, (size_t)size * sizeof *state);
    for (int64_t t = 0; t < unroll->steps; t++) {
        rows = unroll->sizes[t];
        dense(parts.packed, parts.hidden, size, rows, 0, parts.gates, GATES * size);
        unroll_step(size, &parts, rows, x, prev, kept, out);
        x += rows * GATES * size;
        prev += rows * size;
        kept += rows * KEPT * size;
        out += rows * size;
    }
}

/* hidden is dh, and becomes its direct part for the previous h; gates is inner, padded. */
ALWAYS_INLINE void gru_back(int64_t size, const float *restrict dout, const float *restrict prev,
                            const float *restrict kept, float *restrict hidden,
                            float *restrict gates, float *restrict dx) {
    for (int64_t i = 0; i < size; i++) {
        float dh = hidden[i] + dout[i], r = kept[i], z = kept[size + i], n = kept[2 * size + i];
        float dn = dh * (1.0f - z) * fma32(-n, n, 1.0f);
        float dz = dh * (prev[i] - n) * z * (1.0f - z);
        float dr = dn * kept[3 * size + i] * r * (1.0f - r);
        gates[i] = dx[i] = dr;
        gates[size + i] = dx[size + i] = dz;
        gates[2 * size + i] = dn * r;
        dx[2 * size + i] = dn;
        hidden[i] = dh * z;
    }
}

/* One step back for `rows` sequences; those from `before` on have their last step here. */
ALWAYS_INLINE void unroll_step_back_body(int64_t size, const Work *work, int64_t before,
                                         int64_t rows, const float *dout, const float *prev,
                                         const float *kept, float *dx, float *inner) {
    for (int64_t r = 0; r < rows; r++, dout += size, prev += size) {
        float *hidden = work->hidden + r * work->hidden_row;
        float *gates = work->gates + r * work->gates_row;
        if (r >= before) memset(hidden, 0, (size_t)size * sizeof *hidden);
        gru_back(size, dout, prev, kept, hidden, gates, dx);
        memcpy(inner, gates, (size_t)(GATES * size) * sizeof *inner);
        kept += KEPT * size;
        dx += GATES * size;
        inner += GATES * size;
    }
}

DISPATCH(unroll_step_back,
         (int64_t size, const Work *work, int64_t before, int64_t rows, const float *dout,
          const float *prev, const float *kept, float *dx, float *inner),
         (size, work, before, rows, dout, prev, kept, dx, inner))

void unroll_backward(const Unroll *unroll, const float *weight, const float *dout,
                     const float *prev, const float *kept, float *work, float *dx, float *inner) {
    int64_t size = unroll->size, at = 0, before = 0;
    Work parts = parts_of(unroll, work);
    pack_backward(weight, size, GATES * size, parts.packed);
    for (int64_t t = 0; t < unroll->steps; t++) at += unroll->sizes[t];
    for (int64_t t = unroll->steps - 1; t >= 0; t--) {
        int64_t rows = unroll->sizes[t];
        at -= rows;
        unroll_step_back(size, &parts, before, rows, dout + at * size, prev + at * size,
                         kept + at * KEPT * size, dx + at * GATES * size,
                         inner + at * GATES * size);
        dense(parts.packed, parts.gates, GATES * size, rows, 1, parts.hidden, size);
        before = rows;
    }
}
