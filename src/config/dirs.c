#include "config/dirs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/sys.h"

#define SERVICE_STATE "/var/lib/gamasot"

typedef struct place {
    const char *systemd; /* the whole path, perhaps several with colons: the first counts */
    const char *xdg;
    const char *below_home;
    const char *service; /* of the system's service; NULL: root has one of its own */
} place;

static int find(const place *p, char *out, size_t outlen, char *err, size_t errlen) {
    const char *systemd = getenv(p->systemd);
    const char *xdg = getenv(p->xdg);
    const char *home = getenv("HOME");
    int n;
    if (systemd && systemd[0] == '/')
        n = snprintf(out, outlen, "%.*s", (int)strcspn(systemd, ":"), systemd);
    else if (xdg && xdg[0] == '/')
        n = snprintf(out, outlen, "%s/gamasot", xdg);
    else if (p->service && geteuid() == 0 && access(p->service, F_OK) == 0)
        n = snprintf(out, outlen, "%s", p->service);
    else if (home && home[0] == '/')
        n = snprintf(out, outlen, "%s/%s/gamasot", home, p->below_home);
    else
        return gs_fail(err, errlen, GS_ERR_INVALID, "neither %s nor HOME is set to a path", p->xdg);
    if (n < 0 || (size_t)n >= outlen)
        return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "%s: the path is too long", p->xdg);
    while (n > 1 && out[n - 1] == '/')
        out[--n] = '\0';
    return GS_OK;
}

/* A service that is not root must get into what root creates in its folder. */
static void give_to_owner_above(const char *path) {
    char above[GS_DIRS_MAX_PATH];
    const char *slash = strrchr(path, '/');
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    snprintf(above, sizeof above, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    if (fd < 0)
        return;
    gs_give_to_owner(fd, above);
    close(fd);
}

int gs_dirs_make(const char *path, char *err, size_t errlen) {
    char part[GS_DIRS_MAX_PATH];
    struct stat st;
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part)
        return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "the path of a folder is too long or empty");
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != '\0')
            continue;
        part[i] = '\0';
        /* What exists above may well be unwritable, so only what stat says counts. */
        int why = mkdir(part, 0700) == 0 ? 0 : errno;
        if (why == 0)
            give_to_owner_above(part);
        if (stat(part, &st) != 0)
            return gs_fail(err, errlen, GS_ERR_IO, "%s: can't be created: %s", part,
                           gs_errno_text(why ? why : errno));
        if (!S_ISDIR(st.st_mode))
            return gs_fail(err, errlen, GS_ERR_IO, "%s: is no folder", part);
        part[i] = path[i];
    }
    return GS_OK;
}

static int find_and_make(const place *p, char *out, size_t outlen, char *err, size_t errlen) {
    int rc = find(p, out, outlen, err, errlen);
    return rc == GS_OK ? gs_dirs_make(out, err, errlen) : rc;
}

int gs_dirs_cache(char *out, size_t outlen, char *err, size_t errlen) {
    static const place p = {"CACHE_DIRECTORY", "XDG_CACHE_HOME", ".cache", NULL};
    return find_and_make(&p, out, outlen, err, errlen);
}

int gs_dirs_state(char *out, size_t outlen, char *err, size_t errlen) {
    static const place p = {"STATE_DIRECTORY", "XDG_STATE_HOME", ".local/state", SERVICE_STATE};
    return find_and_make(&p, out, outlen, err, errlen);
}

int gs_dirs_data(char *out, size_t outlen, char *err, size_t errlen) {
    static const place p = {"STATE_DIRECTORY", "XDG_DATA_HOME", ".local/share", SERVICE_STATE};
    return find_and_make(&p, out, outlen, err, errlen);
}

int gs_dirs_config(char *out, size_t outlen, char *err, size_t errlen) {
    static const place p = {"CONFIGURATION_DIRECTORY", "XDG_CONFIG_HOME", ".config", NULL};
    return find(&p, out, outlen, err, errlen);
}
