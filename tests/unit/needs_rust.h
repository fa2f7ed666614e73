/* Skips a test that a build without Rust can't run, and says what such a build lacks. */
#ifndef GS_TESTS_NEEDS_RUST_H
#define GS_TESTS_NEEDS_RUST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define needs_rust(lacks)                                                                          \
    do {                                                                                           \
        if (!GS_HAVE_RUST) {                                                                       \
            print_message("a build without Rust has %s\n", lacks);                                 \
            skip();                                                                                \
        }                                                                                          \
    } while (0)

#endif
