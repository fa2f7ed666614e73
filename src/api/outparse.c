/*
 * The machine: text goes through `held`, a state looks at it and takes from its front what it is
 * sure of.
 *
 *     TEXT ──think_open, only at the start──► REASONING ──think_close──► TEXT
 *       │ open                  name_first, name ─► TEXT
 *       ├─► JSON ──────────────────────────────► TEXT
 *       ├─► NAME ──► ARGS ─────────────────────► TEXT
 *       └─► TAGS (name, arguments in turn) ────► TEXT
 *
 * A call that turns out not to be one goes back to TEXT, mark and all, as long as it was not told.
 * gpt-oss has its own two states (outparse_channels.c).
 */
#include "api/outparse.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "api/outparse_impl.h"
#include "base/err.h"
#include "base/jsonw.h"

#define MAX_NAME 64

/* What a step tells the loop, beside negative errors. */
enum { STEP_AGAIN = 1, STEP_WAIT = 0 };

enum { FIELD_NONE, FIELD_NAME, FIELD_ARGS, FIELD_FUNCTION, FIELD_OTHER };

/* ---- Helpers ------------------------------------------------------------------------------ */

int gs_out_emit(gs_outparse *p, gs_part_kind kind, const char *data, size_t n) {
    gs_part part = {kind, p->n_calls, data, n};
    bool always = kind == GS_PART_CALL_BEGIN || kind == GS_PART_CALL_END;
    return n > 0 || always ? p->emit(p->arg, &part) : 0;
}

void gs_out_take(gs_outparse *p, size_t n) {
    gs_buf_drop_front(&p->held, n);
    p->pos = 0;
}

static size_t spaces(const char *s, size_t n) {
    size_t i = 0;
    while (i < n && isspace((unsigned char)s[i]))
        i++;
    return i;
}

/* Longest tail of s that is a beginning of mark, and not all of it. */
size_t gs_out_tail(const char *s, size_t n, const char *mark) {
    size_t len = strlen(mark), most = len - 1 < n ? len - 1 : n;
    for (size_t k = len > 0 ? most : 0; k > 0; k--) {
        if (memcmp(s + n - k, mark, k) == 0)
            return k;
    }
    return 0;
}

size_t gs_out_find(const char *s, size_t n, const char *mark) {
    const char *hit = memmem(s, n, mark, strlen(mark));
    return hit ? (size_t)(hit - s) : n;
}

static bool begins(const char *s, size_t n, const char *mark) {
    return n >= strlen(mark) && memcmp(s, mark, strlen(mark)) == 0;
}

/* s may still become mark. */
static bool may_begin(const char *s, size_t n, const char *mark) {
    return n < strlen(mark) && memcmp(s, mark, n) == 0;
}

static bool name_char(char c) {
    return isalnum((unsigned char)c) || (c && strchr("_-.:/", c));
}

bool gs_out_good_name(const char *s, size_t n) {
    if (n == 0 || n > MAX_NAME)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!name_char(s[i]))
            return false;
    }
    return true;
}

/* n > 0. */
static const json_t *find_tool(const gs_outparse *p, const char *name, size_t n) {
    for (size_t i = 0; i < json_array_size(p->cfg.tools); i++) {
        const json_t *f = json_object_get(json_array_get(p->cfg.tools, i), "function");
        const json_t *have = json_object_get(f, "name");
        if (json_string_length(have) == n && memcmp(json_string_value(have), name, n) == 0)
            return f;
    }
    return NULL;
}

/* Text, without the white space that is left out. */
static int emit_text(gs_outparse *p, const char *s, size_t n) {
    size_t skip = p->trim ? spaces(s, n) : 0;
    if (skip == n)
        return 0;
    p->trim = p->at_start = p->after_call = false;
    return gs_out_emit(p, GS_PART_TEXT, s + skip, n - skip);
}

static void to_text(gs_outparse *p) {
    p->state = GS_OUT_TEXT;
    p->pos = 0;
}

int gs_out_begin_call(gs_outparse *p, const char *name, size_t n) {
    p->begun = true;
    return gs_out_emit(p, GS_PART_CALL_BEGIN, name, n);
}

/* The call that was told is over; whole: with arguments that are JSON. */
int gs_out_end_call(gs_outparse *p, bool whole) {
    int rc = whole ? gs_out_emit(p, GS_PART_CALL_END, "", 0) : 0;
    p->n_calls++;
    p->begun = false;
    /* What follows half a call is not looked at for more of them without a mark. */
    p->after_call = p->trim = whole;
    return rc;
}

/* No call after all. What was held is text, except what a call already told took with it: the
 * first character goes out as it is, so that the mark is not taken for one again. */
static int no_call(gs_outparse *p) {
    int rc = 0;
    if (p->begun) {
        rc = gs_out_end_call(p, false);
        gs_out_take(p, p->pos);
    } else if (p->held.len > 0) {
        p->trim = p->trim && !p->after_call;
        size_t one = 1;
        while (one < p->held.len && ((unsigned char)p->held.data[one] & 0xC0) == 0x80)
            one++;
        rc = emit_text(p, p->held.data, one);
        gs_out_take(p, one);
        p->at_start = p->after_call = false;
    }
    to_text(p);
    return rc != 0 ? rc : STEP_AGAIN;
}

/* ---- Text --------------------------------------------------------------------------------- */

typedef struct mark_hit {
    size_t at, len;
    const char *mark;
    int what; /* state, or -1: skip */
} mark_hit;

static void look_for(const char *s, size_t n, const char *mark, int what, mark_hit *best,
                     size_t *tail) {
    if (!mark)
        return;
    size_t at = gs_out_find(s, n, mark), hold = gs_out_tail(s, n, mark);
    if (at < best->at)
        *best = (mark_hit){at, strlen(mark), mark, what};
    if (hold > *tail)
        *tail = hold;
}

static int body_state(const gs_out_format *f) {
    return f->body == GS_OUT_JSON ? GS_OUT_IN_JSON : GS_OUT_IN_NAME;
}

static const char *think_open(const gs_out_format *f) {
    return f->think_open ? f->think_open : "<think>";
}

static const char *think_close(const gs_out_format *f) {
    return f->think_close ? f->think_close : "</think>";
}

static void start_call(gs_outparse *p, int state, bool bare) {
    p->state = state;
    p->bare = bare;
    p->in_list = p->list_calls = p->begun = p->has_args = false;
    p->scan = (gs_jsonscan){0};
    p->field = FIELD_NONE;
    p->level = 1;
    gs_buf_clear(&p->name);
    gs_buf_clear(&p->args);
}

/* A bare call: the answer's first byte, or the first one after a call, opens JSON. 1: yes, 0: no,
 * -1: can't be said yet. */
static int bare_call(const gs_outparse *p, const char *s, size_t n) {
    static const char fence[] = "```json";
    const gs_out_format *f = p->cfg.format;
    bool allowed = f->bare || p->cfg.bare || (p->after_call && f->body == GS_OUT_JSON);
    if (!p->cfg.tools || !allowed || !(p->at_start || p->after_call))
        return 0;
    size_t at = 0;
    while (at < n &&
           (isspace((unsigned char)s[at]) || (p->after_call && (s[at] == ';' || s[at] == ','))))
        at++;
    bool unsure = at == n;
    for (int i = 0; !unsure && i < GS_OUT_MARKS && f->open[i]; i++) {
        if (begins(s + at, n - at, f->open[i]))
            return 0;
        unsure = may_begin(s + at, n - at, f->open[i]);
    }
    if (unsure)
        return -1;
    if (s[at] == '{' || s[at] == '[')
        return 1;
    size_t most = n - at < sizeof(fence) - 1 ? n - at : sizeof(fence) - 1;
    if (memcmp(s + at, fence, most) != 0)
        return 0;
    return most == sizeof(fence) - 1 ? 1 : -1;
}

static int hold_text(gs_outparse *p, size_t tail, bool final) {
    const char *s = p->held.data;
    size_t n = p->held.len, release = final ? n : n - tail;
    if (p->cfg.tools && !final) {
        while (release > 0 && isspace((unsigned char)s[release - 1]))
            release--;
    }
    int rc = emit_text(p, s, release);
    gs_out_take(p, release);
    return rc;
}

static int take_mark(gs_outparse *p, const mark_hit *hit) {
    const char *s = p->held.data;
    size_t before = hit->at;
    while (before > 0 && isspace((unsigned char)s[before - 1]))
        before--;
    int rc = emit_text(p, s, before);
    if (rc != 0)
        return rc;
    if (hit->what == GS_OUT_REASONING || hit->what < 0) {
        gs_out_take(p, hit->at + hit->len);
        p->trim = true;
        if (hit->what >= 0)
            p->state = hit->what;
        return STEP_AGAIN;
    }
    gs_out_take(p, hit->at);
    p->pos = hit->len;
    start_call(p, hit->what, false);
    return STEP_AGAIN;
}

static bool may_follow(const gs_outparse *p, const char *s, size_t n, const char *mark) {
    size_t lead = spaces(s, n);
    return p->after_call &&
           (begins(s + lead, n - lead, mark) || may_begin(s + lead, n - lead, mark));
}

static int step_text(gs_outparse *p, bool final) {
    const gs_out_format *f = p->cfg.format;
    const char *s = p->held.data;
    size_t n = p->held.len, tail = 0;
    mark_hit hit = {.at = n};
    if (n == 0)
        return STEP_WAIT;
    int bare = bare_call(p, s, n);
    if (bare > 0) {
        size_t brace = 0;
        while (s[brace] != '{' && s[brace] != '[' && s[brace] != '`')
            brace++;
        start_call(p, GS_OUT_IN_JSON, true);
        p->pos = s[brace] == '`' ? brace + strlen("```json") : brace;
        return STEP_AGAIN;
    }
    if (bare < 0 && !final)
        return STEP_WAIT;
    if (p->at_start && p->n_calls == 0 && spaces(s, n) < n) {
        size_t lead = spaces(s, n);
        const char *mark = think_open(f);
        if (n - lead >= strlen(mark) && memcmp(s + lead, mark, strlen(mark)) == 0) {
            hit = (mark_hit){lead, strlen(mark), mark, GS_OUT_REASONING};
            return take_mark(p, &hit);
        }
        if (gs_out_tail(s + lead, n - lead, mark) == n - lead && !final)
            return STEP_WAIT;
    }
    for (int i = 0; p->cfg.tools && i < GS_OUT_MARKS; i++)
        look_for(s, n, f->open[i], body_state(f), &hit, &tail);
    if (p->cfg.tools)
        look_for(s, n, f->section, -1, &hit, &tail);
    for (int i = 0; p->n_calls > 0 && i < GS_OUT_SKIPS; i++) {
        /* A fence belongs to a call only right after it. */
        if (f->skip[i] && f->skip[i][0] == '`' && !may_follow(p, s, n, f->skip[i]))
            continue;
        look_for(s, n, f->skip[i], -1, &hit, &tail);
    }
    if (hit.at < n)
        return take_mark(p, &hit);
    if (p->at_start && spaces(s, n) == n && !final)
        return STEP_WAIT;
    return hold_text(p, tail, final);
}

/* ---- Reasoning ---------------------------------------------------------------------------- */

static int emit_reasoning(gs_outparse *p, const char *s, size_t n) {
    size_t skip = p->trim ? spaces(s, n) : 0;
    if (skip < n)
        p->trim = false;
    return gs_out_emit(p, GS_PART_REASONING, s + skip, n - skip);
}

static int step_reasoning(gs_outparse *p, bool final) {
    const char *mark = think_close(p->cfg.format), *s = p->held.data;
    size_t n = p->held.len, at = n > 0 ? gs_out_find(s, n, mark) : 0;
    if (n == 0)
        return STEP_WAIT;
    size_t end = at < n || final ? at : n - gs_out_tail(s, n, mark);
    while (end > 0 && isspace((unsigned char)s[end - 1]))
        end--;
    int rc = emit_reasoning(p, s, end);
    if (rc != 0 || (at == n && !final)) {
        gs_out_take(p, end);
        return rc;
    }
    gs_out_take(p, at < n ? at + strlen(mark) : n);
    p->trim = true;
    to_text(p);
    return STEP_AGAIN;
}

/* ---- A call as JSON ----------------------------------------------------------------------- */

static bool key_is(const gs_outparse *p, const char *word) {
    return p->key.len == strlen(word) && memcmp(p->key.data, word, p->key.len) == 0;
}

static int field_of(const gs_outparse *p) {
    if (key_is(p, "name") || key_is(p, "tool_name"))
        return FIELD_NAME;
    if (key_is(p, "arguments") || key_is(p, "parameters"))
        return FIELD_ARGS;
    return key_is(p, "function") ? FIELD_FUNCTION : FIELD_OTHER;
}

/* Arguments that came as a string: with an object in it, they are that (STEP_AGAIN); else this is
 * no call (STEP_WAIT). */
static int open_string_args(gs_outparse *p) {
    json_t *v = json_loadb(p->args.data, p->args.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    gs_jsonscan scan = {0};
    const char *s = json_is_string(v) ? json_string_value(v) : "";
    size_t n = strlen(s), lead = spaces(s, n);
    bool good = s[lead] == '{' && n == json_string_length(v); /* no NUL inside */
    for (size_t i = lead; good && i < n; i++) {
        gs_json_event ev = gs_jsonscan_byte(&scan, s[i]);
        good = ev != GS_JSON_BAD;
        if (ev == GS_JSON_DONE) {
            good = i + 1 + spaces(s + i + 1, n - i - 1) == n;
            break;
        }
    }
    gs_buf_clear(&p->args);
    int rc = 0;
    if (good && scan.depth == 0)
        rc = gs_buf_add(&p->args, s, n);
    else
        good = false;
    json_decref(v);
    return rc != 0 ? rc : good ? STEP_AGAIN : STEP_WAIT;
}

/* Tells what is known of a call with a name: that, and what there is of its arguments. */
static int tell_call(gs_outparse *p) {
    int rc = p->args.failed ? GS_ERR_NOMEM : 0;
    if (rc == 0 && !p->begun)
        rc = gs_out_begin_call(p, p->name.data, p->name.len);
    if (rc == 0)
        rc = gs_out_emit(p, GS_PART_CALL_ARGS, p->args.data, p->args.len);
    gs_buf_clear(&p->args);
    return rc;
}

/* The name is known and the arguments are an object. */
static bool is_certain(const gs_outparse *p) {
    return p->begun ||
           (p->name.len > 0 && p->has_args && p->args.len > 0 && p->args.data[0] == '{');
}

/* No call, or no more of it. What is certain of it is told first, as it would have been had it come
 * in smaller pieces. */
static int break_call(gs_outparse *p) {
    int rc = is_certain(p) ? tell_call(p) : 0;
    return rc != 0 ? rc : no_call(p);
}

/* A member's value begins with c. False: this is no call. */
static bool value_begins(gs_outparse *p, char c) {
    p->field = field_of(p);
    p->is_string = c == '"';
    if (p->field == FIELD_FUNCTION && c == '{') {
        p->level = 2;
        p->field = FIELD_NONE;
        return true;
    }
    if (p->field == FIELD_FUNCTION)
        p->field = FIELD_NAME;
    /* An answer in JSON is no call; it need not be held back to its end to see that. */
    if (p->bare && !is_certain(p) && p->field == FIELD_OTHER && !key_is(p, "type") &&
        !key_is(p, "id"))
        return false;
    if (p->field == FIELD_NAME && c != '"')
        return false;
    if (p->field == FIELD_ARGS) {
        if (p->has_args || (c != '{' && c != '"' && c != 'n'))
            return false;
        p->has_args = true;
        gs_buf_clear(&p->args);
    }
    return true;
}

/* STEP_AGAIN: it is the name of a function, or may be; STEP_WAIT: this is no call. */
static int name_ended(gs_outparse *p, size_t from, size_t to) {
    const char *s = p->held.data + from;
    if (!gs_out_good_name(s, to - from) || (p->bare && !find_tool(p, s, to - from)))
        return STEP_WAIT;
    if (p->begun || p->name.len > 0)
        return STEP_AGAIN; /* "function" after "name" */
    return gs_buf_add(&p->name, s, to - from) == 0 ? STEP_AGAIN : GS_ERR_NOMEM;
}

static int call_ended(gs_outparse *p) {
    if (p->name.len == 0 || (p->bare && !p->has_args))
        return no_call(p);
    if (!p->has_args)
        gs_buf_str(&p->args, "{}");
    int rc = tell_call(p);
    if (rc == 0)
        rc = gs_out_end_call(p, true);
    gs_out_take(p, p->pos);
    bool list = p->in_list, bare = p->bare;
    to_text(p);
    if (list) {
        start_call(p, GS_OUT_IN_JSON, bare);
        p->in_list = p->list_calls = true;
    }
    return rc != 0 ? rc : STEP_AGAIN;
}

/* STEP_WAIT: go on with the next byte. */
static int value_ended(gs_outparse *p) {
    int field = p->field, rc = STEP_AGAIN;
    if (p->scan.depth != p->level)
        return STEP_WAIT;
    p->field = FIELD_NONE;
    if (field == FIELD_NAME)
        rc = name_ended(p, p->key_from + 1, p->pos - 1);
    else if (field == FIELD_ARGS && p->is_string)
        rc = open_string_args(p);
    if (rc < 0)
        return rc;
    return rc == STEP_WAIT ? break_call(p) : STEP_WAIT;
}

static void null_args(gs_outparse *p) {
    p->has_args = false;
    gs_buf_clear(&p->args);
}

/* One byte of the object that describes a call. STEP_WAIT: go on with the next one. */
static int json_byte(gs_outparse *p, char c) {
    int depth = p->scan.depth;
    gs_json_event ev = gs_jsonscan_byte(&p->scan, c);
    size_t at = p->pos++;
    if (ev == GS_JSON_BAD) {
        p->pos = at;
        return break_call(p);
    }
    if (ev == GS_JSON_KEY_BEGIN && p->scan.depth == p->level) {
        /* null, true and numbers end without an event. */
        if (p->field == FIELD_ARGS)
            null_args(p);
        p->field = FIELD_NONE;
        p->key_from = at + 1;
    } else if (ev == GS_JSON_KEY_END && p->scan.depth == p->level) {
        gs_buf_clear(&p->key);
        if (gs_buf_add(&p->key, p->held.data + p->key_from, at - p->key_from) != 0)
            return GS_ERR_NOMEM;
        return STEP_WAIT;
    } else if (ev == GS_JSON_BEGIN && depth == p->level) {
        if (!value_begins(p, c)) {
            p->pos = at;
            return break_call(p);
        }
        p->key_from = at;
    }
    bool args = p->field == FIELD_ARGS;
    bool ends = (ev == GS_JSON_END || ev == GS_JSON_DONE) && p->scan.depth < p->level;
    if (args && !ends &&
        (p->scan.depth > p->level || depth > p->level || p->is_string ||
         isalpha((unsigned char)c)) &&
        gs_buf_char(&p->args, c) != 0)
        return GS_ERR_NOMEM;
    if (ev == GS_JSON_DONE) {
        if (!p->begun && p->args.len > 0 && p->args.data[0] == 'n')
            null_args(p);
        return call_ended(p);
    }
    return ev == GS_JSON_END ? value_ended(p) : STEP_WAIT;
}

/* Between the objects of a list, or before the first one. */
static int between_byte(gs_outparse *p, char c) {
    if (isspace((unsigned char)c) || (p->in_list && c == ',')) {
        p->pos++;
        return STEP_WAIT;
    }
    if (c == '{') {
        int rc = json_byte(p, c);
        return rc;
    }
    if (c == '[' && !p->in_list) {
        p->in_list = true;
        p->pos++;
        return STEP_WAIT;
    }
    if (c == ']' && p->list_calls) {
        gs_out_take(p, p->pos + 1);
        to_text(p);
        return STEP_AGAIN;
    }
    if (p->list_calls) { /* calls came, then something else */
        gs_out_take(p, p->pos);
        to_text(p);
        return STEP_AGAIN;
    }
    return no_call(p);
}

static int step_json(gs_outparse *p, bool final) {
    while (p->pos < p->held.len) {
        char c = p->held.data[p->pos];
        int rc = p->scan.depth == 0 ? between_byte(p, c) : json_byte(p, c);
        if (rc != STEP_WAIT)
            return rc;
    }
    /* Arguments are told as they come, once it is certain that they are an object. */
    if (is_certain(p)) {
        int rc = tell_call(p);
        if (rc != 0)
            return rc;
    }
    if (final && p->begun)
        return gs_out_end_call(p, false);
    if (p->list_calls && p->scan.depth == 0)
        return STEP_WAIT;
    return final ? no_call(p) : STEP_WAIT;
}

/* ---- Name, then arguments ----------------------------------------------------------------- */

static int step_name(gs_outparse *p, bool final) {
    const gs_out_format *f = p->cfg.format;
    bool tags = f->body == GS_OUT_TAGS;
    const char *end_mark = tags ? f->tags.name_end : f->name_end;
    const char *s = p->held.len > 0 ? p->held.data + p->pos : "";
    size_t n = p->held.len - p->pos, lead = spaces(s, n), end = lead, prefix = 0;
    if (n == 0)
        return final && p->held.len > 0 ? no_call(p) : STEP_WAIT;
    if (f->name_prefix && n - lead >= strlen(f->name_prefix) &&
        memcmp(s + lead, f->name_prefix, strlen(f->name_prefix)) == 0)
        prefix = strlen(f->name_prefix);
    end += prefix;
    while (end < n && name_char(s[end]))
        end++;
    size_t len = strlen(end_mark), at = end;
    if (at < n && len > 0 && isspace((unsigned char)s[at]) && end_mark[0] != '\n')
        at += spaces(s + at, n - at);
    bool more = n - at < len || (len == 0 && at == n);
    if (more && !final && end - lead <= MAX_NAME + 64 &&
        (len == 0 || memcmp(s + at, end_mark, n - at) == 0))
        return STEP_WAIT;
    bool half_prefix =
        f->name_prefix && !prefix && gs_out_tail(s + lead, n - lead, f->name_prefix) == n - lead;
    if (half_prefix && !final)
        return STEP_WAIT;
    size_t from = lead + prefix, name_len = end - from;
    const char *colon = memchr(s + from, ':', name_len); /* Kimi's "name:0" */
    if (f->name_prefix && prefix && colon)
        name_len = (size_t)(colon - (s + from));
    if (more || memcmp(s + at, end_mark, len) != 0 || !gs_out_good_name(s + from, name_len))
        return no_call(p);
    if (f->name_first && name_len == 3 && memcmp(s + from, "all", 3) == 0) {
        gs_out_take(p, p->pos + at + len);
        p->at_start = false;
        to_text(p);
        return STEP_AGAIN;
    }
    if (f->name_first && !find_tool(p, s + from, name_len))
        return no_call(p);
    gs_buf_clear(&p->name);
    if (gs_buf_add(&p->name, s + from, name_len) != 0)
        return GS_ERR_NOMEM;
    p->pos += at + len;
    p->state = tags ? GS_OUT_IN_TAGS : GS_OUT_IN_ARGS;
    return STEP_AGAIN;
}

/* The object after the name. */
static int step_args(gs_outparse *p, bool final) {
    static const char fence[] = "```json";
    while (p->pos < p->held.len) {
        const char *s = p->held.data + p->pos;
        size_t n = p->held.len - p->pos;
        if (p->scan.depth == 0) {
            if (isspace((unsigned char)*s)) {
                p->pos++;
                continue;
            }
            size_t most = n < sizeof(fence) - 1 ? n : sizeof(fence) - 1;
            if (memcmp(s, fence, most) == 0) {
                if (most < sizeof(fence) - 1)
                    break;
                p->pos += most;
                continue;
            }
            if (*s != '{')
                return no_call(p);
            int rc = gs_out_begin_call(p, p->name.data, p->name.len);
            if (rc != 0)
                return rc;
            gs_out_take(p, p->pos);
        }
        gs_json_event ev = gs_jsonscan_byte(&p->scan, p->held.data[p->pos]);
        if (ev == GS_JSON_BAD || ev == GS_JSON_DONE) {
            size_t end = p->pos + (ev == GS_JSON_DONE);
            int rc = gs_out_emit(p, GS_PART_CALL_ARGS, p->held.data, end);
            gs_out_take(p, end);
            to_text(p);
            if (rc == 0)
                rc = gs_out_end_call(p, ev == GS_JSON_DONE);
            return rc != 0 ? rc : STEP_AGAIN;
        }
        p->pos++;
    }
    if (p->begun) {
        int rc = gs_out_emit(p, GS_PART_CALL_ARGS, p->held.data, p->pos);
        gs_out_take(p, p->pos);
        return rc == 0 && final ? gs_out_end_call(p, false) : rc;
    }
    return final ? no_call(p) : STEP_WAIT;
}

/* ---- Arguments between tags --------------------------------------------------------------- */

/* Whether the schema of the call's parameter says that it is a string, and nothing else. */
static bool is_text_parameter(const gs_outparse *p, const char *key) {
    const json_t *f = find_tool(p, p->name.data, p->name.len);
    const json_t *all = json_object_get(json_object_get(f, "parameters"), "properties");
    const char *type = json_string_value(json_object_get(json_object_get(all, key), "type"));
    return type && strcmp(type, "string") == 0;
}

static void add_string(gs_buf *out, const char *s, size_t n) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_strn(&w, s, n);
}

/* A value as JSON: what reads as JSON is taken as it is, unless a string is wanted. */
static int add_value(gs_outparse *p, const char *s, size_t n) {
    if (n > 0 && s[0] == '\n')
        s++, n--;
    if (n > 0 && s[n - 1] == '\n')
        n--;
    const char *key = gs_buf_cstr(&p->key);
    if (!key)
        return GS_ERR_NOMEM;
    json_t *v = is_text_parameter(p, key) ? NULL : json_loadb(s, n, JSON_DECODE_ANY, NULL);
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    const bool lost = v && !text;
    gs_buf_str(&p->args, p->has_args ? "," : "");
    add_string(&p->args, key, p->key.len);
    gs_buf_char(&p->args, ':');
    if (text)
        gs_buf_str(&p->args, text);
    else
        add_string(&p->args, s, n);
    p->has_args = true;
    free(text);
    json_decref(v);
    return lost || p->args.failed ? GS_ERR_NOMEM : 0;
}

/* One argument, from its opening tag on. */
static int take_argument(gs_outparse *p, const char *s, size_t n, size_t lead) {
    const gs_out_tags *t = &p->cfg.format->tags;
    size_t key = strlen(t->key_open), key_end = gs_out_find(s + key, n - key, t->key_close) + key;
    size_t value = key_end + strlen(t->key_close);
    if (key_end == n)
        return n > 4096 ? no_call(p) : STEP_WAIT;
    if (*t->value_open) {
        size_t at = gs_out_find(s + value, n - value, t->value_open);
        if (value + at == n)
            return at > 256 ? no_call(p) : STEP_WAIT;
        value += at + strlen(t->value_open);
    }
    size_t end = gs_out_find(s + value, n - value, t->value_close) + value;
    if (end == n)
        return STEP_WAIT;
    gs_buf_clear(&p->key);
    if (gs_buf_add(&p->key, s + key, key_end - key) != 0)
        return GS_ERR_NOMEM;
    int rc = add_value(p, s + value, end - value);
    if (rc == 0)
        rc = tell_call(p);
    gs_out_take(p, p->pos + lead + end + strlen(t->value_close));
    return rc != 0 ? rc : STEP_AGAIN;
}

static int step_tags(gs_outparse *p, bool final) {
    const gs_out_tags *t = &p->cfg.format->tags;
    const char *s = p->held.len > 0 ? p->held.data + p->pos : "";
    size_t n = p->held.len - p->pos, lead = spaces(s, n);
    int rc = STEP_WAIT;
    s += lead;
    n -= lead;
    if (n > 0 && begins(s, n, t->close)) {
        gs_buf_str(&p->args, p->has_args ? "}" : "{}");
        rc = tell_call(p);
        gs_out_take(p, p->pos + lead + strlen(t->close));
        to_text(p);
        if (rc == 0)
            rc = gs_out_end_call(p, true);
        return rc != 0 ? rc : STEP_AGAIN;
    }
    if (n > 0 && begins(s, n, t->key_open)) {
        if (!p->begun && p->args.len == 0 && gs_buf_char(&p->args, '{') != 0)
            return GS_ERR_NOMEM;
        rc = take_argument(p, s, n, lead);
    } else if (n > 0 && !may_begin(s, n, t->close) && !may_begin(s, n, t->key_open)) {
        return no_call(p);
    }
    if (rc == STEP_WAIT && final)
        return p->begun ? gs_out_end_call(p, false) : no_call(p);
    return rc;
}

/* ---- The loop ----------------------------------------------------------------------------- */

static int step(gs_outparse *p, bool final) {
    switch (p->state) {
    case GS_OUT_REASONING:
        return step_reasoning(p, final);
    case GS_OUT_IN_JSON:
        return step_json(p, final);
    case GS_OUT_IN_NAME:
        return step_name(p, final);
    case GS_OUT_IN_ARGS:
        return step_args(p, final);
    case GS_OUT_IN_TAGS:
        return step_tags(p, final);
    case GS_OUT_HEADER:
    case GS_OUT_MESSAGE:
        return gs_out_step_channel(p, final);
    default:
        return step_text(p, final);
    }
}

static int run(gs_outparse *p, bool final) {
    int rc;
    while ((rc = step(p, final)) == STEP_AGAIN)
        ;
    /* What never comes to an end is text. */
    while (rc == STEP_WAIT && p->held.len > GS_OUT_MAX_HELD) {
        rc = no_call(p);
        while (rc == STEP_AGAIN)
            rc = step(p, final);
    }
    return rc;
}

void gs_outparse_init(gs_outparse *p, const gs_outparse_config *cfg, gs_part_fn emit, void *arg) {
    *p = (gs_outparse){.cfg = *cfg, .emit = emit, .arg = arg, .at_start = true};
    if (!cfg->format)
        return;
    if (cfg->format->channels)
        p->state = GS_OUT_HEADER;
    else if (cfg->in_reasoning)
        p->state = GS_OUT_REASONING;
    else if (cfg->format->name_first)
        start_call(p, GS_OUT_IN_NAME, false);
    p->trim = cfg->in_reasoning;
}

int gs_outparse_feed(gs_outparse *p, const char *text, size_t n) {
    if (n == 0)
        return 0;
    if (!p->cfg.format)
        return gs_out_emit(p, GS_PART_TEXT, text, n);
    int rc = gs_buf_add(&p->held, text, n);
    return rc != 0 ? rc : run(p, false);
}

static bool in_mark(const char *mark, const char *s) {
    return mark && strstr(mark, s);
}

int gs_outparse_control(gs_outparse *p, const char *spelling, size_t n) {
    const gs_out_format *f = p->cfg.format;
    char s[64];
    if (!f || n == 0 || n >= sizeof(s))
        return 0;
    memcpy(s, spelling, n);
    s[n] = '\0';
    bool known = f->channels || in_mark(think_open(f), s) || in_mark(think_close(f), s) ||
                 in_mark(f->name_prefix, s) || in_mark(f->section, s) || in_mark(f->name_end, s);
    for (int i = 0; i < GS_OUT_MARKS; i++)
        known |= in_mark(f->open[i], s);
    for (int i = 0; i < GS_OUT_SKIPS; i++)
        known |= in_mark(f->skip[i], s);
    return known ? gs_outparse_feed(p, s, n) : 0;
}

int gs_outparse_finish(gs_outparse *p) {
    return p->cfg.format ? run(p, true) : 0;
}

void gs_outparse_deinit(gs_outparse *p) {
    gs_buf_deinit(&p->held);
    gs_buf_deinit(&p->name);
    gs_buf_deinit(&p->args);
    gs_buf_deinit(&p->key);
}

void gs_out_think_marks(const gs_out_format *f, const char **open, const char **close) {
    *open = think_open(f);
    *close = think_close(f);
}

bool gs_out_prompt_reasons(const gs_out_format *f, const char *prompt, size_t n) {
    const char *mark = think_open(f);
    while (n > 0 && isspace((unsigned char)prompt[n - 1]))
        n--;
    return !f->channels && n >= strlen(mark) &&
           memcmp(prompt + n - strlen(mark), mark, strlen(mark)) == 0;
}
