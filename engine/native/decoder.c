/* Owns the decoder's forward pass on a CPU: whole layers, from residual to residual, over paged KV.
 *
 * Every row of a step is computed by the same operations in the same order, whatever stands beside
 * it: products are sums of integers, which are exact in any order, and all else runs row by row.
 * So one row and five hundred give the same bits, and a verify pass is a decode step.
 *
 * Weights are int8 (a scale a group of inputs, or an output) or int4 (a scale and a zero a group).
 * Activations are quantized to eight bits, row by row, with a scale for every GROUP of inputs: one
 * instruction then multiplies 64 weights, where sixteen bits took two, and eight rows are bound by
 * those. The few groups of a row that lie far above its others would err most: they have a second
 * line of eight bits for what the first one's rounding left. Residuals, norms, rotation and softmax
 * are fp32.
 *
 * The file is compiled once for each instruction set (see `build.py`); what a compiler flag turns
 * on is what is used. Whoever calls has checked shapes and types: `layout.py` does. What varies
 * from step to step is checked here. Nothing is allocated.
 */

#if defined(__x86_64__)
#include <cpuid.h>
#endif
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
#define STEP 4
#include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__)
#define AVX2 1
#define LANES 8
#ifdef __AVXVNNI__
#define AVXVNNI 1
#define STEP 4
#else
#define STEP 2
#endif
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#define NEON 1
#define LANES 4
#define STEP 4
#include <arm_neon.h>
#ifdef __linux__
#include <sys/auxv.h>
#endif
#else
#define LANES 4
#define STEP 4
#endif

#ifndef VNNI
#define VNNI 0
#endif
#ifndef AVX2
#define AVX2 0
#endif
#ifndef AVXVNNI
#define AVXVNNI 0
#endif
#ifndef NEON
#define NEON 0
#endif

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

enum {
    PANEL = 64,        /* outputs whose codes lie together */
    GROUP = 32,        /* inputs of a row that have a scale together */
    AHEAD = 16384,     /* bytes of weights that are asked for before they are multiplied */
    MOST_TOGETHER = VNNI || NEON || AVXVNNI ? 6 : AVX2 ? 4 : 1, /* rows that share a weight's reading */
    MOST_VECTORS = AVX2 ? 2 : 4, /* of outputs, whose sums lie in registers, for each of these rows */
    BLOCK_TOKENS = 16, /* tokens of a KV block, as in engine/types.py */
    MAX_ROWS = 64,     /* rows that pass through a layer together */
    PART_ROWS = 16,    /* of one sequence, that a thread attends for: each part reads its keys again */
    MAX_LINES = 2 * MAX_ROWS,
    MAX_HEAD = 256,    /* entries of a head */
    MAX_THREADS = 64,
    MOST_REFINED = 64, /* logits of a row that are computed again, as in engine/model.py */
};

/* Of a layer, in the order of engine/layer.py. */
enum { QKV, OUTPUT, GATE_UP, DOWN, PRODUCTS };

typedef enum { KV_PLAIN, KV_INT8 } KvFormat;

/* What may be wrong with a step, as `runner.py` spells it out. */
typedef enum { STEP_OK, BAD_ROWS, BAD_TOKEN, BAD_POSITION, BAD_SEQUENCE, BAD_BLOCK, BAD_LAYER } Fault;

/* Of weights: int8 with a scale an output; int8 or int4 with one for each group of inputs; int4 whose
 * zeros are all 0, which lie nowhere then. */
typedef enum { BY_OUTPUT, GROUPED8, GROUPED4, SYMMETRIC4 } Format;
INLINE int has_four_bits(int format) { return format >= GROUPED4; }

/* y = W x + bias. weights: of every panel and `group` inputs, in the order in which they are read,
 * bf16 scales [PANEL] (not BY_OUTPUT) and zeros [PANEL] (GROUPED4) of the outputs, and their codes
 * [group / STEP][PANEL][STEP]; int4: two of these steps a byte.
 * Outputs beyond n_out and inputs beyond n_in have zeros. */
typedef struct {
    const uint8_t *weights;
    const float *scale; /* [padded n_out] of BY_OUTPUT */
    const float *bias;
    int32_t n_in, n_out, group, format; /* group: inputs, a multiple of GROUP */
} Product;

typedef struct {
    Product qkv, output, gate_up, down;
    const float *input_norm, *post_norm, *q_norm, *k_norm; /* the last two or neither */
    const float *output_norm, *down_norm; /* behind attention and MLP; both or neither */
    const float *cos, *sin; /* tables: [positions][head_dim / 2] */
    uint8_t *kv_codes;   /* [blocks][BLOCK_TOKENS][k|v][kv heads][code] */
    uint16_t *kv_scales; /* bf16, one a code vector */
    int32_t window;
} Layer;

/* What adapters add to a product of their rows: y += up (down x), of each slot its own. */
typedef struct {
    const uint16_t *down, *up; /* bf16 [slots][rank][padded n_in], [slots][rank][padded n_out] */
    const int32_t *ranks;      /* [slots]: how much of `rank` is filled */
    int32_t rank;
} Change;

typedef struct {
    const Layer *layers;
    Product head;
    const uint16_t *embedding; /* bf16 [vocab][hidden] */
    const float *norm;
    uint8_t *workspace;
    struct Crew *crew; /* NULL: one thread */
    const Change *changes; /* [n_layers][PRODUCTS]; NULL: there are no adapters */
    int32_t n_layers, hidden, inner, n_heads, n_kv_heads, head_dim, vocab;
    int32_t n_positions, n_blocks, kv_format, n_refined, is_gelu, n_slots;
    float eps, embedding_scale;
} Model;

/* Rows of one sequence follow each other. tables: of all sequences, one after another. slots: of
 * their adapters, -1 of those without; NULL where none has one. */
typedef struct {
    const int32_t *tokens, *positions, *sequences; /* [n_rows] */
    const int32_t *tables, *table_starts;          /* [..], [n_sequences + 1] */
    const int32_t *slots;                          /* [n_sequences] */
    float *x;                                      /* residuals [n_rows][padded hidden] */
    int32_t n_rows, n_sequences;
} Step;

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef float vfu __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES), aligned(2)));

/* What a row's codes are multiplied as, STEP of them at once. */
#if AVX2 && !AVXVNNI
typedef int16_t Code;
typedef int16_t vc __attribute__((vector_size(2 * LANES), aligned(2)));
typedef __m256i Weights;
#else
typedef int8_t Code;
typedef int8_t vc __attribute__((vector_size(LANES), aligned(1)));
#if VNNI
typedef __m512i Weights;
#elif AVXVNNI
typedef __m256i Weights;
#elif NEON
typedef int8x16_t Weights;
#else
typedef struct {
    int8_t of[STEP * LANES];
} Weights;
#endif
#endif

INLINE size_t padded(size_t n) { return (n + PANEL - 1) / PANEL * PANEL; }
INLINE int groups_of(int n_in) { return (n_in + GROUP - 1) / GROUP; }
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

INLINE vf to_floats(vi v) { return __builtin_convertvector(v, vf); }

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

INLINE int32_t sum_of_ints(vi v) {
#if VNNI
    return _mm512_reduce_add_epi32((__m512i)v);
#else
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) sum += v[i];
    return sum;
#endif
}

INLINE int32_t largest_int(vi v) {
#if VNNI
    return _mm512_reduce_max_epi32((__m512i)v);
#else
    int32_t most = v[0];
    for (int i = 1; i < LANES; i++) most = v[i] > most ? v[i] : most;
    return most;
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

/* Rows as integers. Of each row a group of inputs has a line of codes, x ~ code * scale, and where
 * it lies far above the row's others a second one, which adds what the first left out. */
typedef struct {
    Code *codes;      /* [groups][2 * n_rows][GROUP] */
    float *scale;     /* [groups][2 * n_rows] */
    int32_t *starts;  /* likewise: what its sums start from, for the OFFSET of the weights */
    float *weighted;  /* likewise: the sum of the codes times their scale, for the zeros of int4 */
    uint8_t *row_of;  /* likewise */
    uint8_t *n_lines; /* [groups]: first those of all rows, in order, then second ones */
    int32_t n_rows;
} Rows;

/* What is added to int8 codes where they are packed. */
#if VNNI || AVXVNNI
enum { OFFSET = 128 }; /* the instruction multiplies unsigned by signed */
#else
enum { OFFSET = 0 };
#endif

/* How far above the middle of its row's groups a group's largest number lies that has two lines:
 * of SmolLM2's groups one in six, which had four fifths of all that rounding cost (benchmarks/LOG.md). */
#define FAR_ABOVE 1.75f
#define SECOND 254.0f /* by so much finer a second line is: what is left is half a step at most */

/* What MAX_ROWS rows of so many inputs take, a multiple of PANEL. */
INLINE size_t row_bytes(size_t n_in) {
    const size_t n_lines = MAX_LINES * n_in / GROUP;
    return n_lines * (GROUP * sizeof(Code) + 3 * sizeof(float) + 1) + n_in / GROUP;
}

static Rows rows_at(uint8_t *at, size_t n_in) {
    const size_t n_lines = MAX_LINES * n_in / GROUP;
    Rows rows = {.codes = (Code *)at};
    rows.scale = (float *)(rows.codes + n_lines * GROUP);
    rows.starts = (int32_t *)(rows.scale + n_lines);
    rows.weighted = (float *)(rows.starts + n_lines);
    rows.row_of = (uint8_t *)(rows.weighted + n_lines);
    rows.n_lines = rows.row_of + n_lines;
    return rows;
}

/* Make room for n_rows rows of n inputs, which `quantize` then fills in order. */
static void expect_rows(Rows *rows, int n, int n_rows) {
    rows->n_rows = n_rows;
    memset(rows->n_lines, n_rows, padded(n) / GROUP);
}

/* Sizes of floats above 0 are in the order of their bits; infinity and NaN lie above all. */
INLINE int32_t largest_bits(const float *x) {
    vi most = {0};
    for (int i = 0; i < GROUP; i += LANES) {
        vi size = (vi)load(x + i) & 0x7fffffff, more = size > most;
        most = (more & size) | (~more & most);
    }
    return largest_int(most);
}

INLINE float float_of(int32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE void finish_line(const Rows *rows, size_t line, int row, vi sum, float scale) {
    const int32_t total = sum_of_ints(sum);
    rows->scale[line] = scale; /* NaN and infinity go on through it */
    rows->starts[line] = -OFFSET * total;
    rows->weighted[line] = (float)total * scale;
    rows->row_of[line] = (uint8_t)row;
}

/* x: [n], zeros up to the next multiple of PANEL. */
static void quantize(const float *x, int n, const Rows *rows, int row) {
    const size_t n_groups = padded(n) / GROUP, pitch = 2 * rows->n_rows;
    int64_t bits = 0, n_above = 0;
    for (size_t g = 0; g < n_groups; g++) {
        int32_t most = largest_bits(x + g * GROUP);
        if (float_of(most) > 1e-30f) bits += most, n_above++; /* what is smaller counts as nothing */
        rows->scale[g * pitch + row] = float_of(most);
    }
    /* The mean of bits is about that of logarithms: a few groups far above hardly move it. */
    const float far = FAR_ABOVE * float_of(n_above ? (int32_t)(bits / n_above) : 0);
    for (size_t g = 0; g < n_groups; g++) {
        const float *from = x + g * GROUP;
        const size_t line = g * pitch + row;
        const float largest = rows->scale[line], inverse = largest > 1e-30f ? 127.0f / largest : 0;
        const int is_far = largest > far;
        /* Rows may be quantized by several threads; in which order second lines stand has no bearing. */
        const size_t second = g * pitch + (is_far ? __atomic_fetch_add(rows->n_lines + g, 1, __ATOMIC_RELAXED) : 0);
        Code *to = rows->codes + line * GROUP, *rest = rows->codes + second * GROUP;
        vi sum = {0}, sum_rest = {0};
        for (int i = 0; i < GROUP; i += LANES) {
            vf value = load(from + i) * inverse, shifted = value + ROUNDER;
            vi code = (vi)shifted - (vi)splat(ROUNDER);
            sum += code;
            *(vc *)(to + i) = __builtin_convertvector(code, vc);
            if (!is_far) continue;
            code = (vi)((value - (shifted - ROUNDER)) * SECOND + ROUNDER) - (vi)splat(ROUNDER);
            sum_rest += code;
            *(vc *)(rest + i) = __builtin_convertvector(code, vc);
        }
        finish_line(rows, line, row, sum, largest / 127.0f);
        if (!is_far) continue;
        finish_line(rows, second, row, sum_rest, largest / (127.0f * SECOND));
    }
}

/* STEP codes of each of LANES outputs; of int4 a byte holds a code of this step and of the next. */
INLINE Weights weights_at(int is_int4, int is_second, const uint8_t *from) {
#if VNNI
    __m512i codes = _mm512_loadu_si512(from);
    if (is_second) codes = _mm512_srli_epi16(codes, 4);
    return is_int4 ? _mm512_and_si512(codes, _mm512_set1_epi8(15)) : codes;
#elif AVXVNNI
    __m256i codes = _mm256_loadu_si256((const __m256i *)from);
    if (is_second) codes = _mm256_srli_epi16(codes, 4);
    return is_int4 ? _mm256_and_si256(codes, _mm256_set1_epi8(15)) : codes;
#elif AVX2
    __m128i codes = _mm_loadu_si128((const __m128i *)from);
    if (is_second) codes = _mm_srli_epi16(codes, 4);
    return _mm256_cvtepi8_epi16(is_int4 ? _mm_and_si128(codes, _mm_set1_epi8(15)) : codes);
#elif NEON
    uint8x16_t codes = vld1q_u8(from);
    if (is_second) codes = vshrq_n_u8(codes, 4);
    else if (is_int4) codes = vandq_u8(codes, vdupq_n_u8(15));
    return vreinterpretq_s8_u8(codes);
#else
    Weights codes;
    for (int i = 0; i < STEP * LANES; i++)
        codes.of[i] = (int8_t)(is_second ? from[i] >> 4 : is_int4 ? from[i] & 15 : from[i]);
    return codes;
#endif
}

/* sum[i] += the dot of output i's codes with a row's STEP codes at `from`. Exact. */
INLINE vi add_dots(vi sum, Weights weights, const Code *from) {
#if VNNI || AVX2 || NEON
    int32_t step;
    memcpy(&step, from, sizeof step);
#endif
#if VNNI
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, weights, _mm512_set1_epi32(step));
#elif AVXVNNI
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, weights, _mm256_set1_epi32(step));
#elif AVX2
    return (vi)_mm256_add_epi32((__m256i)sum, _mm256_madd_epi16(weights, _mm256_set1_epi32(step)));
#elif NEON
    return (vi)vdotq_s32((int32x4_t)sum, weights, vreinterpretq_s8_s32(vdupq_n_s32(step)));
#else
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < STEP; j++) sum[i] += weights.of[STEP * i + j] * from[j];
    return sum;
#endif
}

/* Add what one group of inputs gives M lines and T vectors of outputs to their rows' totals.
 *
 * Every weight is read, and widened, once for the M lines, whose sums are the same for any M.
 * codes, scales, zeros: of these outputs; first: of the lines; totals: [rows][PANEL]. */
INLINE void add_group(int M, int T, Format format, const uint8_t *codes, const uint16_t *scales,
                      const uint16_t *zeros, const Rows *rows, size_t first, float *totals) {
    const int is_int4 = has_four_bits(format);
    const Code *x = rows->codes + first * GROUP;
    vi sums[MOST_TOGETHER][MOST_VECTORS];
#pragma GCC unroll 6
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) sums[m][t] = (is_int4 ? 0 : rows->starts[first + m]) - (vi){0};
    for (int k = 0; k < GROUP / STEP; k += 2)
#pragma GCC unroll 2
        for (int second = 0; second < 2; second++) {
            const uint8_t *at = codes + (size_t)(is_int4 ? k / 2 : k + second) * PANEL * STEP;
            Weights weights[MOST_VECTORS];
#pragma GCC unroll 4
            for (int t = 0; t < T; t++)
                weights[t] = weights_at(is_int4, is_int4 && second, at + t * LANES * STEP);
#pragma GCC unroll 6
            for (int m = 0; m < M; m++) {
                const Code *step = x + m * GROUP + (k + second) * STEP;
#pragma GCC unroll 4
                for (int t = 0; t < T; t++) sums[m][t] = add_dots(sums[m][t], weights[t], step);
            }
        }
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) {
        vf scale = {0}, zero = {0};
        if (format != BY_OUTPUT) scale = from_bf16s(scales + t * LANES);
        if (is_int4) zero = scale * -8.0f;
        if (format == GROUPED4) zero = muladd(scale, splat(-8), from_bf16s(zeros + t * LANES));
#pragma GCC unroll 6
        for (int m = 0; m < M; m++) {
            float *total = totals + rows->row_of[first + m] * PANEL + t * LANES;
            vf by = splat(rows->scale[first + m]), sum = to_floats(sums[m][t]);
            vf value = muladd(sum, format == BY_OUTPUT ? by : by * scale, load(total));
            if (is_int4) value = muladd(splat(rows->weighted[first + m]), zero, value);
            store(total, value);
        }
    }
}

/* y [rows][stride] = W x + bias of quantized rows, or added to what is there. */
typedef struct {
    const Product *product;
    const Rows *rows;
    float *y;
    size_t stride;
    int adds;
} Multiplication;

/* Of a panel's weights the bytes of a group's scales and zeros, of GROUP inputs' codes, of all. */
INLINE size_t scale_bytes(Format format) {
    const size_t each = PANEL * sizeof(uint16_t);
    return format == GROUPED4 ? 2 * each : format == BY_OUTPUT ? 0 : each;
}
INLINE size_t group_bytes(Format format) { return (size_t)GROUP * PANEL >> has_four_bits(format); }
INLINE size_t panel_bytes(int n_in, int group, Format format) {
    const size_t n_groups = groups_of(n_in), n_shared = group / GROUP;
    return n_groups * group_bytes(format) + (n_groups + n_shared - 1) / n_shared * scale_bytes(format);
}

/* Group by group, so that a weight leaves memory once, however many rows there are. */
INLINE void multiply_as(Format format, const Multiplication *m, int panel) {
    const Product *p = m->product;
    const Rows *rows = m->rows;
    const int n_groups = groups_of(p->n_in), n_shared = p->group / GROUP;
    const size_t n_bytes = group_bytes(format), column = (size_t)panel * PANEL;
    const uint8_t *at = p->weights + panel * panel_bytes(p->n_in, p->group, format);
    const uint16_t *scales = NULL;
    float totals[MAX_ROWS * PANEL] __attribute__((aligned(64)));
    memset(totals, 0, rows->n_rows * PANEL * sizeof(float));
    for (int g = 0; g < n_groups; g++, at += n_bytes) {
        const size_t n_first = g % n_shared == 0 ? scale_bytes(format) : 0;
        /* Memory would stand still during the arithmetic of several rows, if it were not asked
         * ahead. One row's is too short for that, and asking only delays it; but it asks in order. */
        if (rows->n_rows > 1)
            for (size_t i = 0; i < n_first + n_bytes; i += 64) __builtin_prefetch(at + AHEAD + i, 0, 2);
        else
            for (size_t i = 0; i < n_first; i += 64) __builtin_prefetch(at + i, 0, 3);
        if (n_first) scales = (const uint16_t *)(const void *)at, at += n_first;
        size_t line = 2 * (size_t)rows->n_rows * g;
        for (int n_left = rows->n_lines[g], n; n_left; n_left -= n, line += n) {
            n = n_left;
            if (n > MOST_TOGETHER) { /* parts as equal as can be */
                int n_parts = (n_left + MOST_TOGETHER - 1) / MOST_TOGETHER;
                n = (n_left + n_parts - 1) / n_parts;
            }
#define TOGETHER(M) \
    case M: \
        for (int i = 0; M <= MOST_TOGETHER && i < PANEL; i += MOST_VECTORS * LANES) \
            add_group(M, MOST_VECTORS, format, at + i * STEP, scales + i, scales + PANEL + i, rows, \
                      line, totals + i); \
        break
            switch (n) {
                TOGETHER(1);
                TOGETHER(2);
                TOGETHER(3);
                TOGETHER(4);
                TOGETHER(5);
                TOGETHER(6);
            }
#undef TOGETHER
        }
    }
    for (int row = 0; row < rows->n_rows; row++)
        for (int i = 0; i < PANEL; i += LANES) {
            float *to = m->y + row * m->stride + column + i;
            vf value = load(totals + row * PANEL + i);
            if (format == BY_OUTPUT) value *= load(p->scale + column + i);
            if (p->bias) value += load(p->bias + column + i);
            store(to, m->adds ? load(to) + value : value);
        }
}

static void multiply_panel(void *context, int panel, int thread) {
    const Multiplication *m = context;
    (void)thread;
    switch (m->product->format) {
    case BY_OUTPUT: multiply_as(BY_OUTPUT, m, panel); break;
    case GROUPED8: multiply_as(GROUPED8, m, panel); break;
    case SYMMETRIC4: multiply_as(SYMMETRIC4, m, panel); break;
    default: multiply_as(GROUPED4, m, panel);
    }
}

static void multiply(Crew *crew, const Multiplication *m) {
    int n_panels = (int)(padded(m->product->n_out) / PANEL);
    size_t n_products = (size_t)n_panels * PANEL * m->product->n_in * m->rows->n_rows;
    share(crew, multiply_panel, (void *)m, n_panels, n_products);
}

/* -- keys and values --------------------------------------------------------------------------- */

INLINE size_t code_bytes(const Model *model) {
    size_t n = (size_t)model->head_dim;
    return model->kv_format == KV_PLAIN ? 2 * n : n;
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
    float largest = 1e-12f;
    for (int i = 0; i < n; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    layer->kv_scales[vector] = to_bf16(largest / 127);
    float inverse = 1.0f / from_bf16(layer->kv_scales[vector]);
    for (int i = 0; i < n; i++) {
        float scaled = rintf(x[i] * inverse);
        ((int8_t *)codes)[i] = (int8_t)(scaled > 127 ? 127 : scaled < -127 ? -127 : scaled);
    }
}

static void decode_scaled(const Model *model, const Layer *layer, size_t vector, float *x) {
    const int8_t *codes = (const int8_t *)layer->kv_codes + vector * model->head_dim;
    float scale = from_bf16(layer->kv_scales[vector]);
    for (int i = 0; i < model->head_dim; i++) x[i] = (float)codes[i] * scale;
}

/* Tokens low..high - 1 of a block as fp32: x [BLOCK_TOKENS][stride]. */
static void decode(const Model *model, const Layer *layer, size_t slot, int is_value, int head,
                   int low, int high, int stride, float *x) {
    for (int t = low; t < high; t++) {
        size_t vector = vector_of(model, slot + t, is_value, head);
        if (model->kv_format != KV_PLAIN) {
            decode_scaled(model, layer, vector, x + t * stride);
            continue;
        }
        const uint16_t *halves = (const uint16_t *)layer->kv_codes + vector * model->head_dim;
        for (int i = 0; i < model->head_dim; i++) x[t * stride + i] = from_bf16(halves[i]);
    }
}

/* -- attention --------------------------------------------------------------------------------- */

/* Entries of a head that are worked on together. Where bf16 are read as they lie, two to a 32-bit
 * word, a pair of vectors holds the even ones and the odd ones, and so do queries and sums. */
enum {
    PAIR = 2 * LANES,
    CHUNK_BLOCKS = 4, /* whose scores have one softmax together */
    CHUNK = CHUNK_BLOCKS * BLOCK_TOKENS,
    MOST_QUERIES = VNNI || NEON ? 4 : 2, /* of a row, that share the reading of a key */
};

INLINE int head_stride(const Model *model) { return (model->head_dim + PAIR - 1) / PAIR * PAIR; }
INLINE int is_read_direct(const Model *model) {
    return model->kv_format == KV_PLAIN && model->head_dim % PAIR == 0;
}

/* From the order of a head's entries to that of pairs, and back with a factor. n: of a head. */
INLINE void to_pairs(const float *x, int n, float factor, float *out) {
    for (int i = 0; i < n; i += PAIR)
        for (int j = 0; j < LANES; j++) {
            out[i + j] = x[i + 2 * j] * factor;
            out[i + LANES + j] = x[i + 2 * j + 1] * factor;
        }
}

INLINE void from_pairs(const float *x, int n, float factor, float *out) {
    for (int i = 0; i < n; i += PAIR)
        for (int j = 0; j < LANES; j++) {
            out[i + 2 * j] = x[i + j] * factor;
            out[i + 2 * j + 1] = x[i + LANES + j] * factor;
        }
}

/* A row and head under way: the softmax so far is sums / weights, its exponents less `most`. */
typedef struct {
    float most;
    float weights[BLOCK_TOKENS]; /* of tokens by their place in a block */
    float sums[MAX_HEAD];
} Partial;

/* Keys or values of one head by blocks: of each its first token, and the bytes to the next one. */
typedef struct {
    const uint8_t *blocks[CHUNK_BLOCKS];
    size_t pitch;
} Vectors;

INLINE void load_pair(int is_direct, const uint8_t *vector, int i, vf *first, vf *second) {
    if (is_direct) {
        vi words = (vi)load((const float *)(const void *)(vector + 2 * i));
        *first = (vf)(words << 16), *second = (vf)(words & ~0xffff);
    } else {
        *first = load((const float *)(const void *)vector + i);
        *second = load((const float *)(const void *)vector + i + LANES);
    }
}

/* scores[q][t] = queries[q] . keys[t] for a block's tokens. keys: the first; queries: [N][stride]. */
INLINE void score(int N, int is_direct, const float *queries, const uint8_t *keys, size_t pitch,
                  int stride, float scores[][CHUNK]) {
    enum { QUAD = 4 };
#if VNNI
    __m512 parts[MOST_QUERIES][BLOCK_TOKENS / QUAD];
#endif
    for (int quad = 0; quad < BLOCK_TOKENS / QUAD; quad++) {
        vf sums[MOST_QUERIES][QUAD];
#pragma GCC unroll 4
        for (int q = 0; q < N; q++)
#pragma GCC unroll 4
            for (int t = 0; t < QUAD; t++) sums[q][t] = (vf){0};
        for (int i = 0; i < stride; i += PAIR)
#pragma GCC unroll 4
            for (int t = 0; t < QUAD; t++) {
                vf first, second;
                load_pair(is_direct, keys + (quad * QUAD + t) * pitch, i, &first, &second);
#pragma GCC unroll 4
                for (int q = 0; q < N; q++) {
                    const float *query = queries + q * stride + i;
                    sums[q][t] = muladd(load(query), first, sums[q][t]);
                    sums[q][t] = muladd(load(query + LANES), second, sums[q][t]);
                }
            }
#pragma GCC unroll 4
        for (int q = 0; q < N; q++) {
#if VNNI
            /* Each pass halves the vectors and doubles what a lane holds. */
            __m512 *s = (__m512 *)sums[q];
            __m512 low = _mm512_add_ps(_mm512_unpacklo_ps(s[0], s[2]), _mm512_unpackhi_ps(s[0], s[2]));
            __m512 high = _mm512_add_ps(_mm512_unpacklo_ps(s[1], s[3]), _mm512_unpackhi_ps(s[1], s[3]));
            parts[q][quad] = _mm512_add_ps(_mm512_unpacklo_ps(low, high), _mm512_unpackhi_ps(low, high));
#else
            for (int t = 0; t < QUAD; t++) scores[q][quad * QUAD + t] = sum_of(sums[q][t]);
#endif
        }
    }
#if VNNI
#pragma GCC unroll 4
    for (int q = 0; q < N; q++) { /* of each of four quads four parts in four lanes */
        __m512 *p = parts[q];
        __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(p[0], p[1], 0x88), _mm512_shuffle_f32x4(p[0], p[1], 0xdd));
        __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(p[2], p[3], 0x88), _mm512_shuffle_f32x4(p[2], p[3], 0xdd));
        _mm512_storeu_ps(scores[q], _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88),
                                                  _mm512_shuffle_f32x4(low, high, 0xdd)));
    }
#endif
}

/* Scores low..high - 1 of a chunk become weights, the others 0; what is there so far is shrunk to
 * the largest of all. */
INLINE void soften(Partial *partial, float *scores, int stride, int low, int high) {
    static const int32_t places[BLOCK_TOKENS] __attribute__((aligned(64))) = {
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int first = low / BLOCK_TOKENS * BLOCK_TOKENS;
    vi seen[CHUNK / LANES];
    vf largest = splat(partial->most);
    for (int i = first; i < high; i += LANES) {
        vi place = *(const vi *)(const void *)(places + i % BLOCK_TOKENS) + (i - i % BLOCK_TOKENS);
        seen[i / LANES] = (place >= low) & (place < high);
        largest = larger(largest, pick(seen[i / LANES], load(scores + i), largest));
    }
    const float most = largest_of(largest);
    if (most > partial->most) {
        vf shrunk = exponential(splat(partial->most - most)); /* -inf at first: of zero sums */
        for (int i = 0; i < BLOCK_TOKENS; i += LANES)
            store(partial->weights + i, load(partial->weights + i) * shrunk);
        for (int i = 0; i < stride; i += LANES)
            store(partial->sums + i, load(partial->sums + i) * shrunk);
        partial->most = most;
    }
    for (int i = first; i < high; i += LANES) {
        float *weights = partial->weights + i % BLOCK_TOKENS;
        vf weight = pick(seen[i / LANES], exponential(load(scores + i) - most), splat(0));
        store(scores + i, weight);
        store(weights, load(weights) + weight);
    }
}

/* sums[q] += weights[q][t] * values[t] over t = low..high - 1, of P pairs from entry i on. */
INLINE void weigh(int N, int P, int is_direct, float weights[][CHUNK], const Vectors *values, int i,
                  int low, int high, Partial *partials) {
    vf sums[MOST_QUERIES][4];
#pragma GCC unroll 4
    for (int q = 0; q < N; q++)
#pragma GCC unroll 4
        for (int v = 0; v < 2 * P; v++) sums[q][v] = load(partials[q].sums + i + v * LANES);
    for (int t = low; t < high; t++) {
        const uint8_t *value = values->blocks[t / BLOCK_TOKENS] + t % BLOCK_TOKENS * values->pitch;
        vf parts[4];
#pragma GCC unroll 2
        for (int p = 0; p < P; p++)
            load_pair(is_direct, value, i + p * PAIR, parts + 2 * p, parts + 2 * p + 1);
#pragma GCC unroll 4
        for (int q = 0; q < N; q++) {
            vf weight = splat(weights[q][t]);
#pragma GCC unroll 4
            for (int v = 0; v < 2 * P; v++) sums[q][v] = muladd(parts[v], weight, sums[q][v]);
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < N; q++)
#pragma GCC unroll 4
        for (int v = 0; v < 2 * P; v++) store(partials[q].sums + i + v * LANES, sums[q][v]);
}

/* Ask for a block's vectors of bf16, which lie apart, before they are read. */
INLINE void fetch(const uint8_t *block, size_t pitch, int stride) {
    for (int t = 0; t < BLOCK_TOKENS; t++)
        for (int i = 0; i < 2 * stride; i += 64) __builtin_prefetch(block + t * pitch + i);
}

/* Take a chunk's tokens low..high - 1 into the softmax of N queries of one row. is_first: whether
 * nobody has read them in this step. */
INLINE void take(int N, int is_direct, int is_first, Partial *partials, const float *queries,
                 const Vectors *keys, const Vectors *values, int stride, int low, int high) {
    float scores[MOST_QUERIES][CHUNK] __attribute__((aligned(64)));
    for (int block = low / BLOCK_TOKENS; block * BLOCK_TOKENS < high; block++) {
        if (is_direct && is_first) {
            if ((block + 1) * BLOCK_TOKENS < high) fetch(keys->blocks[block + 1], keys->pitch, stride);
            fetch(values->blocks[block], values->pitch, stride);
        }
        score(N, is_direct, queries, keys->blocks[block], keys->pitch, stride,
              (float(*)[CHUNK])(scores[0] + block * BLOCK_TOKENS));
    }
    for (int q = 0; q < N; q++) soften(partials + q, scores[q], stride, low, high);
    int i = 0;
    for (; i + 2 * PAIR <= stride; i += 2 * PAIR)
        weigh(N, 2, is_direct, scores, values, i, low, high, partials);
    for (; i < stride; i += PAIR) weigh(N, 1, is_direct, scores, values, i, low, high, partials);
}

typedef struct {
    Rows rows;
    float *wide;        /* [MAX_ROWS][widest product] */
    float *narrow;      /* [MAX_ROWS][widest input] */
    float *queries;     /* [MAX_ROWS][heads][head stride] */
    float *keys, *values; /* [threads][CHUNK][head stride] */
    Partial *partials;  /* [KV heads][MAX_ROWS][heads of a KV head] */
    float *inner;         /* [MAX_ROWS][the adapters' rank], where there are any */
    size_t n_bytes;
} Space;

/* Rows first..last - 1 of one sequence over its KV: out [rows][out_stride], heads side by side.
 * base: the first row of those in `space` and `out`. */
typedef struct {
    const Model *model;
    const Layer *layer;
    const Step *step;
    const Space *space;
    float *out;
    size_t out_stride;
    int base, first, last, n_together; /* rows of an item */
} Attention;

/* One KV head's keys and values of a chunk's blocks: as they lie, or decoded into `space`. */
INLINE void find_chunk(const Attention *a, int head, int thread, const int32_t *table, int begin,
                       int end, int start, int is_direct, Vectors *keys, Vectors *values) {
    const Model *model = a->model;
    const int stride = head_stride(model), first = begin > start ? (begin - start) / BLOCK_TOKENS : 0;
    const size_t scratch = (size_t)thread * CHUNK * stride;
    keys->pitch = values->pitch =
        is_direct ? 2 * model->n_kv_heads * code_bytes(model) : stride * sizeof(float);
    for (int block = first; block < CHUNK_BLOCKS && start + block * BLOCK_TOKENS < end; block++) {
        int at = start + block * BLOCK_TOKENS, low = begin > at ? begin - at : 0;
        int high = end - at < BLOCK_TOKENS ? end - at : BLOCK_TOKENS;
        size_t slot = (size_t)table[at / BLOCK_TOKENS] * BLOCK_TOKENS;
        if (is_direct) {
            keys->blocks[block] = a->layer->kv_codes + vector_of(model, slot, 0, head) * code_bytes(model);
            values->blocks[block] = a->layer->kv_codes + vector_of(model, slot, 1, head) * code_bytes(model);
            continue;
        }
        float *k = a->space->keys + scratch + block * BLOCK_TOKENS * stride;
        float *v = a->space->values + scratch + block * BLOCK_TOKENS * stride;
        decode(model, a->layer, slot, 0, head, low, high, stride, k);
        decode(model, a->layer, slot, 1, head, low, high, stride, v);
        keys->blocks[block] = (const uint8_t *)k, values->blocks[block] = (const uint8_t *)v;
    }
}

INLINE void attend_as(int is_direct, const Attention *a, int head, int first, int last, int thread) {
    const Model *model = a->model;
    const Step *step = a->step;
    int stride = head_stride(model), group = model->n_heads / model->n_kv_heads;
    int window = a->layer->window;
    const int most = is_direct ? MOST_QUERIES : 1;
    const int32_t *table = step->tables + step->table_starts[step->sequences[first]];
    int begin = step->positions[first] + 1 - window, end = step->positions[last - 1] + 1;
    if (!window || begin < 0) begin = 0;
    Partial *partials = a->space->partials + ((size_t)head * MAX_ROWS + first - a->base) * group;
    for (int i = 0; i < (last - first) * group; i++) {
        partials[i].most = -INFINITY;
        memset(partials[i].weights, 0, sizeof partials[i].weights);
        memset(partials[i].sums, 0, stride * sizeof(float));
    }
    for (int start = begin / CHUNK * CHUNK; start < end; start += CHUNK) {
        Vectors keys, values;
        find_chunk(a, head, thread, table, begin, end, start, is_direct, &keys, &values);
        for (int row = first; row < last; row++) {
            int position = step->positions[row], low = 0;
            int high = position + 1 - start < CHUNK ? position + 1 - start : CHUNK;
            if (window && position + 1 - window > start) low = position + 1 - window - start;
            if (low >= high) continue;
            const float *queries =
                a->space->queries + ((size_t)(row - a->base) * model->n_heads + head * group) * stride;
            Partial *own = partials + (row - first) * group;
            for (int g = 0, n; g < group; g += n, queries += n * stride, own += n) {
                n = group - g < most ? group - g : most;
#define TAKE(N) \
    case N: \
        take(N <= most ? N : 1, is_direct, row == first && !g, own, queries, &keys, &values, stride, low, high); \
        break
                switch (n) {
                    TAKE(1);
                    TAKE(2);
                    TAKE(3);
                    TAKE(4);
                }
#undef TAKE
            }
        }
    }
    for (int row = first; row < last; row++)
        for (int g = 0; g < group; g++) {
            const Partial *partial = partials + (row - first) * group + g;
            float *to = a->out + (row - a->base) * a->out_stride + (head * group + g) * model->head_dim;
            vf weight = {0};
            for (int i = 0; i < BLOCK_TOKENS; i += LANES) weight += load(partial->weights + i);
            float inverse = 1.0f / sum_of(weight);
            if (is_direct) from_pairs(partial->sums, model->head_dim, inverse, to);
            else
                for (int i = 0; i < model->head_dim; i++) to[i] = partial->sums[i] * inverse;
        }
}

/* One KV head of some of the rows: of few heads there are too few for many threads. */
static void attend_part(void *context, int item, int thread) {
    const Attention *a = context;
    const int head = item % a->model->n_kv_heads, first = a->first + item / a->model->n_kv_heads * a->n_together;
    const int last = first + a->n_together < a->last ? first + a->n_together : a->last;
    if (is_read_direct(a->model)) attend_as(1, a, head, first, last, thread);
    else attend_as(0, a, head, first, last, thread);
}

static void attend(const Attention *a) {
    const Model *model = a->model;
    size_t n_tokens = (size_t)a->step->positions[a->last - 1] + 1, n_rows = a->last - a->first;
    size_t n_bytes = n_tokens * n_rows * model->n_heads * model->head_dim * 4;
    const int n_parts = ((int)n_rows + a->n_together - 1) / a->n_together;
    share(model->crew, attend_part, (void *)a, n_parts * model->n_kv_heads, n_bytes);
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
static void turn(const Model *model, const Layer *layer, float *x, const float *weight, int position) {
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
    const float *cos = layer->cos + (size_t)position * half, *sin = layer->sin + (size_t)position * half;
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
    }
}

/* A layer's work between its products, a row an item: `first` is row 0 of `space`. */
typedef struct {
    const Model *model;
    const Layer *layer;
    const Step *step;
    const Space *space;
    const float *weight; /* of the norm */
    size_t stride;       /* of what is read */
    int first;
} Between;

/* Do it for all rows. n: entries of a row that are worked on, each about so long as a byte is read. */
static void share_rows(const Between *between, Work work, int n_rows, size_t n) {
    share(between->model->crew, work, (void *)between, n_rows, 16 * n * n_rows);
}

/* A row's norm, quantized. */
static void norm_row(void *context, int row, int thread) {
    const Between *b = context;
    const int n = b->model->hidden;
    float *to = b->space->narrow + row * padded(n);
    (void)thread;
    norm(b->step->x + (b->first + row) * padded(n), b->weight, n, b->model->eps, to);
    quantize(to, n, &b->space->rows, row);
}

/* A row's queries, keys and values; keys and values go into their slot. */
static void project_row(void *context, int row, int thread) {
    const Between *b = context;
    const Model *model = b->model;
    const Layer *layer = b->layer;
    const Step *step = b->step;
    const int n = model->head_dim, stride = head_stride(model), position = step->positions[b->first + row];
    const float scale = 1.0f / sqrtf((float)n);
    float *qkv = b->space->wide + row * b->stride;
    (void)thread;
    for (int head = 0; head < model->n_heads; head++) {
        float *to = b->space->queries + ((size_t)row * model->n_heads + head) * stride;
        turn(model, layer, qkv + head * n, layer->q_norm, position);
        if (is_read_direct(model)) to_pairs(qkv + head * n, n, scale, to);
        else
            for (int i = 0; i < n; i++) to[i] = qkv[head * n + i] * scale;
    }
    const int32_t *table = step->tables + step->table_starts[step->sequences[b->first + row]];
    size_t slot = (size_t)table[position / BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS;
    float *keys = qkv + model->n_heads * n, *values = keys + model->n_kv_heads * n;
    for (int head = 0; head < model->n_kv_heads; head++) {
        turn(model, layer, keys + head * n, layer->k_norm, position);
        encode(model, layer, vector_of(model, slot, 0, head), keys + head * n);
        encode(model, layer, vector_of(model, slot, 1, head), values + head * n);
    }
}

/* What attention gave a row, quantized. */
static void mixed_row(void *context, int row, int thread) {
    const Between *b = context;
    const size_t n = b->model->n_heads * b->model->head_dim;
    float *mixed = b->space->narrow + row * b->stride;
    (void)thread;
    memset(mixed + n, 0, (b->stride - n) * sizeof(float));
    quantize(mixed, (int)n, &b->space->rows, row);
}

/* SiLU, or GELU by its tanh form: g / (1 + exp(-2 z)) with z = sqrt(2 / pi) (g + 0.044715 g^3). */
INLINE vf activate(vf g, int is_gelu) {
    vf z = is_gelu ? g * muladd(g * g, splat(0.0713548163f), splat(1.5957691216f)) : g;
    return g / (exponential(-z) + 1.0f);
}

/* A row's SwiGLU, or its like with GELU, quantized. */
static void gated_row(void *context, int row, int thread) {
    const Between *b = context;
    const int inner = b->model->inner;
    const float *gate = b->space->wide + row * b->stride, *up = gate + inner;
    float *to = b->space->narrow + row * padded(inner);
    (void)thread;
    for (int i = 0; i < inner; i += LANES)
        store(to + i, activate(load(gate + i), b->model->is_gelu) * load(up + i));
    memset(to + inner, 0, (padded(inner) - inner) * sizeof(float));
    quantize(to, inner, &b->space->rows, row);
}

/* A product of the rows that lie quantized in `space`. */
static void apply(const Model *model, const Space *space, const Product *product, float *y,
                  size_t stride, int adds) {
    multiply(model->crew, &(Multiplication){product, &space->rows, y, stride, adds});
}

/* Rows of one sequence, and what its adapter adds to a product of them. */
typedef struct {
    const uint16_t *down, *up;
    const float *x;
    float *y, *inner;
    size_t n_in, n_out, x_stride, y_stride; /* padded */
    int n_rows, rank;
} Adding;

enum { ADDED_TOGETHER = 4 }; /* rows that share the reading of an adapter; each has sums of its own */

INLINE void down_rows(const Adding *a, int N, int r, int row) {
    const uint16_t *down = a->down + r * a->n_in;
    const float *x = a->x + row * a->x_stride;
    vf sums[ADDED_TOGETHER] = {{0}};
    for (size_t i = 0; i < a->n_in; i += LANES) {
        vf weight = from_bf16s(down + i);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) sums[n] = muladd(load(x + n * a->x_stride + i), weight, sums[n]);
    }
    for (int n = 0; n < N; n++) a->inner[(row + n) * a->rank + r] = sum_of(sums[n]);
}

INLINE void up_rows(const Adding *a, int N, size_t i, int row) {
    const float *inner = a->inner + row * a->rank;
    float *y = a->y + row * a->y_stride + i;
    vf totals[ADDED_TOGETHER];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) totals[n] = load(y + n * a->y_stride);
    for (int r = 0; r < a->rank; r++) {
        vf weight = from_bf16s(a->up + r * a->n_out + i);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) totals[n] = muladd(splat(inner[n * a->rank + r]), weight, totals[n]);
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) store(y + n * a->y_stride, totals[n]);
}

#define BY_ROWS(rows_of, at) \
    for (int row = 0, left = a->n_rows; left > 0; row += ADDED_TOGETHER, left -= ADDED_TOGETHER) \
        switch (left) { \
        case 1: rows_of(a, 1, at, row); break; \
        case 2: rows_of(a, 2, at, row); break; \
        case 3: rows_of(a, 3, at, row); break; \
        default: rows_of(a, 4, at, row); \
        }

static void add_down(void *context, int r, int thread) {
    const Adding *a = context;
    (void)thread;
    BY_ROWS(down_rows, r)
}

static void add_up(void *context, int panel, int thread) {
    const Adding *a = context;
    (void)thread;
    for (size_t i = (size_t)panel * PANEL; i < ((size_t)panel + 1) * PANEL; i += LANES) BY_ROWS(up_rows, i)
}
#undef BY_ROWS

/* Add to a product of rows first..last - 1 what their adapters ask for. The rows lie in `narrow` as
 * they were quantized; both strides are of floats. */
static void add_changes(const Model *model, const Layer *layer, const Step *step, int first, int last,
                        int which, const Product *product, const Space *space, size_t x_stride,
                        float *y, size_t y_stride) {
    for (int row = first, next; step->slots && row < last; row = next) {
        const int slot = step->slots[step->sequences[row]];
        for (next = row + 1; next < last && step->sequences[next] == step->sequences[row];) next++;
        const Change *change = model->changes + (layer - model->layers) * PRODUCTS + which;
        if (slot < 0 || !change->ranks[slot]) continue;
        const size_t n_in = padded(product->n_in), n_out = padded(product->n_out);
        Adding adding = {
            .down = change->down + (size_t)slot * change->rank * n_in,
            .up = change->up + (size_t)slot * change->rank * n_out,
            .x = space->narrow + (row - first) * x_stride, .y = y + (row - first) * y_stride, .inner = space->inner,
            .n_in = n_in, .n_out = n_out, .x_stride = x_stride, .y_stride = y_stride,
            .n_rows = next - row, .rank = change->ranks[slot],
        };
        const size_t n_each = (size_t)adding.rank * adding.n_rows * sizeof(uint16_t);
        share(model->crew, add_down, &adding, adding.rank, n_each * n_in);
        share(model->crew, add_up, &adding, (int)(n_out / PANEL), n_each * n_out);
    }
}

/* x += product of the rows in `space`, or its norm where the family has one there. */
static void add_product(const Model *model, const Layer *layer, const Step *step, int first, int last,
                        int which, const Space *space, size_t stride, float *x) {
    const Product *product = which == OUTPUT ? &layer->output : &layer->down;
    const float *weight = which == OUTPUT ? layer->output_norm : layer->down_norm;
    size_t hidden = padded(model->hidden);
    float *y = weight ? space->wide : x;
    apply(model, space, product, y, hidden, !weight);
    add_changes(model, layer, step, first, last, which, product, space, stride, y, hidden);
    for (int row = 0; row < last - first && weight; row++) {
        norm(space->wide + row * hidden, weight, model->hidden, model->eps, space->narrow);
        float *to = x + row * hidden;
        for (size_t i = 0; i < hidden; i += LANES) store(to + i, load(to + i) + load(space->narrow + i));
    }
}

/* One layer for rows first..last - 1, at most MAX_ROWS of them. */
static void run_layer(const Model *model, const Layer *layer, const Step *step, int first, int last,
                      Space *space) {
    const int n_rows = last - first, inner = model->inner;
    const size_t hidden = padded(model->hidden), n_heads = model->n_heads * model->head_dim;
    const size_t n_qkv = padded(layer->qkv.n_out), n_out = padded(n_heads), n_wide = padded(2 * inner);
    float *x = step->x + first * hidden;
    Rows *rows = &space->rows;
    Between between = {model, layer, step, space, layer->input_norm, n_qkv, first};

    expect_rows(rows, model->hidden, n_rows);
    share_rows(&between, norm_row, n_rows, hidden);
    apply(model, space, &layer->qkv, space->wide, n_qkv, 0);
    add_changes(model, layer, step, first, last, QKV, &layer->qkv, space, hidden, space->wide, n_qkv);
    share_rows(&between, project_row, n_rows, n_qkv);
    for (int row = first, next; row < last; row = next) {
        for (next = row + 1; next < last && step->sequences[next] == step->sequences[row];) next++;
        attend(&(Attention){model, layer, step, space, space->narrow, n_out, first, row, next,
                            model->crew ? PART_ROWS : MAX_ROWS});
    }
    expect_rows(rows, (int)n_heads, n_rows);
    between.stride = n_out;
    share_rows(&between, mixed_row, n_rows, n_out);
    add_product(model, layer, step, first, last, OUTPUT, space, n_out, x);

    expect_rows(rows, model->hidden, n_rows);
    between.weight = layer->post_norm;
    share_rows(&between, norm_row, n_rows, hidden);
    apply(model, space, &layer->gate_up, space->wide, n_wide, 0);
    add_changes(model, layer, step, first, last, GATE_UP, &layer->gate_up, space, hidden, space->wide, n_wide);
    expect_rows(rows, inner, n_rows);
    between.stride = n_wide;
    share_rows(&between, gated_row, n_rows, n_wide);
    add_product(model, layer, step, first, last, DOWN, space, padded(inner), x);
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
                                        padded(2 * (size_t)model->inner), hidden}, 3);
    size_t narrow = widest_of((size_t[]){hidden, inner, heads}, 3), n = MAX_ROWS;
    size_t stride = head_stride(model), group = model->n_heads / model->n_kv_heads;
    size_t kv_heads = model->n_kv_heads, n_threads = model->crew ? model->crew->n_threads : 1, rank = 0;
    for (int i = 0; model->changes && i < model->n_layers * PRODUCTS; i++)
        rank = (size_t)model->changes[i].rank > rank ? (size_t)model->changes[i].rank : rank;
    size_t sizes[] = {
        n * wide * 4, n * narrow * 4, n * model->n_heads * stride * 4,
        n_threads * CHUNK * stride * 4, n_threads * CHUNK * stride * 4,
        kv_heads * n * group * sizeof(Partial),
        row_bytes(narrow), n * rank * 4,
    };
    uint8_t *parts[sizeof sizes / sizeof *sizes];
    size_t n_bytes = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        parts[i] = at + n_bytes;
        n_bytes += (sizes[i] + 63) / 64 * 64;
    }
    return (Space){
        .rows = rows_at(parts[6], narrow),
        .wide = (float *)parts[0], .narrow = (float *)parts[1], .queries = (float *)parts[2],
        .keys = (float *)parts[3], .values = (float *)parts[4], .partials = (Partial *)parts[5],
        .inner = (float *)parts[7], .n_bytes = n_bytes,
    };
}

#if AVX2
/* By the CPU's own word: older compilers that know the instruction have no name to ask by. */
static int has_avxvnni(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

/* Whether this CPU has what the file was compiled for. */
EXPORT int32_t native_runs_here(void) {
#if VNNI
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#elif AVX2
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           (!AVXVNNI || has_avxvnni());
#elif NEON && defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1; /* HWCAP_ASIMDDP */
#else
    return 1;
#endif
}

/* y [n][padded outputs] of x [n][n_in], without a model around it. space: of `native_rows_bytes`. */
EXPORT void native_multiply(const Product *p, const float *x, int32_t n, float *y, uint8_t *space) {
    size_t n_in = padded(p->n_in), n_out = padded(p->n_out);
    float *narrow = (float *)space;
    Rows rows = rows_at(space + n_in * sizeof(float), n_in);
    for (int first = 0; first < n; first += MAX_ROWS) {
        int n_rows = n - first < MAX_ROWS ? n - first : MAX_ROWS;
        expect_rows(&rows, p->n_in, n_rows);
        for (int row = 0; row < n_rows; row++) {
            memcpy(narrow, x + (size_t)(first + row) * p->n_in, p->n_in * sizeof(float));
            memset(narrow + p->n_in, 0, (n_in - p->n_in) * sizeof(float));
            quantize(narrow, p->n_in, &rows, row);
        }
        multiply(NULL, &(Multiplication){p, &rows, y + first * n_out, n_out, 0});
    }
}

EXPORT size_t native_rows_bytes(int32_t n_in) {
    return padded(n_in) * sizeof(float) + row_bytes(padded(n_in));
}

/* Sizes of the structs, which the binding compares with its own. */
EXPORT void native_sizes(int32_t sizes[5]) {
    sizes[0] = sizeof(Product), sizes[1] = sizeof(Layer);
    sizes[2] = sizeof(Model), sizes[3] = sizeof(Step), sizes[4] = sizeof(Change);
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

EXPORT size_t native_packed_bytes(const Product *p) {
    return padded(p->n_out) / PANEL * panel_bytes(p->n_in, p->group, p->format);
}

/* Lay weights out as Product has them. codes: [n_out][n_in], int8 or, of int4, 0..15; scales, zeros:
 * bf16 [n_out][n_in / group], where the format has them; packed: zeros. */
EXPORT void native_pack(const Product *p, const int8_t *codes, const uint16_t *scales,
                        const uint16_t *zeros, uint8_t *packed) {
    const int n_groups = groups_of(p->n_in), n_shared = p->group / GROUP;
    const int n_scales = (n_groups + n_shared - 1) / n_shared;
    for (size_t panel = 0; panel < padded(p->n_out) / PANEL; panel++)
        for (int g = 0; g < n_groups; g++) {
            if (g % n_shared == 0) {
                uint16_t *to = (uint16_t *)(void *)packed;
                for (size_t i = 0, out = panel * PANEL; i < PANEL && out < (size_t)p->n_out; i++, out++) {
                    size_t from = out * n_scales + g / n_shared;
                    if (p->format != BY_OUTPUT) to[i] = scales[from];
                    if (p->format == GROUPED4) to[PANEL + i] = zeros[from];
                }
                packed += scale_bytes(p->format);
            }
            for (int place = 0; place < GROUP * PANEL; place++) {
                const int step = place / (PANEL * STEP), at = place % (PANEL * STEP);
                const size_t out = panel * PANEL + at / STEP, in = (size_t)g * GROUP + step * STEP + at % STEP;
                const int is_one = out < (size_t)p->n_out && in < (size_t)p->n_in;
                const int code = is_one ? codes[out * p->n_in + in] : 0;
                if (!has_four_bits(p->format)) packed[place] = (uint8_t)(code + OFFSET);
                else packed[step / 2 * PANEL * STEP + at] |= (uint8_t)(code << step % 2 * 4);
            }
            packed += group_bytes(p->format);
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
    for (int i = 0; step->slots && i < step->n_sequences; i++)
        if (step->slots[i] >= model->n_slots) return BAD_SEQUENCE;
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
        for (int i = 0; i < model->hidden; i++) x[i] = from_bf16(from[i]) * model->embedding_scale;
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
    int likely[MOST_REFINED], n = 0, n_most = model->n_refined;
    for (int token = 0; token < model->vocab; token++) {
        int is_full = n == n_most;
        if (is_full && token % LANES == 0 && token + LANES <= model->vocab &&
            largest_of(load(logits + token)) <= logits[likely[n - 1]]) {
            token += LANES - 1; /* none of these */
            continue;
        }
        if (is_full && !(logits[token] > logits[likely[n - 1]])) continue;
        int place = n < n_most ? n++ : n - 1;
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

/* The first of the largest. */
static int32_t likeliest(const float *logits, int n) {
    int best = 0;
    for (int token = 0; token < n; token++) {
        int has_more = token % LANES == 0 && token + LANES <= n;
        if (has_more && largest_of(load(logits + token)) <= logits[best]) token += LANES - 1;
        else if (logits[token] > logits[best]) best = token;
    }
    return best;
}

/* logits [n][padded vocab] of states [n][hidden]. */
EXPORT void native_logits(const Model *model, const float *states, int32_t n, float *logits) {
    Space space = lay_out(model, model->workspace);
    size_t hidden = model->hidden, vocab = padded(model->vocab);
    for (int first = 0; first < n; first += MAX_ROWS) {
        int n_rows = n - first < MAX_ROWS ? n - first : MAX_ROWS;
        expect_rows(&space.rows, model->hidden, n_rows);
        for (int row = 0; row < n_rows; row++) {
            memcpy(space.narrow, states + (first + row) * hidden, hidden * sizeof(float));
            memset(space.narrow + hidden, 0, (padded(hidden) - hidden) * sizeof(float));
            quantize(space.narrow, model->hidden, &space.rows, row);
        }
        apply(model, &space, &model->head, logits + first * vocab, vocab, 0);
        for (int row = 0; row < n_rows && model->n_refined; row++)
            refine(model, states + (first + row) * hidden, logits + (first + row) * vocab);
    }
}

/* Greedy tokens after the rows of a step, one sequence with room for them: guesses [n]. The KV of
 * the last one stays open. state: [hidden]; logits: [padded vocab]. */
EXPORT int32_t native_guess(const Model *model, const Step *step, int32_t n, float *state,
                            float *logits, int32_t *guesses) {
    Step next = *step;
    int32_t last = step->n_rows - 1, position = step->positions[last];
    for (int i = 0; i < n; i++) {
        Fault fault = native_forward(model, &next, 0, model->n_layers);
        if (!fault) fault = native_states(model, &next, &last, 1, state);
        if (fault) return fault;
        native_logits(model, state, 1, logits);
        guesses[i] = likeliest(logits, model->vocab);
        position++, last = 0;
        next.tokens = guesses + i, next.positions = &position, next.n_rows = 1;
    }
    return STEP_OK;
}
