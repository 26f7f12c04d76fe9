/* Owns the decoder's forward pass on a CPU: whole layers, from residual to residual, over paged KV.
 *
 * Every row of a step is computed by the same operations in the same order, whatever stands beside
 * it: products are sums of integers, which are exact in any order, and all else runs row by row.
 * So one row and five hundred give the same bits, and a verify pass is a decode step.
 *
 * Weights are int8 (a scale an output) or int4 (a scale and a zero a group of inputs). Activations
 * are quantized row by row to sixteen bits, as a high and a low byte, so that their rounding is
 * below that of bf16. Residuals, norms, rotation and softmax are fp32.
 *
 * The file is compiled once for each instruction set (see `build.py`); what a compiler flag turns
 * on is what is used. Whoever calls has checked shapes and types: `layout.py` does. What varies
 * from step to step is checked here. Nothing is allocated.
 */

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define VNNI 1
#define LANES 16
#include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__)
#define AVX2 1
#define LANES 8
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#define NEON 1
#define LANES 4
#include <arm_neon.h>
#ifdef __linux__
#include <sys/auxv.h>
#endif
#else
#define LANES 4
#endif

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

enum {
    TILE = 16,         /* outputs that one product of vectors serves */
    PANEL = 64,        /* outputs whose codes lie together */
    BLOCK_TOKENS = 16, /* tokens of a KV block, as in engine/types.py */
    MAX_ROWS = 64,     /* rows that pass through a layer together */
    MAX_HEAD = 256,    /* entries of a head */
    MAX_THREADS = 64,
    N_REFINED = 8,     /* logits of a row that are computed again, as in engine/model.py */
};

typedef enum { KV_PLAIN, KV_INT8, KV_INT4, KV_FP8 } KvFormat;

/* What may be wrong with a step, as `runner.py` spells it out. */
typedef enum { STEP_OK, BAD_ROWS, BAD_TOKEN, BAD_POSITION, BAD_SEQUENCE, BAD_BLOCK, BAD_LAYER } Fault;

/* y = W x + bias. codes: [panels][n_in / 4][PANEL][4]; int4: two of these rows of inputs a byte.
 * Columns beyond n_out have zeros. scale: int8 [n_out], int4 bf16 [groups][n_out]; zero likewise. */
typedef struct {
    const uint8_t *codes;
    const float *scale;
    const uint16_t *group_scale, *group_zero;
    const float *bias;
    int32_t n_in, n_out, group; /* group: 0 for int8 */
} Product;

typedef struct {
    Product qkv, output, gate_up, down;
    const float *input_norm, *post_norm, *q_norm, *k_norm; /* the last two or neither */
    uint8_t *kv_codes;   /* [blocks][BLOCK_TOKENS][k|v][kv heads][code] */
    uint16_t *kv_scales; /* bf16, one a code vector */
    int32_t window;
} Layer;

typedef struct {
    const Layer *layers;
    Product head;
    const uint16_t *embedding; /* bf16 [vocab][hidden] */
    const float *norm, *cos, *sin; /* tables: [positions][head_dim / 2] */
    uint8_t *workspace;
    struct Crew *crew; /* NULL: one thread */
    int32_t n_layers, hidden, inner, n_heads, n_kv_heads, head_dim, vocab;
    int32_t n_positions, n_blocks, kv_format, is_refined;
    float eps;
} Model;

/* Rows of one sequence follow each other. tables: of all sequences, one after another. */
typedef struct {
    const int32_t *tokens, *positions, *sequences; /* [n_rows] */
    const int32_t *tables, *table_starts;          /* [..], [n_sequences + 1] */
    float *x;                                      /* residuals [n_rows][padded hidden] */
    int32_t n_rows, n_sequences;
} Step;

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef float vfu __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES), aligned(2)));
typedef int8_t vb __attribute__((vector_size(LANES), aligned(1)));

INLINE size_t padded(size_t n) { return (n + PANEL - 1) / PANEL * PANEL; }
INLINE vf splat(float value) { return value - (vf){0}; }
INLINE vf load(const float *from) { return *(const vfu *)from; }
INLINE void store(float *to, vf value) { *(vfu *)to = value; }
INLINE vf pick(vi where, vf a, vf b) { return (vf)((where & (vi)a) | (~where & (vi)b)); }
INLINE vf larger(vf a, vf b) { return pick(a > b, a, b); }

/* a * b + c. The compiler fuses none by itself (-ffp-contract=off): it would here and not there. */
INLINE vf muladd(vf a, vf b, vf c) {
#if VNNI
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif AVX2
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif NEON
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

INLINE float largest_of(vf v) {
#if VNNI
    return _mm512_reduce_max_ps((__m512)v);
#else
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) v[i] = v[i] > v[i + half] ? v[i] : v[i + half];
    return v[0];
#endif
}

INLINE float sum_of(vf v) {
#if VNNI
    return _mm512_reduce_add_ps((__m512)v);
#else
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) v[i] += v[i + half];
    return v[0];
#endif
}

/* -- numbers ----------------------------------------------------------------------------------- */

INLINE float from_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE vf from_bf16s(const uint16_t *from) {
#if VNNI
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
    return (vf)_mm512_slli_epi32(wide, 16);
#elif AVX2
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
    return (vf)_mm256_slli_epi32(wide, 16);
#else
    return (vf)(__builtin_convertvector(*(const vh *)from, vi) << 16);
#endif
}

/* To the nearest, ties to even; NaN stays NaN. */
INLINE uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define ROUNDER 12582912.0f /* 1.5 * 2^23: a sum with it has its fraction rounded away */

/* e^x. Source: Cephes' expf (range reduction by ln 2 in two parts, degree 6). */
INLINE vf exponential(vf x) {
    x = larger(x, splat(-87.0f));
    x = pick(x < splat(88.0f), x, splat(88.0f));
    vf shifted = muladd(x, splat(1.44269504f), splat(ROUNDER));
    vf n = shifted - ROUNDER;
    vf r = muladd(n, splat(-0.693359375f), x);
    r = muladd(n, splat(2.12194440e-4f), r);
    static const float factors[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                                    1.6666665459e-1f, 5.0000001201e-1f};
    vf p = splat(1.9875691500e-4f);
    for (int i = 0; i < 5; i++) p = muladd(p, r, splat(factors[i]));
    p = muladd(p * r, r, r) + 1.0f;
    vi exponent = ((vi)shifted - (vi)splat(ROUNDER)) << 23;
    return (vf)((vi)p + exponent);
}

/* 8-bit float e4m3 without infinities. */
INLINE float from_fp8(uint8_t code) {
    uint32_t bits = (uint32_t)(code & 127) << 20; /* its bits lie as a float's of a bias 120 less */
    float value;
    memcpy(&value, &bits, 4);
    value = (code & 127) == 127 ? NAN : value * 0x1p120f;
    return code & 128 ? -value : value;
}

INLINE uint8_t to_fp8(float value) {
    uint8_t sign = signbit(value) ? 128 : 0;
    float size = fabsf(value);
    if (!(size <= 448.0f)) return sign | (size > 448.0f ? 126 : 127);
    int exponent;
    frexpf(size, &exponent); /* size = f * 2^exponent with f in [0.5, 1) */
    if (exponent < -5) exponent = -5;
    int steps = (int)rintf(ldexpf(size, 4 - exponent)); /* of 2^(exponent - 4): 8..16 where normal */
    if (steps == 16) steps = 8, exponent++;
    return sign | (uint8_t)(steps < 8 ? steps : (exponent + 6) << 3 | (steps & 7));
}

/* -- threads ----------------------------------------------------------------------------------- */

/* Threads that help with one job after another: so many equal items, taken by whoever is free. The
 * caller works too and waits for nothing but items begun, so that helpers that the machine does not
 * run hold nobody up. Which thread does an item has no bearing on its result. */
typedef void (*Work)(void *context, int item, int thread);

typedef struct Crew {
    Work work;
    void *context;
    _Atomic uint64_t left; /* number of the job, and in the low half how many items nobody has */
    _Atomic int n_done, n_asleep, is_closing;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int n_threads; /* the caller is the first */
    pthread_t helpers[MAX_THREADS];
} Crew;

typedef struct {
    Crew *crew;
    int thread;
} Helper;

static int take_item(Crew *crew) {
    uint64_t left = atomic_load(&crew->left);
    while ((uint32_t)left)
        if (atomic_compare_exchange_weak(&crew->left, &left, left - 1))
            return (int)((uint32_t)left - 1);
    return -1;
}

static void work_off(Crew *crew, int thread) {
    for (int item; (item = take_item(crew)) >= 0;) {
        crew->work(crew->context, item, thread);
        atomic_fetch_add(&crew->n_done, 1);
    }
}

INLINE void breathe(void) {
#if VNNI || AVX2
    _mm_pause();
#endif
}

static void *help(void *argument) {
    Helper helper = *(Helper *)argument;
    Crew *crew = helper.crew;
    free(argument);
    while (!atomic_load(&crew->is_closing)) {
        work_off(crew, helper.thread);
        /* Between two products of a step lie a few microseconds, between two steps many more. */
        for (int i = 0; i < 2000 && !(uint32_t)atomic_load(&crew->left); i++) breathe();
        if ((uint32_t)atomic_load(&crew->left)) continue;
        pthread_mutex_lock(&crew->lock);
        atomic_fetch_add(&crew->n_asleep, 1);
        while (!(uint32_t)atomic_load(&crew->left) && !atomic_load(&crew->is_closing))
            pthread_cond_wait(&crew->wake, &crew->lock);
        atomic_fetch_sub(&crew->n_asleep, 1);
        pthread_mutex_unlock(&crew->lock);
    }
    return NULL;
}

static void wake_up(Crew *crew) {
    if (!atomic_load(&crew->n_asleep)) return;
    pthread_mutex_lock(&crew->lock);
    pthread_cond_broadcast(&crew->wake);
    pthread_mutex_unlock(&crew->lock);
}

/* Do all items, and return when they are done. n_bytes: about what they read, for each row. */
static void share(Crew *crew, Work work, void *context, int n_items, size_t n_bytes) {
    if (!crew || n_items < 2 || n_bytes < 128 * 1024) { /* a few microseconds: not worth a word */
        for (int item = 0; item < n_items; item++) work(context, item, 0);
        return;
    }
    crew->work = work, crew->context = context;
    atomic_store(&crew->n_done, 0);
    uint64_t job = (atomic_load(&crew->left) >> 32) + 1;
    atomic_store(&crew->left, job << 32 | (uint32_t)n_items);
    wake_up(crew);
    work_off(crew, 0);
    for (int i = 0; atomic_load(&crew->n_done) < n_items; i++)
        if (i < 2000) breathe();
        else sched_yield();
}

/* -- products ---------------------------------------------------------------------------------- */

/* Rows as integers: x ~ (256 * high + low) * scale. Group sums serve int4's zeros. */
typedef struct {
    int8_t *codes; /* [MAX_ROWS][2][stride]: high bytes, low bytes; with AVX2 int16 [stride] */
    float *scale;  /* [MAX_ROWS] */
    int32_t *sums; /* [MAX_ROWS][2] of high and low */
    size_t stride;
} Rows;

#define LARGEST (127.0f * 256.0f) /* the high byte of a rounded one is 127 at most */

/* x: [n], zeros up to the next multiple of PANEL. */
static void quantize(const float *x, int n, const Rows *rows, int row) {
    int n_padded = (int)padded(n);
    vi most = {0};
    for (int i = 0; i < n_padded; i += LANES) {
        vi size = (vi)load(x + i) & 0x7fffffff; /* of floats above 0 the bits are in their order */
        vi more = size > most;
        most = (more & size) | (~more & most);
    }
    int32_t bits = 0;
    for (int i = 0; i < LANES; i++) bits = most[i] > bits ? most[i] : bits;
    float largest, inverse = 0;
    memcpy(&largest, &bits, 4);
    rows->scale[row] = largest / LARGEST; /* NaN and infinity go on through it */
    if (largest > 1e-30f) inverse = LARGEST / largest; /* what is smaller counts as nothing */
    int8_t *high = rows->codes + (size_t)row * 2 * rows->stride;
    vi high_sum = {0}, low_sum = {0};
    for (int i = 0; i < n_padded; i += LANES) {
        vi code = (vi)(load(x + i) * inverse + ROUNDER) - (vi)splat(ROUNDER);
#if AVX2
        _mm_storeu_si128((__m128i *)((int16_t *)high + i), _mm_packs_epi32(
            _mm256_castsi256_si128((__m256i)code), _mm256_extracti128_si256((__m256i)code, 1)));
        high_sum += code;
#else
        vi top = (code + 128) >> 8, rest = code - (top << 8);
        high_sum += top;
        low_sum += rest;
        *(vb *)(high + i) = __builtin_convertvector(top, vb);
        *(vb *)(high + rows->stride + i) = __builtin_convertvector(rest, vb);
#endif
    }
    int32_t *sums = rows->sums + 2 * row;
    sums[0] = sums[1] = 0;
    for (int i = 0; i < LANES; i++) sums[0] += high_sum[i], sums[1] += low_sum[i];
}

/* What is added to int8 codes where they are packed. */
#if VNNI
enum { OFFSET = 128 }; /* the instruction multiplies unsigned by signed */
#else
enum { OFFSET = 0 };
#endif

/* Exact dots of M rows from `row` on with T tiles of outputs at `codes`, over n4 times 4 inputs
 * from `first` on, rounded to fp32: totals [M][T * TILE]. offset: what the codes have too much. */
INLINE void dots(int M, int T, const uint8_t *codes, const Rows *rows, int row, int first, int n4,
                 int offset, float *totals) {
    const int8_t *high[4], *low[4];
    for (int m = 0; m < M; m++) {
        high[m] = rows->codes + (size_t)(row + m) * 2 * rows->stride + first;
        low[m] = high[m] + rows->stride;
    }
#if VNNI
    __m512i top[4][4], rest[4][4];
#pragma GCC unroll 4
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            const int32_t *sums = rows->sums + 2 * (row + m);
            top[m][t] = _mm512_set1_epi32(-offset * sums[0]);
            rest[m][t] = _mm512_set1_epi32(-offset * sums[1]);
        }
#pragma GCC unroll 2
    for (int k = 0; k < n4; k++) {
        __m512i weights[4];
#pragma GCC unroll 4
        for (int t = 0; t < T; t++)
            weights[t] = _mm512_loadu_si512(codes + ((size_t)k * PANEL + t * TILE) * 4);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
            int32_t four[2];
            memcpy(four, high[m] + 4 * k, 4);
            memcpy(four + 1, low[m] + 4 * k, 4);
            __m512i a = _mm512_set1_epi32(four[0]), b = _mm512_set1_epi32(four[1]);
#pragma GCC unroll 4
            for (int t = 0; t < T; t++) {
                top[m][t] = _mm512_dpbusd_epi32(top[m][t], weights[t], a);
                rest[m][t] = _mm512_dpbusd_epi32(rest[m][t], weights[t], b);
            }
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            __m512 most = _mm512_cvtepi32_ps(top[m][t]), least = _mm512_cvtepi32_ps(rest[m][t]);
            __m512 total = _mm512_fmadd_ps(most, _mm512_set1_ps(256), least);
            _mm512_storeu_ps(totals + (m * T + t) * TILE, total);
        }
#elif AVX2
    (void)offset, (void)low;
    const int n_flush = 128; /* 128 * 32512 * 4 * 128, two lanes together, is below 2^31 */
    for (int m = 0; m < M; m++) {
        const int16_t *x = (const int16_t *)(rows->codes + (size_t)(row + m) * 2 * rows->stride);
        x += first;
        for (int t = 0; t < T; t++) {
            __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
            for (int k = 0; k < n4;) {
                int last = k + n_flush < n4 ? k + n_flush : n4;
                __m256i part[4];
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) part[i] = _mm256_setzero_si256();
                for (; k < last; k++) {
                    int64_t four;
                    memcpy(&four, x + 4 * k, 8);
                    __m256i a = _mm256_set1_epi64x(four);
                    const uint8_t *w = codes + ((size_t)k * PANEL + t * TILE) * 4;
#pragma GCC unroll 4
                    for (int i = 0; i < 4; i++) {
                        __m128i eight = _mm_loadu_si128((const __m128i *)(w + 16 * i));
                        __m256i products = _mm256_madd_epi16(_mm256_cvtepi8_epi16(eight), a);
                        part[i] = _mm256_add_epi32(part[i], products);
                    }
                }
#pragma GCC unroll 2
                for (int i = 0; i < 2; i++) {
                    __m256i pairs = _mm256_hadd_epi32(part[2 * i], part[2 * i + 1]);
                    pairs = _mm256_permute4x64_epi64(pairs, 0xd8);
                    sums[i] = _mm256_add_ps(sums[i], _mm256_cvtepi32_ps(pairs));
                }
            }
            _mm256_storeu_ps(totals + (m * T + t) * TILE, sums[0]);
            _mm256_storeu_ps(totals + (m * T + t) * TILE + 8, sums[1]);
        }
    }
#elif NEON
    (void)offset;
    for (int m = 0; m < M; m++)
        for (int t = 0; t < T; t++) {
            int32x4_t top[4], rest[4];
            for (int i = 0; i < 4; i++) top[i] = rest[i] = vdupq_n_s32(0);
            for (int k = 0; k < n4; k++) {
                int32_t four[2];
                memcpy(four, high[m] + 4 * k, 4);
                memcpy(four + 1, low[m] + 4 * k, 4);
                int8x16_t a = vreinterpretq_s8_s32(vdupq_n_s32(four[0]));
                int8x16_t b = vreinterpretq_s8_s32(vdupq_n_s32(four[1]));
                const uint8_t *w = codes + ((size_t)k * PANEL + t * TILE) * 4;
                for (int i = 0; i < 4; i++) {
                    int8x16_t weights = vreinterpretq_s8_u8(vld1q_u8(w + 16 * i));
                    top[i] = vdotq_s32(top[i], weights, a);
                    rest[i] = vdotq_s32(rest[i], weights, b);
                }
            }
            for (int i = 0; i < 4; i++) {
                float32x4_t total = vfmaq_n_f32(vcvtq_f32_s32(rest[i]), vcvtq_f32_s32(top[i]), 256);
                vst1q_f32(totals + (m * T + t) * TILE + 4 * i, total);
            }
        }
#else
    (void)offset;
    for (int m = 0; m < M; m++)
        for (int t = 0; t < T; t++) {
            int32_t top[TILE] = {0}, rest[TILE] = {0};
            for (int k = 0; k < n4; k++) {
                const int8_t *w = (const int8_t *)codes + ((size_t)k * PANEL + t * TILE) * 4;
                for (int i = 0; i < TILE; i++)
                    for (int j = 0; j < 4; j++) {
                        top[i] += w[4 * i + j] * high[m][4 * k + j];
                        rest[i] += w[4 * i + j] * low[m][4 * k + j];
                    }
            }
            for (int i = 0; i < TILE; i++)
                totals[(m * T + t) * TILE + i] = 256.0f * (float)top[i] + (float)rest[i];
        }
#endif
}


/* One panel of an int8 product for M rows: y = total * scales (+ what is there). */
INLINE void panel8(int M, int T, const Product *p, int panel, const Rows *rows, int row, float *y,
                   size_t stride, int adds) {
    int n4 = (p->n_in + 15) / 16 * 4;
    const uint8_t *codes = p->codes + (size_t)panel * n4 * 4 * PANEL;
    float totals[4 * PANEL];
    for (int tile = 0; tile < PANEL / TILE; tile += T) {
        dots(M, T, codes + tile * TILE * 4, rows, row, 0, n4, OFFSET, totals);
        size_t column = (size_t)panel * PANEL + tile * TILE;
        for (int m = 0; m < M; m++)
            for (int i = 0; i < T * TILE; i += LANES) {
                float *to = y + (row + m) * stride + column + i;
                vf scale = load(p->scale + column + i) * rows->scale[row + m];
                vf value = load(totals + m * T * TILE + i) * scale;
                if (p->bias) value += load(p->bias + column + i);
                store(to, adds ? load(to) + value : value);
            }
    }
}

/* The same of int4: every group of inputs has its own scale, and a zero times the row's sum of it.
 * unpacked: the panel's codes, a byte each; sums: [MAX_ROWS][groups], of the rows' codes. */
INLINE void panel4(int M, int T, const Product *p, int panel, const uint8_t *unpacked,
                   const Rows *rows, const float *sums, int row, float *y, size_t stride, int adds) {
    int n_groups = p->n_in / p->group, n4 = p->group / 4;
    float totals[4 * PANEL], part[4 * PANEL];
    size_t n_columns = padded(p->n_out);
    for (int tile = 0; tile < PANEL / TILE; tile += T) {
        size_t column = (size_t)panel * PANEL + tile * TILE;
        memset(totals, 0, sizeof totals);
        for (int g = 0; g < n_groups; g++) {
            dots(M, T, unpacked + ((size_t)g * n4 * PANEL + tile * TILE) * 4, rows, row,
                 g * p->group, n4, 0, part);
            for (int m = 0; m < M; m++) {
                vf sum = splat(sums[(row + m) * n_groups + g]);
                for (int i = 0; i < T * TILE; i += LANES) {
                    vf scale = from_bf16s(p->group_scale + g * n_columns + column + i);
                    vf zero = from_bf16s(p->group_zero + g * n_columns + column + i);
                    zero = muladd(scale, splat(-8), zero);
                    float *total = totals + m * T * TILE + i;
                    vf value = muladd(load(part + m * T * TILE + i), scale, load(total));
                    store(total, muladd(sum, zero, value));
                }
            }
        }
        for (int m = 0; m < M; m++)
            for (int i = 0; i < T * TILE; i += LANES) {
                float *to = y + (row + m) * stride + column + i;
                vf value = load(totals + m * T * TILE + i) * rows->scale[row + m];
                if (p->bias) value += load(p->bias + column + i);
                store(to, adds ? load(to) + value : value);
            }
    }
}

/* Sums of each row's codes by group, for the zeros of int4. */
static void sum_groups(const Product *p, const Rows *rows, int n_rows, float *sums) {
    for (int row = 0; row < n_rows; row++)
        for (int g = 0; g < p->n_in / p->group; g++) {
            int32_t sum = 0;
            const int8_t *high = rows->codes + (size_t)row * 2 * rows->stride;
            for (int i = g * p->group; i < (g + 1) * p->group; i++)
#if AVX2
                sum += ((const int16_t *)high)[i];
#else
                sum += 256 * high[i] + high[rows->stride + i];
#endif
            sums[row * (p->n_in / p->group) + g] = (float)sum;
        }
}

/* y [n_rows][stride] = W x + bias of quantized rows, or added to what is there. */
typedef struct {
    const Product *product;
    const Rows *rows;
    float *y, *sums;
    uint8_t *unpacked; /* [threads][n_unpacked] */
    size_t stride, n_unpacked;
    int n_rows, adds;
} Multiplication;

static void multiply_panel(void *context, int panel, int thread) {
    const Multiplication *m = context;
    const Product *p = m->product;
    const Rows *rows = m->rows;
    int row = 0;
    if (!p->group) {
        for (; row + 4 <= m->n_rows; row += 4)
            panel8(4, 2, p, panel, rows, row, m->y, m->stride, m->adds);
        for (; row + 2 <= m->n_rows; row += 2)
            panel8(2, 4, p, panel, rows, row, m->y, m->stride, m->adds);
        for (; row < m->n_rows; row++)
            panel8(1, 4, p, panel, rows, row, m->y, m->stride, m->adds);
        return;
    }
    size_t n_bytes = (size_t)p->n_in * PANEL / 2;
    const uint8_t *codes = p->codes + panel * n_bytes;
    uint8_t *unpacked = m->unpacked + thread * m->n_unpacked;
    for (size_t i = 0; i < n_bytes; i += 4 * PANEL) /* two rows of 4 inputs in each byte */
        for (int j = 0; j < 4 * PANEL; j++) {
            unpacked[2 * i + j] = codes[i + j] & 15;
            unpacked[2 * i + 4 * PANEL + j] = codes[i + j] >> 4;
        }
    for (; row + 4 <= m->n_rows; row += 4)
        panel4(4, 2, p, panel, unpacked, rows, m->sums, row, m->y, m->stride, m->adds);
    for (; row < m->n_rows; row++)
        panel4(1, 4, p, panel, unpacked, rows, m->sums, row, m->y, m->stride, m->adds);
}

static void multiply(Crew *crew, const Multiplication *m) {
    const Product *p = m->product;
    int n_panels = (int)(padded(p->n_out) / PANEL);
    if (p->group) sum_groups(p, m->rows, m->n_rows, m->sums);
    share(crew, multiply_panel, (void *)m, n_panels, (size_t)n_panels * PANEL * p->n_in * m->n_rows);
}

/* -- keys and values --------------------------------------------------------------------------- */

INLINE size_t code_bytes(const Model *model) {
    size_t n = (size_t)model->head_dim;
    return model->kv_format == KV_PLAIN ? 2 * n : model->kv_format == KV_INT4 ? n / 2 : n;
}

/* Which vector of a layer's pool holds the keys (1: values) of a KV head in a slot. */
INLINE size_t vector_of(const Model *model, size_t slot, int is_value, int head) {
    return (slot * 2 + is_value) * model->n_kv_heads + head;
}

/* Store one vector [head_dim] as engine/kv_format.py does. */
static void encode(const Model *model, const Layer *layer, size_t vector, const float *x) {
    int n = model->head_dim;
    uint8_t *codes = layer->kv_codes + vector * code_bytes(model);
    if (model->kv_format == KV_PLAIN) {
        uint16_t *halves = (uint16_t *)codes;
        for (int i = 0; i < n; i++) halves[i] = to_bf16(x[i]);
        return;
    }
    const float most = model->kv_format == KV_INT8 ? 127 : model->kv_format == KV_INT4 ? 7 : 448;
    float largest = 1e-12f;
    for (int i = 0; i < n; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    layer->kv_scales[vector] = to_bf16(largest / most);
    float inverse = 1.0f / from_bf16(layer->kv_scales[vector]);
    int half = n / 2;
    for (int i = 0; i < n; i++) {
        float scaled = x[i] * inverse;
        if (model->kv_format == KV_FP8) {
            codes[i] = to_fp8(scaled);
            continue;
        }
        scaled = rintf(scaled);
        scaled = scaled > most ? most : scaled < -most ? -most : scaled;
        if (model->kv_format == KV_INT8)
            ((int8_t *)codes)[i] = (int8_t)scaled;
        else if (i < half)
            codes[i] = (uint8_t)(scaled + 8);
        else
            codes[i - half] |= (uint8_t)((uint8_t)(scaled + 8) << 4);
    }
}

INLINE void decode_plain(const uint16_t *halves, int n, float *x) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) store(x + i, from_bf16s(halves + i));
    for (; i < n; i++) x[i] = from_bf16(halves[i]);
}

static void decode_scaled(const Model *model, const Layer *layer, size_t vector, float *x) {
    int n = model->head_dim, half = n / 2;
    const uint8_t *codes = layer->kv_codes + vector * code_bytes(model);
    float scale = from_bf16(layer->kv_scales[vector]);
    switch (model->kv_format) {
    case KV_INT8:
        for (int i = 0; i < n; i++) x[i] = (float)((const int8_t *)codes)[i] * scale;
        break;
    case KV_INT4:
        for (int i = 0; i < half; i++) {
            x[i] = (float)((codes[i] & 15) - 8) * scale;
            x[i + half] = (float)((codes[i] >> 4) - 8) * scale;
        }
        break;
    default:
        for (int i = 0; i < n; i++) x[i] = from_fp8(codes[i]) * scale;
    }
}

/* Tokens low..high - 1 of a block as fp32: x [BLOCK_TOKENS][stride]. */
static void decode(const Model *model, const Layer *layer, size_t slot, int is_value, int head,
                   int low, int high, int stride, float *x) {
    for (int t = low; t < high; t++) {
        size_t vector = vector_of(model, slot + t, is_value, head);
        if (model->kv_format == KV_PLAIN)
            decode_plain((const uint16_t *)layer->kv_codes + vector * model->head_dim,
                         model->head_dim, x + t * stride);
        else
            decode_scaled(model, layer, vector, x + t * stride);
    }
}

/* -- attention --------------------------------------------------------------------------------- */

/* A row and head under way: the softmax so far is sums / weights, its exponents less `most`. */
typedef struct {
    float most;
    float weights[BLOCK_TOKENS]; /* of tokens by their place in a block */
    float sums[MAX_HEAD];
} Partial;

/* scores[t] = query . keys[t]; keys: [BLOCK_TOKENS][stride]. */
INLINE void score(const float *query, const float *keys, int stride, float *scores) {
#if VNNI
    __m512 sums[BLOCK_TOKENS];
#pragma GCC unroll 16
    for (int t = 0; t < BLOCK_TOKENS; t++) sums[t] = _mm512_setzero_ps();
    for (int i = 0; i < stride; i += LANES) {
        __m512 q = _mm512_loadu_ps(query + i);
#pragma GCC unroll 16
        for (int t = 0; t < BLOCK_TOKENS; t++)
            sums[t] = _mm512_fmadd_ps(q, _mm512_loadu_ps(keys + t * stride + i), sums[t]);
    }
    /* Sixteen sums over lanes at once: each pass halves the vectors and doubles what a lane holds. */
#pragma GCC unroll 8
    for (int t = 0; t < 8; t++)
        sums[t] = _mm512_add_ps(_mm512_shuffle_f32x4(sums[t], sums[t + 8], 0x44),
                                _mm512_shuffle_f32x4(sums[t], sums[t + 8], 0xee));
#pragma GCC unroll 4
    for (int t = 0; t < 4; t++)
        sums[t] = _mm512_add_ps(_mm512_shuffle_f32x4(sums[t], sums[t + 4], 0x88),
                                _mm512_shuffle_f32x4(sums[t], sums[t + 4], 0xdd));
#pragma GCC unroll 2
    for (int t = 0; t < 2; t++)
        sums[t] = _mm512_add_ps(_mm512_unpacklo_ps(sums[t], sums[t + 2]),
                                _mm512_unpackhi_ps(sums[t], sums[t + 2]));
    sums[0] = _mm512_add_ps(_mm512_unpacklo_ps(sums[0], sums[1]),
                            _mm512_unpackhi_ps(sums[0], sums[1]));
    _mm512_storeu_ps(scores, _mm512_shuffle_f32x4(sums[0], sums[0], 0xd8));
#else
    for (int t = 0; t < BLOCK_TOKENS; t++) {
        vf sum = {0};
        for (int i = 0; i < stride; i += LANES) sum = muladd(load(query + i), load(keys + t * stride + i), sum);
        scores[t] = sum_of(sum);
    }
#endif
}

/* sums[i] += sum over t of scores[t] * values[t][i], for N vectors. */
INLINE void weigh(int N, const float *scores, const float *values, int stride, int low, int high,
                  float *sums) {
    vf total[4];
    for (int n = 0; n < N; n++) total[n] = load(sums + n * LANES);
    for (int t = low; t < high; t++)
        for (int n = 0; n < N; n++)
            total[n] = muladd(load(values + t * stride + n * LANES), splat(scores[t]), total[n]);
    for (int n = 0; n < N; n++) store(sums + n * LANES, total[n]);
}

/* Take the block's tokens low..high - 1 into a row's softmax. */
INLINE void take(Partial *partial, const float *query, const float *keys, const float *values,
                 int stride, int low, int high) {
    static const int32_t places[BLOCK_TOKENS] __attribute__((aligned(64))) = {
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    float scores[BLOCK_TOKENS] __attribute__((aligned(64)));
    score(query, keys, stride, scores);
    vf largest = splat(partial->most);
    vi seen[BLOCK_TOKENS / LANES];
    for (int i = 0; i < BLOCK_TOKENS / LANES; i++) {
        vi place = *(const vi *)(const void *)(places + i * LANES);
        seen[i] = (place >= low) & (place < high);
        largest = larger(largest, pick(seen[i], load(scores + i * LANES), largest));
    }
    float most = largest_of(largest);
    if (most > partial->most) {
        vf shrunk = exponential(splat(partial->most - most)); /* -inf at first: of zero sums */
        for (int i = 0; i < BLOCK_TOKENS; i += LANES)
            store(partial->weights + i, load(partial->weights + i) * shrunk);
        for (int i = 0; i < stride; i += LANES)
            store(partial->sums + i, load(partial->sums + i) * shrunk);
        partial->most = most;
    }
    for (int i = 0; i < BLOCK_TOKENS / LANES; i++) {
        float *at = scores + i * LANES, *weights = partial->weights + i * LANES;
        store(at, pick(seen[i], exponential(load(at) - most), splat(0)));
        store(weights, load(weights) + load(at));
    }
    int i = 0;
    if (low == 0 && high == BLOCK_TOKENS) /* nearly all of a long context: loops of known length */
        for (; i + 4 * LANES <= stride; i += 4 * LANES)
            weigh(4, scores, values + i, stride, 0, BLOCK_TOKENS, partial->sums + i);
    for (; i < stride; i += LANES)
        weigh(1, scores, values + i, stride, low, high, partial->sums + i);
}

typedef struct {
    Rows rows;
    float *wide;        /* [MAX_ROWS][widest product] */
    float *narrow;      /* [MAX_ROWS][widest input] */
    float *queries;     /* [MAX_ROWS][heads][head stride] */
    float *keys, *values; /* [KV heads][BLOCK_TOKENS][head stride] */
    Partial *partials;  /* [KV heads][MAX_ROWS][heads of a KV head] */
    float *sums;
    uint8_t *unpacked;
    size_t n_bytes, n_unpacked;
} Space;

INLINE int head_stride(const Model *model) { return (model->head_dim + 15) / 16 * 16; }

/* Rows first..last - 1 of one sequence over its KV: out [rows][out_stride], heads side by side.
 * base: the first row of those in `space` and `out`. */
typedef struct {
    const Model *model;
    const Layer *layer;
    const Step *step;
    const Space *space;
    float *out;
    size_t out_stride;
    int base, first, last;
} Attention;

static void attend_head(void *context, int head, int thread) {
    const Attention *a = context;
    const Model *model = a->model;
    const Step *step = a->step;
    (void)thread;
    int stride = head_stride(model), group = model->n_heads / model->n_kv_heads;
    int window = a->layer->window, first = a->first, last = a->last;
    const int32_t *table = step->tables + step->table_starts[step->sequences[first]];
    int begin = step->positions[first] + 1 - window, end = step->positions[last - 1] + 1;
    if (!window || begin < 0) begin = 0;
    float *keys = a->space->keys + (size_t)head * BLOCK_TOKENS * stride;
    float *values = a->space->values + (size_t)head * BLOCK_TOKENS * stride;
    Partial *partials = a->space->partials + (size_t)head * MAX_ROWS * group;
    for (int i = 0; i < (last - first) * group; i++) {
        partials[i].most = -INFINITY;
        memset(partials[i].weights, 0, sizeof partials[i].weights);
        memset(partials[i].sums, 0, stride * sizeof(float));
    }
    for (int block = begin / BLOCK_TOKENS; block * BLOCK_TOKENS < end; block++) {
        int start = block * BLOCK_TOKENS;
        int n_tokens = end - start < BLOCK_TOKENS ? end - start : BLOCK_TOKENS;
        size_t slot = (size_t)table[block] * BLOCK_TOKENS;
        int begin_token = begin > start ? begin - start : 0;
        decode(model, a->layer, slot, 0, head, begin_token, n_tokens, stride, keys);
        decode(model, a->layer, slot, 1, head, begin_token, n_tokens, stride, values);
        for (int row = first; row < last; row++) {
            int position = step->positions[row], low = 0;
            int high = position + 1 - start < n_tokens ? position + 1 - start : n_tokens;
            if (window && position + 1 - window > start) low = position + 1 - window - start;
            if (low >= high) continue;
            size_t query = (size_t)(row - a->base) * model->n_heads + head * group;
            for (int g = 0; g < group; g++)
                take(partials + (row - first) * group + g, a->space->queries + (query + g) * stride,
                     keys, values, stride, low, high);
        }
    }
    for (int row = first; row < last; row++)
        for (int g = 0; g < group; g++) {
            const Partial *partial = partials + (row - first) * group + g;
            float *to = a->out + (row - a->base) * a->out_stride + (head * group + g) * model->head_dim;
            vf weight = {0};
            for (int i = 0; i < BLOCK_TOKENS; i += LANES) weight += load(partial->weights + i);
            float inverse = 1.0f / sum_of(weight);
            for (int i = 0; i < model->head_dim; i++) to[i] = partial->sums[i] * inverse;
        }
}

static void attend(const Attention *a) {
    const Model *model = a->model;
    size_t n_tokens = (size_t)a->step->positions[a->last - 1] + 1, n_rows = a->last - a->first;
    size_t n_bytes = n_tokens * n_rows * model->n_heads * model->head_dim * 4;
    share(model->crew, attend_head, (void *)a, model->n_kv_heads, n_bytes);
}

/* -- layers ------------------------------------------------------------------------------------ */

/* out = x / |x| * weight by the root of the mean square; n: of x and weight, both padded. */
static void norm(const float *x, const float *weight, int n, float eps, float *out) {
    vf sum = {0};
    int n_padded = (int)padded(n);
    for (int i = 0; i < n_padded; i += LANES) sum = muladd(load(x + i), load(x + i), sum);
    float scale = 1.0f / sqrtf(sum_of(sum) / (float)n + eps);
    for (int i = 0; i < n_padded; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
}

/* One head of queries or keys [head_dim]: its norm, if it has one, and its rotation, in place. */
static void turn(const Model *model, float *x, const float *weight, int position) {
    int n = model->head_dim, half = n / 2;
    if (weight) {
        float sum = 0, parts[8] = {0};
        int i = 0;
        for (; i + 8 <= n; i += 8)
            for (int j = 0; j < 8; j++) parts[j] += x[i + j] * x[i + j];
        for (; i < n; i++) sum += x[i] * x[i];
        for (int j = 0; j < 8; j++) sum += parts[j];
        float scale = 1.0f / sqrtf(sum / (float)n + model->eps);
        for (i = 0; i < n; i++) x[i] = x[i] * scale * weight[i];
    }
    const float *cos = model->cos + (size_t)position * half, *sin = model->sin + (size_t)position * half;
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
}

/* Queries, keys and values of rows first..last - 1; keys and values go into their slots. */
static void project(const Model *model, const Layer *layer, const Step *step, int first, int last,
                    const Space *space, size_t stride) {
    int n = model->head_dim, group_stride = head_stride(model);
    float scale = 1.0f / sqrtf((float)n);
    for (int row = first; row < last; row++) {
        float *qkv = space->wide + (row - first) * stride;
        int position = step->positions[row];
        for (int head = 0; head < model->n_heads; head++) {
            float *to = space->queries + ((size_t)(row - first) * model->n_heads + head) * group_stride;
            turn(model, qkv + head * n, layer->q_norm, position);
            for (int i = 0; i < n; i++) to[i] = qkv[head * n + i] * scale;
        }
        const int32_t *table = step->tables + step->table_starts[step->sequences[row]];
        size_t slot = (size_t)table[position / BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS;
        float *keys = qkv + model->n_heads * n, *values = keys + model->n_kv_heads * n;
        for (int head = 0; head < model->n_kv_heads; head++) {
            turn(model, keys + head * n, layer->k_norm, position);
            encode(model, layer, vector_of(model, slot, 0, head), keys + head * n);
            encode(model, layer, vector_of(model, slot, 1, head), values + head * n);
        }
    }
}

/* A product of the rows that lie quantized in `space`. */
static void apply(const Model *model, const Space *space, const Product *product, int n_rows,
                  float *y, size_t stride, int adds) {
    multiply(model->crew, &(Multiplication){product, &space->rows, y, space->sums, space->unpacked,
                                            stride, space->n_unpacked, n_rows, adds});
}

/* One layer for rows first..last - 1, at most MAX_ROWS of them. */
static void run_layer(const Model *model, const Layer *layer, const Step *step, int first, int last,
                      const Space *space) {
    int n_rows = last - first, inner = model->inner;
    size_t hidden = padded(model->hidden), n_heads = model->n_heads * model->head_dim;
    float *x = step->x + first * hidden;
    const Rows *rows = &space->rows;

    for (int row = 0; row < n_rows; row++) {
        norm(x + row * hidden, layer->input_norm, model->hidden, model->eps, space->narrow);
        quantize(space->narrow, model->hidden, rows, row);
    }
    size_t n_qkv = padded(layer->qkv.n_out), n_out = padded(n_heads);
    apply(model, space, &layer->qkv, n_rows, space->wide, n_qkv, 0);
    project(model, layer, step, first, last, space, n_qkv);
    for (int row = first, next; row < last; row = next) {
        for (next = row + 1; next < last && step->sequences[next] == step->sequences[row];) next++;
        attend(&(Attention){model, layer, step, space, space->narrow, n_out, first, row, next});
    }
    for (int row = 0; row < n_rows; row++) {
        float *out = space->narrow + row * n_out;
        memset(out + n_heads, 0, (n_out - n_heads) * sizeof(float));
        quantize(out, (int)n_heads, rows, row);
    }
    apply(model, space, &layer->output, n_rows, x, hidden, 1);

    for (int row = 0; row < n_rows; row++) {
        norm(x + row * hidden, layer->post_norm, model->hidden, model->eps, space->narrow);
        quantize(space->narrow, model->hidden, rows, row);
    }
    size_t n_wide = padded(2 * inner);
    apply(model, space, &layer->gate_up, n_rows, space->wide, n_wide, 0);
    for (int row = 0; row < n_rows; row++) { /* SwiGLU */
        const float *gate = space->wide + row * n_wide, *up = gate + inner;
        float *to = space->narrow;
        for (int i = 0; i < inner; i += LANES) {
            vf g = load(gate + i);
            store(to + i, g / (exponential(-g) + 1.0f) * load(up + i));
        }
        memset(to + inner, 0, (padded(inner) - inner) * sizeof(float));
        quantize(to, inner, rows, row);
    }
    apply(model, space, &layer->down, n_rows, x, hidden, 1);
}

/* -- what the binding calls -------------------------------------------------------------------- */

static size_t widest_of(const size_t *sizes, int n) {
    size_t most = 0;
    for (int i = 0; i < n; i++) most = sizes[i] > most ? sizes[i] : most;
    return most;
}

/* Lay the parts of a workspace out from `at` on; n_bytes: of all of them. */
static Space lay_out(const Model *model, uint8_t *at) {
    size_t hidden = padded(model->hidden), inner = padded(model->inner);
    size_t heads = padded((size_t)model->n_heads * model->head_dim);
    size_t kv = (size_t)model->n_kv_heads * model->head_dim;
    size_t wide = widest_of((size_t[]){padded(model->n_heads * model->head_dim + 2 * kv),
                                        padded(2 * (size_t)model->inner)}, 2);
    size_t narrow = widest_of((size_t[]){hidden, inner, heads}, 3), n = MAX_ROWS;
    size_t stride = head_stride(model), group = model->n_heads / model->n_kv_heads;
    size_t kv_heads = model->n_kv_heads, n_threads = model->crew ? model->crew->n_threads : 1;
    size_t sizes[] = {
        n * wide * 4, n * narrow * 4, n * model->n_heads * stride * 4,
        kv_heads * BLOCK_TOKENS * stride * 4, kv_heads * BLOCK_TOKENS * stride * 4,
        kv_heads * n * group * sizeof(Partial),
        n * narrow * 2, n * 4, n * 8, n * narrow / 4, n_threads * narrow * PANEL,
    };
    uint8_t *parts[sizeof sizes / sizeof *sizes];
    size_t n_bytes = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        parts[i] = at + n_bytes;
        n_bytes += (sizes[i] + 63) / 64 * 64;
    }
    return (Space){
        .rows = {(int8_t *)parts[6], (float *)parts[7], (int32_t *)parts[8], narrow},
        .wide = (float *)parts[0], .narrow = (float *)parts[1], .queries = (float *)parts[2],
        .keys = (float *)parts[3], .values = (float *)parts[4], .partials = (Partial *)parts[5],
        .sums = (float *)parts[9], .unpacked = parts[10], .n_bytes = n_bytes,
        .n_unpacked = narrow * PANEL,
    };
}

/* Whether this CPU has what the file was compiled for. */
EXPORT int32_t native_runs_here(void) {
#if VNNI
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#elif AVX2
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#elif NEON && defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1; /* HWCAP_ASIMDDP */
#else
    return 1;
#endif
}

/* y [n][padded outputs] of x [n][n_in], without a model around it. space: of `native_rows_bytes`. */
EXPORT void native_multiply(const Product *p, const float *x, int32_t n, float *y, uint8_t *space) {
    size_t n_in = padded(p->n_in), n_out = padded(p->n_out);
    float *narrow = (float *)space, *scale = narrow + n_in, *sums = scale + MAX_ROWS;
    int32_t *row_sums = (int32_t *)(sums + MAX_ROWS * n_in / 4);
    Rows rows = {(int8_t *)(row_sums + 2 * MAX_ROWS), scale, row_sums, n_in};
    uint8_t *unpacked = (uint8_t *)rows.codes + MAX_ROWS * 2 * n_in;
    for (int first = 0; first < n; first += MAX_ROWS) {
        int n_rows = n - first < MAX_ROWS ? n - first : MAX_ROWS;
        for (int row = 0; row < n_rows; row++) {
            memcpy(narrow, x + (size_t)(first + row) * p->n_in, p->n_in * sizeof(float));
            memset(narrow + p->n_in, 0, (n_in - p->n_in) * sizeof(float));
            quantize(narrow, p->n_in, &rows, row);
        }
        multiply(NULL, &(Multiplication){p, &rows, y + first * n_out, sums, unpacked, n_out, 0,
                                         n_rows, 0});
    }
}

EXPORT size_t native_rows_bytes(int32_t n_in) {
    size_t n = padded(n_in);
    return n * 4 + MAX_ROWS * 4 + MAX_ROWS * n + MAX_ROWS * 8 + MAX_ROWS * 2 * n + n * PANEL;
}

/* Sizes of the structs, which the binding compares with its own. */
EXPORT void native_sizes(int32_t sizes[4]) {
    sizes[0] = sizeof(Product), sizes[1] = sizeof(Layer);
    sizes[2] = sizeof(Model), sizes[3] = sizeof(Step);
}

/* A crew of so many threads, the caller among them; NULL where there can be none. */
EXPORT Crew *native_open_crew(int32_t n_threads) {
    if (n_threads < 2 || n_threads > MAX_THREADS) return NULL;
    Crew *crew = calloc(1, sizeof *crew);
    if (!crew) return NULL;
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->wake, NULL);
    for (crew->n_threads = 1; crew->n_threads < n_threads; crew->n_threads++) {
        Helper *helper = malloc(sizeof *helper);
        if (!helper) break;
        *helper = (Helper){crew, crew->n_threads};
        if (pthread_create(crew->helpers + crew->n_threads, NULL, help, helper)) {
            free(helper);
            break; /* it works with those that there are */
        }
    }
    return crew;
}

EXPORT void native_close_crew(Crew *crew) {
    if (!crew) return;
    atomic_store(&crew->is_closing, 1);
    pthread_mutex_lock(&crew->lock);
    pthread_cond_broadcast(&crew->wake);
    pthread_mutex_unlock(&crew->lock);
    for (int i = 1; i < crew->n_threads; i++) pthread_join(crew->helpers[i], NULL);
    pthread_mutex_destroy(&crew->lock);
    pthread_cond_destroy(&crew->wake);
    free(crew);
}

EXPORT size_t native_workspace_bytes(const Model *model) { return lay_out(model, 0).n_bytes; }

EXPORT size_t native_packed_bytes(int32_t n_out, int32_t n_in, int32_t group) {
    size_t n = padded(n_out) * ((size_t)(n_in + 15) / 16 * 16);
    return group ? n / 2 : n;
}

/* codes: [n_out][n_in], int8 or, with a group, 0..15. packed: as Product has it. */
EXPORT void native_pack(const int8_t *codes, int32_t n_out, int32_t n_in, int32_t group,
                        uint8_t *packed) {
    size_t n_fours = (size_t)(n_in + 15) / 16 * 4, n_outputs = padded(n_out);
    for (size_t out = 0; out < n_outputs; out++)
        for (size_t in = 0; in < n_fours * 4; in++) {
            int code = out < (size_t)n_out && in < (size_t)n_in ? codes[out * n_in + in] : 0;
            size_t panel = out / PANEL, four = in / 4, place = out % PANEL * 4 + in % 4;
            if (!group) {
                packed[((panel * n_fours + four) * PANEL) * 4 + place] = (uint8_t)(code + OFFSET);
                continue;
            }
            uint8_t *both = packed + ((panel * n_fours / 2 + four / 2) * PANEL) * 4 + place;
            *both = four % 2 ? (uint8_t)(*both | code << 4) : (uint8_t)code;
        }
}

/* Every index of the step lies within what it points into. */
static Fault check(const Model *model, const Step *step) {
    if (step->n_rows < 1 || step->n_sequences < 1) return BAD_ROWS;
    for (int row = 0; row < step->n_rows; row++) {
        int position = step->positions[row], sequence = step->sequences[row];
        if (step->tokens[row] < 0 || step->tokens[row] >= model->vocab) return BAD_TOKEN;
        if (position < 0 || position >= model->n_positions) return BAD_POSITION;
        if (sequence < 0 || sequence >= step->n_sequences) return BAD_SEQUENCE;
        int follows = row && step->sequences[row - 1] == sequence;
        if (follows && position != step->positions[row - 1] + 1) return BAD_POSITION;
        int first = step->table_starts[sequence], last = step->table_starts[sequence + 1];
        if (first < 0 || position / BLOCK_TOKENS >= last - first) return BAD_SEQUENCE;
    }
    for (int i = 0; i < step->table_starts[step->n_sequences]; i++)
        if (step->tables[i] < 0 || step->tables[i] >= model->n_blocks) return BAD_BLOCK;
    return STEP_OK;
}

/* Run layers first..last - 1 over the step's residuals, before the first of which they are filled
 * from the embedding. Nothing has been touched where a fault is returned. */
EXPORT int32_t native_forward(const Model *model, const Step *step, int32_t first, int32_t last) {
    if (first < 0 || first > last || last > model->n_layers) return BAD_LAYER;
    Fault fault = check(model, step);
    if (fault) return fault;
    Space space = lay_out(model, model->workspace);
    size_t hidden = padded(model->hidden);
    for (int row = 0; row < step->n_rows && first == 0; row++) {
        float *x = step->x + row * hidden;
        const uint16_t *from = model->embedding + (size_t)step->tokens[row] * model->hidden;
        for (int i = 0; i < model->hidden; i++) x[i] = from_bf16(from[i]);
        memset(x + model->hidden, 0, (hidden - model->hidden) * sizeof(float));
    }
    for (int layer = first; layer < last; layer++)
        for (int row = 0; row < step->n_rows; row += MAX_ROWS) {
            int end = row + MAX_ROWS < step->n_rows ? row + MAX_ROWS : step->n_rows;
            run_layer(model, model->layers + layer, step, row, end, &space);
        }
    return STEP_OK;
}

/* states [n][hidden]: the residuals of `wanted` rows after the last norm. */
EXPORT int32_t native_states(const Model *model, const Step *step, const int32_t *wanted,
                             int32_t n_wanted, float *states) {
    Space space = lay_out(model, model->workspace);
    for (int i = 0; i < n_wanted; i++) {
        if (wanted[i] < 0 || wanted[i] >= step->n_rows) return BAD_ROWS;
        const float *x = step->x + wanted[i] * padded(model->hidden);
        norm(x, model->norm, model->hidden, model->eps, space.narrow);
        memcpy(states + (size_t)i * model->hidden, space.narrow, model->hidden * sizeof(float));
    }
    return STEP_OK;
}

/* The likeliest tokens of a row, computed again from the embedding: see Decoder.logits. */
static void refine(const Model *model, const float *state, float *logits) {
    int likely[N_REFINED], n = 0;
    for (int token = 0; token < model->vocab; token++) {
        if (n == N_REFINED && !(logits[token] > logits[likely[n - 1]])) continue;
        int place = n < N_REFINED ? n++ : n - 1;
        for (; place && logits[token] > logits[likely[place - 1]]; place--)
            likely[place] = likely[place - 1];
        likely[place] = token;
    }
    for (int i = 0; i < n; i++) {
        const uint16_t *row = model->embedding + (size_t)likely[i] * model->hidden;
        float sum = 0;
        vf sums = {0};
        int j = 0;
        for (; j + LANES <= model->hidden; j += LANES) sums = muladd(from_bf16s(row + j), load(state + j), sums);
        for (; j < model->hidden; j++) sum += from_bf16(row[j]) * state[j];
        logits[likely[i]] = sum_of(sums) + sum;
    }
}

/* logits [n][padded vocab] of states [n][hidden]. */
EXPORT void native_logits(const Model *model, const float *states, int32_t n, float *logits) {
    Space space = lay_out(model, model->workspace);
    size_t hidden = model->hidden, vocab = padded(model->vocab);
    for (int first = 0; first < n; first += MAX_ROWS) {
        int n_rows = n - first < MAX_ROWS ? n - first : MAX_ROWS;
        for (int row = 0; row < n_rows; row++) {
            memcpy(space.narrow, states + (first + row) * hidden, hidden * sizeof(float));
            memset(space.narrow + hidden, 0, (padded(hidden) - hidden) * sizeof(float));
            quantize(space.narrow, model->hidden, &space.rows, row);
        }
        apply(model, &space, &model->head, n_rows, logits + first * vocab, vocab, 0);
        for (int row = 0; row < n_rows && model->is_refined; row++)
            refine(model, states + (first + row) * hidden, logits + (first + row) * vocab);
    }
}
