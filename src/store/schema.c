/* The versions of the database, oldest first. */
#include "store/store.h"

/*
 * Times (_s) are seconds since 1970 (UTC); 0: not yet, or never. They are only shown: what is due
 * when is counted in seconds that the server has run (_service_s), which no clock that is set can
 * move. owner is who a file or batch belongs
 * to, as identity.c words it; "" is nobody in particular.
 */
static const char files_and_batches[] =
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
    /* id is the number in "file-..."; the bytes are in files/ID beside the database. */
    "CREATE TABLE files ("
    "  seq INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  id TEXT NOT NULL UNIQUE,"
    "  owner TEXT NOT NULL,"
    "  purpose TEXT NOT NULL,"
    "  filename TEXT NOT NULL,"
    "  bytes INTEGER NOT NULL,"
    "  created_s INTEGER NOT NULL,"
    "  expires_s INTEGER NOT NULL,"
    "  expires_service_s INTEGER NOT NULL);"
    "CREATE INDEX files_by_owner ON files (owner, seq);"
    "CREATE TABLE batches ("
    "  seq INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  id TEXT NOT NULL UNIQUE,"
    "  owner TEXT NOT NULL,"
    "  key_name TEXT NOT NULL," /* the API key it came with; "" without */
    "  label TEXT NOT NULL,"    /* of the person, for people to read */
    "  endpoint TEXT NOT NULL,"
    "  input_file TEXT NOT NULL," /* ids, which may outlive the files */
    "  output_file TEXT NOT NULL DEFAULT '',"
    "  error_file TEXT NOT NULL DEFAULT '',"
    "  completion_window TEXT NOT NULL,"
    "  metadata TEXT NOT NULL,"           /* JSON object, or '' */
    "  warning TEXT NOT NULL DEFAULT ''," /* what was said of its deadline */
    "  errors TEXT NOT NULL DEFAULT '',"  /* JSON array of what validation found, or '' */
    "  status TEXT NOT NULL,"
    "  deadline_service_s INTEGER NOT NULL,"
    "  created_s INTEGER NOT NULL,"
    "  in_progress_s INTEGER NOT NULL DEFAULT 0,"
    "  expires_s INTEGER NOT NULL DEFAULT 0,"
    "  finalizing_s INTEGER NOT NULL DEFAULT 0,"
    "  completed_s INTEGER NOT NULL DEFAULT 0,"
    "  failed_s INTEGER NOT NULL DEFAULT 0,"
    "  expired_s INTEGER NOT NULL DEFAULT 0,"
    "  cancelling_s INTEGER NOT NULL DEFAULT 0,"
    "  cancelled_s INTEGER NOT NULL DEFAULT 0,"
    "  n_total INTEGER NOT NULL DEFAULT 0,"
    "  n_completed INTEGER NOT NULL DEFAULT 0,"
    "  n_failed INTEGER NOT NULL DEFAULT 0);"
    "CREATE INDEX batches_by_owner ON batches (owner, seq);"
    "CREATE INDEX batches_open ON batches (seq) WHERE status IN "
    "  ('validating', 'in_progress', 'finalizing', 'cancelling');"
    /* One line of the input file. state 0: to do; 1: done, result is its line of the output file;
     * 2: failed, result is its line of the error file. Gone once those files are written. */
    "CREATE TABLE lines ("
    "  batch INTEGER NOT NULL REFERENCES batches (seq) ON DELETE CASCADE,"
    "  n INTEGER NOT NULL,"
    "  state INTEGER NOT NULL DEFAULT 0,"
    "  at INTEGER NOT NULL,"
    "  bytes INTEGER NOT NULL,"
    "  custom_id TEXT NOT NULL,"
    "  result TEXT,"
    "  PRIMARY KEY (batch, n),"
    "  UNIQUE (batch, custom_id)) WITHOUT ROWID;";

/*
 * What each minute was (t_s: its start), and of each class in which anything happened. ttft and
 * itl are histograms as api/history_db.c packs them.
 */
static const char history[] =
    "CREATE TABLE history ("
    "  t_s INTEGER PRIMARY KEY,"
    "  ms INTEGER NOT NULL," /* how long it was: the first one after a start is shorter */
    "  busy_ms INTEGER NOT NULL,"
    "  background_ms INTEGER NOT NULL," /* of busy_ms */
    "  kv REAL NOT NULL,"
    "  energy_j REAL);" /* null: not to be read here */
    "CREATE TABLE history_classes ("
    "  t_s INTEGER NOT NULL REFERENCES history (t_s) ON DELETE CASCADE,"
    "  class TEXT NOT NULL,"
    "  requests INTEGER NOT NULL,"
    "  judged INTEGER NOT NULL,"
    "  missed INTEGER NOT NULL,"
    "  prompt_tokens INTEGER NOT NULL,"
    "  output_tokens INTEGER NOT NULL,"
    "  ttft BLOB NOT NULL,"
    "  itl BLOB NOT NULL,"
    "  PRIMARY KEY (t_s, class)) WITHOUT ROWID;";

const char *const gs_store_schema[] = {
    files_and_batches,
    history,
};
const int gs_store_schema_n = sizeof(gs_store_schema) / sizeof(gs_store_schema[0]);
