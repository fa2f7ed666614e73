/* Allocations that fail one after the other. */
#ifndef GS_TESTS_API_OOM_H
#define GS_TESTS_API_OOM_H

#include <jansson.h>
#include <stdint.h>

#include "base/err.h"
#include "base/sys.h"
#include "faults/fault.h"

/* What such a call may do about it, beside GS_ERR_NOMEM. */
enum {
    OOM_OWN = 1,  /* gamasot's own allocations fail alone: jansson's heap does not survive one that
                     fails while it reads a text */
    OOM_WHOLE = 2 /* some are done without; what comes out is whole all the same, which call says */
};

/* Runs call once as it is, and then once for each allocation it has made, which fails: the
 * library's own for JSON, too. call returns 0 or an error, gives back all that it took, and checks
 * by itself what it returns 0 with. Returns how many allocations there were. */
static inline uint64_t each_allocation_fails(const char *what, int (*call)(void *arg), void *arg,
                                             int flags) {
    json_malloc_t take;
    json_free_t give;
    json_get_alloc_funcs(&take, &give);
    if (!(flags & OOM_OWN))
        json_set_alloc_funcs(gs_malloc, gs_free);
    uint64_t n = 0;
    for (uint64_t k = 0; k <= n; k++) {
        gs_fault_set(GS_FAULT_ALLOC, k ? k : UINT64_MAX, 0); /* 0: none fails, they are counted */
        const int rc = call(arg);
        n = k ? n : gs_fault_calls(GS_FAULT_ALLOC);
        gs_fault_clear();
        const bool good = k == 0 || ((flags & OOM_WHOLE) && rc == 0) ? rc == 0 : rc == GS_ERR_NOMEM;
        if (!good)
            fail_msg("%s: allocation %d of %d fails: %d", what, (int)k, (int)n, rc);
    }
    json_set_alloc_funcs(take, give);
    return n;
}

#endif
