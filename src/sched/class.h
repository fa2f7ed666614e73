/* Classes of work, best first. One table gives the names. */
#ifndef GS_SCHED_CLASS_H
#define GS_SCHED_CLASS_H

#define GS_CLASS_MAP(X)                                                                            \
    X(VOICE, "voice")                                                                              \
    X(CHAT, "chat")                                                                                \
    X(COMPLETION, "completion")                                                                    \
    X(DOCUMENT, "document")                                                                        \
    X(UTILITY, "utility")                                                                          \
    X(BACKGROUND, "background")

typedef enum gs_class {
#define X(name, text) GS_CLASS_##name,
    GS_CLASS_MAP(X)
#undef X
        GS_CLASS_COUNT
} gs_class;

const char *gs_class_name(gs_class c); /* "voice"; static */
int gs_class_parse(const char *s);     /* a gs_class, or -1 */

#endif
