/* Vectors of eight float32, and the functions of one number that the step needs, eight at a time.
 *
 * The compiler is told not to fuse products and sums by itself (-ffp-contract=off): where they are fused, `fused` says so,
 * and everything else gives the same bits on every processor.
 *
 * Portable C with vector extensions (GCC, Clang).
 */

#ifndef WEFT_VECTORS_H
#define WEFT_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__) && !defined(WEFT_PORTABLE)
#include <immintrin.h>
#endif

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t i8v __attribute__((vector_size(32)));

static inline v8 load(const float *x) { v8 v; memcpy(&v, x, 32); return v; }

static inline void store(float *x, v8 v) { memcpy(x, &v, 32); }

static inline v8 splat(float x) { return (v8){x, x, x, x, x, x, x, x}; }

/* a b + c, rounded once where the processor can. */
static inline v8 fused(v8 a, v8 b, v8 c) {
#if defined(__FMA__) && !defined(WEFT_PORTABLE)
    return (v8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

static inline float total(v8 v) {
#if defined(__AVX__) && !defined(WEFT_PORTABLE) /* the same sums, two and four at a time */
    __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
#endif
}

static inline v8 pick(i8v which, v8 a, v8 b) { return (v8)(((i8v)a & which) | ((i8v)b & ~which)); }

/* Into the second cache: it takes more requests at a time than the first. */
static inline void prefetch(const void *p) { __builtin_prefetch(p, 0, 2); }

/* e^x by 2^n e^r, |r| <= ln 2 / 2, to about one unit in the last place; below -87 it is 0. */
static inline v8 exponential(v8 x) {
    v8 low = splat(-87.0f), high = splat(88.0f);
    x = pick(x < low, low, x);
    x = pick(x > high, high, x);
    v8 n = x * splat(1.44269504f);
    i8v whole = __builtin_convertvector(n + pick(n < splat(0), splat(-0.5f), splat(0.5f)), i8v);
    n = __builtin_convertvector(whole, v8);
    v8 r = x - n * splat(0.693359375f) + n * splat(2.12194440e-4f);
    v8 p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = p * r * r + r + splat(1.0f);
    return p * (v8)((whole + 127) << 23);
}

static inline v8 tanh8(v8 x) { return splat(1) - splat(2) / (exponential(x + x) + splat(1)); }

/* erf by Abramowitz and Stegun 7.1.26: the error is below 1.5e-7. */
static inline v8 erf8(v8 x) {
    v8 positive = pick(x < splat(0), -x, x);
    v8 t = splat(1) / (splat(1) + splat(0.3275911f) * positive);
    v8 p = splat(1.061405429f);
    p = p * t + splat(-1.453152027f);
    p = p * t + splat(1.421413741f);
    p = p * t + splat(-0.284496736f);
    p = p * t + splat(0.254829592f);
    v8 e = splat(1) - p * t * exponential(-positive * positive);
    return pick(x < splat(0), -e, e);
}

enum { RELU, GELU, GELU_TANH, SILU, SQUARED_RELU };

static inline v8 activate8(v8 x, int64_t kind) {
    v8 zero = splat(0), half = splat(0.5f), one = splat(1);
    v8 kept = pick(x <= zero, zero, x); /* NaN stays NaN */
    if (kind == RELU) return kept;
    if (kind == SQUARED_RELU) return kept * kept;
    if (kind == SILU) return x / (one + exponential(-x));
    if (kind == GELU) return half * x * (one + erf8(x * splat(0.70710678f)));
    return half * x * (one + tanh8(splat(0.79788456f) * (x + splat(0.044715f) * x * x * x)));
}

static void activate(float *x, int64_t n, int64_t kind) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) store(x + i, activate8(load(x + i), kind));
    if (i < n) {
        float padded[8] = {0};
        memcpy(padded, x + i, (n - i) * sizeof(float));
        v8 y = activate8(load(padded), kind);
        memcpy(x + i, &y, (n - i) * sizeof(float));
    }
}

#endif
