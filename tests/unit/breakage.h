/* Fields that are broken one by one, so that the check of an invariant has something to notice. */
#ifndef GS_TESTS_BREAKAGE_H
#define GS_TESTS_BREAKAGE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"

/* at: index of the object in bases; the field gets value, and the check says what is wrong. */
typedef struct breakage {
    int at;
    size_t offset, size;
    int64_t value;
    const char *says;
} breakage;

#define BREAK(at, type, field, value, says)                                                        \
    { at, offsetof(type, field), sizeof(((type *)NULL)->field), value, says }

typedef int checker(const void *what, char *err, size_t errlen);

static inline void check_says(checker *check, const void *what, int rc, const char *word) {
    char err[200] = "ok";
    if (check(what, err, sizeof(err)) != rc || !strstr(err, word))
        fail_msg("\"%s\" does not say \"%s\"", err, word);
}

/* Breaks, looks, mends, looks again. */
static inline void break_each(const breakage *b, size_t n, void *const bases[], checker *check,
                              const void *what) {
    check_says(check, what, GS_OK, "ok");
    for (size_t i = 0; i < n; i++, b++) {
        char kept[sizeof(b->value)];
        char *at = (char *)bases[b->at] + b->offset;
        assert_true(b->size <= sizeof(kept));
        memcpy(kept, at, b->size);
        memcpy(at, &b->value, b->size); /* little-endian, as all machines it runs on */
        check_says(check, what, GS_ERR_INTERNAL, b->says);
        memcpy(at, kept, b->size);
        check_says(check, what, GS_OK, "ok");
    }
}

#endif
