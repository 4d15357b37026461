/* Kernels of parts in float32 for training on CPUs: GELU and layer norm, forward and back.
 *
 * The readable definitions are torch's operations in parts/feedforward.py and parts/norms.py; these take fewer passes
 * over memory. An element or a row is computed by the same operations wherever it stands and however many threads there
 * are, so company changes no bit: products and sums are not fused (-ffp-contract=off), sums over a row are in an order
 * that its width alone decides, and sums over rows are those of fixed pieces. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define PIECE 4096 /* elements that a thread takes at a time */
#define LEAST 16384 /* elements below which one thread is faster than two */

typedef float lanes __attribute__((vector_size(4 * LANES)));

/* --- GELU (Hendrycks and Gimpel 2016) by tanh: x/2 (1 + tanh u) = x s, s = 1 / (1 + e^(-2u)), u = c (x + a x^3) ---- */

static const float TWICE_C = 1.5957691216057308f;   /* 2 sqrt(2 / pi) */
static const float TWICE_CA = 0.07135481282052125f; /* 2 sqrt(2 / pi) 0.044715 */

/* e^x for |x| <= 87: 2^n e^r with x = n ln 2 + r, |r| <= ln(2) / 2, and e^r by its series. */
static inline float exponential(float x) {
    const float shift = 12582912.0f; /* 1.5 x 2^23: adding it rounds to a whole number */
    float rounded = x * 1.44269504088896341f + shift;
    float n = rounded - shift;
    float r = x - n * 0.693145751953125f; /* ln 2 in two parts: n times the first is exact */
    r = r - n * 1.42860676533018704e-06f;
    float p = 1.0f / 5040 * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    int32_t bits;
    memcpy(&bits, &rounded, 4);
    bits = (bits + 127) << 23; /* the low bits of `rounded` are n */
    float power;
    memcpy(&power, &bits, 4);
    return p * power;
}

/* s(x) = 1 / (1 + e^(-2u)); 0 below the smallest numbers. NaN stays NaN. */
static inline float gelu_share(float x) {
    float twice_u = x * (TWICE_C + TWICE_CA * x * x);
    float bounded = twice_u > 87.0f ? 87.0f : twice_u;
    bounded = bounded < -87.0f ? -87.0f : bounded;
    float s = 1.0f / (1.0f + exponential(-bounded));
    return twice_u < -87.0f ? 0.0f : s;
}

void weft_gelu(const float *x, float *y, int64_t count, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (count >= LEAST)
    for (int64_t first = 0; first < count; first += PIECE) {
        int64_t last = first + PIECE < count ? first + PIECE : count;
        for (int64_t i = first; i < last; i++) y[i] = x[i] * gelu_share(x[i]);
    }
}

/* dx = dy (s + x s (1 - s) 2 u') */
void weft_gelu_backward(const float *x, const float *dy, float *dx, int64_t count, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (count >= LEAST)
    for (int64_t first = 0; first < count; first += PIECE) {
        int64_t last = first + PIECE < count ? first + PIECE : count;
        for (int64_t i = first; i < last; i++) {
            float s = gelu_share(x[i]);
            float bend = x[i] * (TWICE_C + 3.0f * TWICE_CA * x[i] * x[i]);
            bend = s == 0.0f || s == 1.0f ? 0.0f : bend * (1.0f - s); /* else 0 times infinity */
            dx[i] = dy[i] * (s + s * bend);
        }
    }
}

/* --- Layer norm (Ba et al. 2016): y = (x - m) r gamma + beta, m = mean x, r = 1 / sqrt(mean (x - m)^2 + eps) ------- */

static inline lanes load(const float *x, int64_t count) {
    lanes found = {0};
    if (count >= LANES) memcpy(&found, x, sizeof found);
    else memcpy(&found, x, 4 * count);
    return found;
}

static inline float total(lanes sums) {
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) sums[i] = sums[i] + sums[i + half];
    return sums[0];
}

static void row_statistics(const float *x, int64_t width, float epsilon, float *mean, float *root) {
    lanes sums = {0}, squares = {0};
    int64_t whole = width / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) sums += load(x + i, LANES);
    float m = total(sums + load(x + whole, width - whole)) / width;
    for (int64_t i = 0; i < whole; i += LANES) {
        lanes apart = load(x + i, LANES) - m;
        squares += apart * apart;
    }
    float sum = total(squares);
    for (int64_t i = whole; i < width; i++) sum = sum + (x[i] - m) * (x[i] - m);
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
    int64_t whole = width / LANES * LANES, each = (rows + pieces - 1) / pieces;
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * width >= LEAST)
    for (int64_t piece = 0; piece < pieces; piece++) {
        float *dgamma = partial + piece * 2 * width, *dbeta = dgamma + width;
        memset(dgamma, 0, 8 * width);
        int64_t end = (piece + 1) * each < rows ? (piece + 1) * each : rows;
        for (int64_t row = piece * each; row < end; row++) {
            const float *from = x + row * width, *slope = dy + row * width;
            float *to = dx + row * width, m = mean[row], r = root[row];
            lanes sums = {0}, products = {0};
            for (int64_t i = 0; i < whole; i += LANES) {
                lanes s = load(slope + i, LANES), n = (load(from + i, LANES) - m) * r;
                lanes g = s * load(gamma + i, LANES);
                lanes to_gamma = load(dgamma + i, LANES) + s * n, to_beta = load(dbeta + i, LANES) + s;
                memcpy(dgamma + i, &to_gamma, sizeof to_gamma);
                memcpy(dbeta + i, &to_beta, sizeof to_beta);
                sums += g;
                products += g * n;
            }
            float sum = total(sums), product = total(products);
            for (int64_t i = whole; i < width; i++) {
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
