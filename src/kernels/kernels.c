/* Run-time dispatch: what the CPU and the operating system can do, and which table to use. */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "kernels/kernels_impl.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

const gs_kernel_table *gs_kernels = &gs_kernels_scalar;
bool gs_kernels_bf16;
static gs_isa g_isa = GS_ISA_SCALAR;

static const char *const g_names[GS_ISA_COUNT] = {
    [GS_ISA_SCALAR] = "scalar",         [GS_ISA_AVX2] = "avx2",
    [GS_ISA_AVXVNNI] = "avxvnni",       [GS_ISA_AVX512] = "avx512",
    [GS_ISA_AVX512VNNI] = "avx512vnni", [GS_ISA_NEON_DOT] = "neon_dot",
    [GS_ISA_NEON_I8MM] = "neon_i8mm",
};

/* From the widest to the most modest: the order of preference. */
static const gs_isa g_order[] = {GS_ISA_AVX512VNNI, GS_ISA_AVX512,   GS_ISA_AVXVNNI, GS_ISA_AVX2,
                                 GS_ISA_NEON_I8MM,  GS_ISA_NEON_DOT, GS_ISA_SCALAR};
#define N_ORDER (sizeof g_order / sizeof g_order[0])

const char *gs_isa_name(gs_isa isa) {
    return isa >= 0 && isa < GS_ISA_COUNT ? g_names[isa] : "?";
}

static const gs_kernel_table *table_of(gs_isa isa) {
    switch (isa) {
    case GS_ISA_SCALAR:
        return &gs_kernels_scalar;
#if defined(__x86_64__)
    case GS_ISA_AVX2:
        return &gs_kernels_avx2;
    case GS_ISA_AVXVNNI:
        return &gs_kernels_avxvnni;
    case GS_ISA_AVX512:
        return &gs_kernels_avx512;
    case GS_ISA_AVX512VNNI:
        return &gs_kernels_avx512vnni;
#elif defined(__aarch64__)
    case GS_ISA_NEON_DOT:
        return &gs_kernels_neon;
    case GS_ISA_NEON_I8MM:
        return &gs_kernels_i8mm;
#endif
    default:
        return NULL;
    }
}

#if defined(__x86_64__)
/* Bit numbers: Intel SDM volume 2, CPUID; XCR0 in volume 1, 13.3. */
typedef struct x86_features {
    bool avx2, avxvnni, avx512, avx512vnni, avx512bf16;
} x86_features;

static bool bit(unsigned reg, int n) {
    return reg >> n & 1;
}

static x86_features x86_detect(void) {
    x86_features f = {false, false, false, false, false};
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) /* OSXSAVE */
        return f;
    bool avx = bit(c, 28) && bit(c, 12) && bit(c, 29); /* AVX, FMA, F16C */
    unsigned xcr0, high;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    bool ymm = (xcr0 & 0x06) == 0x06, zmm = (xcr0 & 0xe6) == 0xe6;
    if (!avx || !ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return f;
    f.avx2 = bit(b, 5);
    f.avx512 = f.avx2 && zmm && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
    f.avx512vnni = f.avx512 && bit(c, 11);
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        f.avxvnni = f.avx2 && bit(a, 4);
        f.avx512bf16 = f.avx512vnni && bit(a, 5);
    }
    return f;
}
#endif

bool gs_isa_supported(gs_isa isa) {
#if defined(__x86_64__)
    x86_features f = x86_detect();
    switch (isa) {
    case GS_ISA_AVX2:
        return f.avx2;
    case GS_ISA_AVXVNNI:
        return f.avxvnni;
    case GS_ISA_AVX512:
        return f.avx512;
    case GS_ISA_AVX512VNNI:
        return f.avx512vnni;
    default:
        break;
    }
#elif defined(__aarch64__)
    bool dot = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
    if (isa == GS_ISA_NEON_DOT)
        return dot;
    if (isa == GS_ISA_NEON_I8MM)
        return dot && (getauxval(AT_HWCAP2) & HWCAP2_I8MM);
#endif
    return isa == GS_ISA_SCALAR;
}

static int refuse(const char *want, char *err, size_t errlen) {
    char list[160] = "";
    size_t len = 0;
    for (size_t i = 0; i < N_ORDER; i++) {
        if (!gs_isa_supported(g_order[i]))
            continue;
        int n =
            snprintf(list + len, sizeof list - len, "%s%s", len ? ", " : "", g_names[g_order[i]]);
        len += n > 0 ? (size_t)n : 0;
    }
    return gs_fail(err, errlen, GS_ERR_UNSUPPORTED,
                   "instruction set \"%.32s\" is unknown or not supported here; possible: %s", want,
                   list);
}

int gs_kernels_init(const char *want, char *err, size_t errlen) {
    if (!want || !*want)
        want = getenv("GAMASOT_ISA");
    bool best = !want || !*want;
    for (size_t i = 0; i < N_ORDER; i++) {
        gs_isa isa = g_order[i];
        if (!best && strcmp(want, g_names[isa]) != 0)
            continue;
        if (!gs_isa_supported(isa))
            continue;
        gs_kernels = table_of(isa);
        g_isa = isa;
#if defined(__x86_64__)
        gs_kernels_bf16 = isa == GS_ISA_AVX512VNNI && x86_detect().avx512bf16;
        if (gs_kernels_bf16)
            gs_kernels = &gs_kernels_avx512bf16;
#endif
        return GS_OK;
    }
    return refuse(want, err, errlen);
}

gs_isa gs_kernels_isa(void) {
    return g_isa;
}
