#include "sched/class.h"

#include <string.h>

static const char *const class_names[GS_CLASS_COUNT] = {
#define X(name, text) text,
    GS_CLASS_MAP(X)
#undef X
};

const char *gs_class_name(gs_class c) {
    return (int)c >= 0 && c < GS_CLASS_COUNT ? class_names[c] : "?";
}

int gs_class_parse(const char *s) {
    for (int i = 0; s && i < GS_CLASS_COUNT; i++)
        if (strcmp(s, class_names[i]) == 0)
            return i;
    return -1;
}
