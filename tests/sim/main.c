/* main.c - sim: explore seeds, run one, or replay a schedule (see sim.h). */
#include "sim/sim.h"
#include "base/plant.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
    "usage: sim [--seeds N] [--first SEED] [--jobs N] [--no-shrink]   explore N seeds (default 1000)\n"
    "       sim --seed SEED [--shrink] | --print SEED | --replay FILE\n"
    "       sim --planted [--seeds N]      each planted fault must be found within N seeds (builds with HEDDLE_PLANT)\n"
    "       sim --plant K ...              with planted fault K switched on\n";

enum { SECONDS_EACH = 60 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int explore(sim_exploration *x) {
    double t0 = now();
    sim_explore(x);
    sim_print_totals(&x->totals, stdout);
    printf("; %.0f s: %s\n", now() - t0, x->failed ? "an invariant is violated" : "no invariant is violated");
    return x->failed ? 1 : 0;
}

#ifdef HD_PLANT
static int planted(sim_exploration *x) {
    static const char *const names[N_PLANTS] = {"", "a settle called twice", "a page leaked on abort in prefill",
                                                "a shared lease overtaking a waiting exclusive one", "a paused row planned",
                                                "a fed token miscounted", "a cursor skipping a row"};
    int missed = 0;
    for (int i = PLANT_NONE + 1; i < N_PLANTS; i++) {
        sim_exploration y = *x;
        hd_planted = (plant)i;
        y.quiet = true;
        sim_explore(&y);
        printf("%s: ", names[i]);
        if (y.failed) printf("found by seed %llu\n", (unsigned long long)y.failing_seed);
        else printf("not found in %llu schedules\n", (unsigned long long)y.totals.schedules);
        missed += !y.failed;
    }
    printf("%d of %d planted faults found\n", N_PLANTS - 1 - missed, N_PLANTS - 1);
    return missed ? 1 : 0;
}
#endif

static int replay(const char *path, bool shrink) {
    static sim_plan p;
    const char *why;
    FILE *f = fopen(path, "r");
    bool fails;
    if (!f || !sim_plan_parse(&p, f, &why)) {
        fprintf(stderr, "sim: %s: %s\n", path, f ? why : "cannot be opened");
        if (f) fclose(f);
        return 64;
    }
    fclose(f);
    fails = sim_fails(&p, SECONDS_EACH, false);
    if (fails && shrink) {
        sim_shrink(&p, SECONDS_EACH);
        sim_plan_print(&p, stdout);
    }
    printf("%s\n", fails ? "it fails" : "it holds");
    return fails;
}

static int one(uint64_t seed, bool shrink) {
    static sim_plan p;
    sim_plan_make(&p, seed);
    if (!sim_fails(&p, SECONDS_EACH, false)) {
        printf("seed %llu holds\n", (unsigned long long)seed);
        return 0;
    }
    if (shrink) {
        sim_shrink(&p, SECONDS_EACH);
        sim_fails(&p, SECONDS_EACH, false);
    }
    sim_plan_print(&p, stdout);
    return 1;
}

int main(int argc, char **argv) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    sim_exploration x = {.first = 1, .n = 1000, .jobs = cores > 0 ? (unsigned)cores : 1, .shrink = true, .seconds_each = SECONDS_EACH};
    const char *seed = NULL, *print = NULL, *file = NULL;
    bool all_planted = false, shrink = false;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(a, "--planted")) all_planted = true;
        else if (!strcmp(a, "--no-shrink")) x.shrink = false;
        else if (!strcmp(a, "--shrink")) shrink = true;
        else if (!v) return fputs(usage, stderr), 64;
        else if (!strcmp(a, "--seeds")) x.n = strtoull(v, NULL, 10), i++;
        else if (!strcmp(a, "--first")) x.first = strtoull(v, NULL, 10), i++;
        else if (!strcmp(a, "--jobs")) x.jobs = (unsigned)strtoul(v, NULL, 10), i++;
        else if (!strcmp(a, "--seed")) seed = v, i++;
        else if (!strcmp(a, "--print")) print = v, i++;
        else if (!strcmp(a, "--replay")) file = v, i++;
#ifdef HD_PLANT
        else if (!strcmp(a, "--plant")) hd_planted = (plant)atoi(v), i++;
#endif
        else return fputs(usage, stderr), 64;
    }
    if (print) {
        static sim_plan p;
        sim_plan_make(&p, strtoull(print, NULL, 10));
        sim_plan_print(&p, stdout);
        return 0;
    }
    if (file) return replay(file, shrink);
    if (seed) return one(strtoull(seed, NULL, 10), shrink);
#ifdef HD_PLANT
    if (all_planted) return planted(&x);
#else
    if (all_planted) return fputs("sim: this build has no planted faults: -DHEDDLE_PLANT=ON\n", stderr), 64;
#endif
    return explore(&x);
}
