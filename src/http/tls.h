/*
 * TLS of a client, on OpenSSL, without a socket: bytes in, bytes out. The server's certificate is
 * always verified: its chain against the system's authorities or one file of them, and its name.
 * At least TLS 1.2; no session is resumed.
 *
 * A context is read-only once made and may be shared by sessions; both belong to one thread.
 */
#ifndef GS_HTTP_TLS_H
#define GS_HTTP_TLS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

typedef struct gs_tls_context gs_tls_context;
typedef struct gs_tls gs_tls;

/* ca_file: PEM, the only authorities that are trusted; NULL: the system's. Reads files. 0, or
 * GS_ERR_NOMEM, GS_ERR_IO with a sentence that names the file. */
int gs_tls_context_create(const char *ca_file, gs_tls_context **out, char *err, size_t errlen);
void gs_tls_context_free(gs_tls_context *c); /* NULL: nothing. Sessions keep what they need */

/* name: whose certificate it is to be, a host name or an address. NULL: out of memory. */
gs_tls *gs_tls_create(const gs_tls_context *c, const char *name);
void gs_tls_free(gs_tls *t);

/* What the socket has brought (n may be 0: begins the handshake). What is to be sent is added to
 * out, what the server has said to in. 0, or GS_ERR_IO and gs_tls_reason says why. */
int gs_tls_receive(gs_tls *t, const char *bytes, size_t n, gs_buf *in, gs_buf *out);
/* Plain bytes -> what is to be sent. Only once gs_tls_ready. 0, GS_ERR_IO or GS_ERR_NOMEM. */
int gs_tls_send(gs_tls *t, const char *bytes, size_t n, gs_buf *out);
bool gs_tls_ready(const gs_tls *t);  /* the handshake is done and the certificate is right */
bool gs_tls_closed(const gs_tls *t); /* the server has said that it is done */
/* A sentence; valid as long as t. "" while nothing is wrong. */
const char *gs_tls_reason(const gs_tls *t);

#endif
