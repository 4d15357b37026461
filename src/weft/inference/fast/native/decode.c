/* One decoding step of a stack of blocks: one or a few new tokens per row, all layers in one call.
 *
 *   pre-norm   z' = MSA(LN(z)) + z,      z = MLP(LN(z')) + z'
 *   post-norm  z' = LN(MSA(z) + z),      z = LN(MLP(z') + z')
 *   sandwich   z' = LN(MSA(LN(z))) + z,  z = LN(MLP(LN(z'))) + z'
 *   parallel   z' = MSA(LN(z)) + MLP(LN(z)) + z
 *   attention  a = softmax(q K^T s) over the slots that the row sees,  y = a V;  capped: c tanh(q K^T s / c)
 *
 * Decoding reads every weight once per step, so the work is to read memory at full rate. Products take four rows of W at
 * a time and go over all rows of x while those are in the cache. The order of additions in a product of one row of x
 * with one row of W is fixed, so what a row becomes does not depend, in any bit, on how many rows are with it, nor on
 * the number of threads.
 *
 * Portable C with vector extensions (GCC, Clang); OpenMP where there is one. No state is kept here.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __AVX2__
#include <immintrin.h>
#endif

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t i8v __attribute__((vector_size(32)));

enum { F32, INT8 };
enum { NO_NORM, RMS, LAYER };
enum { PRE_NORM, POST_NORM, SANDWICH_NORM, PARALLEL };
enum { RELU, GELU, GELU_TANH, SILU, SQUARED_RELU };

typedef struct {
    const void *weight; /* [rows, cols] */
    const float *scale; /* [rows], int8 only */
    const float *bias;  /* [rows] or none */
    int64_t rows, cols, type;
} Matrix;

typedef struct {
    const float *gamma, *beta;
    double epsilon;
    int64_t kind;
} Norm;

typedef struct {
    float *data; /* [row, head, slot, width] by these steps; width is contiguous */
    int64_t row, head, slot;
} CacheStore;

typedef struct {
    Norm mixer_norm, cross_norm, feedforward_norm, query_norm, key_norm, cross_query_norm;
    Norm mixer_output_norm, cross_output_norm, feedforward_output_norm; /* sandwich-norm only */
    Matrix qkv, output, cross_query, cross_output, up, down;
    CacheStore keys, values, memory_keys, memory_values;
    const float *cosines, *sines; /* [positions, rotary], the sine with its sign */
    int64_t window, capacity, slots; /* window 0: all; keys stand in slot (order mod capacity) */
} Layer;

typedef struct {
    int64_t layers, width, heads, key_heads, head_width, value_width, hidden;
    int64_t cross_heads, cross_key_heads, cross_width, cross_value_width;
    int64_t activation, gated, arrangement, rotary; /* rotary: how many coordinates turn */
    double scale, cross_scale, cap, cross_cap; /* cap 0: none */
    Norm last;
} StackShape;

typedef struct {
    int64_t batch, tokens, source; /* tokens: new ones per row */
    const int64_t *orders;      /* [cache_slots, batch]: how many keys a row has before them */
    const int64_t *positions;   /* [batch, tokens]: where they stand */
    const uint8_t *source_real; /* [batch, source] or none */
    float *scratch;
    int64_t scratch_row, longest;
} StepCall;

/* ---- vectors ---- */

static inline v8 load(const float *x) { v8 v; memcpy(&v, x, 32); return v; }

static inline v8 load_int8(const int8_t *x) {
#ifdef __AVX2__
    return (v8)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)x)));
#else
    return (v8){x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]};
#endif
}

static inline float total(v8 v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

static inline v8 splat(float x) { return (v8){x, x, x, x, x, x, x, x}; }

static inline v8 pick(i8v which, v8 a, v8 b) { return (v8)(((i8v)a & which) | ((i8v)b & ~which)); }

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

/* ---- products ---- */

/* NAME: four rows of W with one of x. NAME_two: with two of x, each W read once for both. NAME_one: one with one. Each
 * sum adds eight by eight, then the rest, in the same order in all three. */
#define DOT_ROWS(NAME, TYPE, LOAD)                                                                                \
    static inline float NAME##_one(const TYPE *w, int64_t D, const float *x) {                                    \
        v8 a = splat(0);                                                                                          \
        int64_t i = 0;                                                                                            \
        float rest = 0;                                                                                           \
        for (; i + 8 <= D; i += 8) a += LOAD(w + i) * load(x + i);                                                \
        for (; i < D; i++) rest += w[i] * x[i];                                                                   \
        return total(a) + rest;                                                                                   \
    }                                                                                                             \
    static inline float NAME##_rest(const TYPE *w, int64_t D, const float *x) {                                   \
        float rest = 0;                                                                                           \
        for (int64_t i = D & ~(int64_t)7; i < D; i++) rest += w[i] * x[i];                                        \
        return rest;                                                                                              \
    }                                                                                                             \
    static inline void NAME(const TYPE *w, int64_t D, const float *x, float *y) {                                 \
        v8 a = splat(0), b = splat(0), c = splat(0), d = splat(0);                                                \
        for (int64_t i = 0; i + 8 <= D; i += 8) {                                                                 \
            v8 v = load(x + i);                                                                                   \
            a += LOAD(w + i) * v;                                                                                 \
            b += LOAD(w + D + i) * v;                                                                             \
            c += LOAD(w + 2 * D + i) * v;                                                                         \
            d += LOAD(w + 3 * D + i) * v;                                                                         \
        }                                                                                                         \
        y[0] = total(a) + NAME##_rest(w, D, x);                                                                   \
        y[1] = total(b) + NAME##_rest(w + D, D, x);                                                               \
        y[2] = total(c) + NAME##_rest(w + 2 * D, D, x);                                                           \
        y[3] = total(d) + NAME##_rest(w + 3 * D, D, x);                                                           \
    }                                                                                                             \
    static inline void NAME##_two(const TYPE *w, int64_t D, const float *x, const float *z, float *y, float *u) { \
        v8 a = splat(0), b = splat(0), c = splat(0), d = splat(0);                                                \
        v8 e = splat(0), f = splat(0), g = splat(0), h = splat(0);                                                \
        for (int64_t i = 0; i + 8 <= D; i += 8) {                                                                 \
            v8 v = load(x + i), t = load(z + i), m = LOAD(w + i);                                                 \
            a += m * v, e += m * t, m = LOAD(w + D + i);                                                          \
            b += m * v, f += m * t, m = LOAD(w + 2 * D + i);                                                      \
            c += m * v, g += m * t, m = LOAD(w + 3 * D + i);                                                      \
            d += m * v, h += m * t;                                                                               \
        }                                                                                                         \
        v8 one[4] = {a, b, c, d}, other[4] = {e, f, g, h};                                                        \
        for (int k = 0; k < 4; k++) {                                                                             \
            y[k] = total(one[k]) + NAME##_rest(w + k * D, D, x);                                                  \
            u[k] = total(other[k]) + NAME##_rest(w + k * D, D, z);                                                \
        }                                                                                                         \
    }

DOT_ROWS(dot_f32, float, load)
DOT_ROWS(dot_int8, int8_t, load_int8)

/* The products of W_o .. W_(o + n - 1) with x, and with z where it is given. */
static inline void dots(const Matrix *m, int64_t o, int64_t n, const float *x, const float *z, float *y, float *u) {
    int64_t D = m->cols;
    const float *w = (const float *)m->weight + o * D;
    const int8_t *q = (const int8_t *)m->weight + o * D;
    if (n < 4) {
        for (int64_t k = 0; k < n; k++) {
            y[k] = m->type == F32 ? dot_f32_one(w + k * D, D, x) : dot_int8_one(q + k * D, D, x);
            if (z) u[k] = m->type == F32 ? dot_f32_one(w + k * D, D, z) : dot_int8_one(q + k * D, D, z);
        }
    } else if (m->type == F32) {
        if (z) dot_f32_two(w, D, x, z, y, u);
        else dot_f32(w, D, x, y);
    } else {
        if (z) dot_int8_two(q, D, x, z, y, u);
        else dot_int8(q, D, x, y);
    }
}

static inline void finish(const Matrix *m, int64_t o, int64_t n, const float *sums, float *out) {
    for (int64_t k = 0; k < n; k++) {
        float value = m->scale ? sums[k] * m->scale[o + k] : sums[k];
        out[k] = m->bias ? value + m->bias[o + k] : value;
    }
}

/* y[b, o] = W_o x_b * scale_o + bias_o for o in [first, last), all rows b. */
static void multiply(const Matrix *m, const float *x, int64_t x_row, float *y, int64_t y_row, int64_t B,
                     int64_t first, int64_t last) {
    for (int64_t o = first; o < last; o += 4) {
        int64_t n = last - o < 4 ? last - o : 4;
        for (int64_t b = 0; b < B; b += 2) {
            float one[4], other[4];
            const float *next = b + 1 < B ? x + (b + 1) * x_row : 0;
            dots(m, o, n, x + b * x_row, next, one, other);
            finish(m, o, n, one, y + b * y_row + o);
            if (next) finish(m, o, n, other, y + (b + 1) * y_row + o);
        }
    }
}

/* ---- steps within a token ---- */

static void normalize(const Norm *norm, const float *x, float *y, int64_t D) {
    if (norm->kind == NO_NORM) { if (x != y) memcpy(y, x, D * sizeof(float)); return; }
    double mean = 0, square = 0;
    if (norm->kind == LAYER) {
        for (int64_t i = 0; i < D; i++) mean += x[i];
        mean /= D;
    }
    for (int64_t i = 0; i < D; i++) { double d = x[i] - mean; square += d * d; }
    float m = (float)mean, r = (float)(1.0 / sqrt(square / D + norm->epsilon));
    for (int64_t i = 0; i < D; i++) {
        float value = (x[i] - m) * r * norm->gamma[i];
        y[i] = norm->beta ? value + norm->beta[i] : value;
    }
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

static inline v8 activate8(v8 x, int64_t kind) {
    v8 zero = splat(0), half = splat(0.5f), one = splat(1);
    v8 kept = pick(x > zero, x, zero);
    if (kind == RELU) return kept;
    if (kind == SQUARED_RELU) return kept * kept;
    if (kind == SILU) return x / (one + exponential(-x));
    if (kind == GELU) return half * x * (one + erf8(x * splat(0.70710678f)));
    return half * x * (one + tanh8(splat(0.79788456f) * (x + splat(0.044715f) * x * x * x)));
}

static void activate(float *x, int64_t n, int64_t kind) {
    int64_t i = 0;
    for (; i < n; i += 8) {
        float padded[8] = {0};
        int64_t k = n - i < 8 ? n - i : 8;
        memcpy(padded, x + i, k * sizeof(float));
        v8 y = activate8(load(padded), kind);
        memcpy(x + i, &y, k * sizeof(float));
    }
}

static void turn(float *x, const float *cosine, const float *sine, int64_t R) {
    for (int64_t i = 0; i < R / 2; i++) {
        float a = x[i], b = x[i + R / 2];
        x[i] = a * cosine[i] + b * sine[i];
        x[i + R / 2] = b * cosine[i + R / 2] + a * sine[i + R / 2];
    }
}

/* ---- attention ---- */

typedef struct { int64_t from, to, capacity; const uint8_t *real; } Seen;

/* y = softmax(e) V, e = s q K^T or c tanh(s q K^T / c), over slots (j mod capacity), j in [from, to), where real; zeros
 * if it sees none. */
static void attend(const float *q, const float *keys, int64_t key_slot, const float *values, int64_t value_slot,
                   Seen seen, float scale, float cap, int64_t K, int64_t V, float *weights, float *y) {
    int64_t n = seen.to - seen.from, last = seen.from % seen.capacity;
    float most = -INFINITY;
    for (int64_t j = 0, slot = last; j < n; j++, slot = slot + 1 == seen.capacity ? 0 : slot + 1) {
        float e = seen.real && !seen.real[slot] ? -INFINITY : dot_f32_one(keys + slot * key_slot, K, q) * scale;
        if (cap > 0 && e != -INFINITY) e = cap * tanhf(e / cap);
        weights[j] = e;
        most = e > most ? e : most;
    }
    memset(y, 0, V * sizeof(float));
    if (most == -INFINITY) return;
    for (int64_t j = n; j < n + 8; j++) weights[j] = -INFINITY;
    v8 sum = splat(0);
    for (int64_t j = 0; j < n; j += 8) {
        v8 e = load(weights + j), a = exponential(e - splat(most));
        a = pick(e == splat(-INFINITY), splat(0), a);
        memcpy(weights + j, &a, 32);
        sum += a;
    }
    float one = 1.0f / total(sum);
    for (int64_t j = 0, slot = last; j < n; j++, slot = slot + 1 == seen.capacity ? 0 : slot + 1) {
        float a = weights[j] * one;
        const float *v = values + slot * value_slot;
        for (int64_t i = 0; i < V; i++) y[i] += a * v[i];
    }
}

/* Token t of row b: its key and value into their slot of key head g, then the query heads that share it. */
static void self_attend(const StackShape *s, const Layer *l, const StepCall *c, int64_t b, int64_t t, int64_t g, float *heads,
                        float *mixed, float *weights) {
    int64_t K = s->head_width, V = s->value_width, H = s->heads, G = s->key_heads, group = H / G;
    int64_t order = c->orders[l->slots * c->batch + b] + t, slot = order % l->capacity;
    int64_t at = c->positions[b * c->tokens + t];
    float *key = heads + H * K + g * K, *value = heads + (H + G) * K + g * V;
    const float *cosine = l->cosines + at * s->rotary, *sine = l->sines + at * s->rotary;
    float *keys = l->keys.data + b * l->keys.row + g * l->keys.head;
    float *values = l->values.data + b * l->values.row + g * l->values.head;
    if (l->key_norm.kind != NO_NORM) normalize(&l->key_norm, key, key, K);
    if (s->rotary) turn(key, cosine, sine, s->rotary);
    memcpy(keys + slot * l->keys.slot, key, K * sizeof(float));
    memcpy(values + slot * l->values.slot, value, V * sizeof(float));
    int64_t from = l->window && order + 1 > l->window ? order + 1 - l->window : 0;
    Seen seen = {from, order + 1, l->capacity, 0};
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        float *query = heads + h * K;
        if (l->query_norm.kind != NO_NORM) normalize(&l->query_norm, query, query, K);
        if (s->rotary) turn(query, cosine, sine, s->rotary);
        attend(query, keys, l->keys.slot, values, l->values.slot, seen, (float)s->scale, (float)s->cap, K, V, weights,
               mixed + h * V);
    }
}

static void cross_attend(const StackShape *s, const Layer *l, const StepCall *c, int64_t b, int64_t h, float *heads,
                         float *mixed, float *weights) {
    int64_t K = s->cross_width, V = s->cross_value_width, g = h / (s->cross_heads / s->cross_key_heads);
    float *query = heads + h * K;
    if (l->cross_query_norm.kind != NO_NORM) normalize(&l->cross_query_norm, query, query, K);
    const float *keys = l->memory_keys.data + b * l->memory_keys.row + g * l->memory_keys.head;
    const float *values = l->memory_values.data + b * l->memory_values.row + g * l->memory_values.head;
    Seen seen = {0, c->source, c->source, c->source_real ? c->source_real + b * c->source : 0};
    attend(query, keys, l->memory_keys.slot, values, l->memory_values.slot, seen, (float)s->cross_scale,
           (float)s->cross_cap, K, V, weights, mixed + h * V);
}

/* ---- the step ---- */

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

/* A thread's share of n rows in steps of four; bounds do not change what is computed for a row. */
static void share(const Team *team, int64_t n, int64_t *first, int64_t *last) {
    int64_t blocks = (n + 3) / 4;
    *first = 4 * (blocks * team->id / team->count);
    *last = 4 * (blocks * (team->id + 1) / team->count);
    if (*last > n) *last = n;
}

static void product(Team *team, const Matrix *m, const float *x, int64_t x_row, float *y, int64_t y_row, int64_t B) {
    int64_t first, last;
    share(team, m->rows, &first, &last);
    multiply(m, x, x_row, y, y_row, B, first, last);
}

/* x + branch, norm(x + branch) or x + output(branch); every thread has its own copy of the residual stream, and `own`
 * has room for one row. */
static void add(const StackShape *s, const Norm *norm, const Norm *output, float *x, const float *branch, int64_t row, int64_t B, float *own) {
    for (int64_t b = 0; b < B; b++) {
        float *z = x + b * s->width;
        const float *y = branch + b * row;
        if (s->arrangement == SANDWICH_NORM) {
            normalize(output, y, own, s->width);
            y = own;
        }
        for (int64_t i = 0; i < s->width; i++) z[i] += y[i];
        if (s->arrangement == POST_NORM) normalize(norm, z, z, s->width);
    }
}

static const float *before(const StackShape *s, const Norm *norm, const float *x, float *normed, int64_t B) {
    if (s->arrangement == POST_NORM) return x;
    for (int64_t b = 0; b < B; b++) normalize(norm, x + b * s->width, normed + b * s->width, s->width);
    return normed;
}

static void run(Team *team, const StackShape *s, const Layer *layers, const StepCall *c, const float *input, float *hidden) {
    int64_t T = c->tokens, B = c->batch * T, D = s->width, row = c->scratch_row;
    float *heads = c->scratch, *mixed = heads + B * row, *branch = mixed + B * row, *wide = branch + B * row;
    float *own = wide + B * row + team->id * (3 * B * D + c->longest + 16);
    float *x = own, *normed = own + B * D, *weights = own + 3 * B * D;
    /* What a branch reads: the stream as it is, or in parallel blocks as it was when it entered the block. */
    float *read = s->arrangement == PARALLEL ? own + 2 * B * D : x;
    memcpy(x, input, B * D * sizeof(float));
    for (int64_t n = 0; n < s->layers; n++) {
        const Layer *l = layers + n;
        if (read != x) memcpy(read, x, B * D * sizeof(float));
        const float *z = before(s, &l->mixer_norm, read, normed, B);
        if (l->qkv.weight) {
            product(team, &l->qkv, z, D, heads, row, B);
            meet(team);
            for (int64_t job = team->id; job < c->batch * s->key_heads; job += team->count) {
                int64_t b = job / s->key_heads, g = job % s->key_heads;
                for (int64_t t = 0, r = b * T; t < T; t++, r++)
                    self_attend(s, l, c, b, t, g, heads + r * row, mixed + r * row, weights);
            }
            meet(team);
            product(team, &l->output, mixed, row, branch, row, B);
            meet(team);
            add(s, &l->mixer_norm, &l->mixer_output_norm, x, branch, row, B, normed);
        }
        if (l->cross_query.weight) {
            z = before(s, &l->cross_norm, read, normed, B);
            product(team, &l->cross_query, z, D, heads, row, B);
            meet(team);
            for (int64_t job = team->id; job < B * s->cross_heads; job += team->count) {
                int64_t r = job / s->cross_heads, h = job % s->cross_heads;
                cross_attend(s, l, c, r / T, h, heads + r * row, mixed + r * row, weights);
            }
            meet(team);
            product(team, &l->cross_output, mixed, row, branch, row, B);
            meet(team);
            add(s, &l->cross_norm, &l->cross_output_norm, x, branch, row, B, normed);
        }
        if (l->up.weight) {
            int64_t F = s->hidden, first, last;
            z = before(s, &l->feedforward_norm, read, normed, B);
            share(team, F, &first, &last);
            multiply(&l->up, z, D, wide, row, B, first, last);
            if (s->gated) multiply(&l->up, z, D, wide, row, B, F + first, F + last);
            for (int64_t b = 0; b < B && last > first; b++) {
                float *h = wide + b * row;
                activate(h + first, last - first, s->activation);
                if (s->gated) for (int64_t i = first; i < last; i++) h[i] *= h[F + i];
            }
            meet(team);
            product(team, &l->down, wide, row, branch, row, B);
            meet(team);
            add(s, &l->feedforward_norm, &l->feedforward_output_norm, x, branch, row, B, normed);
        }
    }
    if (team->id == 0)
        for (int64_t b = 0; b < B; b++) normalize(&s->last, x + b * D, hidden + b * D, D);
}

/* hidden [batch, tokens, width] from input [batch, tokens, width]; new keys and values go into the stores. */
void weft_step(const StackShape *s, const Layer *layers, const StepCall *c, const float *input, float *hidden, int64_t threads) {
    int64_t arrived = 0;
#ifdef _OPENMP
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        Team team = {omp_get_thread_num(), omp_get_num_threads(), &arrived, 0};
        run(&team, s, layers, c, input, hidden);
    }
#else
    Team team = {0, 1, &arrived, 0};
    run(&team, s, layers, c, input, hidden);
#endif
}

/* y [batch, rows] = x [batch, cols] W^T. */
void weft_product(const Matrix *m, const float *x, float *y, int64_t batch, int64_t threads) {
#ifdef _OPENMP
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        Team team = {omp_get_thread_num(), omp_get_num_threads(), 0, 0};
        product(&team, m, x, m->cols, y, m->rows, batch);
    }
#else
    Team team = {0, 1, 0, 0};
    product(&team, m, x, m->cols, y, m->rows, batch);
#endif
}
