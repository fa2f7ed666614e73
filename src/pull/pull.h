/*
 * Brings a model into a folder: asks the source what there is, then downloads each file under a
 * hidden name beside its own, hashes what comes, and gives the files their names once all of them
 * are whole, on the disk, and a model (GGUF). Half a file is never seen.
 *
 * What is there of an interrupted download is taken up again: the bytes are hashed anew, and the
 * rest is asked for on condition that the file is still the same (If-Range with its ETag, or a hash
 * that was known before). A second pull of the same model at the same time fails.
 *
 * Of what is here the hash and origin are kept beside it (pull/record.c): a pull of the same again
 * asks what there is now, and brings nothing when that is what is here.
 *
 * Blocking: a thread of its own runs gs_pull_run; any thread may read the progress and cancel.
 */
#ifndef GS_PULL_PULL_H
#define GS_PULL_PULL_H

#include "gguf/gguf.h"
#include "pull/source.h"

#define GS_PULL_MAX_PATH 4096

typedef enum gs_pull_phase {
    GS_PULL_ASKING,  /* what there is */
    GS_PULL_LOADING, /* parts are known */
    GS_PULL_WRITING, /* all is there and right */
    GS_PULL_ENDED
} gs_pull_phase;

/* One file. */
typedef struct gs_pull_part {
    char *url;                   /* or path */
    char sha256[65];             /* that it must have; "": not known */
    char path[GS_PULL_MAX_PATH]; /* where it will be */
    char tmp[GS_PULL_MAX_PATH];  /* where it is until then */
    _Atomic int64_t bytes;       /* of the whole; -1: not known yet */
    _Atomic int64_t n_done;      /* of them, here */
    char etag[200];              /* as the server says it, of what comes or came; "" */
    bool current;                /* what is at path is it already */
    int fd;                      /* of tmp; -1 */
} gs_pull_part;

typedef struct gs_pull_config {
    gs_sources sources;
    const char *folder; /* exists */
    const char *source;
    const char *name;   /* NULL or "": from the source */
    const char *sha256; /* of the (only) file; NULL or "": what the source says, if anything */
    int64_t min_free_bytes;
    bool local;   /* files of this machine are welcome */
    int n_tries;  /* in a row without a byte */
    int pause_ms; /* before the second one; twice as long each time */
} gs_pull_config;

typedef struct gs_pull {
    gs_pull_config cfg;             /* as given; the caller's */
    char name[GS_MODEL_NAME_BYTES]; /* the model's; from create on */
    /* Progress; any thread. */
    _Atomic int phase;   /* gs_pull_phase */
    gs_pull_part *parts; /* [n_parts], from LOADING on */
    int n_parts;
    atomic_bool cancel;
    /* From ENDED on. */
    int code;
    char err[512];
    bool up_to_date; /* all of it was here already */
    gs_source source;
} gs_pull;

/* Reads the source and decides the name: nothing is asked. 0 or GS_ERR_INVALID, GS_ERR_NOMEM. */
int gs_pull_create(const gs_pull_config *cfg, gs_pull **out, char *err, size_t errlen);
/* All of it; p->code and p->err say how it went. GS_ERR_EXISTS: somebody else pulls it now. */
void gs_pull_run(gs_pull *p);
void gs_pull_free(gs_pull *p);
/* Bytes that are free there for whoever is not root; -1: can't be said. */
int64_t gs_pull_free_bytes(const char *folder);

/* The paths of the model's files in folder: [*n] of GS_PULL_MAX_PATH, gs_free'd. GS_ERR_NOT_FOUND.
 */
int gs_pull_files(const char *folder, const char *name, char (**out)[GS_PULL_MAX_PATH], int *n,
                  char *err, size_t errlen);
/* Removes the model and what an interrupted pull has left of it. */
int gs_pull_remove(const char *folder, const char *name, char *err, size_t errlen);
/* Gives the model a second name: links where the file system can, else copies. GS_ERR_EXISTS. */
int gs_pull_copy(const char *folder, const char *from_path, const char *to, int64_t min_free_bytes,
                 char *err, size_t errlen);

#endif
