/* Traces: reading, writing, scenarios, public formats, and what the simulator is given. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/sys.h"
#include "load/trace.h"

#define assert_near(a, b, most) assert_true(fabs((a) - (b)) <= (most))

static gs_trace parsed(const char *text) {
    gs_trace t;
    char err[200] = "";
    if (gs_trace_parse(text, strlen(text), &t, err, sizeof err) != 0)
        fail_msg("%s", err);
    return t;
}

static void refused(const char *text, const char *says) {
    gs_trace t;
    char err[200] = "";
    assert_int_not_equal(gs_trace_parse(text, strlen(text), &t, err, sizeof err), 0);
    if (!strstr(err, says))
        fail_msg("'%s' is not in '%s'", says, err);
    assert_int_equal(t.n, 0);
    gs_trace_free(&t);
}

#define TALK                                                                                       \
    "{\"t\":1.5,\"id\":\"a\",\"person\":\"ana\",\"class\":\"chat\",\"api\":\"chat\","              \
    "\"prompt_tokens\":100,\"prefix_tokens\":40,\"shared_prefix\":\"app\",\"max_tokens\":20,"      \
    "\"conversation\":{\"id\":\"c\",\"turn\":0},\"cancel_after\":null,\"after\":null}\n"           \
    "{\"t\":9,\"id\":\"b\",\"person\":\"ben\",\"class\":\"voice\",\"api\":\"chat\","               \
    "\"prompt_tokens\":150,\"prefix_tokens\":120,\"shared_prefix\":\"c\",\"max_tokens\":30,"       \
    "\"stream\":false,\"deadline\":5,\"cancel_after\":2,"                                          \
    "\"conversation\":{\"id\":\"c\",\"turn\":1},\"after\":{\"id\":\"a\",\"think\":6}}\n"

static void fields_come_back(void **state) {
    (void)state;
    gs_trace t = parsed(TALK);
    gs_buf out = {0};
    assert_int_equal(t.n, 2);
    assert_int_equal(t.n_persons, 3);
    assert_int_equal(t.requests[1].after, 0);
    assert_int_equal(t.requests[1].turn, 1);
    assert_int_equal(t.requests[1].cls, GS_CLASS_VOICE);
    assert_false(t.requests[1].stream);
    assert_true(t.requests[0].stream);
    assert_near(t.requests[1].think_s, 6, 0);
    assert_near(t.requests[1].cancel_after_s, 2, 0);
    assert_near(t.requests[1].deadline_s, 5, 0);
    assert_int_equal(gs_trace_write(&t, &out), 0);
    gs_trace again = parsed(gs_buf_cstr(&out));
    gs_buf twice = {0};
    assert_int_equal(gs_trace_write(&again, &twice), 0);
    assert_string_equal(gs_buf_cstr(&out), gs_buf_cstr(&twice));
    gs_buf_deinit(&out);
    gs_buf_deinit(&twice);
    gs_trace_free(&t);
    gs_trace_free(&again);
}

static void what_is_wrong_is_named(void **state) {
    (void)state;
    refused("[1]\n", "line 1");
    refused("\n{\"t\":0}\n", "line 2");
    refused("{\"t\":0,\"person\":\"a\",\"class\":\"loud\",\"prompt_tokens\":1}", "class");
    refused("{\"t\":0,\"person\":\"a\",\"class\":\"chat\",\"prompt_tokens\":0}", "prompt_tokens");
    refused("{\"t\":-1,\"person\":\"a\",\"class\":\"chat\",\"prompt_tokens\":1}", "\"t\"");
    refused("{\"t\":0,\"person\":\"a\",\"class\":\"chat\",\"api\":\"x\",\"prompt_tokens\":1}",
            "api");
    refused("{\"t\":0,\"person\":\"a\",\"class\":\"chat\",\"prompt_tokens\":1,\"after\":{\"id\":"
            "\"z\"}}",
            "after");
    refused(TALK TALK, "id");
    refused("{\"t\":0,\"person\":\"a\",\"class\":\"chat\",\"prompt_tokens\":1,\"blocks\":[1]}",
            "block_tokens");
    refused("{\"t\":0,\"person\":\"a\",\"class\":\"chat\",\"prompt_tokens\":1,\"block_tokens\":4,"
            "\"blocks\":[\"x\"]}",
            "blocks");
}

/* Rates and lengths of the scenarios are those of bench/family/trace.py, over a long time. */
static void scenarios_have_their_rates(void **state) {
    (void)state;
    char err[200];
    for (int i = 0; gs_scenario_name(i); i++) {
        gs_trace t;
        const gs_scenario_options o = {1, 1, 1, 0};
        assert_int_equal(gs_scenario_generate(gs_scenario_name(i), &o, &t, err, sizeof err), 0);
        assert_true(t.n > 0);
        for (int32_t k = 0; k < t.n; k++) {
            assert_true(t.requests[k].after < k);
            assert_true(k == 0 || t.requests[k].t_s >= t.requests[k - 1].t_s);
        }
        gs_trace_free(&t);
    }
    const gs_scenario_options day = {3, 1, 1, 40 * 3600.0};
    gs_trace t;
    assert_int_equal(gs_scenario_generate("evening_peak", &day, &t, err, sizeof err), 0);
    double n[GS_CLASS_COUNT] = {0}, prompt = 0;
    for (int32_t i = 0; i < t.n; i++) {
        n[t.requests[i].cls] += 1.0 / 40;
        prompt += t.requests[i].cls == GS_CLASS_VOICE ? t.requests[i].n_prompt : 0;
    }
    /* 12 spoken turns an hour; 3 sessions of 5 turns at most; 2 documents with 1.5 questions. */
    assert_true(n[GS_CLASS_VOICE] > 9 && n[GS_CLASS_VOICE] < 15);
    assert_true(n[GS_CLASS_CHAT] > 9 && n[GS_CLASS_CHAT] < 19);
    assert_true(n[GS_CLASS_DOCUMENT] > 3 && n[GS_CLASS_DOCUMENT] < 7);
    assert_true(n[GS_CLASS_BACKGROUND] > 45 && n[GS_CLASS_BACKGROUND] < 67);
    prompt /= 40 * n[GS_CLASS_VOICE];
    assert_true(prompt > 3030 && prompt < 3100); /* instructions and some words */
    gs_trace_free(&t);
    assert_int_equal(gs_scenario_generate("nothing", &day, &t, err, sizeof err), GS_ERR_NOT_FOUND);
}

static void clipping_begins_conversations_anew(void **state) {
    (void)state;
    gs_trace t = parsed(TALK);
    assert_int_equal(gs_trace_clip(&t, 1000), 0);
    assert_int_equal(gs_trace_clip(&t, 160), 1);
    assert_int_equal(t.requests[1].turn, 0);
    assert_int_equal(t.requests[1].n_prefix, 0);
    assert_int_equal(t.requests[1].n_prompt, 30);
    assert_int_equal(gs_trace_clip(&t, 40), 2);
    for (int i = 0; i < 2; i++)
        assert_true(t.requests[i].n_prompt + t.requests[i].n_output <= 40);
    gs_trace_free(&t);
}

static void filtering_frees_who_waited(void **state) {
    (void)state;
    gs_trace t = parsed(TALK);
    gs_trace_filter(&t, (bool[]){false, true});
    assert_int_equal(t.n, 1);
    assert_string_equal(t.requests[0].id, "b");
    assert_int_equal(t.requests[0].after, -1);
    gs_trace_free(&t);
}

static gs_sim_report simulated(const gs_trace *t, double speed) {
    gs_trace_sim s;
    gs_sim *m;
    gs_sim_report rep;
    char err[200];
    assert_int_equal(gs_trace_to_sim(t, speed, false, &s), 0);
    const gs_sim_config c = {.device = *gs_sim_device_find("xeon2-135m"),
                             .n_persons = s.n_persons,
                             .max_waiting = 100,
                             .check = true};
    assert_int_equal(gs_sim_create(&c, s.requests, s.n, &m), 0);
    assert_int_equal(gs_sim_run(m, err, sizeof err), 0);
    assert_int_equal(gs_sim_report_create(m, &rep), 0);
    gs_sim_free(m);
    gs_trace_sim_free(&s);
    return rep;
}

/* Equal hashes are equal beginnings: the simulated cache finds them, and the answer's block too. */
static void recorded_blocks_feed_the_cache(void **state) {
    (void)state;
    gs_trace t = parsed(
        "{\"t\":0,\"person\":\"1\",\"class\":\"chat\",\"prompt_tokens\":128,\"max_tokens\":33,"
        "\"block_tokens\":32,\"blocks\":[1,2,3,4,5]}\n"
        "{\"t\":5,\"person\":\"1\",\"class\":\"chat\",\"prompt_tokens\":180,\"max_tokens\":4,"
        "\"block_tokens\":32,\"blocks\":[1,2,3,4,5,6]}\n"
        "{\"t\":9,\"person\":\"1\",\"class\":\"chat\",\"prompt_tokens\":100,\"max_tokens\":4,"
        "\"block_tokens\":32,\"blocks\":[1,2,9]}\n");
    const gs_sim_report rep = simulated(&t, 1);
    assert_int_equal(rep.cls[GS_CLASS_CHAT].n_done, 3);
    assert_int_equal(rep.kv.hits_tokens, 160 + 64);
    gs_trace_free(&t);
}

static void speed_divides_times(void **state) {
    (void)state;
    gs_trace t = parsed(TALK);
    gs_trace_sim s;
    assert_int_equal(gs_trace_to_sim(&t, 2, false, &s), 0);
    assert_int_equal(s.requests[0].t_ns, 750000000);
    assert_int_equal(s.requests[1].think_ns, 3000000000);
    assert_int_equal(s.requests[1].cancel_after_ns, 2000000000); /* patience is what it was */
    assert_int_equal(s.requests[1].prefix_of, 0);
    gs_trace_sim_free(&s);
    gs_trace_free(&t);
}

static gs_trace imported(const char *format, const char *text, const char *says) {
    char path[] = "/tmp/gamasot-trace-XXXXXX", err[200] = "";
    gs_trace t;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    const int rc = gs_trace_import(format, path, &t, err, sizeof err);
    unlink(path);
    if (says) {
        assert_int_not_equal(rc, 0);
        if (!strstr(err, says))
            fail_msg("'%s' is not in '%s'", says, err);
    } else if (rc != 0) {
        fail_msg("%s", err);
    }
    return t;
}

static void public_formats(void **state) {
    (void)state;
    gs_trace t = imported("azure",
                          "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                          "2023-11-16 18:17:03.9799600,4808,10\n"
                          "2023-11-16 18:17:04.4799600,3180,8\n",
                          NULL);
    assert_int_equal(t.n, 2);
    assert_int_equal(t.requests[1].n_prompt, 3180);
    assert_int_equal(t.requests[1].n_output, 8);
    assert_near(t.requests[1].t_s, 0.5, 1e-6);
    gs_trace_free(&t);
    t = imported("azure",
                 "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                 "2024-05-10 00:00:00.009930+00:00,2162,5\n"
                 "2024-05-10 00:00:01.009930+00:00,11,6\r\n",
                 NULL);
    assert_int_equal(t.n, 2);
    assert_near(t.requests[1].t_s, 1, 1e-6);
    gs_trace_free(&t);
    t = imported(
        "burstgpt",
        "\xef\xbb\xbfTimestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,\"GPT-4\",1087,0,1087,API log\n"
        "118,GPT-4,417,276,693,Conversation log\n",
        NULL);
    assert_int_equal(t.n, 2); /* the failed one is left out */
    assert_near(t.requests[1].t_s, 113, 0);
    assert_int_equal(t.requests[1].n_output, 276);
    gs_trace_free(&t);
    t = imported("burstgpt",
                 "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens\n"
                 "0,s1,1,m,100,20\n3,s2,1,m,50,5\n10,s1,1,m,150,20\n",
                 NULL);
    assert_int_equal(t.requests[2].after, 0);
    assert_int_equal(t.requests[2].turn, 1);
    assert_int_equal(t.requests[2].n_prefix, 120);
    assert_near(t.requests[2].think_s, 10, 0);
    gs_trace_free(&t);
    t = imported("mooncake",
                 "{\"timestamp\":0,\"input_length\":1100,\"output_length\":52,\"hash_ids\":[46,47,"
                 "48]}\n{\"timestamp\":10535,\"input_length\":600,\"output_length\":26,"
                 "\"hash_ids\":[46,49]}\n",
                 NULL);
    assert_int_equal(t.requests[1].n_blocks, 2);
    assert_near(t.requests[1].t_s, 10.535, 1e-9);
    const gs_sim_report rep = simulated(&t, 1);
    assert_int_equal(rep.kv.hits_tokens, 512);
    gs_trace_free(&t);
    imported("azure", "TIMESTAMP,Context\n1,2\n", "ContextTokens");
    imported("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nx,1,2\n", "line 2");
    imported("burstgpt", "Timestamp,Request tokens,Response tokens\n1,-4,2\n", "line 2");
    imported("mooncake", "{\"timestamp\":0}\n", "input_length");
    imported("what", "", "what");
}

/* Else the fuzzer would begin with a refusal. */
static void the_fuzzers_seed_is_read(void **state) {
    (void)state;
    gs_trace t;
    char err[256] = "";
    gs_trace_init(&t);
    assert_int_equal(
        gs_trace_read("tests/fuzz/corpus/fuzz_load_trace/evening", &t, err, sizeof err), GS_OK);
    assert_true(t.n > 0);
    gs_trace_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_come_back),
        cmocka_unit_test(the_fuzzers_seed_is_read),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(scenarios_have_their_rates),
        cmocka_unit_test(clipping_begins_conversations_anew),
        cmocka_unit_test(filtering_frees_who_waited),
        cmocka_unit_test(recorded_blocks_feed_the_cache),
        cmocka_unit_test(speed_divides_times),
        cmocka_unit_test(public_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
