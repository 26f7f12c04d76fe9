/* A small decoder with random weights: rows in one step and one by one have the same bits.
 *
 * It stands alone, so that it runs where no Python is: under an emulator of another machine. */

#include "../../../engine/native/decoder.c"

#include <stdio.h>

enum { HIDDEN = 64, INNER = 96, HEADS = 6, KV_HEADS = 2, HEAD = 32, LAYERS = 2, VOCAB = 200, TOKENS = 45, BLOCKS = 4 };

static uint32_t seed = 1;

static float chance(void) { /* -1..1 */
    seed = seed * 1664525u + 1013904223u;
    return (float)(int32_t)seed / 2147483648.0f;
}

static float *floats(size_t n, float offset, float size) {
    float *made = calloc(n, sizeof *made);
    for (size_t i = 0; i < n; i++) made[i] = offset + size * chance();
    return made;
}

static uint16_t *halves(size_t n, float size) {
    uint16_t *made = calloc(n, sizeof *made);
    for (size_t i = 0; i < n; i++) made[i] = to_bf16(size * chance());
    return made;
}

static Product product(int n_out, int n_in, int is_int4) {
    int8_t *codes = calloc((size_t)n_out * n_in, 1);
    for (int i = 0; i < n_out * n_in; i++) codes[i] = (int8_t)(is_int4 ? 8 + 8 * chance() : 127 * chance());
    Product made = {.n_in = n_in, .n_out = n_out, .group = GROUP, .format = is_int4 ? GROUPED4 : BY_OUTPUT};
    uint16_t *scales = NULL, *zeros = NULL;
    if (is_int4) {
        size_t n = (size_t)n_out * groups_of(n_in);
        scales = halves(n, 0.03f), zeros = halves(n, 0.03f);
    } else made.scale = floats(padded(n_out), 2e-3f, 1e-3f);
    uint8_t *packed = calloc(native_packed_bytes(&made), 1);
    native_pack(&made, codes, scales, zeros, packed);
    free(codes), free(scales), free(zeros);
    made.weights = packed;
    return made;
}

static Model model(int kv_format, int is_int4) {
    Layer *layers = calloc(LAYERS, sizeof *layers);
    size_t n_vectors = (size_t)BLOCKS * BLOCK_TOKENS * 2 * KV_HEADS;
    for (int i = 0; i < LAYERS; i++)
        layers[i] = (Layer){
            .qkv = product((HEADS + 2 * KV_HEADS) * HEAD, HIDDEN, is_int4),
            .output = product(HIDDEN, HEADS * HEAD, is_int4),
            .gate_up = product(2 * INNER, HIDDEN, is_int4), .down = product(HIDDEN, INNER, is_int4),
            .input_norm = floats(padded(HIDDEN), 1, 0.1f), .post_norm = floats(padded(HIDDEN), 1, 0.1f),
            .output_norm = is_int4 ? floats(padded(HIDDEN), 1, 0.1f) : NULL,
            .down_norm = is_int4 ? floats(padded(HIDDEN), 1, 0.1f) : NULL,
            .cos = floats(TOKENS * HEAD / 2, 0, 1), .sin = floats(TOKENS * HEAD / 2, 0, 1),
            .kv_codes = calloc(n_vectors * HEAD, 2), .kv_scales = calloc(n_vectors, 2),
            .window = i ? 20 : 0,
        };
    /* Of every third token a group of inputs lies far above the other: it has two lines. */
    uint16_t *embedding = halves(VOCAB * HIDDEN, 1);
    for (int token = 0; token < VOCAB; token += 3)
        for (int i = 0; i < GROUP; i++)
            embedding[token * HIDDEN + i] = to_bf16(16 * from_bf16(embedding[token * HIDDEN + i]));
    Model made = {
        .layers = layers, .head = product(VOCAB, HIDDEN, is_int4), .embedding = embedding,
        .norm = floats(padded(HIDDEN), 1, 0.1f), .embedding_scale = 1, .is_gelu = is_int4,
        .n_layers = LAYERS, .hidden = HIDDEN, .inner = INNER,
        .n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_dim = HEAD, .vocab = VOCAB, .n_positions = TOKENS,
        .n_blocks = BLOCKS, .kv_format = kv_format, .n_refined = is_int4 ? MOST_REFINED : 8, .eps = 1e-5f,
    };
    made.workspace = calloc(native_workspace_bytes(&made), 1);
    return made;
}

/* The logits [TOKENS][padded vocab] of all tokens, `n_together` of them in a step. */
static float *logits_of(const Model *m, int n_together) {
    static const int32_t table[BLOCKS] = {2, 0, 3, 1}, starts[2] = {0, BLOCKS};
    int32_t tokens[TOKENS], positions[TOKENS], wanted[TOKENS], sequences[TOKENS] = {0};
    static float x[TOKENS * HIDDEN], states[TOKENS * HIDDEN];
    size_t width = padded(VOCAB);
    float *logits = calloc(TOKENS * width, sizeof *logits);
    for (int i = 0; i < TOKENS; i++) tokens[i] = i * 37 % VOCAB, positions[i] = wanted[i] = i;
    for (int first = 0; first < TOKENS; first += n_together) {
        int n = first + n_together < TOKENS ? n_together : TOKENS - first;
        Step step = {tokens + first, positions + first, sequences, table, starts, NULL, x, n, 1};
        if (native_forward(m, &step, 0, LAYERS) || native_states(m, &step, wanted, n, states)) return NULL;
        native_logits(m, states, n, logits + first * width);
    }
    return logits;
}

int main(void) {
    if (!native_runs_here()) return puts("this CPU lacks what the file was compiled for"), 2;
    for (int kv_format = KV_PLAIN; kv_format <= KV_INT8; kv_format++)
        for (int is_int4 = 0; is_int4 < 2; is_int4++) {
            Model m = model(kv_format, is_int4);
            const size_t n_bytes = TOKENS * padded(VOCAB) * sizeof(float);
            float *whole = logits_of(&m, TOKENS);
            for (size_t i = 0; whole && i < n_bytes / sizeof(float); i++)
                if (!isfinite(whole[i])) return printf("logit %zu is %f\n", i, whole[i]), 1;
            for (int n = 1; n <= 8; n++) {
                float *found = logits_of(&m, n);
                if (!whole || !found || memcmp(whole, found, n_bytes))
                    return printf("KV format %d, int4 %d: %d rows differ\n", kv_format, is_int4, n), 1;
                free(found);
            }
        }
    return puts("the same bits"), 0;
}
