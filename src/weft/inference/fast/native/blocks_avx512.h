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

static inline __attribute__((always_inline)) __m512i four_512(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}

/* begin + sum_i q_i v_i, v = 128 p + r, over four times four columns. */
static inline __attribute__((always_inline)) __m512i half_512(const __m512i *w, const int8_t *p, const int8_t *r, int32_t begin) {
    __m512i high = _mm512_setzero_si512(), low = _mm512_set1_epi32(begin);
    for (int j = 0; j < 4; j++) {
        high = _mm512_dpbusd_epi32(high, w[j], four_512(p + 4 * j));
        low = _mm512_dpbusd_epi32(low, w[j], four_512(r + 4 * j));
    }
    return _mm512_add_epi32(_mm512_slli_epi32(high, 7), low);
}

static inline __attribute__((always_inline)) void tile_512(int64_t kind, const uint8_t *group, int64_t columns, const RoundedRow *x, int count,
                                                           float y[TILE][GROUP]) {
    int64_t n = blocks_of(columns);
    int32_t offset = KINDS[kind].offset;
    __m512 acc[TILE];
    for (int r = 0; r < count; r++) acc[r] = _mm512_setzero_ps();
    for (int64_t b = 0; b < n; b++) {
        BlockAt at = block_at(kind, group, n, b);
        __m512i w[8];
        __m512 d, m;
        __m512i first, second;
        prefetch_block(kind, group, columns, b);
        quants_512(kind, at.quants, w);
        if (kind <= Q4_1) d = halves_512(at.scales);
        if (kind == Q4_1) m = halves_512(at.scales + 32);
        if (kind == Q4_K) {
            d = _mm512_mul_ps(halves_512(at.tops), bytes_512(at.scales));
            m = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(halves_512(at.tops + 32), bytes_512(at.scales + 16)));
        }
        if (kind == Q6_K) d = halves_512(at.tops), first = signed_512(at.scales), second = signed_512(at.scales + 16);
#pragma GCC unroll 8
        for (int r = 0; r < count; r++) {
            const int8_t *p = x[r].p + b * BLOCK, *rest = x[r].r + b * BLOCK;
            const int32_t *sums = x[r].sums + 2 * b;
            __m512i one = half_512(w, p, rest, -offset * sums[0]);
            __m512i other = half_512(w + 4, p + 16, rest + 16, -offset * sums[1]);
            if (kind == Q6_K) one = _mm512_mullo_epi32(one, first), other = _mm512_mullo_epi32(other, second);
            __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(one, other));
            float a = x[r].a[b];
            acc[r] = _mm512_add_ps(acc[r], _mm512_mul_ps(sum, _mm512_mul_ps(d, _mm512_set1_ps(a))));
            if (kind == Q4_1 || kind == Q4_K)
                acc[r] = _mm512_add_ps(acc[r], _mm512_mul_ps(m, _mm512_set1_ps(a * (float)(sums[0] + sums[1]))));
        }
    }
    for (int r = 0; r < count; r++) _mm512_storeu_ps(y[r], acc[r]);
}

static inline __attribute__((always_inline)) void group_products(int64_t kind, const uint8_t *group, int64_t columns,
                                                                 const RoundedRow *x, int64_t count, float y[TILE][GROUP]) {
    int64_t r = 0;
    for (; r + 8 <= count; r += 8) tile_512(kind, group, columns, x + r, 8, y + r);
    for (; r + 4 <= count; r += 4) tile_512(kind, group, columns, x + r, 4, y + r);
    for (; r + 2 <= count; r += 2) tile_512(kind, group, columns, x + r, 2, y + r);
    for (; r < count; r++) tile_512(kind, group, columns, x + r, 1, y + r);
}
