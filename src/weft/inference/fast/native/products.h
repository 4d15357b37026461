/* Products y = x W^T + b of few rows of x with a matrix of float32, or of blocks of whole numbers (blocks.h).
 *
 * Products take some rows of W at a time and go over all rows of x while those are in the cache. The order of additions
 * in a product of one row of x with one row of W is fixed, so what a row becomes does not depend, in any bit, on how
 * many rows are with it, nor on the number of threads.
 */

#ifndef WEFT_PRODUCTS_H
#define WEFT_PRODUCTS_H

#include "blocks.h"

/* Rows of a matrix that are stored in blocks of one kind, packed. */
typedef struct {
    const uint8_t *packed;
    int64_t kind, rows;
} Segment;

typedef struct {
    const float *weight;     /* [rows, cols], or none if it is in segments */
    const Segment *segments; /* together [rows, cols] */
    const float *bias;       /* [rows] or none */
    int64_t rows, cols, segment_count;
} Matrix;

/* ---- float32 ---- */

#if defined(__AVX512F__) && !defined(WEFT_PORTABLE)
enum { WIDE = 16, MOST_ROWS = 4 };
typedef float vf __attribute__((vector_size(64)));
static inline vf fused_wide(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
static inline float total_wide(vf v) {
    v8 low, high;
    memcpy(&low, &v, 32);
    memcpy(&high, (char *)&v + 32, 32);
    return total(low + high);
}
#else
enum { WIDE = 8, MOST_ROWS = 2 };
typedef v8 vf;
static inline vf fused_wide(vf a, vf b, vf c) { return fused(a, b, c); }
static inline float total_wide(vf v) { return total(v); }
#endif

static inline vf splat_wide(float x) { return x - (vf){0}; }

static inline vf load_wide(const float *x) { vf v; memcpy(&v, x, sizeof v); return v; }

enum { W_ROWS = 8, HALF = 4 }; /* rows of W at a time, with one row of x and with several */

/* sums[r][k] of R rows of W from w on and N rows of x: WIDE by WIDE, then the rest, in the same order for all R and N. */
static inline __attribute__((always_inline)) void tile(const float *w, int64_t D, int64_t w_row, const float *x, int64_t x_row,
                                                       int R, int N, float sums[MOST_ROWS][W_ROWS]) {
    vf acc[MOST_ROWS][W_ROWS] = {0};
    int64_t i = 0;
    for (; i + WIDE <= D; i += WIDE) {
        vf v[MOST_ROWS];
        for (int n = 0; n < N; n++) v[n] = load_wide(x + n * x_row + i);
        for (int k = 0; k < R; k++) {
            const float *at = w + k * w_row + i;
            if (N == 1 && R == W_ROWS) prefetch(at + R * w_row);
            vf m = load_wide(at);
            for (int n = 0; n < N; n++) acc[n][k] = fused_wide(m, v[n], acc[n][k]);
        }
    }
    for (int n = 0; n < N; n++)
        for (int k = 0; k < R; k++) {
            float rest = 0;
            for (int64_t j = i; j < D; j++) rest += w[k * w_row + j] * x[n * x_row + j];
            sums[n][k] = total_wide(acc[n][k]) + rest;
        }
}

static inline float dot(const float *w, const float *x, int64_t D) {
    float sums[MOST_ROWS][W_ROWS];
    tile(w, D, D, x, 0, 1, 1, sums);
    return sums[0][0];
}

/* W_ROWS rows of W with MOST_ROWS of x, as many at a time as there are registers. */
static inline void several(const float *w, int64_t D, const float *x, int64_t x_row, float sums[MOST_ROWS][W_ROWS]) {
    for (int half = 0; half < W_ROWS; half += HALF) {
        float some[MOST_ROWS][W_ROWS];
        tile(w + half * D, D, D, x, x_row, HALF, MOST_ROWS, some);
        for (int n = 0; n < MOST_ROWS; n++) memcpy(sums[n] + half, some[n], HALF * sizeof(float));
    }
}

static inline void finish(const Matrix *m, int64_t o, int64_t n, const float *sums, float *out) {
    for (int64_t k = 0; k < n; k++) out[k] = m->bias ? sums[k] + m->bias[o + k] : sums[k];
}

/* y[b, o] = W_o x_b + bias_o for o in [first, last), all rows b. */
static void multiply_float(const Matrix *m, const float *x, int64_t x_row, float *y, int64_t y_row, int64_t B, int64_t first,
                           int64_t last) {
    int64_t D = m->cols;
    for (int64_t o = first; o < last; o += W_ROWS) {
        int64_t n = last - o < W_ROWS ? last - o : W_ROWS;
        const float *w = m->weight + o * D;
        for (int64_t b = 0; b < B;) {
            float sums[MOST_ROWS][W_ROWS];
            int64_t count = n == W_ROWS && b + MOST_ROWS <= B ? MOST_ROWS : 1;
            const float *at = x + b * x_row;
            if (n < W_ROWS) for (int64_t k = 0; k < n; k++) sums[0][k] = dot(w + k * D, at, D);
            else if (count == 1) tile(w, D, D, at, x_row, W_ROWS, 1, sums);
            else several(w, D, at, x_row, sums);
            for (int64_t r = 0; r < count; r++) finish(m, o, n, sums[r], y + (b + r) * y_row + o);
            b += count;
        }
    }
}

/* ---- blocks ---- */

/* Rows of x that the cache of a core holds beside a group of W; whole tiles. */
static inline int64_t rows_at_once(int64_t columns) {
    int64_t rows = (384 << 10) / (columns + 1) / TILE * TILE;
    return rows < TILE ? TILE : rows;
}

/* Rounded rows [first, last) of `rows` in all. */
typedef struct { uint8_t *rounded; int64_t first, last, rows; } RoundedRows;

/* The same for rows of x that were rounded. A group at a bound is computed by both sides, each keeping its own rows. */
static void multiply_segment(const Matrix *m, const Segment *s, int64_t start, RoundedRows x, float *y, int64_t y_row, int64_t first,
                             int64_t last) {
    int64_t size = group_size(s->kind, m->cols);
    for (int64_t g = first / GROUP; g * GROUP < last; g++) {
        int64_t low = g * GROUP < first ? first : g * GROUP, high = (g + 1) * GROUP > last ? last : (g + 1) * GROUP;
        for (int64_t b = x.first, height; b < x.last; b += height) {
            float sums[TILE][GROUP];
            height = tile_height(b, x.rows);
            block_products(s->kind, s->packed + g * size, m->cols, rounded_tile(x.rounded, m->cols, b, height), height, sums);
            for (int64_t r = 0; r < height; r++)
                finish(m, start + low, high - low, sums[r] + (low - g * GROUP), y + (b + r) * y_row + start + low);
        }
    }
}

static void multiply_blocks(const Matrix *m, uint8_t *rounded, float *y, int64_t y_row, int64_t B, int64_t first,
                            int64_t last) {
    int64_t step = rows_at_once(m->cols);
    for (int64_t b = 0; b < B; b += step) {
        int64_t to = b + step < B ? b + step : B, start = 0;
        for (int64_t n = 0; n < m->segment_count; start += m->segments[n++].rows) {
            const Segment *s = m->segments + n;
            int64_t low = first - start < 0 ? 0 : first - start, high = last - start > s->rows ? s->rows : last - start;
            if (low < high) multiply_segment(m, s, start, (RoundedRows){rounded, b, to, B}, y, y_row, low, high);
        }
    }
}

/* ---- threads ---- */

typedef struct { int64_t id, count; int64_t *arrived; int64_t round; } Team;

/* All threads meet; short waits, so they spin, and step aside when there are more threads than cores. */
static void meet(Team *team) {
    if (team->count == 1) return;
    team->round++;
    __atomic_add_fetch(team->arrived, 1, __ATOMIC_ACQ_REL);
    for (int64_t spins = 0; __atomic_load_n(team->arrived, __ATOMIC_ACQUIRE) < team->round * team->count; spins++) {
        if (spins > 2000) {
            extern int sched_yield(void);
            sched_yield();
        }
#if defined(__x86_64__) || defined(__i386__)
        else __builtin_ia32_pause();
#endif
    }
}

/* A thread's share of n rows in steps of a group; bounds do not change what is computed for a row. */
static void share(const Team *team, int64_t n, int64_t step, int64_t *first, int64_t *last) {
    int64_t blocks = (n + step - 1) / step;
    *first = step * (blocks * team->id / team->count);
    *last = step * (blocks * (team->id + 1) / team->count);
    if (*last > n) *last = n;
    if (*first > n) *first = n;
}

static inline int64_t step_of(const Matrix *m) { return m->weight ? W_ROWS : GROUP; }

/* Rows of x as a product takes them: as they are, and rounded where W is in blocks. */
typedef struct { const float *x; int64_t row; uint8_t *rounded; } Rows;

/* Of a few rows each thread rounds all into a room of its own; more are shared, and then the threads meet. */
static Rows rows_for(Team *team, const Matrix *m, const float *x, int64_t row, int64_t B, uint8_t *rooms, int64_t room) {
    int64_t first = 0, last = B;
    if (m->weight) return (Rows){x, row, 0};
    if (B > 2) share(team, B, 1, &first, &last);
    else rooms += team->id * B * room;
    for (int64_t b = first; b < last; b++) round_row(x + b * row, m->cols, rooms, b, B);
    if (B > 2) meet(team);
    return (Rows){x, row, rooms};
}

static void multiply(const Matrix *m, Rows rows, float *y, int64_t y_row, int64_t B, int64_t first, int64_t last) {
    if (m->weight) multiply_float(m, rows.x, rows.row, y, y_row, B, first, last);
    else multiply_blocks(m, rows.rounded, y, y_row, B, first, last);
}

static void product(Team *team, const Matrix *m, Rows rows, float *y, int64_t y_row, int64_t B) {
    int64_t first, last;
    share(team, m->rows, step_of(m), &first, &last);
    multiply(m, rows, y, y_row, B, first, last);
}

/* y [batch, rows] = x [batch, cols] W^T + b by one thread of a team; `room` has rounded_size(cols) bytes per row, and for two rows or one so much per thread. */
static void shared_product(Team *team, const Matrix *m, const float *x, float *y, int64_t batch, uint8_t *room) {
    product(team, m, rows_for(team, m, x, m->cols, batch, room, rounded_size(m->cols)), y, m->rows, batch);
}

#endif
