/* input.c - see input.h. */
#include "cli/input.h"

#include "cli/cli.h"
#include "model/model.h"

#include <errno.h>
#include <string.h>

enum {
    MAX_LINE_BYTES = 64 << 20, /* twice the body of an HTTP request */
    MAX_SKIP_BYTES = 4 * MAX_LINE_BYTES,
};

hd_status input_tokenizer(tokenizer **out, const char *path, hd_err *err) {
    model_options opt = {.vocab_only = true};
    model *m;
    hd_status st = model_open(&m, path, &opt, err);
    *out = NULL;
    if (st) return st;
    *out = model_take_tokenizer(m);
    model_close(m);
    return HD_OK;
}

static FILE *open_or_stdin(const char *path) { return strcmp(path, "-") ? fopen(path, "rb") : stdin; }
static void close_unless_stdin(FILE *f) {
    if (f && f != stdin) fclose(f);
}

hd_status input_file(const char *path, hd_buf *out, hd_err *err) {
    FILE *f = open_or_stdin(path);
    char block[65536];
    size_t n;
    bool bad;
    if (!f) return hd_fail(err, errno == ENOENT ? HD_NOTFOUND : HD_IO, "%s: %s", path, strerror(errno));
    while (!out->failed && (n = fread(block, 1, sizeof block, f))) buf_add(out, block, n); /* a device may never end */
    bad = ferror(f);
    close_unless_stdin(f);
    if (bad) return hd_fail(err, HD_IO, "%s: cannot be read", path);
    return out->failed ? hd_fail(err, out->failed, "%s: too large", path) : HD_OK;
}

hd_status input_lines_open(input_lines *l, const char *path, hd_err *err) {
    buf_init(&l->line, MAX_LINE_BYTES);
    l->number = 0;
    l->endless = false;
    if (!(l->f = open_or_stdin(path))) return hd_fail(err, HD_NOTFOUND, "%s: %s", path, strerror(errno));
    return HD_OK;
}

bool input_lines_next(input_lines *l) {
    size_t n = 0;
    int c;
    buf_clear(&l->line);
    if (l->endless) return false;
    while ((c = getc_unlocked(l->f)) != EOF) {
        n++;
        if (c == '\n') break;
        buf_byte(&l->line, (char)c);
        if (n == MAX_SKIP_BYTES) {
            l->endless = true;
            break;
        }
    }
    if (n) l->number++;
    return n > 0;
}

hd_status input_lines_end(const input_lines *l, const char *path, hd_err *err) {
    if (l->endless)
        return hd_fail(err, HD_FULL, "%s: line %lu does not end within %d MiB; nothing behind it was read", path, l->number,
                       MAX_SKIP_BYTES >> 20);
    return ferror(l->f) ? hd_fail(err, HD_IO, "%s: cannot be read after line %lu", path, l->number) : HD_OK;
}

void input_lines_close(input_lines *l) {
    close_unless_stdin(l->f);
    buf_deinit(&l->line);
}

int fail_with(const hd_err *err) {
    fprintf(stderr, "heddle: %s\n", err->msg);
    return EXIT_FAILED;
}
