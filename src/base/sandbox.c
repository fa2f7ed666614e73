#include "base/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* they look at the process from outside at its end, and read its program */
#else
#define SANITIZED 0
#endif

int gs_sandbox_harden(char *err, size_t errlen) {
    /* 1 and not 0: a core that is piped to a program is cut off by nothing else (core(5)). */
    const struct rlimit no_core = {1, 1};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || setrlimit(RLIMIT_CORE, &no_core) != 0)
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "no_new_privs and core limit: %s",
                       gs_errno_text(errno));
    return 0;
}

/* ---- Landlock -------------------------------------------------------------------------------
 * The kernel's numbers (include/uapi/linux/landlock.h), because the headers of a distribution are
 * often older than its kernel.
 */

#define NR_CREATE_RULESET 444 /* the same on all machines */
#define NR_ADD_RULE       445
#define NR_RESTRICT_SELF  446
#define GET_VERSION       1u
#define RULE_PATH_BENEATH 1
#define NET_CONNECT_TCP   (1ull << 1)
#define SCOPE_SIGNAL      (1ull << 1)

typedef struct ruleset {
    uint64_t files, net, scoped;
} ruleset;

typedef struct __attribute__((packed)) path_beneath {
    uint64_t allowed;
    int32_t fd;
} path_beneath;

enum {
    FS_EXECUTE = 1 << 0,
    FS_WRITE_FILE = 1 << 1,
    FS_READ_FILE = 1 << 2,
    FS_READ_DIR = 1 << 3,
    FS_REMOVE_DIR = 1 << 4,
    FS_REMOVE_FILE = 1 << 5,
    FS_MAKE_DIR = 1 << 7,
    FS_MAKE_REG = 1 << 8,
    FS_REFER = 1 << 13,
    FS_TRUNCATE = 1 << 14,
    FS_ALL_OF_1 = (1 << 13) - 1,
    FS_READ = FS_READ_FILE | FS_READ_DIR,
    FS_WRITE = FS_READ | FS_WRITE_FILE | FS_REMOVE_DIR | FS_REMOVE_FILE | FS_MAKE_DIR |
               FS_MAKE_REG | FS_REFER | FS_TRUNCATE,
    /* what a rule for a single file may say */
    FS_OF_A_FILE = FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE
};

static const uint64_t rights_of[] = {[GS_SANDBOX_READ] = FS_READ,
                                     [GS_SANDBOX_WRITE] = FS_WRITE,
                                     [GS_SANDBOX_EXECUTE] = FS_READ | FS_EXECUTE};

static ruleset what_this_kernel_knows(long version, unsigned allow) {
    ruleset r = {.files = FS_ALL_OF_1};
    if (version >= 2)
        r.files |= FS_REFER;
    if (version >= 3)
        r.files |= FS_TRUNCATE;
    if (version >= 4 && !(allow & GS_SANDBOX_CONNECT))
        r.net = NET_CONNECT_TCP;
    if (version >= 6)
        r.scoped = SCOPE_SIGNAL;
    return r;
}

static int add_rule(int set, const gs_sandbox_rule *rule, uint64_t handled) {
    struct stat st;
    path_beneath p = {.allowed = rights_of[rule->access]};
    if (SANITIZED && rule->access != GS_SANDBOX_WRITE)
        p.allowed |= FS_EXECUTE;
    p.fd = open(rule->path, O_PATH | O_CLOEXEC);
    if (p.fd < 0)
        return 0;
    int rc = fstat(p.fd, &st);
    if (rc == 0 && !S_ISDIR(st.st_mode))
        p.allowed &= FS_OF_A_FILE;
    p.allowed &= handled;
    if (rc == 0)
        rc = (int)syscall(NR_ADD_RULE, set, RULE_PATH_BENEATH, &p, 0);
    const int saved = errno;
    close(p.fd);
    errno = saved;
    return rc;
}

int gs_sandbox_files(const gs_sandbox_rule *rules, size_t n, unsigned allow, char *err,
                     size_t errlen) {
    const long version = syscall(NR_CREATE_RULESET, NULL, 0, GET_VERSION);
    if (version < 1)
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "this kernel has no Landlock: %s",
                       gs_errno_text(errno));
    const ruleset r = what_this_kernel_knows(version, allow);
    const int set = (int)syscall(NR_CREATE_RULESET, &r, sizeof(r), 0);
    int rc = set < 0 ? -1 : 0;
    const char *path = "";
    for (size_t i = 0; rc == 0 && i < n; i++) {
        path = rules[i].path;
        rc = add_rule(set, &rules[i], r.files);
    }
    if (rc == 0) {
        path = "";
        rc = (int)syscall(NR_RESTRICT_SELF, set, 0);
    }
    if (rc != 0)
        rc =
            gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "Landlock %s: %s", path, gs_errno_text(errno));
    if (set >= 0)
        close(set);
    return rc;
}

/* ---- seccomp -------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define THIS_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define THIS_ARCH AUDIT_ARCH_AARCH64
#endif

#ifdef THIS_ARCH

// clang-format off
/* What libc, libuv, SQLite and the threads use. */
static const int allowed[] = {
    /* files */
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev,
    SYS_preadv2, SYS_pwritev2, SYS_close, SYS_close_range, SYS_lseek, SYS_fstat, SYS_newfstatat,
    SYS_statx, SYS_openat, SYS_faccessat, SYS_faccessat2, SYS_readlinkat, SYS_unlinkat,
    SYS_mkdirat, SYS_renameat, SYS_renameat2, SYS_linkat, SYS_symlinkat, SYS_fchmod, SYS_fchmodat,
    SYS_fchown, SYS_fchownat, SYS_truncate, SYS_ftruncate, SYS_fallocate, SYS_fsync, SYS_fdatasync,
    SYS_sync_file_range, SYS_fadvise64, SYS_flock, SYS_fcntl, SYS_dup, SYS_dup3, SYS_pipe2,
    SYS_getdents64, SYS_statfs, SYS_fstatfs, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_umask,
    SYS_sendfile, SYS_copy_file_range, SYS_utimensat, SYS_inotify_init1, SYS_inotify_add_watch,
    SYS_inotify_rm_watch,
    /* memory */
    SYS_mmap, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_brk, SYS_mlock, SYS_munlock,
    SYS_mincore, SYS_msync, SYS_mbind, SYS_get_mempolicy, SYS_set_mempolicy, SYS_membarrier,
    /* threads and signals */
    SYS_futex, SYS_rseq, SYS_set_robust_list, SYS_get_robust_list, SYS_set_tid_address,
    SYS_sched_yield, SYS_sched_getaffinity, SYS_sched_setaffinity, SYS_sched_getparam,
    SYS_sched_getscheduler, SYS_sched_setscheduler, SYS_sched_get_priority_max,
    SYS_sched_get_priority_min, SYS_getcpu, SYS_getpriority, SYS_setpriority, SYS_exit,
    SYS_exit_group, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigtimedwait,
    SYS_rt_sigpending, SYS_rt_sigsuspend, SYS_sigaltstack, SYS_kill, SYS_tkill, SYS_tgkill,
    SYS_restart_syscall, SYS_signalfd4,
    /* time */
    SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday,
    SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime, SYS_setitimer, SYS_getitimer,
    SYS_times, SYS_getrusage,
    /* waiting and sockets */
    SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_ppoll, SYS_pselect6,
    SYS_eventfd2, SYS_accept, SYS_accept4, SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg,
    SYS_sendmmsg, SYS_recvmmsg, SYS_shutdown, SYS_bind, SYS_listen, SYS_getsockname,
    SYS_getpeername, SYS_setsockopt, SYS_getsockopt, SYS_socketpair,
    /* what the process is told of itself */
    SYS_getpid, SYS_getppid, SYS_gettid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid,
    SYS_getgroups, SYS_getresuid, SYS_getresgid, SYS_prctl, SYS_prlimit64, SYS_getrlimit,
    SYS_setrlimit, SYS_uname, SYS_sysinfo, SYS_getrandom, SYS_capget, SYS_wait4, SYS_waitid,
#ifdef __x86_64__ /* older forms of the above */
    SYS_open, SYS_stat, SYS_lstat, SYS_access, SYS_readlink, SYS_unlink, SYS_mkdir, SYS_rmdir,
    SYS_rename, SYS_link, SYS_symlink, SYS_chmod, SYS_dup2, SYS_pipe, SYS_getdents, SYS_poll,
    SYS_select, SYS_epoll_create, SYS_epoll_wait, SYS_eventfd, SYS_inotify_init, SYS_alarm,
    SYS_time, SYS_arch_prctl, SYS_getpgrp,
#endif
#if SANITIZED
    SYS_ptrace, SYS_personality, SYS_sched_getattr,
#endif
};
/* Refused by name, so that who is refused hears why. The rest "does not exist". */
static const int refused[] = {SYS_execve, SYS_execveat, SYS_connect, SYS_ptrace,
                              SYS_process_vm_readv, SYS_process_vm_writev};
static const int of_connect[] = {SYS_connect};
static const int of_exec[] = {SYS_execve, SYS_execveat, SYS_setpgid, SYS_getpgid, SYS_setsid, SYS_getsid,
#ifdef __x86_64__
    SYS_fork, SYS_vfork,
#endif
};
// clang-format on

#define COUNT(a)   (sizeof(a) / sizeof((a)[0]))
#define MAX_FILTER 600
#define NEW_SPACES                                                                                 \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |  \
     CLONE_NEWNET)
#define X32_BIT       0x40000000u
#define ANSWER(errno) (SECCOMP_RET_ERRNO | (errno))
/* The lower half: what is looked at here fits into it, on both little-endian machines. */
#define ARG(i) ((uint32_t)offsetof(struct seccomp_data, args[i]))

typedef struct program {
    struct sock_filter code[MAX_FILTER];
    unsigned short n;
} program;

static void put(program *p, uint16_t code, uint8_t yes, uint8_t no, uint32_t k) {
    GS_ASSERT(p->n < MAX_FILTER);
    p->code[p->n++] = (struct sock_filter){code, yes, no, k};
}

static void load(program *p, uint32_t at) {
    put(p, BPF_LD | BPF_W | BPF_ABS, 0, 0, at);
}

static void answer(program *p, uint32_t with) {
    put(p, BPF_RET | BPF_K, 0, 0, with);
}

/* Where the accumulator is value, that is the answer. */
static void answer_if(program *p, uint32_t value, uint32_t with) {
    put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, value);
    answer(p, with);
}

static void answer_all(program *p, const int *calls, size_t n, uint32_t with) {
    for (size_t i = 0; i < n; i++)
        answer_if(p, (uint32_t)calls[i], with);
}

static void rule_sockets(program *p, unsigned allow) {
    static const uint32_t inet[] = {AF_INET, AF_INET6, AF_NETLINK};
    const uint8_t n = allow & GS_SANDBOX_CONNECT ? COUNT(inet) : 0;
    put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, (uint8_t)(4 + 2 * n), SYS_socket);
    load(p, ARG(0));
    answer_if(p, AF_UNIX, SECCOMP_RET_ALLOW);
    for (uint8_t i = 0; i < n; i++)
        answer_if(p, inet[i], SECCOMP_RET_ALLOW);
    answer(p, ANSWER(EPERM));
}

/* clone3 hides its flags behind a pointer: libc takes clone where there is none. */
static void rule_clone(program *p) {
    put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 4, SYS_clone);
    load(p, ARG(0));
    put(p, BPF_JMP | BPF_JSET | BPF_K, 0, 1, NEW_SPACES);
    answer(p, ANSWER(EPERM));
    answer(p, SECCOMP_RET_ALLOW);
}

/* Typing into the terminal that started us. */
static void rule_ioctl(program *p) {
    put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 4, SYS_ioctl);
    load(p, ARG(1));
    answer_if(p, TIOCSTI, ANSWER(EPERM));
    answer(p, SECCOMP_RET_ALLOW);
}

static void build(program *p, unsigned allow) {
    load(p, offsetof(struct seccomp_data, arch));
    put(p, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, THIS_ARCH);
    answer(p, SECCOMP_RET_KILL_PROCESS);
    load(p, offsetof(struct seccomp_data, nr));
    put(p, BPF_JMP | BPF_JGE | BPF_K, 0, 1, X32_BIT);
    answer(p, ANSWER(ENOSYS));
    answer_all(p, allowed, COUNT(allowed), SECCOMP_RET_ALLOW);
    if (allow & GS_SANDBOX_CONNECT)
        answer_all(p, of_connect, COUNT(of_connect), SECCOMP_RET_ALLOW);
    if (allow & GS_SANDBOX_EXEC)
        answer_all(p, of_exec, COUNT(of_exec), SECCOMP_RET_ALLOW);
    answer_all(p, refused, COUNT(refused), ANSWER(EPERM));
    rule_sockets(p, allow);
    rule_clone(p);
    rule_ioctl(p);
    answer(p, ANSWER(ENOSYS));
}

int gs_sandbox_calls(unsigned allow, char *err, size_t errlen) {
    program p = {.n = 0};
    build(&p, allow);
    const struct sock_fprog f = {.len = p.n, .filter = p.code};
    const long rc = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &f);
    if (rc != 0)
        return gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "seccomp: %s",
                       rc > 0 ? "a thread has a filter of its own" : gs_errno_text(errno));
    return 0;
}

#else

int gs_sandbox_calls(unsigned allow, char *err, size_t errlen) {
    (void)allow;
    return gs_fail(err, errlen, GS_ERR_UNSUPPORTED, "no list of system calls for this machine");
}

#endif
