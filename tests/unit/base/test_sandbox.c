/* Each test puts up the walls in a process of its own and tries what they are there against. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/sandbox.h"

static char folder[40];
static char inside[64], outside[64], readable[64];

static void write_file(const char *path) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "x", 1), 1);
    close(fd);
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/gamasot-sandbox-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(inside, sizeof inside, "%s/in", folder);
    snprintf(outside, sizeof outside, "%s/out", folder);
    snprintf(readable, sizeof readable, "%s/read", folder);
    if (mkdir(inside, 0700) || mkdir(outside, 0700) || mkdir(readable, 0700))
        return -1;
    char path[128];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/file", i == 0 ? inside : i == 1 ? outside : readable);
        write_file(path);
    }
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    char cmd[96];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", folder);
    return system(cmd);
}

/* ---- A process within the walls ---------------------------------------------------------------
 */

enum { KERNEL_REFUSES = 77 };

/* The child says where it stood by its exit status: 0, or the line of what went wrong. */
#define MUST(good)                                                                                 \
    do {                                                                                           \
        if (!(good)) {                                                                             \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #good, strerror(errno));               \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static void kernel_says(int rc, const char *err) {
    if (rc == GS_ERR_UNSUPPORTED) {
        fprintf(stderr, "skipped: %s\n", err);
        _exit(KERNEL_REFUSES);
    }
    MUST(rc == 0);
}

static void wall_in_files(unsigned allow) {
    char err[256] = "";
    const gs_sandbox_rule rules[] = {{inside, GS_SANDBOX_WRITE},
                                     {readable, GS_SANDBOX_READ},
                                     {"/usr", GS_SANDBOX_EXECUTE},
                                     {"/nowhere/at/all", GS_SANDBOX_READ}};
    kernel_says(gs_sandbox_harden(err, sizeof err), err);
    kernel_says(gs_sandbox_files(rules, sizeof rules / sizeof *rules, allow, err, sizeof err), err);
}

static void wall_in_calls(unsigned allow) {
    char err[256] = "";
    kernel_says(gs_sandbox_harden(err, sizeof err), err);
    kernel_says(gs_sandbox_calls(allow, err, sizeof err), err);
}

static void in_a_process(void (*what)(void)) {
    int status = 0;
    fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        what();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == KERNEL_REFUSES)
        skip();
    assert_int_equal(status, 0);
}

/* ---- Files ------------------------------------------------------------------------------------
 */

static int opens(const char *dir, const char *name, int flags) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    const int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    return fd >= 0 ? 0 : errno;
}

static void try_files(void) {
    wall_in_files(0);
    MUST(opens(inside, "file", O_RDONLY) == 0);
    MUST(opens(inside, "file", O_WRONLY | O_TRUNC) == 0);
    MUST(opens(inside, "new", O_WRONLY | O_CREAT) == 0);
    MUST(opens(readable, "file", O_RDONLY) == 0);
    MUST(opens(readable, "file", O_WRONLY) == EACCES);
    MUST(opens(readable, "new", O_WRONLY | O_CREAT) == EACCES);
    MUST(opens(outside, "file", O_RDONLY) == EACCES);
    MUST(opens(outside, "file", O_WRONLY) == EACCES);
    MUST(opens(outside, "new", O_WRONLY | O_CREAT) == EACCES);
    MUST(opens(inside, "../out/file", O_RDONLY) == EACCES);
    MUST(opens("/etc", "passwd", O_RDONLY) == EACCES);
    MUST(opens("/etc", "shadow", O_RDONLY) == EACCES);
    MUST(opens("/proc/self", "environ", O_RDONLY) == EACCES);
    char from[128], to[128];
    snprintf(from, sizeof from, "%s/new", inside);
    snprintf(to, sizeof to, "%s/renamed", inside);
    MUST(rename(from, to) == 0);
    MUST(unlink(to) == 0);
    snprintf(from, sizeof from, "%s/file", outside);
    MUST(unlink(from) != 0 && errno == EACCES);
    MUST(rename(from, to) != 0);
    /* A link that is made within leads nowhere outside. */
    snprintf(to, sizeof to, "%s/link", inside);
    MUST(symlink(from, to) != 0 || opens(inside, "link", O_RDONLY) == EACCES);
    MUST(mkfifo(to, 0600) != 0);
}

static void only_files_that_are_named(void **state) {
    (void)state;
    in_a_process(try_files);
}

static void *try_from_a_thread(void *arg) {
    (void)arg;
    return (void *)(intptr_t)opens(outside, "file", O_RDONLY);
}

static void try_threads(void) {
    pthread_t t;
    void *got = NULL;
    wall_in_files(0);
    MUST(pthread_create(&t, NULL, try_from_a_thread, NULL) == 0);
    MUST(pthread_join(t, &got) == 0);
    MUST((intptr_t)got == EACCES);
}

static void later_threads_too(void **state) {
    (void)state;
    in_a_process(try_threads);
}

/* ---- Programs ---------------------------------------------------------------------------------
 */

static int starts(const char *program) {
    char *const argv[] = {(char *)(uintptr_t)program, NULL};
    execv(program, argv);
    return errno;
}

static void try_programs_by_files(void) {
    wall_in_files(0);
    char copy[128];
    snprintf(copy, sizeof copy, "%s/file", inside);
    MUST(chmod(copy, 0700) == 0);
    MUST(starts(copy) == EACCES);
}

static void try_programs_by_calls(void) {
    wall_in_calls(0);
    MUST(starts("/usr/bin/true") == EPERM);
    MUST(system("exit 3") != 3 << 8);
}

/* Where programs are allowed they start, and live within the same walls. */
static void try_allowed_program(void) {
    wall_in_files(GS_SANDBOX_EXEC);
    wall_in_calls(GS_SANDBOX_EXEC);
    const pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        close(STDERR_FILENO); /* it complains */
        execl("/usr/bin/cat", "cat", "/etc/passwd", NULL);
        _exit(99);
    }
    int status = 0;
    MUST(waitpid(pid, &status, 0) == pid);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 1); /* cat could not open it */
}

static void no_program_starts(void **state) {
    (void)state;
    in_a_process(try_programs_by_files);
    in_a_process(try_programs_by_calls);
}

static void an_allowed_program_has_the_same_walls(void **state) {
    (void)state;
    in_a_process(try_allowed_program);
}

/* ---- The network ------------------------------------------------------------------------------
 */

static int listener_fd;
static struct sockaddr_in to_listener;

static int connects(int fd) {
    return connect(fd, (const struct sockaddr *)&to_listener, sizeof to_listener) == 0 ? 0 : errno;
}

static void try_connect_by_files(void) {
    wall_in_files(0);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const int why = connects(fd);
    if (why == 0) {
        fprintf(stderr, "skipped: Landlock of this kernel knows no network\n");
        _exit(KERNEL_REFUSES);
    }
    MUST(why == EACCES);
}

static void try_connect_by_calls(void) {
    const int before = socket(AF_INET, SOCK_STREAM, 0);
    wall_in_calls(0);
    MUST(connects(before) == EPERM);
    MUST(socket(AF_INET, SOCK_STREAM, 0) < 0 && errno == EPERM);
    MUST(socket(AF_INET6, SOCK_DGRAM, 0) < 0 && errno == EPERM);
    MUST(socket(AF_NETLINK, SOCK_RAW, 0) < 0 && errno == EPERM);
    MUST(socket(AF_PACKET, SOCK_RAW, 0) < 0 && errno == EPERM);
    /* The service manager hears by such a one. */
    MUST(socket(AF_UNIX, SOCK_DGRAM, 0) >= 0);
}

static void try_serving(void) {
    const int client = socket(AF_INET, SOCK_STREAM, 0);
    MUST(connects(client) == 0);
    wall_in_calls(0);
    const int fd = accept(listener_fd, NULL, NULL);
    char c = 0;
    MUST(fd >= 0 && write(fd, "y", 1) == 1 && read(client, &c, 1) == 1 && c == 'y');
}

static void try_allowed_connect(void) {
    wall_in_files(GS_SANDBOX_CONNECT);
    wall_in_calls(GS_SANDBOX_CONNECT);
    MUST(connects(socket(AF_INET, SOCK_STREAM, 0)) == 0);
    MUST(socket(AF_INET, SOCK_DGRAM, 0) >= 0); /* a packet that wakes a machine */
    MUST(socket(AF_PACKET, SOCK_RAW, 0) < 0 && errno == EPERM);
}

static void no_connection_leaves(void **state) {
    (void)state;
    in_a_process(try_connect_by_files);
    in_a_process(try_connect_by_calls);
}

static void who_connects_is_served(void **state) {
    (void)state;
    in_a_process(try_serving);
}

static void connections_where_they_are_allowed(void **state) {
    (void)state;
    in_a_process(try_allowed_connect);
}

static int make_listener(void **state) {
    (void)state;
    socklen_t len = sizeof to_listener;
    to_listener = (struct sockaddr_in){.sin_family = AF_INET};
    to_listener.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return bind(listener_fd, (struct sockaddr *)&to_listener, len) || listen(listener_fd, 8) ||
           getsockname(listener_fd, (struct sockaddr *)&to_listener, &len);
}

static int close_listener(void **state) {
    (void)state;
    return close(listener_fd);
}

/* ---- The rest ---------------------------------------------------------------------------------
 */

static void try_calls(void) {
    wall_in_calls(0);
    /* tracing and reading others, other name spaces, the kernel itself */
    char byte;
    const struct iovec {
        void *base;
        size_t len;
    } v = {&byte, 1};
#ifndef __SANITIZE_ADDRESS__
#ifndef __SANITIZE_THREAD__
    MUST(ptrace(PTRACE_ATTACH, getppid(), 0, 0) < 0 && errno == EPERM);
#endif
#endif
    MUST(syscall(SYS_process_vm_readv, getppid(), &v, 1, &v, 1, 0) < 0 && errno == EPERM);
    MUST(unshare(CLONE_NEWUSER) < 0 && errno == ENOSYS);
    MUST(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0) < 0 && errno == EPERM);
    MUST(syscall(SYS_clone3, NULL, 0) < 0 && errno == ENOSYS);
    static const int gone[] = {SYS_mount,
                               SYS_umount2,
                               SYS_chroot,
                               SYS_pivot_root,
                               SYS_bpf,
                               SYS_keyctl,
                               SYS_add_key,
                               SYS_init_module,
                               SYS_reboot,
                               SYS_setuid,
                               SYS_setns,
                               SYS_io_uring_setup,
                               SYS_swapon,
                               SYS_sethostname,
                               SYS_userfaultfd,
                               SYS_kexec_load,
                               SYS_settimeofday,
                               SYS_perf_event_open,
                               SYS_open_by_handle_at};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        errno = 0;
        if (syscall(gone[i], 0, 0, 0, 0, 0, 0) >= 0 || errno != ENOSYS)
            fprintf(stderr, "call %d: %s\n", gone[i], strerror(errno));
        MUST(errno == ENOSYS);
    }
    /* threads and memory work on */
    pthread_t t;
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(p != MAP_FAILED);
    MUST(pthread_create(&t, NULL, try_from_a_thread, NULL) == 0 && pthread_join(t, NULL) == 0);
}

static void calls_that_serving_needs_not(void **state) {
    (void)state;
    in_a_process(try_calls);
}

static int ready[2], go[2];

static void *wait_and_try(void *arg) {
    char c = 'r';
    (void)arg;
    MUST(write(ready[1], &c, 1) == 1 && read(go[0], &c, 1) == 1);
    return (void *)(intptr_t)(socket(AF_INET, SOCK_STREAM, 0) < 0 && errno == EPERM);
}

static void try_running_threads(void) {
    pthread_t t;
    char c;
    void *refused = NULL;
    MUST(pipe(ready) == 0 && pipe(go) == 0);
    MUST(pthread_create(&t, NULL, wait_and_try, NULL) == 0);
    MUST(read(ready[0], &c, 1) == 1);
    wall_in_calls(0);
    MUST(write(go[1], "g", 1) == 1 && pthread_join(t, &refused) == 0);
    MUST(refused);
}

static void threads_that_run_already_are_walled_in(void **state) {
    (void)state;
    in_a_process(try_running_threads);
}

static void try_harden(void) {
    char err[128] = "";
    struct rlimit core;
    kernel_says(gs_sandbox_harden(err, sizeof err), err);
    MUST(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    MUST(getrlimit(RLIMIT_CORE, &core) == 0 && core.rlim_cur <= 1 && core.rlim_max <= 1);
}

static void try_crash(void) {
    char err[128] = "";
    MUST(chdir(inside) == 0);
    kernel_says(gs_sandbox_harden(err, sizeof err), err);
    const pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        abort();
    }
    int status = 0;
    MUST(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && !WCOREDUMP(status));
}

static void a_crash_leaves_no_core(void **state) {
    (void)state;
    in_a_process(try_harden);
    in_a_process(try_crash);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_files_that_are_named, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(later_threads_too, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(no_program_starts, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(an_allowed_program_has_the_same_walls, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(no_connection_leaves, make_listener, close_listener),
        cmocka_unit_test_setup_teardown(who_connects_is_served, make_listener, close_listener),
        cmocka_unit_test_setup_teardown(connections_where_they_are_allowed, make_listener,
                                        close_listener),
        cmocka_unit_test(calls_that_serving_needs_not),
        cmocka_unit_test(threads_that_run_already_are_walled_in),
        cmocka_unit_test_setup_teardown(a_crash_leaves_no_core, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
