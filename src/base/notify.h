/*
 * Words to the service manager: sd_notify(3) by hand, one datagram to $NOTIFY_SOCKET.
 *
 * The protocol is lines of NAME=value: READY=1, STOPPING=1, STATUS=one line for people, WATCHDOG=1.
 * Several lines may go in one message. Without a manager (started in a terminal, in a container
 * without one) nothing happens.
 *
 *     gs_notify("READY=1\nSTATUS=serving %s", name);
 *
 * Any thread. It never waits: a manager that does not read loses the message, and the caller hears
 * of it.
 */
#ifndef GS_BASE_NOTIFY_H
#define GS_BASE_NOTIFY_H

#include <stdbool.h>

#define GS_NOTIFY_MAX 512 /* bytes of one message; longer ones are cut */

/* True when there is a manager that listens. */
bool gs_notify_is_supervised(void);
/* GS_OK: sent, or nobody listens. GS_ERR_IO: no such socket, or full. GS_ERR_INVALID: the variable
 * holds no socket's path. */
int gs_notify(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
