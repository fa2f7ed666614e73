#include "api/outparse.h"

#include <string.h>

struct gs_out_format {
    const char *name;
};

const gs_out_format *gs_out_format_detect(const char *template_source) {
    static const gs_out_format plain = {"plain"};
    (void)template_source;
    return &plain;
}

const char *gs_out_format_name(const gs_out_format *f) {
    return f->name;
}

void gs_outparse_init(gs_outparse *p, const gs_outparse_config *cfg, gs_part_fn emit, void *arg) {
    *p = (gs_outparse){.cfg = *cfg, .emit = emit, .arg = arg};
}

int gs_outparse_feed(gs_outparse *p, const char *text, size_t n) {
    gs_part part = {GS_PART_TEXT, 0, text, n};
    return n > 0 ? p->emit(p->arg, &part) : 0;
}

int gs_outparse_control(gs_outparse *p, const char *spelling, size_t n) {
    (void)p;
    (void)spelling;
    (void)n;
    return 0;
}

int gs_outparse_finish(gs_outparse *p) {
    (void)p;
    return 0;
}

void gs_outparse_deinit(gs_outparse *p) {
    memset(p, 0, sizeof(*p));
}
