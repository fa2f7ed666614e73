/* SHA-256 against FIPS 180-4's own examples and every length around the block borders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/sha256.h"

static void is(const void *data, size_t n, const char *want) {
    uint8_t h[GS_SHA256_BYTES];
    char hex[65];
    gs_sha256(data, n, h);
    for (size_t i = 0; i < sizeof h; i++)
        snprintf(hex + 2 * i, 3, "%02x", h[i]);
    assert_string_equal(hex, want);
}

static void known_values(void **state) {
    (void)state;
    is("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    is("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    is("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    char *million = malloc(1000000);
    assert_non_null(million);
    memset(million, 'a', 1000000);
    is(million, 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

/* The hash of the hashes of "", "a", "aa" ... 130 times "a" (Python's hashlib). */
static void every_padding(void **state) {
    (void)state;
    char text[130];
    uint8_t all[131 * GS_SHA256_BYTES];
    memset(text, 'a', sizeof text);
    for (size_t n = 0; n <= sizeof text; n++)
        gs_sha256(text, n, all + n * GS_SHA256_BYTES);
    is(all, sizeof all, "f908a43fc8456c583aacde0fb2627959f8513dc76d0c03979b7f945a7dd78f22");
}

/* Cut anywhere, it is the same. */
static void in_pieces(void **state) {
    (void)state;
    uint8_t data[300], whole[GS_SHA256_BYTES], pieces[GS_SHA256_BYTES];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);
    gs_sha256(data, sizeof data, whole);
    for (size_t a = 0; a <= sizeof data; a++)
        for (size_t b = a; b <= sizeof data; b += 13) {
            gs_sha256_state s;
            gs_sha256_begin(&s);
            gs_sha256_add(&s, data, a);
            gs_sha256_add(&s, data + a, b - a);
            gs_sha256_add(&s, data + b, sizeof data - b);
            gs_sha256_end(&s, pieces);
            assert_memory_equal(whole, pieces, sizeof whole);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_pieces),
        cmocka_unit_test(known_values),
        cmocka_unit_test(every_padding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
