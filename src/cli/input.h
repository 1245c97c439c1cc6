/* input.h - what commands read: the tokenizer of a model, whole files, lines of a file or of stdin ("-"). */
#ifndef HD_CLI_INPUT_H
#define HD_CLI_INPUT_H

#include "base/buf.h"
#include "text/tokenizer.h"

#include <stdio.h>

/* The tokenizer of MODEL (a GGUF file, also one that holds a vocabulary only, or script:FILE).  Free with tokenizer_free. */
hd_status input_tokenizer(tokenizer **out, const char *path, hd_err *err);

/* The bytes of a file appended to out. */
hd_status input_file(const char *path, hd_buf *out, hd_err *err);

/* Lines end in LF alone; the last may lack it.  A line holds 64 MiB; of a longer one line.failed is set, and the next follows.
 * A source that has no line end within 256 MiB (a device, not lines) is not read any further. */
typedef struct {
    FILE *f;
    hd_buf line; /* the current one, without its LF */
    unsigned long number;
    bool endless;
} input_lines;
hd_status input_lines_open(input_lines *l, const char *path, hd_err *err);
bool input_lines_next(input_lines *l); /* false: there are no more; input_lines_end says why */
/* After the last line.  HD_OK: all were read; HD_IO: reading failed (a directory, a broken disk); HD_FULL: it is endless. */
hd_status input_lines_end(const input_lines *l, const char *path, hd_err *err);
void input_lines_close(input_lines *l);

/* "heddle: message" on stderr; returns EXIT_FAILED. */
int fail_with(const hd_err *err);

#endif
