/*
 * gpt-oss ("harmony"): an answer is a row of messages, each with a header that says where it goes.
 *
 *     <|channel|>analysis<|message|>thoughts<|end|>
 *     <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}
 *     <|call|>  or  <|start|>assistant<|channel|>final<|message|>answer<|return|>
 */
#include <ctype.h>
#include <string.h>

#include "api/outparse_impl.h"

#define MAX_HEADER 256

static const char message_mark[] = "<|message|>";
static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>"};

static bool has(const char *s, size_t n, const char *word) {
    return gs_out_find(s, n, word) < n;
}

static int open_message(gs_outparse *p, const char *s, size_t n) {
    static const char to[] = "to=functions.";
    size_t at = gs_out_find(s, n, to), from = at + sizeof(to) - 1, end = from;
    p->scan = (gs_jsonscan){0};
    p->state = GS_OUT_MESSAGE;
    p->field = has(s, n, "analysis") ? GS_PART_REASONING : GS_PART_TEXT;
    if (at == n)
        return 1;
    while (end < n && s[end] != '<' && !isspace((unsigned char)s[end]))
        end++;
    if (!p->cfg.tools || !gs_out_good_name(s + from, end - from))
        return 1;
    p->field = GS_PART_CALL_ARGS;
    int rc = gs_out_begin_call(p, s + from, end - from);
    return rc != 0 ? rc : 1;
}

static int step_header(gs_outparse *p, bool final) {
    static const char role[] = "assistant";
    const char *s = p->held.data;
    size_t n = p->held.len, most = n < sizeof(role) - 1 ? n : sizeof(role) - 1;
    if (n == 0)
        return 0;
    /* Headers are short and begin with a mark or a recipient; anything else is an answer. */
    bool header = s[0] == '<' || s[0] == ' ' || memcmp(s, role, most) == 0;
    size_t at = gs_out_find(s, n, message_mark);
    if (header && at < n && at <= MAX_HEADER) {
        int rc = open_message(p, s, at);
        gs_out_take(p, at + sizeof(message_mark) - 1);
        return rc;
    }
    if (header && n <= MAX_HEADER + sizeof(message_mark) && !final)
        return 0;
    if (header && n <= MAX_HEADER) { /* half a header says nothing */
        gs_out_take(p, n);
        return 0;
    }
    p->field = GS_PART_TEXT;
    p->state = GS_OUT_MESSAGE;
    return 1;
}

/* Arguments, as far as they are JSON. */
static int message_args(gs_outparse *p, const char *s, size_t n) {
    size_t i = 0, from = 0;
    while (p->begun && i < n) {
        if (p->scan.depth == 0 && s[i] != '{') {
            if (!isspace((unsigned char)s[i]))
                return gs_out_end_call(p, false);
            from = ++i;
            continue;
        }
        gs_json_event ev = gs_jsonscan_byte(&p->scan, s[i]);
        i += ev != GS_JSON_BAD;
        if (ev == GS_JSON_BAD || ev == GS_JSON_DONE) {
            int rc = gs_out_emit(p, GS_PART_CALL_ARGS, s + from, i - from);
            return rc != 0 ? rc : gs_out_end_call(p, ev == GS_JSON_DONE);
        }
    }
    return p->begun ? gs_out_emit(p, GS_PART_CALL_ARGS, s + from, i - from) : 0;
}

static int message_text(gs_outparse *p, const char *s, size_t n) {
    if (p->field == GS_PART_CALL_ARGS)
        return message_args(p, s, n);
    return gs_out_emit(p, (gs_part_kind)p->field, s, n);
}

static int step_message(gs_outparse *p, bool final) {
    const char *s = p->held.data;
    size_t n = p->held.len, end = n, len = 0, tail = 0;
    if (n == 0 && !final)
        return 0;
    for (size_t i = 0; n > 0 && i < sizeof(ends) / sizeof(ends[0]); i++) {
        size_t at = gs_out_find(s, n, ends[i]), hold = gs_out_tail(s, n, ends[i]);
        if (at < end) {
            end = at;
            len = strlen(ends[i]);
        }
        tail = hold > tail ? hold : tail;
    }
    bool ended = end < n;
    if (!ended && !final)
        end = n - tail;
    int rc = message_text(p, s, end);
    gs_out_take(p, end + len);
    if (rc == 0 && (ended || final) && p->begun)
        rc = gs_out_end_call(p, false);
    if (rc != 0 || !ended)
        return rc;
    p->state = GS_OUT_HEADER;
    return 1;
}

int gs_out_step_channel(gs_outparse *p, bool final) {
    return p->state == GS_OUT_HEADER ? step_header(p, final) : step_message(p, final);
}
