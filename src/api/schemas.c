/* JSON Schemas of the OpenAPI document: answers, errors, and what requests nest. */
#include "api/route.h"

#define INT         "{'type':'integer'}"
#define COUNT       "{'type':'integer','minimum':0}"
#define TEXT        "{'type':'string'}"
#define STATUS      "{'type':'string','enum':['ok','ready','stalled']}"

#define REF(name)   "{'$ref':'#/components/schemas/" name "'}"
#define LIST(of)    "{'type':'array','items':" of "}"
#define OR_NULL(of) "{'anyOf':[" of ",{'type':'null'}]}"

// clang-format off
const gs_schema gs_schemas_own[] = {
    {"Status", "{'type':'object','required':['status'],'properties':{'status':" STATUS "}}"},
    {"Document", "{'type':'object','required':['openapi','paths']}"},
    {"Tokens", "{'type':'object','required':['tokens'],'properties':{'tokens':" LIST(COUNT) "}}"},
    {"Content", "{'type':'object','required':['content'],'properties':{'content':" TEXT "}}"},
    {NULL, NULL},
};

const gs_schema gs_schemas_openai[] = {
    {"Error",
     "{'type':'object','required':['error'],'properties':{'error':{'type':'object',"
     "'required':['message','type','param','code'],'properties':{"
     "'message':" TEXT ",'type':" TEXT ","
     "'param':{'type':['string','null'],'description':'The field that is wrong.'},"
     "'code':{'type':['string','null']}}}}}"},
    {"TextPart",
     "{'type':'object','required':['type','text'],'properties':{'type':{'const':'text'},"
     "'text':" TEXT "}}"},
    {"ToolCall",
     "{'type':'object','properties':{'id':" TEXT ",'type':{'const':'function'},"
     "'function':{'type':'object','required':['name'],'properties':{'name':" TEXT ","
     "'arguments':" TEXT "}}}}"},
    {"Message",
     "{'type':'object','required':['role','content'],'properties':{"
     "'role':{'type':'string','enum':['system','developer','user','assistant','tool','function']},"
     "'content':{'anyOf':[" TEXT "," LIST(REF("TextPart")) "]},"
     "'name':" TEXT ",'tool_call_id':" TEXT ",'tool_calls':" LIST(REF("ToolCall")) "}}"},
    {"Usage",
     "{'type':'object','required':['prompt_tokens','completion_tokens','total_tokens'],"
     "'properties':{'prompt_tokens':" COUNT ",'completion_tokens':" COUNT ","
     "'total_tokens':" COUNT ",'prompt_tokens_details':{'type':'object',"
     "'properties':{'cached_tokens':" COUNT "}},"
     "'timings':" LIST(REF("Story")) "}}"},
    {"FinishReason",
     "{'type':'string','enum':['stop','length','tool_calls','cancelled','error']}"},
    {"TokenLogprob",
     "{'type':'object','required':['token','logprob','bytes'],'properties':{'token':" TEXT ","
     "'logprob':{'type':['number','null']},'bytes':" LIST(COUNT) "}}"},
    {"ChatCompletion",
     "{'type':'object','required':['id','object','created','model','choices','usage'],"
     "'properties':{'id':" TEXT ",'object':{'const':'chat.completion'},'created':" INT ","
     "'model':" TEXT ",'usage':" REF("Usage") ",'choices':{'type':'array','minItems':1,"
     "'items':{'type':'object','required':['index','message','finish_reason'],'properties':{"
     "'index':" COUNT ",'finish_reason':" REF("FinishReason") ","
     "'message':{'type':'object','required':['role','content'],'properties':{"
     "'role':{'const':'assistant'},'content':{'type':['string','null']},"
     "'reasoning_content':{'type':['string','null']},"
     "'tool_calls':" LIST(REF("ToolCall")) "}},"
     "'logprobs':" OR_NULL("{'type':'object','properties':{'content':"
                           OR_NULL(LIST(REF("TokenLogprob"))) "}}") "}}}}}"},
    {"Completion",
     "{'type':'object','required':['id','object','created','model','choices','usage'],"
     "'properties':{'id':" TEXT ",'object':{'const':'text_completion'},'created':" INT ","
     "'model':" TEXT ",'usage':" REF("Usage") ",'choices':{'type':'array','minItems':1,"
     "'items':{'type':'object','required':['index','text','finish_reason'],'properties':{"
     "'index':" COUNT ",'text':" TEXT ",'finish_reason':" REF("FinishReason") ","
     "'logprobs':" OR_NULL("{'type':'object','required':['tokens','token_logprobs',"
                           "'top_logprobs','text_offset']}") "}}}}}"},
    {"Model",
     "{'type':'object','required':['id','object','created','owned_by'],'properties':{"
     "'id':" TEXT ",'object':{'const':'model'},'created':" INT ",'owned_by':" TEXT ","
     "'max_model_len':" COUNT "}}"},
    {"ModelList",
     "{'type':'object','required':['object','data'],'properties':{'object':{'const':'list'},"
     "'data':" LIST(REF("Model")) "}}"},
    {NULL, NULL},
};
// clang-format on
