/*
 * Any text as a model's answer: byte 0 chooses the format, byte 1 the flags and the size of the
 * pieces. Calls must come in order and in their parts, whole ones with JSON, and the division into
 * pieces must not change what comes out.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/outparse_impl.h"
#include "base/buf.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct sink {
    gs_buf text, reasoning, calls, args;
    int32_t n_begun;
    bool open;
} sink;

static void check(bool good) {
    if (!good)
        abort();
}

static int take(void *arg, const gs_part *part) {
    sink *k = arg;
    switch (part->kind) {
    case GS_PART_TEXT:
        gs_buf_add(&k->text, part->data, part->n);
        break;
    case GS_PART_REASONING:
        gs_buf_add(&k->reasoning, part->data, part->n);
        break;
    case GS_PART_CALL_BEGIN:
        check(part->call == k->n_begun && part->n > 0);
        k->n_begun++;
        k->open = true;
        gs_buf_clear(&k->args);
        gs_buf_add(&k->calls, part->data, part->n);
        gs_buf_char(&k->calls, '|');
        break;
    case GS_PART_CALL_ARGS:
        check(k->open && part->call == k->n_begun - 1);
        gs_buf_add(&k->args, part->data, part->n);
        gs_buf_add(&k->calls, part->data, part->n);
        break;
    case GS_PART_CALL_END: {
        check(k->open && part->call == k->n_begun - 1);
        k->open = false;
        gs_buf_char(&k->calls, '.');
        gs_jsonscan scan = {0};
        gs_json_event ev = GS_JSON_MORE;
        for (size_t i = 0; i < k->args.len && ev != GS_JSON_BAD && ev != GS_JSON_DONE; i++)
            ev = gs_jsonscan_byte(&scan, k->args.data[i]);
        check(ev == GS_JSON_DONE);
        break;
    }
    }
    return 0;
}

static void parse(const gs_outparse_config *cfg, const char *s, size_t n, size_t piece, sink *k) {
    gs_outparse p;
    gs_outparse_init(&p, cfg, take, k);
    for (size_t at = 0; at < n;) {
        size_t end = at + piece < n ? at + piece : n;
        while (end < n && ((unsigned char)s[end] & 0xC0) == 0x80)
            end++;
        check(gs_outparse_feed(&p, s + at, end - at) == 0);
        at = end;
    }
    check(gs_outparse_finish(&p) == 0);
    gs_outparse_deinit(&p);
}

static bool same(const gs_buf *a, const gs_buf *b) {
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

static void sink_deinit(sink *k) {
    gs_buf_deinit(&k->text);
    gs_buf_deinit(&k->reasoning);
    gs_buf_deinit(&k->calls);
    gs_buf_deinit(&k->args);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static json_t *tools;
    if (!tools)
        tools = json_loads("[{\"function\":{\"name\":\"get\",\"parameters\":{\"properties\":{\"a\":"
                           "{\"type\":\"string\"}}}}}]",
                           0, NULL);
    /* The detokeniser gives whole characters only. */
    if (size < 2 || !gs_utf8_valid((const char *)data + 2, size - 2))
        return 0;
    gs_outparse_config cfg = {.format = &gs_out_formats[data[0] % gs_n_out_formats],
                              .tools = data[1] & 1 ? tools : NULL,
                              .in_reasoning = (data[1] & 2) != 0,
                              .bare = (data[1] & 4) != 0};
    sink whole = {0}, pieces = {0};
    const char *s = (const char *)data + 2;
    parse(&cfg, s, size - 2, size, &whole);
    parse(&cfg, s, size - 2, 1 + (data[1] >> 3), &pieces);
    check(same(&whole.text, &pieces.text) && same(&whole.reasoning, &pieces.reasoning) &&
          same(&whole.calls, &pieces.calls));
    check(whole.text.len + whole.reasoning.len <= size);
    sink_deinit(&whole);
    sink_deinit(&pieces);
    return 0;
}
