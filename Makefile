# gamasot: GNU Makefile. `make help` lists the targets.
#
# Variants: SANITIZER=address (ASan + UBSan) or thread (TSan) build beside the normal one, each in
# its own folder. SIMD code is compiled per file (see "Kernels") and chosen at run time; nothing is
# built with -march=native.

SANITIZER ?=
RUST ?= auto
CC ?= gcc
CLANG ?= clang
BUILD_ROOT ?= build
V ?= 0

ifeq ($(SANITIZER),)
  VARIANT := release
  SAN_FLAGS :=
else ifeq ($(SANITIZER),address)
  VARIANT := asan
  SAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all
else ifeq ($(SANITIZER),thread)
  VARIANT := tsan
  SAN_FLAGS := -fsanitize=thread
else ifeq ($(SANITIZER),fuzzer)
  VARIANT := fuzz
  CC := $(CLANG)
  CLANG_FLAGS := -Wno-error -Wno-ignored-optimization-argument -Wno-conversion
  SAN_FLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
else ifeq ($(SANITIZER),coverage)
  VARIANT := coverage
  SAN_FLAGS := --coverage -O0 -fprofile-update=atomic
else
  $(error SANITIZER is address, thread, fuzzer or empty)
endif

# ---- Rust: one static library for chat templates and constrained output ------------------------
# RUST=auto uses it when scripts/find-rust finds cargo and a rustc >= 1.87; RUST=no builds without
# (built-in templates, clear errors for constrained output); RUST=yes insists.
ifeq ($(RUST),no)
  CARGO :=
else
  CARGO := $(shell sh scripts/find-rust 2>/dev/null)
  ifeq ($(RUST)$(CARGO),yes)
    $(error RUST=yes, but no rustc >= 1.87 was found)
  endif
endif
ifeq ($(CARGO),)
  RUST_SUFFIX := -norust
  RUST_LIB :=
else
  RUST_SUFFIX :=
  RUST_LIB := $(BUILD_ROOT)/rust/release/libgamasot_rust.a
  # cargo takes the first rustc of PATH, which may be an older one than its own.
  RUSTC := $(or $(wildcard $(dir $(CARGO))rustc),rustc)
endif

B := $(BUILD_ROOT)/$(VARIANT)$(RUST_SUFFIX)
# Only RUST_SRC depends on whether there is Rust: all other objects are shared by both builds.
S := $(BUILD_ROOT)/$(VARIANT)
RUST_SRC := src/tokenizer/chat.c src/tokenizer/grammar.c
LLHTTP := $(BUILD_ROOT)/llhttp

WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla \
        -Wcast-qual -Wformat=2 -Wundef -Wdouble-promotion -Werror $(CLANG_FLAGS)
FORTIFY := $(if $(SANITIZER),,-D_FORTIFY_SOURCE=3)
CPPFLAGS += -D_GNU_SOURCE -Isrc -Itests -I$(LLHTTP)/include $(FORTIFY) -DPCRE2_CODE_UNIT_WIDTH=8
RUST_DEFINE := -DGS_HAVE_RUST=$(if $(RUST_LIB),1,0)
CFLAGS += -std=c17 -O2 -g -fno-omit-frame-pointer -fstack-protector-strong $(WARN) $(SAN_FLAGS)
LDFLAGS += $(SAN_FLAGS)
LDLIBS += -luv -lcurl -lssl -lcrypto -ljansson -lpcre2-8 -linih -lxxhash -lsqlite3 -lz -lpthread -ldl -lm

# ---- Modules, top to bottom: a module includes only those above it (scripts/check-includes) -----
MODULES := base config gguf kernels kv sched load tokenizer model engine store pull metrics http worker web api cli
DEPS_base :=
DEPS_config := base
DEPS_gguf := base
DEPS_kernels := base gguf
DEPS_kv := base
DEPS_sched := base kv
DEPS_load := base kv sched
DEPS_tokenizer := base gguf
DEPS_model := base gguf kernels
DEPS_engine := base gguf kernels kv sched tokenizer model
DEPS_store := base
DEPS_pull := base gguf store
DEPS_metrics := base gguf kernels kv sched tokenizer model engine
DEPS_http := base
DEPS_worker := base config kv sched http
DEPS_web := base
DEPS_api := base config gguf kernels kv sched load tokenizer model engine store pull metrics http worker web
DEPS_cli := $(DEPS_api) api

ARCH := $(shell uname -m)
ifeq ($(ARCH),x86_64)
  KERNEL_SKIP := src/kernels/arm/%
else
  KERNEL_SKIP := src/kernels/x86/%
endif
src_of = $(filter-out src/cli/main.c $(KERNEL_SKIP),$(wildcard src/$(1)/*.c src/$(1)/*/*.c))
obj_of = $(patsubst %.c,$(S)/%.o,$(filter-out $(RUST_SRC),$(call src_of,$(1)))) \
         $(patsubst %.c,$(B)/%.o,$(filter $(RUST_SRC),$(call src_of,$(1))))
lib_of = $(if $(filter tokenizer,$(1)),$(B),$(S))/lib$(1).a
# The closure of a module with itself, as archives, lowest layer first for the linker.
reverse = $(if $(1),$(call reverse,$(wordlist 2,$(words $(1)),$(1))) $(firstword $(1)))
with_src = $(foreach m,$(1),$(if $(call src_of,$(m)),$(m)))
libs_of = $(foreach m,$(call reverse,$(call with_src,$(filter $(DEPS_$(1)) $(1),$(MODULES)))),$(call lib_of,$(m)))

# What make coverage tells of, and the integration tests that bring requests to the parsers of api.
COVERED := config gguf http api sched kv store
COVERED_TESTS := test_output. test_messages. test_openai. test_ollama. test_keys. test_embed.

.DEFAULT_GOAL := all
.PHONY: analyze coverage deb oci all help unit test scorecard lint format fuzz fuzz-bins fuzz-seeds sanitize tsan clean docs bench bench-bins check-includes print-deps FORCE
.SECONDARY:
.DELETE_ON_ERROR:

all: $(B)/gamasot $(B)/gamasot-faults ## build the program (default), and the one whose calls can fail
	@$(if $(SANITIZER),:,ln -sfn $(notdir $(B)) $(BUILD_ROOT)/current)

help: ## this list
	@grep -hE '^[a-zA-Z_-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort | \
	  awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo; echo "  SANITIZER=address|thread|fuzzer|coverage   RUST=auto|yes|no   BUILD_ROOT=build"

# ---- Kernels: SIMD flags per file --------------------------------------------------------------
# src/kernels/x86/<name>_<isa>.c gets the flags of its isa. gcc 12 reorders unrolled intrinsics
# until AVX2 tiles spill unless -fno-tree-ter is given, and partial redundancy elimination hoists
# loads out of the tiles' loops until accumulators spill (docs/performance.md).
GCC_NO_PRE := $(if $(findstring clang,$(CC)),,-fno-tree-pre)
GCC_TILE_FLAGS := $(if $(findstring clang,$(CC)),,-fno-tree-ter) $(GCC_NO_PRE)
ISA_FLAGS_avx2 := -mavx2 -mfma -mf16c $(GCC_TILE_FLAGS)
ISA_FLAGS_avxvnni := -mavx2 -mfma -mf16c -mavxvnni $(GCC_TILE_FLAGS)
AVX512_FLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mprefer-vector-width=512
ISA_FLAGS_avx512 := $(AVX512_FLAGS) $(GCC_TILE_FLAGS)
ISA_FLAGS_avx512vnni := $(AVX512_FLAGS) -mavx512vnni $(GCC_NO_PRE)
ISA_FLAGS_avx512bf16 := $(ISA_FLAGS_avx512vnni) -mavx512bf16
ISA_FLAGS_neon := -march=armv8.2-a+dotprod+fp16 $(GCC_TILE_FLAGS)
ISA_FLAGS_i8mm := -march=armv8.2-a+dotprod+fp16+i8mm $(GCC_TILE_FLAGS)
isa_flags = $(ISA_FLAGS_$(lastword $(subst _, ,$(basename $(notdir $(1))))))
# The tiles are hundreds of instances: -O3 only where their speed counts, not under a sanitizer.
$(S)/src/kernels/%.o: CFLAGS += $(if $(filter-out coverage,$(SANITIZER)),-O1,-O3)
# No fuzz target computes anything: instrumenting the tiles would take longer than all else together.
ifeq ($(SANITIZER),fuzzer)
$(S)/src/kernels/%.o: SAN_FLAGS :=
$(S)/src/kernels/%.o: CFLAGS += -O0
endif
# What is not counted is compiled as ever: a real model answers the tests of make coverage.
ifeq ($(SANITIZER),coverage)
$(foreach m,$(filter-out $(COVERED),$(MODULES)),$(eval $(S)/src/$(m)/%.o: SAN_FLAGS :=)\
  $(eval $(S)/src/$(m)/%.o: FORTIFY := -D_FORTIFY_SOURCE=3))
endif
# ggml-style float maths: contraction is allowed, reassociation is not.
$(S)/src/kernels/%.o: CFLAGS += -ffp-contract=fast -fno-math-errno

# Other flags, other objects: the file changes only when the flags do.
$(S)/.flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(CPPFLAGS) $(CFLAGS)' | cmp -s - $@ || echo '$(CC) $(CPPFLAGS) $(CFLAGS)' > $@

COMPILE = mkdir -p $(@D); [ $(V) = 0 ] || set -x; \
          $(CC) $(CPPFLAGS) $(if $(filter $(RUST_SRC) tests/%,$<),$(RUST_DEFINE)) $(CFLAGS) $(call isa_flags,$<) -MMD -MP -c -o $@ $<
$(S)/%.o: %.c $(S)/.flags
	@$(COMPILE)
ifneq ($(B),$(S))
$(B)/%.o: %.c $(S)/.flags
	@$(COMPILE)
endif

define module_rule
$(call lib_of,$(1)): $(call obj_of,$(1)) $(if $(filter http,$(1)),$(S)/llhttp.a) $(if $(filter web,$(1)),$(S)/web/files.o) $(if $(filter cli,$(1)),$(S)/cli/units.o)
	@mkdir -p $$(@D)
	@rm -f $$@ && ar rcsD $$@ $$(filter %.o,$$^)
endef
$(foreach m,$(MODULES),$(eval $(call module_rule,$(m))))

# llhttp: the C sources of Debian's node-llhttp package, unpacked by scripts/get-llhttp.
$(LLHTTP)/.stamp: scripts/get-llhttp
	@sh scripts/get-llhttp $(LLHTTP)
$(S)/llhttp.a: $(LLHTTP)/.stamp
	@mkdir -p $(S)/llhttp
	@for f in api http llhttp; do \
	  $(CC) -std=c17 -O2 -g -w $(SAN_FLAGS) -I$(LLHTTP)/include -c -o $(S)/llhttp/$$f.o $(LLHTTP)/$$f.c || exit 1; done
	@rm -f $@ && ar rcsD $@ $(S)/llhttp/api.o $(S)/llhttp/http.o $(S)/llhttp/llhttp.o
$(call obj_of,http) $(call obj_of,worker) $(patsubst %.c,$(B)/%.o,$(wildcard tests/unit/http/*.c tests/fuzz/fuzz_http*.c)): | $(LLHTTP)/.stamp

# The pages: src/web and the libraries that scripts/fetch-web-libs brings, compressed into one table.
WEB_LIBS := $(BUILD_ROOT)/web-libs
WEB_LIB_FILES := $(patsubst %,$(WEB_LIBS)/%,uplot.js uplot.css marked.js purify.js)
WEB_FILES := $(wildcard src/web/*.html src/web/*.css src/web/*.js src/web/*.svg)
$(WEB_LIBS)/.stamp: scripts/fetch-web-libs
	@python3 scripts/fetch-web-libs $(BUILD_ROOT)
$(S)/web/files.c: scripts/embed-web $(WEB_FILES) $(WEB_LIBS)/.stamp
	@mkdir -p $(@D)
	@python3 scripts/embed-web $@ $(WEB_FILES) $(WEB_LIB_FILES)
$(S)/web/files.o: $(S)/web/files.c src/web/web.h $(S)/.flags
	@$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

# The unit files are in the program, for gamasot service install.
UNITS := packaging/systemd/gamasot.service packaging/systemd/gamasot-user.service
$(S)/cli/units.c: scripts/embed-text $(UNITS)
	@mkdir -p $(@D)
	@sh scripts/embed-text $@ cli/units.h gs_unit_system=$(word 1,$(UNITS)) gs_unit_user=$(word 2,$(UNITS))
$(S)/cli/units.o: $(S)/cli/units.c src/cli/units.h $(S)/.flags
	@$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

ifneq ($(RUST_LIB),)
$(RUST_LIB): rust/Cargo.toml rust/Cargo.lock $(wildcard rust/src/*.rs rust/src/*/*.rs)
	+@cd rust && RUSTC=$(RUSTC) $(CARGO) build --release --locked --target-dir $(abspath $(BUILD_ROOT))/rust
	@touch $@
endif

# All archives among the prerequisites as one group: Rust and C refer to each other.
link = $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group

$(B)/gamasot: $(B)/src/cli/main.o $(call libs_of,cli) $(RUST_LIB) $(S)/llhttp.a
	@$(link) $(LDLIBS)

# ---- Calls that fail on purpose: tests/faults, linked around these calls of the same objects -----
FAULT_WRAPS := gs_malloc gs_calloc gs_realloc gs_array gs_strdup gs_strndup gs_aligned gs_read gs_pread gs_write \
               gs_accept mmap pthread_create uv_try_write uv_read_start sqlite3_step sqlite3_prepare_v2 \
               sqlite3_prepare_v3 sqlite3_exec sqlite3_open_v2 sqlite3_backup_step \
               open opendir mkdir mkdtemp rename fsync fstat \
               socket bind listen getpeername uv_tcp_init uv_tcp_open uv_tcp_connect uv_poll_init uv_write
FAULT_OBJ := $(S)/tests/faults/calls.o
SEAM_WRAPS := gs_fake_create gs_fake_release gs_native_create gs_encoder_create gs_spsc_push gs_guide_limit \
              gs_turns_should_yield gs_sched_submit
SEAM_OBJ := $(S)/tests/faults/seams.o
comma := ,
$(B)/gamasot-faults: $(B)/src/cli/main.o $(FAULT_OBJ) $(SEAM_OBJ) $(call libs_of,cli) $(RUST_LIB) $(S)/llhttp.a
	@$(link) $(addprefix -Wl$(comma)--wrap=,$(FAULT_WRAPS) $(SEAM_WRAPS)) $(LDLIBS)

# ---- Tests: tests/unit/<module>/test_*.c links that module and what it may include ---------------
# TEST_MODULES="gguf kv" builds and runs the tests of these modules alone.
TEST_MODULES ?= $(MODULES)
UNIT_SRC := $(wildcard $(patsubst %,tests/unit/%/test_*.c,$(TEST_MODULES)))
UNIT_BIN := $(patsubst tests/%.c,$(B)/tests/%,$(UNIT_SRC))
define unit_rule
$(B)/tests/unit/$(1)/test_%: $(B)/tests/unit/$(1)/test_%.o $(FAULT_OBJ) $(call libs_of,$(1)) $(if $(filter tokenizer metrics api cli engine,$(1)),$(RUST_LIB)) $(if $(filter http api worker cli,$(1)),$(S)/llhttp.a)
	@$$(link) $(addprefix -Wl$(comma)--wrap=,$(FAULT_WRAPS)) -lcmocka $$(LDLIBS)
endef
$(foreach m,$(MODULES),$(eval $(call unit_rule,$(m))))

unit: $(UNIT_BIN) ## build the unit tests
test: $(UNIT_BIN) ## build and run the unit tests
	@sh scripts/run-unit $(B) $(UNIT_BIN)
sanitize: ## unit and fake-backend tests under ASan + UBSan
	@$(MAKE) --no-print-directory SANITIZER=address test
tsan: ## unit tests under TSan
	@$(MAKE) --no-print-directory SANITIZER=thread test

scorecard: all unit ## the tests of docs/reliability.md's scorecard, with the day as their seed (GAMASOT_TEST_SEED)
	@python3 scripts/scorecard $(B)

# ---- Fuzz targets: tests/fuzz/fuzz_<module>_*.c, built with clang's libFuzzer --------------------
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
fuzz: ## build the libFuzzer targets (clang)
	@$(MAKE) --no-print-directory SANITIZER=fuzzer RUST=no fuzz-bins
FUZZ_BIN := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(FUZZ_SRC))
fuzz-bins: $(FUZZ_BIN)
fuzz_module = $(word 2,$(subst _, ,$(1)))
define fuzz_rule
$(B)/fuzz/$(1): $(B)/tests/fuzz/$(1).o $(call libs_of,$(call fuzz_module,$(1))) $(if $(filter http api worker,$(call fuzz_module,$(1))),$(S)/llhttp.a)
	@mkdir -p $$(@D)
	@$$(link) -fsanitize=fuzzer $$(LDLIBS)
endef
$(foreach f,$(patsubst tests/fuzz/%.c,%,$(FUZZ_SRC)),$(eval $(call fuzz_rule,$(f))))

# Seeds that only a program can write (GGUF files); the others are in tests/fuzz/corpus.
fuzz-seeds: ## write the seed corpora of the fuzz targets into build/seeds
	@mkdir -p $(BUILD_ROOT)/seeds
	@$(CC) $(CPPFLAGS) $(CFLAGS) -o $(BUILD_ROOT)/make_seeds tests/fuzz/make_seeds.c
	@$(BUILD_ROOT)/make_seeds $(BUILD_ROOT)/seeds

# ---- Benchmarks: bench/bench_*.c, each with everything linked --------------------------------
BENCH_SRC := $(wildcard bench/bench_*.c)
BENCH_BIN := $(patsubst bench/%.c,$(B)/bench/%,$(BENCH_SRC))
bench-bins: $(BENCH_BIN) ## build the micro-benchmarks (bench/bench_*.c)
bench: all $(B)/bench/bench_chain ## rates beside llama.cpp and OpenVINO, into docs/performance.md (builds the peers; long)
	@sh bench/build-peer && sh bench/make-models && python3 bench/compare.py --write $(BENCH_ARGS)
$(B)/bench/bench_%: $(B)/bench/bench_%.o $(call libs_of,cli) $(RUST_LIB) $(S)/llhttp.a
	@$(link) $(LDLIBS)

-include bench/bench.mk

# ---- Checks --------------------------------------------------------------------------------------
lint: ## clang-format, clang-tidy, cppcheck, module boundaries
	@LINT_FLAGS='$(CPPFLAGS) -std=c17' sh scripts/lint
check-includes: ## module boundaries alone
	@MODULES='$(MODULES)' sh scripts/check-includes
print-deps:
	@echo $(DEPS_$(MODULE))
# gcc's static analyser takes minutes for some files: a stamp for each that has no finding, made again
# when the file or a header of it changes. clang-tidy (bugprone, cert, concurrency) and cppcheck are
# parts of lint.
ANALYZED := $(patsubst %.c,$(S)/analyze/%.stamp,$(filter-out src/kernels/%,$(foreach m,$(MODULES),$(call src_of,$(m))) src/cli/main.c))
analyze: ## gcc -fanalyzer over all sources but the kernels
	@$(MAKE) --no-print-directory -k $(ANALYZED)
$(S)/analyze/%.stamp: %.c scripts/analyze | $(LLHTTP)/.stamp
	@mkdir -p $(@D)
	@sh scripts/analyze $(CPPFLAGS) -std=c17 -MMD -MP -MT $@ -MF $(@:.stamp=.d) $<
	@touch $@
coverage: ## lines and branches that tests take, by module and file; fails below 90 % (gcov)
	@mkdir -p $(BUILD_ROOT)/coverage && find $(BUILD_ROOT)/coverage -name '*.gcda' -delete
	@$(MAKE) --no-print-directory SANITIZER=coverage TEST_MODULES='$(COVERED)' all test
	@tests/integration/run --jobs 2 $(addprefix -k ,$(COVERED_TESTS)) $(BUILD_ROOT)/coverage$(RUST_SUFFIX)
	@python3 scripts/coverage $(BUILD_ROOT)/coverage $(COVERED)
format: ## rewrite the C sources with clang-format
	@clang-format -i $$(git ls-files 'src/*.[ch]' 'tests/*.[ch]' 'bench/*.[ch]')
docs: $(B)/gamasot ## regenerate what comes from tables: docs/{configuration,metrics}.md, man page, completions
	@$(B)/gamasot config reference > docs/configuration.md
	@$(B)/gamasot config metrics > docs/metrics.md
	@python3 scripts/gen-cli-docs $(B)/gamasot packaging

# ---- Packages ------------------------------------------------------------------------------------
# MODEL_PACKAGE=yes adds the default model's package, or puts it into the image.
MODEL_PACKAGE ?= no
DEFAULT_MODEL = $$(python3 scripts/fetch-model)
deb: $(B)/gamasot ## Debian package(s) in build/packages
	@sh scripts/build-deb $(B)/gamasot $(BUILD_ROOT)/packages
	@[ $(MODEL_PACKAGE) = no ] || sh scripts/build-deb --model "$(DEFAULT_MODEL)" $(BUILD_ROOT)/packages
oci: $(B)/gamasot ## container image in build/packages, made without a daemon
	@python3 scripts/build-oci $(B)/gamasot $(BUILD_ROOT)/packages \
	  $$([ $(MODEL_PACKAGE) = no ] || echo "--model $(DEFAULT_MODEL)")

clean: ## remove what was built (downloads stay)
	@rm -rf $(BUILD_ROOT)

-include $(shell find $(sort $(B) $(S)) -name '*.d' 2>/dev/null)
