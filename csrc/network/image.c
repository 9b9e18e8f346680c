/* Reads images, and transposes between images and columns. */
#include "network/image.h"

#include "simd/fastmath.h"

/* The first columns of x [places planes] = from [places channels] / most. */
ALWAYS_INLINE void read_pixels(const uint8_t *restrict from, int64_t places, int64_t channels,
                               int64_t planes, float most, float *restrict x) {
    for (int64_t p = 0; p < places; p++)
        for (int64_t c = 0; c < channels; c++)
            x[p * planes + c] = (float)from[p * channels + c] / most;
}

/* x [places 4] = four planes / most. */
ALWAYS_INLINE void read_four(const uint8_t *a, const uint8_t *b, const uint8_t *c,
                             const uint8_t *d, int64_t places, float most,
                             float *restrict x) {
    for (int64_t p = 0; p < places; p++) {
        x[4 * p] = (float)a[p] / most;
        x[4 * p + 1] = (float)b[p] / most;
        x[4 * p + 2] = (float)c[p] / most;
        x[4 * p + 3] = (float)d[p] / most;
    }
}

/* The first byte of plane i, frame by frame, where channels come first. */
ALWAYS_INLINE const uint8_t *plane_of(const Image *image, const uint8_t *from,
                                      const int64_t *stack, int64_t i) {
    int64_t frame = i / image->channels;
    if (stack) i += (stack[frame] - frame) * image->channels;
    return from + i * image->places;
}

ALWAYS_INLINE void image_read_body(const Image *image, const uint8_t *from, const int64_t *stack,
                                   float *x) {
    int64_t places = image->places, channels = image->channels, planes = image->frames * channels;
    float most = (float)image->brightest;
    if (planes == 1 || (image->last && image->frames == 1))
        read_pixels(plane_of(image, from, stack, 0), places * channels, 1, 1, most, x);
    else if (image->last)
        for (int64_t f = 0; f < planes; f += channels)
            read_pixels(plane_of(image, from, stack, f), places, channels, planes, most,
                        x + f);
    else if (planes == 4) /* together they are read many times faster */
        read_four(plane_of(image, from, stack, 0), plane_of(image, from, stack, 1),
                  plane_of(image, from, stack, 2), plane_of(image, from, stack, 3), places, most,
                  x);
    else
        for (int64_t i = 0; i < planes; i++)
            read_pixels(plane_of(image, from, stack, i), places, 1, planes, most, x + i);
}

DISPATCH(image_read, (const Image *image, const uint8_t *from, const int64_t *stack, float *x),
         (image, from, stack, x))

void image_transpose(const float *from, int64_t places, int64_t channels, float *to) {
    for (int64_t p = 0; p < places; p++)
        for (int64_t c = 0; c < channels; c++) to[c * places + p] = from[p * channels + c];
}
