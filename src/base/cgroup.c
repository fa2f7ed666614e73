#include "base/cgroup.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"

bool gs_read_text(const char *path, char *out, size_t cap) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = gs_read(fd, out, cap - 1);
    close(fd);
    if (n < 0)
        return false;
    out[n] = '\0';
    return true;
}

bool gs_cgroup_own(char *out, size_t cap) {
    char text[4096];
    if (!gs_read_text("/proc/self/cgroup", text, sizeof text))
        return false;
    /* The v2 line is "0::/group"; v1 controllers have other numbers. */
    for (char *line = text; line && *line;) {
        char *next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        if (strncmp(line, "0::", 3) == 0)
            return (size_t)snprintf(out, cap, "%s", line + 3) < cap;
        line = next;
    }
    return false;
}

uint64_t gs_cgroup_least(const char *root, const char *group, uint64_t (*value)(const char *dir)) {
    char dir[1024];
    uint64_t best = UINT64_MAX;
    int len = snprintf(dir, sizeof dir, "%s%s", root, group);
    if (len < 0 || (size_t)len >= sizeof dir)
        return best;
    size_t root_len = strlen(root);
    for (;;) {
        const uint64_t v = value(dir);
        best = v < best ? v : best;
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < root_len)
            return best;
        *slash = '\0';
    }
}
