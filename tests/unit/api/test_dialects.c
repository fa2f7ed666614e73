/* Bodies of Anthropic's messages, OpenAI's responses and Ollama, written in OpenAI's form; what
 * each refuses, and which field it names. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "api/anthropic.h"
#include "api/convert.h"
#include "api/ollama.h"
#include "api/responses.h"
#include "base/err.h"
#include "oom.h"
#include "quoted.h"

typedef enum form { MESSAGES, COUNT, RESPONSES, CHAT, GENERATE } form;

/* A body with ' instead of double quotes, and what becomes of it: a part of the body in OpenAI's
 * form (all members that are named, with these values; null: they are not there), or the field at
 * fault. */
typedef struct row {
    form form;
    const char *body, *want;
    const char *param;
} row;

static json_t *translate(form f, const json_t *body, gs_api_error *e) {
    gs_ollama_in in;
    memset(e, 0, sizeof(*e));
    switch (f) {
    case MESSAGES:
    case COUNT:
        return gs_anthropic_in(body, f == COUNT, "tiny", e);
    case RESPONSES:
        return gs_responses_in(body, "tiny", e);
    case CHAT:
        return gs_ollama_chat_in(body, "tiny", &in, e) == 0 ? in.body : NULL;
    case GENERATE:
        return gs_ollama_generate_in(body, "tiny", &in, e) == 0 ? in.body : NULL;
    }
    return NULL;
}

// clang-format off
static const row rows[] = {
    /* ---- Messages ---- */
    {MESSAGES, "{'model': 'm', 'max_tokens': 5, 'temperature': 0.5, 'top_p': 0.1, 'top_k': 3, 'stop_sequences': ['x'], 'stream': true,"
               " 'messages': [{'role': 'user', 'content': 'hi'}]}",
               "{'model': 'm', 'max_tokens': 5, 'temperature': 0.5, 'top_p': 0.1, 'top_k': 3, 'stop': ['x'], 'stream': true,"
               " 'messages': [{'role': 'user', 'content': 'hi'}],"
               " 'chat_template_kwargs': {'enable_thinking': false, 'thinking': false}, 'tools': null, 'tool_choice': null, 'user': null}", NULL},
    {MESSAGES, "{'max_tokens': 5, 'system': 'be brief', 'messages': [{'role': 'user', 'content': ''}, {'role': 'assistant', 'content': 'yes'}]}",
               "{'messages': [{'role': 'system', 'content': 'be brief'}, {'role': 'user', 'content': ''}, {'role': 'assistant', 'content': 'yes'}]}", NULL},
    {MESSAGES, "{'max_tokens': 5, 'system': [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}], 'messages': [{'role': 'user',"
               " 'content': [{'type': 'text', 'text': 'c'}, {'type': 'text', 'text': 'd'}]}]}",
               "{'messages': [{'role': 'system', 'content': 'ab'}, {'role': 'user', 'content': 'cd'}]}", NULL},
    {MESSAGES, "{'max_tokens': 5, 'system': null, 'messages': [{'role': 'assistant', 'content': ["
               "{'type': 'thinking', 'thinking': 'hm'}, {'type': 'redacted_thinking', 'data': 'z'}, {'type': 'text', 'text': 'so'},"
               "{'type': 'tool_use', 'id': 'i', 'name': 'f', 'input': {'a': 1}}, {'type': 'tool_use', 'id': 'j', 'name': 'g', 'input': {}}]},"
               "{'role': 'user', 'content': [{'type': 'text', 'text': 'see'}, {'type': 'tool_result', 'tool_use_id': 'i', 'content': '1'},"
               "{'type': 'tool_result', 'tool_use_id': 'j', 'content': [{'type': 'text', 'text': '2'}]}, {'type': 'tool_result', 'tool_use_id': 'k'},"
               "{'type': 'text', 'text': 'well'}]}]}",
               "{'messages': [{'role': 'assistant', 'content': 'so', 'reasoning_content': 'hm', 'tool_calls': ["
               "{'id': 'i', 'type': 'function', 'function': {'name': 'f', 'arguments': '{\\'a\\':1}'}},"
               "{'id': 'j', 'type': 'function', 'function': {'name': 'g', 'arguments': '{}'}}]},"
               "{'role': 'user', 'content': 'see'}, {'role': 'tool', 'tool_call_id': 'i', 'content': '1'},"
               "{'role': 'tool', 'tool_call_id': 'j', 'content': '2'}, {'role': 'tool', 'tool_call_id': 'k', 'content': ''},"
               "{'role': 'user', 'content': 'well'}]}", NULL},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'user', 'content': 'x'}], 'metadata': {'user_id': 'anna'}, 'thinking': {'type': 'enabled'},"
               " 'tools': [{'name': 'f', 'description': 'does', 'input_schema': {'type': 'object'}}, {'type': 'custom', 'name': 'g', 'description': null}],"
               " 'tool_choice': {'type': 'any', 'disable_parallel_tool_use': true}}",
               "{'user': 'anna', 'chat_template_kwargs': {'enable_thinking': true, 'thinking': true}, 'tool_choice': 'required',"
               " 'parallel_tool_calls': false, 'tools': [{'type': 'function', 'function': {'name': 'f', 'description': 'does', 'parameters':"
               " {'type': 'object'}}}, {'type': 'function', 'function': {'name': 'g'}}]}", NULL},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'user', 'content': 'x'}], 'tool_choice': {'type': 'tool', 'name': 'f'}, 'thinking': {'type': 'adaptive'},"
               " 'metadata': {'user_id': 7}, 'output_config': {'format': {'type': 'json_schema', 'schema': {'type': 'object'}}}}",
               "{'tool_choice': {'type': 'function', 'function': {'name': 'f'}}, 'user': null, 'parallel_tool_calls': null,"
               " 'response_format': {'type': 'json_schema', 'json_schema': {'name': 'format', 'schema': {'type': 'object'}, 'strict': true}}}", NULL},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'user', 'content': 'x'}], 'tool_choice': {'type': 'none'}, 'tools': null, 'thinking': {'type': 'disabled'},"
               " 'output_config': {'format': null}, 'output_format': {'type': 'json_schema', 'schema': {}}}",
               "{'tool_choice': 'none', 'tools': null, 'response_format': {'type': 'json_schema', 'json_schema': {'name': 'format', 'schema': {}, 'strict': true}}}", NULL},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'user', 'content': 'x'}], 'tool_choice': {'type': 'auto'}, 'output_config': null, 'thinking': null}",
               "{'tool_choice': 'auto', 'response_format': null}", NULL},
    {COUNT, "{'model': 'm', 'temperature': 0.5, 'messages': [{'role': 'user', 'content': 'x'}], 'output_config': 7}",
            "{'model': 'm', 'temperature': null, 'messages': [{'role': 'user', 'content': 'x'}], 'response_format': null}", NULL},
    {MESSAGES, "{'messages': [{'role': 'user', 'content': 'x'}]}", NULL, "max_tokens"},
    {MESSAGES, "{'max_tokens': null, 'messages': [{'role': 'user', 'content': 'x'}]}", NULL, "max_tokens"},
    {COUNT, "{}", NULL, "messages"},
    {COUNT, "{'messages': []}", NULL, "messages"},
    {COUNT, "{'messages': 'x'}", NULL, "messages"},
    {COUNT, "{'system': 7, 'messages': [{'role': 'user', 'content': 'x'}]}", NULL, "system"},
    {COUNT, "{'system': [{'type': 'image'}], 'messages': [{'role': 'user', 'content': 'x'}]}", NULL, "system"},
    {COUNT, "{'system': [{'type': 'text', 'text': 7}], 'messages': [{'role': 'user', 'content': 'x'}]}", NULL, "system"},
    {COUNT, "{'messages': [{'role': 'user', 'content': 'x'}, {'content': 'x'}]}", NULL, "messages[1]"},
    {COUNT, "{'messages': [{'role': 'system', 'content': 'x'}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'user'}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'user', 'content': [{'type': 'image'}]}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'user', 'content': [{'type': 'document'}]}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'user', 'content': [{'type': 'odd'}, {'type': 'text', 'text': 'x'}]}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'user', 'content': [7]}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'user', 'content': [{'type': 'text'}]}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'user', 'content': [{'type': 'thinking', 'thinking': 'x'}]}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'assistant', 'content': [{'type': 'thinking'}]}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'assistant', 'content': [{'type': 'tool_result', 'tool_use_id': 'a'}]}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'user', 'content': [{'type': 'tool_use', 'id': 'a', 'name': 'b', 'input': {}}]}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'user', 'content': [{'type': 'tool_result'}]}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'user', 'content': [{'type': 'tool_result', 'tool_use_id': 'a', 'content': 7}]}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'assistant', 'content': [{'type': 'tool_use', 'name': 'b', 'input': {}}]}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'assistant', 'content': [{'type': 'tool_use', 'id': 'a', 'input': {}}]}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'assistant', 'content': [{'type': 'tool_use', 'id': 'a', 'name': 'b', 'input': 'x'}]}]}", NULL, "messages[0]"},
    {COUNT, "{'messages': [{'role': 'user', 'content': 'x'}], 'tools': 7}", NULL, "tools"},
    {COUNT, "{'messages': [{'role': 'user', 'content': 'x'}], 'tools': [{'name': 'a'}, {'type': 'web_search', 'name': 'b'}]}", NULL, "tools[1]"},
    {COUNT, "{'messages': [{'role': 'user', 'content': 'x'}], 'tools': [{}]}", NULL, "tools[0]"},
    {COUNT, "{'messages': [{'role': 'user', 'content': 'x'}], 'tools': [{'name': 'a', 'input_schema': 7}]}", NULL, "tools[0]"},
    {COUNT, "{'messages': [{'role': 'user', 'content': 'x'}], 'tools': [{'name': 'a', 'description': 7}]}", NULL, "tools[0]"},
    {COUNT, "{'messages': [{'role': 'user', 'content': 'x'}], 'tool_choice': 'auto'}", NULL, "tool_choice"},
    {COUNT, "{'messages': [{'role': 'user', 'content': 'x'}], 'tool_choice': {'type': 'tool'}}", NULL, "tool_choice"},
    {COUNT, "{'messages': [{'role': 'user', 'content': 'x'}], 'thinking': {'type': 'loud'}}", NULL, "thinking"},
    {MESSAGES, "{'max_tokens': 1, 'messages': [{'role': 'user', 'content': 'x'}], 'output_config': 7}", NULL, "output_config"},
    {MESSAGES, "{'max_tokens': 1, 'messages': [{'role': 'user', 'content': 'x'}], 'output_config': {'format': {'type': 'xml'}}}", NULL, "output_config"},
    {MESSAGES, "{'max_tokens': 1, 'messages': [{'role': 'user', 'content': 'x'}], 'output_config': {'format': {'type': 'json_schema'}}}", NULL, "output_config"},

    /* ---- Responses ---- */
    {RESPONSES, "{'model': 'm', 'input': 'hi', 'instructions': 'be brief', 'max_output_tokens': 5, 'temperature': 1, 'top_p': 1, 'stream': false,"
                " 'user': 'anna', 'parallel_tool_calls': false, 'reasoning': {'effort': 'low'}, 'background': false, 'conversation': null}",
                "{'model': 'm', 'max_tokens': 5, 'temperature': 1, 'top_p': 1, 'stream': false, 'user': 'anna', 'parallel_tool_calls': false,"
                " 'reasoning_effort': 'low', 'messages': [{'role': 'system', 'content': 'be brief'}, {'role': 'user', 'content': 'hi'}]}", NULL},
    {RESPONSES, "{'instructions': null, 'input': [{'role': 'user', 'content': [{'type': 'input_text', 'text': 'a'}, {'type': 'input_text', 'text': 'b'}]},"
                "{'type': 'message', 'role': 'developer', 'content': 'c'}, {'role': 'system', 'content': []}]}",
                "{'messages': [{'role': 'user', 'content': 'ab'}, {'role': 'developer', 'content': 'c'}, {'role': 'system', 'content': ''}]}", NULL},
    {RESPONSES, "{'input': [{'type': 'reasoning', 'content': [{'type': 'reasoning_text', 'text': 'hm'}]},"
                "{'type': 'message', 'role': 'assistant', 'content': [{'type': 'output_text', 'text': 'so'}, {'type': 'refusal', 'refusal': '!'}]},"
                "{'type': 'function_call', 'call_id': 'i', 'name': 'f', 'arguments': '{}'}, {'type': 'function_call', 'call_id': 'j', 'name': 'g', 'arguments': '{}'},"
                "{'type': 'function_call_output', 'call_id': 'i', 'output': '1'}, {'type': 'reasoning'}, {'type': 'reasoning', 'content': null},"
                "{'type': 'function_call', 'call_id': 'k', 'name': 'h', 'arguments': 'x'}]}",
                "{'messages': [{'role': 'assistant', 'content': 'so!', 'reasoning_content': 'hm', 'tool_calls': ["
                "{'id': 'i', 'type': 'function', 'function': {'name': 'f', 'arguments': '{}'}}, {'id': 'j', 'type': 'function', 'function': {'name': 'g', 'arguments': '{}'}}]},"
                "{'role': 'tool', 'tool_call_id': 'i', 'content': '1'},"
                "{'role': 'assistant', 'content': '', 'tool_calls': [{'id': 'k', 'type': 'function', 'function': {'name': 'h', 'arguments': 'x'}}]}]}", NULL},
    {RESPONSES, "{'input': 'x', 'tools': [{'type': 'function', 'name': 'f', 'description': 'does', 'parameters': {}},"
                "{'type': 'function', 'name': 'g', 'description': null, 'parameters': null}], 'tool_choice': {'type': 'function', 'name': 'f'},"
                "'text': {'format': {'type': 'json_schema', 'name': 'n', 'schema': {'type': 'object'}}}}",
                "{'tools': [{'type': 'function', 'function': {'name': 'f', 'description': 'does', 'parameters': {}}}, {'type': 'function', 'function': {'name': 'g'}}],"
                "'tool_choice': {'type': 'function', 'function': {'name': 'f'}},"
                "'response_format': {'type': 'json_schema', 'json_schema': {'name': 'format', 'schema': {'type': 'object'}, 'strict': true}}}", NULL},
    {RESPONSES, "{'input': 'x', 'tool_choice': 'auto', 'text': {'format': {'type': 'json_object'}}, 'tools': null}",
                "{'tool_choice': 'auto', 'response_format': {'type': 'json_object'}, 'tools': null}", NULL},
    {RESPONSES, "{'input': 'x', 'text': {'format': {'type': 'text'}}}", "{'response_format': {'type': 'text'}, 'tool_choice': null}", NULL},
    {RESPONSES, "{'input': 'x', 'text': {'format': null}}", "{'response_format': null}", NULL},
    {RESPONSES, "{'input': 'x', 'text': null, 'reasoning': null}", "{'response_format': null, 'reasoning_effort': null}", NULL},
    {RESPONSES, "{}", NULL, "input"},
    {RESPONSES, "{'input': []}", NULL, "input"},
    {RESPONSES, "{'input': 7}", NULL, "input"},
    {RESPONSES, "{'input': 'x', 'instructions': ['a']}", NULL, "instructions"},
    {RESPONSES, "{'input': 'x', 'previous_response_id': 'r'}", NULL, "previous_response_id"},
    {RESPONSES, "{'input': 'x', 'conversation': 'c'}", NULL, "conversation"},
    {RESPONSES, "{'input': 'x', 'background': true}", NULL, "background"},
    {RESPONSES, "{'input': ['x']}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'role': 'user', 'content': 'x'}, {'type': 'web_search_call'}]}", NULL, "input[1]"},
    {RESPONSES, "{'input': [{'role': 'user'}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'content': 'x'}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'role': 'tool', 'content': 'x'}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'role': 'user', 'content': [{'type': 'input_image'}]}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'role': 'user', 'content': [{'type': 'input_text'}]}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'type': 'function_call', 'name': 'f', 'arguments': ''}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'type': 'function_call', 'call_id': 'f', 'arguments': ''}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'type': 'function_call', 'call_id': 'f', 'name': 'f', 'arguments': {}}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'type': 'function_call_output', 'output': 'x'}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'type': 'function_call_output', 'call_id': 'x', 'output': 7}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'type': 'reasoning', 'content': 7}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': 'x', 'tools': {}}", NULL, "tools"},
    {RESPONSES, "{'input': 'x', 'tools': [{'type': 'web_search'}]}", NULL, "tools[0]"},
    {RESPONSES, "{'input': 'x', 'tools': [{'type': 'function'}]}", NULL, "tools[0]"},
    {RESPONSES, "{'input': 'x', 'tool_choice': {'type': 'function'}}", NULL, "tool_choice"},
    {RESPONSES, "{'input': 'x', 'tool_choice': {'type': 'mcp', 'name': 'f'}}", NULL, "tool_choice"},
    {RESPONSES, "{'input': 'x', 'text': 'x'}", NULL, "text"},
    {RESPONSES, "{'input': 'x', 'text': {'format': {'type': 'xml'}}}", NULL, "text.format"},
    {RESPONSES, "{'input': 'x', 'text': {'format': {'type': 'json_schema'}}}", NULL, "text.format"},

    /* ---- Ollama ---- */
    {CHAT, "{'model': 'm', 'messages': [{'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'thinking': 'hm', 'tool_calls': ["
           "{'function': {'name': 'f', 'arguments': {'a': 1}}}, {'id': 'own', 'function': {'name': 'g', 'arguments': 'x'}},"
           "{'id': '', 'function': {'name': 'h', 'arguments': null}}]}, {'role': 'tool', 'tool_name': 'f', 'content': '1'},"
           "{'role': 'tool', 'tool_call_id': 'own', 'name': 'g', 'content': null}, {'role': 'user', 'content': 'so', 'images': [], 'tool_calls': []}]}",
           "{'model': 'm', 'stream': true, 'messages': [{'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': '', 'reasoning_content': 'hm',"
           "'tool_calls': [{'id': 'call_0', 'type': 'function', 'function': {'name': 'f', 'arguments': '{\\'a\\':1}'}},"
           "{'id': 'own', 'type': 'function', 'function': {'name': 'g', 'arguments': 'x'}},"
           "{'id': 'call_2', 'type': 'function', 'function': {'name': 'h', 'arguments': '{}'}}]},"
           "{'role': 'tool', 'name': 'f', 'tool_call_id': 'call_0', 'content': '1'}, {'role': 'tool', 'name': 'g', 'tool_call_id': 'own', 'content': ''},"
           "{'role': 'user', 'content': 'so'}]}", NULL},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x', 'images': null, 'tool_calls': null}], 'stream': false, 'format': 'json', 'think': true,"
           " 'tools': [1], 'options': {'seed': 7, 'stop': ['a'], 'top_k': 3}}",
           "{'stream': false, 'response_format': {'type': 'json_object'}, 'chat_template_kwargs': {'enable_thinking': true, 'thinking': true},"
           " 'tools': [1], 'seed': 7, 'stop': ['a'], 'options': {'seed': 7, 'stop': ['a'], 'top_k': 3}}", NULL},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'stream': null, 'format': {'type': 'object'}, 'think': 'high', 'options': {'seed': -1}}",
           "{'stream': true, 'seed': null, 'response_format': {'type': 'json_schema', 'json_schema': {'name': 'format', 'schema': {'type': 'object'},"
           " 'strict': true}}, 'chat_template_kwargs': {'enable_thinking': true, 'thinking': true, 'reasoning_effort': 'high'}}", NULL},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'format': '', 'think': '', 'options': null}",
           "{'response_format': null, 'chat_template_kwargs': null, 'options': null}", NULL},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'format': null, 'think': 'medium'}",
           "{'chat_template_kwargs': {'enable_thinking': true, 'thinking': true, 'reasoning_effort': 'medium'}}", NULL},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'think': 'low'}",
           "{'chat_template_kwargs': {'enable_thinking': true, 'thinking': true, 'reasoning_effort': 'low'}}", NULL},
    {CHAT, "{'messages': 'x'}", NULL, "messages"},
    {CHAT, "{'messages': ['x']}", NULL, "messages[0]"},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x', 'images': ['x']}]}", NULL, "messages[0].images"},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x', 'tool_calls': 7}]}", NULL, "messages[0]"},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x', 'tool_calls': [7]}]}", NULL, "messages[0]"},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x', 'tool_calls': [{'function': {'name': 'f', 'arguments': 7}}]}]}", NULL, "messages[0]"},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'format': 'xml'}", NULL, "format"},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'format': 7}", NULL, "format"},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'think': 'loud'}", NULL, "think"},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'think': 7}", NULL, "think"},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'options': 7}", NULL, "options"},
    {CHAT, "{'messages': [{'role': 'user', 'content': 'x'}], 'keep_alive': 'x'}", NULL, "keep_alive"},
    {GENERATE, "{'model': 'm', 'prompt': 'hi', 'system': 'be brief', 'template': ''}",
               "{'model': 'm', 'messages': [{'role': 'system', 'content': 'be brief'}, {'role': 'user', 'content': 'hi'}], 'prompt': null}", NULL},
    {GENERATE, "{'prompt': 'hi', 'raw': null, 'images': []}", "{'messages': [{'role': 'user', 'content': 'hi'}], 'raw': null}", NULL},
    {GENERATE, "{'prompt': 'hi', 'raw': true, 'template': 'x', 'suffix': 's'}", "{'prompt': 'hi', 'raw': true, 'suffix': null, 'messages': null}", NULL},
    {GENERATE, "{'prompt': 'a', 'suffix': 'b'}", "{'prompt': 'a', 'suffix': 'b', 'raw': null, 'messages': null}", NULL},
    {GENERATE, "{'suffix': 'b'}", "{'prompt': '', 'suffix': 'b'}", NULL},
    {GENERATE, "{'prompt': 7}", NULL, "prompt"},
    {GENERATE, "{'prompt': 'a', 'suffix': 7}", NULL, "suffix"},
    {GENERATE, "{'prompt': 'a', 'system': 7}", NULL, "system"},
    {GENERATE, "{'prompt': 'a', 'template': 7}", NULL, "template"},
    {GENERATE, "{'prompt': 'a', 'template': 'x'}", NULL, "template"},
    {GENERATE, "{'prompt': 'a', 'raw': 7}", NULL, "raw"},
    {GENERATE, "{'prompt': 'a', 'images': ['x']}", NULL, "images"},
    {GENERATE, "{'prompt': 'a', 'keep_alive': true}", NULL, "keep_alive"},
    {GENERATE, "{'prompt': 'a', 'options': []}", NULL, "options"},
    /* ---- Values of other types ---- */
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'user', 'content': [{'type': 'tool_result', 'tool_use_id': 7}]}]}", NULL, "messages[0]"},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 7}]}]}", NULL, "messages[0]"},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'assistant', 'content': [{'type': 'thinking', 'thinking': 7}]}]}", NULL, "messages[0]"},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'assistant', 'content': [{'type': 'tool_use', 'id': 7, 'name': 'f', 'input': {}}]}]}", NULL, "messages[0]"},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'assistant', 'content': [{'type': 'tool_use', 'id': 'i', 'name': 7, 'input': {}}]}]}", NULL, "messages[0]"},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'assistant', 'content': [{'type': 'tool_use', 'id': 'i', 'name': 'f', 'input': []}]}]}", NULL, "messages[0]"},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'user', 'content': null}]}", NULL, "messages[0]"},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'user'}]}", NULL, "messages[0]"},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'user', 'content': 'x'}], 'system': [{'type': 'text', 'text': 7}]}", NULL, "system"},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'user', 'content': 'x'}], 'tools': [{'name': 7}]}", NULL, "tools[0]"},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'user', 'content': 'x'}], 'tool_choice': {'type': 'tool', 'name': 7}}", NULL, "tool_choice"},
    {MESSAGES, "{'max_tokens': 5, 'messages': [{'role': 'user', 'content': 'x'}], 'output_format': {'type': 'json_schema', 'schema': 7}}", NULL, "output_config"},
    {RESPONSES, "{'input': [{'role': 'user', 'content': [{'type': 'input_text', 'text': 7}]}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'type': 'function_call', 'call_id': 7, 'name': 'f', 'arguments': '{}'}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'type': 'function_call', 'call_id': 'c', 'name': 7, 'arguments': '{}'}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'type': 'function_call', 'call_id': 'c', 'name': 'f', 'arguments': {}}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': [{'type': 'function_call_output', 'call_id': 7, 'output': 'x'}]}", NULL, "input[0]"},
    {RESPONSES, "{'input': 'x', 'tools': [{'type': 'function', 'name': 7}]}", NULL, "tools[0]"},
    {RESPONSES, "{'input': 'x', 'tool_choice': {'type': 'function', 'name': 7}}", NULL, "tool_choice"},
    {RESPONSES, "{'input': 'x', 'text': {'format': {'type': 'json_schema', 'schema': 7}}}", NULL, "text.format"},
};
// clang-format on
#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static void holds(const row *r, const json_t *got) {
    json_t *want = quoted(r->want);
    const char *key;
    json_t *v;
    json_object_foreach(want, key, v) {
        const json_t *have = json_object_get(got, key);
        if (json_is_null(v) ? have != NULL : !json_equal(have, v))
            fail_msg("%s: %s is %s", r->body, key, json_dumps(got, 0));
    }
    json_decref(want);
}

static void each_body(void **state) {
    (void)state;
    for (size_t i = 0; i < N_ROWS; i++) {
        const row *r = &rows[i];
        gs_api_error e;
        json_t *body = quoted(r->body), *before = json_deep_copy(body);
        json_t *got = translate(r->form, body, &e);
        if ((got != NULL) != (r->want != NULL))
            fail_msg("%s: %s", r->body, got ? "is taken" : e.message);
        if (got)
            holds(r, got);
        else if (strcmp(e.param, r->param) != 0 || gs_err_http(e.code) != 400 || !e.message[0])
            fail_msg("%s: param '%s', %s", r->body, e.param, e.message);
        assert_true(json_equal(body, before)); /* whoever reads a body leaves it as it was */
        json_decref(got);
        json_decref(body);
        json_decref(before);
    }
}

typedef struct reading {
    const row *row;
    const json_t *body;
} reading;

static int read_it(void *arg) {
    const reading *r = arg;
    gs_api_error e;
    json_t *got = translate(r->row->form, r->body, &e);
    assert_int_equal(got != NULL, e.code == 0);
    json_decref(got);
    return e.code;
}

static void without_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < N_ROWS; i++) {
        json_t *body = quoted(rows[i].body);
        if (rows[i].want)
            each_allocation_fails(rows[i].body, read_it, &(reading){&rows[i], body}, 0);
        json_decref(body);
    }
}

/* ---- What needs no body ------------------------------------------------------------------------
 */

static void keep_alive(void **state) {
    (void)state;
    static const struct {
        const char *body;
        int rc;
        int64_t ns;
    } cases[] = {
        {"{}", 0, GS_OLLAMA_KEEP_UNSAID},
        {"{'keep_alive': null}", 0, GS_OLLAMA_KEEP_UNSAID},
        {"{'keep_alive': ''}", 0, GS_OLLAMA_KEEP_UNSAID},
        {"{'keep_alive': 0}", 0, 0},
        {"{'keep_alive': 2.5}", 0, 2500000000},
        {"{'keep_alive': -1}", 0, GS_KEEP_FOREVER},
        {"{'keep_alive': 1e10}", 0, GS_KEEP_FOREVER},
        {"{'keep_alive': '7'}", 0, 7000000000},
        {"{'keep_alive': '5m'}", 0, 300000000000},
        {"{'keep_alive': '+1h30m'}", 0, 5400000000000},
        {"{'keep_alive': '.5s'}", 0, 500000000},
        {"{'keep_alive': '1ms2us3ns'}", 0, 1002003},
        {"{'keep_alive': '-1s'}", 0, GS_KEEP_FOREVER},
        {"{'keep_alive': '5 m'}", GS_ERR_INVALID, 0},
        {"{'keep_alive': 'm'}", GS_ERR_INVALID, 0},
        {"{'keep_alive': '5d'}", GS_ERR_INVALID, 0},
        {"{'keep_alive': '5mm'}", GS_ERR_INVALID, 0},
        {"{'keep_alive': '1.2.3s'}", GS_ERR_INVALID, 0},
        {"{'keep_alive': '.s'}", GS_ERR_INVALID, 0},
        {"{'keep_alive': '-'}", GS_ERR_INVALID, 0},
        {"{'keep_alive': []}", GS_ERR_INVALID, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gs_api_error e = {0};
        int64_t ns = 0;
        json_t *body = quoted(cases[i].body);
        if (gs_ollama_keep_alive(body, &ns, &e) != cases[i].rc ||
            (!cases[i].rc && ns != cases[i].ns))
            fail_msg("%s: %d, %lld", cases[i].body, e.code, (long long)ns);
        json_decref(body);
    }
}

/* An empty request loads a model, or sends it away. */
static void loading_and_sending_away(void **state) {
    (void)state;
    static const struct {
        form form;
        const char *path, *body;
        bool away;
    } cases[] = {
        {CHAT, "/api/chat", "{'keep_alive': 0}", true},
        {CHAT, "/api/chat", "{'keep_alive': 0, 'messages': []}", true},
        {CHAT, "/api/chat", "{'messages': null}", false},
        {GENERATE, "/api/generate", "{'keep_alive': '0s', 'prompt': ''}", true},
        {GENERATE, "/api/generate", "{}", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const gs_route route = {.path = cases[i].path};
        gs_api_error e;
        json_t *body = quoted(cases[i].body);
        assert_int_equal(gs_ollama_sends_away(&route, body), cases[i].away);
        assert_null(translate(cases[i].form, body, &e)); /* there is nothing to generate */
        assert_int_equal(e.code, 0);
        json_decref(body);
    }
    static const struct {
        const char *path, *body;
    } stays[] = {{"/v1/chat/completions", "{'keep_alive': 0}"},
                 {"/api/chat", "{'keep_alive': 'x'}"},
                 {"/api/chat", "{'keep_alive': 0, 'messages': [1]}"},
                 {"/api/generate", "{'keep_alive': 0, 'prompt': 'x'}"},
                 {"/api/generate", "{'keep_alive': 0, 'suffix': 'x'}"},
                 {"/api/embed", "{'keep_alive': 0, 'input': 'x'}"}};
    for (size_t i = 0; i < sizeof(stays) / sizeof(stays[0]); i++) {
        const gs_route route = {.path = stays[i].path};
        json_t *body = quoted(stays[i].body);
        assert_false(gs_ollama_sends_away(&route, body));
        json_decref(body);
    }
}

/* Long ids are cut between two characters. */
static void long_user_ids(void **state) {
    (void)state;
    char text[512], id[256] = "";
    for (int i = 0; i < 61; i++)
        strcat(id, i == 0 ? "x" : "\xc3\xa4");
    snprintf(text, sizeof(text),
             "{'messages': [{'role': 'user', 'content': 'x'}], 'metadata': {'user_id': '%s'}}", id);
    gs_api_error e;
    json_t *body = quoted(text), *got = translate(COUNT, body, &e);
    assert_non_null(got);
    assert_int_equal(json_string_length(json_object_get(got, "user")), 119);
    json_decref(got);
    json_decref(body);
}

/* What an answer repeats of its request. */
static void the_note(void **state) {
    (void)state;
    json_t *body =
        quoted("{'input': 'x', 'instructions': 'i', 'metadata': {'a': 'b'}, 'user': null}");
    json_t *note = gs_responses_note(body),
           *want = quoted("{'instructions': 'i', 'metadata': {'a': 'b'}}");
    assert_true(json_equal(note, want));
    json_decref(note);
    json_decref(want);
    json_decref(body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_body),     cmocka_unit_test(without_memory),
        cmocka_unit_test(keep_alive),    cmocka_unit_test(loading_and_sending_away),
        cmocka_unit_test(long_user_ids), cmocka_unit_test(the_note),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
