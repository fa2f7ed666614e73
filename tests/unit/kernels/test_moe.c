/*
 * A mixture of experts against its rows one by one: the same kernels without groups must give the
 * same bits, and double precision nearly the same values. Threads are played one after the other.
 */
#include "weight_rows.h"

#include "kernels/moe.h"

#define MAX_ROWS 300

typedef struct moe_case {
    gs_qtype type, down_type;
    int32_t n_experts, n_used, n_embd, n_ff, n_rows;
    float scale;
} moe_case;

typedef struct fixture {
    const moe_case *c;
    gs_mat gate, up, down; /* the first expert's */
    float *x, *scores;     /* [n_rows][n_embd], [n_rows][n_experts] */
    void *memory;
    gs_moe m;
    int32_t busiest; /* rows of the largest group of the last check() */
} fixture;

/* n matrices of [rows][k], packed one behind the other; described as the first. */
static gs_mat make_stack(gs_qtype type, int32_t n, int32_t rows, int32_t k) {
    uint8_t *src = make_rows(type, n * rows, k, DATA_RANDOM);
    gs_mat all = pack_rows(type, n * rows, k, src), first;
    free(src);
    assert_int_equal(gs_mat_init(&first, type, rows, k), GS_OK);
    first.data = all.data;
    return first;
}

static float *make_floats(int32_t n, float range) {
    float *f = malloc(sizeof *f * (size_t)n);
    assert_non_null(f);
    for (int32_t i = 0; i < n; i++)
        f[i] = rnd_float() * range;
    return f;
}

static void init(fixture *f, const moe_case *c, int n_threads) {
    f->c = c;
    f->m = (gs_moe){.n_experts = c->n_experts,
                    .n_used = c->n_used,
                    .n_embd = c->n_embd,
                    .n_ff = c->n_ff,
                    .max_rows = c->n_rows,
                    .n_threads = n_threads,
                    .scale = c->scale,
                    .in_need = gs_act_need(c->type),
                    .mid_need = gs_act_need(c->down_type)};
    gs_carver carver = {NULL, 0, false};
    gs_moe_carve(&f->m, &carver);
    f->memory = alloc64(carver.used);
    memset(f->memory, 0x5a, carver.used);
    carver = (gs_carver){f->memory, 0, false};
    gs_moe_carve(&f->m, &carver);
}

static gs_act quantised(const float *x, int32_t rows, int32_t k, int flags) {
    gs_act a = make_act(rows, k);
    gs_act_quant(&a, x, k, 0, rows, flags);
    return a;
}

/* The passes of kernels/moe.h from the scores on; y[n_rows][n_embd] starts at 0.5. Caller frees. */
static float *grouped(fixture *f, int n_threads) {
    const moe_case *c = f->c;
    const gs_moe_weights w = {&f->gate, &f->up, &f->down};
    gs_moe *m = &f->m;
    gs_act x = quantised(f->x, c->n_rows, c->n_embd, m->in_need);
    float *y = malloc(sizeof *y * (size_t)(c->n_rows * c->n_embd));
    assert_non_null(y);
    for (int32_t i = 0; i < c->n_rows * c->n_embd; i++)
        y[i] = 0.5f;
    memcpy(m->scores, f->scores, sizeof *f->scores * (size_t)(c->n_rows * c->n_experts));
    for (int t = 0; t < n_threads; t++)
        gs_moe_route(m, c->n_rows * t / n_threads, c->n_rows * (t + 1) / n_threads);
    gs_moe_group_rows(m, c->n_rows, n_threads);
    for (int t = 0; t < n_threads; t++)
        gs_moe_gather(m, &x, t, n_threads);
    for (int t = 0; t < n_threads; t++)
        gs_moe_up(m, &w, &x, t);
    for (int t = 0; t < n_threads; t++)
        gs_moe_down(m, &w, y, t, n_threads);
    free(x.data);
    return y;
}

/* Every row alone, expert after expert. */
static float *one_by_one(const fixture *f) {
    const moe_case *c = f->c;
    float *y = malloc(sizeof *y * (size_t)(c->n_rows * c->n_embd));
    float *gate = make_floats(c->n_ff, 1), *up = make_floats(c->n_ff, 1);
    float *out = make_floats(c->n_embd, 1);
    assert_non_null(y);
    for (int32_t r = 0; r < c->n_rows; r++) {
        float *row = y + (ptrdiff_t)r * c->n_embd;
        gs_act x = quantised(f->x + (ptrdiff_t)r * c->n_embd, 1, c->n_embd, f->m.in_need);
        for (int32_t i = 0; i < c->n_embd; i++)
            row[i] = 0.5f;
        for (int32_t u = 0; u < c->n_used; u++) {
            const gs_moe_pick *p = &f->m.picks[r * c->n_used + u];
            const gs_mat wg = gs_mat_nth(&f->gate, p->expert), wu = gs_mat_nth(&f->up, p->expert);
            const gs_mat wd = gs_mat_nth(&f->down, p->expert);
            gs_gemm(&wg, &x, gate, c->n_ff, NULL, 0, wg.n_panels, GS_GEMM_STORE);
            gs_gemm(&wu, &x, up, c->n_ff, NULL, 0, wu.n_panels, GS_GEMM_STORE);
            gs_silu_mul(gate, gate, up, c->n_ff);
            gs_act mid = quantised(gate, 1, c->n_ff, f->m.mid_need);
            gs_gemm(&wd, &mid, out, c->n_embd, NULL, 0, wd.n_panels, GS_GEMM_STORE);
            gs_add_scaled(row, out, p->weight, c->n_embd);
            free(mid.data);
        }
        free(x.data);
    }
    free(gate);
    free(up);
    free(out);
    return y;
}

/* The best by counting who is better; equal ones: the lower expert. */
static void check_picks(const fixture *f) {
    const moe_case *c = f->c;
    for (int32_t r = 0; r < c->n_rows; r++) {
        const float *s = f->scores + (ptrdiff_t)r * c->n_experts;
        const gs_moe_pick *p = f->m.picks + (ptrdiff_t)r * c->n_used;
        double sum = 0, max = -1e30;
        for (int32_t i = 0; i < c->n_used; i++)
            max = fmax(max, (double)s[p[i].expert]);
        for (int32_t i = 0; i < c->n_used; i++)
            sum += exp((double)s[p[i].expert] - max);
        for (int32_t i = 0; i < c->n_used; i++) {
            int32_t better = 0, e = p[i].expert;
            assert_in_range(e, i > 0 ? p[i - 1].expert + 1 : 0, c->n_experts - 1);
            for (int32_t o = 0; o < c->n_experts; o++)
                better += s[o] > s[e] || (s[o] == s[e] && o < e);
            assert_true(better < c->n_used);
            double want = exp((double)s[e] - max) / sum * (double)c->scale;
            assert_true(fabs((double)p[i].weight - want) <= 1e-6 * (double)c->scale);
        }
    }
}

/* Every slot once, rows in order, within one expert's group; shares that cover all parts. */
static void check_groups(const fixture *f, int n_threads) {
    const gs_moe *m = &f->m;
    int32_t at = 0, parts = (m->n_ff + 127) / 128;
    for (int32_t g = 0; g < m->n_groups; g++) {
        assert_true(m->groups[g].first == at && m->groups[g].n > 0);
        assert_true(g == 0 || m->groups[g].expert > m->groups[g - 1].expert);
        for (int32_t i = 0; i < m->groups[g].n; i++, at++) {
            const gs_moe_slot *s = &m->slots[at];
            const gs_moe_pick *p = m->picks + (ptrdiff_t)s->row * m->n_used;
            bool found = false;
            for (int32_t u = 0; u < m->n_used; u++)
                found |= p[u].expert == m->groups[g].expert && p[u].weight == s->weight;
            assert_true(found && (i == 0 || s->row > s[-1].row));
        }
    }
    assert_int_equal(at, m->n_rows * m->n_used);
    assert_true(m->split[0] == 0 && m->split[n_threads] == m->n_groups * parts);
    for (int t = 0; t < n_threads; t++)
        assert_true(m->split[t] <= m->split[t + 1]);
}

static void check(fixture *f, const int *threads, int n_threads) {
    const moe_case *c = f->c;
    const size_t bytes = sizeof(float) * (size_t)(c->n_rows * c->n_embd);
    float *want = NULL;
    for (int i = 0; i < n_threads; i++) {
        init(f, c, threads[i]);
        float *y = grouped(f, threads[i]);
        check_picks(f);
        check_groups(f, threads[i]);
        f->busiest = 0;
        for (int32_t g = 0; g < f->m.n_groups; g++)
            f->busiest = f->m.groups[g].n > f->busiest ? f->m.groups[g].n : f->busiest;
        if (!want)
            want = one_by_one(f);
        if (memcmp(y, want, bytes) != 0)
            fail_msg("%s: %s, %s, %d of %d experts, %d rows of %d, %d wide, %d threads: other bits",
                     gs_isa_name(gs_kernels_isa()), info_of(c->type)->name,
                     info_of(c->down_type)->name, c->n_used, c->n_experts, c->n_rows, c->n_embd,
                     c->n_ff, threads[i]);
        free(y);
        free(f->memory);
    }
    free(want);
}

static const int g_threads[] = {1, 2, 3, 5, 16};

static void make(fixture *f, const moe_case *c) {
    f->c = c;
    f->gate = make_stack(c->type, c->n_experts, c->n_ff, c->n_embd);
    f->up = make_stack(c->type, c->n_experts, c->n_ff, c->n_embd);
    f->down = make_stack(c->down_type, c->n_experts, c->n_embd, c->n_ff);
    f->x = make_floats(c->n_rows * c->n_embd, 1);
    f->scores = make_floats(c->n_rows * c->n_experts, 4);
}

static void unmake(fixture *f) {
    free(f->gate.data);
    free(f->up.data);
    free(f->down.data);
    free(f->x);
    free(f->scores);
}

#define FOR_EACH_ISA(isa)                                                                          \
    for (int isa = 0; isa < GS_ISA_COUNT; isa++)                                                   \
        if (gs_isa_supported((gs_isa)isa))

/* Every weight type, mixed as files mix them, on odd shapes, everybody anywhere. */
static void test_types(void **state) {
    (void)state;
    for (size_t t = 0; t < N_TYPES; t++) {
        fixture f;
        const moe_case c = {.type = g_types[t],
                            .down_type = g_types[(t + t % 2) % N_TYPES],
                            .n_experts = 5,
                            .n_used = 2,
                            .n_embd = 256,
                            .n_ff = 256,
                            .n_rows = 9,
                            .scale = 1};
        make(&f, &c);
        FOR_EACH_ISA(isa) {
            use_isa((gs_isa)isa);
            check(&f, g_threads + isa % 2 + 1, 1);
        }
        unmake(&f);
    }
}

static void test_shapes(void **state) {
    (void)state;
    static const moe_case cases[] = {
        {GS_QTYPE_Q4_0, GS_QTYPE_Q8_0, 7, 3, 96, 32, 1, 1},
        {GS_QTYPE_Q8_0, GS_QTYPE_Q4_0, 3, 3, 32, 160, 2, 2.5f},
        {GS_QTYPE_Q4_1, GS_QTYPE_BF16, 130, 8, 160, 288, 40, 1},
        {GS_QTYPE_F16, GS_QTYPE_F32, 1, 1, 64, 416, 77, 1},
        {GS_QTYPE_Q4_K, GS_QTYPE_Q6_K, 17, 6, 512, 256, 33, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture f;
        make(&f, &cases[i]);
        FOR_EACH_ISA(isa) {
            if (isa == GS_ISA_SCALAR && cases[i].n_rows > 9)
                continue;
            use_isa((gs_isa)isa);
            check(&f, g_threads, 5);
        }
        unmake(&f);
    }
}

/* Scores that send row r to exactly these experts. */
static void send(fixture *f, int32_t r, const int32_t *experts, int32_t n) {
    float *s = f->scores + (ptrdiff_t)r * f->c->n_experts;
    for (int32_t e = 0; e < f->c->n_experts; e++)
        s[e] = -9;
    for (int32_t i = 0; i < n; i++)
        s[experts[i]] = rnd_float();
}

/* All to the same, each to others, and groups of every size that changes the tiles. */
static void test_routings(void **state) {
    (void)state;
    static const int32_t sizes[] = {1, 2, 3, 5, 6, 7, 8, 12, 13, 31, 64, 69, 70};
    fixture f;
    moe_case c = {GS_QTYPE_Q4_0, GS_QTYPE_Q4_0, 71, 2, 64, 160, 70, 1};
    make(&f, &c);
    FOR_EACH_ISA(isa) {
        use_isa((gs_isa)isa);
        for (int32_t r = 0; r < c.n_rows; r++)
            send(&f, r, (const int32_t[]){3, 70}, 2);
        check(&f, g_threads, 5);
        assert_true(f.m.n_groups == 2 && f.busiest == 70);
        for (int32_t r = 0; r < c.n_rows; r++)
            send(&f, r, (const int32_t[]){r, r + 1}, 2);
        check(&f, g_threads, 5);
        assert_true(f.m.n_groups == 71 && f.busiest == 2);
    }
    unmake(&f);
    c = (moe_case){GS_QTYPE_Q4_0, GS_QTYPE_Q8_0, 40, 1, 64, 160, 0, 1};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        c.n_rows += sizes[i];
    make(&f, &c);
    for (size_t i = 0, r = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int32_t n = 0; n < sizes[i]; n++, r++)
            send(&f, (int32_t)r, (const int32_t[]){(int32_t)(3 * i)}, 1);
    FOR_EACH_ISA(isa) {
        use_isa((gs_isa)isa);
        check(&f, g_threads, 5);
        assert_int_equal(f.m.n_groups, sizeof sizes / sizeof sizes[0]);
    }
    unmake(&f);
}

/* A thread's share of the work, in rows of a part but at least 8 of them, is near the mean. */
static void test_balance(void **state) {
    (void)state;
    fixture f;
    const moe_case c = {GS_QTYPE_Q4_0, GS_QTYPE_Q4_0, 64, 4, 32, 768, MAX_ROWS, 1};
    make(&f, &c);
    for (int32_t r = 0; r < c.n_rows; r++) /* a busy expert, and the rest anywhere */
        f.scores[(ptrdiff_t)r * c.n_experts + 20] += 5;
    use_isa(GS_ISA_SCALAR);
    for (int t = 1; t <= 16; t++) {
        int64_t total = 0, cost[16] = {0}, most = 0;
        init(&f, &c, t);
        memcpy(f.m.scores, f.scores, sizeof *f.scores * (size_t)(c.n_rows * c.n_experts));
        gs_moe_route(&f.m, 0, c.n_rows);
        gs_moe_group_rows(&f.m, c.n_rows, t);
        for (int i = 0; i < t; i++) {
            for (int32_t p = f.m.split[i]; p < f.m.split[i + 1]; p++)
                cost[i] += f.m.groups[p / 6].n > 8 ? f.m.groups[p / 6].n : 8;
            total += cost[i];
            most = cost[i] > most ? cost[i] : most;
        }
        assert_true(most <= total / t + f.m.groups[20].n); /* a part of the busiest more at most */
        free(f.memory);
    }
    unmake(&f);
}

/* Nothing that a broken model can score leads outside the experts. */
static void test_odd_scores(void **state) {
    (void)state;
    fixture f;
    const moe_case c = {GS_QTYPE_F32, GS_QTYPE_F32, 6, 3, 32, 32, 5, 1};
    const float rows[5][6] = {
        {NAN, NAN, NAN, NAN, NAN, NAN},
        {INFINITY, 1, 2, INFINITY, NAN, -INFINITY},
        {-INFINITY, -INFINITY, -INFINITY, 1, 2},
        {1, 1, 1, 1, 1, 1},
        {NAN, 1, NAN, 2, NAN, 3},
    };
    make(&f, &c);
    use_isa(GS_ISA_SCALAR);
    init(&f, &c, 2);
    memcpy(f.m.scores, rows, sizeof rows);
    gs_moe_route(&f.m, 0, 5);
    for (int r = 0; r < 5; r++)
        for (int i = 0; i < 3; i++)
            assert_in_range(f.m.picks[3 * r + i].expert,
                            i ? f.m.picks[3 * r + i - 1].expert + 1 : 0, 5);
    assert_true(isnan(f.m.picks[0].weight)); /* the sampler says which sequence is broken */
    assert_true(f.m.picks[9].expert == 0 && f.m.picks[11].expert == 2); /* equal: the lower ones */
    assert_true(fabsf(f.m.picks[9].weight - 1.0f / 3) < 1e-6f);
    assert_true(f.m.picks[12].expert == 1 && f.m.picks[14].expert == 5);
    gs_moe_group_rows(&f.m, 5, 2);
    const gs_moe_group *last = &f.m.groups[f.m.n_groups - 1];
    assert_int_equal(last->first + last->n, 15);
    free(f.memory);
    unmake(&f);
}

/* Float weights against double precision, from the router's product on. */
static void test_exact(void **state) {
    (void)state;
    enum { ROWS = 11, EXPERTS = 9, USED = 3, EMBD = 96, FF = 160 };
    fixture f;
    const moe_case c = {GS_QTYPE_F32, GS_QTYPE_F32, EXPERTS, USED, EMBD, FF, ROWS, 1};
    make(&f, &c);
    uint8_t *src = make_rows(GS_QTYPE_F32, EXPERTS, EMBD, DATA_RANDOM);
    gs_mat router = pack_rows(GS_QTYPE_F32, EXPERTS, EMBD, src);
    FOR_EACH_ISA(isa) {
        use_isa((gs_isa)isa);
        init(&f, &c, 3);
        gs_act x = quantised(f.x, ROWS, EMBD, GS_ACT_FLOAT);
        for (int t = 0; t < 3; t++)
            gs_moe_score(&f.m, &router, &x, t, 3);
        memcpy(f.scores, f.m.scores, sizeof *f.scores * ROWS * EXPERTS);
        float *y = grouped(&f, 3), row[FF];
        for (int r = 0; r < ROWS; r++) {
            const float *in = f.x + (ptrdiff_t)r * EMBD;
            double want[EMBD], h[FF];
            for (int e = 0; e < EXPERTS; e++) {
                double s = 0;
                gs_mat_row(&router, e, row);
                for (int i = 0; i < EMBD; i++)
                    s += (double)row[i] * (double)in[i];
                assert_true(fabs(s - (double)f.scores[r * EXPERTS + e]) < 1e-4);
            }
            for (int i = 0; i < EMBD; i++)
                want[i] = 0.5;
            for (int u = 0; u < USED; u++) {
                const gs_moe_pick *p = &f.m.picks[r * USED + u];
                for (int k = 0; k < FF; k++) {
                    double g = 0, v = 0;
                    const gs_mat wg = gs_mat_nth(&f.gate, p->expert);
                    const gs_mat wu = gs_mat_nth(&f.up, p->expert);
                    gs_mat_row(&wg, k, row);
                    for (int i = 0; i < EMBD; i++)
                        g += (double)row[i] * (double)in[i];
                    gs_mat_row(&wu, k, row);
                    for (int i = 0; i < EMBD; i++)
                        v += (double)row[i] * (double)in[i];
                    h[k] = g / (1 + exp(-g)) * v;
                }
                const gs_mat wd = gs_mat_nth(&f.down, p->expert);
                for (int i = 0; i < EMBD; i++) {
                    double s = 0;
                    gs_mat_row(&wd, i, row);
                    for (int k = 0; k < FF; k++)
                        s += (double)row[k] * h[k];
                    want[i] += s * (double)p->weight;
                }
            }
            for (int i = 0; i < EMBD; i++)
                assert_true(fabs((double)y[r * EMBD + i] - want[i]) < 2e-3);
        }
        free(y);
        free(x.data);
        free(f.memory);
    }
    free(router.data);
    free(src);
    unmake(&f);
}

int main(void) {
    gs_rng_seed(&g_rng, 21);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),    cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_routings), cmocka_unit_test(test_balance),
        cmocka_unit_test(test_exact),    cmocka_unit_test(test_odd_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
