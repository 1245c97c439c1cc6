/* detokenize.c - `heddle detokenize MODEL --ids 1,2,3 [--special] [--json]`: the text, or {"text"}. */
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/opts.h"

#include "base/jsonw.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Numbers with commas or white space between; an empty list is one too. */
static hd_status parse_ids(const char *s, id_list *ids, hd_err *err) {
    const char *p = s + strspn(s, " \t\r\n");
    while (*p) {
        char *end;
        long v;
        hd_status st;
        errno = 0;
        v = strtol(p, &end, 10);
        if (end == p || errno || v < 0 || v > INT32_MAX)
            return hd_fail_at(err, HD_INVALID, (uint64_t)(p - s), "--ids: no token id at byte %zu", (size_t)(p - s));
        if ((st = id_list_add(ids, (int32_t)v, err))) return st;
        p = end + strspn(end, " \t\r\n");
        if (*p == ',') {
            p++;
            p += strspn(p, " \t\r\n");
            if (!*p) return hd_fail_at(err, HD_INVALID, (uint64_t)(p - s), "--ids: no token id after the last comma");
        }
    }
    return HD_OK;
}

static hd_status answer(const tokenizer *t, const char *list, bool special, bool json, hd_err *err) {
    id_list ids;
    hd_buf text, out;
    hd_status st;
    id_list_init(&ids, INT32_MAX);
    buf_init(&text, SIZE_MAX);
    buf_init(&out, SIZE_MAX);
    if (!(st = parse_ids(list, &ids, err)) && !(st = tokenizer_decode(t, ids.ids, ids.n, special, &text, err))) {
        if (json) {
            buf_str(&out, "{\"text\":\"");
            jsonw_escape(&out, buf_cstr(&text), text.len);
            buf_str(&out, "\"}");
        } else {
            buf_add(&out, buf_cstr(&text), text.len);
        }
        buf_byte(&out, '\n');
        if (out.failed)
            st = hd_fail(err, out.failed, "no memory for the text of %zu tokens", ids.n);
        else if (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout))
            st = hd_fail(err, HD_IO, "stdout cannot be written");
    }
    id_list_deinit(&ids);
    buf_deinit(&text);
    buf_deinit(&out);
    return st;
}

int cmd_detokenize(int argc, char **argv) {
    static const char usage[] = "heddle detokenize MODEL --ids 1,2,3 [--special] [--json]\n"
                                "  --special   control tokens are written by name";
    const char *model = NULL, *list = NULL;
    bool special = false, json = false;
    size_t n_args;
    tokenizer *t;
    hd_err err;
    hd_status st;
    const opt_def defs[] = {{"--ids", OPT_STR, &list, NULL}, {"--special", OPT_FLAG, &special, NULL}, {"--json", OPT_FLAG, &json, NULL}};
    int rc = opts_parse(argc, argv, defs, sizeof defs / sizeof *defs, &model, 1, &n_args, usage);
    if (rc) return rc;
    if (!n_args || !list) {
        fprintf(stderr, "heddle: a MODEL and --ids are needed\nusage: %s\n", usage);
        return EXIT_USAGE;
    }
    if (input_tokenizer(&t, model, &err)) return fail_with(&err);
    st = answer(t, list, special, json, &err);
    tokenizer_free(t);
    return st ? fail_with(&err) : 0;
}
