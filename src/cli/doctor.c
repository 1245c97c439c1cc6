/* doctor.c - `heddle doctor`: what this machine offers, what heddle makes of it, and how the server at a URL is doing.
 *
 * Takes bounded time whatever answers: 2 s and 4 MiB for each of two requests.  What a server says is not trusted:
 * texts are printed without control characters, and a reply of another shape is only called strange. */
#include "cli/common.h"

#include "base/mem.h"
#include "base/topology.h"
#include "kernels/kernels.h"

#include <curl/curl.h>
#include <jansson.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_URL "http://127.0.0.1:8080"
enum { TIMEOUT_MS = 2000, REPLY_BYTES = 4 << 20, URL_BYTES = 2000, SHOWN = 50 /* waiting requests in the text report */ };

/* ---- the machine ---- */

typedef struct {
    hd_topology topo;
    long online;
    int allowed;
    uint64_t memory, memory_limit, huge_bytes, huge_reserved;
    const char *isa, *isa_forced; /* isa NULL: this CPU has not got the forced one */
    char thp[16];                 /* transparent huge pages: always, madvise, never; "unknown" */
    char why[160];                /* the default of --threads */
} machine;

/* The whole of a small file of /sys or /proc, "" if there is none. */
static void small_file(const char *path, char *out, size_t size) {
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(out, 1, size - 1, f) : 0;
    out[n] = 0;
    if (f) fclose(f);
}

/* The number behind `key` in /proc/meminfo. */
static uint64_t meminfo(const char *text, const char *key) {
    const char *at = strstr(text, key);
    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static void look_at_huge_pages(machine *m) {
    char text[8192], *open, *end;
    small_file("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text); /* "always [madvise] never" */
    snprintf(m->thp, sizeof m->thp, "unknown");
    if ((open = strchr(text, '[')) && (end = strchr(open, ']')))
        snprintf(m->thp, sizeof m->thp, "%.*s", (int)(end - open - 1), open + 1);
    small_file("/proc/meminfo", text, sizeof text);
    m->huge_bytes = meminfo(text, "Hugepagesize:") * 1024;
    m->huge_reserved = meminfo(text, "HugePages_Total:");
}

static void look_at_machine(machine *m) {
    cpu_set_t cpus;
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    const kernels *k;
    memset(m, 0, sizeof *m);
    hd_topology_get(&m->topo);
    m->online = sysconf(_SC_NPROCESSORS_ONLN);
    m->allowed = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : (int)m->topo.logical;
    m->memory = pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
    m->memory_limit = hd_memory_limit();
    m->isa_forced = getenv("HEDDLE_ISA");
    k = kernels_get(m->isa_forced);
    m->isa = k ? kernels_name(k) : NULL;
    look_at_huge_pages(m);
    if (m->topo.threads < m->topo.cores && m->topo.quota > 0)
        snprintf(m->why, sizeof m->why, "the control group allows %.2f CPUs, fewer than the %u cores", m->topo.quota, m->topo.cores);
    else if (m->topo.cores < m->topo.logical)
        snprintf(m->why, sizeof m->why, "one for each of %u physical cores; their siblings and slower kinds of core are left out",
                 m->topo.cores);
    else
        snprintf(m->why, sizeof m->why, "one for each core this process may use");
}

static json_t *machine_json(const machine *m) {
    return json_pack("{s:I,s:i,s:i,s:i,s:f,s:I,s:I,s:s?,s:s?,s:{s:s,s:I,s:I},s:i,s:s}", "cores_online", (json_int_t)m->online,
                     "cpus_allowed", m->allowed, "cpus_usable", (int)m->topo.logical, "physical_cores", (int)m->topo.cores, "cpu_quota",
                     m->topo.quota, "memory_bytes", (json_int_t)m->memory, "memory_limit_bytes", (json_int_t)m->memory_limit, "isa",
                     m->isa, "isa_forced", m->isa_forced, "huge_pages", "transparent", m->thp, "page_bytes", (json_int_t)m->huge_bytes,
                     "reserved", (json_int_t)m->huge_reserved, "threads", (int)m->topo.threads, "threads_why", m->why);
}

static void print_machine(const machine *m) {
    char a[SIZE_TEXT], b[SIZE_TEXT];
    printf("heddle %s\n\nmachine\n", HEDDLE_VERSION);
    printf("  cpus        %ld online, %d allowed to this process, %u physical cores among them\n", m->online, m->allowed, m->topo.cores);
    if (m->topo.quota > 0) printf("  quota       %.2f CPUs by control group\n", m->topo.quota);
    else printf("  quota       none\n");
    printf("  threads     %u: %s\n", m->topo.threads, m->why);
    printf("  memory      %s, this process may use %s\n", size_text(m->memory, a), size_text(m->memory_limit, b));
    if (m->isa) printf("  kernels     %s%s\n", m->isa, m->isa_forced ? " ($HEDDLE_ISA)" : "");
    else printf("  kernels     $HEDDLE_ISA names a path that this CPU has not got; no model will load\n");
    printf("  huge pages  transparent: %s; %llu reserved of %llu KiB\n", m->thp, (unsigned long long)m->huge_reserved,
           (unsigned long long)m->huge_bytes / 1024);
}

/* ---- the server ---- */

typedef struct {
    long status; /* 0: no answer, why says it */
    json_t *body; /* NULL: not JSON */
    char why[CURL_ERROR_SIZE];
} reply;

static size_t on_body(char *p, size_t size, size_t n, void *arg) { return buf_add(arg, p, size * n) ? size * n : 0; }

/* GET url + path.  Redirects are not followed: the key is for this server. */
static void get(const char *url, const char *path, const char *key, reply *r) {
    char full[URL_BYTES + 40], auth[1100];
    struct curl_slist *headers = NULL;
    size_t n = strlen(url);
    hd_buf body;
    CURLcode rc = CURLE_OUT_OF_MEMORY;
    CURL *c = curl_easy_init();
    memset(r, 0, sizeof *r);
    buf_init(&body, REPLY_BYTES);
    while (n && url[n - 1] == '/') n--;
    snprintf(full, sizeof full, "%.*s%s", (int)n, url, path);
    if (key) {
        snprintf(auth, sizeof auth, "Authorization: Bearer %s", key);
        headers = curl_slist_append(NULL, auth);
    }
    if (c && (headers || !key)) {
        curl_easy_setopt(c, CURLOPT_URL, full);
        curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
        curl_easy_setopt(c, CURLOPT_NOPROXY, "localhost,127.0.0.1,::1");
        curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)TIMEOUT_MS);
        curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(c, CURLOPT_ERRORBUFFER, r->why);
        curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
        curl_easy_setopt(c, CURLOPT_WRITEDATA, &body);
        if (!(rc = curl_easy_perform(c))) curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &r->status);
    }
    if (rc && !r->why[0]) snprintf(r->why, sizeof r->why, "%s", curl_easy_strerror(rc));
    if (r->status) r->body = json_loadb(buf_cstr(&body), body.len, 0, NULL);
    curl_slist_free_all(headers);
    curl_easy_cleanup(c);
    buf_deinit(&body);
}

typedef struct {
    const char *url;
    reply health, state;
} server_report;

static const char *health_of(const server_report *r) {
    const char *s = json_string_value(json_object_get(r->health.body, "status"));
    return s ? s : "strange";
}

static const char *no_state(const server_report *r) {
    return r->state.status == 401 ? "the state needs a key: --api-key"
           : !r->state.status     ? "the state did not come in time"
           : r->state.status == 503 ? "there is no state while the model is loading"
                                    : "the state is not one of heddle's";
}

static bool has_state(const server_report *r) {
    return r->state.status == 200 && json_is_array(json_object_get(r->state.body, "queue"));
}

static json_t *server_json(const server_report *r) {
    json_t *o = json_pack("{s:s,s:b}", "url", r->url, "answers", r->health.status != 0);
    if (!o || !r->health.status) {
        if (o) json_object_set_new(o, "error", json_string(r->health.why));
        return o;
    }
    json_object_set_new(o, "health", json_string(health_of(r)));
    if (!has_state(r)) {
        json_object_set_new(o, "error", json_string(no_state(r)));
        return o;
    }
    for (int i = 0; i < 5; i++) {
        static const char *const keys[] = {"limits", "running", "waiting", "queue", "step"};
        json_t *v = json_object_get(r->state.body, keys[i]);
        if (v) json_object_set(o, keys[i], v);
    }
    return o;
}

/* Text of the server's without what a terminal would obey. */
static const char *clean(const json_t *o, const char *key, char out[80]) {
    const char *s = json_string_value(json_object_get(o, key));
    size_t n = 0;
    for (; s && s[n] && n < 79; n++) out[n] = (unsigned char)s[n] < 32 || (unsigned char)s[n] > 126 ? '?' : s[n];
    out[n] = 0;
    return out;
}

/* A count, as far as one can be printed. */
static long long number(const json_t *o, const char *key) {
    double v = json_number_value(json_object_get(o, key));
    return v > -1e15 && v < 1e15 ? (long long)v : v < 0 ? (long long)-1e15 : (long long)1e15;
}

static const char *explain(const char *reason) {
    static const char *const known[][2] = {{"rows", "all rows are taken"},
                                           {"pages", "its pages are not free yet"},
                                           {"order", "others are first"},
                                           {"exclusive_job", "an exclusive job waits or runs"},
                                           {"draining", "the server is shutting down"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(reason, known[i][0])) return known[i][1];
    return reason;
}

static void print_server(const server_report *r, bool asked) {
    const json_t *limits, *queue;
    char a[80], b[80], c[80], d[80], size[SIZE_TEXT];
    printf("\nserver at %s\n", r->url);
    if (!r->health.status) {
        printf("  none answers: %s%s\n", r->health.why, asked ? "" : " (--url names another)");
        return;
    }
    printf("  health      %s\n", r->health.body ? clean(r->health.body, "status", a) : "strange: not heddle's");
    if (!has_state(r)) {
        printf("  %s\n", no_state(r));
        return;
    }
    limits = json_object_get(r->state.body, "limits");
    queue = json_object_get(r->state.body, "queue");
    clean(limits, "kv_type", a);
    clean(limits, "kv_type_sliding", b);
    printf("  limits      %lld rows, %lld waiting, context %lld, %lld tokens a step, %s of KV (%s%s%s)\n", number(limits, "max_rows"),
           number(limits, "max_queued"), number(limits, "context"), number(limits, "step_tokens"),
           size_text((uint64_t)number(limits, "kv_bytes"), size), a,
           strcmp(a, b) ? ", sliding windows " : "", strcmp(a, b) ? b : "");
    printf("  now         %lld run, %lld wait\n", number(r->state.body, "running"), number(r->state.body, "waiting"));
    for (size_t i = 0; i < json_array_size(queue); i++) {
        const json_t *q = json_array_get(queue, i);
        if (i == SHOWN) {
            printf("  and %zu more\n", json_array_size(queue) - i);
            break;
        }
        printf("  %s  %s, %s priority: %s; waited %lld ms, about %lld ms to go\n", clean(q, "id", a), clean(q, "phase", b),
               clean(q, "priority", c), explain(clean(q, "reason", d)), number(q, "waited_ms"), number(q, "expected_wait_ms"));
    }
}

static bool print_json(const machine *m, const server_report *r) {
    json_t *all = json_pack("{s:s,s:o,s:o}", "version", HEDDLE_VERSION, "machine", machine_json(m), "server", server_json(r));
    char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
    if (text) puts(text);
    free(text);
    json_decref(all);
    return text != NULL;
}

int cmd_doctor(int argc, char **argv) {
    static const char usage[] = "heddle doctor [--json] [--url " DEFAULT_URL "] [--api-key KEY]";
    const char *url = NULL, *key = NULL, *args[1];
    bool json = false;
    size_t n_args;
    machine m;
    server_report r = {0};
    int rc;
    const opt_def defs[] = {
        {"--json", OPT_FLAG, &json, NULL}, {"--url", OPT_STR, &url, NULL}, {"--api-key", OPT_STR, &key, NULL}};
    if ((rc = opts_parse(argc, argv, defs, sizeof defs / sizeof *defs, args, 1, &n_args, usage))) return rc;
    if (n_args || (url && (!*url || strlen(url) > URL_BYTES)) || (key && (strlen(key) > 1000 || strpbrk(key, "\r\n")))) {
        fprintf(stderr, "usage: %s\n", usage);
        return EXIT_USAGE;
    }
    look_at_machine(&m);
    r.url = url ? url : DEFAULT_URL;
    if (curl_global_init(CURL_GLOBAL_DEFAULT)) {
        fprintf(stderr, "heddle: libcurl cannot be used\n");
        return EXIT_FAILED;
    }
    get(r.url, "/health", NULL, &r.health);
    if (r.health.status) get(r.url, "/v1/heddle/state", key, &r.state);
    curl_global_cleanup();
    if (json) {
        if (!print_json(&m, &r)) rc = EXIT_FAILED;
    } else {
        print_machine(&m);
        print_server(&r, url != NULL);
    }
    if (url && !r.health.status) rc = EXIT_FAILED; /* asked for a server that is not there */
    json_decref(r.health.body);
    json_decref(r.state.body);
    return stdout_ok() ? rc : EXIT_FAILED;
}
