/* Products of blocks in portable C: the same whole-number sums and the same order of float32 additions; see blocks.h. */

static inline uint8_t quant_at(int64_t kind, const uint8_t *q, int i, int r) {
    int j = i / 4, c = i % 4;
    if (kind == Q8_0) return q[place(j, r, c)];
    uint8_t low = q[place(j & 3, r, c)] >> (j / 4 * 4) & 15;
    return kind == Q6_K ? low | (q[256 + place(j / 4, r, c)] >> (j & 3) * 2 & 3) << 4 : low;
}

static inline float half_at(const uint8_t *p, int r) {
    uint16_t h;
    memcpy(&h, p + 2 * r, 2);
    return half_to_float(h);
}

/* d and, where the kind has it, m of row r. */
static inline void scales_at(int64_t kind, BlockAt at, int r, float *d, float *m) {
    *m = 0;
    if (kind <= Q4_1) *d = half_at(at.scales, r);
    if (kind == Q4_1) *m = half_at(at.scales + 32, r);
    if (kind == Q4_K) {
        *d = half_at(at.tops, r) * (float)at.scales[r];
        *m = 0.0f - half_at(at.tops + 32, r) * (float)at.scales[16 + r];
    }
    if (kind == Q6_K) *d = half_at(at.tops, r);
}

/* The 16 rows of one block with one row of x: sums over its two halves. */
static inline void half_sums(const uint8_t quants[BLOCK][GROUP], int32_t offset, const int8_t *p, const int8_t *r, int32_t less,
                             int32_t less_other, int32_t one[GROUP], int32_t other[GROUP]) {
    for (int k = 0; k < GROUP; k++) one[k] = offset * less, other[k] = offset * less_other;
    for (int i = 0; i < 16; i++) {
        int32_t v = 128 * p[i] + r[i], u = 128 * p[i + 16] + r[i + 16];
        for (int k = 0; k < GROUP; k++) one[k] += quants[i][k] * v, other[k] += quants[i + 16][k] * u;
    }
}

static inline void group_products(int64_t kind, const uint8_t *group, int64_t columns, RoundedTile x, int64_t height,
                                  float y[TILE][GROUP]) {
    int64_t n = blocks_of(columns);
    memset(y, 0, height * GROUP * sizeof(float));
    for (int64_t b = 0; b < n; b++) {
        BlockAt at = block_at(kind, group, n, b);
        uint8_t quants[BLOCK][GROUP];
        float d[GROUP], m[GROUP];
        for (int i = 0; i < BLOCK; i++)
            for (int k = 0; k < GROUP; k++) quants[i][k] = quant_at(kind, at.quants, i, k);
        for (int k = 0; k < GROUP; k++) scales_at(kind, at, k, d + k, m + k);
        for (int r = 0; r < height; r++) {
            int32_t one[GROUP], other[GROUP];
            const int8_t *p = bytes_at(x, b, height, r);
            half_sums(quants, KINDS[kind].offset, p, p + BLOCK, less_at(x, b, height, 0, r), less_at(x, b, height, 1, r), one, other);
            float a = *term_at(x, b, height, SCALE, r), whole = *term_at(x, b, height, WHOLE, r);
            for (int k = 0; k < GROUP; k++) {
                if (kind == Q6_K) one[k] *= (int8_t)at.scales[k], other[k] *= (int8_t)at.scales[16 + k];
                y[r][k] = __builtin_fmaf((float)(one[k] + other[k]), d[k] * a, y[r][k]);
                if (kind == Q4_1 || kind == Q4_K) y[r][k] = __builtin_fmaf(m[k], whole, y[r][k]);
            }
        }
    }
}
