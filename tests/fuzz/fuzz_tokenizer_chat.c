/*
 * Chat rendering by the built-in formats: the template's source, a zero byte, the messages' JSON.
 * Nothing may crash, and what fails must say so and leave no output.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/sys.h"
#include "tokenizer/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *zero = memchr(data, 0, size);
    if (!zero)
        return 0;
    size_t n_source = (size_t)(zero - data);
    char *messages = gs_strndup((const char *)zero + 1, size - n_source - 1);
    gs_chat_template *c = NULL;
    char err[128] = "";
    gs_buf out = {0};
    if (messages && gs_chat_template_create((const char *)data, n_source, "<s>", NULL, &c, err,
                                            sizeof(err)) == 0) {
        gs_chat_input in = {.messages_json = messages, .add_generation_prompt = true};
        if (gs_chat_render(c, &in, &out, err, sizeof(err)) != 0 && (out.len > 0 || !err[0]))
            abort();
    }
    gs_chat_template_free(c);
    gs_buf_deinit(&out);
    gs_free(messages);
    return 0;
}
