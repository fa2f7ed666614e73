/*
 * What has to survive the process: one SQLite file, opened on one thread of its own.
 *
 *     event loop                                  store thread
 *     gs_store_submit(job) ── bounded queue ────► job->run(db, job)      one transaction for all
 *     gs_store_poll()  ◄── wake(wake_arg) ─────── jobs that wait, each in a savepoint of its own
 *        └─► job->done(job)
 *
 * Neither the event loop nor the engine ever waits for a disk: they hand over work and hear of its
 * end. Jobs run in the order in which they came. done is called after the transaction is on the
 * disk (or has failed), never before.
 *
 * The file is gamasot.db in the state folder, in WAL mode with synchronous=FULL: what somebody was
 * told is kept stays kept when the power fails. That costs one fsync for each commit, which no
 * request waits for but those that ask for it, and all jobs that have queued up meanwhile share
 * the next one. NORMAL would be as safe against a killed process, not against a cut cable.
 *
 * Opening, and after an unclean end the integrity check, happen on the store thread as well: a
 * store is OPENING at first, and jobs wait. When it can't be opened every job ends with
 * GS_ERR_UNAVAILABLE, and gs_store_reason says why; the server goes on without it.
 *
 * A full disk is a state, not an end: jobs fail with GS_ERR_NO_SPACE and gs_store_is_full is true
 * until one that writes succeeds again.
 */
#ifndef GS_STORE_STORE_H
#define GS_STORE_STORE_H

#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gs_store gs_store;
typedef struct gs_db gs_db; /* the open database; the store thread's */
typedef struct gs_store_job gs_store_job;

#define GS_STORE_ERR_TEXT 160

typedef enum gs_store_kind {
    GS_STORE_DATABASE, /* inside the transaction */
    GS_STORE_FILES     /* works on files alone: outside of it, db is not to be changed */
} gs_store_kind;

/*
 * A piece of work, embedded in what it works on. The caller's until submit; the store's until
 * done; then the caller's again.
 *
 * run: store thread. GS_OK keeps what it changed; a code undoes it, and err says more. When
 * another job of the same transaction breaks it (full disk), run is called once more, alone: it
 * must not count on being called once.
 * done: the thread that calls gs_store_poll; NULL: nobody cares.
 */
struct gs_store_job {
    gs_store_kind kind;
    int (*run)(gs_db *db, gs_store_job *job);
    void (*done)(gs_store_job *job);
    int rc; /* answer */
    char err[GS_STORE_ERR_TEXT];
    gs_store_job *next; /* the store's */
};

typedef enum gs_store_state { GS_STORE_OPENING, GS_STORE_READY, GS_STORE_FAILED } gs_store_state;

typedef struct gs_store_config {
    const char *folder;      /* exists already; files in it get mode 0600 */
    int max_queued;          /* jobs; beyond: GS_ERR_OVERLOADED. 0: 4096 */
    int64_t max_bytes;       /* of the database; beyond it is as a full disk. 0: no limit */
    int64_t cache_bytes;     /* pages kept in memory. 0: SQLite's own idea */
    void (*wake)(void *arg); /* store thread: poll when you can. NULL: none */
    void *wake_arg;
} gs_store_config;

/* Starts the thread. GS_ERR_NOMEM; what is wrong with the folder shows in the state. */
int gs_store_create(const gs_store_config *cfg, gs_store **out);
/* Runs what is queued, closes the database, calls the last done's, frees. Waits for the disk. */
void gs_store_free(gs_store *s);
/* GS_OK; GS_ERR_OVERLOADED: the queue is full; GS_ERR_UNAVAILABLE: the store has FAILED. Then the
 * job is the caller's still, and done is not called. Any thread. */
int gs_store_submit(gs_store *s, gs_store_job *job);
void gs_store_poll(gs_store *s);                      /* calls done of jobs that have ended */
gs_store_state gs_store_get_state(const gs_store *s); /* any thread; wake is called on change */
const char *gs_store_reason(const gs_store *s);       /* after FAILED */
bool gs_store_is_full(const gs_store *s);             /* any thread */
uint64_t gs_store_memory(void); /* that SQLite holds in this process; any thread */

/* ---- For run: the store thread ----------------------------------------------------------------
 *
 * SQL texts must be string literals (or live as long): statements are prepared once and found by
 * their address. fmt has a letter for each parameter of the statement:
 *     i int64_t    d double    t const char * (NULL: null)    b const void *, size_t
 * All return GS_OK (0), or a code: GS_ERR_NO_SPACE (disk or limit), GS_ERR_EXISTS (a constraint),
 * GS_ERR_NOMEM, GS_ERR_FORMAT (the file is damaged), GS_ERR_UNAVAILABLE (locked by another
 * program), GS_ERR_IO; gs_db_error says more.
 */
/* Runs a statement that gives no rows. */
int gs_db_run(gs_db *db, const char *sql, const char *fmt, ...);
/* The statement, ready for gs_db_step and sqlite3_column_*; the next use of the same text resets
 * it. Texts and blobs given here must live until then. */
int gs_db_query(gs_db *db, sqlite3_stmt **out, const char *sql, const char *fmt, ...);
/* 1: a row is there; 0: no more, and the statement is free again; else a code. */
int gs_db_step(gs_db *db, sqlite3_stmt *stmt);
void gs_db_reset(sqlite3_stmt *stmt); /* of a query that is not read to its end */
/* The first column of the first row, or none without a row. */
int gs_db_int(gs_db *db, int64_t *out, int64_t none, const char *sql, const char *fmt, ...);
int gs_db_changes(gs_db *db);                           /* rows that the last gs_db_run changed */
const char *gs_db_text(sqlite3_stmt *stmt, int column); /* "" for null; valid until the next step */
const char *gs_db_error(gs_db *db);
const char *gs_db_folder(const gs_db *db);
int64_t gs_db_bytes(gs_db *db); /* pages in use, so that what was deleted does not count */

/* ---- Files beside the database; any thread that may wait for a disk ---------------------------
 */

/* Closes fd after its bytes are on the disk and gives the file its name; the folder is synced too.
 * On failure tmp is removed. GS_ERR_NO_SPACE, GS_ERR_IO. Takes fd. */
int gs_store_publish(int fd, const char *tmp, const char *path);
/* All n bytes, or GS_ERR_NO_SPACE, GS_ERR_IO. */
int gs_store_write(int fd, const void *data, size_t n);

/* schema.c: how the database came to be what it is. Row i takes it from version i to i + 1
 * (PRAGMA user_version), in a transaction of its own. Rows that have been released never change:
 * add one. */
extern const char *const gs_store_schema[];
extern const int gs_store_schema_n;

#endif
