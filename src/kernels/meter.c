/* meter.c - the reference loops, and all threads of a pool running them together. */
#include "kernels/meter.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2,fma"), noinline))
#endif

enum { CHAINS = 8, TURNS = 5, MAX_THREADS = 256 };

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

meter_kind meter_of(act_kind kind) { return kind == ACT_F32 ? METER_F32 : kind == ACT_I16_32 || kind == ACT_I16_TOP ? METER_INT16 : METER_INT8; }

/* A compiler must not see that nobody wants the result. */
#define USED(x) __asm__ volatile("" ::"r"(&(x)) : "memory")

/* 4 streams in step.  Plain vectors of gcc, so that every CPU has it: a read has no arithmetic that could limit it. */
typedef uint64_t vec16 __attribute__((vector_size(16)));

double meter_read(const void *p, size_t bytes, clockid_t clock) {
    const char *base = p;
    size_t part = bytes / 4 & ~(size_t)127;
    vec16 a[4] = {{0, 0}, {0, 0}, {0, 0}, {0, 0}};
    double t = now(clock);
    for (size_t i = 0; i < part; i += 64)
        for (size_t s = 0; s < 4; s++) {
            const vec16 *v = (const vec16 *)(base + s * part + i);
            a[s] ^= (v[0] ^ v[1]) ^ (v[2] ^ v[3]);
        }
    t = now(clock) - t;
    USED(a);
    return t;
}

#if defined(__x86_64__)
/* 8 chains hide the latency of every addition, an fma's too.  A function for each: together they would spill. */
enum { LOOP_TURNS = 500000 };
#define LOOP(name, vec, zero, step)                                                                                    \
    AVX2 static double name(clockid_t clock) {                                                                         \
        __m256i w = _mm256_set1_epi8(1), v = _mm256_set1_epi8(2);                                                      \
        __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-6f);                                                  \
        vec a0 = zero, a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;                                  \
        double t = now(clock);                                                                                         \
        (void)w, (void)v, (void)x, (void)y;                                                                            \
        for (uint32_t n = 0; n < LOOP_TURNS; n++) {                                                                    \
            step(a0) step(a1) step(a2) step(a3) step(a4) step(a5) step(a6) step(a7)                                    \
        }                                                                                                              \
        return now(clock) - t;                                                                                         \
    }
#define BYTES(a)                                                                                                       \
    a = _mm256_add_epi16(a, _mm256_maddubs_epi16(w, v));                                                               \
    __asm__ volatile("" : "+x"(a), "+x"(w));
#define WORDS(a)                                                                                                       \
    a = _mm256_add_epi32(a, _mm256_madd_epi16(w, v));                                                                  \
    __asm__ volatile("" : "+x"(a), "+x"(w));
#define FLOATS(a)                                                                                                      \
    a = _mm256_fmadd_ps(a, x, y);                                                                                      \
    __asm__ volatile("" : "+x"(a));
LOOP(bytes, __m256i, _mm256_setzero_si256(), BYTES)
LOOP(words, __m256i, _mm256_setzero_si256(), WORDS)
LOOP(floats, __m256, _mm256_setzero_ps(), FLOATS)

double meter_loop(meter_kind kind, clockid_t clock) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    double t = kind == METER_INT8 ? bytes(clock) : kind == METER_INT16 ? words(clock) : floats(clock);
    return t > 0 ? (double)CHAINS * LOOP_TURNS * (kind == METER_INT8 ? 32 : kind == METER_INT16 ? 16 : 8) / t * 1e-9 : 0;
}
#else
double meter_loop(meter_kind kind, clockid_t clock) {
    (void)kind, (void)clock;
    return 0;
}
#endif

/* ---- all threads together ---- */

typedef struct {
    meter_kind kind;
    const char *memory;
    size_t bytes;
    pool *p;
    double rate[MAX_THREADS];
} turn;

static void run_turn(void *ctx, unsigned member, unsigned n) {
    turn *t = ctx;
    (void)n;
    pool_barrier(t->p, member); /* everybody is awake */
    if (t->kind != METER_READ)
        t->rate[member] = meter_loop(t->kind, CLOCK_MONOTONIC);
    else
        t->rate[member] = 1e-9 * (double)t->bytes / meter_read(t->memory + member * t->bytes, t->bytes, CLOCK_MONOTONIC);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void meter_all(pool *p, const void *memory, size_t bytes, meter_rates *out) {
    turn t = {.memory = memory, .bytes = bytes, .p = p};
    double rates[METER_KINDS][TURNS];
    for (int i = 0; i < TURNS; i++)
        for (int k = 0; k < METER_KINDS; k++) {
            t.kind = (meter_kind)k;
            pool_run(p, run_turn, &t);
            rates[k][i] = 0;
            for (unsigned m = 0; m < pool_size(p); m++) rates[k][i] += t.rate[m];
        }
    for (int k = 0; k < METER_KINDS; k++) {
        qsort(rates[k], TURNS, sizeof rates[k][0], by_value);
        out->rate[k] = rates[k][TURNS / 2];
    }
}
