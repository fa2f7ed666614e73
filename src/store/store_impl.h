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

#endif
