/* Linear maps y = x W^T + b in float32, forward and back: x [M, K], W [N, K], y [M, N].
 *
 * Products run over tiles of TALL rows x 2 vectors, which stay in registers while the depth is walked through. Every
 * number is one chain of fused multiply-adds, along the depth in order: its bits depend on its own row and column only,
 * not on the other rows, on its place among them, or on the threads. (Portable code rounds products and sums each.)
 * Gradients of W are added up over the rows in order. Threads take whole rows or whole panels of what is computed. */
#if defined(__AVX512F__)
#include <immintrin.h>
#define WIDE 16
#define TALL 12
typedef __m512 wide;
#define wide_load(p) _mm512_loadu_ps(p)
#define wide_store(p, x) _mm512_storeu_ps(p, x)
#define wide_all(x) _mm512_set1_ps(x)
#define wide_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define WIDE 8
#define TALL 6
typedef __m256 wide;
#define wide_load(p) _mm256_loadu_ps(p)
#define wide_store(p, x) _mm256_storeu_ps(p, x)
#define wide_all(x) _mm256_set1_ps(x)
#define wide_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#else /* as it is to be read; the library of torch is faster there */
#define WIDE 4
#define TALL 6
typedef float wide __attribute__((vector_size(4 * WIDE), aligned(4)));
#define wide_load(p) (*(const wide *)(p))
#define wide_store(p, x) (*(wide *)(p) = (x))
#define wide_all(x) ((x) - (wide){0})
#define wide_fma(a, b, c) ((a) * (b) + (c))
#define LINEAR_IS_FAST 0
#endif
#ifndef LINEAR_IS_FAST
#define LINEAR_IS_FAST 1
#endif

int64_t weft_linear_is_fast(void) { return LINEAR_IS_FAST; }

#define PANEL (2 * WIDE) /* columns of a tile */
#define ROWS_AT_ONCE 96  /* whose numbers stay in the core's second cache while all panels pass */
#define DEPTH_AT_ONCE 256
#define DEEPEST 1536
#define AHEAD 128 /* numbers of a row of W */
#define SHARED_NUMBERS (1 << 21) /* of x, in the cache that cores share */

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

typedef struct { /* numbers (row, depth) at data[row * row_step + depth * depth_step] */
    const float *data;
    int64_t row_step, depth_step;
} matrix;

/* c [rows, PANEL] = a b + bias, or c + a b; b [depth, PANEL] */
static inline __attribute__((always_inline)) void tile(const int rows, matrix a, const float *b, int64_t b_step,
                                                       int64_t depth, float *c, int64_t c_step, const float *bias,
                                                       int add) {
    wide left[TALL], right[TALL];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        left[r] = add ? wide_load(c + r * c_step) : bias ? wide_load(bias) : wide_all(0.0f);
        right[r] = add ? wide_load(c + r * c_step + WIDE) : bias ? wide_load(bias + WIDE) : wide_all(0.0f);
    }
    for (int64_t d = 0; d < depth; d++, b += b_step, a.data += a.depth_step) {
        wide first = wide_load(b), second = wide_load(b + WIDE);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            wide number = wide_all(a.data[r * a.row_step]);
            left[r] = wide_fma(number, first, left[r]);
            right[r] = wide_fma(number, second, right[r]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        wide_store(c + r * c_step, left[r]);
        wide_store(c + r * c_step + WIDE, right[r]);
    }
}

/* A tile of `rows` <= TALL rows and `columns` <= PANEL columns, of which c holds no more. */
static void some(int rows, int64_t columns, matrix a, const float *b, int64_t b_step, int64_t depth, float *c,
                 int64_t c_step, const float *bias, int add) {
    float whole[TALL * PANEL], whole_bias[PANEL];
    float *to = c;
    int64_t to_step = c_step;
    if (columns < PANEL) { /* b is padded; c and the bias are not */
        to = whole, to_step = PANEL;
        for (int r = 0; add && r < rows; r++) memcpy(whole + r * PANEL, c + r * c_step, 4 * columns);
        if (bias) bias = memcpy(whole_bias, bias, 4 * columns);
    }
    switch (rows) {
#define CASE(n) case n: tile(n, a, b, b_step, depth, to, to_step, bias, add); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if TALL > 6
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
#undef CASE
    }
    for (int r = 0; columns < PANEL && r < rows; r++) memcpy(c + r * c_step, whole + r * PANEL, 4 * columns);
}

/* The share of thread t: whole tiles. */
static int64_t share(int64_t count, int64_t t, int64_t threads) {
    int64_t each = ((count + threads - 1) / threads + TALL - 1) / TALL * TALL;
    return least(t * each, count);
}

#if WIDE == 16
/* 16 rows of W, K apart, at 16 places of the depth: to[k][n] = W[n][k], rows of `to` PANEL apart. */
static inline void turn_square(const float *W, int64_t K, float *to) {
    __m512 a[16], b[16];
    for (int n = 0; n < 16; n++) {
        __builtin_prefetch(W + n * K + AHEAD); /* more rows at once than the processor follows by itself */
        a[n] = _mm512_loadu_ps(W + n * K);
    }
    for (int n = 0; n < 16; n += 2) b[n] = _mm512_unpacklo_ps(a[n], a[n + 1]), b[n + 1] = _mm512_unpackhi_ps(a[n], a[n + 1]);
    for (int n = 0; n < 16; n += 4)
        for (int h = 0; h < 2; h++) {
            __m512d low = _mm512_castps_pd(b[n + h]), high = _mm512_castps_pd(b[n + 2 + h]);
            a[n + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            a[n + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    for (int k = 0; k < 4; k++) /* quarters of registers: those of rows 0 to 7, then of rows 8 to 15 */
        for (int h = 0; h < 16; h += 8) {
            b[h + k] = _mm512_shuffle_f32x4(a[h + k], a[h + 4 + k], 0x88);
            b[h + 4 + k] = _mm512_shuffle_f32x4(a[h + k], a[h + 4 + k], 0xdd);
        }
    for (int k = 0; k < 8; k++) {
        _mm512_storeu_ps(to + k * PANEL, _mm512_shuffle_f32x4(b[k], b[8 + k], 0x88));
        _mm512_storeu_ps(to + (8 + k) * PANEL, _mm512_shuffle_f32x4(b[k], b[8 + k], 0xdd));
    }
}
#else
static inline void turn_square(const float *W, int64_t K, float *to) {
    for (int n = 0; n < 16; n++)
        for (int k = 0; k < 16; k++) to[k * PANEL + n] = W[n * K + k];
}
#endif

/* `columns` rows of W [., K], of which `depth` numbers each, as a panel [depth, PANEL], padded with zeros. */
static void turn_panel(const float *W, int64_t columns, int64_t depth, int64_t K, float *to) {
    int64_t squares = PANEL % 16 == 0 && columns == PANEL ? depth / 16 * 16 : 0;
    for (int64_t k = 0; k < squares; k += 16)
        for (int64_t n = 0; n < PANEL; n += 16) turn_square(W + n * K + k, K, to + k * PANEL + n);
    for (int64_t k = squares; k < depth; k++) {
        for (int64_t n = 0; n < columns; n++) to[k * PANEL + n] = W[n * K + k];
        for (int64_t n = columns; n < PANEL; n++) to[k * PANEL + n] = 0.0f;
    }
}

/* y = x W^T + b (b may be 0), or y + x W^T with `add`. A thread turns a panel of W and takes many rows through it while
 * they stay in the cache that cores share; threads share the panels, or the rows where there are few panels. `scratch`
 * holds a panel for each thread: PANEL K numbers. */
void weft_linear(const float *x, const float *W, const float *bias, float *y, float *scratch, int64_t M, int64_t N,
                 int64_t K, int64_t threads, int64_t add) {
    int64_t count = (N + PANEL - 1) / PANEL, at_once = (SHARED_NUMBERS / K / TALL + 1) * TALL;
    int few = count < 2 * threads;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t t = 0; t < threads; t++) {
        int64_t from = few ? share(M, t, threads) : 0, to = few ? share(M, t + 1, threads) : M;
        int64_t left = few ? 0 : t * count / threads * PANEL, right = few ? N : least((t + 1) * count / threads * PANEL, N);
        for (int64_t top = from; top < to; top += at_once)
            for (int64_t j = left; j < right; j += PANEL)
                for (int64_t k = 0; k < K; k += DEEPEST) {
                    int64_t bottom = least(top + at_once, to), columns = least(PANEL, N - j), depth = least(DEEPEST, K - k);
                    float *panel = scratch + t * PANEL * K;
                    turn_panel(W + j * K + k, columns, depth, K, panel);
                    for (int64_t i = top; i < bottom; i += TALL)
                        some((int)least(TALL, bottom - i), columns, (matrix){x + i * K + k, K, 1}, panel, PANEL, depth,
                             y + i * N + j, N, bias ? bias + j : 0, add || k > 0);
                }
    }
}

/* dx = dy W, or dx + dy W with `add`. `scratch` holds the last columns of W: N PANEL numbers. */
void weft_linear_to_x(const float *dy, const float *W, float *dx, float *scratch, int64_t M, int64_t N, int64_t K,
                      int64_t threads, int64_t add) {
    int64_t rest = K % PANEL;
    for (int64_t n = 0; rest && n < N; n++) {
        memcpy(scratch + n * PANEL, W + n * K + K - rest, 4 * rest);
        memset(scratch + n * PANEL + rest, 0, 4 * (PANEL - rest));
    }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t t = 0; t < threads; t++)
        for (int64_t top = share(M, t, threads); top < share(M, t + 1, threads); top += ROWS_AT_ONCE)
            for (int64_t n = 0; n < N; n += DEEPEST)
                for (int64_t j = 0; j < K; j += PANEL) {
                    int64_t bottom = least(top + ROWS_AT_ONCE, share(M, t + 1, threads)), depth = least(DEEPEST, N - n);
                    int whole = K - j >= PANEL;
                    const float *panel = whole ? W + n * K + j : scratch + n * PANEL;
                    for (int64_t i = top; i < bottom; i += TALL)
                        some((int)least(TALL, bottom - i), least(PANEL, K - j), (matrix){dy + i * N + n, N, 1}, panel,
                             whole ? K : PANEL, depth, dx + i * K + j, K, 0, add || n > 0);
                }
}

/* dW = dy^T x and, if wanted, db = sum of dy over the rows; with `add` they are added to what is there. `scratch` holds
 * the last columns of x: M PANEL numbers. */
void weft_linear_to_weights(const float *dy, const float *x, float *dW, float *db, float *scratch, int64_t M,
                            int64_t N, int64_t K, int64_t threads, int64_t add) {
    int64_t rest = K % PANEL;
    for (int64_t m = 0; rest && m < M; m++) {
        memcpy(scratch + m * PANEL, x + m * K + K - rest, 4 * rest);
        memset(scratch + m * PANEL + rest, 0, 4 * (PANEL - rest));
    }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t t = 0; t < threads; t++) {
        float slopes[DEPTH_AT_ONCE * TALL] = {0};
        for (int64_t top = 0; top < M; top += DEPTH_AT_ONCE) {
            int64_t depth = least(DEPTH_AT_ONCE, M - top), last = share(N, t + 1, threads);
            for (int64_t i = share(N, t, threads); i < last; i += TALL) {
                int rows = (int)least(TALL, last - i);
                for (int64_t m = 0; m < depth; m++) /* whole tiles by a size that the compiler knows */
                    memcpy(slopes + m * TALL, dy + (top + m) * N + i, rows == TALL ? 4 * TALL : 4 * rows);
                if (db) {
                    float sums[TALL] = {0};
                    if (add || top) memcpy(sums, db + i, 4 * rows);
                    for (int64_t m = 0; m < depth; m++)
                        for (int r = 0; r < TALL; r++) sums[r] = sums[r] + slopes[m * TALL + r];
                    memcpy(db + i, sums, 4 * rows);
                }
                for (int64_t j = 0; j < K; j += PANEL) {
                    int whole = K - j >= PANEL;
                    const float *from = whole ? x + top * K + j : scratch + top * PANEL;
                    some(rows, least(PANEL, K - j), (matrix){slopes, 1, TALL}, from, whole ? K : PANEL, depth,
                         dW + i * K + j, K, 0, add || top > 0);
                }
            }
        }
    }
}

#undef PANEL
