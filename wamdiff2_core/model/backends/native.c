// The text layers of Qwen3-VL and its head on a CPU, in float32: everything between two tokens in one call.
//
// Weights lie in panels of NR outputs: [outputs / NR][inputs][NR], so that a product reads them once, in order, while
// MR x NR sums stay in registers. What they are multiplied with lies in tiles of MR rows: [inputs][MR]. Keys and values
// lie in panels too, and attention is two more such products: keys [N][Hkv][columns / NR][d][NR], values
// [N][Hkv][d / NR][columns][NR]. Weights may be held in bfloat16. Where the processor has products of bfloat16 pairs
// (AVX-512 BF16), their panels are [outputs / NR][inputs / 2][NR][2], and their factors are rounded to bfloat16; else
// they are widened as they are read. Sums never leave float32. Weights that pad a panel are zero.

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#define VL 16
#define MR 12
#else
#define VL 8
#define MR 6
#endif
#define NR (2 * VL)
#define HEAD_PANELS 16

#ifdef __AVX512BF16__
#include <immintrin.h>
#define PAIR 2
#else
#define PAIR 1
#endif

#define INLINE static inline __attribute__((always_inline))
typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef float vf_at __attribute__((vector_size(VL * 4), aligned(4)));
typedef uint16_t vh_at __attribute__((vector_size(VL * 2), aligned(2)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));

typedef struct {
    const void *qkv, *out, *gate_up, *down;
    const float *qkv_bias, *out_bias, *query_norm, *key_norm, *norm_in, *norm_mlp;
    float *keys, *values;
} Layer;

typedef struct {
    int64_t layers, hidden, heads, key_heads, head_dim, inner, half;
    float eps;
    const Layer *layer;
    const float *norm;
} Model;

typedef struct {
    int64_t rows, count, start, capacity;  // N, n, first column, columns of the cache
    const float *cos, *sin;                // (N, n, d), sines with the sign of rotate_half
    const int32_t *low, *high;             // (N), (N, n): a token attends to columns [low, high)
    const int32_t *read, *all;             // tokens whose output is wanted, ascending; 0, 1, ... N n - 1
    int64_t reads;
    const int32_t *slots;                  // tokens that deepstack features are added to
    int64_t slot_count, levels;
    const float *const *deepstack;
} Step;

INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t up_to(int64_t n, int64_t whole) { return (n + whole - 1) / whole * whole; }

int64_t wamdiff2_panel(void) { return NR; }
int64_t wamdiff2_tile(void) { return MR; }
int64_t wamdiff2_pair(void) { return PAIR; }
int64_t wamdiff2_scratch(const Model *m, int64_t tokens, int64_t capacity, int64_t threads) {
    int64_t wide = (m->heads + 2 * m->key_heads) * m->head_dim + NR, inner = 2 * m->inner + NR;
    int64_t widest = larger(larger(m->hidden, m->inner), m->heads * m->head_dim);
    return tokens * (2 * m->hidden + wide + m->heads * m->head_dim + inner + m->inner) +
           up_to(tokens, MR) * up_to(widest, 2) + threads * MR * (2 * (capacity + 2 * NR) + m->head_dim);
}

INLINE vf load(const float *at) { return *(const vf_at *)at; }
INLINE void store(float *at, vf value) { *(vf_at *)at = value; }
INLINE vf widen(const uint16_t *at) { return (vf)(__builtin_convertvector(*(const vh_at *)at, vu) << 16); }
INLINE vf choose(vi where, vf yes, vf no) { return (vf)((where & (vi)yes) | (~where & (vi)no)); }
INLINE float sum(vf v) {
    float total = 0;
    for (int i = 0; i < VL; i++) total += v[i];
    return total;
}

INLINE vf exponential(vf x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: its last bits are the integer
    x = choose(x < -87.0f, (vf){} - 87.0f, x);
    vf shifted = x * 1.44269504f + magic, whole = shifted - magic;
    vf r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (vf)(((vi)shifted - 0x4B400000 + 127) << 23);
}

// tile [k][MR] <- x[0..mr), each of k, in the form that weights are multiplied with; one thread's work
INLINE void lay(const float *const *x, int mr, int64_t k, int64_t half, float *tile) {
#if PAIR == 2
    if (half) {
        uint32_t *pairs = (uint32_t *)tile;
        for (int r = 0; r < mr; r++)
            for (int64_t i = 0; i < k; i += VL) {
                const __mmask16 own = k - i < VL ? (1 << (k - i)) - 1 : 0xffff;
                const __m512 values = _mm512_maskz_loadu_ps(own, x[r] + i);
                uint32_t rounded[VL / 2];
                _mm256_storeu_si256((__m256i *)rounded, (__m256i)_mm512_cvtneps_pbh(values));
                for (int64_t j = 0; j < VL / 2 && i + 2 * j < k; j++) pairs[(i / 2 + j) * MR + r] = rounded[j];
            }
        return;
    }
#endif
    (void)half;
    for (int64_t i = 0; i < k; i++)
        for (int r = 0; r < mr; r++) tile[i * MR + r] = x[r][i];
}

// tiles <- all m rows of x (m, k); to be called by all threads
static void lay_rows(const float *x, int64_t m, int64_t k, int64_t half, float *tiles) {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < m; row += MR) {
        const int mr = m - row < MR ? m - row : MR;
        const float *from[MR];
        for (int r = 0; r < mr; r++) from[r] = x + (row + r) * k;
        lay(from, mr, k, half, tiles + row * up_to(k, 2));
    }
}

// sums[r] = row r of a tile times a panel, for mr rows
INLINE void product(const int mr, const int half, const float *tile, int64_t k, const void *panel, vf sums[MR][2]) {
    vf a[MR][2];
    for (int r = 0; r < mr; r++) a[r][0] = a[r][1] = (vf){};
    const float *full = panel;
    const uint16_t *narrow = panel;
#if PAIR == 2
    if (half) {
        const int32_t *pairs = (const int32_t *)tile;
        k = (k + 1) / 2;
        for (int64_t i = 0; i < k; i++) {
            const __m512bh w0 = (__m512bh)_mm512_loadu_si512(narrow + i * 2 * NR);
            const __m512bh w1 = (__m512bh)_mm512_loadu_si512(narrow + i * 2 * NR + NR);
            __builtin_prefetch(narrow + (k + i) * 2 * NR, 0, 3);
            __builtin_prefetch(narrow + (k + i) * 2 * NR + NR, 0, 3);
#pragma GCC unroll 12
            for (int r = 0; r < mr; r++) {
                const __m512bh two = (__m512bh)_mm512_set1_epi32(pairs[i * MR + r]);
                a[r][0] = (vf)_mm512_dpbf16_ps((__m512)a[r][0], w0, two);
                a[r][1] = (vf)_mm512_dpbf16_ps((__m512)a[r][1], w1, two);
            }
        }
        for (int r = 0; r < mr; r++) sums[r][0] = a[r][0], sums[r][1] = a[r][1];
        return;
    }
#endif
    for (int64_t i = 0; i < k; i++) {
        vf w0 = half ? widen(narrow + i * NR) : load(full + i * NR);
        vf w1 = half ? widen(narrow + i * NR + VL) : load(full + i * NR + VL);
        // the panel after this one, while this one is multiplied
        __builtin_prefetch(half ? (const void *)(narrow + (k + i) * NR) : (const void *)(full + (k + i) * NR), 0, 3);
#pragma GCC unroll 12
        for (int r = 0; r < mr; r++) {
            a[r][0] += w0 * tile[i * MR + r];
            a[r][1] += w1 * tile[i * MR + r];
        }
    }
    for (int r = 0; r < mr; r++) sums[r][0] = a[r][0], sums[r][1] = a[r][1];
}

#define CASE(n, half) case n: product(n, half, tile, k, panel, sums); break;
#define SMALL(half) CASE(1, half) CASE(2, half) CASE(3, half) CASE(4, half) CASE(5, half) CASE(6, half)
#if MR == 12
#define ALL(half) SMALL(half) CASE(7, half) CASE(8, half) CASE(9, half) CASE(10, half) CASE(11, half) CASE(12, half)
#else
#define ALL(half) SMALL(half)
#endif
static void tile_by_panel(int mr, int64_t half, const float *tile, int64_t k, const void *panel, vf sums[MR][2]) {
    if (half) {
        switch (mr) { ALL(1) }
    } else {
        switch (mr) { ALL(0) }
    }
}

INLINE const void *panel_at(const void *panels, int64_t half, int64_t index, int64_t k) {
    return (const char *)panels + index * NR * (half ? up_to(k, PAIR) * 2 : k * 4);
}

// y (m, n) = x (m, k) times panels, plus a bias, plus y itself if `add`; to be called by all threads
static void linear(const float *x, int64_t m, int64_t k, const void *panels, int64_t half, int64_t n, const float *bias,
                   float *y, int add, float *tiles) {
    const int64_t count = (n + NR - 1) / NR;
    lay_rows(x, m, k, half, tiles);
#pragma omp for schedule(dynamic, 2)
    for (int64_t p = 0; p < count; p++) {
        const void *panel = panel_at(panels, half, p, k);
        const int64_t first = p * NR, wide = n - first < NR ? n - first : NR;
        for (int64_t row = 0; row < m; row += MR) {
            const int mr = m - row < MR ? m - row : MR;
            vf sums[MR][2];
            tile_by_panel(mr, half, tiles + row * up_to(k, 2), k, panel, sums);
            for (int r = 0; r < mr; r++) {
                float *to = y + (row + r) * n + first;
                if (wide == NR && !bias) {
                    store(to, add ? load(to) + sums[r][0] : sums[r][0]);
                    store(to + VL, add ? load(to + VL) + sums[r][1] : sums[r][1]);
                } else {
                    for (int64_t c = 0; c < wide; c++)
                        to[c] = sums[r][c / VL][c % VL] + (add ? to[c] : 0) + (bias ? bias[first + c] : 0);
                }
            }
        }
    }
}

INLINE void normalise(const float *x, const float *weight, int64_t n, float eps, float *y) {
    vf squares = {};
    float rest = 0;
    int64_t i = 0;
    for (; i + VL <= n; i += VL) squares += load(x + i) * load(x + i);
    for (; i < n; i++) rest += x[i] * x[i];
    const float scale = 1 / sqrtf((sum(squares) + rest) / n + eps);
    for (i = 0; i + VL <= n; i += VL) store(y + i, load(x + i) * scale * load(weight + i));
    for (; i < n; i++) y[i] = x[i] * scale * weight[i];
}

static void normalise_rows(const float *x, const float *weight, int64_t rows, int64_t n, float eps, float *y) {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) normalise(x + row * n, weight, n, eps, y + row * n);
}

// normalise and turn queries (in place) and keys; keys and values go to the cache
static void turn_and_keep(const Model *m, const Layer *layer, const Step *s, float *qkv) {
    const int64_t d = m->head_dim, all = m->heads + 2 * m->key_heads, both = m->heads + m->key_heads;
#pragma omp for schedule(static)
    for (int64_t token = 0; token < s->rows * s->count; token++) {
        const float *cos = s->cos + token * d, *sin = s->sin + token * d;
        const int64_t row = token / s->count, column = s->start + token % s->count;
        for (int64_t head = 0; head < all; head++) {
            float *x = qkv + (token * all + head) * d, turned[d];
            const int64_t own = row * m->key_heads + (head < both ? head - m->heads : head - both);
            if (head >= both) {
                float *to = layer->values + own * up_to(d, NR) * s->capacity + column * NR;
                for (int64_t i = 0; i < d; i++) to[i / NR * s->capacity * NR + i % NR] = x[i];
                continue;
            }
            normalise(x, head < m->heads ? layer->query_norm : layer->key_norm, d, m->eps, x);
            for (int64_t i = 0; i < d / 2; i++) {
                turned[i] = x[i] * cos[i] + x[i + d / 2] * sin[i];
                turned[i + d / 2] = x[i + d / 2] * cos[i + d / 2] + x[i] * sin[i + d / 2];
            }
            if (head < m->heads) {
                memcpy(x, turned, d * sizeof *x);
            } else {
                float *to = layer->keys + own * d * s->capacity + column / NR * NR * d + column % NR;
                for (int64_t i = 0; i < d; i++) to[i * NR] = turned[i];
            }
        }
    }
}

// p (mr, columns up to a multiple of NR) <- softmax of scaled scores over each row's [low, high), 0 elsewhere
INLINE void soften(float *p, int64_t low, int64_t high, int64_t end, float scale) {
    float top = -INFINITY, total = 0;
    for (int64_t c = 0; c < low; c++) p[c] = 0;
    for (int64_t c = high; c < end; c++) p[c] = 0;
    if (high <= low) return;  // a padding token; nobody looks at it
    int64_t c = low;
    vf tops = {}, totals = {};
    tops += -INFINITY;
    for (; c + VL <= high; c += VL) tops = choose(load(p + c) > tops, load(p + c), tops);
    for (; c < high; c++) top = p[c] > top ? p[c] : top;
    for (int i = 0; i < VL; i++) top = tops[i] > top ? tops[i] : top;
    for (c = low; c + VL <= high; c += VL) {
        vf e = exponential((load(p + c) - top) * scale);
        totals += e;
        store(p + c, e);
    }
    for (; c < high; c++) {
        p[c] = exponential((vf){} + (p[c] - top) * scale)[0];
        total += p[c];
    }
    total = 1 / (total + sum(totals));
    for (c = low; c + VL <= high; c += VL) store(p + c, load(p + c) * total);
    for (; c < high; c++) p[c] *= total;
}

// out (tokens of `read`, H d) <- attention of those tokens
static void attend(const Model *m, const Layer *layer, const Step *s, const float *qkv, const int32_t *read,
                   int64_t reads, float *out, float *scratch, int thread) {
    const int64_t d = m->head_dim, all = m->heads + 2 * m->key_heads, group = m->heads / m->key_heads;
    const int64_t tiles = (reads + MR - 1) / MR, room = s->capacity + 2 * NR;
    const float scale = 1 / sqrtf(d);
    float *p = scratch + thread * MR * (2 * room + d), *laid = p + MR * room;
    // a tile is MR tokens of one head: heads that share keys follow each other, so keys stay in the cache
#pragma omp for schedule(dynamic, 1) collapse(2)
    for (int64_t head = 0; head < m->heads; head++) {
        for (int64_t tile = 0; tile < tiles; tile++) {
            int64_t at = tile * MR, stop = at + MR < reads ? at + MR : reads;
            while (at < stop) {  // tokens of one row of the batch at a time
                const int64_t row = read[at] / s->count;
                const float *x[MR], *scores[MR];
                int mr = 0;
                int64_t written = 0;
                for (; at + mr < stop && read[at + mr] / s->count == row; mr++) {
                    x[mr] = qkv + (read[at + mr] * all + head) * d;
                    scores[mr] = p + mr * room;
                    if (s->high[read[at + mr]] > written) written = s->high[read[at + mr]];
                }
                const int64_t end = up_to(written, NR);
                const int64_t own = row * m->key_heads + head / group;
                const float *keys = layer->keys + own * d * s->capacity;
                const float *values = layer->values + own * up_to(d, NR) * s->capacity;
                vf sums[MR][2];
                lay(x, mr, d, 0, laid);
                for (int64_t first = 0; first < end; first += NR) {
                    tile_by_panel(mr, 0, laid, d, keys + first * d, sums);
                    for (int r = 0; r < mr; r++) {
                        store(p + r * room + first, sums[r][0]);
                        store(p + r * room + first + VL, sums[r][1]);
                    }
                }
                for (int r = 0; r < mr; r++) soften(p + r * room, s->low[row], s->high[read[at + r]], end, scale);
                lay(scores, mr, written, 0, laid);
                for (int64_t first = 0; first < d; first += NR) {
                    // not up to `end`: leftovers of other requests may be NaN, and 0 times NaN is NaN
                    tile_by_panel(mr, 0, laid, written, values + first * s->capacity, sums);
                    for (int r = 0; r < mr; r++) {
                        float *to = out + (at + r) * m->heads * d + head * d + first;
                        for (int64_t c = 0; c < NR && first + c < d; c++) to[c] = sums[r][c / VL][c % VL];
                    }
                }
                at += mr;
            }
        }
    }
}

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
#endif

// x (N, n, D) embeddings, overwritten; out (reads, D) after the final norm
void wamdiff2_forward(const Model *m, const Step *s, float *x, float *out, float *scratch, int64_t threads) {
    const int64_t tokens = s->rows * s->count, hidden = m->hidden, d = m->head_dim;
    const int64_t wide = (m->heads + 2 * m->key_heads) * d;
    float *normed = scratch, *qkv = normed + tokens * hidden, *attended = qkv + tokens * (wide + NR);
    float *gate_up = attended + tokens * m->heads * d, *inner = gate_up + tokens * (2 * m->inner + NR);
    float *kept = inner + tokens * m->inner, *tiles = kept + tokens * hidden;
    float *own = tiles + up_to(tokens, MR) * up_to(larger(larger(hidden, m->inner), m->heads * d), 2);
    (void)threads;
#pragma omp parallel num_threads(threads)
    {
        float *h = x;
        int64_t active = tokens;
        for (int64_t l = 0; l < m->layers; l++) {
            const Layer *layer = m->layer + l;
            const int last = l + 1 == m->layers;
            normalise_rows(h, layer->norm_in, tokens, hidden, m->eps, normed);
            linear(normed, tokens, hidden, layer->qkv, m->half, wide, layer->qkv_bias, qkv, 0, tiles);
            turn_and_keep(m, layer, s, qkv);
            if (last) {  // nobody reads the other tokens
                active = s->reads;
#pragma omp for schedule(static)
                for (int64_t row = 0; row < active; row++)
                    memcpy(kept + row * hidden, x + s->read[row] * hidden, hidden * sizeof *x);
                h = kept;
                attend(m, layer, s, qkv, s->read, active, attended, own, omp_get_thread_num());
            } else {
                attend(m, layer, s, qkv, s->all, active, attended, own, omp_get_thread_num());
            }
            linear(attended, active, m->heads * d, layer->out, m->half, hidden, layer->out_bias, h, 1, tiles);
            normalise_rows(h, layer->norm_mlp, active, hidden, m->eps, normed);
            linear(normed, active, hidden, layer->gate_up, m->half, 2 * m->inner, 0, gate_up, 0, tiles);
#pragma omp for schedule(static)
            for (int64_t row = 0; row < active; row++) {
                const float *gate = gate_up + row * 2 * m->inner, *up = gate + m->inner;
                float *to = inner + row * m->inner;
                int64_t i = 0;
                for (; i + VL <= m->inner; i += VL)
                    store(to + i, load(gate + i) / (1.0f + exponential(-load(gate + i))) * load(up + i));
                for (; i < m->inner; i++) to[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
            }
            linear(inner, active, m->inner, layer->down, m->half, hidden, 0, h, 1, tiles);
            if (l < s->levels && !last) {
#pragma omp for schedule(static)
                for (int64_t slot = 0; slot < s->slot_count; slot++)
                    for (int64_t i = 0; i < hidden; i++)
                        h[s->slots[slot] * hidden + i] += s->deepstack[l][slot * hidden + i];
            }
        }
        normalise_rows(h, m->norm, active, hidden, m->eps, out);
    }
}

// The most probable token of each of `rows` and its probability among all but `banned`; the lowest id wins a tie.
// tops, totals and ids (threads, rows) are each thread's own share of the vocabulary, in its order: largest logit, sum of
// exponentials below it, and token; buffer (threads, rows, HEAD_PANELS * NR) and tiles (rows up to a multiple of MR,
// hidden up to a multiple of 2) are scratch.
void wamdiff2_pick(const void *panels, int64_t half, int64_t vocabulary, int64_t hidden, const float *bias,
                   const float *x, int64_t rows, int64_t banned, float *tops, float *totals, int64_t *ids,
                   float *buffer, float *tiles, int64_t threads) {
    const int64_t count = (vocabulary + NR - 1) / NR;
    const int64_t share = (count + threads - 1) / threads;
#pragma omp parallel num_threads(threads)
    lay_rows(x, rows, hidden, half, tiles);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t part = 0; part < threads; part++) {
        float *top = tops + part * rows, *total = totals + part * rows, *logits = buffer + part * rows * HEAD_PANELS * NR;
        int64_t *id = ids + part * rows;
        for (int64_t row = 0; row < rows; row++) top[row] = -INFINITY, total[row] = 0, id[row] = 0;
        const int64_t stop = (part + 1) * share < count ? (part + 1) * share : count;
        for (int64_t begin = part * share; begin < stop; begin += HEAD_PANELS) {
            const int64_t end = begin + HEAD_PANELS < stop ? begin + HEAD_PANELS : stop;
            const int64_t first = begin * NR, wide = (end - begin) * NR;
            for (int64_t panel = begin; panel < end; panel++) {
                for (int64_t row = 0; row < rows; row += MR) {
                    const int mr = rows - row < MR ? rows - row : MR;
                    vf sums[MR][2];
                    tile_by_panel(mr, half, tiles + row * up_to(hidden, 2), hidden,
                                  panel_at(panels, half, panel, hidden), sums);
                    for (int r = 0; r < mr; r++) {
                        float *to = logits + (row + r) * HEAD_PANELS * NR + (panel - begin) * NR;
                        store(to, sums[r][0]);
                        store(to + VL, sums[r][1]);
                    }
                }
            }
            for (int64_t row = 0; row < rows; row++) {
                float *own = logits + row * HEAD_PANELS * NR;
                if (bias)
                    for (int64_t i = 0; i < wide && first + i < vocabulary; i++) own[i] += bias[first + i];
                for (int64_t i = vocabulary - first; i < wide; i++) own[i] = -INFINITY;
                if (banned >= first && banned < first + wide) own[banned - first] = -INFINITY;
                vf highest = load(own);
                for (int64_t i = VL; i < wide; i += VL) {
                    vf next = load(own + i);
                    highest = choose(next > highest, next, highest);
                }
                float best = highest[0];
                for (int i = 1; i < VL; i++) best = highest[i] > best ? highest[i] : best;
                if (best > top[row]) {
                    int64_t i = 0;
                    while (own[i] != best) i++;
                    total[row] *= expf(top[row] - best);
                    top[row] = best;
                    id[row] = first + i;
                }
                vf sums = {};
                for (int64_t i = 0; i < wide; i += VL) sums += exponential(load(own + i) - top[row]);
                total[row] += sum(sums);
            }
        }
    }
}
