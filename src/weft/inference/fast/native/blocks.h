/* Matrices in blocks of whole numbers, as GGUF files store them, and their products with rows rounded to whole numbers.
 *
 *   Q8_0  w = d (q - 128)                     32 columns share d; q of 8 bits (stored with the sign, kept with an offset)
 *   Q4_0  w = d (q - 8)                       32 columns share d; q of 4 bits
 *   Q4_1  w = d q + m                         32 columns share d and m; q of 4 bits
 *   Q4_K  w = (d s) q - (e n)                 256 columns share d and e, 32 of them s and n of 6 bits; q of 4 bits
 *   Q6_K  w = (d s) (q - 32)                  256 columns share d, 16 of them s of 8 bits; q of 6 bits
 *
 * A row x is rounded block by block to whole numbers of 15 bits: x_i ~ a v_i, a = max |x_i| / 16256 over 32 columns. (Of
 * 8 bits they are too rough where one column of a block is far larger than the others.) Then
 *
 *   y = sum over blocks of (sum_i q_i v_i) (d a) + m (a sum_i v_i)
 *
 * v = 128 p + r is kept as two bytes, because instructions multiply bytes. The inner sums are whole numbers below 2^31, also
 * with the s of Q6_K in them, and exact; blocks are added from the first to the last in float32, each product and sum rounded
 * once. So what a row becomes depends on that row alone, and has the same bits by any of the ways below (VNNI, AVX2,
 * portable C).
 *
 * Packed once at load: 16 rows are a group; four columns of 16 rows are 64 bytes, so that one instruction multiplies
 * them with the same four numbers of x. A group holds the q of all blocks, then the scales of all blocks, then the
 * scales of all 256s.
 */

#ifndef WEFT_BLOCKS_H
#define WEFT_BLOCKS_H

#include "vectors.h"

enum { Q8_0, Q4_0, Q4_1, Q4_K, Q6_K };
enum { GROUP = 16, BLOCK = 32, SUPER = 256 };

typedef struct {
    int64_t stored;               /* bytes of a stored block */
    int64_t columns;              /* columns of a stored block */
    int64_t quants, scales, tops; /* packed bytes of a group: q per 32 columns, scales per 32, scales per 256 */
    int32_t offset;               /* what q is ahead of the number it means */
} Kind;

static const Kind KINDS[] = {
    {34, 32, 512, 32, 0, 128}, {18, 32, 256, 32, 0, 8}, {20, 32, 256, 64, 0, 0},
    {144, 256, 256, 32, 64, 0}, {210, 256, 384, 32, 32, 32},
};

static inline int64_t blocks_of(int64_t columns) { return (columns + BLOCK - 1) / BLOCK; }

/* Bytes of one packed group. */
static inline int64_t group_size(int64_t kind, int64_t columns) {
    const Kind *k = KINDS + kind;
    int64_t n = blocks_of(columns), size = n * (k->quants + k->scales) + (n + 7) / 8 * k->tops;
    return (size + 63) & ~(int64_t)63;
}

static inline float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023, bits;
    float value;
    if (e == 0) {
        value = (float)m * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    bits = sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13;
    memcpy(&value, &bits, 4);
    return value;
}

/* ---- packing ---- */

static inline void sub_scales(const uint8_t *s, int j, uint8_t *scale, uint8_t *least) {
    if (j < 4) *scale = s[j] & 63, *least = s[j + 4] & 63;
    else *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4, *least = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
}

/* The q of 32 columns of one stored row, as unsigned bytes. */
static void stored_quants(int64_t kind, const uint8_t *row, int64_t b, uint8_t *q) {
    const Kind *k = KINDS + kind;
    const uint8_t *p = row + b * BLOCK / k->columns * k->stored;
    int64_t j = b % (SUPER / BLOCK);
    if (kind == Q8_0) for (int i = 0; i < 32; i++) q[i] = p[2 + i] ^ 128;
    if (kind == Q4_0 || kind == Q4_1) {
        p += kind == Q4_0 ? 2 : 4;
        for (int i = 0; i < 16; i++) q[i] = p[i] & 15, q[i + 16] = p[i] >> 4;
    }
    if (kind == Q4_K) for (int i = 0; i < 32; i++) q[i] = p[16 + j / 2 * 32 + i] >> (j & 1) * 4 & 15;
    if (kind == Q6_K) {
        const uint8_t *low = p + j / 4 * 64 + (j & 1) * 32, *high = p + 128 + j / 4 * 32;
        for (int i = 0; i < 32; i++) q[i] = (low[i] >> (j & 2) * 2 & 15) | (high[i] >> (j & 3) * 2 & 3) << 4;
    }
}

/* Byte c of row r among the 16 x 4 bytes of columns 4 j .. 4 j + 3. */
static inline int place(int j, int r, int c) { return j * 64 + r * 4 + c; }

static void pack_quants(int64_t kind, int r, const uint8_t *q, uint8_t *to) {
    for (int i = 0; i < 32; i++) {
        int j = i / 4, c = i % 4;
        if (kind == Q8_0) { to[place(j, r, c)] = q[i]; continue; }
        to[place(j & 3, r, c)] |= (q[i] & 15) << (j / 4 * 4);
        if (kind == Q6_K) to[256 + place(j / 4, r, c)] |= (q[i] >> 4) << (j & 3) * 2;
    }
}

static void pack_scales(int64_t kind, int r, const uint8_t *row, int64_t b, uint8_t *scales, uint8_t *tops) {
    const Kind *k = KINDS + kind;
    const uint8_t *p = row + b * BLOCK / k->columns * k->stored;
    int64_t j = b % (SUPER / BLOCK);
    if (kind <= Q4_1) memcpy(scales + 2 * r, p, 2);
    if (kind == Q4_1) memcpy(scales + 32 + 2 * r, p + 2, 2);
    if (kind == Q4_K) {
        sub_scales(p + 4, (int)j, scales + r, scales + 16 + r);
        memcpy(tops + 2 * r, p, 2);
        memcpy(tops + 32 + 2 * r, p + 2, 2);
    }
    if (kind == Q6_K) {
        scales[r] = p[192 + 2 * j], scales[16 + r] = p[193 + 2 * j];
        memcpy(tops + 2 * r, p + 208, 2);
    }
}

/* The packed form of stored rows; rows that fill up the last group are zero. */
void weft_pack(int64_t kind, const uint8_t *stored, int64_t rows, int64_t columns, uint8_t *packed) {
    const Kind *k = KINDS + kind;
    int64_t n = blocks_of(columns), size = group_size(kind, columns);
    int64_t row_bytes = (columns + k->columns - 1) / k->columns * k->stored;
    memset(packed, 0, (rows + GROUP - 1) / GROUP * size);
    for (int64_t o = 0; o < rows; o++) {
        uint8_t *group = packed + o / GROUP * size, *scales = group + n * k->quants, *tops = scales + n * k->scales;
        const uint8_t *row = stored + o * row_bytes;
        for (int64_t b = 0; b < n; b++) {
            uint8_t q[32];
            stored_quants(kind, row, b, q);
            pack_quants(kind, o % GROUP, q, group + b * k->quants);
            pack_scales(kind, o % GROUP, row, b, scales + b * k->scales, tops + b / 8 * k->tops);
        }
    }
}

/* ---- rounded rows ---- */

enum { MOST = 127 * 128, TILE = 8 };

/* Rows of x are rounded in tiles of 8, the last of them in tiles of 4, 2 and 1: of all rows of a tile, block by block, p
 * and r (32 bytes each), then block by block what follows. So every place is a constant away from the block's. */
typedef struct { int8_t *bytes; float *terms; } RoundedTile;

static inline int64_t rounded_size(int64_t columns) { return (blocks_of(columns) * (2 * BLOCK + 16) + 63) & ~(int64_t)63; }

/* How many rows the tile has that begins at `row`, of `rows` in all. */
static inline int64_t tile_height(int64_t row, int64_t rows) {
    int64_t left = rows - row, height = TILE;
    while (height > left) height /= 2;
    return height;
}

static inline RoundedTile rounded_tile(uint8_t *rounded, int64_t columns, int64_t row, int64_t height) {
    int8_t *bytes = (int8_t *)(rounded + row * rounded_size(columns));
    return (RoundedTile){bytes, (float *)(bytes + blocks_of(columns) * 2 * BLOCK * height)};
}

static inline __attribute__((always_inline)) const int8_t *bytes_at(RoundedTile x, int64_t b, int height, int r) {
    return x.bytes + (b * height + r) * 2 * BLOCK;
}

/* Terms of a block: a, then a sum_i v_i, then minus the sums of v_i over its two halves, each of all rows of the tile. */
enum { SCALE, WHOLE, LESS, LESS_OTHER };

static inline __attribute__((always_inline)) float *term_at(RoundedTile x, int64_t b, int height, int term, int r) {
    return x.terms + (b * 4 + term) * height + r;
}

static inline int32_t less_at(RoundedTile x, int64_t b, int height, int half, int r) {
    int32_t less;
    memcpy(&less, term_at(x, b, height, LESS + half, r), 4);
    return less;
}

static inline void round_block(const float *x, int8_t *p, int8_t *r, float *a, float *whole, int32_t less[2]) {
    int32_t bits[BLOCK], most = 0, first = 0, second = 0;
    float largest, y[BLOCK];
    memcpy(bits, x, sizeof bits); /* the bits of numbers from 0 are ordered as the numbers are; NaN is the largest */
    for (int i = 0; i < BLOCK; i++) {
        int32_t size = bits[i] & 0x7fffffff;
        most = size > most ? size : most;
    }
    memcpy(&largest, &most, 4);
    float one = most ? (float)MOST / largest : 0;
    /* A sum with 1.5 * 2^23 has a whole number in its last bits: the nearest, of two the even one. */
    for (int i = 0; i < BLOCK; i++) y[i] = x[i] * one + 12582912.0f;
    memcpy(bits, y, sizeof y);
    for (int i = 0; i < BLOCK; i++) {
        int16_t v = (int16_t)bits[i];
        p[i] = (int8_t)((v + 64) >> 7), r[i] = (int8_t)(v - 128 * p[i]);
    }
    for (int i = 0; i < 16; i++) first += 128 * p[i] + r[i], second += 128 * p[i + 16] + r[i + 16];
    *a = largest / (float)MOST, *whole = *a * (float)(first + second), less[0] = -first, less[1] = -second;
}

/* Row `row` of `rows` into its place. */
static void round_row(const float *x, int64_t columns, uint8_t *rounded, int64_t row, int64_t rows) {
    int64_t n = blocks_of(columns), first = row / TILE * TILE, height = tile_height(first, rows);
    while (first + height <= row) first += height, height = tile_height(first, rows);
    RoundedTile to = rounded_tile(rounded, columns, first, height);
    int r = (int)(row - first);
    for (int64_t b = 0; b < n; b++) {
        float padded[BLOCK] = {0};
        const float *at = x + b * BLOCK;
        if ((b + 1) * BLOCK > columns) {
            memcpy(padded, at, (columns - b * BLOCK) * sizeof(float));
            at = padded;
        }
        int8_t *p = (int8_t *)bytes_at(to, b, height, r);
        int32_t less[2];
        round_block(at, p, p + BLOCK, term_at(to, b, height, SCALE, r), term_at(to, b, height, WHOLE, r), less);
        for (int half = 0; half < 2; half++) memcpy(term_at(to, b, height, LESS + half, r), less + half, 4);
    }
}

/* ---- products of one group with a tile of x: group_products(kind, group, columns, x, height, y) ---- */

enum { PREFETCH_AHEAD = 16 << 10 };

/* Where the parts of a block stand in a group. */
typedef struct { const uint8_t *quants, *scales, *tops; } BlockAt;

static inline BlockAt block_at(int64_t kind, const uint8_t *group, int64_t n, int64_t b) {
    const Kind *k = KINDS + kind;
    const uint8_t *scales = group + n * k->quants, *tops = scales + n * k->scales;
    return (BlockAt){group + b * k->quants, scales + b * k->scales, tops + b / 8 * k->tops};
}

/* With few rows of x most of the work is to read W: as much of it as a block takes is asked for, some groups ahead. */
static inline void prefetch_block(int64_t kind, const uint8_t *group, int64_t columns, int64_t b) {
    int64_t each = group_size(kind, columns) / blocks_of(columns);
    const uint8_t *ahead = group + PREFETCH_AHEAD + b * each;
    for (int64_t i = 0; i < each; i += 64) prefetch(ahead + i);
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && !defined(WEFT_PORTABLE) && !defined(WEFT_AVX2)
#include "blocks_avx512.h"
#elif defined(__AVX2__) && defined(__F16C__) && defined(__FMA__) && !defined(WEFT_PORTABLE)
#include "blocks_avx2.h"
#else
#include "blocks_portable.h"
#endif

/* y[r][o - from] = W_o x_r for the rows o of one group and the rows r of a tile. */
static inline void block_products(int64_t kind, const uint8_t *group, int64_t columns, RoundedTile x, int64_t height,
                                  float y[TILE][GROUP]) {
    switch (kind) {
        case Q8_0: group_products(Q8_0, group, columns, x, height, y); break;
        case Q4_0: group_products(Q4_0, group, columns, x, height, y); break;
        case Q4_1: group_products(Q4_1, group, columns, x, height, y); break;
        case Q4_K: group_products(Q4_K, group, columns, x, height, y); break;
        default: group_products(Q6_K, group, columns, x, height, y);
    }
}

#endif
