#include "base/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/sys.h"

static int write_all(int fd, const char *data, size_t n) {
    while (n > 0) {
        ssize_t k = gs_write(fd, data, n);
        if (k < 0)
            return -1;
        data += k;
        n -= (size_t)k;
    }
    return fsync(fd);
}

/* Who may read the folder's other files may read this one. */
static void give_to_owner_of(const char *path, int fd) {
    char folder[4200];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    gs_give_to_owner(fd, folder);
}

int gs_replace_file(const char *path, const char *data, size_t n, char *err, size_t errlen) {
    char part[4200];
    int rc = 0;
    if (snprintf(part, sizeof(part), "%s.new", path) >= (int)sizeof(part))
        return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "%s: can't be written", path);
    unlink(part); /* of a run that was killed; a link must not be followed */
    int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write_all(fd, data, n) != 0 || rename(part, path) != 0)
        rc =
            gs_fail(err, errlen, GS_ERR_IO, "%s: can't be written: %s", path, gs_errno_text(errno));
    if (fd >= 0 && rc == 0)
        give_to_owner_of(path, fd);
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && rc != 0)
        unlink(part);
    return rc;
}
