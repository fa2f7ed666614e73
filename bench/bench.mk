# Benchmark programs. Included by the Makefile.
$(B)/bench/bench_kernels: $(B)/bench/bench_kernels.o $(call libs_of,kernels)
	@$(link) $(LDLIBS)

.PHONY: bench-kernels
bench-kernels: $(B)/bench/bench_kernels ## GEMM speed by type and tokens, with the machine's ceilings
	@$<

# The tokenizer bench links only its own module, so that it builds while others are in the works.
TOK_MODELS ?= $(HOME)/.cache/gamasot/models/SmolLM2-135M-Instruct.Q4_1.gguf
$(B)/bench/bench_tokenizer: $(B)/bench/bench_tokenizer.o $(call libs_of,tokenizer) $(RUST_LIB)
	@$(link) $(LDLIBS)
.PHONY: bench-tokenizer
bench-tokenizer: $(B)/bench/bench_tokenizer ## CPU time of the tokenizers (TOK_MODELS="a.gguf ...")
	@$< $(TOK_MODELS)
