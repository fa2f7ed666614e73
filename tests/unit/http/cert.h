/* A certificate of its own for localhost and 127.0.0.1, that nobody else has signed. */
#ifndef GS_TESTS_HTTP_CERT_H
#define GS_TESTS_HTTP_CERT_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/ssl.h>
#include <openssl/x509v3.h>

/* Into a new file, whose name is put into path; tls NULL, or what is to serve with it. */
static inline bool new_cert(char path[64], SSL_CTX *tls) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    strcpy(path, "/tmp/gamasot_ca_XXXXXX");
    const int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!key || !cert || !f)
        return false;
    X509_set_version(cert, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_NAME *name = X509_get_subject_name(cert);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"test", -1, -1, 0);
    X509_set_issuer_name(cert, name);
    X509_set_pubkey(cert, key);
    X509_EXTENSION *names =
        X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
    X509_add_ext(cert, names, -1);
    X509_EXTENSION_free(names);
    const bool ok = X509_sign(cert, key, EVP_sha256()) > 0 && PEM_write_X509(f, cert) == 1 &&
                    (!tls || (SSL_CTX_use_certificate(tls, cert) == 1 &&
                              SSL_CTX_use_PrivateKey(tls, key) == 1));
    fclose(f);
    X509_free(cert);
    EVP_PKEY_free(key);
    return ok;
}

#endif
