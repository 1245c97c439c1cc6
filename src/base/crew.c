/* crew.c - see crew.h. */
#include "base/crew.h"

void crew_init(crew *c, unsigned n) { *c = (crew){.n = n, .active = n, .hold_ns = CREW_HOLD_MIN_NS}; }

static void begin_window(crew *c) { c->wall_ns = c->off_ns = 0; }

/* While a member is off its core the others wait, more or less, so n members do n (1 - off) of work, and one fewer does
 * n - 1 if the trouble ends with it: equal at off = 1 / n.  Three quarters of that, because n members seldom are n times as
 * fast as one, and waiting costs besides; with half of it, passing trouble cost a step of many rows more than it saved. */
static bool too_many(const crew *c) {
    uint64_t span = c->wall_ns > CREW_WINDOW_NS ? c->wall_ns : CREW_WINDOW_NS;
    return c->off_ns > 3 * span / (4 * c->active);
}

void crew_note(crew *c, uint64_t now_ns, uint64_t wall_ns, uint64_t off_ns) {
    c->wall_ns += wall_ns;
    c->off_ns += off_ns;
    if (c->active > 1 && too_many(c)) {
        if (!c->trying) c->hold_ns = CREW_HOLD_MIN_NS;
        else if (c->hold_ns < CREW_HOLD_MAX_NS) c->hold_ns *= 2;
        c->t_more_ns = now_ns + c->hold_ns;
        c->trying = false;
        c->active--;
        begin_window(c);
    } else if (c->wall_ns >= CREW_WINDOW_NS) {
        c->trying = c->active < c->n && now_ns >= c->t_more_ns;
        if (c->trying) c->active++;
        begin_window(c);
    }
}
