/* One decoding step of a stack of blocks: one or a few new tokens per text, as many as each has, all layers in one call.
 *
 *   pre-norm   z' = MSA(LN(z)) + z,      z = MLP(LN(z')) + z'
 *   post-norm  z' = LN(MSA(z) + z),      z = LN(MLP(z') + z')
 *   sandwich   z' = LN(MSA(LN(z))) + z,  z = LN(MLP(LN(z'))) + z'
 *   parallel   z' = MSA(LN(z)) + MLP(LN(z)) + z
 *   attention  a = softmax(q K^T s) over the slots that the row sees,  y = a V;  capped: c tanh(q K^T s / c)
 *
 * Decoding reads every weight once per step, so the work is to read memory at full rate (products.h). What a row becomes
 * does not depend, in any bit, on how many rows are with it, nor on the number of threads.
 *
 * OpenMP where there is one. No state is kept here.
 */

#include "products.h"
#include "summaries.h"
#ifdef _OPENMP
#include <omp.h>
#endif

enum { NO_NORM, RMS, LAYER };
enum { PRE_NORM, POST_NORM, SANDWICH_NORM, PARALLEL };

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
    int64_t batch, source;
    const int64_t *starts;      /* [batch + 1]: the rows of text b, its new tokens, are starts[b] to starts[b + 1] - 1 */
    const int64_t *orders;      /* [cache_slots, batch]: how many keys a text has before them */
    const int64_t *positions;   /* [rows]: where they stand */
    const uint8_t *source_real; /* [batch, source] or none */
    float *scratch;
    uint8_t *rounded; /* room for the rows in whole numbers, of each thread, where a matrix is in blocks */
    int64_t scratch_row, longest, rounded_row;
} StepCall;

/* ---- steps within a token ---- */

/* The sum of (x_i - m) or of its square, in float64, eight by eight. */
static double sum_of(const float *x, int64_t D, double m, int squared) {
    double acc[8] = {0}, rest = 0;
    int64_t i = 0;
    for (; i + 8 <= D; i += 8)
        for (int k = 0; k < 8; k++) {
            double d = x[i + k] - m;
            acc[k] += squared ? d * d : d;
        }
    for (; i < D; i++) {
        double d = x[i] - m;
        rest += squared ? d * d : d;
    }
    return ((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7])) + rest;
}

static void normalize(const Norm *norm, const float *x, float *y, int64_t D) {
    if (norm->kind == NO_NORM) { if (x != y) memcpy(y, x, D * sizeof(float)); return; }
    double mean = norm->kind == LAYER ? sum_of(x, D, 0, 0) / D : 0;
    double square = sum_of(x, D, mean, 1);
    float m = (float)mean, r = (float)(1.0 / sqrt(square / D + norm->epsilon));
    if (norm->beta) for (int64_t i = 0; i < D; i++) y[i] = (x[i] - m) * r * norm->gamma[i] + norm->beta[i];
    else for (int64_t i = 0; i < D; i++) y[i] = (x[i] - m) * r * norm->gamma[i];
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

/* s q K^T for n slots in a row. */
static void score(const float *q, const float *keys, int64_t key_slot, int64_t n, float scale, int64_t K, float *e) {
    float sums[MOST_ROWS][W_ROWS];
    int64_t j = 0;
    for (; j + W_ROWS <= n; j += W_ROWS) {
        tile(keys + j * key_slot, K, key_slot, q, 0, W_ROWS, 1, sums);
        for (int k = 0; k < W_ROWS; k++) e[j + k] = sums[0][k] * scale;
    }
    for (; j < n; j++) e[j] = dot(keys + j * key_slot, q, K) * scale;
}

/* y + a V for n slots in a row. */
static void gather(const float *a, const float *values, int64_t value_slot, int64_t n, int64_t V, float *y) {
    int64_t i = 0;
    for (; i + 4 * WIDE <= V; i += 4 * WIDE) {
        vf sum[4];
        for (int k = 0; k < 4; k++) sum[k] = load_wide(y + i + WIDE * k);
        for (int64_t j = 0; j < n; j++) {
            const float *v = values + j * value_slot + i;
            for (int k = 0; k < 4; k++) sum[k] = fused_wide(splat_wide(a[j]), load_wide(v + WIDE * k), sum[k]);
        }
        memcpy(y + i, sum, sizeof sum);
    }
    for (; i + WIDE <= V; i += WIDE) {
        vf sum = load_wide(y + i);
        for (int64_t j = 0; j < n; j++)
            sum = fused_wide(splat_wide(a[j]), load_wide(values + j * value_slot + i), sum);
        memcpy(y + i, &sum, sizeof sum);
    }
    for (int64_t j = 0; j < n && i < V; j++)
        for (int64_t k = i; k < V; k++) y[k] += a[j] * values[j * value_slot + k];
}

/* y = softmax(e) V, e = s q K^T or c tanh(s q K^T / c), over slots (j mod capacity), j in [from, to), where real; zeros
 * if it sees none, NaN if a score is. */
static void attend(const float *q, const float *keys, int64_t key_slot, const float *values, int64_t value_slot,
                   Seen seen, float scale, float cap, int64_t K, int64_t V, float *weights, float *y) {
    int64_t n = seen.to - seen.from, start = seen.from % seen.capacity;
    int64_t first = n < seen.capacity - start ? n : seen.capacity - start; /* then a ring goes on at slot 0 */
    float most = -INFINITY;
    score(q, keys + start * key_slot, key_slot, first, scale, K, weights);
    score(q, keys, key_slot, n - first, scale, K, weights + first);
    for (int64_t j = 0; j < n; j++) {
        if (cap > 0) weights[j] = cap * tanhf(weights[j] / cap);
        if (seen.real && !seen.real[(start + j) % seen.capacity]) weights[j] = -INFINITY;
        most = weights[j] > most ? weights[j] : most;
    }
    memset(y, 0, V * sizeof(float));
    if (most == -INFINITY) { /* it sees none, or scores that are no numbers, which are larger than none */
        for (int64_t j = 0; j < n; j++)
            if (weights[j] != weights[j]) for (int64_t i = 0; i < V; i++) y[i] = NAN;
        return;
    }
    for (int64_t j = n; j < n + 8; j++) weights[j] = -INFINITY;
    v8 sum = splat(0);
    for (int64_t j = 0; j < n; j += 8) {
        v8 e = load(weights + j), a = exponential(e - splat(most));
        a = pick(e == splat(-INFINITY), splat(0), a);
        store(weights + j, a);
        sum += a;
    }
    gather(weights, values + start * value_slot, value_slot, first, V, y);
    gather(weights + first, values, value_slot, n - first, V, y);
    float one = 1.0f / total(sum);
    for (int64_t i = 0; i < V; i++) y[i] *= one;
}

/* New token t of text b: its key and value into their slot of key head g, then the query heads that share it. */
static void self_attend(const StackShape *s, const Layer *l, const StepCall *c, int64_t b, int64_t t, int64_t g, float *heads,
                        float *mixed, float *weights) {
    int64_t K = s->head_width, V = s->value_width, H = s->heads, G = s->key_heads, group = H / G;
    int64_t order = c->orders[l->slots * c->batch + b] + t, slot = order % l->capacity;
    int64_t at = c->positions[c->starts[b] + t];
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
    int64_t B = c->starts[c->batch], D = s->width, row = c->scratch_row;
    float *heads = c->scratch, *mixed = heads + B * row, *branch = mixed + B * row, *wide = branch + B * row;
    float *own = wide + B * row + team->id * (3 * B * D + c->longest + 16);
    float *x = own, *normed = own + B * D, *weights = own + 3 * B * D;
    uint8_t *rooms = c->rounded;
    int64_t room = c->rounded_row;
    /* What a branch reads: the stream as it is, or in parallel blocks as it was when it entered the block. */
    float *read = s->arrangement == PARALLEL ? own + 2 * B * D : x;
    memcpy(x, input, B * D * sizeof(float));
    for (int64_t n = 0; n < s->layers; n++) {
        const Layer *l = layers + n;
        if (read != x) memcpy(read, x, B * D * sizeof(float));
        const float *z = before(s, &l->mixer_norm, read, normed, B);
        if (l->qkv.rows) {
            product(team, &l->qkv, rows_for(team, &l->qkv, z, D, B, rooms, room), heads, row, B);
            meet(team);
            for (int64_t job = team->id; job < c->batch * s->key_heads; job += team->count) {
                int64_t b = job / s->key_heads, g = job % s->key_heads;
                for (int64_t r = c->starts[b]; r < c->starts[b + 1]; r++)
                    self_attend(s, l, c, b, r - c->starts[b], g, heads + r * row, mixed + r * row, weights);
            }
            meet(team);
            product(team, &l->output, rows_for(team, &l->output, mixed, row, B, rooms, room), branch, row, B);
            meet(team);
            add(s, &l->mixer_norm, &l->mixer_output_norm, x, branch, row, B, normed);
        }
        if (l->cross_query.rows) {
            z = before(s, &l->cross_norm, read, normed, B);
            product(team, &l->cross_query, rows_for(team, &l->cross_query, z, D, B, rooms, room), heads, row, B);
            meet(team);
            for (int64_t job = team->id; job < c->batch * s->cross_heads; job += team->count) {
                int64_t b = job / s->cross_heads, h = job % s->cross_heads;
                for (int64_t r = c->starts[b]; r < c->starts[b + 1]; r++)
                    cross_attend(s, l, c, b, h, heads + r * row, mixed + r * row, weights);
            }
            meet(team);
            product(team, &l->cross_output, rows_for(team, &l->cross_output, mixed, row, B, rooms, room), branch, row, B);
            meet(team);
            add(s, &l->cross_norm, &l->cross_output_norm, x, branch, row, B, normed);
        }
        if (l->up.rows) {
            int64_t F = s->hidden, first, last;
            z = before(s, &l->feedforward_norm, read, normed, B);
            Rows rows = rows_for(team, &l->up, z, D, B, rooms, room);
            share(team, F, step_of(&l->up), &first, &last);
            multiply(&l->up, rows, wide, row, B, first, last);
            if (s->gated) multiply(&l->up, rows, wide, row, B, F + first, F + last);
            for (int64_t b = 0; b < B && last > first; b++) {
                float *h = wide + b * row;
                activate(h + first, last - first, s->activation);
                if (s->gated) for (int64_t i = first; i < last; i++) h[i] *= h[F + i];
            }
            meet(team);
            product(team, &l->down, rows_for(team, &l->down, wide, row, B, rooms, room), branch, row, B);
            meet(team);
            add(s, &l->feedforward_norm, &l->feedforward_output_norm, x, branch, row, B, normed);
        }
    }
    if (team->id == 0)
        for (int64_t b = 0; b < B; b++) normalize(&s->last, x + b * D, hidden + b * D, D);
}

/* hidden [rows, width] from input [rows, width]; new keys and values go into the stores. */
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

/* y [batch, rows] = x [batch, cols] W^T + b; where W is in blocks, `room` has rounded_size(cols)
 * bytes per row and thread. */
void weft_product(const Matrix *m, const float *x, float *y, int64_t batch, uint8_t *room, int64_t threads) {
    int64_t arrived = 0;
#ifdef _OPENMP
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        Team team = {omp_get_thread_num(), omp_get_num_threads(), &arrived, 0};
        shared_product(&team, m, x, y, batch, room);
    }
#else
    Team team = {0, 1, &arrived, 0};
    shared_product(&team, m, x, y, batch, room);
#endif
}

/* ---- the same steps for many rows, beside products by somebody else ---- */

/* y = norm(x), row by row. */
void weft_normalize(const Norm *norm, const float *x, float *y, int64_t rows, int64_t D, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++) normalize(norm, x + r * D, y + r * D, D);
}

/* y = f(x), or f(x) x' for gated rows [x; x'], each row by itself. */
void weft_activate(const float *x, float *y, int64_t rows, int64_t F, int64_t kind, int64_t gated, int64_t threads) {
#pragma omp parallel for schedule(static) num_threads((int)threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * F * (1 + gated);
        float *out = y + r * F;
        memcpy(out, in, F * sizeof(float));
        activate(out, F, kind);
        if (gated) for (int64_t i = 0; i < F; i++) out[i] *= in[F + i];
    }
}

int64_t weft_packed_size(int64_t kind, int64_t rows, int64_t columns) {
    return (rows + GROUP - 1) / GROUP * group_size(kind, columns);
}

int64_t weft_rounded_size(int64_t columns) { return rounded_size(columns); }
