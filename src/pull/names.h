/*
 * Names of models. A model's name is its file's without ".gguf"; '/' and '%', which names such as
 * hf.co/owner/model:Q4_K_M have, are "%2F" and "%25" there. Clients that know Ollama write
 * family:size[-quant], or only the beginning of that, with or without ":latest". Any thread.
 */
#ifndef GS_PULL_NAMES_H
#define GS_PULL_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#define GS_MODEL_NAME_BYTES 128 /* terminated */

/* "Qwen3-4B-Q4_K_M" of "/models/Qwen3-4B-Q4_K_M.gguf" or of its "...-00001-of-00002.gguf". */
void gs_model_name_of_path(const char *path, char out[GS_MODEL_NAME_BYTES]);
/* The file's name of a model's. GS_ERR_INVALID: no name that a model can have. */
int gs_model_file_of_name(const char *name, char *out, size_t n, char *err, size_t errlen);
/* "qwen3:4b-q4_k_m" of "Qwen3-4B-Q4_K_M"; "" where no part of the name is a size. */
void gs_model_tagged_name(const char *name, char out[GS_MODEL_NAME_BYTES]);

/* How well what a client asks for names a model. */
typedef enum gs_name_match {
    GS_NAME_NO,
    GS_NAME_BEGINS, /* "qwen3" or "qwen3:4b": good enough when no other model is meant by it */
    GS_NAME_TAGGED, /* "qwen3:4b-q4_k_m" */
    GS_NAME_SAME    /* the name itself, or with ":latest" */
} gs_name_match;
gs_name_match gs_model_name_match(const char *want, const char *have);

/* Whether a file in a folder is a model: ends in ".gguf", is not hidden, and is the first one where
 * there are several. */
bool gs_model_is_file(const char *file);

#endif
