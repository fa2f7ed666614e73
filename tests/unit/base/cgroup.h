/* A folder that looks like a part of /sys/fs/cgroup. */
#include <stdio.h>
#include <sys/stat.h>

/* dir and sub are made; name in it gets the text. */
static inline void put_file(const char *dir, const char *sub, const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s%s", dir, sub);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s%s/%s", dir, sub, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}
