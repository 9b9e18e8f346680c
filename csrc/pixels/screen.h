/* Screens of bytes: their colours replaced, and their size changed by area.
 *
 * A screen is [rows columns * channels], row by row. Rows are mostly equal to the row above
 * them: only what differs is computed.
 */
#ifndef FASTPPO_SCREEN_H
#define FASTPPO_SCREEN_H

#include <stdint.h>

/* out = table[indices]; returns 0 if one of these entries of table [256] is negative. */
int screen_recolour(const uint8_t *indices, int64_t rows, int64_t columns, const int16_t *table,
                    uint8_t *out);

/* The shape of an image and the one it gets. */
typedef struct {
    int64_t rows, columns, new_rows, new_columns, channels;
} Sizes;

/* An image, or the larger of it and table[indices] if there are indices; then of one channel. */
typedef struct {
    const uint8_t *image;
    const uint8_t *indices;
    const int16_t *table;
} Screen;

/* The bytes of `work` that screen_resize needs; a multiple of 64. */
int64_t screen_work(const Sizes *sizes);

/* Fill `work` for images of these sizes. */
void screen_prepare(const Sizes *sizes, void *work);

/* Each new pixel is the mean over its area, in float32, columns first, rounded half to even.
 * `known` becomes 0 if one of the entries of the table is negative. */
void screen_resize(const Sizes *sizes, const Screen *screen, void *work, uint8_t *out, int *known);

#endif
