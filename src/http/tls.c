#include "http/tls.h"

#include <arpa/inet.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/sys.h"

struct gs_tls_context {
    SSL_CTX *ssl;
};

struct gs_tls {
    SSL *ssl;
    BIO *from_net, *to_net; /* owned by ssl */
    bool closed;
    char reason[200];
};

/* Of OpenSSL's newest error, which is taken off its list. */
static const char *newest_error(char text[160]) {
    const unsigned long code = ERR_get_error();
    if (code)
        ERR_error_string_n(code, text, 160);
    else
        snprintf(text, 160, "unknown error");
    ERR_clear_error();
    return text;
}

int gs_tls_context_create(const char *ca_file, gs_tls_context **out, char *err, size_t errlen) {
    static const unsigned char protocols[] = "\x08http/1.1";
    char why[160];
    gs_tls_context *c = gs_calloc(1, sizeof(*c));
    SSL_CTX *ssl = c ? SSL_CTX_new(TLS_client_method()) : NULL;
    if (!ssl) {
        gs_free(c);
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    }
    c->ssl = ssl;
    SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    bool ok = SSL_CTX_set_min_proto_version(ssl, TLS1_2_VERSION) == 1 &&
              SSL_CTX_set_alpn_protos(ssl, protocols, sizeof(protocols) - 1) == 0;
    if (ok)
        ok = ca_file ? SSL_CTX_load_verify_file(ssl, ca_file) == 1
                     : SSL_CTX_set_default_verify_paths(ssl) == 1;
    if (!ok) {
        gs_tls_context_free(c);
        return gs_fail(err, errlen, GS_ERR_IO, "%s: no certificates could be read (%s)",
                       ca_file ? ca_file : "the system's authorities", newest_error(why));
    }
    *out = c;
    return 0;
}

void gs_tls_context_free(gs_tls_context *c) {
    if (!c)
        return;
    SSL_CTX_free(c->ssl);
    gs_free(c);
}

static bool is_address(const char *name) {
    unsigned char bytes[16];
    return inet_pton(AF_INET, name, bytes) == 1 || inet_pton(AF_INET6, name, bytes) == 1;
}

/* Whom the certificate is to name; SNI is for names alone (RFC 6066, 3). */
static bool set_name(SSL *ssl, const char *name) {
    if (is_address(name))
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1;
    return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

gs_tls *gs_tls_create(const gs_tls_context *c, const char *name) {
    gs_tls *t = gs_calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->ssl = SSL_new(c->ssl);
    t->from_net = BIO_new(BIO_s_mem());
    t->to_net = BIO_new(BIO_s_mem());
    if (!t->ssl || !t->from_net || !t->to_net) {
        BIO_free(t->from_net);
        BIO_free(t->to_net);
        t->from_net = t->to_net = NULL;
        gs_tls_free(t);
        return NULL;
    }
    SSL_set_bio(t->ssl, t->from_net, t->to_net);
    SSL_set_connect_state(t->ssl);
    if (!set_name(t->ssl, name)) {
        gs_tls_free(t);
        return NULL;
    }
    return t;
}

void gs_tls_free(gs_tls *t) {
    if (!t)
        return;
    SSL_free(t->ssl);
    gs_free(t);
}

bool gs_tls_ready(const gs_tls *t) {
    return SSL_is_init_finished(t->ssl) == 1;
}

bool gs_tls_closed(const gs_tls *t) {
    return t->closed;
}

const char *gs_tls_reason(const gs_tls *t) {
    return t->reason;
}

static int drain(const gs_tls *t, gs_buf *out) {
    char *data;
    const long n = BIO_get_mem_data(t->to_net, &data);
    if (n > 0)
        gs_buf_add(out, data, (size_t)n);
    (void)BIO_reset(t->to_net);
    return out->failed ? GS_ERR_NOMEM : 0;
}

static int fail(gs_tls *t) {
    char why[160];
    const long verified = SSL_get_verify_result(t->ssl);
    if (verified != X509_V_OK)
        snprintf(t->reason, sizeof(t->reason), "its certificate is not accepted: %s",
                 X509_verify_cert_error_string(verified));
    else
        snprintf(t->reason, sizeof(t->reason), "TLS failed: %s", newest_error(why));
    ERR_clear_error();
    return GS_ERR_IO;
}

/* What an operation that went no further means. */
static int stopped(gs_tls *t, int result) {
    switch (SSL_get_error(t->ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return 0;
    case SSL_ERROR_ZERO_RETURN:
        t->closed = true;
        return 0;
    default:
        return fail(t);
    }
}

int gs_tls_receive(gs_tls *t, const char *bytes, size_t n, gs_buf *in, gs_buf *out) {
    char plain[16384]; /* a record at most */
    int got, rc = 0;
    ERR_clear_error();
    if (n > INT_MAX || (n > 0 && BIO_write(t->from_net, bytes, (int)n) != (int)n))
        return GS_ERR_NOMEM;
    if (!gs_tls_ready(t)) {
        const int done = SSL_do_handshake(t->ssl);
        rc = done == 1 ? 0 : stopped(t, done);
    }
    while (rc == 0 && gs_tls_ready(t) && !t->closed) {
        got = SSL_read(t->ssl, plain, sizeof(plain));
        if (got <= 0) {
            rc = stopped(t, got);
            break;
        }
        rc = gs_buf_add(in, plain, (size_t)got);
    }
    const int sent = drain(t, out); /* an alert that says why, too */
    return rc ? rc : sent;
}

int gs_tls_send(gs_tls *t, const char *bytes, size_t n, gs_buf *out) {
    ERR_clear_error();
    while (n > 0) {
        const int part = n > 16384 ? 16384 : (int)n;
        const int done = SSL_write(t->ssl, bytes, part);
        if (done <= 0)
            return fail(t);
        bytes += done;
        n -= (size_t)done;
    }
    return drain(t, out);
}
