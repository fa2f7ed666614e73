# Completion of gamasot for bash. Made by scripts/gen-cli-docs (make docs).
_gamasot() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    local verbs="" flags="" shared=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "serve run models perplexity bench trace sim workers batch embed summarize tune keys service backup restore top why config help" -- "$cur"))
        return
    fi
    local options="--host --server.host --port --server.port --api-key --server.api_keys --api-keys-file --server.api_keys_file --server.keys_file --server.max_connections --server.max_connections_per_address --server.header_timeout_ms --server.body_timeout_ms --server.keep_alive_ms --server.max_body_kb --server.sandbox --server.add_workers --server.max_queued --server.drain_timeout_ms --server.allowed_hosts --server.allowed_origins --model --model.path --model-name --model.name --backend --model.backend --context --model.context --models-dir --model.dirs --model.keep_alive_ms --model.pooling --model.warm_up --models.folder --models.pull --models.hosts --models.registry_url --models.hf_url --models.min_free_mb --threads --engine.threads --engine.pin --engine.isa --engine.max_seqs --engine.max_batch_tokens --engine.prefill_chunk --engine.stall_ms --engine.restart_ms --kv.memory_mb --kv.block_tokens --kv-type --kv.type --kv.prefix_cache --memory.budget_mb --memory.reserve_mb --memory.grammars_mb --memory.store_mb --prefix-file --prefix.files --prefix.pinned_share --prefix.saved_mb --sched.policy --sched.mode --sched.background_floor --sched.background_stretch --sched.background_gap_ms --sched.background_paused --sched.safepoints --sched.safepoint_max_age_ms --sched.tpot_stretch --sched.document_min_tokens --sched.person_queue_share --sched.person_weight --sched.person_max_running --sched.person_max_waiting --sched.person_day_s --class_voice.ttft_ms --class_voice.tpot_ms --class_voice.complete_ms --class_voice.hard_ttft_ms --class_voice.window_min_ms --class_voice.window_max_ms --class_voice.quantum_ms --class_voice.consume_ms --class_voice.share --class_voice.min_share --class_voice.kv_share --class_voice.kv_reserve --class_voice.seats --class_voice.seats_kept --class_voice.max_waiting --class_chat.ttft_ms --class_chat.tpot_ms --class_chat.complete_ms --class_chat.hard_ttft_ms --class_chat.window_min_ms --class_chat.window_max_ms --class_chat.quantum_ms --class_chat.consume_ms --class_chat.share --class_chat.min_share --class_chat.kv_share --class_chat.kv_reserve --class_chat.seats --class_chat.seats_kept --class_chat.max_waiting --class_completion.ttft_ms --class_completion.tpot_ms --class_completion.complete_ms --class_completion.hard_ttft_ms --class_completion.window_min_ms --class_completion.window_max_ms --class_completion.quantum_ms --class_completion.consume_ms --class_completion.share --class_completion.min_share --class_completion.kv_share --class_completion.kv_reserve --class_completion.seats --class_completion.seats_kept --class_completion.max_waiting --class_document.ttft_ms --class_document.tpot_ms --class_document.complete_ms --class_document.hard_ttft_ms --class_document.window_min_ms --class_document.window_max_ms --class_document.quantum_ms --class_document.consume_ms --class_document.share --class_document.min_share --class_document.kv_share --class_document.kv_reserve --class_document.seats --class_document.seats_kept --class_document.max_waiting --class_utility.ttft_ms --class_utility.tpot_ms --class_utility.complete_ms --class_utility.hard_ttft_ms --class_utility.window_min_ms --class_utility.window_max_ms --class_utility.quantum_ms --class_utility.consume_ms --class_utility.share --class_utility.min_share --class_utility.kv_share --class_utility.kv_reserve --class_utility.seats --class_utility.seats_kept --class_utility.max_waiting --class_background.ttft_ms --class_background.tpot_ms --class_background.complete_ms --class_background.hard_ttft_ms --class_background.window_min_ms --class_background.window_max_ms --class_background.quantum_ms --class_background.consume_ms --class_background.share --class_background.min_share --class_background.kv_share --class_background.kv_reserve --class_background.seats --class_background.seats_kept --class_background.max_waiting --background.schedule --background.time_zone --background.share_outside --background.max_share --background.max_threads --background.max_lines --hours.voice --hours.chat --hours.completion --hours.document --hours.utility --store.folder --store.max_disk_mb --store.min_free_mb --store.max_file_mb --store.person_mb --store.person_batches --store.max_lines --store.keep_days --metrics.persons --tune.live --tune.interval_s --record.enabled --record.max_mb --record.folder --log-level --log.level"
    case ${COMP_WORDS[1]} in
    serve) verbs="" flags="--config" shared=$options ;;
    run) verbs="" flags="--max-tokens --temperature --seed --system --raw --stats --config" shared=$options ;;
    models) verbs="list pull rm copy recommend inspect" flags="" ;;
    perplexity) verbs="" flags="--chunk --quiet --config" shared=$options ;;
    bench) verbs="" flags="--url --trace --model --out --html --label --speed --time-limit --timeout --retries --target --key --key-per-person --class-header --class-field --user --embeddings-url --embeddings-model --ignore-eos --tokens-per-word --salt --warm-prefixes --no-warm-up --quiet --compare" ;;
    trace) verbs="generate import info" flags="--out --seed --scale --tokens-scale --duration --context --only --no-embeddings" ;;
    sim) verbs="" flags="--trace --device --cost --remotes --round-robin --policy --speed --model-error --seed --out --own-scopes --check --rules --print-device" ;;
    workers) verbs="list add drain resume remove reload" flags="--class --models --key-file --ca-file --max-sequences --price --schedule --url --key --config" shared=$options ;;
    batch) verbs="submit status wait results cancel list pause resume" flags="--endpoint --window --wait --out --errors --url --key --config" shared=$options ;;
    embed) verbs="" flags="--out --whole-files --dimensions --no-truncate --url --key --class --config" shared=$options ;;
    summarize) verbs="" flags="--out --prompt --max-tokens --ext --url --key --class --config" shared=$options ;;
    tune) verbs="" flags="--trace --config-out --report --out --device --variant --set --candidates --rounds --seeds --seed --own-scopes --confirm --confirm-limit --no-state --quiet" ;;
    keys) verbs="add list revoke" flags="--person --class --classes --weight --max-running --max-queued --day-seconds --schedule --cache-scope --address --trusted-proxy --admin --config" shared=$options ;;
    service) verbs="install status remove" flags="--user --root --config" shared=$options ;;
    backup) verbs="" flags="--config" shared=$options ;;
    restore) verbs="" flags="--config" shared=$options ;;
    top) verbs="" flags="--url --key --once --config" shared=$options ;;
    why) verbs="" flags="--url --key --user --config" shared=$options ;;
    config) verbs="show reference metrics commands" flags="--config" shared=$options ;;
    esac
    case $prev in
    --config) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --trace) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --out) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --html) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --device) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --cost) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --policy) COMPREPLY=($(compgen -W "slo fcfs" -- "$cur")) && return ;;
    --key-file) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --ca-file) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --endpoint) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --errors) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --prompt) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --config-out) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --report) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --root) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --api-keys-file | --server.api_keys_file) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --server.keys_file) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --model.path) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --backend | --model.backend) COMPREPLY=($(compgen -W "native fake" -- "$cur")) && return ;;
    --model.pooling) COMPREPLY=($(compgen -W "file none mean cls last" -- "$cur")) && return ;;
    --models.folder) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --kv-type | --kv.type) COMPREPLY=($(compgen -W "f16 bf16 q8" -- "$cur")) && return ;;
    --sched.policy) COMPREPLY=($(compgen -W "slo fcfs" -- "$cur")) && return ;;
    --sched.mode) COMPREPLY=($(compgen -W "auto mixed exclusive split" -- "$cur")) && return ;;
    --store.folder) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --record.folder) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
    --log-level | --log.level) COMPREPLY=($(compgen -W "debug info warn error" -- "$cur")) && return ;;
    esac
    case $cur in
    -*) COMPREPLY=($(compgen -W "$flags $shared --help" -- "$cur")) ;;
    *)
        [ "$COMP_CWORD" -ne 2 ] || COMPREPLY=($(compgen -W "$verbs" -- "$cur"))
        [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- "$cur"))
        ;;
    esac
}
complete -o filenames -F _gamasot gamasot
