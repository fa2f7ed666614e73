/* Private to cli/: packaging/systemd as it was when the program was built (a generated file). */
#ifndef GS_CLI_UNITS_H
#define GS_CLI_UNITS_H

extern const char gs_unit_system[]; /* gamasot.service */
extern const char gs_unit_user[];   /* gamasot-user.service */

#endif
