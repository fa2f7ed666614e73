/* Private to store/: what an archive holds, for backup.c and restore.c. */
#ifndef GS_STORE_BACKUP_IMPL_H
#define GS_STORE_BACKUP_IMPL_H

#include "store/backup.h"
#include "store/store_impl.h"

#define GS_BACKUP_FORM  1 /* of the archive; another number: this program can't read it */
#define GS_BACKUP_ABOUT "gamasot backup form %d\nprogram %31s\nschema %d\nmade %lld\n"
#define GS_BACKUP_PATH  (GS_BACKUP_MAX_PATH + 160)

/* Where the file of an archive lives; false: such a name is none of an archive's, or has no place
 * here (no configuration file). */
bool gs_backup_path(const gs_backup_places *p, const char *name, char *out, size_t n);
/* Whether a file's name in the state folder is worth keeping: "device.json", "calibration-...". */
bool gs_backup_is_state(const char *name);
/* "file-" and hexadecimal digits: what a payload file may be called. */
bool gs_backup_is_file_id(const char *id);
/* The same of what a database says, NULL included: GS_ERR_FORMAT, and what it is. */
int gs_backup_check_id(const char *id, char *err, size_t errlen);

#endif
