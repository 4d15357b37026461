/* What a step does to many small tensors at once, in float32 on CPUs: the gradient's norm, its scaling, AdamW.
 *
 * Each tensor is cut into pieces, and all threads take pieces of all tensors: one call where torch takes one or more
 * for each tensor. Sums are those of the pieces, added in order, so the number of threads changes no bit. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define PIECE 8192
#define LEAST 16384 /* elements below which one thread is faster than two */

typedef float lanes __attribute__((vector_size(4 * LANES)));

typedef struct {
    int64_t tensor, first, count;
} piece;

/* The pieces of tensors of these sizes, in order; *elements is the sum of sizes. */
static piece *cut(const int64_t *sizes, int64_t tensors, int64_t *pieces, int64_t *elements) {
    *pieces = *elements = 0;
    for (int64_t t = 0; t < tensors; t++) *pieces += (sizes[t] + PIECE - 1) / PIECE, *elements += sizes[t];
    piece *found = malloc(sizeof(piece) * (*pieces + 1)), *next = found;
    for (int64_t t = 0; t < tensors; t++)
        for (int64_t first = 0; first < sizes[t]; first += PIECE)
            *next++ = (piece){t, first, sizes[t] - first < PIECE ? sizes[t] - first : PIECE};
    return found;
}

static double square_sum(const float *x, int64_t count) {
    lanes sums = {0}, part;
    int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        memcpy(&part, x + i, sizeof part);
        sums += part * part;
    }
    double sum = 0;
    for (int i = 0; i < LANES; i++) sum += sums[i];
    for (int64_t i = whole; i < count; i++) sum += (double)x[i] * x[i];
    return sum;
}

/* sqrt(sum g^2) over all tensors. */
double weft_norm(float **gradients, const int64_t *sizes, int64_t tensors, int64_t threads) {
    int64_t pieces, elements;
    piece *cuts = cut(sizes, tensors, &pieces, &elements);
    double *sums = malloc(sizeof(double) * (pieces + 1)), sum = 0;
#pragma omp parallel for schedule(static) num_threads(threads) if (elements >= LEAST)
    for (int64_t n = 0; n < pieces; n++) sums[n] = square_sum(gradients[cuts[n].tensor] + cuts[n].first, cuts[n].count);
    for (int64_t n = 0; n < pieces; n++) sum += sums[n];
    free(cuts);
    free(sums);
    return sqrt(sum);
}

/* g <- factor g. */
void weft_scale(float **gradients, const int64_t *sizes, int64_t tensors, float factor, int64_t threads) {
    int64_t pieces, elements;
    piece *cuts = cut(sizes, tensors, &pieces, &elements);
#pragma omp parallel for schedule(static) num_threads(threads) if (elements >= LEAST)
    for (int64_t n = 0; n < pieces; n++) {
        float *g = gradients[cuts[n].tensor] + cuts[n].first;
        for (int64_t i = 0; i < cuts[n].count; i++) g[i] = factor * g[i];
    }
    free(cuts);
}

/* AdamW (Loshchilov and Hutter 2019), t the tensor's own number of steps, which is counted on:
 *   W <- W - lr decay W,  m <- m + (1 - b1) (g - m),  v <- b2 v + (1 - b2) g^2,
 *   W <- W - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) */
void weft_adamw(float **weights, float **gradients, float **means, float **squares, float **steps,
                const int64_t *sizes, int64_t tensors, double lr, double b1, double b2, double epsilon, double decay,
                int64_t threads) {
    int64_t pieces, elements;
    piece *cuts = cut(sizes, tensors, &pieces, &elements);
    for (int64_t t = 0; t < tensors; t++) steps[t][0] += 1;
    float kept = (float)(1 - lr * decay), to_mean = (float)(1 - b1), old = (float)b2, new = (float)(1 - b2);
    float least = (float)epsilon;
#pragma omp parallel for schedule(static) num_threads(threads) if (elements >= LEAST)
    for (int64_t n = 0; n < pieces; n++) {
        int64_t t = cuts[n].tensor, first = cuts[n].first, count = cuts[n].count;
        float *restrict w = weights[t] + first, *restrict m = means[t] + first, *restrict v = squares[t] + first;
        const float *restrict g = gradients[t] + first;
        float rate = (float)(lr / (1 - pow(b1, steps[t][0]))), root = (float)sqrt(1 - pow(b2, steps[t][0]));
        for (int64_t i = 0; i < count; i++) {
            float slope = g[i];
            float mean = m[i] + to_mean * (slope - m[i]), square = old * v[i] + new * slope * slope;
            m[i] = mean;
            v[i] = square;
            w[i] = w[i] * kept - rate * mean / (sqrtf(square) / root + least);
        }
    }
    free(cuts);
}
