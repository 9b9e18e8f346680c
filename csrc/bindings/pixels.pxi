"""The entry points of the screens of csrc/pixels/; part of kernels.pyx."""

from libc.string cimport memcmp

cdef extern from "pixels/screen.h" nogil:
    ctypedef struct Sizes:
        int64_t rows, columns, new_rows, new_columns, channels
    int screen_recolour(const uint8_t *indices, int64_t rows, int64_t columns,
                        const int16_t *table, uint8_t *out)
    ctypedef struct Screen:
        const uint8_t *image
        const uint8_t *indices
        const int16_t *table
    int64_t screen_work(const Sizes *sizes)
    void screen_prepare(const Sizes *sizes, void *work)
    void screen_resize(const Sizes *sizes, const Screen *screen, void *work, uint8_t *out,
                       int *known)


def recolour(indices, table, out):
    cdef View screen = view_of(indices, c'B', 2, IN), colours = view_of(table, c'h', 1, IN)
    cdef View fill = view_of(out, c'B', 2, OUT)
    cdef bint known
    expect(colours, "table", 256, 1)
    expect(fill, "out", screen.rows, screen.columns)
    with nogil:
        known = screen_recolour(<const uint8_t *>screen.data, screen.rows, screen.columns,
                                <const int16_t *>colours.data, <uint8_t *>fill.data)
    return known


# The memory for images of the last sizes. It is used under the GIL alone, which is held for the few
# microseconds that an image takes.
cdef Sizes last_sizes
cdef void *last_work = NULL


cdef void *work_for(Sizes sizes) except NULL:
    """The memory that screen_resize needs, prepared for these sizes."""
    global last_sizes, last_work
    if last_work != NULL and memcmp(&sizes, &last_sizes, sizeof(Sizes)) == 0:
        return last_work
    free(last_work)
    last_work, last_sizes = aligned_alloc(64, screen_work(&sizes)), sizes
    if last_work == NULL:
        raise MemoryError(f"no memory for {screen_work(&sizes)} bytes")
    screen_prepare(&sizes, last_work)
    return last_work


cdef bint resized(View image, Screen screen, int64_t channels, View out) except *:
    """Whether all colours were known. Raises ValueError for sizes that do not fit."""
    cdef Sizes sizes
    cdef int known
    if channels < 1 or image.columns % channels or out.columns % channels:
        raise ValueError(f"a row of image or out is not of pixels of {channels} channels")
    if not (image.rows and image.columns and out.rows and out.columns):
        raise ValueError("image or out is empty")
    sizes = Sizes(image.rows, image.columns // channels, out.rows, out.columns // channels,
                  channels)
    screen_resize(&sizes, &screen, work_for(sizes), <uint8_t *>out.data, &known)
    return known


def resize_area(image, int64_t channels, out):
    cdef View pixels = view_of(image, c'B', 2, IN), fill = view_of(out, c'B', 2, OUT)
    resized(pixels, Screen(<const uint8_t *>pixels.data, NULL, NULL), channels, fill)


def resize_largest(image, indices, table, out):
    cdef View pixels = view_of(image, c'B', 2, IN), other = view_of(indices, c'B', 2, IN)
    cdef View colours = view_of(table, c'h', 1, IN), fill = view_of(out, c'B', 2, OUT)
    expect(other, "indices", pixels.rows, pixels.columns)
    expect(colours, "table", 256, 1)
    return resized(pixels, Screen(<const uint8_t *>pixels.data, <const uint8_t *>other.data,
                                  <const int16_t *>colours.data), 1, fill)
