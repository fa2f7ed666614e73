/* Switching a machine on: a command, or the packet that its network card waits for. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/sys.h"
#include "worker/worker_impl.h"

#define MAC_BYTES  6
#define MAC_REPEAT 16 /* after six bytes of ones: AMD, "Magic Packet Technology", 1995 */
#define WOL_PORT   9

static bool parse_mac(const char *text, unsigned char mac[MAC_BYTES]) {
    unsigned v[MAC_BYTES];
    char end;
    const int n = sscanf(text, "%2x%*1[:-]%2x%*1[:-]%2x%*1[:-]%2x%*1[:-]%2x%*1[:-]%2x%c", &v[0],
                         &v[1], &v[2], &v[3], &v[4], &v[5], &end);
    if (n != MAC_BYTES || strlen(text) != 3 * MAC_BYTES - 1)
        return false;
    for (int i = 0; i < MAC_BYTES; i++)
        mac[i] = (unsigned char)v[i];
    return true;
}

bool gs_worker_mac_ok(const char *text) {
    unsigned char mac[MAC_BYTES];
    return parse_mac(text, mac);
}

static void on_closed(uv_handle_t *h) {
    gs_free(h);
}

static void send_packet(gs_worker *w) {
    unsigned char packet[MAC_BYTES * (MAC_REPEAT + 1)], mac[MAC_BYTES];
    struct sockaddr_in to;
    uv_udp_t *udp = gs_calloc(1, sizeof(*udp));
    if (!udp || !parse_mac(w->cfg.wake_mac, mac) ||
        uv_udp_init_ex(w->impl->ws->loop, udp, AF_INET) != 0) {
        gs_free(udp);
        return;
    }
    memset(packet, 0xff, MAC_BYTES);
    for (int i = 1; i <= MAC_REPEAT; i++)
        memcpy(packet + (size_t)i * MAC_BYTES, mac, MAC_BYTES);
    uv_buf_t b = uv_buf_init((char *)packet, sizeof(packet));
    uv_ip4_addr("255.255.255.255", WOL_PORT, &to);
    int rc = uv_udp_set_broadcast(udp, 1);
    if (rc == 0)
        rc = uv_udp_try_send(udp, &b, 1, (const struct sockaddr *)&to);
    if (rc < 0)
        gs_warn("worker", "no wake-on-LAN packet worker=%s why=%s", w->name, uv_strerror(rc));
    uv_close((uv_handle_t *)udp, on_closed);
}

static void on_exit(uv_process_t *p, int64_t status, int signal) {
    if (status != 0 || signal != 0)
        gs_warn("worker", "power_on ended status=%lld signal=%d", (long long)status, signal);
    uv_close((uv_handle_t *)p, on_closed);
}

static void run_command(gs_worker *w) {
    char shell[] = "/bin/sh", dash_c[] = "-c";
    char *args[] = {shell, dash_c, w->cfg.power_on, NULL};
    uv_stdio_container_t stdio[] = {{.flags = UV_IGNORE},
                                    {.flags = UV_INHERIT_FD, .data = {.fd = 2}},
                                    {.flags = UV_INHERIT_FD, .data = {.fd = 2}}};
    const uv_process_options_t o = {
        .exit_cb = on_exit, .file = shell, .args = args, .stdio_count = 3, .stdio = stdio};
    uv_process_t *p = gs_calloc(1, sizeof(*p));
    const int rc = p ? uv_spawn(w->impl->ws->loop, p, &o) : UV_ENOMEM;
    if (rc == 0)
        return;
    gs_warn("worker", "power_on does not run worker=%s why=%s", w->name, uv_strerror(rc));
    if (p)
        uv_close((uv_handle_t *)p, on_closed);
}

void gs_worker_power_on(gs_worker *w) {
    gs_info("worker", "switching on worker=%s", w->name);
    if (w->cfg.power_on[0])
        run_command(w);
    if (w->cfg.wake_mac[0])
        send_packet(w);
}
