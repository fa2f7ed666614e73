/*
 * ChatML, Llama 3 and Gemma prompts without a Jinja engine. The formats are those of the models'
 * own chat templates (tokenizer_config.json of SmolLM2, Qwen2, Llama 3.x and Gemma 3).
 */
#include "tokenizer/chat_impl.h"

#include <string.h>
#include <time.h>

#include "base/err.h"

typedef struct text {
    const char *data;
    size_t len;
} text;

typedef struct message {
    const char *role;
    const json_t *content;
} message;

/* The default system prompt of a ChatML template stands in its source between these marks, the
 * line break written as an escape sequence or as itself. */
static void find_default_system(const char *source, gs_chat_builtin *out) {
    static const char mark[] = "<|im_start|>system";
    for (const char *p = strstr(source, mark); p; p = strstr(p, mark)) {
        p += sizeof(mark) - 1;
        size_t skip = strncmp(p, "\\n", 2) == 0 ? 2 : *p == '\n' ? 1 : 0;
        const char *begin = p + skip;
        const char *end = strstr(begin, "<|im_end|>");
        if (skip == 0 || !end || end == begin)
            continue;
        /* A quote or brace means that the template computes the text instead. */
        size_t n = (size_t)(end - begin);
        if (strcspn(begin, "'\"{}\\") >= n) {
            out->default_system = begin;
            out->n_default_system = n;
            return;
        }
    }
}

void gs_chat_builtin_detect(const char *source, gs_chat_builtin *out) {
    memset(out, 0, sizeof(*out));
    if (strstr(source, "<|im_start|>") && strstr(source, "<|im_end|>")) {
        out->format = GS_CHAT_CHATML;
        find_default_system(source, out);
    } else if (strstr(source, "<|start_header_id|>") && strstr(source, "<|eot_id|>")) {
        out->format = GS_CHAT_LLAMA3;
        out->dated = strstr(source, "Cutting Knowledge Date: December 2023") != NULL;
        out->dated_now = strstr(source, "strftime_now") != NULL;
    } else if (strstr(source, "<start_of_turn>") && strstr(source, "<end_of_turn>")) {
        out->format = GS_CHAT_GEMMA;
        out->no_system = strstr(source, "System role not supported") != NULL;
    }
}

static int read_message(const json_t *messages, size_t i, message *m, char *err, size_t errlen) {
    const json_t *o = json_array_get(messages, i);
    m->role = json_string_value(json_object_get(o, "role"));
    m->content = json_object_get(o, "content");
    if (!m->role)
        return gs_fail(err, errlen, GS_ERR_INVALID, "messages[%zu]: no role", i);
    if (m->content && !json_is_string(m->content) && !json_is_null(m->content) &&
        !json_is_array(m->content))
        return gs_fail(err, errlen, GS_ERR_INVALID,
                       "messages[%zu]: content is no string, null or array", i);
    if (json_object_get(o, "tool_calls") && json_array_size(json_object_get(o, "tool_calls")) > 0)
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED,
                       "messages[%zu]: tool calls need a build with Rust", i);
    return GS_OK;
}

static text trimmed(text t) {
    static const char space[] = " \t\n\r\f\v";
    while (t.len > 0 && strchr(space, t.data[0]) && t.data[0] != '\0') {
        t.data++;
        t.len--;
    }
    while (t.len > 0 && strchr(space, t.data[t.len - 1]) && t.data[t.len - 1] != '\0')
        t.len--;
    return t;
}

static text string_text(const json_t *s) {
    return (text){json_string_value(s), json_string_length(s)};
}

/* Failed appends mark out; the caller looks once at the end. */
static void add_text(gs_buf *out, text t, bool trim) {
    if (trim)
        t = trimmed(t);
    if (t.len > 0)
        (void)gs_buf_add(out, t.data, t.len);
}

static void add_content(gs_buf *out, const json_t *content, bool trim) {
    if (json_is_string(content)) {
        add_text(out, string_text(content), trim);
        return;
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_object_get(json_array_get(content, i), "text");
        if (json_is_string(part))
            add_text(out, string_text(part), trim);
    }
}

static int render_chatml(const gs_chat_builtin *b, const json_t *messages, bool generate,
                         gs_buf *out, char *err, size_t errlen) {
    for (size_t i = 0; i < json_array_size(messages); i++) {
        message m;
        int rc = read_message(messages, i, &m, err, errlen);
        if (rc)
            return rc;
        if (i == 0 && b->default_system && strcmp(m.role, "system") != 0) {
            (void)gs_buf_str(out, "<|im_start|>system\n");
            (void)gs_buf_add(out, b->default_system, b->n_default_system);
            (void)gs_buf_str(out, "<|im_end|>\n");
        }
        (void)gs_buf_str(out, "<|im_start|>");
        (void)gs_buf_str(out, m.role);
        (void)gs_buf_char(out, '\n');
        add_content(out, m.content, false);
        (void)gs_buf_str(out, "<|im_end|>\n");
    }
    if (generate)
        (void)gs_buf_str(out, "<|im_start|>assistant\n");
    return GS_OK;
}

static void llama3_header(gs_buf *out, const char *role) {
    (void)gs_buf_str(out, "<|start_header_id|>");
    (void)gs_buf_str(out, role);
    (void)gs_buf_str(out, "<|end_header_id|>\n\n");
}

static void llama3_dates(gs_buf *out, bool today, long long now_s) {
    char date[32] = "26 Jul 2024"; /* the fixed date in Llama 3.1's template */
    time_t t = (time_t)now_s;
    struct tm tm;
    if (today && localtime_r(&t, &tm))
        (void)strftime(date, sizeof(date), "%d %b %Y", &tm);
    (void)gs_buf_str(out, "Cutting Knowledge Date: December 2023\nToday Date: ");
    (void)gs_buf_str(out, date);
    (void)gs_buf_str(out, "\n\n");
}

static int render_llama3(const gs_chat_builtin *b, const json_t *messages, const char *bos,
                         bool generate, long long now_s, gs_buf *out, char *err, size_t errlen) {
    if (bos)
        (void)gs_buf_str(out, bos);
    const json_t *role0 = json_object_get(json_array_get(messages, 0), "role");
    bool has_system = json_is_string(role0) && strcmp(json_string_value(role0), "system") == 0;
    if (b->dated && !has_system) {
        llama3_header(out, "system");
        llama3_dates(out, b->dated_now, now_s);
        (void)gs_buf_str(out, "<|eot_id|>");
    }
    for (size_t i = 0; i < json_array_size(messages); i++) {
        message m;
        int rc = read_message(messages, i, &m, err, errlen);
        if (rc)
            return rc;
        llama3_header(out, m.role);
        if (i == 0 && b->dated && has_system)
            llama3_dates(out, b->dated_now, now_s);
        add_content(out, m.content, true);
        (void)gs_buf_str(out, "<|eot_id|>");
    }
    if (generate)
        llama3_header(out, "assistant");
    return GS_OK;
}

/* Gemma has no system turn: the system text opens the first user turn. */
static int render_gemma(const gs_chat_builtin *b, const json_t *messages, const char *bos,
                        bool generate, gs_buf *out, char *err, size_t errlen) {
    if (bos)
        (void)gs_buf_str(out, bos);
    const json_t *system = NULL;
    size_t first = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        message m;
        int rc = read_message(messages, i, &m, err, errlen);
        if (rc)
            return rc;
        if (i == 0 && strcmp(m.role, "system") == 0) {
            if (b->no_system)
                return gs_fail(err, errlen, GS_ERR_INVALID,
                               "the model's chat template refused the messages: System role not "
                               "supported");
            system = m.content;
            first = 1;
            continue;
        }
        bool user = strcmp(m.role, "user") == 0;
        if (user != ((i - first) % 2 == 0))
            return gs_fail(err, errlen, GS_ERR_INVALID,
                           "the model's chat template refused the messages: Conversation roles "
                           "must alternate user/assistant/user/assistant/...");
        (void)gs_buf_str(out, "<start_of_turn>");
        (void)gs_buf_str(out, strcmp(m.role, "assistant") == 0 ? "model" : m.role);
        (void)gs_buf_char(out, '\n');
        if (i == first && system) {
            add_content(out, system, false);
            (void)gs_buf_str(out, "\n\n");
        }
        add_content(out, m.content, true);
        (void)gs_buf_str(out, "<end_of_turn>\n");
    }
    if (generate)
        (void)gs_buf_str(out, "<start_of_turn>model\n");
    return GS_OK;
}

int gs_chat_builtin_render(const gs_chat_builtin *b, const json_t *messages, const char *bos,
                           bool add_generation_prompt, long long now_s, gs_buf *out, char *err,
                           size_t errlen) {
    size_t len0 = out->len;
    int rc = GS_ERR_UNSUPPORTED;
    switch (b->format) {
    case GS_CHAT_CHATML:
        rc = render_chatml(b, messages, add_generation_prompt, out, err, errlen);
        break;
    case GS_CHAT_LLAMA3:
        rc = render_llama3(b, messages, bos, add_generation_prompt, now_s, out, err, errlen);
        break;
    case GS_CHAT_GEMMA:
        rc = render_gemma(b, messages, bos, add_generation_prompt, out, err, errlen);
        break;
    case GS_CHAT_UNKNOWN:
        (void)gs_fail(err, errlen, rc, "this chat template needs a build with Rust");
        break;
    }
    if (rc == GS_OK && out->failed)
        rc = gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory rendering the chat template");
    if (rc)
        out->len = len0;
    return rc;
}
