/*
 * The option table: the only place where an option is described. From it come the struct
 * gs_config, the file and flag and environment readers, --help, docs/configuration.md and the
 * JSON of GET /v1/config. To add an option, add a row.
 *
 *   X(section, name, KIND, alias, default, min, max, choices, flags, help)
 *
 * KIND: BOOL INT FLOAT STRING ENUM SIZE_MB DURATION_MS PORT PATH LIST. alias is a short flag
 * ("port" gives --port) or NULL. The default is text and read by the same code as a file's value.
 * min and max bound numbers, and the number of items of lists (0, 0: the general bound). choices
 * is "a|b|c" for ENUM, whose value is the index. Flags: GS_CONFIG_* of config.h.
 */
#ifndef GS_CONFIG_OPTIONS_H
#define GS_CONFIG_OPTIONS_H

/*  name, what the section is about */
#define GS_CONFIG_SECTIONS(X)                                                                      \
    X(server, "Network side: addresses, keys and limits of connections.")                          \
    X(model, "The model that is served.")                                                          \
    X(models, "Where further models come from and where they are kept, see models.md.")            \
    X(engine, "Compute threads and the size of one step.")                                         \
    X(kv, "Memory for the attention cache and the prefix cache.")                                  \
    X(memory, "What models may take together.")                                                    \
    X(prefix, "System prompts that everybody shares.")                                             \
    X(sched, "The scheduler, see scheduling.md.")                                                  \
    X(class_voice, "What the scheduler expects of spoken requests.")                               \
    X(class_chat, "The same for answers that somebody reads along.")                               \
    X(class_completion, "The same for text or code while somebody types.")                         \
    X(class_document, "The same for long prompts.")                                                \
    X(class_utility, "The same for titles, tags and other small things.")                          \
    X(class_background, "The same for indexing, embeddings and batches.")                          \
    X(background, "When work that can wait may run, and how much of it.")                          \
    X(hours, "When a class is served as such; at other times its requests are background.")        \
    X(store, "Files and batch jobs, kept in a database of its own.")                               \
    X(metrics, "What `/metrics` tells, see metrics.md.")                                           \
    X(tune, "Tuning while the server runs, see tuning.md.")                                        \
    X(record, "A trace of who asks for how much and when, without any text, see tuning.md.")       \
    X(log, "Log lines on standard error. Prompts and answers are never logged.")                   \
    X(fake, "The fake backend (`model.backend = fake`), which needs no model: for tests.")

// clang-format off
/* What the scheduler expects of one class; defaults are those of gs_class_defaults (tested). */
#define GS_CONFIG_CLASS(X, section, ttft, tpot, complete, hard, window_max, quantum, consume,      \
                        most, least, kv, reserve, kept)                                            \
  X(section, ttft_ms, DURATION_MS, NULL, ttft, 0, 3600000, NULL, GS_CONFIG_LIVE,                   \
    "Target for the first token, 95 of 100. 0: none.")                                             \
  X(section, tpot_ms, DURATION_MS, NULL, tpot, 0, 3600000, NULL, GS_CONFIG_LIVE,                   \
    "Target for each further token. 0: none.")                                                     \
  X(section, complete_ms, DURATION_MS, NULL, complete, 0, 86400000, NULL, GS_CONFIG_LIVE,          \
    "Target for the whole answer. 0: none.")                                                       \
  X(section, hard_ttft_ms, DURATION_MS, NULL, hard, 0, 3600000, NULL, GS_CONFIG_LIVE,              \
    "A first token later than this is of no use: 429 at once. 0: no limit.")                       \
  X(section, window_min_ms, DURATION_MS, NULL, "0", 0, 60000, NULL, GS_CONFIG_LIVE,                \
    "A newcomer may be held for company this long, at least, while nothing else runs.")            \
  X(section, window_max_ms, DURATION_MS, NULL, window_max, 0, 60000, NULL, GS_CONFIG_LIVE,         \
    "A newcomer may be held for company this long, at most. 0: never.")                            \
  X(section, quantum_ms, DURATION_MS, NULL, quantum, 1, 60000, NULL, GS_CONFIG_LIVE,               \
    "Longest step while nobody streams: who comes next waits no longer.")                          \
  X(section, consume_ms, DURATION_MS, NULL, consume, 0, 60000, NULL, GS_CONFIG_LIVE,               \
    "A listener or reader takes this long for a token; what a stream is ahead may wait. 0: off.")  \
  X(section, share, FLOAT, NULL, most, 0, 1, NULL, GS_CONFIG_LIVE,                                \
    "Most of a step while another class waits.")                                                   \
  X(section, min_share, FLOAT, NULL, least, 0, 1, NULL, GS_CONFIG_LIVE,                            \
    "Least of a step for first tokens that are late anyway.")                                      \
  X(section, kv_share, FLOAT, NULL, kv, 0, 1, NULL, GS_CONFIG_LIVE,                                \
    "Most of the attention cache.")                                                                \
  X(section, kv_reserve, FLOAT, NULL, reserve, 0, 1, NULL, GS_CONFIG_LIVE,                         \
    "Part of the attention cache that is kept free for this class.")                               \
  X(section, seats, INT, NULL, "0", 0, 65536, NULL, GS_CONFIG_LIVE,                                \
    "Running sequences at most. 0: no limit.")                                                     \
  X(section, seats_kept, INT, NULL, kept, 0, 65536, NULL, GS_CONFIG_LIVE,                          \
    "Running sequences whose places no other class takes.")                                        \
  X(section, max_waiting, INT, NULL, "0", 0, 65536, NULL, GS_CONFIG_LIVE,                          \
    "Waiting sequences; more are answered with 429. 0: only server.max_queued counts.")

#define GS_CONFIG_OPTIONS(X)                                                                       \
  X(server, host, LIST, "host", "127.0.0.1,::1", 1, 16, NULL, GS_CONFIG_STARTUP,                   \
    "Addresses to listen on. Any address but a loopback one needs keys (`gamasot keys add`).")     \
  X(server, port, PORT, "port", "11434", 0, 65535, NULL, GS_CONFIG_STARTUP,                        \
    "TCP port. 0 takes a free one and says which.")                                                \
  X(server, api_keys, LIST, "api-key", "", 0, 256, NULL, GS_CONFIG_STARTUP | GS_CONFIG_SECRET,     \
    "API keys that clients must send. Empty: none needed. A key given as a flag can be seen by "   \
    "every user of the machine (ps); prefer server.api_keys_file or the environment.")             \
  X(server, api_keys_file, PATH, "api-keys-file", "", 0, 0, NULL, GS_CONFIG_STARTUP,               \
    "File with one API key a line, added to server.api_keys. Lines that begin with # are "         \
    "comments.")                                                                                   \
  X(server, keys_file, PATH, NULL, "", 0, 0, NULL, GS_CONFIG_STARTUP,                              \
    "File that `gamasot keys` writes. Empty: keys.json in the state folder.")                      \
  X(server, max_connections, INT, NULL, "2048", 1, 65536, NULL, GS_CONFIG_STARTUP,                 \
    "Open connections in all; more are closed at once.")                                           \
  X(server, max_connections_per_address, INT, NULL, "256", 1, 65536, NULL, GS_CONFIG_STARTUP,      \
    "Open connections from one address (IPv6: from one /64).")                                     \
  X(server, header_timeout_ms, DURATION_MS, NULL, "10000", 100, 3600000, NULL, GS_CONFIG_STARTUP,  \
    "A request's headers must be complete after this time.")                                       \
  X(server, body_timeout_ms, DURATION_MS, NULL, "30000", 100, 3600000, NULL, GS_CONFIG_STARTUP,    \
    "A request's body must be complete after this time.")                                          \
  X(server, keep_alive_ms, DURATION_MS, NULL, "75000", 100, 3600000, NULL, GS_CONFIG_STARTUP,      \
    "An idle connection is closed after this time.")                                               \
  X(server, max_body_kb, INT, NULL, "4096", 1, 1048576, NULL, GS_CONFIG_STARTUP,                   \
    "Largest request body in KiB; larger ones are answered with 413.")                             \
  X(server, sandbox, BOOL, NULL, "true", 0, 0, NULL, GS_CONFIG_STARTUP,                            \
    "Give up all rights that serving does not need, with what the kernel offers: opening other "    \
    "files, starting programs, connecting to other machines (unless there are workers).")                                     \
  X(server, add_workers, BOOL, NULL, "false", 0, 0, NULL, GS_CONFIG_STARTUP,                       \
    "Workers may be added while the server runs though the configuration names none: it keeps the " \
    "right to connect to other machines. See workers.md.")                                         \
  X(server, max_queued, INT, NULL, "512", 1, 65536, NULL, GS_CONFIG_STARTUP,                       \
    "Requests that may wait for their turn; more are answered with 429.")                          \
  X(server, drain_timeout_ms, DURATION_MS, NULL, "8000", 0, 3600000, NULL, GS_CONFIG_STARTUP,      \
    "After SIGTERM, running requests may finish within this time; then they are ended.")           \
  X(server, allowed_hosts, LIST, NULL, "", 0, 64, NULL, GS_CONFIG_STARTUP,                         \
    "Host names that clients may use in the Host header, besides addresses and localhost. It "     \
    "stops web pages that rebind their own name to this machine (DNS rebinding).")                 \
  X(server, allowed_origins, LIST, NULL, "", 0, 64, NULL, GS_CONFIG_STARTUP,                       \
    "Web origins, such as https://chat.home.example, whose pages may call the API.")               \
  X(model, path, PATH, "model", "", 0, 0, NULL, GS_CONFIG_STARTUP,                                 \
    "GGUF file to serve. Empty: the default model in the cache folder.")                           \
  X(model, name, STRING, "model-name", "", 0, 0, NULL, GS_CONFIG_STARTUP,                          \
    "Name under which clients see the model. Empty: from the file.")                               \
  X(model, backend, ENUM, "backend", "native", 0, 0, "native|fake", GS_CONFIG_STARTUP,             \
    "What computes: native (this machine's CPU) or fake (made-up tokens, for tests).")             \
  X(model, context, INT, "context", "0", 0, 16777216, NULL, GS_CONFIG_STARTUP,                     \
    "Longest prompt plus output in tokens. 0: what the model was trained for.")                    \
  X(model, dirs, LIST, "models-dir", "", 0, 16, NULL, GS_CONFIG_STARTUP,                           \
    "Folders with further GGUF files that requests may ask for by name, besides the models folder " \
    "of the user's data and that of the cache.")                                                   \
  X(model, keep_alive_ms, DURATION_MS, NULL, "300000", -1, 31536000000, NULL, GS_CONFIG_STARTUP,   \
    "A model other than the first stays in memory so long after its last use. 0: not at all, "     \
    "-1: for ever. Requests may say otherwise (keep_alive).")                                      \
  X(model, pinned, BOOL, NULL, "false", 0, 0, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,          \
    "In a section [model NAME]: it is loaded with the server and stays. The first model does "     \
    "anyway.")                                                                                     \
  X(model, pooling, ENUM, NULL, "file", 0, 0, "file|none|mean|cls|last", GS_CONFIG_STARTUP,        \
    "What becomes a text's vector: as the file says, none, the mean of all tokens, the first or the "\
    "last one. For embeddings from a model that was made for text, mean or last.")                 \
  X(model, warm_up, BOOL, NULL, "true", 0, 0, NULL, GS_CONFIG_STARTUP,                             \
    "Run one step before the server says that it is ready.")                                       \
  X(models, folder, PATH, NULL, "", 0, 0, NULL, GS_CONFIG_STARTUP,                                 \
    "Folder that models are pulled into. Empty: models in the folder of the user's data.")         \
  X(models, pull, BOOL, NULL, "true", 0, 0, NULL, GS_CONFIG_STARTUP,                               \
    "An admin may have models fetched (/api/pull), by a process of their own beside the server. "  \
    "As a default only where API keys are configured.")                                            \
  X(models, hosts, LIST, NULL,                                                                     \
    "*.ollama.ai,*.huggingface.co,*.hf.co,*.r2.cloudflarestorage.com", 0, 64, NULL,                \
    GS_CONFIG_STARTUP,                                                                             \
    "Hosts that models may come from, redirects included: HOST[:PORT] over https, *.HOST for it "  \
    "and all below it, http://HOST[:PORT] without encryption, too. Empty: none.")                  \
  X(models, registry_url, STRING, NULL, "https://registry.ollama.ai", 0, 0, NULL,                  \
    GS_CONFIG_STARTUP, "Registry that names without a host are asked of.")                         \
  X(models, hf_url, STRING, NULL, "https://huggingface.co", 0, 0, NULL, GS_CONFIG_STARTUP,         \
    "Where the repositories of hf:OWNER/REPO/FILE are: Hugging Face or a mirror of it.")           \
  X(models, min_free_mb, SIZE_MB, NULL, "1024", 0, 1073741824, NULL, GS_CONFIG_STARTUP,            \
    "Space that is left to others on the disk of models.folder.")                                  \
  X(models, rescan_ms, DURATION_MS, NULL, "2000", 10, 3600000, NULL,                               \
    GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN, "How often the folders of models are looked at.")        \
  X(models, retry_ms, DURATION_MS, NULL, "500", 0, 60000, NULL,                                    \
    GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN, "Pause before a download that broke goes on.")           \
  X(engine, threads, INT, "threads", "0", 0, 1024, NULL, GS_CONFIG_STARTUP,                        \
    "Compute threads. 0: as many as the process has CPUs.")                                        \
  X(engine, pin, BOOL, NULL, "true", 0, 0, NULL, GS_CONFIG_STARTUP,                                \
    "Bind each compute thread to one CPU where possible.")                                         \
  X(engine, isa, STRING, NULL, "", 0, 0, NULL, GS_CONFIG_STARTUP,                                  \
    "Instruction set of the kernels, such as scalar, avx2 or avx512vnni. Empty: the best one "     \
    "that this machine has.")                                                                      \
  X(engine, max_seqs, INT, NULL, "64", 1, 4096, NULL, GS_CONFIG_STARTUP,                           \
    "Sequences that run at the same time; others wait.")                                           \
  X(engine, max_batch_tokens, INT, NULL, "512", 1, 65536, NULL, GS_CONFIG_STARTUP,                 \
    "Tokens of one step, over all sequences.")                                                     \
  X(engine, prefill_chunk, INT, NULL, "128", 1, 65536, NULL, GS_CONFIG_LIVE,                       \
    "Prompt tokens that one sequence may take of a step; longer prompts are cut. At most "         \
    "engine.max_batch_tokens counts.")                                                             \
  X(engine, stall_ms, DURATION_MS, NULL, "3500", 100, 3600000, NULL, GS_CONFIG_STARTUP,            \
    "A step that makes no progress for so long hangs: `/health` says so.")                         \
  X(engine, restart_ms, DURATION_MS, NULL, "20000", 0, 3600000, NULL, GS_CONFIG_STARTUP,           \
    "A step that hangs for so long is given up: its requests fail, its threads are replaced, all " \
    "others go on. At the fourth time in ten minutes, or where that can't be done, the server "    \
    "ends with status 70. 0: never.")                                                              \
  X(engine, check, BOOL, NULL, "false", 0, 0, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,          \
    "Check all invariants of scheduler and KV ledger after each step; stop on a broken one.")      \
  X(kv, memory_mb, SIZE_MB, NULL, "0", 0, 16777216, NULL, GS_CONFIG_STARTUP,                       \
    "Memory for the attention cache. 0: a quarter of what is left after the weights.")             \
  X(kv, block_tokens, INT, NULL, "32", 8, 256, NULL, GS_CONFIG_STARTUP | GS_CONFIG_POW2,           \
    "Tokens of one block of the attention cache; a power of two.")                                 \
  X(kv, type, ENUM, "kv-type", "bf16", 0, 0, "f16|bf16|q8", GS_CONFIG_STARTUP,                     \
    "Numbers of the attention cache. q8 takes half the memory of the other two; what it costs in " \
    "accuracy is in docs/performance.md.")                                                         \
  X(kv, prefix_cache, BOOL, NULL, "true", 0, 0, NULL, GS_CONFIG_STARTUP,                           \
    "Keep the attention cache of past prompts for requests that begin the same way.")              \
  X(memory, budget_mb, SIZE_MB, NULL, "0", 0, 16777216, NULL, GS_CONFIG_STARTUP,                   \
    "Memory for all models together, weights and attention caches. What is idle makes room for "   \
    "what is asked for. 0: four fifths of what is free when the server starts.")                   \
  X(memory, reserve_mb, SIZE_MB, NULL, "128", 0, 16777216, NULL, GS_CONFIG_STARTUP,                \
    "While the machine, or the control group, has less memory left than this, new requests are "   \
    "refused (503) and no model is loaded. 0: never.")                                             \
  X(memory, grammars_mb, SIZE_MB, NULL, "64", 1, 65536, NULL, GS_CONFIG_STARTUP,                   \
    "Compiled grammars of a model that are kept for the next request.")                            \
  X(memory, store_mb, SIZE_MB, NULL, "8", 1, 65536, NULL, GS_CONFIG_STARTUP,                       \
    "Pages of the database that are kept in memory.")                                              \
  X(sched, policy, ENUM, NULL, "slo", 0, 0, "slo|fcfs", GS_CONFIG_STARTUP,                         \
    "slo: classes, targets and fairness. fcfs: first come, first served.")                         \
  X(sched, mode, ENUM, NULL, "auto", 0, 0, "auto|mixed|exclusive|split", GS_CONFIG_LIVE,           \
    "How prompts and streams share the cores. mixed: in one step. exclusive: in steps of their "   \
    "own, in turn. split: at the same time, each on a part of the cores. auto: whichever does "    \
    "most by the measured step times.")                                                            \
  X(sched, background_floor, FLOAT, NULL, "0.03", 0, 1, NULL, GS_CONFIG_LIVE,                      \
    "Part of the device time, over 10 s, that background gets on a busy machine; at most 0.5.")    \
  X(sched, background_stretch, FLOAT, NULL, "1.2", 1, 100, NULL, GS_CONFIG_LIVE,                   \
    "Background may make the time between two tokens of others this much longer.")                                      \
  X(sched, background_gap_ms, DURATION_MS, NULL, "21", 0, 60000, NULL, GS_CONFIG_LIVE,             \
    "Background may make the time between two tokens of others this long in any case.")                                 \
  X(sched, background_paused, BOOL, NULL, "false", 0, 0, NULL, GS_CONFIG_LIVE,                     \
    "Background waits until this is false again.")                                                 \
  X(sched, safepoints, BOOL, NULL, "true", 0, 0, NULL, GS_CONFIG_LIVE,                             \
    "A step of background alone gives way between two layers when a voice or chat comes.")         \
  X(sched, safepoint_max_age_ms, DURATION_MS, NULL, "2000", 0, 3600000, NULL, GS_CONFIG_LIVE,      \
    "A step that gave way goes on after this time at the latest.")                                 \
  X(sched, tpot_stretch, FLOAT, NULL, "1.9", 1, 100, NULL, GS_CONFIG_LIVE,                         \
    "A token is due after the class's target or this many times the step of all streams alone.")   \
  X(sched, document_min_tokens, INT, NULL, "0", -1, 16777216, NULL, GS_CONFIG_LIVE,                \
    "A chat with a longer new prompt is served as a document. 0: what takes 2 s, at least 1,024; " \
    "-1: never.")                                                                                  \
  X(sched, person_queue_share, FLOAT, NULL, "0.75", 0, 1, NULL, GS_CONFIG_LIVE,                    \
    "Part of the queue that one of several persons may fill.")                                     \
  X(sched, person_weight, FLOAT, NULL, "1", 0, 1000000, NULL, GS_CONFIG_LIVE,                      \
    "Share of a person without one of their own, relative to others.")                             \
  X(sched, person_max_running, INT, NULL, "0", 0, 65536, NULL, GS_CONFIG_LIVE,                     \
    "Sequences of one person that run at once. 0: no limit.")                                      \
  X(sched, person_max_waiting, INT, NULL, "0", 0, 65536, NULL, GS_CONFIG_LIVE,                     \
    "Sequences of one person that wait; more are answered with 429. 0: no limit.")                 \
  X(sched, person_day_s, INT, NULL, "0", 0, 86400, NULL, GS_CONFIG_LIVE,                           \
    "Device time of one person in 24 hours, in seconds. 0: no limit.")                             \
  GS_CONFIG_CLASS(X, class_voice, "700", "45", "0", "4000", "0", "200", "200", "0.9", "0.5", "1",  \
                  "0.05", "2")                                                                     \
  GS_CONFIG_CLASS(X, class_chat, "2000", "100", "0", "0", "0", "200", "0", "0.8", "0.25", "0.9",   \
                  "0", "0")                                                                        \
  GS_CONFIG_CLASS(X, class_completion, "1000", "100", "0", "3000", "0", "100", "0", "0.6", "0.1",  \
                  "0.5", "0", "0")                                                                 \
  GS_CONFIG_CLASS(X, class_document, "10000", "150", "0", "0", "0", "100", "0", "0.7", "0.1",      \
                  "0.8", "0", "0")                                                                 \
  GS_CONFIG_CLASS(X, class_utility, "0", "200", "15000", "0", "20", "100", "0", "0.5", "0.05",     \
                  "0.5", "0", "0")                                                                 \
  GS_CONFIG_CLASS(X, class_background, "0", "0", "0", "0", "500", "200", "0", "1", "0.03", "0.6",  \
                  "0", "1")                                                                        \
  X(prefix, files, LIST, "prefix-file", "", 0, 32, NULL, GS_CONFIG_STARTUP,                        \
    "Text files with system prompts that everybody may share, such as a home assistant's "         \
    "instructions: computed once at start and kept. Who uses them can be seen by nobody. "                        \
    "A section [model NAME] may have its own, `prefix_files`.")         \
  X(prefix, pinned_share, FLOAT, NULL, "0.25", 0, 1, NULL, GS_CONFIG_STARTUP,                      \
    "Part of the attention cache that such files may take.")                                       \
  X(prefix, saved_mb, SIZE_MB, NULL, "512", 0, 1073741824, NULL, GS_CONFIG_STARTUP,                \
    "Space in the state folder (`store.folder`) for what was computed of such files, so that the " \
    "next start reads it instead. The least recently used goes first. 0: nothing is saved.")       \
  X(background, schedule, STRING, NULL, "", 0, 0, NULL, GS_CONFIG_STARTUP,                         \
    "When background runs, such as \"22:00-07:00\" or \"mon-fri 22:00-07:00, sat, sun\". Empty: "   \
    "always.")                                                                                     \
  X(background, time_zone, STRING, NULL, "", 0, 0, NULL, GS_CONFIG_STARTUP,                        \
    "Time zone of all schedules, such as Europe/Berlin. Empty: the machine's.")                    \
  X(background, share_outside, FLOAT, NULL, "0", 0, 1, NULL, GS_CONFIG_LIVE,                       \
    "Part of the device time that background may use outside its schedule. 0: none.")              \
  X(background, max_share, FLOAT, NULL, "1", 0, 1, NULL, GS_CONFIG_LIVE,                       \
    "Part of the device time that background may use at any time, on an idle machine, too: less "  \
    "heat and noise.")                                                                             \
  X(background, max_threads, INT, NULL, "0", 0, 1024, NULL, GS_CONFIG_LIVE,                        \
    "Compute threads that background uses while nothing else runs: less heat and noise. 0: all.")  \
  X(background, max_lines, INT, NULL, "32", 1, 4096, NULL, GS_CONFIG_LIVE,                         \
    "Lines of batch jobs that are handed to the scheduler at the same time.")                      \
  X(hours, voice, STRING, NULL, "", 0, 0, NULL, GS_CONFIG_STARTUP,                                 \
    "Spoken requests. Windows as in background.schedule. Empty: always.")                          \
  X(hours, chat, STRING, NULL, "", 0, 0, NULL, GS_CONFIG_STARTUP,                                  \
    "Chats. Windows as in background.schedule. Empty: always.")                                    \
  X(hours, completion, STRING, NULL, "", 0, 0, NULL, GS_CONFIG_STARTUP,                            \
    "Text or code while somebody types. Windows as in background.schedule. Empty: always.")        \
  X(hours, document, STRING, NULL, "", 0, 0, NULL, GS_CONFIG_STARTUP,                              \
    "Requests that ask for the class document. Windows as in background.schedule. Empty: always.") \
  X(hours, utility, STRING, NULL, "", 0, 0, NULL, GS_CONFIG_STARTUP,                               \
    "Titles, tags and other small things. Windows as in background.schedule. Empty: always.")      \
  X(store, folder, PATH, NULL, "", 0, 0, NULL, GS_CONFIG_STARTUP,                                  \
    "Folder of the database and its files. Empty: the state folder.")                              \
  X(store, max_disk_mb, SIZE_MB, NULL, "8192", 1, 1073741824, NULL, GS_CONFIG_LIVE,                \
    "All files and results together; beyond, uploads are refused and batch jobs pause.")           \
  X(store, min_free_mb, SIZE_MB, NULL, "256", 0, 1073741824, NULL, GS_CONFIG_LIVE,                 \
    "Space that is left to others on the disk.")                                                   \
  X(store, max_file_mb, SIZE_MB, NULL, "200", 1, 1048576, NULL, GS_CONFIG_LIVE,                    \
    "Largest file that can be uploaded.")                                                          \
  X(store, person_mb, SIZE_MB, NULL, "2048", 1, 1073741824, NULL, GS_CONFIG_LIVE,                  \
    "Files of one person, uploaded and made, together.")                                           \
  X(store, person_batches, INT, NULL, "16", 1, 65536, NULL, GS_CONFIG_LIVE,                        \
    "Batch jobs of one person that are not yet done.")                                             \
  X(store, max_lines, INT, NULL, "50000", 1, 10000000, NULL, GS_CONFIG_LIVE,                       \
    "Lines of one batch job.")                                                                     \
  X(store, keep_days, INT, NULL, "30", 1, 36500, NULL, GS_CONFIG_LIVE,                             \
    "Files and finished batch jobs are removed after this time.")                                  \
  X(metrics, persons, INT, NULL, "16", 0, 16, NULL, GS_CONFIG_STARTUP,                             \
    "Persons that have a label of their own in `/metrics` (which takes an admin's key to see); "   \
    "the rest are one. 0: no label `person`.")                                                     \
  X(metrics, history_s, INT, NULL, "60", 1, 3600, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,      \
    "Length of the minutes that history is made of: for tests.")                                   \
  X(tune, live, BOOL, NULL, "false", 0, 0, NULL, GS_CONFIG_LIVE,                                   \
    "Change one live option at a time, by a step, and keep it only if more is done with all "      \
    "targets held.")                                                                               \
  X(tune, interval_s, INT, NULL, "30", 1, 3600, NULL, GS_CONFIG_LIVE,                              \
    "How long a change is looked at before it is judged; twice at most.")                          \
  X(record, enabled, BOOL, NULL, "false", 0, 0, NULL, GS_CONFIG_STARTUP,                           \
    "Keep a trace of the requests: times, class, person as a number, token counts and salted "     \
    "hashes; never text. `gamasot tune` finds the settings that suit it.")                         \
  X(record, max_mb, SIZE_MB, NULL, "64", 1, 65536, NULL, GS_CONFIG_STARTUP,                        \
    "All such files together; the oldest are deleted.")                                            \
  X(record, folder, PATH, NULL, "", 0, 0, NULL, GS_CONFIG_STARTUP,                                 \
    "Where they are written. Empty: the state folder.")                                            \
  X(log, level, ENUM, "log-level", "info", 0, 0, "debug|info|warn|error", GS_CONFIG_LIVE,          \
    "Least level that is written.")                                                                \
  X(fake, step_ms, DURATION_MS, NULL, "1", 0, 60000, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,   \
    "Fixed time of one step.")                                                                     \
  X(fake, token_us, INT, NULL, "0", 0, 10000000, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,       \
    "Time that each decoding sequence adds to a step, in microseconds.")                           \
  X(fake, prefill_us, INT, NULL, "0", 0, 10000000, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,     \
    "Time that each prompt token adds to a step, in microseconds.")                                \
  X(fake, load_ms, DURATION_MS, NULL, "0", 0, 3600000, NULL,                                       \
    GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN, "Time that loading takes.")                              \
  X(fake, calibrated, BOOL, NULL, "false", 0, 0, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,       \
    "The scheduler knows the fake backend's step times from the start.")                           \
  X(fake, layers, INT, NULL, "1", 1, 1024, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,             \
    "Layers of the fake model: background steps can give way between them.")                       \
  X(fake, threads, INT, NULL, "0", 0, 1024, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,            \
    "Compute threads that it says it has; with several, two steps may run at once.")               \
  X(fake, embd, INT, NULL, "16", 0, 4096, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,               \
    "Numbers of an embedding. 0: makes none.")                                                     \
  X(fake, rank, BOOL, NULL, "false", 0, 0, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,              \
    "Scores texts, as rerankers do, instead of embedding them.")                                   \
  X(fake, whole_prompts, BOOL, NULL, "false", 0, 0, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,     \
    "An encoder: prompts are computed in one step, and nothing is generated.")                     \
  X(fake, vocab, INT, NULL, "512", 288, 1048576, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,       \
    "Tokens in the fake vocabulary.")                                                              \
  X(fake, script, PATH, NULL, "", 0, 0, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,                \
    "JSON file of answers: [[\"end of the prompt\", \"answer\"], ...].")                           \
  X(fake, template, PATH, NULL, "", 0, 0, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,              \
    "File with the chat template. Empty: ChatML.")                                                 \
  X(fake, first_token, INT, NULL, "97", 0, 1048576, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,    \
    "First token id that is generated; ids below 256 are bytes.")                                  \
  X(fake, n_tokens, INT, NULL, "26", 1, 1048576, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,       \
    "Number of token ids, from fake.first_token on, that are generated.")                          \
  X(fake, kv_blocks, INT, NULL, "4096", 2, 16777216, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,   \
    "Blocks of the fake attention cache.")                                                         \
  X(fake, fail_at_step, INT, NULL, "0", 0, 2147483647, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN, \
    "This step, counted from 1, fails as a whole. 0: none.")                                       \
  X(fake, fail_item_at_step, INT, NULL, "0", 0, 2147483647, NULL,                                  \
    GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,                                                          \
    "In this step, counted from 1, only the first sequence of the batch fails. 0: none.")          \
  X(fake, hang_at_step, INT, NULL, "0", 0, 2147483647, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN, \
    "This step, counted from 1, does not come back. 0: none.")                                     \
  X(fake, hang_every, INT, NULL, "0", 0, 2147483647, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,   \
    "And from then on each time after so many steps. 0: not again.")                               \
  X(fake, hang_beside, INT, NULL, "0", 0, 2147483647, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,  \
    "Of steps that run beside others this one, counted from 1, does not come back. 0: none.")      \
  X(fake, crash_at_step, INT, NULL, "0", 0, 2147483647, NULL,                                      \
    GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,                                                          \
    "In this step, counted from 1, the process is aborted. 0: none.")                              \
  X(fake, eos_after, INT, NULL, "0", 0, 2147483647, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,    \
    "Every sequence ends by itself after this many tokens. 0: never.")
// clang-format on

// clang-format off
/*
 * What a section [worker NAME] says, and a body of POST /v1/workers: other machines that answer.
 *
 *   X(name, KIND, default, min, max, choices, help)
 */
#define GS_CONFIG_WORKER_OPTIONS(X)                                                                \
  X(url, STRING, "", 0, 0, NULL,                                                                   \
    "Where it answers in OpenAI's dialect: `http://` or `https://`, host, port and path, such as "  \
    "`http://pc.local:8080/v1`.")                                                                  \
  X(dialect, ENUM, "auto", 0, 0, "auto|openai|llama-server|vllm|ollama",                           \
    "What kind of server it is. `auto`: as its list of models says.")                              \
  X(key_file, PATH, "", 0, 0, NULL,                                                                \
    "File whose first line is the key that it is sent. Keys of clients are never sent on.")        \
  X(ca_file, PATH, "", 0, 0, NULL,                                                                 \
    "PEM file of the authorities that sign its certificate. Empty: those of the system.")          \
  X(models, LIST, "", 0, 64, NULL,                                                                 \
    "Models that it is asked for, each `NAME` or `NAME=ITS-NAME`: `NAME` is what clients say, and " \
    "may be a model that is served here, too. Empty: all that it lists.")                          \
  X(classes, LIST, "completion,chat,document,utility,background", 0, 6, NULL,                      \
    "Classes of requests that it gets.")                                                           \
  X(price, FLOAT, "1", 0, 1000, NULL,                                                              \
    "What a second of it costs a person's account, in seconds of this machine's device time.")     \
  X(max_sequences, INT, "4", 1, 1024, NULL,                                                        \
    "Sequences that run there at once, at most; others wait here.")                                \
  X(max_tokens, INT, "32768", 1, 100000000, NULL,                                                  \
    "Tokens of their prompts and answers together, at most.")                                      \
  X(schedule, STRING, "", 0, 0, NULL,                                                              \
    "Hours in which it may be used, such as `22:00-07:00`. Empty: always.")                        \
  X(power_on, STRING, "", 0, 0, NULL,                                                              \
    "Command that switches it on when work waits for it, run by `/bin/sh`; only in the file.")     \
  X(wake_mac, STRING, "", 0, 0, NULL,                                                              \
    "Hardware address that is sent a wake-on-LAN packet when work waits for it.")                  \
  X(prefers, LIST, "background", 0, 6, NULL,                                                       \
    "Classes of requests that go there first, though others could do them sooner.")                \
  X(fallback, ENUM, "move", 0, 0, "move|local|wait",                                               \
    "What becomes of those when it has no room: they go where there is some; or they wait while it " \
    "is there and are done on this machine while it is not; or they wait for it.")                 \
  X(class_schedule, STRING, "", 0, 0, NULL,                                                        \
    "Narrower hours of single classes: `background 22:00-07:00; document sat, sun`.")              \
  X(drain_ms, DURATION_MS, "60000", 0, 86400000, NULL,                                             \
    "So long before its hours end it gets nothing more.")                                          \
  X(power_ahead_ms, DURATION_MS, "120000", 0, 86400000, NULL,                                      \
    "So long before its hours begin it is switched on, if work waits for it.")                     \
  X(priority, BOOL, "false", 0, 0, NULL,                                                           \
    "It schedules by priority (vLLM: `--scheduling-policy priority`), and is told of it.")         \
  X(probe_ms, DURATION_MS, "10000", 100, 3600000, NULL,                                            \
    "How often it is asked whether it is there.")                                                  \
  X(timeout_ms, DURATION_MS, "2000", 50, 600000, NULL,                                             \
    "How long it may take to accept a connection and to answer that question.")                    \
  X(answer_ms, DURATION_MS, "120000", 100, 86400000, NULL,                                         \
    "How long it may say nothing while it answers.")
// clang-format on

#endif
