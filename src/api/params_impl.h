/* Private to the reading of request fields. */
#ifndef GS_API_PARAMS_IMPL_H
#define GS_API_PARAMS_IMPL_H

#include "api/params.h"

/* params_output.c: tools, constraints, template variables. p->chat is set. */
int gs_params_read_output(const json_t *root, gs_gen_params *p, gs_api_error *e);

#endif
