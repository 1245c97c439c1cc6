/* unicode.c - see unicode.h. */
#include "text/unicode.h"

#include "base/jsonw.h"
#include "base/mem.h"

#include <string.h>
#include <utf8proc.h>

static bool is_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

static uni classify_ascii(uint32_t c) {
    if (c >= 'a' && c <= 'z') return c | UNI_LL;
    if (c >= 'A' && c <= 'Z') return c | UNI_LU;
    if (c >= '0' && c <= '9') return c | UNI_N;
    if (is_space(c)) return c | UNI_SPACE;
    if (c < 0x20 || c == 0x7f) return c;
    return c | (strchr("$+<=>^`|~", (int)c) ? UNI_S : UNI_P);
}

uni uni_classify(uint32_t c) {
    uni u = c;
    if (c < 0x80) return classify_ascii(c);
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT: u |= UNI_LU; break;
    case UTF8PROC_CATEGORY_LL: u |= UNI_LL; break;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: u |= UNI_LO; break;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: u |= UNI_M; break;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: u |= UNI_N; break;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO: u |= UNI_P; break;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO: u |= UNI_S; break;
    default: break;
    }
    return is_space(c) ? u | UNI_SPACE : u;
}

size_t uni_decode(const char *s, size_t n, uni *out) {
    size_t i = 0, k = 0;
    while (i < n) {
        uint32_t cp = (uint8_t)s[i];
        int len;
        if (cp < 0x80) {
            out[k++] = classify_ascii(cp);
            i++;
        } else if ((len = utf8_next(s + i, n - i, &cp)) > 0) {
            out[k++] = uni_classify(cp);
            i += (size_t)len;
        } else {
            for (; len < 0; len++, i++) out[k++] = (uint8_t)s[i] | UNI_BAD;
        }
    }
    return k;
}

bool uni_may_change(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)s[i] >= 0xcc) return true; /* the lead bytes of U+0300 and up */
    return false;
}

/* ------------------------------------------------------------------------------------------------ normal forms */

static unsigned combining(int32_t cp) { return utf8proc_get_property(cp)->combining_class; }

/* Stable sort of p[0..n) by combining class, all classes being in 1..255: counting, since a hostile text is one run. */
static void sort_marks(int32_t *p, size_t n, int32_t *tmp) {
    size_t at[257] = {0};
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            int32_t x = p[i];
            size_t j = i;
            for (; j && combining(p[j - 1]) > combining(x); j--) p[j] = p[j - 1];
            p[j] = x;
        }
        return;
    }
    for (size_t i = 0; i < n; i++) at[(combining(p[i]) & 255) + 1]++;
    for (size_t c = 1; c < 257; c++) at[c] += at[c - 1];
    for (size_t i = 0; i < n; i++) tmp[at[combining(p[i]) & 255]++] = p[i];
    memcpy(p, tmp, n * sizeof *p);
}

typedef struct {
    int32_t *cp, *tmp;
    size_t n, cap, cap_tmp;
} group;

static bool add(group *g, uint32_t cp) {
    int boundary = 0;
    utf8proc_ssize_t k;
    if (!hd_grow(&g->cp, &g->cap, g->n + 8, sizeof *g->cp, SIZE_MAX / 8)) return false;
    /* At most 4 code points come out of one in canonical decomposition. */
    k = utf8proc_decompose_char((utf8proc_int32_t)cp, g->cp + g->n, 8, UTF8PROC_DECOMPOSE, &boundary);
    HD_ASSERT(k >= 0 && k <= 8);
    g->n += k > 0 ? (size_t)k : 0;
    return true;
}

static bool flush(group *g, bool compose, hd_buf *out) {
    size_t i = 0;
    if (!hd_grow(&g->tmp, &g->cap_tmp, g->n, sizeof *g->tmp, SIZE_MAX / 8)) return false;
    while (i < g->n) {
        size_t j = i;
        while (j < g->n && combining(g->cp[j])) j++;
        sort_marks(g->cp + i, j - i, g->tmp);
        i = j + 1;
    }
    if (compose && g->n) {
        utf8proc_ssize_t k =
            utf8proc_normalize_utf32(g->cp, (utf8proc_ssize_t)g->n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        HD_ASSERT(k >= 0);
        g->n = k > 0 ? (size_t)k : 0;
    }
    for (i = 0; i < g->n; i++) {
        utf8proc_uint8_t b[4];
        utf8proc_ssize_t k = utf8proc_encode_char(g->cp[i], b);
        buf_add(out, b, k > 0 ? (size_t)k : 0);
    }
    g->n = 0;
    return true;
}

hd_status uni_normalise(const char *s, size_t n, bool compose, hd_buf *out, hd_err *err) {
    group g = {0};
    size_t i = 0;
    bool ok = true;
    while (ok && i < n) {
        uint32_t cp;
        int len = utf8_next(s + i, n - i, &cp);
        /* Nothing below U+0300 combines with what stands before it, so each one starts a group of its own. */
        if (g.n && (len < 0 || cp < 0x300)) ok = flush(&g, compose, out);
        if (!ok) break;
        if (len < 0) {
            buf_add(out, s + i, (size_t)-len);
            i += (size_t)-len;
        } else {
            ok = add(&g, cp);
            i += (size_t)len;
        }
    }
    if (ok) ok = flush(&g, compose, out);
    hd_free(g.cp);
    hd_free(g.tmp);
    if (!ok) return hd_fail(err, HD_NOMEM, "no memory to normalise %zu bytes", n);
    if (out->failed) return hd_fail(err, out->failed, "no room for %zu normalised bytes", n);
    return HD_OK;
}
