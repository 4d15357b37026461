/* What choosing a token needs of its logits: the likeliest token, and log sum_c e^(l_c).
 *
 * A row is taken in pieces of fixed length, whose sums are added in order in float64: so a row's bits depend neither on
 * its company nor on the number of threads. A NaN is the largest number, and makes the sum NaN, as torch has it.
 */

#ifndef WEFT_SUMMARIES_H
#define WEFT_SUMMARIES_H

#include "vectors.h"

enum { PIECE = 4096 };

static inline int larger(float x, float than) { return x > than || (x != x && than == than); }

/* The first of the largest numbers. */
static int64_t first_largest(const float *x, int64_t n) {
    v8 most = splat(-INFINITY);
    i8v unlike = {0};
    int64_t i = 0, at = 0;
    for (; i + 8 <= n; i += 8) {
        v8 some = load(x + i);
        most = pick(some > most, some, most);
        unlike |= some != some;
    }
    float largest = most[0];
    int nan = 0;
    for (int k = 0; k < 8; k++) largest = most[k] > largest ? most[k] : largest, nan |= unlike[k] != 0;
    for (; i < n; i++) largest = x[i] > largest ? x[i] : largest, nan |= x[i] != x[i];
    while (at < n && !(nan ? x[at] != x[at] : x[at] == largest)) at++;
    return at;
}

/* sum e^(x - most) */
static double exponential_sum(const float *x, int64_t n, float most) {
    v8 sums = splat(0);
    double sum = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        v8 apart = load(x + i) - splat(most);
        sums += pick(apart < splat(-87.0f), splat(0), exponential(apart));
        if (i % 512 == 504) sum += total(sums), sums = splat(0);
    }
    sum += total(sums);
    for (; i < n; i++) sum += x[i] - most < -87.0f ? 0 : exponential(splat(x[i] - most))[0];
    return sum;
}

/* best [rows] and, unless it is none, sums [rows] of x [rows, n]; pieces [rows, weft_pieces(n)] is room. */
int64_t weft_pieces(int64_t n) { return (n + PIECE - 1) / PIECE; }

void weft_summaries(const float *x, int64_t rows, int64_t n, int64_t *best, float *sums, double *pieces, int64_t threads) {
    int64_t count = weft_pieces(n);
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (int64_t job = 0; job < rows * count; job++) {
            int64_t first = job % count * PIECE, length = n - first < PIECE ? n - first : PIECE;
            pieces[job] = (double)(first + first_largest(x + job / count * n + first, length));
        }
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; row++) {
            const float *at = x + row * n;
            best[row] = (int64_t)pieces[row * count];
            for (int64_t piece = 1; piece < count; piece++) {
                int64_t place = (int64_t)pieces[row * count + piece];
                if (larger(at[place], at[best[row]])) best[row] = place;
            }
        }
#pragma omp for schedule(static)
        for (int64_t job = 0; job < (sums ? rows * count : 0); job++) {
            int64_t first = job % count * PIECE, length = n - first < PIECE ? n - first : PIECE;
            const float *row = x + job / count * n;
            pieces[job] = exponential_sum(row + first, length, row[best[job / count]]);
        }
    }
    for (int64_t row = 0; sums && row < rows; row++) {
        float most = x[row * n + best[row]];
        double sum = 0;
        for (int64_t piece = 0; piece < count; piece++) sum += pieces[row * count + piece];
        sums[row] = most - most == 0 ? (float)(most + log(sum)) : most; /* infinity and NaN stay what they are */
    }
}

#endif
