#include "base/notify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/err.h"

static const char *socket_path(void) {
    const char *path = getenv("NOTIFY_SOCKET");
    return path && path[0] ? path : NULL;
}

bool gs_notify_is_supervised(void) {
    return socket_path() != NULL;
}

/* '@' stands for the zero byte with which names outside the file system begin. */
static int address_of(const char *path, struct sockaddr_un *out, socklen_t *len) {
    const size_t n = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || n < 2 || n >= sizeof(out->sun_path))
        return GS_ERR_INVALID;
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(out->sun_path, path, n);
    if (path[0] == '@')
        out->sun_path[0] = '\0';
    *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    return 0;
}

int gs_notify(const char *fmt, ...) {
    const char *path = socket_path();
    struct sockaddr_un to;
    socklen_t to_len;
    char text[GS_NOTIFY_MAX];
    va_list ap;
    if (!path)
        return 0;
    if (address_of(path, &to, &to_len) != 0)
        return GS_ERR_INVALID;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n < 0)
        return GS_ERR_INVALID;
    if ((size_t)n >= sizeof(text))
        n = (int)sizeof(text) - 1;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return GS_ERR_IO;
    ssize_t sent = sendto(fd, text, (size_t)n, MSG_NOSIGNAL, (const struct sockaddr *)&to, to_len);
    close(fd);
    return sent == n ? 0 : GS_ERR_IO;
}
