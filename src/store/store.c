/* The store thread: its queue, its transactions, and what a full disk does to them. */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/sys.h"
#include "store/store_impl.h"

#define MAX_QUEUED 4096
/* Jobs that share a transaction: a failed one is undone and run again one by one. */
#define GROUP_JOBS 128

typedef struct job_list {
    gs_store_job *first, **end;
    int n;
} job_list;

struct gs_store {
    gs_store_config cfg;
    pthread_t thread;
    pthread_mutex_t lock; /* of the lists and stop */
    pthread_cond_t more;
    job_list waiting, ended;
    bool stop;
    atomic_int state;
    atomic_bool full;
    char reason[GS_STORE_ERR_TEXT + 256]; /* written before state becomes FAILED */
};

/* ---- Lists --------------------------------------------------------------------------------- */

static void list_init(job_list *l) {
    *l = (job_list){.end = &l->first};
}

static void list_add(job_list *l, gs_store_job *job) {
    job->next = NULL;
    *l->end = job;
    l->end = &job->next;
    l->n++;
}

/* Of a list that holds one. */
static gs_store_job *list_take(job_list *l) {
    gs_store_job *job = l->first;
    l->first = job->next;
    l->n--;
    if (!l->first)
        l->end = &l->first;
    return job;
}

/* ---- Transactions -------------------------------------------------------------------------- */

static void fail_job(gs_store_job *job, int rc, const char *why) {
    job->rc = rc;
    if (!job->err[0])
        snprintf(job->err, sizeof(job->err), "%s", why);
}

/* A savepoint's worth. True: the transaction around it still stands. */
static bool run_inside(gs_db *db, gs_store_job *job) {
    job->err[0] = '\0';
    job->rc = gs_db_run(db, "SAVEPOINT job", "");
    if (job->rc != 0) {
        fail_job(job, job->rc, gs_db_error(db));
        return gs_db_in_transaction(db);
    }
    job->rc = job->run(db, job);
    if (job->rc != 0)
        fail_job(job, job->rc, gs_err_text(job->rc));
    if (!gs_db_in_transaction(db))
        return false;
    /* What can be neither kept nor undone alone takes the whole transaction with it. */
    if (job->rc != 0 && gs_db_run(db, "ROLLBACK TO job", "") != 0)
        return false;
    int rc = gs_db_run(db, "RELEASE job", "");
    if (rc != 0 && job->rc == 0)
        fail_job(job, rc, gs_db_error(db));
    return rc == 0 && gs_db_in_transaction(db);
}

/* All of them in one transaction. False: it was undone, whoever was at fault. */
static bool run_together(gs_db *db, gs_store_job *const *jobs, int n) {
    if (gs_db_run(db, "BEGIN IMMEDIATE", "") != 0)
        return false;
    bool stands = true;
    for (int i = 0; i < n && stands; i++)
        stands = run_inside(db, jobs[i]);
    if (stands && gs_db_run(db, "COMMIT", "") == 0)
        return true;
    if (gs_db_in_transaction(db))
        gs_db_run(db, "ROLLBACK", "");
    return false;
}

static void run_alone(gs_db *db, gs_store_job *job) {
    int rc = gs_db_run(db, "BEGIN IMMEDIATE", "");
    job->err[0] = '\0';
    if (rc != 0) {
        fail_job(job, rc, gs_db_error(db));
        return;
    }
    if (run_inside(db, job)) {
        rc = gs_db_run(db, "COMMIT", "");
        if (rc != 0)
            fail_job(job, rc, gs_db_error(db));
    } else if (job->rc == 0) {
        fail_job(job, GS_ERR_IO, "the transaction was undone");
    }
    if (gs_db_in_transaction(db))
        gs_db_run(db, "ROLLBACK", "");
}

static void run_group(gs_db *db, gs_store_job *const *jobs, int n) {
    if (run_together(db, jobs, n))
        return;
    for (int i = 0; i < n; i++)
        run_alone(db, jobs[i]);
}

/* Whether there is room is learned from what happens: nothing else knows quotas and reserves. */
static void judge_room(gs_store *s, gs_db *db, gs_store_job *const *jobs, int n, int before) {
    bool full = false;
    for (int i = 0; i < n; i++)
        full = full || jobs[i]->rc == GS_ERR_NO_SPACE;
    bool was = atomic_load(&s->full);
    if (full && !was)
        gs_warn("store", "no space left in %s; what has to be kept waits", s->cfg.folder);
    if (!full && was && gs_db_total_changes(db) == before)
        return; /* nothing was written that could tell */
    if (!full && was)
        gs_info("store", "there is space again");
    atomic_store(&s->full, full);
}

static void hand_back(gs_store *s, gs_store_job *const *jobs, int n) {
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++)
        list_add(&s->ended, jobs[i]);
    pthread_mutex_unlock(&s->lock);
    if (s->cfg.wake)
        s->cfg.wake(s->cfg.wake_arg);
}

/* ---- The thread ---------------------------------------------------------------------------- */

/* The next jobs of one kind, in order. 0: the store is being closed and nothing is left. */
static int take_group(gs_store *s, gs_store_job **jobs) {
    int n = 0;
    pthread_mutex_lock(&s->lock);
    while (!s->waiting.first && !s->stop)
        pthread_cond_wait(&s->more, &s->lock);
    while (n < GROUP_JOBS && s->waiting.first &&
           (n == 0 || s->waiting.first->kind == jobs[0]->kind))
        jobs[n++] = list_take(&s->waiting);
    pthread_mutex_unlock(&s->lock);
    return n;
}

static void run_files(gs_db *db, gs_store_job *job) {
    job->err[0] = '\0';
    job->rc = job->run(db, job);
    if (job->rc != 0)
        fail_job(job, job->rc, gs_err_text(job->rc));
}

static void *store_main(void *arg) {
    gs_store *s = arg;
    gs_store_job *jobs[GROUP_JOBS];
    gs_db *db = NULL;
    int n;
    pthread_setname_np(pthread_self(), "gs-store");
    int rc = gs_db_open(&s->cfg, &db, s->reason, sizeof(s->reason));
    atomic_store(&s->state, rc == 0 ? GS_STORE_READY : GS_STORE_FAILED);
    if (rc != 0)
        gs_warn("store", "files and batches are not available: %s", s->reason);
    if (s->cfg.wake)
        s->cfg.wake(s->cfg.wake_arg);
    while ((n = take_group(s, jobs)) > 0) {
        int before = db ? gs_db_total_changes(db) : 0;
        for (int i = 0; i < n && !db; i++)
            snprintf(jobs[i]->err, sizeof(jobs[i]->err), "%.150s", s->reason);
        for (int i = 0; i < n && !db; i++)
            jobs[i]->rc = GS_ERR_UNAVAILABLE;
        for (int i = 0; i < n && db && jobs[0]->kind == GS_STORE_FILES; i++)
            run_files(db, jobs[i]);
        if (db && jobs[0]->kind == GS_STORE_DATABASE)
            run_group(db, jobs, n);
        if (db)
            judge_room(s, db, jobs, n, before);
        hand_back(s, jobs, n);
    }
    gs_db_close(db);
    return NULL;
}

int gs_store_create(const gs_store_config *cfg, gs_store **out) {
    gs_store *s = gs_calloc(1, sizeof(*s));
    if (!s)
        return GS_ERR_NOMEM;
    s->cfg = *cfg;
    s->cfg.folder = gs_strdup(cfg->folder);
    if (s->cfg.max_queued == 0)
        s->cfg.max_queued = MAX_QUEUED;
    list_init(&s->waiting);
    list_init(&s->ended);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more, NULL);
    if (!s->cfg.folder || pthread_create(&s->thread, NULL, store_main, s) != 0) {
        pthread_cond_destroy(&s->more);
        pthread_mutex_destroy(&s->lock);
        gs_free((char *)(uintptr_t)s->cfg.folder);
        gs_free(s);
        return GS_ERR_NOMEM;
    }
    *out = s;
    return 0;
}

void gs_store_free(gs_store *s) {
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    gs_store_poll(s);
    pthread_cond_destroy(&s->more);
    pthread_mutex_destroy(&s->lock);
    gs_free((char *)(uintptr_t)s->cfg.folder);
    gs_free(s);
}

/* ---- Other threads ------------------------------------------------------------------------- */

int gs_store_submit(gs_store *s, gs_store_job *job) {
    int rc = 0;
    if (gs_store_get_state(s) == GS_STORE_FAILED)
        return GS_ERR_UNAVAILABLE;
    pthread_mutex_lock(&s->lock);
    if (s->stop)
        rc = GS_ERR_UNAVAILABLE;
    else if (s->waiting.n >= s->cfg.max_queued)
        rc = GS_ERR_OVERLOADED;
    else
        list_add(&s->waiting, job);
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

void gs_store_poll(gs_store *s) {
    pthread_mutex_lock(&s->lock);
    job_list ended = s->ended;
    list_init(&s->ended);
    pthread_mutex_unlock(&s->lock);
    for (gs_store_job *job = ended.first, *next; job; job = next) {
        next = job->next; /* done may free it */
        if (job->done)
            job->done(job);
    }
}

gs_store_state gs_store_get_state(const gs_store *s) {
    return (gs_store_state)atomic_load(&s->state);
}

const char *gs_store_reason(const gs_store *s) {
    return s->reason;
}

bool gs_store_is_full(const gs_store *s) {
    return atomic_load(&s->full);
}
