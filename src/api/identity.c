/*
 * Persons and classes: for whom a request is, and how urgent it is.
 *
 * A key (sent, or bound to the address) gives the account. A trusted proxy's key may name persons
 * below it. Without keys, `user` names persons on loopback, where whoever can connect could read
 * everything anyway; other addresses are one person each.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "api/api_impl.h"
#include "base/utf8.h"

/* Persons that `user` may make without keys: it takes no right to invent names. */
#define MAX_USERS 32

/* ---- The table of persons ------------------------------------------------------------------ */

/* Index of who; persons beyond the table share index 0. */
static uint32_t person_of(gs_persons *p, const char *who, const char *label, bool by_user) {
    uint64_t key = XXH64(who, strlen(who), 0);
    if (p->n == 0)
        p->n = 1; /* index 0: nobody in particular */
    for (uint32_t i = 1; i < p->n; i++) {
        if (p->key[i] == key)
            return i;
    }
    if (p->n == GS_API_MAX_PERSONS || (by_user && p->n_users == MAX_USERS))
        return 0;
    p->key[p->n] = key;
    snprintf(p->name[p->n], sizeof(p->name[0]), "%s", label);
    p->name[p->n][gs_utf8_valid_prefix(p->name[p->n], strlen(p->name[p->n]))] =
        '\0'; /* cut inside */
    p->n_users += by_user;
    return p->n++;
}

const char *gs_api_person_name(const gs_api *a, uint32_t person) {
    return person < a->persons.n ? a->persons.name[person] : "";
}

/* They stand with the first key of a person, so that several keys don't argue. */
void gs_api_limits_of(const gs_api *a, const gs_key *k, gs_person_config *out) {
    const gs_keys *all = &a->keys.all;
    for (int32_t i = 0; i < all->n; i++) {
        if (strcmp(all->items[i].person, k->person) == 0) {
            k = &all->items[i];
            break;
        }
    }
    gs_key_person_config(k, out);
    out->background_paused = !gs_hours_key_open(k);
}

/* ---- Who ----------------------------------------------------------------------------------- */

bool gs_peer_is_loopback(const char *peer) {
    return strncmp(peer, "127.", 4) == 0 || strcmp(peer, "::1") == 0 ||
           strncmp(peer, "::ffff:127.", 11) == 0;
}

/* Hosts change the lower half of an IPv6 address at will: one /64 is one peer. */
static const char *peer_name(const gs_http_request *rq, char *buf, size_t n) {
    struct in6_addr a;
    const char *peer = gs_http_peer(rq);
    if (inet_pton(AF_INET6, peer, &a) != 1 || IN6_IS_ADDR_V4MAPPED(&a))
        return peer;
    memset(&a.s6_addr[8], 0, 8);
    return inet_ntop(AF_INET6, &a, buf, (socklen_t)n);
}

/* Open WebUI's with ENABLE_FORWARD_USER_INFO_HEADERS; the first one is for those that can be told
 * which header to send, as LibreChat can. */
static const char *forwarded_user(const gs_http_request *rq, const char *user) {
    static const char *const headers[] = {"x-gamasot-user", "x-openwebui-user-id",
                                          "x-openwebui-user-email", "x-openwebui-user-name"};
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        const char *v = gs_http_header(rq, headers[i]);
        if (v && *v)
            return v;
    }
    return user;
}

/* below: the person below the account, "" for none; shown: that person's name for people, or NULL.
 */
static void identify_key(gs_api *a, const gs_key *k, const char *below, const char *shown,
                         gs_identity *out) {
    char label[2 * GS_MAX_KEY_NAME];
    gs_buf who = {0};
    gs_buf_printf(&who, "key %s%s%s", k->person, *below ? "\n" : "", below);
    snprintf(label, sizeof(label), "%s%s%s", k->person, *below ? "/" : "",
             shown && *shown ? shown : below);
    /* Without memory for the name: nobody in particular, in a scope of the account. */
    const char *name = gs_buf_cstr(&who);
    out->person = name && !who.failed ? person_of(&a->persons, name, label, false) : 0;
    if (k->cache_scope[0] || !name || who.failed)
        out->cache_scope = XXH64(k->cache_scope, strlen(k->cache_scope), a->scope_salt ^ 1);
    else
        out->cache_scope = XXH64(name, strlen(name), a->scope_salt);
    out->cls = k->cls;
    out->classes = k->classes;
    out->has_limits = out->person != 0;
    gs_api_limits_of(a, k, &out->limits);
    if (out->person != 0)
        snprintf(a->persons.key_name[out->person], sizeof(a->persons.key_name[0]), "%s", k->name);
    gs_buf_deinit(&who);
}

static void identify_name(gs_api *a, const char *who, bool by_user, gs_identity *out) {
    *out = (gs_identity){.cls = -1, .classes = GS_CLASSES_ALL};
    out->person = *who ? person_of(&a->persons, who, who, by_user) : 0;
    out->cache_scope = XXH64(who, strlen(who), a->scope_salt);
}

static const char *name_without_key(const gs_http_request *rq, const char *user, char *buf,
                                    size_t n) {
    return gs_peer_is_loopback(gs_http_peer(rq)) ? user : peer_name(rq, buf, n);
}

/* The scope is salted per start, so that it can't be computed from a name. */
void gs_api_identify(gs_api *a, const gs_http_request *rq, const char *user, gs_identity *out) {
    const gs_owner *owner = gs_http_local_owner(rq);
    if (owner) {
        gs_api_identify_owner(a, owner, out);
        return;
    }
    const gs_key *k = gs_api_key(a, rq);
    if (k) {
        const char *below = k->trusted_proxy ? forwarded_user(rq, user) : "";
        identify_key(a, k, below, *below ? gs_http_header(rq, "x-openwebui-user-name") : NULL, out);
        return;
    }
    char net[INET6_ADDRSTRLEN];
    identify_name(a, name_without_key(rq, user, net, sizeof(net)),
                  gs_peer_is_loopback(gs_http_peer(rq)), out);
}

/* ---- Owners: identities that outlive the process ------------------------------------------- */

void gs_api_owner(gs_api *a, const gs_http_request *rq, gs_owner *out) {
    const gs_key *k = gs_api_key(a, rq);
    char net[INET6_ADDRSTRLEN];
    *out = (gs_owner){.name = ""};
    if (!k) {
        snprintf(out->name, sizeof(out->name), "%s", name_without_key(rq, "", net, sizeof(net)));
        return;
    }
    const char *below = k->trusted_proxy ? forwarded_user(rq, "") : "";
    snprintf(out->name, sizeof(out->name), "key %s%s%.128s", k->person, *below ? "\n" : "", below);
    snprintf(out->key_name, sizeof(out->key_name), "%s", k->name);
}

const gs_key *gs_api_key_named(const gs_api *a, const char *name) {
    for (int32_t i = 0; name[0] && i < a->keys.all.n; i++)
        if (strcmp(a->keys.all.items[i].name, name) == 0)
            return &a->keys.all.items[i];
    return NULL;
}

bool gs_api_identify_owner(gs_api *a, const gs_owner *o, gs_identity *out) {
    const gs_key *k = gs_api_key_named(a, o->key_name);
    const char *below = strchr(o->name, '\n');
    if (k)
        identify_key(a, k, below ? below + 1 : "", NULL, out);
    else
        identify_name(a, o->name, false, out);
    return k || (!o->key_name[0] && !a->keys.needed);
}

/* ---- Class --------------------------------------------------------------------------------- */

/* Open WebUI asks for titles, tags and follow-ups with prompts that begin like this. */
static bool is_utility_prompt(const json_t *body) {
    static const char mark[] = "### Task:";
    const json_t *messages = json_object_get(body, "messages");
    size_t n = json_array_size(messages);
    const json_t *last = n > 0 ? json_array_get(messages, n - 1) : NULL;
    const char *text = json_string_value(json_object_get(last, "content"));
    return text && strncmp(text, mark, sizeof(mark) - 1) == 0;
}

/* flex: background; priority: the best one there is for this key. */
static int tier_class(const json_t *body, uint32_t classes) {
    const char *tier = json_string_value(json_object_get(body, "service_tier"));
    if (tier && strcmp(tier, "flex") == 0)
        return GS_CLASS_BACKGROUND;
    if (!tier || strcmp(tier, "priority") != 0)
        return -1;
    int c = 0;
    while (c < GS_CLASS_COUNT && !(classes & 1u << c))
        c++;
    return c < GS_CLASS_COUNT ? c : -1;
}

/* The first of the client's wishes that the key may have. */
static int asked_class(const gs_req *r, uint32_t classes) {
    const char *header = gs_http_header(r->rq, "x-gamasot-class");
    int wishes[] = {header ? gs_class_parse(header) : -1, r->alias ? r->alias->cls : -1,
                    tier_class(r->body, classes)};
    for (size_t i = 0; i < sizeof(wishes) / sizeof(wishes[0]); i++) {
        if (wishes[i] >= 0 && (classes & 1u << wishes[i]))
            return wishes[i];
    }
    return -1;
}

/*
 * Header, alias, service_tier; then the key's class; then what the endpoint or the prompt say,
 * else chat; outside its hours any of them is background. What was asked for, and a key's class
 * unless that is chat, is fixed: a long prompt does not make it a document. The answer's
 * X-Gamasot-Class says which one was given.
 */
void gs_req_classify(gs_req *r) {
    gs_identity who;
    gs_api_identify(r->api, r->rq, r->p.user, &who);
    r->person = who.person;
    r->cache_scope = who.cache_scope;
    r->has_limits = who.has_limits;
    r->limits = who.limits;
    if (gs_http_local_owner(r->rq)) { /* a line of a batch */
        r->cls = GS_CLASS_BACKGROUND;
        r->class_fixed = true;
        return;
    }
    int cls = asked_class(r, who.classes);
    if (cls < 0)
        cls = who.cls;
    r->class_fixed = cls >= 0 && (cls != GS_CLASS_CHAT || cls != who.cls);
    if (cls >= 0)
        r->cls = (gs_class)cls;
    else if (r->dialect->embeds)
        r->cls = GS_CLASS_BACKGROUND;
    else if (json_string_length(json_object_get(r->body, "suffix")) > 0)
        r->cls = GS_CLASS_COMPLETION;
    else
        r->cls = is_utility_prompt(r->body) ? GS_CLASS_UTILITY : GS_CLASS_CHAT;
    r->cls = gs_hours_class(r->api, r->cls);
}
