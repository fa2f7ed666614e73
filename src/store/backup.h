/*
 * Everything that a household would miss, in one archive, and back again.
 *
 *     about.txt            form, program, schema and time
 *     files/ID             payload files: uploads, results of batches
 *     gamasot.db           the database: jobs, usage, history
 *     keys.json            API keys (hashes)
 *     gamasot.conf         the configuration file, if there is one
 *     state/NAME           calibration, this machine's step times, the tuner's findings
 *
 * A backup may be taken while a server runs: the database is copied as it was at one moment
 * (sqlite3_backup), and a payload file that is deleted meanwhile takes its row of the copy with it.
 *
 * Restoring needs the folder for itself. Everything is unpacked and checked beside what is there
 * before anything is moved; what was there is kept in a folder of its own. What the archive lacks
 * stays as it is. A power cut in the middle leaves a mark, with which the store does not open until
 * restore was run again.
 *
 * Restore also takes a database alone, such as the copy that is made before the schema is brought
 * to a newer version (gamasot.db.version-N).
 *
 * Blocking. Any thread; one at a time.
 */
#ifndef GS_STORE_BACKUP_H
#define GS_STORE_BACKUP_H

#include <stddef.h>
#include <stdint.h>

#define GS_BACKUP_MAX_PATH 4096

typedef struct gs_backup_places {
    const char *folder; /* of the database and its files; exists */
    const char *state;  /* of calibration and tuning; exists, often the same */
    const char *keys;   /* the file */
    const char *config; /* the file; "": none */
    /* Says whether a file of keys can be read, as GS_OK, or a code and why. */
    int (*check_keys)(const char *path, char *err, size_t errlen);
} gs_backup_places;

typedef struct gs_backup_info {
    char version[32];                /* of the program that made it; "": a database alone */
    int schema;                      /* of the database; 0: there is none */
    int64_t made_s;                  /* since 1970, UTC */
    int n_files;                     /* payload files */
    int64_t bytes;                   /* of the archive, or of what was unpacked */
    char before[GS_BACKUP_MAX_PATH]; /* restore: where what was there is */
} gs_backup_info;

/* A new file with mode 0600; it has its name only when it is whole. GS_ERR_EXISTS: it is there. */
int gs_backup_write(const gs_backup_places *p, const char *file, gs_backup_info *out, char *err,
                    size_t errlen);
/* GS_ERR_UNAVAILABLE: a server runs. GS_ERR_UNSUPPORTED: made by a newer program. GS_ERR_FORMAT: no
 * backup, or damaged. In these cases nothing has changed. */
int gs_backup_restore(const gs_backup_places *p, const char *file, gs_backup_info *out, char *err,
                      size_t errlen);

#endif
