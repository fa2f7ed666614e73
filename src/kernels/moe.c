/* Mixture of experts: routing, grouping, and the products of the groups. See moe.h. */
#include "kernels/moe.h"

#include <math.h>

#include "base/err.h"
#include "base/pool.h"

/* Columns that one thread computes and quantises at least: a part. */
#define PART_COLS   128
#define PART_PANELS (PART_COLS / GS_PANEL_ROWS)
_Static_assert(PART_COLS % GS_ACT_GROUP == 0, "parts are made of whole groups");
/* Reading a panel takes as long as multiplying it with so many rows. */
#define READ_ROWS 8
/* Groups from which on lines are not fetched ahead: they would not stay. */
#define FETCH_ROWS 16

static int32_t parts_of(const gs_moe *m) {
    return (m->n_ff + PART_COLS - 1) / PART_COLS;
}

void gs_moe_carve(gs_moe *m, gs_carver *c) {
    GS_ASSERT(m->n_experts >= 1 && m->n_experts <= GS_MOE_MAX_EXPERTS && m->n_used >= 1 &&
              m->n_used <= m->n_experts && m->n_used <= GS_MOE_MAX_USED);
    const size_t rows = (size_t)m->max_rows, used = (size_t)m->n_used, f = sizeof(float);
    const size_t slots = rows * used, experts = (size_t)m->n_experts;
    const int32_t n = m->max_rows * m->n_used;
    /* Each group's arrays begin at borders of 64 bytes. */
    const size_t borders = experts * 6 * 64;
    m->scores = gs_carve(c, rows, experts * f);
    m->picks = gs_carve(c, slots, sizeof *m->picks);
    m->slots = gs_carve(c, slots, sizeof *m->slots);
    m->groups = gs_carve(c, experts, sizeof *m->groups);
    m->split = gs_carve(c, (size_t)m->n_threads + 1, sizeof *m->split);
    m->in = gs_carve(c, 1, gs_act_bytes_of(n, m->n_embd, m->in_need) + borders);
    m->mid = gs_carve(c, 1, gs_act_bytes_of(n, m->n_ff, m->mid_need) + borders);
    m->gate = gs_carve(c, slots, (size_t)m->n_ff * f);
    m->up = gs_carve(c, slots, (size_t)m->n_ff * f);
    m->out = gs_carve(c, rows, (size_t)m->n_embd * f);
}

/* ---- Routing -----------------------------------------------------------------------------------
 */

void gs_moe_score(gs_moe *m, const gs_mat *router, const gs_act *x, int tid, int n_threads) {
    int p0, p1;
    gs_share(router->n_panels, tid, n_threads, &p0, &p1);
    if (p0 < p1)
        gs_gemm(router, x, m->scores, m->n_experts, NULL, p0, p1, GS_GEMM_STORE);
}

/* The n_used best of one row, in the order of experts; weights are scores still. */
static void pick_best(const gs_moe *m, const float *scores, gs_moe_pick *best) {
    int32_t n = 0;
    for (int32_t e = 0; e < m->n_experts; e++) {
        float s = isnan(scores[e]) ? -INFINITY : scores[e];
        if (n == m->n_used && !(s > best[n - 1].weight))
            continue;
        int32_t at = n < m->n_used ? n++ : n - 1;
        for (; at > 0 && s > best[at - 1].weight; at--)
            best[at] = best[at - 1];
        best[at] = (gs_moe_pick){e, s};
    }
    for (int32_t i = 1; i < n; i++) {
        gs_moe_pick p = best[i];
        int32_t at = i;
        for (; at > 0 && best[at - 1].expert > p.expert; at--)
            best[at] = best[at - 1];
        best[at] = p;
    }
}

void gs_moe_route(gs_moe *m, int32_t r0, int32_t r1) {
    for (int32_t r = r0; r < r1; r++) {
        gs_moe_pick *p = m->picks + (int64_t)r * m->n_used;
        pick_best(m, m->scores + (int64_t)r * m->n_experts, p);
        float max = p[0].weight, sum = 0;
        for (int32_t i = 1; i < m->n_used; i++)
            max = p[i].weight > max ? p[i].weight : max;
        /* Softmax over all, then over the chosen ones: the others cancel. */
        for (int32_t i = 0; i < m->n_used; i++)
            sum += p[i].weight = expf(p[i].weight - max);
        for (int32_t i = 0; i < m->n_used; i++)
            p[i].weight *= m->scale / sum;
    }
}

/* ---- Grouping ----------------------------------------------------------------------------------
 */

/* The line (group 0 part 0, group 0 part 1, ...) is cut into stretches of nearly equal cost. */
static void split_parts(gs_moe *m, int n_threads) {
    const int32_t parts = parts_of(m);
    int64_t total = 0, before = 0;
    for (int32_t g = 0; g < m->n_groups; g++)
        total += (int64_t)parts * (m->groups[g].n > READ_ROWS ? m->groups[g].n : READ_ROWS);
    int t = 1;
    m->split[0] = 0;
    for (int32_t g = 0; g < m->n_groups; g++) {
        int64_t cost = m->groups[g].n > READ_ROWS ? m->groups[g].n : READ_ROWS;
        for (; t < n_threads; t++) {
            int64_t part = (total * t / n_threads - before + cost / 2) / cost;
            if (part >= parts)
                break;
            m->split[t] = g * parts + (part > 0 ? (int32_t)part : 0);
        }
        before += cost * parts;
    }
    for (; t <= n_threads; t++)
        m->split[t] = m->n_groups * parts;
}

void gs_moe_group_rows(gs_moe *m, int32_t n_rows, int n_threads) {
    int32_t count[GS_MOE_MAX_EXPERTS] = {0}, next[GS_MOE_MAX_EXPERTS];
    const int32_t n = n_rows * m->n_used;
    GS_ASSERT(n_rows <= m->max_rows && n_threads <= m->n_threads);
    for (int32_t i = 0; i < n; i++)
        count[m->picks[i].expert]++;
    size_t in = 0, mid = 0;
    int32_t first = 0;
    m->n_rows = n_rows;
    m->n_groups = 0;
    for (int32_t e = 0; e < m->n_experts; e++) {
        next[e] = first;
        if (count[e] == 0)
            continue;
        m->groups[m->n_groups++] = (gs_moe_group){e, first, count[e], in, mid};
        first += count[e];
        in += gs_act_bytes_of(count[e], m->n_embd, m->in_need);
        mid += gs_act_bytes_of(count[e], m->n_ff, m->mid_need);
    }
    for (int32_t i = 0; i < n; i++) {
        const gs_moe_pick *p = &m->picks[i];
        m->slots[next[p->expert]++] = (gs_moe_slot){i / m->n_used, p->weight};
    }
    split_parts(m, n_threads);
}

/* ---- Products ----------------------------------------------------------------------------------
 */

/* A group with all rows has them in x's own order. */
static bool takes_all(const gs_moe *m, const gs_moe_group *g) {
    return g->n == m->n_rows;
}

static gs_act in_act(const gs_moe *m, const gs_moe_group *g, const gs_act *x) {
    return takes_all(m, g) ? *x : (gs_act){g->n, m->n_embd, m->in + g->in};
}

void gs_moe_gather(gs_moe *m, const gs_act *x, int tid, int n_threads) {
    int s0, s1;
    gs_share(m->n_rows * m->n_used, tid, n_threads, &s0, &s1);
    for (int32_t g = 0; g < m->n_groups; g++) {
        const gs_moe_group *group = &m->groups[g];
        gs_act in = in_act(m, group, x);
        int32_t from = s0 > group->first ? s0 - group->first : 0;
        for (int32_t i = from; i < group->n && group->first + i < s1 && !takes_all(m, group); i++)
            gs_act_copy_row(&in, i, x, m->slots[group->first + i].row, m->in_need);
    }
}

/* Parts [part0, part1) of one group; then: the panels that come next. */
static void group_up(gs_moe *m, const gs_moe_group *g, const gs_moe_weights *w, const gs_act *x,
                     int32_t part0, int32_t part1, const uint8_t *then) {
    const gs_mat gate = gs_mat_nth(w->gate, g->expert), up = gs_mat_nth(w->up, g->expert);
    const int32_t p0 = part0 * PART_PANELS, c0 = part0 * PART_COLS;
    const int32_t p1 = part1 * PART_PANELS < gate.n_panels ? part1 * PART_PANELS : gate.n_panels;
    const int32_t c1 = part1 * PART_COLS < m->n_ff ? part1 * PART_COLS : m->n_ff;
    const gs_act in = in_act(m, g, x);
    gs_act mid = {g->n, m->n_ff, m->mid + g->mid};
    float *gates = m->gate + (int64_t)g->first * m->n_ff;
    float *ups = m->up + (int64_t)g->first * m->n_ff;
    gs_gemm_then(&gate, &in, gates, m->n_ff, p0, p1, gs_mat_panel(&up, p0));
    gs_gemm_then(&up, &in, ups, m->n_ff, p0, p1, then);
    if (g->n <= FETCH_ROWS)
        gs_act_prefetch(&mid, c0, c1, gs_act_need(w->down->type));
    for (int32_t i = 0; i < g->n; i++) {
        float *row = gates + (int64_t)i * m->n_ff;
        gs_silu_mul(row + c0, row + c0, ups + (int64_t)i * m->n_ff + c0, c1 - c0);
        gs_act_quant_part(&mid, row, i, c0, c1, gs_act_need(w->down->type));
    }
}

void gs_moe_up(gs_moe *m, const gs_moe_weights *w, const gs_act *x, int tid) {
    const int32_t parts = parts_of(m), end = m->split[tid + 1];
    for (int32_t at = m->split[tid]; at < end;) {
        const int32_t g = at / parts, part0 = at % parts;
        const int32_t part1 = (g + 1) * parts <= end ? parts : end - g * parts;
        at = g * parts + part1;
        const uint8_t *then = NULL;
        if (at < end) {
            const gs_mat next = gs_mat_nth(w->gate, m->groups[g + 1].expert);
            then = next.data;
        }
        group_up(m, &m->groups[g], w, x, part0, part1, then);
    }
}

void gs_moe_down(gs_moe *m, const gs_moe_weights *w, float *y, int tid, int n_threads) {
    int p0, p1;
    gs_share(w->down->n_panels, tid, n_threads, &p0, &p1);
    const int32_t c0 = p0 * GS_PANEL_ROWS;
    const int32_t c1 = p1 * GS_PANEL_ROWS < m->n_embd ? p1 * GS_PANEL_ROWS : m->n_embd;
    for (int32_t i = 0; i < m->n_groups && p0 < p1; i++) {
        const gs_moe_group *g = &m->groups[i];
        const gs_mat down = gs_mat_nth(w->down, g->expert);
        const gs_act mid = {g->n, m->n_ff, m->mid + g->mid};
        const uint8_t *then = NULL;
        if (i + 1 < m->n_groups) {
            const gs_mat next = gs_mat_nth(w->down, g[1].expert);
            then = gs_mat_panel(&next, p0);
        }
        gs_gemm_then(&down, &mid, m->out, m->n_embd, p0, p1, then);
        for (int32_t s = 0; s < g->n; s++) {
            const gs_moe_slot *slot = &m->slots[g->first + s];
            gs_add_scaled(y + (int64_t)slot->row * m->n_embd + c0,
                          m->out + (int64_t)s * m->n_embd + c0, slot->weight, c1 - c0);
        }
    }
}
