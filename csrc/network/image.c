/* Reads images, and transposes between images and columns. */
#include "network/image.h"

#include "simd/fastmath.h"

/* x [places planes] = from [planes places] / 255. */
ALWAYS_INLINE void read_planes(const uint8_t *restrict from, int64_t places, int64_t planes,
                               float *restrict x) {
    for (int64_t p = 0; p < places; p++)
        for (int64_t i = 0; i < planes; i++)
            x[p * planes + i] = (float)from[i * places + p] / 255.0f;
}

/* Columns `first` and the following of x [places planes] = from [places channels] / 255. */
ALWAYS_INLINE void read_pixels(const uint8_t *restrict from, int64_t places, int64_t channels,
                               int64_t planes, float *restrict x) {
    for (int64_t p = 0; p < places; p++)
        for (int64_t c = 0; c < channels; c++)
            x[p * planes + c] = (float)from[p * channels + c] / 255.0f;
}

ALWAYS_INLINE void image_read_body(const Image *image, const uint8_t *from, float *x) {
    int64_t places = image->places, channels = image->channels, planes = image->frames * channels;
    if (planes == 1 || (image->last && image->frames == 1))
        read_planes(from, places * channels, 1, x);
    else if (image->last)
        for (int64_t f = 0; f < image->frames; f++)
            read_pixels(from + f * places * channels, places, channels, planes, x + f * channels);
    else if (planes == 4) /* a constant number is many times faster */
        read_planes(from, places, 4, x);
    else
        read_planes(from, places, planes, x);
}

DISPATCH(image_read, (const Image *image, const uint8_t *from, float *x), (image, from, x))

void image_transpose(const float *from, int64_t places, int64_t channels, float *to) {
    for (int64_t p = 0; p < places; p++)
        for (int64_t c = 0; c < channels; c++) to[c * places + p] = from[p * channels + c];
}
