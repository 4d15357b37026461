/* Kernels of parts in float32 on CPUs: GELU, layer norm, attention and linear maps, forward and back.
 *
 * The readable definitions are torch's operations in parts/feedforward.py and parts/norms.py; these take fewer passes
 * over memory. An element or a row is computed by the same operations wherever it stands and however many threads there
 * are, so company changes no bit: products and sums are not fused (-ffp-contract=off), sums over a row are in an order
 * that its width alone decides, and sums over rows are those of fixed pieces. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define LEAST 16384 /* elements below which one thread is faster than two */

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t whole __attribute__((vector_size(4 * LANES)));

static const whole NUMBERS = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

#define ALL(number) ((number) - (lanes){0})

static inline lanes choose(whole where, lanes yes, lanes no) {
    return (lanes)((where & (whole)yes) | (~where & (whole)no));
}

static inline lanes load(const float *x) {
    lanes found;
    memcpy(&found, x, sizeof found);
    return found;
}

static inline void store(float *x, lanes numbers) { memcpy(x, &numbers, sizeof numbers); }

/* The first `count` numbers, then zeros. */
static inline lanes load_some(const float *x, int64_t count) {
    lanes found = {0};
    memcpy(&found, x, 4 * count);
    return found;
}

static inline float total(lanes sums) {
    float sum[LANES];
    memcpy(sum, &sums, sizeof sums);
    for (int i = 0; i < 8; i++) sum[i] = sum[i] + sum[i + 8];
    for (int i = 0; i < 4; i++) sum[i] = sum[i] + sum[i + 4];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* e^x for |x| <= 87: 2^n e^r with x = n ln 2 + r, |r| <= ln(2) / 2, and e^r by its series. */
static inline lanes exponential(lanes x) {
    const float shift = 12582912.0f; /* 1.5 x 2^23: adding it rounds to a whole number */
    lanes rounded = x * 1.44269504088896341f + shift, n = rounded - shift;
    lanes r = x - n * 0.693145751953125f; /* ln 2 in two parts: n times the first is exact */
    r = r - n * 1.42860676533018704e-06f;
    lanes p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    return p * (lanes)(((whole)rounded + 127) << 23); /* the low bits of `rounded` are n */
}

/* --- GELU (Hendrycks and Gimpel 2016) by tanh: x/2 (1 + tanh u) = x s, s = 1 / (1 + e^(-2u)), u = c (x + a x^3) --- */

static const float TWICE_C = 1.5957691216057308f;   /* 2 sqrt(2 / pi) */
static const float TWICE_CA = 0.07135481282052125f; /* 2 sqrt(2 / pi) 0.044715 */

/* s(x) = 1 / (1 + e^(-2u)); 0 below the smallest numbers. NaN stays NaN. */
static inline lanes gelu_share(lanes x) {
    lanes twice_u = x * (TWICE_C + TWICE_CA * x * x);
    lanes bounded = choose(twice_u > 87.0f, ALL(87.0f), choose(twice_u < -87.0f, ALL(-87.0f), twice_u));
    return choose(twice_u < -87.0f, (lanes){0}, 1.0f / (1.0f + exponential(-bounded)));
}

static inline lanes gelu(lanes x) { return x * gelu_share(x); }

/* dx = dy (s + x s (1 - s) 2 u') */
static inline lanes gelu_slope(lanes x, lanes dy) {
    lanes s = gelu_share(x), bend = x * (TWICE_C + 3.0f * TWICE_CA * x * x) * (1.0f - s);
    bend = choose((s == 0.0f) | (s == 1.0f), (lanes){0}, bend); /* not 0 times infinity */
    return dy * (s + s * bend);
}

void weft_gelu(const float *x, float *y, int64_t count, int64_t threads) {
    int64_t even = count / LANES * LANES;
#pragma omp parallel for schedule(static) num_threads(threads) if (count >= LEAST)
    for (int64_t i = 0; i < even; i += LANES) store(y + i, gelu(load(x + i)));
    if (even == count) return;
    lanes rest = gelu(load_some(x + even, count - even));
    memcpy(y + even, &rest, 4 * (count - even));
}

void weft_gelu_backward(const float *x, const float *dy, float *dx, int64_t count, int64_t threads) {
    int64_t even = count / LANES * LANES;
#pragma omp parallel for schedule(static) num_threads(threads) if (count >= LEAST)
    for (int64_t i = 0; i < even; i += LANES) store(dx + i, gelu_slope(load(x + i), load(dy + i)));
    if (even == count) return;
    lanes rest = gelu_slope(load_some(x + even, count - even), load_some(dy + even, count - even));
    memcpy(dx + even, &rest, 4 * (count - even));
}

/* --- Layer norm (Ba et al. 2016): y = (x - m) r gamma + beta, m = mean x, r = 1 / sqrt(mean (x - m)^2 + eps) ------ */

static void row_statistics(const float *x, int64_t width, float epsilon, float *mean, float *root) {
    lanes sums = {0}, squares = {0};
    int64_t even = width / LANES * LANES;
    for (int64_t i = 0; i < even; i += LANES) sums += load(x + i);
    float m = total(sums + load_some(x + even, width - even)) / width;
    for (int64_t i = 0; i < even; i += LANES) {
        lanes apart = load(x + i) - m;
        squares += apart * apart;
    }
    float sum = total(squares);
    for (int64_t i = even; i < width; i++) sum = sum + (x[i] - m) * (x[i] - m);
    *mean = m;
    *root = 1.0f / sqrtf(sum / width + epsilon);
}

void weft_layer_norm(const float *x, const float *gamma, const float *beta, float epsilon, float *y, float *mean,
                     float *root, int64_t rows, int64_t width, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * width >= LEAST)
    for (int64_t row = 0; row < rows; row++) {
        const float *from = x + row * width;
        float *to = y + row * width, m, r;
        row_statistics(from, width, epsilon, &m, &r);
        mean[row] = m;
        root[row] = r;
        if (beta)
            for (int64_t i = 0; i < width; i++) to[i] = (from[i] - m) * r * gamma[i] + beta[i];
        else
            for (int64_t i = 0; i < width; i++) to[i] = (from[i] - m) * r * gamma[i];
    }
}

/* With n = (x - m) r and g = dy gamma: dx = r (g - mean g - n mean(g n)), dgamma = sum dy n, dbeta = sum dy.
 * The rows are in `pieces`, each with sums of its own in partial [pieces, 2, width], which are added in order. */
void weft_layer_norm_backward(const float *x, const float *gamma, const float *mean, const float *root,
                              const float *dy, float *dx, float *partial, int64_t pieces, int64_t rows, int64_t width,
                              int64_t threads) {
    int64_t even = width / LANES * LANES, each = (rows + pieces - 1) / pieces;
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * width >= LEAST)
    for (int64_t piece = 0; piece < pieces; piece++) {
        float *dgamma = partial + piece * 2 * width, *dbeta = dgamma + width;
        memset(dgamma, 0, 8 * width);
        int64_t end = (piece + 1) * each < rows ? (piece + 1) * each : rows;
        for (int64_t row = piece * each; row < end; row++) {
            const float *from = x + row * width, *slope = dy + row * width;
            float *to = dx + row * width, m = mean[row], r = root[row];
            lanes sums = {0}, products = {0};
            for (int64_t i = 0; i < even; i += LANES) {
                lanes s = load(slope + i), n = (load(from + i) - m) * r;
                lanes g = s * load(gamma + i);
                lanes to_gamma = load(dgamma + i) + s * n, to_beta = load(dbeta + i) + s;
                store(dgamma + i, to_gamma);
                store(dbeta + i, to_beta);
                sums += g;
                products += g * n;
            }
            float sum = total(sums), product = total(products);
            for (int64_t i = even; i < width; i++) {
                float n = (from[i] - m) * r, g = slope[i] * gamma[i];
                dgamma[i] = dgamma[i] + slope[i] * n;
                dbeta[i] = dbeta[i] + slope[i];
                sum = sum + g;
                product = product + g * n;
            }
            float a = sum / width, b = product / width;
            for (int64_t i = 0; i < width; i++) {
                float n = (from[i] - m) * r;
                to[i] = r * (slope[i] * gamma[i] - a - n * b);
            }
        }
    }
    for (int64_t piece = 1; piece < pieces; piece++)
        for (int64_t i = 0; i < 2 * width; i++) partial[i] = partial[i] + partial[piece * 2 * width + i];
}

#include "attention.h"
#include "linear.h"
