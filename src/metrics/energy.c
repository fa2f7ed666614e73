#include "metrics/energy.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sys.h"

/* The number in a file that may be read again and again. False: none to be had. */
static int read_number(int fd, uint64_t *out) {
    char text[32], *end;
    const ssize_t n = gs_pread(fd, text, sizeof(text) - 1, 0);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    *out = strtoull(text, &end, 10);
    return end != text;
}

void gs_energy_open(gs_energy *e, const char *folder) {
    memset(e, 0, sizeof(*e));
    if (!folder)
        folder = "/sys/class/powercap";
    for (int i = 0; i < GS_ENERGY_PACKAGES; i++) {
        char path[512];
        uint64_t range = 0, now = 0;
        snprintf(path, sizeof(path), "%s/intel-rapl:%d/max_energy_range_uj", folder, i);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            read_number(fd, &range);
            close(fd);
        }
        snprintf(path, sizeof(path), "%s/intel-rapl:%d/energy_uj", folder, i);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0 && !read_number(fd, &now)) {
            close(fd);
            fd = -1;
        }
        if (fd < 0)
            continue;
        e->fds[e->n] = fd;
        e->range_uj[e->n] = range;
        e->last_uj[e->n++] = now;
    }
}

void gs_energy_close(gs_energy *e) {
    for (int i = 0; i < e->n; i++)
        close(e->fds[i]);
    e->n = 0;
}

double gs_energy_read(gs_energy *e) {
    for (int i = 0; i < e->n; i++) {
        uint64_t now;
        if (!read_number(e->fds[i], &now))
            continue;
        uint64_t used = now - e->last_uj[i];
        if (now < e->last_uj[i]) /* it began again */
            used = now + (e->range_uj[i] > e->last_uj[i] ? e->range_uj[i] - e->last_uj[i] : 0);
        e->last_uj[i] = now;
        e->joules += (double)used / 1e6;
    }
    return e->n > 0 ? e->joules : (double)NAN;
}
