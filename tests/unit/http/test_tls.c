/* TLS without a network: OpenSSL's memory fails as well as ours, and calls out of their turn. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <openssl/crypto.h>
#include <openssl/err.h>

#include "base/err.h"
#include "cert.h"
#include "faults/fault.h"
#include "http/tls.h"

/* ---- OpenSSL's memory: counted and made to fail with ours --------------------------------------
 */

static void *ssl_malloc(size_t n, const char *file, int line) {
    (void)file, (void)line;
    return gs_fault_hit(GS_FAULT_ALLOC) ? NULL : malloc(n);
}

static void *ssl_realloc(void *p, size_t n, const char *file, int line) {
    (void)file, (void)line;
    return gs_fault_hit(GS_FAULT_ALLOC) ? NULL : realloc(p, n);
}

static void ssl_free(void *p, const char *file, int line) {
    (void)file, (void)line;
    free(p);
}

static char ca_file[64];

/* The system's authorities are one, so that they are read in no time. */
static int make_ca(void **state) {
    (void)state;
    return new_cert(ca_file, NULL) && setenv("SSL_CERT_FILE", ca_file, 1) == 0 &&
                   setenv("SSL_CERT_DIR", "/nowhere", 1) == 0
               ? 0
               : -1;
}

static int drop_ca(void **state) {
    (void)state;
    return unlink(ca_file);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

/* Made whole, or not at all with a reason; and the next one is made. */
static void each_allocation_of_a_context(void **state) {
    (void)state;
    const char *const files[] = {NULL, ca_file};
    for (int k = 0; k < 2; k++) {
        char err[256] = "";
        gs_tls_context *c = NULL;
        uint64_t n = 0;
        int n_refused = 0;
        for (int i = 0; i < 2; i++) { /* the first one loads OpenSSL */
            gs_fault_set(GS_FAULT_ALLOC, UINT64_MAX, 0);
            assert_int_equal(gs_tls_context_create(files[k], &c, err, sizeof err), GS_OK);
            n = gs_fault_calls(GS_FAULT_ALLOC);
            gs_tls_context_free(c);
        }
        /* Of the many of a certificate's reading some. */
        for (uint64_t i = 1; i <= n; i += i < 200 ? 1 : 17) {
            c = NULL;
            err[0] = '\0';
            gs_fault_set(GS_FAULT_ALLOC, i, 0);
            const int rc = gs_tls_context_create(files[k], &c, err, sizeof err);
            gs_fault_clear();
            if (rc != GS_OK && rc != GS_ERR_NOMEM && rc != GS_ERR_IO)
                fail_msg("allocation %d: %d", (int)i, rc);
            assert_int_equal(c != NULL, rc == GS_OK);
            assert_int_equal(err[0] != '\0', rc != GS_OK);
            n_refused += rc != GS_OK;
            gs_tls_context_free(c);
        }
        assert_true(n_refused > 2);
        assert_int_equal(gs_tls_context_create(files[k], &c, err, sizeof err), GS_OK);
        gs_tls_context_free(c);
    }
    gs_tls_context_free(NULL);
    gs_tls_free(NULL);
}

static void each_allocation_of_a_connection(void **state) {
    (void)state;
    static const char *const names[] = {"example.com", "127.0.0.1", "::1"};
    char err[256];
    gs_tls_context *c = NULL;
    assert_int_equal(gs_tls_context_create(NULL, &c, err, sizeof err), GS_OK);
    for (int k = 0; k < 3; k++) {
        int n_refused = 0;
        gs_fault_set(GS_FAULT_ALLOC, UINT64_MAX, 0);
        gs_tls *t = gs_tls_create(c, names[k]);
        const uint64_t n = gs_fault_calls(GS_FAULT_ALLOC);
        gs_fault_clear();
        assert_non_null(t);
        assert_false(gs_tls_ready(t));
        assert_string_equal(gs_tls_reason(t), "");
        gs_tls_free(t);
        for (uint64_t i = 1; i <= n; i++) {
            gs_fault_set(GS_FAULT_ALLOC, i, 0);
            t = gs_tls_create(c, names[k]);
            gs_fault_clear();
            n_refused += t == NULL;
            gs_tls_free(t);
        }
        assert_true(n_refused > 3); /* ours, its own, and of both ends */
    }
    gs_tls_context_free(c);
}

/* The first flight is made or it is said why not; nothing is sent before the handshake is over. */
static void out_of_turn(void **state) {
    (void)state;
    char err[256];
    gs_tls_context *c = NULL;
    assert_int_equal(gs_tls_context_create(NULL, &c, err, sizeof err), GS_OK);
    gs_buf in = {0}, out = {0};
    gs_tls *t = gs_tls_create(c, "example.com");
    assert_int_equal(gs_tls_send(t, "early", 5, &out), GS_ERR_IO);
    assert_non_null(strstr(gs_tls_reason(t), "TLS failed: "));
    assert_int_equal(gs_tls_send(t, "", 0, &out), GS_OK);
    gs_tls_free(t);
    t = gs_tls_create(c, "example.com");
    gs_buf_clear(&out);
    assert_int_equal(gs_tls_receive(t, "", (size_t)INT_MAX + 1, &in, &out), GS_ERR_NOMEM);
    assert_int_equal(gs_tls_receive(t, "", 0, &in, &out), GS_OK);
    assert_true(out.len > 100);
    assert_int_equal(out.data[0], 0x16); /* a handshake record */
    assert_int_equal(in.len, 0);
    assert_int_equal(gs_tls_receive(t, "HTTP/1.1 400 Bad Request\r\n", 26, &in, &out), GS_ERR_IO);
    assert_non_null(strstr(gs_tls_reason(t), "TLS failed: "));
    gs_tls_free(t);
    /* Each allocation on the way to the first flight. */
    uint64_t n = 1;
    int n_failed = 0;
    for (uint64_t i = 0; i <= n; i++) {
        t = gs_tls_create(c, "example.com");
        gs_buf_deinit(&out);
        gs_fault_set(GS_FAULT_ALLOC, i ? i : UINT64_MAX, 0);
        const int rc = gs_tls_receive(t, "", 0, &in, &out);
        n = i ? n : gs_fault_calls(GS_FAULT_ALLOC);
        gs_fault_clear();
        assert_true(i > 0 || rc == GS_OK);
        if (rc != GS_OK && rc != GS_ERR_NOMEM && rc != GS_ERR_IO)
            fail_msg("allocation %d: %d", (int)i, rc);
        assert_true(rc != GS_OK || out.len > 100);
        n_failed += rc != GS_OK;
        gs_tls_free(t);
    }
    assert_true(n_failed > 2);
    gs_buf_deinit(&in);
    gs_buf_deinit(&out);
    gs_tls_context_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_of_a_context),
        cmocka_unit_test(each_allocation_of_a_connection),
        cmocka_unit_test(out_of_turn),
    };
    if (CRYPTO_set_mem_functions(ssl_malloc, ssl_realloc, ssl_free) != 1)
        return 1; /* something has allocated already */
    return cmocka_run_group_tests(tests, make_ca, drop_ca);
}
