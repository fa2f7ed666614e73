#include "base/sha256.h"

#include <string.h>

/* FIPS 180-4 section 4.2.2: fractional parts of the cube roots of the first 64 primes. */
static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t ror(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static void block(uint32_t h[8], const uint8_t *p) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++, p += 4)
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = ror(w[i - 15], 7) ^ ror(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = ror(w[i - 2], 17) ^ ror(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = ror(v[4], 6) ^ ror(v[4], 11) ^ ror(v[4], 25);
        uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        uint32_t s0 = ror(v[0], 2) ^ ror(v[0], 13) ^ ror(v[0], 22);
        uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        h[i] += v[i];
    explicit_bzero(w, sizeof w); /* the message itself */
}

void gs_sha256_begin(gs_sha256_state *s) {
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->h, first, sizeof first);
    s->n = 0;
}

void gs_sha256_add(gs_sha256_state *s, const void *data, size_t n) {
    const uint8_t *p = data;
    const size_t have = (size_t)(s->n % 64);
    s->n += n;
    if (have > 0) {
        const size_t take = n < 64 - have ? n : 64 - have;
        memcpy(s->rest + have, p, take);
        if (have + take < 64)
            return;
        block(s->h, s->rest);
        p += take;
        n -= take;
    }
    for (; n >= 64; n -= 64, p += 64)
        block(s->h, p);
    if (n > 0)
        memcpy(s->rest, p, n);
}

void gs_sha256_end(gs_sha256_state *s, uint8_t out[GS_SHA256_BYTES]) {
    const size_t left = (size_t)(s->n % 64);
    const size_t end = left < 56 ? 64 : 128;
    const uint64_t bits = s->n * 8;
    uint8_t last[128] = {0};
    memcpy(last, s->rest, left);
    last[left] = 0x80;
    for (size_t i = 0; i < 8; i++)
        last[end - 1 - i] = (uint8_t)(bits >> (8 * i));
    for (size_t i = 0; i < end; i += 64)
        block(s->h, last + i);
    explicit_bzero(last, sizeof last);
    explicit_bzero(s->rest, sizeof s->rest);
    for (size_t i = 0; i < GS_SHA256_BYTES; i++)
        out[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

void gs_sha256(const void *data, size_t n, uint8_t out[GS_SHA256_BYTES]) {
    gs_sha256_state s;
    gs_sha256_begin(&s);
    gs_sha256_add(&s, data, n);
    gs_sha256_end(&s, out);
}

void gs_hex(const uint8_t *data, size_t n, char *out) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[data[i] >> 4];
        out[2 * i + 1] = digits[data[i] & 15];
    }
    out[2 * n] = '\0';
}
