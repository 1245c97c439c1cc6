/* mem.h - the only door to the heap, with the seam through which tests make it fail.
 *
 * hd_mem_fail_after(n) lets n further allocations of this thread succeed and refuses the ones after
 * that; -1 switches it off.  In debug builds hd_mem_live() counts blocks that are not yet freed, over
 * all threads, and HD_NO_HEAP sections make an allocation an assertion failure (a step must not allocate). */
#ifndef HD_BASE_MEM_H
#define HD_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *hd_alloc(size_t size);                         /* NULL when refused; size 0 gives a unique block */
void *hd_calloc(size_t n, size_t size);              /* n * size is checked */
void *hd_realloc(void *p, size_t size);              /* on NULL the old block stays */
void *hd_reallocarray(void *p, size_t n, size_t size); /* n * size is checked */
char *hd_strdup(const char *s);
char *hd_strndup(const char *s, size_t n);           /* copies n bytes and adds a NUL; s may hold NULs */
void hd_free(void *p);

void *hd_alloc_aligned(size_t align, size_t size);   /* for hd_free_aligned */
void hd_free_aligned(void *p);

/* Give free memory back to the system, as far as the C library can; some milliseconds, so only after something large. */
void hd_mem_trim(void);
/* For a program's start: blocks above 256 KiB come from the system and go back to it when freed (the C library would raise
 * that mark with use), and few arenas.  Process-wide, so programs call it and the library does not. */
void hd_mem_tune(void);

void hd_mem_fail_after(long n);
long hd_mem_live(void);
void hd_mem_forbid(bool on); /* debug builds: allocations of this thread assert while on */

/* Grow the array *p (elements of `size` bytes, capacity *cap) so that it holds `need` elements, doubling, never
 * above `max` elements.  Returns false and changes nothing when refused or above max. */
bool hd_grow(void *p, size_t *cap, size_t need, size_t size, size_t max);

#endif
