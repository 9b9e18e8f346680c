/* Images as convolutions read them. */
#ifndef FASTPPO_IMAGE_H
#define FASTPPO_IMAGE_H

#include <stdint.h>

/* A stored image: `frames` of `channels` each, uint8. In memory a frame is [places channels] where
 * `last`, else [channels places]; a place is a pixel. No places: it is not an image. `brightest`,
 * 1 to 255, is the byte that becomes 1. */
typedef struct {
    int64_t frames, channels, places, last, brightest;
} Image;

/* x [places, frames channels] = image / brightest. Its frames are those of the numbers `stack`
 * [frames] from `from` on, or where it is NULL the first ones. */
void image_read(const Image *image, const uint8_t *from, const int64_t *stack, float *x);

/* to [channels places] = from [places channels]; with exchanged sizes the other way round. */
void image_transpose(const float *from, int64_t places, int64_t channels, float *to);

#endif
