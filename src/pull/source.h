/*
 * Where a model comes from, as people write it:
 *
 *     https://host/path/x.gguf            a URL
 *     /path/x.gguf, ./x.gguf, file:x      a file of this machine
 *     hf:OWNER/REPO[@REV]/FILE.gguf       a file of a repository of Hugging Face; also hf.co/...
 *     [HOST/][NAMESPACE/]MODEL[:TAG]      a registry that speaks Ollama's protocol; hf.co does, too
 *
 * Pure: nothing is fetched. Any thread.
 */
#ifndef GS_PULL_SOURCE_H
#define GS_PULL_SOURCE_H

#include "pull/fetch.h"
#include "pull/names.h"

typedef enum gs_source_kind {
    GS_SOURCE_URL,
    GS_SOURCE_FILE,
    GS_SOURCE_REGISTRY /* url is the manifest's */
} gs_source_kind;

typedef struct gs_source {
    gs_source_kind kind;
    char url[2048];                 /* or the path of a file */
    char blobs[512];                /* REGISTRY: a blob's URL without its digest */
    char name[GS_MODEL_NAME_BYTES]; /* that the model gets unless somebody says otherwise */
} gs_source;

typedef struct gs_sources {
    gs_hosts hosts;           /* that may be asked */
    const char *registry_url; /* of names without a host: "https://registry.ollama.ai" */
    const char *hf_url;       /* "https://huggingface.co" */
} gs_sources;

/* GS_OK, or GS_ERR_INVALID with a sentence. Hosts are checked when they are asked. */
int gs_source_read(const gs_sources *s, const char *text, gs_source *out, char *err, size_t errlen);

#endif
