# Benchmark programs. Included by the Makefile.
$(B)/bench/bench_kernels: $(B)/bench/bench_kernels.o $(call libs_of,kernels)
	@$(link) $(LDLIBS)

.PHONY: bench-kernels
bench-kernels: $(B)/bench/bench_kernels ## GEMM speed by type and tokens, with the machine's ceilings
	@$<
