/* How the families of models write tool calls and reasoning: one row each. */
#include <string.h>

#include "api/outparse_impl.h"

// clang-format off
const gs_out_format gs_out_formats[] = {
    {.name = "gpt-oss", .detect = {"<|channel|>", "<|message|>"}, .channels = true},
    {.name = "functionary", .detect = {">>>"}, .body = GS_OUT_NAME, .open = {">>>"},
     .name_end = "\n", .name_first = true},
    {.name = "functionary-tags", .detect = {"<function=", "python_tag"}, .body = GS_OUT_NAME,
     .open = {"<function="}, .skip = {"</function>"}, .name_end = ">"},
    {.name = "seed", .detect = {"seed:tool_call"}, .body = GS_OUT_TAGS, .open = {"<function="},
     .section = "<seed:tool_call>", .skip = {"<seed:tool_call>", "</seed:tool_call>"},
     .think_open = "<seed:think>", .think_close = "</seed:think>",
     .tags = {">", "<parameter=", ">", "", "</parameter>", "</function>"}},
    {.name = "qwen-tags", .detect = {"<function=", "<parameter="}, .body = GS_OUT_TAGS,
     .open = {"<function="}, .section = "<tool_call>",
     .skip = {"<tool_call>", "</tool_call>"},
     .tags = {">", "<parameter=", ">", "", "</parameter>", "</function>"}},
    {.name = "glm", .detect = {"<tool_call>", "<arg_key>"}, .body = GS_OUT_TAGS,
     .open = {"<tool_call>"},
     .tags = {"", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"}},
    {.name = "dsml", .detect = {"｜DSML｜", "invoke name="}, .body = GS_OUT_TAGS,
     .open = {"<｜DSML｜invoke name=\""},
     .section = "<｜DSML｜function_calls>", .skip = {"<｜DSML｜function_calls>", "</｜DSML｜function_calls>"},
     .tags = {"\">", "<｜DSML｜parameter name=\"", "\"", ">", "</｜DSML｜parameter>",
              "</｜DSML｜invoke>"}},
    {.name = "invoke", .detect = {"<invoke name="}, .body = GS_OUT_TAGS,
     .open = {"<invoke name=\""},
     .section = "<minimax:tool_call>", .skip = {"<minimax:tool_call>", "</minimax:tool_call>"},
     .tags = {"\">", "<parameter name=\"", "\"", ">", "</parameter>", "</invoke>"}},
    {.name = "deepseek", .detect = {"<｜tool▁sep｜>", "```json"}, .body = GS_OUT_NAME,
     .open = {"<｜tool▁call▁begin｜>"}, .name_prefix = "function<｜tool▁sep｜>", .name_end = "\n",
     .section = "<｜tool▁calls▁begin｜>", .skip = {"<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>", "```"}},
    {.name = "deepseek-3.1", .detect = {"<｜tool▁sep｜>"}, .body = GS_OUT_NAME,
     .open = {"<｜tool▁call▁begin｜>"}, .name_end = "<｜tool▁sep｜>",
     .section = "<｜tool▁calls▁begin｜>", .skip = {"<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>"}},
    {.name = "kimi", .detect = {"<|tool_call_argument_begin|>"}, .body = GS_OUT_NAME,
     .open = {"<|tool_call_begin|>"}, .name_prefix = "functions.",
     .name_end = "<|tool_call_argument_begin|>",
     .section = "<|tool_calls_section_begin|>", .skip = {"<|tool_calls_section_end|>", "<|tool_call_end|>"}},
    {.name = "mistral-args", .detect = {"[TOOL_CALLS]", "[ARGS]"}, .body = GS_OUT_NAME,
     .open = {"[TOOL_CALLS]"}, .name_end = "[ARGS]",
     .think_open = "[THINK]", .think_close = "[/THINK]"},
    {.name = "mistral", .detect = {"[TOOL_CALLS]"}, .open = {"[TOOL_CALLS]"}},
    {.name = "command-r", .detect = {"<|START_ACTION|>"}, .open = {"<|START_ACTION|>"},
     .section = "<|START_RESPONSE|>", .skip = {"<|END_ACTION|>"},
     .think_open = "<|START_THINKING|>", .think_close = "<|END_THINKING|>"},
    {.name = "granite", .detect = {"<|tool_call|>"}, .open = {"<|tool_call|>"}},
    {.name = "nemotron", .detect = {"<TOOLCALL>"}, .open = {"<TOOLCALL>"},
     .skip = {"</TOOLCALL>"}},
    {.name = "firefunction", .detect = {" functools["}, .open = {"functools"}},
    {.name = "tool-calls", .detect = {"<tool_calls>"}, .open = {"<tool_calls>"},
     .skip = {"</tool_calls>"}},
    {.name = "hermes", .detect = {"<tool_call>"}, .open = {"<tool_call>"},
     .skip = {"</tool_call>"}},
    {.name = "llama3", .detect = {"<|start_header_id|>", "python_tag"}, .open = {"<|python_tag|>"},
     .bare = true},
    {.name = "llama3", .detect = {"<|start_header_id|>", "\"parameters\": "}, .bare = true},
    {.name = "generic", .open = {"<tool_call>"}, .skip = {"</tool_call>", "```"}, .bare = true},
};
// clang-format on
const size_t gs_n_out_formats = sizeof(gs_out_formats) / sizeof(gs_out_formats[0]);

const gs_out_format *gs_out_format_detect(const char *template_source) {
    for (size_t i = 0; i + 1 < gs_n_out_formats; i++) {
        const gs_out_format *f = &gs_out_formats[i];
        bool all = true;
        for (size_t k = 0; k < 3 && f->detect[k]; k++)
            all &= strstr(template_source, f->detect[k]) != NULL;
        if (all)
            return f;
    }
    return &gs_out_formats[gs_n_out_formats - 1];
}

const gs_out_format *gs_out_format_with_bare(const gs_out_format *f) {
    return f->channels || f->name_first ? &gs_out_formats[gs_n_out_formats - 1] : f;
}

const gs_out_format *gs_out_format_find(const char *name) {
    for (size_t i = 0; i < gs_n_out_formats; i++) {
        if (strcmp(gs_out_formats[i].name, name) == 0)
            return &gs_out_formats[i];
    }
    return NULL;
}

const char *gs_out_format_name(const gs_out_format *f) {
    return f->name;
}
