/* Products of blocks by AVX-512 and VNNI: 16 rows of W in one register; see blocks.h for the formulas. */

static inline __m512 halves_512(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

static inline __m512 bytes_512(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

static inline __m512i signed_512(const uint8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)); }

static inline __attribute__((always_inline)) void quants_512(int64_t kind, const uint8_t *p, __m512i w[8]) {
    if (kind == Q8_0) {
        for (int j = 0; j < 8; j++) w[j] = _mm512_loadu_si512(p + 64 * j);
        return;
    }
    __m512i low = _mm512_set1_epi8(15);
    for (int j = 0; j < 4; j++) {
        __m512i both = _mm512_loadu_si512(p + 64 * j);
        w[j] = _mm512_and_si512(both, low);
        w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
    if (kind != Q6_K) return;
    __m512i high = _mm512_set1_epi8(48);
    for (int h = 0; h < 2; h++) {
        __m512i four = _mm512_loadu_si512(p + 256 + 64 * h);
        w[4 * h] = _mm512_or_si512(w[4 * h], _mm512_and_si512(_mm512_slli_epi16(four, 4), high));
        w[4 * h + 1] = _mm512_or_si512(w[4 * h + 1], _mm512_and_si512(_mm512_slli_epi16(four, 2), high));
        w[4 * h + 2] = _mm512_or_si512(w[4 * h + 2], _mm512_and_si512(four, high));
        w[4 * h + 3] = _mm512_or_si512(w[4 * h + 3], _mm512_and_si512(_mm512_srli_epi16(four, 2), high));
    }
}

static inline __attribute__((always_inline)) __m512i four_512(const void *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}

/* sum + the products of four columns of 16 rows of W with four bytes at p. Written as one instruction, because compilers
 * make two of it, and then decoding instructions, not multiplying, bounds the product. */
static inline __attribute__((always_inline)) __m512i add_512(__m512i sum, __m512i w, const int8_t *p) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*(const int8_t (*)[4])p));
    return sum;
}

/* sum_i q_i v_i, v = 128 p + r, over n times four columns; `high` and `low` begin with what the offset takes off. */
static inline __attribute__((always_inline)) __m512i sum_512(const __m512i *w, const int8_t *p, int n, __m512i high, __m512i low) {
#pragma GCC unroll 8
    for (int j = 0; j < n; j++) {
        high = add_512(high, w[j], p + 4 * j);
        low = add_512(low, w[j], p + BLOCK + 4 * j);
    }
    return _mm512_add_epi32(_mm512_slli_epi32(high, 7), low);
}

/* The whole-number sum of block b with row r. */
static inline __attribute__((always_inline)) __m512i block_512(int64_t kind, const __m512i *w, RoundedTile x, int64_t b, int height, int r,
                                                               const __m512i *scales) {
    const int8_t *p = bytes_at(x, b, height, r);
    __m512i zero = _mm512_setzero_si512();
    if (kind == Q6_K) {
        __m512i less = _mm512_slli_epi32(four_512(term_at(x, b, height, LESS, r)), 5);
        __m512i other = _mm512_slli_epi32(four_512(term_at(x, b, height, LESS_OTHER, r)), 5);
        __m512i first = _mm512_mullo_epi32(sum_512(w, p, 4, zero, less), scales[0]);
        return _mm512_add_epi32(first, _mm512_mullo_epi32(sum_512(w + 4, p + 16, 4, zero, other), scales[1]));
    }
    if (kind == Q4_1 || kind == Q4_K) return sum_512(w, p, 8, zero, zero);
    __m512i less = _mm512_add_epi32(four_512(term_at(x, b, height, LESS, r)), four_512(term_at(x, b, height, LESS_OTHER, r)));
    if (kind == Q8_0) return sum_512(w, p, 8, less, zero); /* 128 of them */
    return sum_512(w, p, 8, zero, _mm512_slli_epi32(less, 3));
}

static inline __attribute__((always_inline)) void tile_512(int64_t kind, const uint8_t *group, int64_t columns, RoundedTile x, int height,
                                                           float y[TILE][GROUP]) {
    int64_t n = blocks_of(columns);
    __m512 acc[TILE];
    for (int r = 0; r < height; r++) acc[r] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n; b++) {
        BlockAt at = block_at(kind, group, n, b);
        __m512i w[8], scales[2];
        __m512 d, m;
        prefetch_block(kind, group, columns, b);
        quants_512(kind, at.quants, w);
        if (kind <= Q4_1) d = halves_512(at.scales);
        if (kind == Q4_1) m = halves_512(at.scales + 32);
        if (kind == Q4_K) {
            d = _mm512_mul_ps(halves_512(at.tops), bytes_512(at.scales));
            m = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(halves_512(at.tops + 32), bytes_512(at.scales + 16)));
        }
        if (kind == Q6_K) d = halves_512(at.tops), scales[0] = signed_512(at.scales), scales[1] = signed_512(at.scales + 16);
#pragma GCC unroll 8
        for (int r = 0; r < height; r++) {
            __m512 sum = _mm512_cvtepi32_ps(block_512(kind, w, x, b, height, r, scales));
            __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(*term_at(x, b, height, SCALE, r)));
            acc[r] = _mm512_fmadd_ps(sum, scale, acc[r]);
            if (kind == Q4_1 || kind == Q4_K) acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(*term_at(x, b, height, WHOLE, r)), acc[r]);
        }
    }
    for (int r = 0; r < height; r++) _mm512_storeu_ps(y[r], acc[r]);
}

static inline __attribute__((always_inline)) void group_products(int64_t kind, const uint8_t *group, int64_t columns, RoundedTile x,
                                                                 int64_t height, float y[TILE][GROUP]) {
    if (height == 8) tile_512(kind, group, columns, x, 8, y);
    else if (height == 4) tile_512(kind, group, columns, x, 4, y);
    else if (height == 2) tile_512(kind, group, columns, x, 2, y);
    else tile_512(kind, group, columns, x, 1, y);
}
