/* Models that are in a folder: their files, their end, second names. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/sys.h"
#include "pull/pull_impl.h"
#include "store/store.h"

typedef char path_text[GS_PULL_MAX_PATH];

/* The path of the file, or of the first one of several. */
static int first_file(const char *folder, const char *name, path_text out, char *err,
                      size_t errlen) {
    char file[512];
    int rc = gs_model_file_of_name(name, file, sizeof file, err, errlen);
    if (rc != GS_OK)
        return rc;
    snprintf(out, GS_PULL_MAX_PATH, "%.3000s/%s", folder, file);
    if (access(out, F_OK) == 0)
        return GS_OK;
    file[strlen(file) - strlen(".gguf")] = '\0';
    for (int n = 2; n <= GS_GGUF_MAX_SHARDS; n++) {
        snprintf(out, GS_PULL_MAX_PATH, "%.3000s/%s-00001-of-%05d.gguf", folder, file, n);
        if (access(out, F_OK) == 0)
            return GS_OK;
    }
    return gs_fail(err, errlen, GS_ERR_NOT_FOUND, "there is no model '%.100s' in %.300s", name,
                   folder);
}

/* All files of the model whose first one is at path. */
static int files_of(const char *path, char (**out)[GS_PULL_MAX_PATH], int *n, char *err,
                    size_t errlen) {
    gs_gguf_shard s = {.n = 1};
    const bool several = gs_gguf_shard_of(path, &s);
    *n = several ? s.n : 1;
    *out = gs_calloc((size_t)*n, sizeof **out);
    if (!*out)
        return gs_fail(err, errlen, GS_ERR_NOMEM, "out of memory");
    for (int i = 0; i < *n; i++) {
        if (!several)
            snprintf((*out)[i], GS_PULL_MAX_PATH, "%s", path);
        else if (gs_gguf_shard_path(path, &s, i + 1, (*out)[i], GS_PULL_MAX_PATH) != GS_OK)
            return gs_fail(err, errlen, GS_ERR_TOO_LARGE, "%s: the path is too long", path);
    }
    return GS_OK;
}

int gs_pull_files(const char *folder, const char *name, char (**out)[GS_PULL_MAX_PATH], int *n,
                  char *err, size_t errlen) {
    path_text first;
    *out = NULL;
    int rc = first_file(folder, name, first, err, errlen);
    return rc == GS_OK ? files_of(first, out, n, err, errlen) : rc;
}

/* What an interrupted pull has left; one that runs goes on, and makes the model again. */
static void remove_rest(const char *path) {
    const char *slash = strrchr(path, '/');
    gs_pull_part part = {.fd = -1};
    path_text folder;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    if (gs_part_paths(folder, slash + 1, &part) == GS_OK)
        gs_part_discard(&part);
    gs_part_drop_record(&part);
}

int gs_pull_remove(const char *folder, const char *name, char *err, size_t errlen) {
    char(*files)[GS_PULL_MAX_PATH] = NULL;
    int n = 0;
    int rc = gs_pull_files(folder, name, &files, &n, err, errlen);
    /* The first one first: without it the others are no model. */
    for (int i = 0; i < n && rc == GS_OK; i++) {
        if (unlink(files[i]) != 0 && errno != ENOENT)
            rc = gs_fail(err, errlen,
                         errno == EACCES || errno == EPERM || errno == EROFS ? GS_ERR_FORBIDDEN
                                                                             : GS_ERR_IO,
                         "%s: %s", files[i], gs_errno_text(errno));
        else
            remove_rest(files[i]);
    }
    gs_free(files);
    return rc;
}

/* A link costs nothing and stays what it is when the other name goes. */
static int link_or_copy(const char *folder, const char *from, const char *to, int64_t min_free,
                        char *err, size_t errlen) {
    if (link(from, to) == 0)
        return GS_OK;
    if (errno == EEXIST)
        return gs_fail(err, errlen, GS_ERR_EXISTS, "%s: is there already", to);
    gs_pull p = {.cfg = {.folder = folder, .min_free_bytes = min_free}};
    gs_pull_part part = {.fd = -1};
    int rc = gs_part_paths(folder, strrchr(to, '/') + 1, &part);
    part.url = gs_strdup(from);
    if (rc == GS_OK && !part.url)
        rc = GS_ERR_NOMEM;
    if (rc == GS_OK)
        rc = gs_part_open(&part, err, errlen);
    if (rc == GS_OK)
        rc = gs_part_copy(&p, &part, err, errlen);
    if (rc == GS_OK)
        rc = gs_part_publish(&part, err, errlen);
    gs_part_close(&part);
    gs_free(part.url);
    return rc;
}

int gs_pull_copy(const char *folder, const char *from_path, const char *to, int64_t min_free_bytes,
                 char *err, size_t errlen) {
    char(*files)[GS_PULL_MAX_PATH] = NULL;
    char file[512];
    path_text path, there;
    int n = 0;
    int rc = gs_model_file_of_name(to, file, sizeof file, err, errlen);
    if (rc == GS_OK && first_file(folder, to, there, NULL, 0) == GS_OK)
        rc = gs_fail(err, errlen, GS_ERR_EXISTS, "the model '%.100s' is there already", to);
    if (rc == GS_OK)
        rc = files_of(from_path, &files, &n, err, errlen);
    file[rc == GS_OK ? strlen(file) - strlen(".gguf") : 0] = '\0';
    for (int i = n - 1; i >= 0 && rc == GS_OK; i--) {
        if (n == 1)
            snprintf(path, sizeof path, "%.3000s/%s.gguf", folder, file);
        else
            snprintf(path, sizeof path, "%.3000s/%s-%05d-of-%05d.gguf", folder, file, i + 1, n);
        rc = link_or_copy(folder, files[i], path, min_free_bytes, err, errlen);
    }
    gs_free(files);
    return rc;
}
