#include "api/stop.h"

#include <string.h>

#include "base/err.h"

void gs_stop_init(gs_stop_matcher *m, const gs_stop_set *set) {
    memset(m, 0, sizeof(*m));
    m->set = set;
}

/* First position of any stop string in s, or n. */
static size_t find_stop(const gs_stop_set *set, const char *s, size_t n, int *which) {
    size_t best = n;
    for (int i = 0; i < set->n; i++) {
        const char *hit = n > 0 ? memmem(s, n, set->text[i], set->len[i]) : NULL;
        if (hit && (size_t)(hit - s) < best) {
            best = (size_t)(hit - s);
            *which = i;
        }
    }
    return best;
}

/* Length of the longest tail of s that some stop string begins with. */
static size_t tail_to_hold(const gs_stop_set *set, const char *s, size_t n) {
    size_t longest = 0;
    for (int i = 0; i < set->n; i++) {
        size_t most = set->len[i] - 1 < n ? set->len[i] - 1 : n;
        for (size_t k = most; k > longest; k--) {
            if (memcmp(s + n - k, set->text[i], k) == 0) {
                longest = k;
                break;
            }
        }
    }
    return longest;
}

int gs_stop_feed(gs_stop_matcher *m, const char *text, size_t n, gs_buf *out) {
    if (m->matched)
        return 0;
    if (m->set->n == 0)
        return gs_buf_add(out, text, n);
    int rc = gs_buf_add(&m->held, text, n);
    if (rc != 0)
        return rc;
    size_t at = find_stop(m->set, m->held.data, m->held.len, &m->which);
    size_t release = at;
    if (at < m->held.len)
        m->matched = true;
    else
        release = m->held.len - tail_to_hold(m->set, m->held.data, m->held.len);
    rc = gs_buf_add(out, m->held.data, release);
    if (rc == 0)
        gs_buf_drop_front(&m->held, m->matched ? m->held.len : release);
    return rc;
}

int gs_stop_finish(gs_stop_matcher *m, gs_buf *out) {
    if (m->matched || m->held.len == 0)
        return 0;
    int rc = gs_buf_add(out, m->held.data, m->held.len);
    gs_buf_clear(&m->held);
    return rc;
}

void gs_stop_deinit(gs_stop_matcher *m) {
    gs_buf_deinit(&m->held);
}
