/*
 * The metrics table: the only place where a metric is described. From it come /metrics in both of
 * its forms and docs/metrics.md. To add a metric, add a row.
 *
 *   X(name, TYPE, LABELS, SOURCE, help)
 *
 * name: without the prefix "gamasot_" and without a counter's "_total"; vLLM's where it has the
 * metric. TYPE: COUNTER, GAUGE, HISTOGRAM. LABELS: what it is divided by, see expose.c. SOURCE:
 *   ENGINE(field, KIND)   gs_engine_stats of the model
 *   LOOP(field, KIND)     gs_metrics of the model
 *   MADE(field, KIND)     gs_metrics_made, from both
 *   SERVER(field, KIND)   gs_metrics_server
 *   WORKER(field, KIND)   gs_metrics_worker, of each machine there is
 *   HIST(id)              a gs_hist_id
 *   PREDICTION, STEP_TOKENS   histograms that the engine keeps
 * KIND: I32 U32 U64 F64, and NS for nanoseconds that are told in seconds. What is NaN is left out.
 */
#ifndef GS_METRICS_TABLE_H
#define GS_METRICS_TABLE_H

// clang-format off
#define GS_METRICS_TABLE(X)                                                                        \
  X(num_requests_running, GAUGE, CLASS, ENGINE(n_running_by_class, I32),                           \
    "Sequences that hold KV blocks.")                                                              \
  X(num_requests_waiting, GAUGE, CLASS, ENGINE(n_waiting_by_class, I32),                           \
    "Sequences waiting to run.")                                                                   \
  X(kv_cache_usage_perc, GAUGE, MODEL, MADE(kv_usage, F64),                                        \
    "Share (0..1) of KV blocks held by living sequences.")                                         \
  X(kv_blocks, GAUGE, MODEL, ENGINE(kv_blocks_total, U32),                                         \
    "KV blocks in the pool.")                                                                      \
  X(kv_blocks_cached, GAUGE, MODEL, ENGINE(kv_blocks_cached, U32),                                 \
    "KV blocks kept only by the prefix cache.")                                                    \
  X(kv_blocks_pinned, GAUGE, MODEL, ENGINE(kv_blocks_pinned, U32),                                 \
    "KV blocks of prefixes that all share.")                                                       \
  X(prefix_cache_queries, COUNTER, MODEL, ENGINE(prefix_lookup_tokens, U64),                       \
    "Prompt tokens looked up in the prefix cache.")                                                \
  X(prefix_cache_hits, COUNTER, MODEL, ENGINE(prefix_hit_tokens, U64),                             \
    "Prompt tokens found in the prefix cache.")                                                    \
  X(num_preemptions, COUNTER, MODEL, ENGINE(preemptions, U64),                                     \
    "Sequences preempted for KV blocks.")                                                          \
  X(prompt_tokens, COUNTER, MODEL, ENGINE(prefill_tokens, U64),                                    \
    "Prompt tokens computed.")                                                                     \
  X(generation_tokens, COUNTER, MODEL, ENGINE(decode_tokens, U64),                                 \
    "Tokens generated.")                                                                           \
  X(recomputed_tokens, COUNTER, MODEL, ENGINE(recomputed_tokens, U64),                             \
    "Tokens computed again.")                                                                      \
  X(wasted_tokens, COUNTER, MODEL, LOOP(wasted_tokens, U64),                                       \
    "Tokens that came when the client had gone.")                                                  \
  X(step_part_tokens, COUNTER, CLASS_PHASE, ENGINE(tokens, U64),                                   \
    "Tokens computed, by class and kind of work.")                                                 \
  X(step_part_seconds, COUNTER, CLASS_PHASE, ENGINE(device_ns, NS),                                \
    "Time spent computing, by class and kind of work; sums to busy_seconds.")                      \
  X(time_to_first_token_seconds, HISTOGRAM, CLASS, HIST(TTFT),                                     \
    "From a request's arrival to its first token.")                                                \
  X(inter_token_latency_seconds, HISTOGRAM, CLASS, HIST(ITL),                                      \
    "From one token of an answer to the next.")                                                    \
  X(request_queue_time_seconds, HISTOGRAM, CLASS, HIST(QUEUE),                                     \
    "From arrival to the first step.")                                                             \
  X(request_prefill_time_seconds, HISTOGRAM, CLASS, HIST(PREFILL),                                 \
    "From the first step to the first token.")                                                     \
  X(request_decode_time_seconds, HISTOGRAM, CLASS, HIST(DECODE),                                   \
    "From the first token to the end.")                                                            \
  X(e2e_request_latency_seconds, HISTOGRAM, CLASS, HIST(E2E),                                      \
    "From arrival to the end.")                                                                    \
  X(request_prompt_tokens, HISTOGRAM, CLASS, HIST(PROMPT_TOKENS),                                  \
    "Tokens of a prompt.")                                                                         \
  X(request_generation_tokens, HISTOGRAM, CLASS, HIST(OUTPUT_TOKENS),                              \
    "Tokens of an answer.")                                                                        \
  X(iteration_tokens_total, HISTOGRAM, MODEL, STEP_TOKENS,                                         \
    "Tokens of a step.")                                                                           \
  X(request_success, COUNTER, CLASS_FINISH, LOOP(finished, U64),                                   \
    "Sequences that have ended, by why.")                                                          \
  X(requests, COUNTER, CLASS_CODE, LOOP(codes, U64),                                               \
    "Requests for answers, by HTTP status; 499: the client had gone.")                             \
  X(targets, COUNTER, CLASS, ENGINE(n_target, U64),                                                \
    "First tokens, or ends, judged by their class's target.")                                      \
  X(targets_missed, COUNTER, CLASS, ENGINE(n_missed, U64),                                         \
    "Of them, too late.")                                                                          \
  X(slo_attainment_ratio, GAUGE, CLASS, MADE(attainment, F64),                                     \
    "Part of the judged ones that were in time, since the start.")                                 \
  X(relegated, COUNTER, CLASS, ENGINE(n_relegated, U64),                                           \
    "Requests that would have been late even alone.")                                              \
  X(effective_tpot_seconds, GAUGE, CLASS, ENGINE(effective_tpot_ns, NS),                           \
    "Time to each further token that is aimed at: the target, or what the load allows.")           \
  X(window_seconds, GAUGE, CLASS, ENGINE(window_ns, NS),                                           \
    "How long a newcomer may be held for company.")                                                \
  X(windows_held, COUNTER, CLASS, ENGINE(n_held, U64),                                             \
    "Sequences that were held for company.")                                                       \
  X(windows_held_seconds, COUNTER, CLASS, ENGINE(held_ns, NS),                                     \
    "How long, in all.")                                                                           \
  X(windows_saved_seconds, COUNTER, MODEL, ENGINE(saved_ns, NS),                                   \
    "Device time that shared first steps have saved, by predictions.")                             \
  X(steps, COUNTER, MODEL, ENGINE(steps, U64),                                                     \
    "Engine iterations.")                                                                          \
  X(suspended_steps, COUNTER, MODEL, ENGINE(suspensions, U64),                                     \
    "Background steps that gave way between two layers.")                                          \
  X(beside_steps, COUNTER, MODEL, ENGINE(beside_steps, U64),                                       \
    "Steps of prompts that ran at the same time as others, on cores of their own.")                \
  X(mode, GAUGE, MODEL, ENGINE(mode.now, I32),                                                     \
    "How prompts and streams share the cores: 1 mixed, 2 exclusive, 3 split.")                     \
  X(mode_changes, COUNTER, MODEL, ENGINE(mode.n_changes, U64),                                     \
    "How often that has changed.")                                                                 \
  X(busy_seconds, COUNTER, MODEL, ENGINE(busy_ns, NS),                                             \
    "Time spent computing.")                                                                       \
  X(background_seconds, COUNTER, MODEL, ENGINE(busy_background_ns, NS),                            \
    "Device time of background.")                                                                  \
  X(discarded_seconds, COUNTER, MODEL, ENGINE(discarded_ns, NS),                                   \
    "Device time of steps that gave way and were not gone on with.")                               \
  X(recomputed_seconds, COUNTER, MODEL, ENGINE(recomputed_ns, NS),                                 \
    "Device time of what was computed again.")                                                     \
  X(step_predicted_ratio, HISTOGRAM, MODEL, PREDICTION,                                            \
    "Predicted by measured time of a step.")                                                       \
  X(step_model_median_ratio, GAUGE, MODEL, ENGINE(cost_median_ratio, F64),                         \
    "Predicted by measured time of the newest steps, median.")                                     \
  X(step_model_median_error, GAUGE, MODEL, ENGINE(cost_median_error, F64),                         \
    "Relative error of the newest predictions, median.")                                           \
  X(step_model_p95_error, GAUGE, MODEL, ENGINE(cost_p95_error, F64),                               \
    "Relative error of the newest predictions, 95 of 100.")                                        \
  X(person_device_seconds, COUNTER, PERSON, SERVER(person_s, F64),                                 \
    "Device time on a person's account.")                                                          \
  X(fairness_jain_index, GAUGE, NONE, SERVER(jain, F64),                                           \
    "Jain's index of the persons' device time by weight, last ten minutes: 1 when all had equal "  \
    "parts. Who asks for less lowers it, too.")                                                    \
  X(energy_joules, COUNTER, NONE, SERVER(energy_j, F64),                                           \
    "Energy of the processor packages since the start, where the machine tells (RAPL).")           \
  X(tune_live, GAUGE, NONE, SERVER(tune_live, I32),                                                \
    "Whether live tuning is on and has begun.")                                                    \
  X(tune_kept, COUNTER, NONE, SERVER(tune_kept, U64),                                              \
    "Changes that live tuning tried and kept.")                                                    \
  X(tune_reverted, COUNTER, NONE, SERVER(tune_reverted, U64),                                      \
    "Changes that live tuning tried and took back.")                                               \
  X(tune_baseline_score, GAUGE, NONE, SERVER(tune_score, F64),                                     \
    "Useful tokens a second, less for missed targets, with the settings that live tuning keeps.")  \
  X(memory_bytes, GAUGE, MEMORY, SERVER(memory_bytes, F64),                                        \
    "Memory that is taken, by what; the sum is nearly memory_anonymous_bytes.")                    \
  X(memory_limit_bytes, GAUGE, MEMORY, SERVER(memory_limits, F64),                                 \
    "What each may take at most, where it has a bound of its own.")                                \
  X(memory_anonymous_bytes, GAUGE, NONE, SERVER(memory_anonymous, F64),                            \
    "The process's anonymous memory as the kernel counts it, in RAM and in swap.")                 \
  X(memory_available_bytes, GAUGE, NONE, SERVER(memory_available, F64),                            \
    "What the machine, or the control group, has left.")                                           \
  X(memory_low, GAUGE, NONE, SERVER(memory_low, I32),                                              \
    "Whether new requests are refused because that is less than memory.reserve_mb.")               \
  X(engine_stalled, GAUGE, NONE, SERVER(stalled, I32),                                             \
    "Whether a step hangs, as /health says it.")                                                   \
  X(engine_restarts, COUNTER, NONE, SERVER(n_restarts, U64),                                       \
    "Steps that hung and were given up, with their threads.")                                      \
  X(http_connections, GAUGE, NONE, SERVER(n_connections, I32),                                     \
    "Open HTTP connections.")                                                                      \
  X(start_time_seconds, GAUGE, NONE, SERVER(started_s, F64),                                       \
    "When the server was started, in seconds since 1970.")                                         \
  X(worker_up, GAUGE, WORKER, WORKER(up, I32),                                                     \
    "Whether the worker answers.")                                                                 \
  X(worker_requests_running, GAUGE, WORKER, WORKER(n_running, I32),                                \
    "Requests that it has.")                                                                       \
  X(worker_requests, COUNTER, WORKER, WORKER(n_dispatched, U64),                                   \
    "Requests that it was given.")                                                                 \
  X(worker_faults, COUNTER, WORKER, WORKER(n_faults, U64),                                         \
    "Of them, those at which it failed.")                                                          \
  X(worker_moved, COUNTER, WORKER, WORKER(n_moved, U64),                                           \
    "Of them, those that another worker answered.")                                                \
  X(worker_prompt_tokens, COUNTER, WORKER, WORKER(prompt_tokens, U64),                             \
    "Prompt tokens of whole answers of other machines, as they count.")                            \
  X(worker_generation_tokens, COUNTER, WORKER, WORKER(output_tokens, U64),                         \
    "Tokens of whole answers of other machines, as they count.")                                   \
  X(worker_busy_seconds, COUNTER, WORKER, WORKER(busy_ns, NS),                                     \
    "Time in which it had something to do.")                                                       \
  X(worker_charged_seconds, COUNTER, WORKER, WORKER(charged_ns, NS),                               \
    "What persons' accounts were charged for it.")                                                 \
  X(worker_requests_waiting, GAUGE, NONE, SERVER(n_placing, I32),                                  \
    "Requests that wait for a worker, this machine among them.")                                   \
  X(build_info, GAUGE, BUILD, SERVER(one, I32),                                                    \
    "The program's version.")
// clang-format on

#endif
