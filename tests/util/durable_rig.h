/* durable_rig.h - a server with a request log on a disk in memory, that can lose its power and start again. */
#ifndef HD_TESTS_DURABLE_RIG_H
#define HD_TESTS_DURABLE_RIG_H

#include "util/memvfs.h"
#include "util/server_rig.h"

#define CHAT "/v1/chat/completions"
#define COMPLETE "/v1/completions"
#define MSG(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define LONG_DONE 30000 /* ms within which every generation here must end, also under a sanitizer */

typedef struct {
    rig r;
    memvfs *disk;
    char dir[64]; /* of the lock file */
    const char *script;
    server_options so;
    engine_options eo;
} drig;

/* The script of most tests: "long" loops over abcdefghij, "fail" fails at its third token. */
extern const char durable_script[];

/* so and eo may be NULL. */
void drig_open(drig *d, const char *script, const server_options *so, const engine_options *eo);
void drig_close(drig *d);
/* The power goes now, and comes back: the disk holds what a disk may then hold, by seed.  The server is not open. */
void drig_cut(drig *d, uint64_t seed);
/* Power cut and a new start; d->script, d->so and d->eo may have been changed before. */
void drig_restart(drig *d, uint64_t seed);
void drig_start(drig *d);

/* A request; status in *status, its body to be freed with hd_free.  key: Idempotency-Key or NULL; extra: further header
 * lines or NULL. */
char *ask(drig *d, const char *method, const char *path, const char *key, const char *extra, const char *json, int *status);
char *ask_good(drig *d, const char *path, const char *key, const char *extra, const char *json); /* and it is 200 */
/* The error's code of a reply that must have this status; freed at the next call. */
const char *ask_bad(drig *d, const char *method, const char *path, const char *key, const char *json, int status);
/* Begin a request and read until `text` is in the body; the connection stays open. */
void begin(client *c, drig *d, const char *path, const char *key, const char *json, const char *text);
void id_of(const char *body, char id[64]);
/* Poll /v1/heddle/state until durable.WHAT is `want`. */
bool durable_is(drig *d, const char *what, long want);
long durable_now(drig *d, const char *what);
/* Fail unless the data events of an SSE body are numbered first, first + 1, ... and [DONE] comes last, without a number. */
void check_numbers(const char *body, long first);
/* The part of an SSE body behind the event of that number. */
const char *behind(const char *body, long number);

#endif
