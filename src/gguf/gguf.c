/*
 * One forward pass with a bounds-checked cursor reads the header, the metadata and the tensor
 * table; then the tensors' extents are checked together. Nothing is allocated for a count before
 * the bytes that are left could hold that many entries, so the heap stays within a small multiple
 * of the file's own size, whatever the file claims.
 * Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 */
#include "gguf/gguf_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/checked.h"
#include "base/err.h"
#include "base/sys.h"
#include "base/utf8.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are read in place");

/* Smallest possible entries: what a count is compared with before anything is allocated. */
#define MIN_KV_BYTES     (8 + 1 + 4 + 1)         /* length, key, type, one-byte value */
#define MIN_TENSOR_BYTES (8 + 1 + 4 + 8 + 4 + 8) /* length, name, n_dims, ne[0], type, offset */
/* A table at most half full needs a few dozen probes; more means names chosen to collide. */
#define MAX_PROBES 1024u

/* Where the parser stands, and where a refusal is written. */
typedef struct cursor {
    const uint8_t *data;
    size_t size;
    size_t pos; /* <= size */
    char *err;
    size_t errlen;
} cursor;

static size_t left(const cursor *c) {
    return c->size - c->pos;
}

static bool take(cursor *c, size_t n, const uint8_t **out) {
    if (n > left(c))
        return false;
    *out = c->data + c->pos;
    c->pos += n;
    return true;
}

static bool take_u32(cursor *c, uint32_t *out) {
    const uint8_t *p;
    if (!take(c, sizeof *out, &p))
        return false;
    memcpy(out, p, sizeof *out);
    return true;
}

static bool take_u64(cursor *c, uint64_t *out) {
    const uint8_t *p;
    if (!take(c, sizeof *out, &p))
        return false;
    memcpy(out, p, sizeof *out);
    return true;
}

/* A length and its bytes. Length and rest are compared before any addition: no wrap. */
static bool take_str(cursor *c, gs_str *out) {
    uint64_t len;
    const uint8_t *p;
    if (!take_u64(c, &len) || len > left(c) || !take(c, (size_t)len, &p))
        return false;
    *out = (gs_str){(const char *)p, (size_t)len};
    return true;
}

/* A name as a message may show it. Names have passed check_name, so that this only terminates. */
typedef struct shown {
    char s[GS_GGUF_MAX_NAME + 1];
} shown;

static shown show(gs_str name) {
    shown out;
    size_t n = name.len < GS_GGUF_MAX_NAME ? name.len : GS_GGUF_MAX_NAME;
    memcpy(out.s, name.data, n);
    out.s[n] = '\0';
    return out;
}

#define FAIL(c, code, ...) gs_fail((c)->err, (c)->errlen, (code), __VA_ARGS__)

/* ---- Names -------------------------------------------------------------------------------- */

static int take_name(cursor *c, const char *what, size_t i, gs_str *out) {
    if (!take_str(c, out))
        return FAIL(c, GS_ERR_FORMAT, "%s %zu: its name runs past the end of the file", what, i);
    if (out->len == 0 || out->len > GS_GGUF_MAX_NAME)
        return FAIL(c, GS_ERR_FORMAT, "%s %zu: a name of %zu bytes (1 to %u are allowed)", what, i,
                    out->len, GS_GGUF_MAX_NAME);
    if (!gs_utf8_valid(out->data, out->len))
        return FAIL(c, GS_ERR_FORMAT, "%s %zu: its name is not valid UTF-8", what, i);
    for (size_t k = 0; k < out->len; k++) {
        unsigned char b = (unsigned char)out->data[k];
        if (b < 0x20 || b == 0x7f)
            return FAIL(c, GS_ERR_FORMAT, "%s %zu: its name has control characters", what, i);
    }
    return GS_OK;
}

static int table_init(gs_name_table *t, size_t n) {
    uint32_t cap = 8;
    while (cap < 2 * n) /* n <= GS_GGUF_MAX_TENSORS: no wrap */
        cap *= 2;
    t->slots = gs_calloc(cap, sizeof *t->slots);
    t->mask = cap - 1;
    return t->slots ? GS_OK : GS_ERR_NOMEM;
}

/* Both tables hold structs that begin with their name. */
static gs_str name_at(const void *items, size_t item_bytes, uint32_t i) {
    gs_str s;
    memcpy(&s, (const char *)items + i * item_bytes, sizeof s);
    return s;
}

_Static_assert(offsetof(gs_gguf_kv, key) == 0, "name_at reads the first member");
_Static_assert(offsetof(gs_gguf_tensor, name) == 0, "name_at reads the first member");

/* The slot of name, or the empty slot where it belongs; NULL after MAX_PROBES. */
static uint32_t *table_slot(const gs_name_table *t, const void *items, size_t item_bytes,
                            gs_str name) {
    uint32_t at = (uint32_t)XXH3_64bits(name.data, name.len);
    for (uint32_t probe = 0; probe < MAX_PROBES; probe++) {
        uint32_t *slot = &t->slots[(at + probe) & t->mask];
        if (*slot == 0)
            return slot;
        gs_str other = name_at(items, item_bytes, *slot - 1);
        if (other.len == name.len && memcmp(other.data, name.data, name.len) == 0)
            return slot;
    }
    return NULL;
}

static int table_add(cursor *c, gs_name_table *t, const void *items, size_t item_bytes, size_t i,
                     const char *what) {
    gs_str name = name_at(items, item_bytes, (uint32_t)i);
    uint32_t *slot = table_slot(t, items, item_bytes, name);
    if (!slot)
        return FAIL(c, GS_ERR_FORMAT, "%s '%s': too many names with the same hash", what,
                    show(name).s);
    if (*slot != 0)
        return FAIL(c, GS_ERR_FORMAT, "%s '%s' appears twice", what, show(name).s);
    *slot = (uint32_t)i + 1;
    return GS_OK;
}

/* ---- Metadata ------------------------------------------------------------------------------ */

/* Bytes of one value of a fixed-size type; 0 for strings, arrays and unknown numbers. */
static size_t vtype_bytes(uint32_t type) {
    switch (type) {
    case GS_GGUF_U8:
    case GS_GGUF_I8:
    case GS_GGUF_BOOL:
        return 1;
    case GS_GGUF_U16:
    case GS_GGUF_I16:
        return 2;
    case GS_GGUF_U32:
    case GS_GGUF_I32:
    case GS_GGUF_F32:
        return 4;
    case GS_GGUF_U64:
    case GS_GGUF_I64:
    case GS_GGUF_F64:
        return 8;
    default:
        return 0;
    }
}

static const char *vtype_name(gs_gguf_vtype type) {
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    return (size_t)type < sizeof names / sizeof names[0] ? names[type] : "unknown";
}

static int check_bools(cursor *c, const gs_gguf_kv *kv) {
    const uint8_t *p = kv->data;
    for (uint64_t i = 0; i < kv->n; i++)
        if (p[i] > 1)
            return FAIL(c, GS_ERR_FORMAT, "key '%s': %u is no bool", show(kv->key).s, p[i]);
    return GS_OK;
}

static int take_value_str(cursor *c, const gs_gguf_kv *kv) {
    gs_str s;
    if (!take_str(c, &s))
        return FAIL(c, GS_ERR_FORMAT, "key '%s': a string runs past the end of the file",
                    show(kv->key).s);
    if (s.len > GS_GGUF_MAX_STR)
        return FAIL(c, GS_ERR_FORMAT, "key '%s': a string of %zu bytes is too long",
                    show(kv->key).s, s.len);
    return GS_OK;
}

static int take_str_array(cursor *c, gs_gguf_kv *kv, uint64_t **offsets) {
    if (kv->n > left(c) / sizeof(uint64_t)) /* each element has at least its length */
        return FAIL(c, GS_ERR_FORMAT, "key '%s': %llu strings do not fit in the file",
                    show(kv->key).s, (unsigned long long)kv->n);
    if (kv->n == 0)
        return GS_OK;
    *offsets = gs_array((size_t)kv->n, sizeof **offsets);
    if (!*offsets)
        return FAIL(c, GS_ERR_NOMEM, "key '%s': out of memory", show(kv->key).s);
    for (uint64_t i = 0; i < kv->n; i++) {
        (*offsets)[i] = c->pos;
        int rc = take_value_str(c, kv);
        if (rc != GS_OK)
            return rc;
    }
    return GS_OK;
}

static int take_array(cursor *c, gs_gguf_kv *kv, uint64_t **offsets) {
    uint32_t elem_type;
    if (!take_u32(c, &elem_type) || !take_u64(c, &kv->n))
        return FAIL(c, GS_ERR_FORMAT, "key '%s': the file ends inside its array's header",
                    show(kv->key).s);
    if (elem_type == GS_GGUF_ARR)
        return FAIL(c, GS_ERR_FORMAT, "key '%s': arrays of arrays are not allowed",
                    show(kv->key).s);
    if (elem_type > GS_GGUF_F64)
        return FAIL(c, GS_ERR_FORMAT, "key '%s': unknown array element type %u", show(kv->key).s,
                    elem_type);
    if (kv->n > GS_GGUF_MAX_ARRAY)
        return FAIL(c, GS_ERR_FORMAT, "key '%s': an array of %llu elements is too long",
                    show(kv->key).s, (unsigned long long)kv->n);
    kv->elem_type = (gs_gguf_vtype)elem_type;
    kv->data = c->data + c->pos;
    if (elem_type == GS_GGUF_STR)
        return take_str_array(c, kv, offsets);
    uint64_t bytes;
    const uint8_t *p;
    if (!gs_mul_u64(kv->n, vtype_bytes(elem_type), &bytes) || bytes > left(c) ||
        !take(c, (size_t)bytes, &p))
        return FAIL(c, GS_ERR_FORMAT, "key '%s': its array runs past the end of the file",
                    show(kv->key).s);
    return elem_type == GS_GGUF_BOOL ? check_bools(c, kv) : GS_OK;
}

static int take_kv(cursor *c, size_t i, gs_gguf_kv *kv, uint64_t **offsets) {
    int rc = take_name(c, "key", i, &kv->key);
    if (rc != GS_OK)
        return rc;
    uint32_t type;
    if (!take_u32(c, &type))
        return FAIL(c, GS_ERR_FORMAT, "key '%s': the file ends before its type", show(kv->key).s);
    if (type > GS_GGUF_F64)
        return FAIL(c, GS_ERR_FORMAT, "key '%s': unknown value type %u", show(kv->key).s, type);
    kv->type = (gs_gguf_vtype)type;
    if (type == GS_GGUF_ARR)
        return take_array(c, kv, offsets);
    kv->elem_type = kv->type;
    kv->n = 1;
    kv->data = c->data + c->pos;
    if (type == GS_GGUF_STR)
        return take_value_str(c, kv);
    const uint8_t *p;
    if (!take(c, vtype_bytes(type), &p))
        return FAIL(c, GS_ERR_FORMAT, "key '%s': its value runs past the end of the file",
                    show(kv->key).s);
    return type == GS_GGUF_BOOL ? check_bools(c, kv) : GS_OK;
}

static int parse_metadata(gs_gguf *g, cursor *c, uint64_t n_kv) {
    if (n_kv > GS_GGUF_MAX_KV)
        return FAIL(c, GS_ERR_FORMAT, "the file claims %llu metadata keys; at most %u are allowed",
                    (unsigned long long)n_kv, GS_GGUF_MAX_KV);
    if (n_kv > left(c) / MIN_KV_BYTES)
        return FAIL(c, GS_ERR_FORMAT, "the file claims %llu metadata keys but is too small",
                    (unsigned long long)n_kv);
    size_t n = (size_t)n_kv;
    size_t n_alloc = n > 0 ? n : 1;
    g->kv = gs_calloc(n_alloc, sizeof *g->kv);
    g->str_offsets = gs_calloc(n_alloc, sizeof *g->str_offsets);
    if (!g->kv || !g->str_offsets || table_init(&g->kv_names, n) != GS_OK)
        return FAIL(c, GS_ERR_NOMEM, "out of memory for %zu metadata keys", n);
    for (size_t i = 0; i < n; i++) {
        g->n_kv = i + 1; /* before the read, so that close frees a half-read array */
        int rc = take_kv(c, i, &g->kv[i], &g->str_offsets[i]);
        if (rc == GS_OK)
            rc = table_add(c, &g->kv_names, g->kv, sizeof *g->kv, i, "key");
        if (rc != GS_OK)
            return rc;
    }
    return GS_OK;
}

/* general.alignment may stand anywhere among the keys, so it is read after all of them. */
static int parse_alignment(gs_gguf *g, cursor *c) {
    static const char key[] = "general.alignment";
    const gs_gguf_kv *kv = gs_gguf_find(g, key);
    g->alignment = 32;
    if (!kv)
        return GS_OK;
    if (kv->type != GS_GGUF_U32)
        return FAIL(c, GS_ERR_FORMAT, "key '%s': is %s, must be u32", key, vtype_name(kv->type));
    uint32_t v;
    memcpy(&v, kv->data, sizeof v);
    /* The specification asks for a multiple of 8; every writer uses a power of two. */
    if (v < 8 || v > GS_GGUF_MAX_ALIGN || (v & (v - 1)) != 0)
        return FAIL(c, GS_ERR_FORMAT, "key '%s': %u is no power of two from 8 to %u", key, v,
                    GS_GGUF_MAX_ALIGN);
    g->alignment = v;
    return GS_OK;
}

/* ---- Tensors ------------------------------------------------------------------------------- */

/* Reads n_dims and ne, and sets n_rows. */
static int take_dims(cursor *c, gs_gguf_tensor *t) {
    if (!take_u32(c, &t->n_dims))
        return FAIL(c, GS_ERR_FORMAT, "tensor '%s': the file ends inside its entry",
                    show(t->name).s);
    if (t->n_dims < 1 || t->n_dims > 4)
        return FAIL(c, GS_ERR_FORMAT, "tensor '%s': %u dimensions (1 to 4 are allowed)",
                    show(t->name).s, t->n_dims);
    t->n_rows = 1;
    for (uint32_t d = 0; d < 4; d++) {
        t->ne[d] = 1;
        if (d >= t->n_dims)
            continue;
        if (!take_u64(c, &t->ne[d]))
            return FAIL(c, GS_ERR_FORMAT, "tensor '%s': the file ends inside its entry",
                        show(t->name).s);
        if (t->ne[d] == 0)
            return FAIL(c, GS_ERR_FORMAT, "tensor '%s': dimension %u is 0", show(t->name).s, d);
        if (d > 0 && !gs_mul_u64(t->n_rows, t->ne[d], &t->n_rows))
            return FAIL(c, GS_ERR_FORMAT, "tensor '%s': its dimensions overflow", show(t->name).s);
    }
    return GS_OK;
}

static int take_tensor(cursor *c, size_t i, gs_gguf_tensor *t) {
    int rc = take_name(c, "tensor", i, &t->name);
    if (rc == GS_OK)
        rc = take_dims(c, t);
    if (rc != GS_OK)
        return rc;
    uint32_t type;
    if (!take_u32(c, &type) || !take_u64(c, &t->offset))
        return FAIL(c, GS_ERR_FORMAT, "tensor '%s': the file ends inside its entry",
                    show(t->name).s);
    const gs_qtype_info *info = gs_qtype_get(type);
    if (!info)
        return FAIL(c, GS_ERR_UNSUPPORTED, "tensor '%s': type %u is not supported", show(t->name).s,
                    type);
    t->type = (gs_qtype)type;
    if (t->ne[0] % info->block_elems != 0)
        return FAIL(c, GS_ERR_FORMAT, "tensor '%s': rows of %llu are no multiple of %s's %u",
                    show(t->name).s, (unsigned long long)t->ne[0], info->name, info->block_elems);
    if (!gs_mul_u64(t->ne[0] / info->block_elems, info->block_bytes, &t->n_bytes) ||
        !gs_mul_u64(t->n_bytes, t->n_rows, &t->n_bytes))
        return FAIL(c, GS_ERR_FORMAT, "tensor '%s': its size overflows", show(t->name).s);
    return GS_OK;
}

/* Turns the offset within the data section into one within the file, and checks the extent. */
static int place_tensor(cursor *c, gs_gguf_tensor *t, uint64_t data_start, uint32_t alignment) {
    if (t->offset % alignment != 0)
        return FAIL(c, GS_ERR_FORMAT, "tensor '%s': offset %llu is not aligned to %u",
                    show(t->name).s, (unsigned long long)t->offset, alignment);
    uint64_t end;
    if (!gs_add_u64(t->offset, data_start, &t->offset) ||
        !gs_add_u64(t->offset, t->n_bytes, &end) || end > c->size)
        return FAIL(c, GS_ERR_FORMAT,
                    "tensor '%s': its %llu bytes run past the end of the file (%zu bytes)",
                    show(t->name).s, (unsigned long long)t->n_bytes, c->size);
    t->data = c->data + t->offset;
    return GS_OK;
}

static int by_offset(const void *a, const void *b) {
    const gs_gguf_tensor *x = *(const gs_gguf_tensor *const *)a;
    const gs_gguf_tensor *y = *(const gs_gguf_tensor *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static int check_overlap(gs_gguf *g, cursor *c) {
    const gs_gguf_tensor **order = gs_array(g->n_tensors, sizeof *order);
    if (!order)
        return FAIL(c, GS_ERR_NOMEM, "out of memory for %zu tensors", g->n_tensors);
    for (size_t i = 0; i < g->n_tensors; i++)
        order[i] = &g->tensors[i];
    qsort(order, g->n_tensors, sizeof *order, by_offset);
    int rc = GS_OK;
    for (size_t i = 1; i < g->n_tensors && rc == GS_OK; i++)
        if (order[i - 1]->offset + order[i - 1]->n_bytes > order[i]->offset) /* both <= size */
            rc = FAIL(c, GS_ERR_FORMAT, "tensor '%s' overlaps tensor '%s'", show(order[i]->name).s,
                      show(order[i - 1]->name).s);
    gs_free(order);
    return rc;
}

static int parse_tensors(gs_gguf *g, cursor *c, uint64_t n_tensors) {
    if (n_tensors > GS_GGUF_MAX_TENSORS)
        return FAIL(c, GS_ERR_FORMAT, "the file claims %llu tensors; at most %u are allowed",
                    (unsigned long long)n_tensors, GS_GGUF_MAX_TENSORS);
    if (n_tensors > left(c) / MIN_TENSOR_BYTES)
        return FAIL(c, GS_ERR_FORMAT, "the file claims %llu tensors but is too small",
                    (unsigned long long)n_tensors);
    size_t n = (size_t)n_tensors;
    if (table_init(&g->tensor_names, n) != GS_OK)
        return FAIL(c, GS_ERR_NOMEM, "out of memory for %zu tensors", n);
    if (n == 0)
        return GS_OK; /* a vocabulary file: it has no data section to check */
    g->tensors = gs_calloc(n, sizeof *g->tensors);
    if (!g->tensors)
        return FAIL(c, GS_ERR_NOMEM, "out of memory for %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        int rc = take_tensor(c, i, &g->tensors[i]);
        if (rc == GS_OK)
            rc = table_add(c, &g->tensor_names, g->tensors, sizeof *g->tensors, i, "tensor");
        if (rc != GS_OK)
            return rc;
        g->n_tensors = i + 1;
    }
    uint64_t data_start;
    if (!gs_align_u64(c->pos, g->alignment, &data_start))
        return FAIL(c, GS_ERR_FORMAT, "the padding after the tensor table overflows");
    for (size_t i = 0; i < n; i++) {
        int rc = place_tensor(c, &g->tensors[i], data_start, g->alignment);
        if (rc != GS_OK)
            return rc;
    }
    return check_overlap(g, c);
}

/* ---- Open and close ------------------------------------------------------------------------ */

static int parse_header(gs_gguf *g, cursor *c, uint64_t *n_tensors, uint64_t *n_kv) {
    const uint8_t *magic;
    if (!take(c, 4, &magic) || memcmp(magic, "GGUF", 4) != 0)
        return FAIL(c, GS_ERR_FORMAT, "not a GGUF file");
    if (!take_u32(c, &g->version))
        return FAIL(c, GS_ERR_FORMAT, "the file ends inside the GGUF header");
    if (g->version != 0 && (g->version & 0xffff) == 0)
        return FAIL(c, GS_ERR_UNSUPPORTED, "big-endian GGUF files are not supported");
    if (g->version < 2 || g->version > 3)
        return FAIL(c, GS_ERR_UNSUPPORTED, "GGUF version %u is not supported (2 and 3 are)",
                    g->version);
    if (!take_u64(c, n_tensors) || !take_u64(c, n_kv))
        return FAIL(c, GS_ERR_FORMAT, "the file ends inside the GGUF header");
    return GS_OK;
}

/* mapped: the bytes are the reader's from here on, also after a failure. */
static int open_bytes(const void *data, size_t size, bool mapped, gs_gguf **out, char *err,
                      size_t errlen) {
    cursor c = {.data = data, .size = data ? size : 0, .err = err, .errlen = errlen};
    uint64_t n_tensors = 0;
    uint64_t n_kv = 0;
    *out = NULL;
    gs_gguf *g = gs_calloc(1, sizeof *g);
    if (!g) {
        if (mapped)
            gs_unmap(data, size);
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory for a GGUF file");
    }
    g->data = c.data;
    g->size = c.size;
    g->mapped = mapped;
    int rc = parse_header(g, &c, &n_tensors, &n_kv);
    if (rc == GS_OK)
        rc = parse_metadata(g, &c, n_kv);
    if (rc == GS_OK)
        rc = parse_alignment(g, &c);
    if (rc == GS_OK)
        rc = parse_tensors(g, &c, n_tensors);
    if (rc != GS_OK) {
        gs_gguf_close(g);
        return rc;
    }
    *out = g;
    return GS_OK;
}

int gs_gguf_open_mem(const void *data, size_t size, gs_gguf **out, char *err, size_t errlen) {
    return open_bytes(data, size, false, out, err, errlen);
}

int gs_gguf_index_tensors(gs_gguf *g, char *err, size_t errlen) {
    cursor c = {.err = err, .errlen = errlen};
    gs_free(g->tensor_names.slots);
    int rc = table_init(&g->tensor_names, g->n_tensors);
    if (rc != GS_OK)
        return FAIL(&c, rc, "out of memory for %zu tensors", g->n_tensors);
    for (size_t i = 0; i < g->n_tensors && rc == GS_OK; i++)
        rc = table_add(&c, &g->tensor_names, g->tensors, sizeof *g->tensors, i, "tensor");
    return rc;
}

bool gs_gguf_is_damaged(const gs_gguf *g) {
    bool damaged = g->mapped && gs_map_damaged(g->data);
    for (int i = 0; i < g->n_more; i++)
        damaged |= gs_gguf_is_damaged(g->more[i]);
    return damaged;
}

int gs_gguf_open(const char *path, gs_gguf **out, char *err, size_t errlen) {
    int rc = gs_gguf_open_one(path, out, err, errlen);
    if (rc != GS_OK)
        return rc;
    rc = gs_gguf_join(*out, path, err, errlen);
    if (rc != GS_OK) {
        gs_gguf_close(*out);
        *out = NULL;
    }
    return rc;
}

int gs_gguf_open_one(const char *path, gs_gguf **out, char *err, size_t errlen) {
    const void *data;
    size_t size;
    char why[512] = "";
    *out = NULL;
    int rc = gs_map_file(path, &data, &size, err, errlen);
    if (rc != GS_OK)
        return rc;
    rc = open_bytes(data, size, true, out, why, sizeof why);
    if (rc == GS_OK && gs_gguf_is_damaged(*out)) {
        gs_gguf_close(*out);
        *out = NULL;
        rc = gs_fail(why, sizeof why, GS_ERR_FORMAT, "the file became shorter while it was read");
    }
    return rc == GS_OK ? rc : gs_fail(err, errlen, rc, "%s: %s", path, why);
}

void gs_gguf_close(gs_gguf *g) {
    if (!g)
        return;
    for (size_t i = 0; g->str_offsets && i < g->n_kv; i++)
        gs_free(g->str_offsets[i]);
    gs_free(g->str_offsets);
    gs_free(g->kv);
    gs_free(g->kv_names.slots);
    gs_free(g->tensors);
    gs_free(g->tensor_names.slots);
    for (int i = 0; i < g->n_more; i++)
        gs_gguf_close(g->more[i]);
    gs_free(g->more);
    if (g->mapped)
        gs_unmap(g->data, g->size);
    gs_free(g);
}

/* ---- Getters ------------------------------------------------------------------------------- */

uint32_t gs_gguf_version(const gs_gguf *g) {
    return g->version;
}

uint64_t gs_gguf_file_bytes(const gs_gguf *g) {
    uint64_t n = g->size;
    for (int i = 0; i < g->n_more; i++)
        n += g->more[i]->size;
    return n;
}

uint32_t gs_gguf_alignment(const gs_gguf *g) {
    return g->alignment;
}

size_t gs_gguf_n_kv(const gs_gguf *g) {
    return g->n_kv;
}

const gs_gguf_kv *gs_gguf_kv_at(const gs_gguf *g, size_t i) {
    return i < g->n_kv ? &g->kv[i] : NULL;
}

const gs_gguf_kv *gs_gguf_find(const gs_gguf *g, const char *key) {
    const uint32_t *slot =
        table_slot(&g->kv_names, g->kv, sizeof *g->kv, (gs_str){key, strlen(key)});
    return slot && *slot != 0 ? &g->kv[*slot - 1] : NULL;
}

size_t gs_gguf_n_tensors(const gs_gguf *g) {
    return g->n_tensors;
}

const gs_gguf_tensor *gs_gguf_tensor_at(const gs_gguf *g, size_t i) {
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const gs_gguf_tensor *gs_gguf_tensor_find(const gs_gguf *g, const char *name) {
    const uint32_t *slot =
        table_slot(&g->tensor_names, g->tensors, sizeof *g->tensors, (gs_str){name, strlen(name)});
    return slot && *slot != 0 ? &g->tensors[*slot - 1] : NULL;
}

static int wrong_type(const gs_gguf_kv *kv, const char *want, char *err, size_t errlen) {
    if (kv->type == GS_GGUF_ARR)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "key '%s': is an array of %s, must be %s",
                       show(kv->key).s, vtype_name(kv->elem_type), want);
    return gs_fail(err, errlen, GS_ERR_FORMAT, "key '%s': is %s, must be %s", show(kv->key).s,
                   vtype_name(kv->type), want);
}

/* Any integer or bool as a 64-bit pattern; *negative tells an i64 below 0 from a large u64. */
static bool read_int(gs_gguf_vtype type, const uint8_t *p, uint64_t *out, bool *negative) {
    int64_t s = 0;
    uint64_t u = 0;
    *negative = false;
    switch (type) {
    case GS_GGUF_I8:
        s = *p < 128 ? *p : *p - 256;
        break;
    case GS_GGUF_I16: {
        int16_t v;
        memcpy(&v, p, sizeof v);
        s = v;
        break;
    }
    case GS_GGUF_I32: {
        int32_t v;
        memcpy(&v, p, sizeof v);
        s = v;
        break;
    }
    case GS_GGUF_I64:
        memcpy(&s, p, sizeof s);
        break;
    case GS_GGUF_BOOL:
    case GS_GGUF_U8:
    case GS_GGUF_U16:
    case GS_GGUF_U32:
    case GS_GGUF_U64:
        memcpy(&u, p, vtype_bytes(type)); /* little-endian */
        *out = u;
        return true;
    case GS_GGUF_F32:
    case GS_GGUF_F64:
    case GS_GGUF_STR:
    case GS_GGUF_ARR:
        return false;
    }
    *negative = s < 0;
    *out = (uint64_t)s;
    return true;
}

static bool read_float(gs_gguf_vtype type, const uint8_t *p, double *out) {
    if (type == GS_GGUF_F32) {
        float f;
        memcpy(&f, p, sizeof f);
        *out = (double)f;
        return true;
    }
    if (type == GS_GGUF_F64) {
        memcpy(out, p, sizeof *out);
        return true;
    }
    return false;
}

int gs_gguf_get_u32(const gs_gguf *g, const char *key, uint32_t *out, char *err, size_t errlen) {
    const gs_gguf_kv *kv = gs_gguf_find(g, key);
    uint64_t v;
    bool negative;
    if (!kv)
        return GS_ERR_NOT_FOUND;
    if (kv->type == GS_GGUF_BOOL || !read_int(kv->type, kv->data, &v, &negative))
        return wrong_type(kv, "an integer", err, errlen);
    if (negative || v > UINT32_MAX)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "key '%s': its value does not fit 32 bits", key);
    *out = (uint32_t)v;
    return GS_OK;
}

int gs_gguf_get_i64(const gs_gguf *g, const char *key, int64_t *out, char *err, size_t errlen) {
    const gs_gguf_kv *kv = gs_gguf_find(g, key);
    uint64_t v;
    bool negative;
    if (!kv)
        return GS_ERR_NOT_FOUND;
    if (kv->type == GS_GGUF_BOOL || !read_int(kv->type, kv->data, &v, &negative))
        return wrong_type(kv, "an integer", err, errlen);
    if (!negative && v > INT64_MAX)
        return gs_fail(err, errlen, GS_ERR_FORMAT, "key '%s': its value is too large", key);
    *out = (int64_t)v;
    return GS_OK;
}

int gs_gguf_get_f32(const gs_gguf *g, const char *key, float *out, char *err, size_t errlen) {
    const gs_gguf_kv *kv = gs_gguf_find(g, key);
    double v;
    if (!kv)
        return GS_ERR_NOT_FOUND;
    if (!read_float(kv->type, kv->data, &v))
        return wrong_type(kv, "f32 or f64", err, errlen);
    if (!isfinite(v) || !isfinite((float)v))
        return gs_fail(err, errlen, GS_ERR_FORMAT, "key '%s': its value is not a finite number",
                       key);
    *out = (float)v;
    return GS_OK;
}

int gs_gguf_get_bool(const gs_gguf *g, const char *key, bool *out, char *err, size_t errlen) {
    const gs_gguf_kv *kv = gs_gguf_find(g, key);
    if (!kv)
        return GS_ERR_NOT_FOUND;
    if (kv->type != GS_GGUF_BOOL)
        return wrong_type(kv, "bool", err, errlen);
    *out = *(const uint8_t *)kv->data != 0;
    return GS_OK;
}

/* The string at a place that the parser has already checked; its length once more, because the file
 * may have been written to since then. */
static gs_str str_at(const gs_gguf *g, const uint8_t *p) {
    uint64_t len;
    memcpy(&len, p, sizeof len);
    p += sizeof len;
    if (len > (uint64_t)(g->data + g->size - p))
        len = 0;
    return (gs_str){(const char *)p, (size_t)len};
}

int gs_gguf_get_str(const gs_gguf *g, const char *key, gs_str *out, char *err, size_t errlen) {
    const gs_gguf_kv *kv = gs_gguf_find(g, key);
    if (!kv)
        return GS_ERR_NOT_FOUND;
    if (kv->type != GS_GGUF_STR)
        return wrong_type(kv, "a string", err, errlen);
    *out = str_at(g, kv->data);
    return GS_OK;
}

int gs_gguf_get_arr(const gs_gguf *g, const char *key, gs_gguf_vtype elem_type,
                    const gs_gguf_kv **out, char *err, size_t errlen) {
    const gs_gguf_kv *kv = gs_gguf_find(g, key);
    if (!kv)
        return GS_ERR_NOT_FOUND;
    if (kv->type != GS_GGUF_ARR || kv->elem_type != elem_type) {
        char want[32] = "an array of ";
        strncat(want, vtype_name(elem_type), sizeof want - strlen(want) - 1);
        return wrong_type(kv, want, err, errlen);
    }
    *out = kv;
    return GS_OK;
}

static const uint8_t *elem(const gs_gguf_kv *kv, uint64_t i) {
    return (const uint8_t *)kv->data + i * vtype_bytes(kv->elem_type);
}

int64_t gs_gguf_arr_i64(const gs_gguf_kv *kv, uint64_t i) {
    uint64_t v;
    bool negative;
    if (i >= kv->n || !read_int(kv->elem_type, elem(kv, i), &v, &negative))
        return 0;
    return !negative && v > INT64_MAX ? INT64_MAX : (int64_t)v;
}

float gs_gguf_arr_f32(const gs_gguf_kv *kv, uint64_t i) {
    double v;
    if (i >= kv->n || !read_float(kv->elem_type, elem(kv, i), &v))
        return 0;
    return (float)v;
}

gs_str gs_gguf_arr_str(const gs_gguf *g, const gs_gguf_kv *kv, uint64_t i) {
    if (i >= kv->n || kv->elem_type != GS_GGUF_STR)
        return (gs_str){"", 0};
    if (kv->type == GS_GGUF_STR)
        return str_at(g, kv->data);
    return str_at(g, g->data + g->str_offsets[kv - g->kv][i]);
}
