/* Whom a request is for, which class it gets and what it may do, by its key, address and headers:
 * the functions alone, without a socket. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "../folder.h"
#include "api/api_impl.h"
#include "api/embed.h"
#include "api/ollama.h"
#include "base/err.h"
#include "http/conn_impl.h"
#include "oom.h"
#include "quoted.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))

static char err[600];
static gs_api *api;

/* A ring with these keys; the secret of each is its name. */
static void keys_are(const char *list) {
    gs_keys read;
    json_t *v = quoted(list);
    for (size_t i = 0; i < json_array_size(v); i++) {
        json_t *key = json_array_get(v, i);
        uint8_t hash[GS_SHA256_BYTES];
        char text[80] = "sha256:";
        gs_key_hash(json_string_value(json_object_get(key, "name")), hash);
        for (size_t k = 0; k < sizeof(hash); k++)
            snprintf(text + 7 + 2 * k, 3, "%02x", hash[k]);
        json_object_set_new(key, "hash", json_string(text));
    }
    json_t *root = json_pack("{s:o}", "keys", v);
    char *text = json_dumps(root, 0);
    assert_int_equal(gs_keys_parse("keys", text, strlen(text), &read, err, sizeof(err)), 0);
    free(text);
    json_decref(root);
    gs_keys_deinit(&api->keys.all);
    api->keys.all = read;
    api->keys.needed = read.n > 0;
}

static int open_api(void **state) {
    (void)state;
    api = calloc(1, sizeof(*api));
    assert_non_null(api);
    api->scope_salt = 7;
    return 0;
}

static int close_api(void **state) {
    (void)state;
    gs_keys_deinit(&api->keys.all);
    free(api);
    return 0;
}

/* headers: "name: value", up to NULL. Valid until the next one is made. */
static gs_http_request *request(const char *method, const char *peer,
                                const char *const headers[4]) {
    static gs_http_request rq;
    static gs_http_field fields[4];
    static char text[4][1100];
    rq = (gs_http_request){.msg = {.method = method, .path = "/", .query = "", .fields = fields}};
    snprintf(rq.peer, sizeof(rq.peer), "%s", peer);
    for (int i = 0; i < 4 && headers[i]; i++) {
        snprintf(text[i], sizeof(text[i]), "%s", headers[i]);
        char *colon = strchr(text[i], ':');
        *colon = '\0';
        fields[rq.msg.n_fields++] = (gs_http_field){text[i], colon + 2};
    }
    return &rq;
}

/* ---- Persons --------------------------------------------------------------------------------- */

#define HOUSE                                                                                      \
    "[{'name': 'anna', 'addresses': ['192.168.1.5']}, {'name': 'anna2', 'person': 'anna', "        \
    "'weight': 2}, {'name': 'webui', 'trusted_proxy': true}, {'name': 'shared', 'cache_scope': "   \
    "'all'}, {'name': 'shared2', 'cache_scope': 'all', 'class': 'background'}]"

typedef struct who_case {
    const char *keys, *peer, *headers[4], *user;
    const char *name; /* of the person; "": nobody in particular */
    int scope;        /* the same number, the same prefix cache */
} who_case;

/* clang-format off */
static const who_case people[] = {
    {"[]", "127.0.0.1", {NULL}, "mina", "mina", 1},
    {"[]", "::1", {NULL}, "mina", "mina", 1},
    {"[]", "::ffff:127.0.0.1", {NULL}, "jun", "jun", 2},
    {"[]", "127.0.0.1", {NULL}, "", "", 3},
    {"[]", "192.168.1.9", {NULL}, "mina", "192.168.1.9", 4}, /* no right to be somebody else */
    {"[]", "::ffff:192.168.1.9", {NULL}, "", "::ffff:192.168.1.9", 5},
    {"[]", "fd00::1:2", {NULL}, "", "fd00::", 6}, /* hosts change the lower half */
    {"[]", "fd00::3:4", {NULL}, "", "fd00::", 6},
    {HOUSE, "10.0.0.1", {"authorization: Bearer anna"}, "mina", "anna", 10},
    {HOUSE, "192.168.1.5", {NULL}, "", "anna", 10},
    {HOUSE, "10.0.0.1", {"x-api-key: anna2"}, "", "anna", 10},
    {HOUSE, "10.0.0.1", {"authorization: Basic dXNlcjphbm5h"}, "", "anna", 10}, /* user:anna */
    {HOUSE, "10.0.0.1", {"x-api-key: shared"}, "", "shared", 11},
    {HOUSE, "10.0.0.1", {"x-api-key: shared2"}, "", "shared2", 11},
    {HOUSE, "10.0.0.1", {"x-api-key: webui"}, "", "webui", 12},
    {HOUSE, "10.0.0.1", {"x-api-key: webui"}, "mina", "webui/mina", 13},
    {HOUSE, "10.0.0.1", {"x-api-key: webui", "x-gamasot-user: mina"}, "jun", "webui/mina", 13},
    {HOUSE, "10.0.0.1", {"x-api-key: webui", "x-gamasot-user: ", "x-openwebui-user-id: 17", "x-openwebui-user-name: Jun"}, "", "webui/Jun", 14},
    {HOUSE, "10.0.0.1", {"x-api-key: webui", "x-openwebui-user-id: 17", "x-openwebui-user-name: "}, "", "webui/Jun", 14}, /* known by that name */
    {HOUSE, "10.0.0.1", {"x-api-key: anna", "x-gamasot-user: mina"}, "", "anna", 10}, /* not trusted with names */
};
/* clang-format on */

static void persons_and_scopes(void **state) {
    (void)state;
    uint64_t scopes[N(people)];
    for (size_t i = 0; i < N(people); i++) {
        const who_case *c = &people[i];
        gs_identity who, again;
        gs_owner owner;
        if (i == 0 || strcmp(c->keys, people[i - 1].keys) != 0)
            keys_are(c->keys);
        const gs_http_request *rq = request("POST", c->peer, c->headers);
        gs_api_identify(api, rq, c->user, &who);
        if (strcmp(gs_api_person_name(api, who.person), c->name) != 0)
            fail_msg("row %d: %s, not %s", (int)i, gs_api_person_name(api, who.person), c->name);
        assert_int_equal(who.has_limits, api->keys.needed);
        scopes[i] = who.cache_scope;
        for (size_t k = 0; k < i; k++)
            if ((scopes[k] == scopes[i]) != (people[k].scope == c->scope))
                fail_msg("rows %d and %d", (int)k, (int)i);
        /* Who owns a file is the same person later, but for names that `user` gives. */
        gs_api_owner(api, rq, &owner);
        assert_true(gs_api_identify_owner(api, &owner, &again));
        gs_api_identify(api, rq, "", &who);
        assert_int_equal(again.person, who.person);
        assert_int_equal(again.cache_scope, who.cache_scope);
    }
    assert_string_equal(gs_api_person_name(api, GS_API_MAX_PERSONS), "");
}

/* Limits stand with the first key of a person; owners whose key has gone are told so. */
static void limits_and_lost_keys(void **state) {
    (void)state;
    keys_are(HOUSE);
    gs_identity who;
    gs_api_identify(api, request("GET", "10.0.0.1", (const char *[4]){"x-api-key: anna2"}), "",
                    &who);
    assert_true(who.limits.weight == 1);
    assert_true(gs_api_identify_owner(api, &(gs_owner){"key webui\nmina", "webui"}, &who));
    assert_string_equal(gs_api_person_name(api, who.person), "webui/mina");
    assert_false(gs_api_identify_owner(api, &(gs_owner){"key gone", "gone"}, &who));
    assert_false(gs_api_identify_owner(api, &(gs_owner){"10.0.0.1", ""}, &who));
    keys_are("[]");
    assert_true(gs_api_identify_owner(api, &(gs_owner){"10.0.0.1", ""}, &who));
    assert_false(gs_api_identify_owner(api, &(gs_owner){"key gone", "gone"}, &who));
}

/* Who has no place in the table is nobody in particular, in a scope of their own all the same. */
static void more_persons_than_places(void **state) {
    (void)state;
    gs_identity first, who;
    char peer[32];
    keys_are("[]");
    gs_api_identify(api, request("GET", "10.0.0.0", (const char *[4]){NULL}), "", &first);
    for (int i = 1; i < GS_API_MAX_PERSONS + 9; i++) {
        snprintf(peer, sizeof(peer), "10.0.0.%d", i);
        gs_api_identify(api, request("GET", peer, (const char *[4]){NULL}), "", &who);
        assert_int_equal(who.person, i < GS_API_MAX_PERSONS - 1 ? i + 1 : 0);
        assert_int_not_equal(who.cache_scope, first.cache_scope);
    }
}

/* ---- Classes --------------------------------------------------------------------------------- */

typedef struct class_case {
    const char *key, *header, *body;
    int32_t alias; /* -1: none */
    gs_class want;
    bool fixed;
} class_case;

/* clang-format off */
static const class_case classes[] = {
    {"plain", NULL, "{}", -1, GS_CLASS_CHAT, false},
    {"plain", "utility", "{}", -1, GS_CLASS_UTILITY, true},
    {"plain", "chat", "{}", -1, GS_CLASS_CHAT, true},
    {"plain", "nonsense", "{}", -1, GS_CLASS_CHAT, false},
    {"plain", "voice", "{}", -1, GS_CLASS_CHAT, false}, /* takes a word of the owner */
    {"owner", "voice", "{}", -1, GS_CLASS_VOICE, true},
    {"plain", "utility", "{}", GS_CLASS_DOCUMENT, GS_CLASS_UTILITY, true},
    {"plain", NULL, "{'service_tier': 'flex'}", GS_CLASS_DOCUMENT, GS_CLASS_DOCUMENT, true},
    {"plain", NULL, "{'service_tier': 'flex'}", -1, GS_CLASS_BACKGROUND, true},
    {"plain", NULL, "{'service_tier': 'priority'}", -1, GS_CLASS_CHAT, true},
    {"owner", NULL, "{'service_tier': 'priority'}", -1, GS_CLASS_VOICE, true},
    {"none", NULL, "{'service_tier': 'priority'}", -1, GS_CLASS_CHAT, false},
    {"plain", NULL, "{'service_tier': 'auto'}", -1, GS_CLASS_CHAT, false},
    {"slow", NULL, "{}", -1, GS_CLASS_BACKGROUND, true},
    {"slow", "chat", "{}", -1, GS_CLASS_CHAT, true},
    {"talks", NULL, "{}", -1, GS_CLASS_CHAT, false}, /* a key for chat may send documents */
    {"talks", "document", "{}", -1, GS_CLASS_DOCUMENT, true},
    {"plain", NULL, "{'suffix': 'x'}", -1, GS_CLASS_COMPLETION, false},
    {"plain", NULL, "{'messages': [{'role': 'user', 'content': 'x'}]}", -1, GS_CLASS_CHAT, false},
    {"plain", NULL, "{'messages': [{'role': 'user', 'content': '### Task:\\nA title.'}]}", -1, GS_CLASS_UTILITY, false},
    {"plain", NULL, "{'messages': [{'role': 'user', 'content': null}]}", -1, GS_CLASS_CHAT, false},
};
/* clang-format on */

static void each_request_has_its_class(void **state) {
    (void)state;
    keys_are("[{'name': 'plain'}, {'name': 'owner', 'classes': ['voice', 'chat', 'document']}, "
             "{'name': 'slow', 'class': 'background'}, {'name': 'talks', 'class': 'chat'}, "
             "{'name': 'none', 'classes': []}]");
    for (size_t i = 0; i < N(classes); i++) {
        const class_case *c = &classes[i];
        char key[64], class[64];
        const gs_model_alias alias = {.cls = c->alias};
        gs_req *r = calloc(1, sizeof(*r));
        assert_non_null(r);
        snprintf(key, sizeof(key), "x-api-key: %s", c->key);
        snprintf(class, sizeof(class), "x-gamasot-class: %s", c->header ? c->header : "");
        r->api = api;
        r->rq = request("POST", "10.0.0.1", (const char *[4]){key, c->header ? class : NULL});
        r->body = quoted(c->body);
        r->dialect = &gs_dialect_chat;
        r->alias = c->alias >= 0 ? &alias : NULL;
        gs_req_classify(r);
        if (r->cls != c->want || r->class_fixed != c->fixed)
            fail_msg("row %d: %s%s", (int)i, gs_class_name(r->cls),
                     r->class_fixed ? ", fixed" : "");
        json_decref(r->body);
        free(r);
    }
}

/* ---- Doors ----------------------------------------------------------------------------------- */

static void pages_without_an_origin_are_known_by_their_address(void **state) {
    (void)state;
    static char long_page[1000] = "referer: http://localhost/";
    static const struct {
        const char *method, *headers[4];
        bool good;
    } rows[] = {
        {"POST", {"host: 10.0.0.2:1", "referer: http://10.0.0.2:1/page?x"}, true},
        {"POST", {"host: 10.0.0.2:1", "referer: http://evil.example/page"}, false},
        {"POST", {"host: 10.0.0.2:1", "referer: evil.example"}, false},
        {"POST", {"host: 10.0.0.2:1", "referer: http://10.0.0.2:1#x"}, true},
        {"GET", {"host: 10.0.0.2:1", "referer: http://evil.example/page"}, true}, /* a link */
        {"HEAD", {"host: 10.0.0.2:1", "referer: http://evil.example/page"}, true},
        {"POST",
         {"host: 10.0.0.2:1", "origin: http://10.0.0.2:1", "referer: http://evil.example/"},
         true},
        {"POST", {"referer: http://10.0.0.2/"}, false}, /* of which host is not known */
        {"POST", {long_page}, true},
        {"POST", {NULL}, true},
    };
    keys_are("[]");
    memset(long_page + strlen(long_page), 'x', sizeof(long_page) - 1 - strlen(long_page));
    for (size_t i = 0; i < N(rows); i++) {
        gs_api_error e = {0};
        const gs_http_request *rq = request(rows[i].method, "10.0.0.1", rows[i].headers);
        if (gs_api_check_access(api, rq, &e) != (rows[i].good ? 0 : GS_ERR_FORBIDDEN))
            fail_msg("row %d: %s", (int)i, e.message);
    }
}

static void any_host_and_any_origin(void **state) {
    (void)state;
    static const char *const any[] = {"*"};
    gs_api_error e = {0};
    const gs_http_request *rq = request(
        "GET", "10.0.0.1", (const char *[4]){"host: a.example", "origin: http://b.example"});
    assert_int_equal(gs_api_check_access(api, rq, &e), GS_ERR_FORBIDDEN);
    assert_non_null(strstr(e.message, "allowed_hosts"));
    api->cfg.allowed_hosts = any;
    api->cfg.n_allowed_hosts = 1;
    assert_int_equal(gs_api_check_access(api, rq, &e), GS_ERR_FORBIDDEN);
    assert_non_null(strstr(e.message, "allowed_origins"));
    api->cfg.allowed_origins = any;
    api->cfg.n_allowed_origins = 1;
    assert_int_equal(gs_api_check_access(api, rq, &e), 0);
}

static void secrets_in_basic(void **state) {
    (void)state;
    static char endless[1000] = "authorization: Basic ";
    static const struct {
        const char *header;
        int code;
    } rows[] = {
        {"authorization: Basic dXNlcjphbm5h", 0},               /* user:anna */
        {"authorization: Basic   OmFubmE=", 0},                 /* :anna */
        {"authorization: Basic YW5uYQ==", GS_ERR_UNAUTHORIZED}, /* anna, with no colon */
        {"authorization: Basic dXNl*jphbm5h", GS_ERR_UNAUTHORIZED},
        {"authorization: Basic ", GS_ERR_UNAUTHORIZED},
        {"authorization: Digest dXNlcjphbm5h", GS_ERR_UNAUTHORIZED},
        {endless, GS_ERR_UNAUTHORIZED},
    };
    keys_are(HOUSE);
    memset(endless + strlen(endless), 'A', sizeof(endless) - 1 - strlen(endless));
    for (size_t i = 0; i < N(rows); i++) {
        gs_api_error e = {0};
        const gs_http_request *rq = request("GET", "10.0.0.1", (const char *[4]){rows[i].header});
        if (gs_api_check_access(api, rq, &e) != rows[i].code)
            fail_msg("%s: %s", rows[i].header, e.message);
    }
}

static void who_is_an_admin(void **state) {
    (void)state;
    static const struct {
        const char *keys, *peer, *header;
        bool good;
    } rows[] = {
        {"[]", "127.0.0.1", NULL, true},
        {"[]", "10.0.0.1", NULL, false},
        {"[{'name': 'a', 'admin': true}, {'name': 'b'}]", "10.0.0.1", "x-api-key: a", true},
        {"[{'name': 'a', 'admin': true}, {'name': 'b'}]", "127.0.0.1", "x-api-key: b", false},
        {"[{'name': 'a', 'admin': true}, {'name': 'b'}]", "127.0.0.1", NULL, false},
    };
    for (size_t i = 0; i < N(rows); i++) {
        gs_api_error e = {0};
        keys_are(rows[i].keys);
        const gs_http_request *rq =
            request("POST", rows[i].peer, (const char *[4]){rows[i].header});
        if (gs_api_check_admin(api, rq, &e) != (rows[i].good ? 0 : GS_ERR_FORBIDDEN))
            fail_msg("row %d: %s", (int)i, e.message);
    }
}

/* ---- The ring -------------------------------------------------------------------------------- */

static char folder[64], path[100];

/* A file with one key of each name, or with that text. */
static void file_is(const char *const names[3], const char *text) {
    gs_keys keys = {0};
    for (int i = 0; i < 3 && names && names[i]; i++) {
        gs_key k;
        gs_key_default(&k, names[i]);
        gs_key_hash(names[i], k.hash);
        assert_int_equal(gs_keys_add(&keys, &k, err, sizeof(err)), 0);
    }
    if (names) {
        assert_int_equal(gs_keys_save(path, &keys, err, sizeof(err)), 0);
    } else {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        assert_true(fputs(text, f) >= 0);
        assert_int_equal(fclose(f), 0);
    }
    gs_keys_deinit(&keys);
}

static bool knows(const char *secret) {
    return gs_keys_by_secret(&api->keys.all, secret) != NULL;
}

/* What is wrong with the file leaves the keys as they were; what the options hold always stays. */
static void the_file_is_read_again_when_it_changes(void **state) {
    (void)state;
    static const char *const fixed[] = {"first", "second"};
    assert_int_equal(new_folder(folder), 0);
    snprintf(path, sizeof(path), "%s/keys.json", folder);
    api->cfg.api_keys = fixed;
    api->cfg.n_api_keys = 2;
    gs_api_keys_refresh(api); /* without a file nothing changes */
    assert_int_equal(gs_api_keys_open(api, err, sizeof(err)), 0);
    assert_true(gs_api_has_keys(api) && knows("first") && knows("second"));
    api->cfg.keys_file = path;
    gs_api_keys_refresh(api); /* it is not there */
    assert_int_equal(api->keys.all.n, 2);
    file_is((const char *[3]){"anna"}, NULL);
    gs_api_keys_refresh(api);
    assert_true(knows("first") && knows("second") && knows("anna"));
    const gs_key *as_it_was = api->keys.all.items;
    gs_api_keys_refresh(api); /* it has not changed */
    assert_ptr_equal(api->keys.all.items, as_it_was);
    file_is(NULL, "{");
    assert_int_equal(chmod(path, 0644), 0); /* a warning */
    gs_api_keys_refresh(api);
    assert_ptr_equal(api->keys.all.items, as_it_was);
    file_is((const char *[3]){"anna", "api_keys.0", "bert"}, NULL);
    gs_api_keys_refresh(api);
    assert_true(knows("first") && knows("bert"));
    assert_int_equal(api->keys.all.n, 5);
    assert_int_equal(unlink(path), 0);
    gs_api_keys_refresh(api);
    assert_true(knows("second") && !knows("anna"));
    assert_true(gs_api_has_keys(api));
    file_is(NULL, "{}");
    assert_int_equal(gs_api_keys_open(api, err, sizeof(err)), GS_ERR_FORMAT);
    assert_true(knows("first"));
    assert_int_equal(drop_folder(folder), 0);
}

/* A key that was all there was: whoever comes without one stays outside when it has gone. */
static void doors_do_not_open_again(void **state) {
    (void)state;
    assert_int_equal(new_folder(folder), 0);
    snprintf(path, sizeof(path), "%s/keys.json", folder);
    api->cfg.keys_file = path;
    assert_int_equal(gs_api_keys_open(api, err, sizeof(err)), 0);
    assert_false(gs_api_has_keys(api));
    file_is((const char *[3]){"anna"}, NULL);
    gs_api_keys_refresh(api);
    assert_true(gs_api_has_keys(api));
    file_is((const char *[3]){NULL}, NULL);
    gs_api_keys_refresh(api);
    assert_false(knows("anna"));
    assert_true(gs_api_has_keys(api));
    assert_int_equal(drop_folder(folder), 0);
}

static int open_again(void *arg) {
    (void)arg;
    const int n = api->keys.all.n;
    const int rc = gs_api_keys_open(api, err, sizeof(err));
    assert_int_equal(api->keys.all.n, rc == 0 ? 3 : n);
    return rc;
}

static void without_memory(void **state) {
    (void)state;
    static const char *const fixed[] = {"first", "second"};
    gs_identity whole, who;
    assert_int_equal(new_folder(folder), 0);
    snprintf(path, sizeof(path), "%s/keys.json", folder);
    file_is((const char *[3]){"anna"}, NULL);
    api->cfg.api_keys = fixed;
    api->cfg.n_api_keys = 2;
    api->cfg.keys_file = path;
    assert_true(each_allocation_fails("keys", open_again, NULL, OOM_OWN) > 3);
    assert_int_equal(drop_folder(folder), 0);
    /* Nobody in particular, in a scope that others' requests don't get into. */
    const gs_http_request *rq = request("GET", "10.0.0.1", (const char *[4]){"x-api-key: anna"});
    gs_api_identify(api, rq, "", &whole);
    gs_fault_set(GS_FAULT_ALLOC, 1, 0);
    gs_api_identify(api, rq, "", &who);
    gs_fault_clear();
    assert_int_equal(who.person, 0);
    assert_false(who.has_limits);
    assert_int_not_equal(who.cache_scope, whole.cache_scope);
    gs_api_identify(api, request("GET", "127.0.0.1", (const char *[4]){NULL}), "", &whole);
    assert_int_not_equal(who.cache_scope, whole.cache_scope);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_api, close_api)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(persons_and_scopes),
        TEST(limits_and_lost_keys),
        TEST(more_persons_than_places),
        TEST(each_request_has_its_class),
        TEST(pages_without_an_origin_are_known_by_their_address),
        TEST(any_host_and_any_origin),
        TEST(secrets_in_basic),
        TEST(who_is_an_admin),
        TEST(the_file_is_read_again_when_it_changes),
        TEST(doors_do_not_open_again),
        TEST(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
