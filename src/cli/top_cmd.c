#include "cli/cli.h"
int gs_cmd_top(int argc, char **argv) {
    (void)argc;
    (void)argv;
    return 0;
}
