/*
 * API keys: who may ask, as whom, in which class and how much. Kept as SHA-256 hashes in one JSON
 * file, written by `gamasot keys` and read by the server, which looks at it again when it changes.
 *
 * The secrets are 256 random bits, so a plain hash can't be searched. Any thread; a gs_keys
 * belongs to one.
 */
#ifndef GS_API_KEYS_H
#define GS_API_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/sha256.h"
#include "sched/sched.h"

#define GS_MAX_KEYS         256
#define GS_MAX_KEY_NETS     16
#define GS_MAX_KEY_NAME     64
#define GS_MAX_KEY_SCHEDULE 255
#define GS_KEY_SECRET       68 /* "gs-", 64 hex digits, the terminator */
#define GS_CLASSES_ALL      ((1u << GS_CLASS_COUNT) - 1)

/* An address or subnet; IPv4 as ::ffff:a.b.c.d. */
typedef struct gs_key_net {
    uint8_t address[16];
    int32_t prefix; /* bits, 0..128 */
} gs_key_net;

typedef struct gs_key {
    char name[GS_MAX_KEY_NAME + 1];        /* letters, digits, . _ - */
    char person[GS_MAX_KEY_NAME + 1];      /* never empty */
    char cache_scope[GS_MAX_KEY_NAME + 1]; /* shared with all keys that name it; "": the person's */
    uint8_t hash[GS_SHA256_BYTES];
    int32_t cls;      /* gs_class without a better reason; -1: none */
    uint32_t classes; /* 1 << gs_class: what it may ask for; holds cls */
    float weight;     /* device time relative to other persons */
    int32_t max_running, max_queued, day_seconds; /* 0: no limit; day_seconds of device time */
    char schedule[GS_MAX_KEY_SCHEDULE + 1];       /* of the person's background; "": always */
    bool trusted_proxy;                           /* may say for whom it asks */
    bool admin;
    gs_key_net nets[GS_MAX_KEY_NETS]; /* from here no secret is needed */
    int32_t n_nets;
    int64_t created_s;
} gs_key;

typedef struct gs_keys {
    gs_key *items; /* [n] */
    int32_t n;
} gs_keys;

/* A file that is not there holds no keys. Errors name file, key and field; out is empty then. */
int gs_keys_load(const char *path, gs_keys *out, char *err, size_t errlen);
/* {"keys": [...]}; where is the file's name, for errors. */
int gs_keys_parse(const char *where, const char *text, size_t n, gs_keys *out, char *err,
                  size_t errlen);
/* Atomically, mode 0600. */
int gs_keys_save(const char *path, const gs_keys *k, char *err, size_t errlen);
int gs_keys_write(const gs_keys *k, gs_buf *out); /* the file's text */
void gs_keys_deinit(gs_keys *k);
/* Copies k. GS_ERR_EXISTS for a name that is taken, GS_ERR_TOO_LARGE beyond GS_MAX_KEYS. */
int gs_keys_add(gs_keys *keys, const gs_key *k, char *err, size_t errlen);
/* GS_ERR_NOT_FOUND. */
int gs_keys_remove(gs_keys *keys, const char *name);

/* A key with no rights beyond chat, and no limits. */
void gs_key_default(gs_key *k, const char *name);
void gs_key_hash(const char *secret, uint8_t out[GS_SHA256_BYTES]);
/* Makes a secret and sets k->hash. 0 or GS_ERR_IO. */
int gs_key_make_secret(gs_key *k, char out[GS_KEY_SECRET]);
/* "192.168.1.20", "fd00::/64" */
int gs_key_net_parse(const char *text, gs_key_net *out, char *err, size_t errlen);
void gs_key_net_text(const gs_key_net *net, char *out, size_t n);

/* In a time that does not depend on how much of a hash agrees. NULL: unknown. */
const gs_key *gs_keys_by_secret(const gs_keys *keys, const char *secret);
/* The longest prefix wins. peer as gs_http_peer gives it. */
const gs_key *gs_keys_by_address(const gs_keys *keys, const char *peer);
void gs_key_person_config(const gs_key *k, gs_person_config *out);

#endif
