/*
 * One HTTP request of a download, with libcurl: GET or HEAD, over https (http only where the list
 * of hosts says so). Redirects are followed one by one, each place must be on the list, and none
 * leads from https to http.
 * Blocking; any thread.
 */
#ifndef GS_PULL_FETCH_H
#define GS_PULL_FETCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "HOST" or "HOST:PORT", with "*." before HOST for it and all below it: over https. With "http://"
 * before all that, over plain HTTP as well. Without a port: the scheme's own. */
typedef struct gs_hosts {
    const char *const *items; /* [n]; borrowed */
    int n;
} gs_hosts;

/* 0, or GS_ERR_FORBIDDEN with a sentence that names the host; GS_ERR_INVALID: no URL. */
int gs_hosts_check(const gs_hosts *h, const char *url, char *err, size_t errlen);
/* Whether the list knows "HOST:PORT" for plain HTTP only. */
bool gs_hosts_plain(const gs_hosts *h, const char *host);

/* What the answers' heads have said. */
typedef struct gs_fetch_head {
    long status;     /* of the last one: 200, 206, 416, or an error was returned */
    int64_t length;  /* bytes of the body; -1: not said */
    int64_t from;    /* 206: first byte; else 0 */
    int64_t total;   /* 206, 416: bytes of the whole, else length; -1: not said */
    char etag[200];  /* a strong one, with its quotes; "": none */
    char sha256[65]; /* of the whole, as Hugging Face says it (X-Linked-Etag); "": not said */
    int64_t linked;  /* bytes of the whole, as it says; -1: not said */
} gs_fetch_head;

typedef struct gs_fetch {
    const char *url;
    const gs_hosts *hosts;
    const char *accept;   /* or NULL */
    bool head;            /* HEAD */
    int64_t from;         /* > 0: asks for what begins there, */
    const char *if_range; /* if the whole still has this ETag. NULL: in any case */
    /* Before the first byte of a body with status 200 or 206, and once where that is empty. */
    int (*begin)(void *arg, const gs_fetch_head *head);
    int (*data)(void *arg, const void *data, size_t n);
    void *arg;
    const atomic_bool *cancel; /* NULL: can't be */
} gs_fetch;

/*
 * 0 after a whole answer with 200, 206 or 416. Else GS_ERR_UNAVAILABLE: another try may do (no
 * connection, it broke, the answer ended early, 5xx, 429); GS_ERR_FORBIDDEN: a host that is not on
 * the list; GS_ERR_UNAUTHORIZED, GS_ERR_NOT_FOUND, GS_ERR_INVALID: 4xx; GS_ERR_CANCELLED; or what
 * begin or data returned. err: a sentence that names the host.
 */
int gs_fetch_run(const gs_fetch *f, gs_fetch_head *out, char *err, size_t errlen);

#endif
