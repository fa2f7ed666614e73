/* The table as text for people: --help, the Markdown reference, and JSON of what is in force. */
#include "config/config_impl.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/jsonw.h"

static const struct {
    const char *name, *about;
} sections[] = {
#define X(name, about) {#name, about},
    GS_CONFIG_SECTIONS(X)
#undef X
};

#define N_SECTIONS (sizeof sections / sizeof sections[0])

/* ---- JSON ---------------------------------------------------------------------------------- */

static void json_value(gs_jsonw *w, const gs_config_option *o, const void *field) {
    const gs_config_list *list = field;
    switch (o->kind) {
    case GS_CONFIG_BOOL:
        gs_jsonw_bool(w, *(const bool *)field);
        return;
    case GS_CONFIG_INT:
    case GS_CONFIG_PORT:
        gs_jsonw_int(w, *(const int *)field);
        return;
    case GS_CONFIG_SIZE_MB:
    case GS_CONFIG_DURATION_MS:
        gs_jsonw_int(w, *(const int64_t *)field);
        return;
    case GS_CONFIG_FLOAT:
        gs_jsonw_num(w, *(const double *)field);
        return;
    case GS_CONFIG_ENUM: {
        const char *p = o->choices;
        for (int i = *(const int *)field; i > 0; i--)
            p += strcspn(p, "|") + 1;
        gs_jsonw_strn(w, p, strcspn(p, "|"));
        return;
    }
    case GS_CONFIG_STRING:
    case GS_CONFIG_PATH: {
        const char *s = *(char *const *)field;
        gs_jsonw_str(w, (o->flags & GS_CONFIG_SECRET) && *s ? "***" : s);
        return;
    }
    case GS_CONFIG_LIST:
        gs_jsonw_arr(w);
        for (size_t i = 0; i < list->n; i++)
            gs_jsonw_str(w, o->flags & GS_CONFIG_SECRET ? "***" : list->items[i]);
        gs_jsonw_end_arr(w);
        return;
    }
}

static void json_alias(gs_jsonw *w, const gs_config_alias *a, const char *key, const char *value) {
    char name[96];
    snprintf(name, sizeof name, "alias.%s.%s", a->name, key);
    gs_jsonw_key(w, name);
    gs_jsonw_str(w, value);
}

int gs_config_json(const gs_config *cfg, gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_obj(&w);
    for (size_t i = 0; i < GS_CONFIG_N; i++) {
        const gs_config_option *o = gs_config_option_at(i);
        gs_jsonw_key(&w, o->name);
        json_value(&w, o, gs_config_field_const(cfg, o));
    }
    for (size_t i = 0; i < cfg->n_aliases; i++) {
        json_alias(&w, &cfg->aliases[i], "model", cfg->aliases[i].model);
        json_alias(&w, &cfg->aliases[i], "class", cfg->aliases[i].class_name);
    }
    gs_jsonw_end_obj(&w);
    return out->failed ? GS_ERR_NOMEM : GS_OK;
}

static const char *const kind_names[] = {
    [GS_CONFIG_BOOL] = "bool",
    [GS_CONFIG_INT] = "int",
    [GS_CONFIG_FLOAT] = "float",
    [GS_CONFIG_STRING] = "string",
    [GS_CONFIG_ENUM] = "enum",
    [GS_CONFIG_SIZE_MB] = "size_mb",
    [GS_CONFIG_DURATION_MS] = "duration_ms",
    [GS_CONFIG_PORT] = "port",
    [GS_CONFIG_PATH] = "path",
    [GS_CONFIG_LIST] = "list",
};

static void json_key_str(gs_jsonw *w, const char *key, const char *v) {
    gs_jsonw_key(w, key);
    gs_jsonw_str(w, v);
}

static void json_row(gs_jsonw *w, const gs_config_option *o) {
    gs_jsonw_obj(w);
    json_key_str(w, "name", o->name);
    json_key_str(w, "kind", kind_names[o->kind]);
    json_key_str(w, "default", o->def);
    json_key_str(w, "help", o->help);
    if (o->min != 0 || o->max != 0) {
        gs_jsonw_key(w, "min");
        gs_jsonw_int(w, o->min);
        gs_jsonw_key(w, "max");
        gs_jsonw_int(w, o->max);
    }
    if (o->choices) {
        gs_jsonw_key(w, "choices");
        gs_jsonw_arr(w);
        for (const char *p = o->choices; *p; p += strcspn(p, "|") + (p[strcspn(p, "|")] == '|'))
            gs_jsonw_strn(w, p, strcspn(p, "|"));
        gs_jsonw_end_arr(w);
    }
    gs_jsonw_end_obj(w);
}

int gs_config_table_json(gs_buf *out) {
    gs_jsonw w;
    gs_jsonw_init(&w, out);
    gs_jsonw_arr(&w);
    for (size_t i = 0; i < GS_CONFIG_N; i++)
        if (!(gs_config_option_at(i)->flags & GS_CONFIG_HIDDEN))
            json_row(&w, gs_config_option_at(i));
    gs_jsonw_end_arr(&w);
    return out->failed ? GS_ERR_NOMEM : GS_OK;
}

/* ---- Help ---------------------------------------------------------------------------------- */

#define HELP_INDENT 10
#define HELP_WIDTH  90

/* Words of text, wrapped and indented. */
static void add_wrapped(gs_buf *out, const char *text) {
    size_t column = 0;
    while (*text) {
        size_t len = strcspn(text, " ");
        if (column == 0 || column + 1 + len > HELP_WIDTH) {
            gs_buf_printf(out, "%s%*s", column == 0 ? "" : "\n", HELP_INDENT, "");
            column = HELP_INDENT;
        } else {
            gs_buf_char(out, ' ');
            column++;
        }
        gs_buf_add(out, text, len);
        column += len;
        text += len + (text[len] == ' ');
    }
    gs_buf_char(out, '\n');
}

static const char *arg_name(const gs_config_option *o) {
    switch (o->kind) {
    case GS_CONFIG_BOOL:
        return "[=BOOL]";
    case GS_CONFIG_INT:
    case GS_CONFIG_PORT:
    case GS_CONFIG_FLOAT:
        return " N";
    case GS_CONFIG_SIZE_MB:
        return " MB";
    case GS_CONFIG_DURATION_MS:
        return " MS";
    case GS_CONFIG_PATH:
        return " PATH";
    case GS_CONFIG_LIST:
        return " A,B,...";
    case GS_CONFIG_ENUM:
    case GS_CONFIG_STRING:
        break;
    }
    return " TEXT";
}

static void help_option(gs_buf *out, const gs_config_option *o) {
    gs_buf_str(out, "  ");
    if (o->alias)
        gs_buf_printf(out, "--%s, ", o->alias);
    gs_buf_printf(out, "--%s", o->name);
    if (o->kind == GS_CONFIG_ENUM)
        gs_buf_printf(out, " %s", o->choices);
    else
        gs_buf_str(out, arg_name(o));
    if (*o->def)
        gs_buf_printf(out, "  [%s]", o->def);
    gs_buf_char(out, '\n');
    add_wrapped(out, o->help);
}

int gs_config_help(gs_buf *out, const gs_config_flag *flags, size_t n_flags) {
    for (size_t i = 0; i < n_flags; i++) {
        gs_buf_printf(out, "  --%s%s%s\n", flags[i].name, flags[i].arg ? " " : "",
                      flags[i].arg ? flags[i].arg : "");
        add_wrapped(out, flags[i].help);
    }
    gs_buf_str(out, "  --config PATH\n");
    add_wrapped(out, "Configuration file instead of the usual one "
                     "(~/.config/gamasot/gamasot.conf, /etc/gamasot/gamasot.conf).");
    gs_buf_str(out, "  --help, -h, --version\n");
    for (size_t s = 0; s < N_SECTIONS; s++) {
        bool begun = false;
        for (size_t i = 0; i < GS_CONFIG_N; i++) {
            const gs_config_option *o = gs_config_option_at(i);
            if (strcmp(o->section, sections[s].name) != 0 || (o->flags & GS_CONFIG_HIDDEN))
                continue;
            if (!begun)
                gs_buf_printf(out, "\n%s: %s\n", sections[s].name, sections[s].about);
            begun = true;
            help_option(out, o);
        }
    }
    return out->failed ? GS_ERR_NOMEM : GS_OK;
}

/* ---- Reference ----------------------------------------------------------------------------- */

static const char reference_intro[] =
    "# Configuration\n"
    "\n"
    "<!-- Written by `make docs` from src/config/options.h. Edit that file instead. -->\n"
    "\n"
    "Every option can be set in four places; later ones win: the default below, the\n"
    "configuration file, the environment, flags.\n"
    "\n"
    "| place | `server.port` as an example |\n"
    "|---|---|\n"
    "| file | `port = 8080` in the section `[server]` |\n"
    "| environment | `GAMASOT_SERVER_PORT=8080` |\n"
    "| flag | `--server.port 8080`, `--server.port=8080`, or the short `--port 8080` |\n"
    "\n"
    "The file is the first of: `--config PATH`, `$GAMASOT_CONFIG`,\n"
    "`$CONFIGURATION_DIRECTORY/gamasot.conf` (systemd), `$XDG_CONFIG_HOME/gamasot/gamasot.conf`\n"
    "(`~/.config/gamasot/gamasot.conf`), `/etc/gamasot/gamasot.conf`. It is an INI file: lines\n"
    "that begin with `#` or `;` are comments, ` ;` begins a comment within a line, and a line has\n"
    "at most 198 bytes (a list may go on in further, indented lines).\n"
    "\n"
    "Lists are separated by commas; a repeated flag adds to the list. A bool is `true`, `yes`,\n"
    "`on`, `1` or the opposite; as a flag it takes its value with `=`, and alone means `true`.\n"
    "In paths, `~/` at the beginning is the home folder. Unknown names are errors.\n"
    "\n"
    "A section `[model NAME]` of the file is a further model that requests may ask for. Its "
    "`path`\n"
    "names the GGUF file (without one it is `NAME.gguf` in the folders of models); other settings\n"
    "are numbers and switches of `[model]`, and of `[kv]` and `[prefix]` (as `kv_...`,\n"
    "`prefix_...`), that differ for it, and `prefix_files`, which it has instead of the server's\n"
    "(empty: none):\n"
    "\n"
    "    [model minilm]\n"
    "    path = /srv/models/all-MiniLM-L6-v2-Q8_0.gguf\n"
    "    keep_alive_ms = 3600000\n"
    "    pinned = true\n"
    "    kv_memory_mb = 64\n"
    "    prefix_files = /srv/prompts/kitchen.txt\n"
    "\n"
    "A section `[alias NAME]` of the file is another name under which clients see a model:\n"
    "`model = ...` (which one; empty: the one there is) and `class = voice` (or chat, completion,\n"
    "document, utility, background), so that a program that can only choose a model chooses a "
    "class\n"
    "with it. See [identity.md](identity.md).\n";

static const char reference_workers[] =
    "\n## worker NAME\n\n"
    "A section `[worker NAME]` of the file is another machine that answers, see "
    "[workers.md](workers.md).\n"
    "`POST /v1/workers` and `gamasot workers add` take the same settings, except `power_on`.\n\n";

/* Text inside a table cell. */
static void add_cell(gs_buf *out, const char *text) {
    for (; *text; text++) {
        if (*text == '|')
            gs_buf_char(out, '\\');
        gs_buf_char(out, *text);
    }
}

/* A table of options begins. */
static void reference_head(gs_buf *out) {
    gs_buf_str(out, "| option | default | value | meaning |\n|---|---|---|---|\n");
}

static void reference_option(gs_buf *out, const gs_config_option *o) {
    gs_buf range = {0};
    gs_buf_printf(out, "| `%s`", o->name);
    if (o->alias)
        gs_buf_printf(out, "<br>`--%s`", o->alias);
    gs_buf_str(out, " | ");
    if (*o->def)
        gs_buf_printf(out, "`%s`", o->def);
    gs_buf_str(out, " | ");
    const char *s = gs_config_value_describe(o, &range) == GS_OK ? gs_buf_cstr(&range) : NULL;
    if (s)
        add_cell(out, s);
    else
        out->failed = true;
    gs_buf_str(out, " | ");
    add_cell(out, o->help);
    if (o->flags & GS_CONFIG_LIVE)
        gs_buf_str(out, " *May change while the server runs.*");
    if (o->flags & GS_CONFIG_SECRET)
        gs_buf_str(out, " *Secret: never shown.*");
    gs_buf_str(out, " |\n");
    gs_buf_deinit(&range);
}

int gs_config_reference(gs_buf *out) {
    gs_buf_str(out, reference_intro);
    for (size_t s = 0; s < N_SECTIONS; s++) {
        gs_buf_printf(out, "\n## %s\n\n%s\n\n", sections[s].name, sections[s].about);
        reference_head(out);
        for (size_t i = 0; i < GS_CONFIG_N; i++) {
            const gs_config_option *o = gs_config_option_at(i);
            if (strcmp(o->section, sections[s].name) == 0)
                reference_option(out, o);
        }
    }
    gs_buf_str(out, reference_workers);
    reference_head(out);
    const gs_config_option *o;
    for (size_t i = 0; (o = gs_config_worker_option_at(i)); i++)
        reference_option(out, o);
    return out->failed ? GS_ERR_NOMEM : GS_OK;
}
