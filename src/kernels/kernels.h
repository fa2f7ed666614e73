/*
 * Kernels: packed weight matrices, quantised activations, GEMM, norms, rotary embedding,
 * activation functions. Paged attention is in kernels/attn.h.
 *
 * One layout for every instruction set. A weight matrix W [n rows = outputs][k columns = inputs]
 * is repacked at load into panels of 16 rows; inside a panel a block of 32 columns holds, for
 * each group of 4 columns, 4 bytes of each of the 16 rows side by side, which is one AVX-512
 * register, two AVX2 registers or four NEON ones (docs/performance.md has the measurements).
 * Activations are int8 with one scale per GS_ACT_GROUP values and the sums that offsets and
 * minima need. ref/ holds a scalar version of each kernel: that one is the truth in the tests.
 *
 * Dispatch: gs_kernels_init() reads CPUID once and picks a table of functions; GAMASOT_ISA (or
 * the argument) forces one. After init everything is read-only; all functions are pure compute
 * on the caller's memory and may run on any number of threads on disjoint panels or rows.
 *
 * Sources: ggml block formats (facts); background measurements in docs/performance.md.
 */
#ifndef GS_KERNELS_KERNELS_H
#define GS_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf/qtype.h"

#define GS_PANEL_ROWS 16
#define GS_BLOCK_COLS 32
#define GS_TILE_ROWS  6 /* activation rows that the GEMM takes together at most */

/*
 * Activations that share one int8 scale: a multiple of 32; the last group of a row may be shorter.
 * 128 makes the tiles 8 % faster and costs only 0.3 % of perplexity, but the best token is the
 * reference's at 94.7 % of the steps instead of 97 (docs/performance.md).
 */
#ifndef GS_ACT_GROUP
#define GS_ACT_GROUP 32
#endif

typedef enum gs_isa {
    GS_ISA_SCALAR,
    GS_ISA_AVX2,
    GS_ISA_AVXVNNI,
    GS_ISA_AVX512,
    GS_ISA_AVX512VNNI,
    GS_ISA_NEON_DOT,
    GS_ISA_NEON_I8MM,
    GS_ISA_COUNT
} gs_isa;

/*
 * Chooses the instruction set. want NULL or "": GAMASOT_ISA from the environment, else the best
 * that CPU and operating system support. Unknown or unsupported names: GS_ERR_UNSUPPORTED with
 * the list of possible ones. May be called again (tests loop over gs_isa_supported()) while no
 * kernel runs; packed matrices stay valid.
 */
int gs_kernels_init(const char *want, char *err, size_t errlen);
gs_isa gs_kernels_isa(void);
const char *gs_isa_name(gs_isa isa); /* "avx512vnni" */
bool gs_isa_supported(gs_isa isa);

/* ---- Packed weights -------------------------------------------------------------------------- */

/*
 * A packed matrix; the memory behind it belongs to the caller (gs_pages_alloc). n is padded to
 * whole panels inside; k must be a multiple of 32 (of 256 for K-quants), which the model loader
 * checks before.
 */
typedef struct gs_mat {
    int32_t n;          /* output rows of the matrix, unpadded */
    int32_t k;          /* input columns */
    int32_t n_panels;   /* ceil(n / 16) */
    gs_qtype type;      /* of the source */
    size_t panel_bytes; /* everything of one panel: codes, scales, minima; 64-byte multiple */
    uint8_t *data;      /* n_panels * panel_bytes, 64-byte aligned */
} gs_mat;

/* Whether a weight of this type can be packed and multiplied. */
bool gs_mat_type_ok(gs_qtype type);
/* Fills everything but data. GS_ERR_UNSUPPORTED type, GS_ERR_INVALID shape. */
int gs_mat_init(gs_mat *m, gs_qtype type, int32_t n, int32_t k);
size_t gs_mat_bytes(const gs_mat *m); /* what data must hold: <= 1.05 x the source (+ padding) */
/*
 * Packs panels [p0, p1) from GGUF rows: row r of panel p is src + (16 p + r) * row bytes. Rows
 * past n are zero. Disjoint ranges may be packed at once.
 */
void gs_mat_pack(gs_mat *m, const void *src, int32_t p0, int32_t p1);
/* The same from rows of another type: a float type may become GS_QTYPE_BF16 or GS_QTYPE_F32. */
void gs_mat_pack_from(gs_mat *m, gs_qtype src_type, const void *src, int32_t p0, int32_t p1);
/* Matrix i of several alike that lie one behind the other. */
gs_mat gs_mat_nth(const gs_mat *first, int32_t i);
static inline const uint8_t *gs_mat_panel(const gs_mat *m, int32_t p) {
    return m->data + (size_t)p * m->panel_bytes;
}
/* Row r back as floats (embedding look-up, tests). out[k]. */
void gs_mat_row(const gs_mat *m, int32_t r, float *out);
/* One GGUF row of a type as floats, straight from the file's bytes: the scalar truth. */
void gs_dequant_row(gs_qtype type, const void *src, float *out, int32_t k);

/* ---- Activations ----------------------------------------------------------------------------- */

/*
 * m rows of k activations as the GEMM wants them; layout private to kernels. gs_act_bytes() gives
 * the size of the buffer for at most m_max rows (any packed type, float matrices included).
 * Rows are filled independently by gs_act_quant / gs_rmsnorm_quant, by any threads.
 */
typedef struct gs_act {
    int32_t m; /* rows in use */
    int32_t k;
    uint8_t *data; /* gs_act_bytes(m, k), 64-byte aligned */
} gs_act;

size_t gs_act_bytes(int32_t m_max, int32_t k);
/* The same for rows that are only ever filled with these flags. */
size_t gs_act_bytes_of(int32_t m_max, int32_t k, int flags);
/* Rows [r0, r1) from x + r * ldx. Values must be finite; NaN/inf become 0. The representation
 * depends on the matrices to come: flags is what gs_act_need says of all of them. */
enum {
    GS_ACT_CODES = 1, /* int8 codes and scales; the rest are sums of codes that formats need: */
    GS_ACT_ASUM = 2,  /* minima */
    GS_ACT_N8 = 4,    /* offsets per 32 columns */
    GS_ACT_N16 = 8,   /* offsets and minima per 16 columns */
    GS_ACT_INT = 15,
    GS_ACT_FLOAT = 16,
    GS_ACT_BF16 = 32 /* what BF16 weights read where the machine multiplies bf16 pairs */
};
int gs_act_need(gs_qtype weight_type); /* what a weight type reads */
void gs_act_quant(gs_act *a, const float *x, int64_t ldx, int32_t r0, int32_t r1, int flags);
/* Columns [c0, c1) of row `row` alone, from x[a->k]; c0 is a multiple of GS_ACT_GROUP, c1 too or
 * the end of the row. Disjoint ranges may be filled at once. */
void gs_act_quant_part(gs_act *a, const float *x, int32_t row, int32_t c0, int32_t c1, int flags);
/* gs_act_quant fused with y = x / rms(x) * weight, rms over k values with eps. */
void gs_rmsnorm_quant(gs_act *a, const float *x, int64_t ldx, const float *weight, float eps,
                      int32_t r0, int32_t r1, int flags);
/* Row to_row of `to` becomes row from_row of `from`, which has the same width; flags as both were
 * filled. */
void gs_act_copy_row(gs_act *to, int32_t to_row, const gs_act *from, int32_t from_row, int flags);
/* The rows of m that thread tid of n should fill: whole tiles of the layout, because rows of one
 * tile share cache lines. */
void gs_act_share(int32_t m, int tid, int n_threads, int32_t *r0, int32_t *r1);
/* Fetches the cache lines of columns [c0, c1) of all rows for writing: they come from another
 * core's cache or were pushed out by weights, and stores wait for them one after the other. */
void gs_act_prefetch(const gs_act *a, int32_t c0, int32_t c1, int flags);
void gs_rmsnorm_quant_part(gs_act *a, const float *x, const float *weight, float eps, int32_t row,
                           int32_t c0, int32_t c1, int flags);

/* ---- GEMM ------------------------------------------------------------------------------------ */

enum {
    GS_GEMM_STORE = 0, /* y = W a */
    GS_GEMM_ADD = 1    /* y += W a: the residual */
};
/*
 * y[i * ldy + r] (=|+=) sum_k W[r][k] * a[i][k] for rows r of panels [p0, p1) and all a->m
 * activation rows i. Any m >= 1; the weights come from memory once, whatever m is (once per some
 * hundred rows), never once per row. Rows past n are not written. bias may be NULL, else bias[r]
 * is added.
 */
void gs_gemm(const gs_mat *w, const gs_act *a, float *y, int64_t ldy, const float *bias, int32_t p0,
             int32_t p1, int mode);

/* gs_gemm that stores, without a bias; `then` (or NULL): the panels that this thread multiplies
 * next, of a matrix of the same shape. They are fetched while the last ones of this are multiplied.
 */
void gs_gemm_then(const gs_mat *w, const gs_act *a, float *y, int64_t ldy, int32_t p0, int32_t p1,
                  const uint8_t *then);

/* ---- Element-wise ---------------------------------------------------------------------------- */

void gs_rmsnorm(float *y, const float *x, const float *weight, int32_t k, float eps);
/* y += scale * x, n values. */
void gs_add_scaled(float *y, const float *x, float scale, int32_t n);
/* out = silu(gate) * up, n values; out may be gate. Inputs beyond +-88 saturate, no NaN. */
void gs_silu_mul(float *out, const float *gate, const float *up, int32_t n);
void gs_gelu_mul(float *out, const float *gate, const float *up, int32_t n); /* tanh form */
/* x = x/2 (1 + erf(x / sqrt 2)), n values: the exact form. NaN becomes a number near 0. */
void gs_gelu(float *x, int32_t n);
/* x = cap * tanh(x / cap), n values, cap > 0. NaN stays NaN. */
void gs_softcap(float *x, int32_t n, float cap);
/* y = (x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016); y may be x. */
void gs_layernorm(float *y, const float *x, const float *weight, const float *bias, int32_t k,
                  float eps);

/*
 * Rotary embedding (Su et al. 2021) of one head row x[head_dim] with precomputed cos/sin tables
 * of n_rot/2 values for this position. neox: pairs (i, i + n_rot/2), else (2i, 2i + 1).
 */
void gs_rope(float *x, const float *cos_tab, const float *sin_tab, int32_t n_rot, bool neox);

/* max, and log(sum(exp(x - max))): the two numbers that turn logits into log-probabilities. */
void gs_logsumexp(const float *x, int32_t n, float *max, float *lse);

/* Index of the greatest of n >= 1 values, the lowest on ties, NaN never; *finite: whether all
 * values are. 0 when all are NaN. */
int32_t gs_argmax(const float *x, int32_t n, bool *finite);

#endif
