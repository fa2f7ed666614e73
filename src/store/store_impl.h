/* Private to store/: the database as the store thread opens and closes it. */
#ifndef GS_STORE_STORE_IMPL_H
#define GS_STORE_STORE_IMPL_H

#include "store/store.h"

/* Locks the folder against a second server, opens or makes the file, checks it when the last end
 * was unclean, brings it to the newest version. On failure err names folder or file. */
int gs_db_open(const gs_store_config *cfg, gs_db **out, char *err, size_t errlen);
void gs_db_close(gs_db *db); /* NULL is legal */
/* Some failures (a full disk) undo the whole transaction on their own. */
bool gs_db_in_transaction(const gs_db *db);
int gs_db_total_changes(const gs_db *db); /* rows, ever; wraps */

/* A file of this name: somebody restores, or was stopped while at it. The store does not open. */
#define GS_STORE_MARK "restore.unfinished"

/* The folder for this process alone, as long as *fd is open. GS_ERR_UNAVAILABLE: another has it. */
int gs_store_lock(const char *folder, int *fd, char *err, size_t errlen);
/* What failed with this errno: GS_ERR_NO_SPACE or GS_ERR_IO. */
int gs_store_io_code(int e);
/* What SQLite answered, of a database that is open: 0, or a code as gs_db_run's. */
int gs_db_code(sqlite3 *sql, int rc);
/* Its names are on the disk. A code as above. */
int gs_store_sync_folder(const char *folder);
/* Copies a database as it is at one moment into a new file of its own, on any thread that may use
 * from; on failure nothing is left. */
int gs_db_snapshot(sqlite3 *from, const char *path, char *err, size_t errlen);
/* The version of the schema of a database that is not open. GS_ERR_UNSUPPORTED: a newer one than
 * this program knows; GS_ERR_FORMAT: it is no such database. */
int gs_db_file_version(const char *path, int *version, char *err, size_t errlen);

#endif
