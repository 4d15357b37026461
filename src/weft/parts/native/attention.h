/* Causal attention of short texts: Y = softmax(s Q K^T) V over the keys up to each query, forward and back.
 *
 * A thread takes whole heads of a row of the batch. Their Q, K and V are copied side by side, K and V transposed where
 * a product needs it, with zeros up to whole tiles, and all weights of a head fit the core's second cache. Products
 * run over tiles of 8 x 32, and tiles above the diagonal are left out. A query's output depends on the keys that it
 * sees alone, in an order that their positions decide. */
#define ROWS 8
#define COLUMNS 32

#ifdef __AVX512F__
#include <immintrin.h>
#define MULTIPLY_ADD(a, b, c) ((lanes)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define ATTENTION_IS_FAST 1
#else
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#define ATTENTION_IS_FAST 0
#endif

int64_t weft_attention_is_fast(void) { return ATTENTION_IS_FAST; }

typedef struct { /* a tensor [B, H, T, K]: where it is, and how far apart rows, heads and tokens are */
    float *data;
    int64_t row, head, token;
} heads;

static inline const float *head_of(const heads *x, int64_t b, int64_t h) {
    return x->data + b * x->row + h * x->head;
}

/* How far apart rows of P numbers are: a power of two would put them all into the same few places of a cache. */
static int64_t apart(int64_t P) { return P + LANES; }

static int64_t up_to(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

/* C [8, columns] = A B over `depth`, for A(r, d) = a[r a_row + d a_depth]; columns is a multiple of 16. */
static inline void strip(const float *a, int64_t a_row, int64_t a_depth, const float *b, int64_t b_row, int64_t depth,
                         float *c, int64_t c_row, int64_t columns) {
    for (int64_t j = 0; j < columns; j += COLUMNS) {
        const float *low = a, *middle = a + 3 * a_row, *high = a + 6 * a_row, *from = b + j;
        int two = columns - j >= COLUMNS;
        lanes sums[2][ROWS] = {{{0}}};
        for (int64_t d = 0; d < depth; d++) {
            lanes left = load(from), right = load(from + two * LANES);
#define ROW(r, place) \
    sums[0][r] = MULTIPLY_ADD(ALL(place), left, sums[0][r]); \
    sums[1][r] = MULTIPLY_ADD(ALL(place), right, sums[1][r]);
            ROW(0, low[0])
            ROW(1, low[a_row])
            ROW(2, low[2 * a_row])
            ROW(3, middle[0])
            ROW(4, middle[a_row])
            ROW(5, middle[2 * a_row])
            ROW(6, high[0])
            ROW(7, high[a_row])
#undef ROW
            low += a_depth, middle += a_depth, high += a_depth, from += b_row;
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) store(c + r * c_row + j, sums[0][r]);
        if (!two) continue;
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) store(c + r * c_row + j + LANES, sums[1][r]);
    }
}

/* x [T, K] in order, with zeros up to `padded` tokens. */
static void copy_head(const float *x, int64_t token, int64_t T, int64_t K, int64_t padded, float *to) {
    for (int64_t t = 0; t < T; t++) memcpy(to + t * K, x + t * token, 4 * K);
    memset(to + T * K, 0, 4 * (padded - T) * K);
}

/* x [padded, K] -> [K, padded], 16 tokens at a time. */
static void turn_head(const float *x, int64_t K, int64_t padded, float *to) {
    int64_t row = apart(padded);
    for (int64_t t = 0; t < padded; t += LANES)
        for (int64_t k = 0; k < K; k++)
            for (int64_t n = 0; n < LANES; n++) to[k * row + t + n] = x[(t + n) * K + k];
}

/* e^(s x - shift) for the first `seen` of `count` numbers, 0 for the rest; gives the sum. */
static inline __attribute__((always_inline)) float exponentials(float *x, float scale, float shift, int64_t seen,
                                                                int64_t count) {
    lanes sums = {0};
    for (int64_t j = 0; j < count; j += LANES) {
        lanes power = load(x + j) * scale - shift;
        whole small = power < -87.0f;
        lanes found = exponential(choose(small, ALL(-87.0f), power));
        found = choose(~small & (NUMBERS < (int32_t)(seen - j)), found, (lanes){0});
        store(x + j, found);
        sums += found;
    }
    return total(sums);
}

/* The largest of the first `seen` numbers, of which more follow. */
static float largest(const float *x, int64_t seen) {
    lanes most = ALL(x[0]);
    for (int64_t j = 0; j < seen; j += LANES) {
        lanes some = load(x + j);
        most = choose((some > most) & (NUMBERS < (int32_t)(seen - j)), some, most);
    }
    float found = most[0];
    for (int n = 1; n < LANES; n++) found = most[n] > found ? most[n] : found;
    return found;
}

static float inner(const float *x, const float *y, int64_t count) { /* count is a multiple of 16 */
    lanes sums = {0};
    for (int64_t n = 0; n < count; n += LANES) sums += load(x + n) * load(y + n);
    return total(sums);
}

static void store_rows(heads *x, int64_t b, int64_t h, int64_t first, int64_t last, int64_t K, const float *from) {
    float *to = (float *)head_of(x, b, h);
    for (int64_t i = first; i < last; i++) memcpy(to + i * x->token, from + (i - first) * K, 4 * K);
}

static void attend(const heads *q, const heads *k, const heads *v, float scale, heads *y, float *logs,
                   int64_t b, int64_t h, int64_t T, int64_t K, float *room) {
    int64_t P = up_to(T, COLUMNS), S = apart(P);
    float *Q = room, *keys = Q + P * K, *V = keys + P * K, *turned = V + P * K, *scores = turned + S * K;
    float *out = scores + ROWS * S;
    copy_head(head_of(q, b, h), q->token, T, K, P, Q);
    copy_head(head_of(k, b, h), k->token, T, K, P, keys);
    copy_head(head_of(v, b, h), v->token, T, K, P, V);
    turn_head(keys, K, P, turned);
    for (int64_t first = 0; first < T; first += ROWS) {
        int64_t last = first + ROWS < T ? first + ROWS : T, wide = up_to(last, COLUMNS);
        float inverse[ROWS];
        strip(Q + first * K, K, 1, turned, S, K, scores, S, wide);
        for (int64_t i = first; i < last; i++) {
            float *row = scores + (i - first) * S;
            int64_t seen = i + 1;
            float most = scale * largest(row, seen), sum = exponentials(row, scale, most, seen, wide);
            inverse[i - first] = 1.0f / sum;
            logs[i] = most + logf(sum);
        }
        strip(scores, S, 1, V, K, last, out, K, K);
        for (int64_t i = first; i < last; i++) {
            float *to = (float *)head_of(y, b, h) + i * y->token;
            for (int64_t n = 0; n < K; n++) to[n] = out[(i - first) * K + n] * inverse[i - first];
        }
    }
}

/* With A = softmax, dA = dY V^T: dS = s A (dA - rowsum(dY Y)), dQ = dS K, dK = dS^T Q, dV = A^T dY. */
static void attend_back(const heads *q, const heads *k, const heads *v, const heads *y, const heads *dy, float scale,
                        const float *logs, heads *dq, heads *dk, heads *dv, int64_t b, int64_t h,
                        int64_t T, int64_t K, float *room) {
    int64_t P = up_to(T, COLUMNS), S = apart(P);
    float *Q = room, *keys = Q + P * K, *V = keys + P * K, *slopes = V + P * K, *keys_turned = slopes + P * K;
    float *V_turned = keys_turned + S * K, *A = V_turned + S * K, *dS = A + P * S, *out = dS + P * S;
    copy_head(head_of(q, b, h), q->token, T, K, P, Q);
    copy_head(head_of(k, b, h), k->token, T, K, P, keys);
    copy_head(head_of(v, b, h), v->token, T, K, P, V);
    copy_head(head_of(dy, b, h), dy->token, T, K, P, slopes);
    turn_head(keys, K, P, keys_turned);
    turn_head(V, K, P, V_turned);
    for (int64_t first = 0; first < T; first += ROWS) {
        int64_t last = first + ROWS < T ? first + ROWS : T, wide = up_to(last, COLUMNS);
        strip(Q + first * K, K, 1, keys_turned, S, K, A + first * S, S, wide);
        strip(slopes + first * K, K, 1, V_turned, S, K, dS + first * S, S, wide);
        for (int64_t i = first; i < first + ROWS; i++) {
            float *a = A + i * S, *ds = dS + i * S;
            float delta = i < T ? inner(slopes + i * K, head_of(y, b, h) + i * y->token, K) : 0;
            exponentials(a, scale, i < T ? logs[i] : 0, i < T ? i + 1 : 0, wide);
            for (int64_t j = 0; j < wide; j++) ds[j] = scale * a[j] * (ds[j] - delta);
        }
        strip(dS + first * S, S, 1, keys, K, last, out, K, K);
        store_rows(dq, b, h, first, last, K, out);
    }
    for (int64_t first = 0; first < T; first += ROWS) {
        int64_t last = first + ROWS < T ? first + ROWS : T;
        strip(A + first * S + first, 1, S, slopes + first * K, K, T - first, out, K, K);
        store_rows(dv, b, h, first, last, K, out);
        strip(dS + first * S + first, 1, S, Q + first * K, K, T - first, out, K, K);
        store_rows(dk, b, h, first, last, K, out);
    }
}

/* sizes: B, H, T, K, threads. logs [B, H, T] are log sum e^(s q k). */
void weft_attention(const heads *q, const heads *k, const heads *v, float scale, heads *y, float *logs,
                    const int64_t *sizes) {
    int64_t B = sizes[0], H = sizes[1], T = sizes[2], K = sizes[3], P = up_to(T, COLUMNS);
#pragma omp parallel num_threads(sizes[4])
    {
        float *room = aligned_alloc(64, 4 * up_to(3 * P * K + apart(P) * (K + ROWS) + ROWS * K, LANES));
#pragma omp for schedule(static)
        for (int64_t n = 0; n < B * H; n++) attend(q, k, v, scale, y, logs + n * T, n / H, n % H, T, K, room);
        free(room);
    }
}

void weft_attention_backward(const heads *q, const heads *k, const heads *v, const heads *y, const heads *dy,
                             float scale, const float *logs, heads *dq, heads *dk, heads *dv, const int64_t *sizes) {
    int64_t B = sizes[0], H = sizes[1], T = sizes[2], K = sizes[3], P = up_to(T, COLUMNS);
#pragma omp parallel num_threads(sizes[4])
    {
        float *room = aligned_alloc(64, 4 * up_to(4 * P * K + 2 * apart(P) * (K + P) + ROWS * K, LANES));
#pragma omp for schedule(static)
        for (int64_t n = 0; n < B * H; n++)
            attend_back(q, k, v, y, dy, scale, logs + n * T, dq, dk, dv, n / H, n % H, T, K, room);
        free(room);
    }
}
