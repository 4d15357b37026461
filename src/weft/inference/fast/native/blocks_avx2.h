/* Products of blocks by AVX2, with VNNI where there is one of 256 bits: 8 rows of W in one register; see blocks.h. */

enum { ROWS_256 = 4 };

static inline __m256 halves_256(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }

static inline __m256 bytes_256(const uint8_t *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

static inline __m256i signed_256(const uint8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }

/* q of columns 4 j .. 4 j + 3; `p` points to the eight rows' part of the block. */
static inline __attribute__((always_inline)) __m256i quants_256(int64_t kind, const uint8_t *p, int j) {
    if (kind == Q8_0) return _mm256_loadu_si256((const __m256i *)(p + 64 * j));
    __m256i low = _mm256_set1_epi8(15), both = _mm256_loadu_si256((const __m256i *)(p + 64 * (j & 3)));
    __m256i q = _mm256_and_si256(j < 4 ? both : _mm256_srli_epi16(both, 4), low);
    if (kind != Q6_K) return q;
    __m256i four = _mm256_loadu_si256((const __m256i *)(p + 256 + 64 * (j / 4)));
    __m256i two = _mm256_and_si256(_mm256_srl_epi16(four, _mm_cvtsi32_si128((j & 3) * 2)), _mm256_set1_epi8(3));
    return _mm256_or_si256(q, _mm256_slli_epi16(two, 4));
}

static inline __attribute__((always_inline)) __m256i four_256(const int8_t *p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
}

/* sum + sum_i (q_i - offset) p_i over four columns; the offset is taken off here for 8 bits only (see offset_256). */
static inline __attribute__((always_inline)) __m256i add_256(int64_t kind, __m256i sum, __m256i q, __m256i p) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && !defined(WEFT_AVX2)
    return _mm256_dpbusd_epi32(sum, q, p);
#elif defined(__AVXVNNI__) && !defined(WEFT_AVX2)
    return _mm256_dpbusd_avx_epi32(sum, q, p);
#else
    if (kind == Q8_0) { /* sums of two must fit 16 bits: |w| <= 128 and |p| <= 127 do */
        __m256i w = _mm256_xor_si256(q, _mm256_set1_epi8(-128));
        p = _mm256_sign_epi8(p, w), q = _mm256_abs_epi8(w);
    }
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(q, p), _mm256_set1_epi16(1)));
#endif
}

/* What the offset takes off a sum of q_i v_i, where add_256 does not; `less` is minus the sum of v_i. */
static inline __attribute__((always_inline)) __m256i offset_256(int64_t kind, int32_t less) {
#if (defined(__AVX512VNNI__) && defined(__AVX512VL__) || defined(__AVXVNNI__)) && !defined(WEFT_AVX2)
    return _mm256_set1_epi32(KINDS[kind].offset * less);
#else
    return _mm256_set1_epi32(kind == Q8_0 ? 0 : KINDS[kind].offset * less);
#endif
}

typedef struct { __m256 d, m; __m256i first, second; } Scales256;

static inline __attribute__((always_inline)) Scales256 scales_256(int64_t kind, BlockAt at, int from) {
    Scales256 s;
    if (kind <= Q4_1) s.d = halves_256(at.scales + 2 * from);
    if (kind == Q4_1) s.m = halves_256(at.scales + 32 + 2 * from);
    if (kind == Q4_K) {
        s.d = _mm256_mul_ps(halves_256(at.tops + 2 * from), bytes_256(at.scales + from));
        __m256 least = _mm256_mul_ps(halves_256(at.tops + 32 + 2 * from), bytes_256(at.scales + 16 + from));
        s.m = _mm256_sub_ps(_mm256_setzero_ps(), least);
    }
    if (kind == Q6_K) {
        s.d = halves_256(at.tops + 2 * from);
        s.first = signed_256(at.scales + from), s.second = signed_256(at.scales + 16 + from);
    }
    return s;
}

/* Some rows of a tile of this height, from one on. */
typedef struct { RoundedTile tile; int height, first, count; } TileRows;

/* one + sum_i q_i p_i over the first half of a block and other + those of its second; with `low`, r in the place of p. */
static inline __attribute__((always_inline)) void add_bytes_256(int64_t kind, const uint8_t *q, TileRows x, int64_t b, int low,
                                                                __m256i *one, __m256i *other) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m256i w = quants_256(kind, q, j), v = quants_256(kind, q, j + 4);
        for (int r = 0; r < x.count; r++) {
            const int8_t *p = bytes_at(x.tile, b, x.height, x.first + r) + low * BLOCK + 4 * j;
            one[r] = add_256(kind, one[r], w, four_256(p));
            other[r] = add_256(kind, other[r], v, four_256(p + 16));
        }
    }
}

/* Rows from .. from + 7 of the group with some rows of x. */
static inline __attribute__((always_inline)) void tile_256(int64_t kind, const uint8_t *group, int64_t columns, int from, TileRows x,
                                                           float y[TILE][GROUP]) {
    int64_t n = blocks_of(columns);
    __m256 acc[ROWS_256];
    for (int r = 0; r < x.count; r++) acc[r] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n; b++) {
        BlockAt at = block_at(kind, group, n, b);
        const uint8_t *q = at.quants + 4 * from;
        if (from == 0) prefetch_block(kind, group, columns, b);
        __m256i one[ROWS_256], other[ROWS_256];
        for (int r = 0; r < x.count; r++) one[r] = other[r] = _mm256_setzero_si256();
        add_bytes_256(kind, q, x, b, 0, one, other);
        for (int r = 0; r < x.count; r++) { /* v = 128 p + r */
            int32_t less = less_at(x.tile, b, x.height, 0, x.first + r), less_other = less_at(x.tile, b, x.height, 1, x.first + r);
            one[r] = _mm256_add_epi32(_mm256_slli_epi32(one[r], 7), offset_256(kind, less));
            other[r] = _mm256_add_epi32(_mm256_slli_epi32(other[r], 7), offset_256(kind, less_other));
        }
        add_bytes_256(kind, q, x, b, 1, one, other);
        Scales256 s = scales_256(kind, at, from);
        for (int r = 0; r < x.count; r++) {
            if (kind == Q6_K) one[r] = _mm256_mullo_epi32(one[r], s.first), other[r] = _mm256_mullo_epi32(other[r], s.second);
            __m256 sum = _mm256_cvtepi32_ps(_mm256_add_epi32(one[r], other[r]));
            __m256 scale = _mm256_mul_ps(s.d, _mm256_set1_ps(*term_at(x.tile, b, x.height, SCALE, x.first + r)));
            acc[r] = _mm256_fmadd_ps(sum, scale, acc[r]);
            if (kind == Q4_1 || kind == Q4_K)
                acc[r] = _mm256_fmadd_ps(s.m, _mm256_set1_ps(*term_at(x.tile, b, x.height, WHOLE, x.first + r)), acc[r]);
        }
    }
    for (int r = 0; r < x.count; r++) _mm256_storeu_ps(y[x.first + r] + from, acc[r]);
}

static inline __attribute__((always_inline)) void group_products(int64_t kind, const uint8_t *group, int64_t columns, RoundedTile x,
                                                                 int64_t height, float y[TILE][GROUP]) {
    for (int from = 0; from < GROUP; from += 8) {
        if (height == 8)
            for (int first = 0; first < 8; first += 4) tile_256(kind, group, columns, from, (TileRows){x, 8, first, 4}, y);
        else if (height == 4) tile_256(kind, group, columns, from, (TileRows){x, 4, 0, 4}, y);
        else if (height == 2) tile_256(kind, group, columns, from, (TileRows){x, 2, 0, 2}, y);
        else tile_256(kind, group, columns, from, (TileRows){x, 1, 0, 1}, y);
    }
}
