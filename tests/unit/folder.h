/* A folder of a test's own. */
#ifndef GS_TESTS_FOLDER_H
#define GS_TESTS_FOLDER_H

#include <stdio.h>
#include <stdlib.h>

/* In memory where the machine has such a file system: nothing waits for a disk. 0, or -1. */
static inline int new_folder(char out[64]) {
    static const char *const above[] = {"/dev/shm", "/tmp"};
    for (int i = 0; i < 2; i++) {
        snprintf(out, 64, "%s/gamasot_test_XXXXXX", above[i]);
        if (mkdtemp(out))
            return 0;
    }
    return -1;
}

static inline int drop_folder(const char *folder) {
    char cmd[96];
    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", folder);
    return system(cmd);
}

#endif
