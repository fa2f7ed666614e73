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
    X(engine, "Compute threads and the size of one step.")                                         \
    X(kv, "Memory for the attention cache and the prefix cache.")                                  \
    X(log, "Log lines on standard error. Prompts and answers are never logged.")                   \
    X(fake, "The fake backend (`model.backend = fake`), which needs no model: for tests.")

// clang-format off
#define GS_CONFIG_OPTIONS(X)                                                                       \
  X(server, host, LIST, "host", "127.0.0.1,::1", 1, 16, NULL, GS_CONFIG_STARTUP,                   \
    "Addresses to listen on. Any address but a loopback one needs server.api_keys.")               \
  X(server, port, PORT, "port", "11434", 0, 65535, NULL, GS_CONFIG_STARTUP,                        \
    "TCP port. 0 takes a free one and says which.")                                                \
  X(server, api_keys, LIST, "api-key", "", 0, 256, NULL, GS_CONFIG_STARTUP | GS_CONFIG_SECRET,     \
    "API keys that clients must send. Empty: none needed. A key given as a flag can be seen by "   \
    "every user of the machine (ps); prefer server.api_keys_file or the environment.")             \
  X(server, api_keys_file, PATH, "api-keys-file", "", 0, 0, NULL, GS_CONFIG_STARTUP,               \
    "File with one API key a line, added to server.api_keys. Lines that begin with # are "         \
    "comments.")                                                                                   \
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
  X(model, warm_up, BOOL, NULL, "true", 0, 0, NULL, GS_CONFIG_STARTUP,                             \
    "Run one step before the server says that it is ready.")                                       \
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
  X(engine, prefill_chunk, INT, NULL, "128", 1, 65536, NULL, GS_CONFIG_STARTUP,                    \
    "Prompt tokens that one sequence may take of a step; longer prompts are cut. At most "         \
    "engine.max_batch_tokens counts.")                                                             \
  X(engine, check, BOOL, NULL, "false", 0, 0, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,          \
    "Check all invariants of scheduler and KV ledger after each step; stop on a broken one.")      \
  X(kv, memory_mb, SIZE_MB, NULL, "0", 0, 16777216, NULL, GS_CONFIG_STARTUP,                       \
    "Memory for the attention cache. 0: a quarter of what is left after the weights.")             \
  X(kv, block_tokens, INT, NULL, "32", 8, 256, NULL, GS_CONFIG_STARTUP | GS_CONFIG_POW2,           \
    "Tokens of one block of the attention cache; a power of two.")                                 \
  X(kv, prefix_cache, BOOL, NULL, "true", 0, 0, NULL, GS_CONFIG_STARTUP,                           \
    "Keep the attention cache of past prompts for requests that begin the same way.")              \
  X(log, level, ENUM, "log-level", "info", 0, 0, "debug|info|warn|error", GS_CONFIG_LIVE,          \
    "Least level that is written.")                                                                \
  X(fake, step_ms, DURATION_MS, NULL, "1", 0, 60000, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,   \
    "Fixed time of one step.")                                                                     \
  X(fake, token_us, INT, NULL, "0", 0, 10000000, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,       \
    "Time that each decoding sequence adds to a step, in microseconds.")                           \
  X(fake, prefill_us, INT, NULL, "0", 0, 10000000, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,     \
    "Time that each prompt token adds to a step, in microseconds.")                                \
  X(fake, layers, INT, NULL, "1", 1, 1024, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,             \
    "Layers of the fake model: background steps can give way between them.")                       \
  X(fake, vocab, INT, NULL, "512", 288, 1048576, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,       \
    "Tokens in the fake vocabulary.")                                                              \
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
  X(fake, eos_after, INT, NULL, "0", 0, 2147483647, NULL, GS_CONFIG_STARTUP | GS_CONFIG_HIDDEN,    \
    "Every sequence ends by itself after this many tokens. 0: never.")
// clang-format on

#endif
