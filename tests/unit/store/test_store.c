/* The store with a real file: transactions, versions, a full disk, ends that were none. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "../folder.h"
#include "base/err.h"
#include "base/sys.h"
#include "store/store_impl.h"
#include "faults/fault.h"

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    return new_folder(folder);
}

static int remove_folder(void **state) {
    (void)state;
    gs_fault_clear();
    return drop_folder(folder);
}

static gs_store *open_store(int64_t max_bytes) {
    gs_store *s = NULL;
    gs_store_config cfg = {.folder = folder, .max_bytes = max_bytes};
    assert_int_equal(gs_store_create(&cfg, &s), 0);
    return s;
}

typedef struct put {
    gs_store_job job;
    const char *name;
    const char *value;
    int fail; /* after the change */
    int64_t got;
    int n_runs, n_done;
} put;

static int run_put(gs_db *db, gs_store_job *job) {
    put *p = (put *)job;
    p->n_runs++;
    int rc = gs_db_run(db, "INSERT INTO meta VALUES (?1, ?2)", "tt", p->name, p->value);
    return rc != 0 ? rc : p->fail;
}

static int run_count(gs_db *db, gs_store_job *job) {
    put *p = (put *)job;
    p->n_runs++;
    return gs_db_int(db, &p->got, -1, "SELECT count(*) FROM meta", "");
}

static void on_done(gs_store_job *job) {
    ((put *)job)->n_done++;
}

static void submit(gs_store *s, put *p) {
    p->job.run = p->name ? run_put : run_count;
    p->job.done = on_done;
    assert_int_equal(gs_store_submit(s, &p->job), 0);
}

static void wait_for(gs_store *s, const put *p) {
    for (int i = 0; i < 5000 && p->n_done == 0; i++) {
        gs_store_poll(s);
        poll(NULL, 0, 2);
    }
    assert_int_equal(p->n_done, 1);
}

static int64_t count(gs_store *s) {
    put p = {0};
    submit(s, &p);
    wait_for(s, &p);
    assert_int_equal(p.job.rc, 0);
    return p.got;
}

static void what_was_kept_is_there_after_a_restart(void **state) {
    (void)state;
    gs_store *s = open_store(0);
    put a = {.name = "a", .value = "1"};
    submit(s, &a);
    wait_for(s, &a);
    assert_int_equal(a.job.rc, 0);
    gs_store_free(s);
    s = open_store(0);
    assert_int_equal(count(s), 1);
    gs_store_free(s);
}

static void one_job_that_fails_undoes_itself_alone(void **state) {
    (void)state;
    gs_store *s = open_store(0);
    put a = {.name = "a", .value = "1"}, b = {.name = "b", .value = "2", .fail = GS_ERR_INVALID},
        again = {.name = "a", .value = "3"}, c = {.name = "c", .value = "4"};
    put *all[] = {&a, &b, &again, &c};
    for (int i = 0; i < 4; i++)
        submit(s, all[i]);
    for (int i = 0; i < 4; i++)
        wait_for(s, all[i]);
    assert_int_equal(a.job.rc, 0);
    assert_int_equal(b.job.rc, GS_ERR_INVALID);
    assert_string_equal(b.job.err, "invalid value");
    assert_int_equal(again.job.rc, GS_ERR_EXISTS);
    assert_int_equal(c.job.rc, 0);
    assert_int_equal(count(s), 2);
    gs_store_free(s);
}

static void what_is_queued_is_done_before_the_end(void **state) {
    (void)state;
    gs_store *s = open_store(0);
    put p[300] = {0};
    char names[300][8];
    for (int i = 0; i < 300; i++) {
        snprintf(names[i], sizeof(names[i]), "n%d", i);
        p[i].name = names[i];
        p[i].value = "";
        submit(s, &p[i]);
    }
    gs_store_free(s);
    for (int i = 0; i < 300; i++) {
        assert_int_equal(p[i].n_done, 1);
        assert_int_equal(p[i].job.rc, 0);
    }
    s = open_store(0);
    assert_int_equal(count(s), 300);
    gs_store_free(s);
}

static void a_queue_that_is_full_says_so(void **state) {
    (void)state;
    gs_store *s = NULL;
    gs_store_config cfg = {.folder = folder, .max_queued = 1};
    assert_int_equal(gs_store_create(&cfg, &s), 0);
    put p[2000] = {0};
    int refused = 0, n = 0;
    for (int i = 0; i < 2000; i++) {
        p[i].job.run = run_count;
        p[i].job.done = on_done;
        int rc = gs_store_submit(s, &p[i].job);
        assert_true(rc == 0 || rc == GS_ERR_OVERLOADED);
        refused += rc != 0;
        n += rc == 0;
    }
    assert_true(refused > 0);
    gs_store_free(s);
    int done = 0;
    for (int i = 0; i < 2000; i++)
        done += p[i].n_done;
    assert_int_equal(done, n);
}

/* SQLite's own limit fails in the same places as a disk: the whole transaction is undone. */
static void a_full_disk_is_seen_and_heals(void **state) {
    (void)state;
    static char big[300000];
    memset(big, 'x', sizeof(big) - 1);
    gs_store *s = open_store(256 * 1024);
    put small = {.name = "small", .value = "1"}, large = {.name = "large", .value = big},
        after = {.name = "after", .value = "2"}, later = {.name = "later", .value = "3"};
    submit(s, &small);
    submit(s, &large);
    submit(s, &after);
    wait_for(s, &small);
    wait_for(s, &large);
    wait_for(s, &after);
    assert_int_equal(small.job.rc, 0);
    assert_int_equal(large.job.rc, GS_ERR_NO_SPACE);
    assert_int_equal(after.job.rc, 0);
    assert_int_equal(count(s), 2);
    submit(s, &later);
    wait_for(s, &later);
    assert_int_equal(later.job.rc, 0);
    assert_false(gs_store_is_full(s));
    put full = {.name = "full", .value = big};
    submit(s, &full);
    wait_for(s, &full);
    assert_int_equal(full.job.rc, GS_ERR_NO_SPACE);
    assert_true(gs_store_is_full(s));
    assert_int_equal(count(s), 3); /* reading says nothing about room */
    assert_true(gs_store_is_full(s));
    put healed = {.name = "healed", .value = "4"};
    submit(s, &healed);
    wait_for(s, &healed);
    assert_false(gs_store_is_full(s));
    gs_store_free(s);
}

static void nobody_else_reads_the_files(void **state) {
    (void)state;
    gs_store *s = open_store(0);
    assert_int_equal(count(s), 0);
    const char *const names[] = {"gamasot.db", "gamasot.db-wal", "gamasot.lock"};
    for (int i = 0; i < 3; i++) {
        char path[128];
        struct stat st;
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
    gs_store_free(s);
}

static void wait_state(gs_store *s, gs_store_state want) {
    for (int i = 0; i < 5000 && gs_store_get_state(s) == GS_STORE_OPENING; i++)
        poll(NULL, 0, 2);
    assert_int_equal(gs_store_get_state(s), want);
}

static void check_unavailable(const char *reason) {
    gs_store *s = NULL;
    gs_store_config cfg = {.folder = folder};
    put p = {.job = {.run = run_count, .done = on_done}};
    assert_int_equal(gs_store_create(&cfg, &s), 0);
    int rc = gs_store_submit(s, &p.job);
    wait_state(s, GS_STORE_FAILED);
    assert_non_null(strstr(gs_store_reason(s), reason));
    if (rc == 0) {
        wait_for(s, &p);
        rc = p.job.rc;
    }
    assert_int_equal(rc, GS_ERR_UNAVAILABLE);
    assert_int_equal(p.n_runs, 0);
    assert_int_equal(gs_store_submit(s, &p.job), GS_ERR_UNAVAILABLE);
    gs_store_free(s);
}

static void two_servers_do_not_share_a_folder(void **state) {
    (void)state;
    gs_store *s = open_store(0);
    assert_int_equal(count(s), 0);
    check_unavailable("another gamasot keeps its state in");
    gs_store_free(s);
}

static void write_file(const char *name, const char *text, size_t n) {
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void a_folder_that_is_none_fails(void **state) {
    (void)state;
    char saved[64];
    strcpy(saved, folder);
    strcat(folder, "/missing");
    check_unavailable("gamasot.lock: No such file or directory");
    strcpy(folder, saved);
}

static void a_file_that_is_no_database_is_left_alone(void **state) {
    (void)state;
    char text[8192];
    memset(text, 'x', sizeof(text));
    write_file("gamasot.db", text, sizeof(text));
    check_unavailable("not a database");
    char path[128];
    struct stat st;
    snprintf(path, sizeof(path), "%s/gamasot.db", folder);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, sizeof(text));
}

static void sql(const char *text) {
    char path[128];
    sqlite3 *db;
    snprintf(path, sizeof(path), "%s/gamasot.db", folder);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void a_newer_database_is_left_alone(void **state) {
    (void)state;
    gs_store *s = open_store(0);
    assert_int_equal(count(s), 0);
    gs_store_free(s);
    sql("PRAGMA user_version = 1000");
    check_unavailable("written by a newer gamasot (version 1000");
}

/* Every version that was ever released must lead to the newest one. */
static void old_versions_are_brought_up(void **state) {
    (void)state;
    for (int from = 0; from < gs_store_schema_n; from++) {
        sql("PRAGMA journal_mode = WAL");
        for (int i = 0; i < from; i++)
            sql(gs_store_schema[i]);
        char set[48];
        snprintf(set, sizeof(set), "PRAGMA user_version = %d", from);
        sql(set);
        gs_store *s = open_store(0);
        assert_int_equal(count(s), 0);
        gs_store_free(s);
        remove_folder(NULL);
        make_folder(NULL);
    }
}

/* A child is killed between any two commits; the parent finds a prefix of what it wrote. */
static void a_killed_process_leaves_whole_transactions(void **state) {
    (void)state;
    int64_t last = 0;
    for (int round = 0; round < 10; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            gs_store *s = NULL;
            gs_store_config cfg = {.folder = folder};
            if (gs_store_create(&cfg, &s) != 0)
                _exit(1);
            for (int i = 0;; i++) {
                put p = {.value = ""};
                char name[32];
                snprintf(name, sizeof(name), "r%d-%d", round, i);
                p.name = name;
                p.job.run = run_put;
                p.job.done = on_done;
                if (gs_store_submit(s, &p.job) != 0)
                    _exit(2);
                while (p.n_done == 0)
                    gs_store_poll(s);
                if (p.job.rc != 0)
                    _exit(3);
            }
        }
        poll(NULL, 0, 60 + 7 * round);
        kill(pid, SIGKILL);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        gs_store *s = open_store(0);
        int64_t n = count(s);
        assert_true(n >= last);
        last = n;
        gs_store_free(s);
    }
    assert_true(last > 0);
}

static void a_published_file_is_whole_or_absent(void **state) {
    (void)state;
    char tmp[128], path[128];
    snprintf(tmp, sizeof(tmp), "%s/f.tmp", folder);
    snprintf(path, sizeof(path), "%s/f", folder);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(gs_store_write(fd, "abc", 3), 0);
    assert_int_equal(gs_store_publish(fd, tmp, path), 0);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_not_equal(access(tmp, F_OK), 0);
    fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL, 0600);
    gs_fault_set(GS_FAULT_WRITE, 1, ENOSPC);
    assert_int_equal(gs_store_write(fd, "abc", 3), GS_ERR_NO_SPACE);
    gs_fault_clear();
    assert_int_equal(gs_store_publish(fd, tmp, "/nowhere/f"), GS_ERR_IO);
    assert_int_not_equal(access(tmp, F_OK), 0);
}

/* ---- Each call fails once ----------------------------------------------------------------------
 */

/* A database of that version (0: none), left behind by a process that was killed. */
static void leave_database(int version, bool unclean) {
    char set[48];
    for (int i = 0; i < version; i++)
        sql(gs_store_schema[i]);
    snprintf(set, sizeof(set), "PRAGMA user_version = %d", version);
    if (version > 0)
        sql(set);
    if (unclean)
        write_file("gamasot.db-wal", "no journal of any use", 21);
}

/* It opens, or says why not; and then it opens with all that was there. */
static void each_call_of_opening_fails(void **state) {
    (void)state;
    static const gs_fault_kind kinds[] = {GS_FAULT_ALLOC, GS_FAULT_SQLITE, GS_FAULT_FILE};
    static const struct {
        int version;
        bool unclean;
    } before[] = {{0, false}, {1, false}, {2, false}, {2, true}};
    char err[256];
    const gs_store_config cfg = {.folder = folder, .max_bytes = 1 << 20, .cache_bytes = 1 << 20};
    for (size_t b = 0; b < sizeof(before) / sizeof(before[0]); b++) {
        for (int k = 0; k < 3; k++) {
            uint64_t n = 1;
            for (uint64_t i = 0; i <= n; i++) {
                gs_db *db = NULL;
                leave_database(before[b].version, before[b].unclean);
                err[0] = '\0';
                gs_fault_set(kinds[k], i ? i : UINT64_MAX, 0);
                int rc = gs_db_open(&cfg, &db, err, sizeof(err));
                n = i ? n : gs_fault_calls(kinds[k]);
                gs_fault_clear();
                assert_int_equal(rc == 0, i == 0);
                assert_int_equal(err[0] != '\0', i != 0);
                if (rc == 0)
                    gs_db_close(db);
                assert_int_equal(gs_db_open(&cfg, &db, err, sizeof(err)), 0);
                int64_t version = 0;
                assert_int_equal(gs_db_int(db, &version, 0, "PRAGMA user_version", ""), 0);
                assert_int_equal(version, gs_store_schema_n);
                gs_db_close(db);
                drop_folder(folder);
                assert_int_equal(mkdir(folder, 0700), 0);
            }
        }
    }
}

/* What a job was told is what is kept, whichever call of SQLite failed meanwhile. */
static void each_call_of_jobs_fails(void **state) {
    (void)state;
    gs_store *s = open_store(0);
    int64_t kept = count(s);
    for (uint64_t i = 1; i <= 24; i++) {
        char names[3][24];
        put p[3] = {0};
        gs_fault_set(GS_FAULT_SQLITE, i, i % 3 == 0 ? ENOSPC : i % 3 == 1 ? ENOMEM : EIO);
        for (int k = 0; k < 3; k++) {
            snprintf(names[k], sizeof(names[k]), "n%d-%d", (int)i, k);
            p[k].name = names[k];
            p[k].value = "v";
            p[k].fail = k == 1 ? GS_ERR_INVALID : 0;
            submit(s, &p[k]);
        }
        for (int k = 0; k < 3; k++)
            wait_for(s, &p[k]);
        gs_fault_clear();
        for (int k = 0; k < 3; k++) {
            kept += p[k].job.rc == 0;
            assert_int_equal(p[k].job.rc != 0, p[k].job.err[0] != '\0');
        }
        assert_int_not_equal(p[1].job.rc, 0);
        assert_int_equal(count(s), kept);
    }
    gs_store_free(s);
}

/* A job that undoes the transaction of all, as SQLite does on some errors by itself. While it is
 * alone, that call of SQLite's fails. */
typedef struct breaker {
    put put;
    uint64_t call; /* of those after its first run; 0: none */
    bool once;     /* the second time it behaves */
} breaker;

static int run_breaker(gs_db *db, gs_store_job *job) {
    breaker *b = (breaker *)job;
    if (b->once && b->put.n_runs > 0)
        return run_put(db, job);
    b->put.n_runs++;
    const int rc = gs_db_run(db, "ROLLBACK", "");
    if (b->call > 0)
        gs_fault_set(GS_FAULT_SQLITE, b->call, EIO);
    return rc;
}

static void a_transaction_that_is_undone(void **state) {
    (void)state;
    gs_store *s = open_store(0);
    put before = {.name = "before", .value = ""}, after = {.name = "after", .value = ""};
    breaker b = {.put = {.job = {.run = run_breaker, .done = on_done}}};
    submit(s, &before);
    assert_int_equal(gs_store_submit(s, &b.put.job), 0);
    submit(s, &after);
    wait_for(s, &before);
    wait_for(s, &b.put);
    wait_for(s, &after);
    assert_int_equal(before.job.rc, 0);
    assert_int_equal(after.job.rc, 0);
    assert_int_equal(b.put.job.rc, GS_ERR_IO);
    assert_string_equal(b.put.job.err, "the transaction was undone");
    assert_int_equal(count(s), 2);
    /* Alone, each of: begin, savepoint, the job's own, release, commit. */
    for (uint64_t call = 1; call <= 6; call++) {
        char name[24];
        breaker c = {.put = {.job = {.run = run_breaker, .done = on_done}, .name = name},
                     .call = call,
                     .once = true};
        snprintf(name, sizeof(name), "c%d", (int)call);
        c.put.value = "";
        assert_int_equal(gs_store_submit(s, &c.put.job), 0);
        wait_for(s, &c.put);
        gs_fault_clear();
        assert_int_equal(c.put.job.rc, call < 6 ? GS_ERR_IO : 0);
        assert_int_equal(c.put.job.err[0] != '\0', call < 6);
        assert_int_equal(c.put.n_runs, call > 2 ? 2 : 1);
        assert_int_equal(count(s), call < 6 ? 2 : 3);
    }
    gs_store_free(s);
}

static uv_sem_t may_go;

static int run_wait(gs_db *db, gs_store_job *job) {
    (void)db, (void)job;
    uv_sem_wait(&may_go);
    return 0;
}

static int run_say(gs_db *db, gs_store_job *job) {
    (void)db;
    return gs_fail(job->err, sizeof(job->err), GS_ERR_NO_SPACE, "no room for %s",
                   ((put *)job)->name);
}

static int run_order(gs_db *db, gs_store_job *job) {
    static int64_t n;
    (void)db;
    ((put *)job)->got = n++;
    return 0;
}

/* Jobs of both kinds that wait together are run one after the other, as they came. */
static void kinds_keep_their_order(void **state) {
    (void)state;
    gs_store *s = open_store(0);
    assert_int_equal(uv_sem_init(&may_go, 0), 0);
    put hold = {.job = {.run = run_wait, .done = on_done}};
    put p[6] = {0};
    assert_int_equal(gs_store_submit(s, &hold.job), 0);
    for (int i = 0; i < 6; i++) {
        p[i].job = (gs_store_job){.kind = i / 2 % 2 ? GS_STORE_FILES : GS_STORE_DATABASE,
                                  .run = run_order,
                                  .done = on_done};
        assert_int_equal(gs_store_submit(s, &p[i].job), 0);
    }
    uv_sem_post(&may_go);
    for (int i = 0; i < 6; i++) {
        wait_for(s, &p[i]);
        assert_int_equal(p[i].got - p[0].got, i);
    }
    gs_store_free(s);
    uv_sem_destroy(&may_go);
}

/* What a job says of itself is what is heard; full it stays. */
static void jobs_say_why(void **state) {
    (void)state;
    gs_store *s = open_store(0);
    for (int i = 0; i < 4; i++) {
        put p = {.job = {.kind = i % 2 ? GS_STORE_FILES : GS_STORE_DATABASE,
                         .run = run_say,
                         .done = on_done},
                 .name = "all"};
        assert_int_equal(gs_store_submit(s, &p.job), 0);
        wait_for(s, &p);
        assert_int_equal(p.job.rc, GS_ERR_NO_SPACE);
        assert_string_equal(p.job.err, "no room for all");
        assert_true(gs_store_is_full(s));
    }
    gs_store_free(s);
}

typedef struct again {
    put put;
    gs_store *s;
    int rc;
} again;

static void submit_again(gs_store_job *job) {
    again *a = (again *)job;
    a->put.n_done++;
    a->rc = gs_store_submit(a->s, job);
}

/* A job whose end asks for the next one finds no store any more. */
static void the_end_takes_no_more_jobs(void **state) {
    (void)state;
    gs_store *s = open_store(0);
    again a = {.put.job = {.kind = GS_STORE_FILES, .run = run_order, .done = submit_again}, .s = s};
    assert_int_equal(gs_store_submit(s, &a.put.job), 0);
    gs_store_free(s);
    assert_int_equal(a.put.n_done, 1);
    assert_int_equal(a.rc, GS_ERR_UNAVAILABLE);
}

static int run_files_job(gs_db *db, gs_store_job *job) {
    (void)db;
    return ((put *)job)->fail;
}

static void wake(void *arg) {
    *(volatile int *)arg = 1;
}

static void jobs_of_files_have_no_transaction(void **state) {
    (void)state;
    int woken = 0;
    gs_store *s = NULL;
    const gs_store_config cfg = {.folder = folder, .wake = wake, .wake_arg = &woken};
    assert_int_equal(gs_store_create(&cfg, &s), 0);
    put good = {.job = {.kind = GS_STORE_FILES, .run = run_files_job, .done = on_done}};
    put bad = {.job = {.kind = GS_STORE_FILES, .run = run_files_job, .done = on_done},
               .fail = GS_ERR_NO_SPACE};
    put silent = {.job = {.kind = GS_STORE_FILES, .run = run_files_job}};
    assert_int_equal(gs_store_submit(s, &silent.job), 0);
    assert_int_equal(gs_store_submit(s, &good.job), 0);
    assert_int_equal(gs_store_submit(s, &bad.job), 0);
    wait_for(s, &good);
    wait_for(s, &bad);
    assert_int_equal(good.job.rc, 0);
    assert_int_equal(bad.job.rc, GS_ERR_NO_SPACE);
    assert_string_equal(bad.job.err, gs_err_text(GS_ERR_NO_SPACE));
    assert_true(gs_store_is_full(s));
    gs_store_free(s);
    assert_int_equal(woken, 1);
    assert_int_equal(silent.n_done, 0);
}

static void stores_that_cannot_be_made(void **state) {
    (void)state;
    static const struct {
        gs_fault_kind kind;
        uint64_t nth;
    } faults[] = {{GS_FAULT_ALLOC, 1}, {GS_FAULT_ALLOC, 2}, {GS_FAULT_THREAD, 1}};
    const gs_store_config cfg = {.folder = folder};
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        gs_store *s = NULL;
        gs_fault_set(faults[i].kind, faults[i].nth, 0);
        assert_int_equal(gs_store_create(&cfg, &s), GS_ERR_NOMEM);
        gs_fault_clear();
    }
    gs_store_free(NULL);
    gs_db_close(NULL);
}

#define T(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(what_was_kept_is_there_after_a_restart),
        T(one_job_that_fails_undoes_itself_alone),
        T(what_is_queued_is_done_before_the_end),
        T(a_queue_that_is_full_says_so),
        T(a_full_disk_is_seen_and_heals),
        T(nobody_else_reads_the_files),
        T(two_servers_do_not_share_a_folder),
        T(a_folder_that_is_none_fails),
        T(a_file_that_is_no_database_is_left_alone),
        T(a_newer_database_is_left_alone),
        T(old_versions_are_brought_up),
        T(a_killed_process_leaves_whole_transactions),
        T(a_published_file_is_whole_or_absent),
        T(each_call_of_opening_fails),
        T(each_call_of_jobs_fails),
        T(jobs_of_files_have_no_transaction),
        T(stores_that_cannot_be_made),
        T(a_transaction_that_is_undone),
        T(kinds_keep_their_order),
        T(jobs_say_why),
        T(the_end_takes_no_more_jobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
