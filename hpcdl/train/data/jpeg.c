/* Crops a JPEG image and resizes the crop, decoding as little as can be: nothing below
 * the crop, only the entropy code above it, and only the crop's columns of its rows, at the
 * smallest scale that still has the wanted pixels. Rows are resized as they are decoded, bilinear,
 * so that they never leave the processor's cache. hpcdl/train/data/images.py compiles and calls it.
 */
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <jpeglib.h>
#include <jerror.h>

#ifndef LIBJPEG_TURBO_VERSION
#error "needs libjpeg-turbo: plain libjpeg cannot skip rows"
#endif

enum { DONE = 0, BROKEN = 1, FOREIGN = 2 };
enum { MOST_PIXELS = 1 << 29, PIXEL = 4 };

struct trouble {
    struct jpeg_error_mgr manager;
    jmp_buf out;
    char *why; /* JMSG_LENGTH_MAX bytes */
};

static void give_up(j_common_ptr codec)
{
    struct trouble *trouble = (struct trouble *)codec->err;
    codec->err->format_message(codec, trouble->why);
    longjmp(trouble->out, 1);
}

/* Warnings are let pass, as TensorFlow does, but for an image that ends too early. */
static void on_warning(j_common_ptr codec, int level)
{
    if (level < 0 && codec->err->msg_code == JWRN_JPEG_EOF)
        give_up(codec);
}

/* Where an output pixel lies between two input ones: the first, and the share of the second, 0 to
 * 256; `shares` are those of both, for each of their bytes. */
struct point {
    int first, share;
    uint16_t shares[2 * PIXEL];
};

static struct point between(int index, double start, double step, int last)
{
    double place = start + (index + 0.5) * step - 0.5;
    struct point point = {0, 0, {0}};
    if (place >= last) {
        point.first = last;
    } else if (place > 0) {
        point.first = (int)place;
        point.share = (int)((place - point.first) * 256 + 0.5);
    }
    for (int i = 0; i < PIXEL; i++) {
        point.shares[i] = (uint16_t)(256 - point.share);
        point.shares[PIXEL + i] = (uint16_t)point.share;
    }
    return point;
}

/* The row `share`/256 of the way from `above` to `below`; compilers make vectors of it. */
static void blend(const uint8_t *restrict above, const uint8_t *restrict below, int share,
                  int bytes, uint8_t *restrict row)
{
    const uint16_t rest = (uint16_t)(256 - share), part = (uint16_t)share;
    for (int i = 0; i < bytes; i++)
        row[i] = (uint8_t)((uint16_t)(above[i] * rest + below[i] * part + 128) >> 8);
}

/* The pixel between the one at `place` and the next. */
#ifdef __SSE2__
static uint32_t mix(const uint8_t *place, const uint16_t *shares)
{
    const __m128i none = _mm_setzero_si128();
    __m128i pair = _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)place), none);
    __m128i mixed = _mm_mullo_epi16(pair, _mm_loadu_si128((const __m128i *)shares));
    __m128i sum = _mm_srli_epi16(_mm_add_epi16(mixed, _mm_unpackhi_epi64(mixed, mixed)), 8);
    return (uint32_t)_mm_cvtsi128_si32(_mm_packus_epi16(sum, sum));
}
#else
/* Red and blue in one product, as two numbers of 16 bits; so is green. */
static uint32_t mix(const uint8_t *place, const uint16_t *shares)
{
    const uint32_t even = 0x00ff00ff, rest = shares[0], share = shares[PIXEL];
    uint32_t left, right;
    memcpy(&left, place, PIXEL);
    memcpy(&right, place + PIXEL, PIXEL);
    uint32_t outer = (left & even) * rest + (right & even) * share;
    uint32_t inner = (left >> 8 & even) * rest + (right >> 8 & even) * share;
    return (outer >> 8 & even) | (inner & ~even);
}
#endif

/* A row of `width` pixels of 3 bytes, from a row of pixels of 4. Writes a byte beyond the row. */
static void spread(const uint8_t *row, const struct point *columns, int width, uint8_t *out)
{
    for (int x = 0; x < width; x++) {
        uint32_t pixel = mix(row + PIXEL * columns[x].first, columns[x].shares);
        memcpy(out + 3 * x, &pixel, PIXEL);
    }
}

/* The smallest scale, in eighths, at which the crop has the wanted pixels. libjpeg-turbo is
 * fast at 1, 2, 4 and 8 only. */
static int scale_for(const int *area, int height, int width)
{
    int scale = 8;
    while (scale > 1 && area[2] * (scale / 2) >= height * 8 && area[3] * (scale / 2) >= width * 8)
        scale /= 2;
    return scale;
}

struct work {
    uint8_t *rows[2], *blended, *wide;
    struct point *columns;
    void *memory;
};

/* Memory for rows of `decoded` pixels. They begin beside multiples of 16 bytes on purpose: to such
 * places libjpeg-turbo writes past the caches, and every row is read again at once. */
static void reserve(struct work *work, int decoded, int width)
{
    size_t row = ((size_t)PIXEL * (decoded + 2) + 15) / 16 * 16;
    size_t columns = (width * sizeof(struct point) + 15) / 16 * 16;
    uint8_t *memory = calloc(1, columns + 3 * row + (size_t)PIXEL * (width + 2));
    work->memory = memory;
    if (!memory)
        return;
    work->columns = (struct point *)memory;
    memory += columns + PIXEL;
    work->rows[0] = memory;
    work->rows[1] = memory + row;
    work->blended = memory + 2 * row;
    work->wide = memory + 3 * row;
}

/* Decode rows up to `wanted`, counted from `*have`, the number of the last one decoded; the last
 * two rows are kept. */
static void advance(j_decompress_ptr codec, struct work *work, int *have, int wanted)
{
    while (*have < wanted) {
        JSAMPROW row = work->rows[(*have + 1) & 1];
        *have += (int)jpeg_read_scanlines(codec, &row, 1);
    }
}

static void crop(j_decompress_ptr codec, struct work *work, const int *area, int height,
                int width, uint8_t *out)
{
    int scale = (int)codec->scale_num;
    int top = area[0] * scale / 8, left = area[1] * scale / 8;
    int bottom = ((area[0] + area[2]) * scale + 7) / 8;
    int right = ((area[1] + area[3]) * scale + 7) / 8;
    if (bottom > (int)codec->output_height)
        bottom = (int)codec->output_height;
    if (right > (int)codec->output_width)
        right = (int)codec->output_width;
    JDIMENSION begin = (JDIMENSION)left, decoded = (JDIMENSION)(right - left);
    jpeg_crop_scanline(codec, &begin, &decoded); /* begins at a block, to the left of it */
    reserve(work, (int)decoded, width);
    if (!work->memory)
        ERREXIT1(codec, JERR_OUT_OF_MEMORY, 0);
    if (top)
        jpeg_skip_scanlines(codec, (JDIMENSION)top);
    double down = area[2] * scale / 8.0 / height, across = area[3] * scale / 8.0 / width;
    double above = area[0] * scale / 8.0 - top, before = area[1] * scale / 8.0 - left;
    for (int x = 0; x < width; x++) {
        work->columns[x] = between(x, before, across, right - left - 1);
        work->columns[x].first += left - (int)begin;
    }
    int have = -1;
    for (int y = 0; y < height; y++) {
        struct point row = between(y, above, down, bottom - top - 1);
        advance(codec, work, &have, row.first + (row.share > 0));
        const uint8_t *first = work->rows[row.first & 1], *blended = first;
        if (row.share) {
            blend(first, work->rows[(row.first + 1) & 1], row.share, PIXEL * (int)decoded,
                  work->blended);
            blended = work->blended;
        }
        spread(blended, work->columns, width, work->wide);
        memcpy(out + (size_t)3 * width * y, work->wide, (size_t)3 * width);
    }
}

static int fits(j_decompress_ptr codec, const int *area)
{
    long height = codec->image_height, width = codec->image_width;
    return area[0] >= 0 && area[1] >= 0 && area[2] > 0 && area[3] > 0 &&
           (long)area[0] + area[2] <= height && (long)area[1] + area[3] <= width;
}

/* Decode the crop (top, left, height, width) of an image to `out`, height x width x 3 bytes.
 * Returns DONE, BROKEN with `why` (JMSG_LENGTH_MAX bytes), or FOREIGN where libjpeg has no RGB of
 * it. */
int hpcdl_crop(const uint8_t *data, unsigned long size, const int *area, int height, int width,
              uint8_t *out, char *why)
{
    struct jpeg_decompress_struct codec;
    struct trouble trouble;
    struct work work = {{NULL, NULL}, NULL, NULL, NULL, NULL};
    volatile int result = BROKEN;
    struct work *volatile kept = &work;
    codec.err = jpeg_std_error(&trouble.manager);
    trouble.manager.error_exit = give_up;
    trouble.manager.emit_message = on_warning;
    trouble.why = why;
    if (!setjmp(trouble.out)) {
        jpeg_create_decompress(&codec);
        jpeg_mem_src(&codec, (unsigned char *)data, size);
        jpeg_read_header(&codec, TRUE);
        if (codec.jpeg_color_space == JCS_CMYK || codec.jpeg_color_space == JCS_YCCK) {
            result = FOREIGN;
        } else if ((uint64_t)codec.image_height * codec.image_width > MOST_PIXELS) {
            snprintf(why, JMSG_LENGTH_MAX, "%u x %u pixels are too many", codec.image_width,
                     codec.image_height);
        } else if (!fits(&codec, area)) {
            snprintf(why, JMSG_LENGTH_MAX, "the crop lies outside of the image");
        } else {
            codec.out_color_space = JCS_EXT_RGBX;
            codec.dct_method = JDCT_IFAST;
            codec.scale_num = (unsigned)scale_for(area, height, width);
            codec.scale_denom = 8;
            jpeg_start_decompress(&codec);
            crop(&codec, &work, area, height, width, out);
            result = DONE;
        }
    }
    jpeg_destroy_decompress(&codec);
    free(kept->memory);
    return result;
}
