/* crew.h - how many members of a pool are worth running while other programs want the cores too.
 *
 * A member that loses its core in the midst of its work holds up all others at their next barrier.  Two members that share
 * two cores with one busy neighbour so get about as far as one alone; sixteen on sixteen cores lose as much to one
 * neighbour, and fifteen would hardly notice it.  So the pool tells this file how long members were ready to run and did not,
 * and the crew shrinks by one when that is more than the last member is worth, and tries again later: soon at first, then
 * ever more rarely, while it meets the same.  Only arithmetic on what it is told: no clock, no threads. */
#ifndef HD_BASE_CREW_H
#define HD_BASE_CREW_H

#include <stdbool.h>
#include <stdint.h>

enum {
    CREW_WINDOW_NS = 50000000,    /* of work between two judgements: a dozen time slices; 20 ms fell for passing trouble */
    CREW_HOLD_MIN_NS = 100000000, /* a crew that shrank stays so for this long, */
    CREW_HOLD_MAX_NS = 1600000000 /* doubled each time that a new try fails at once, up to this: a try costs about a window */
};

typedef struct {
    unsigned n, active;       /* members there are; members to run, 1..n */
    uint64_t wall_ns, off_ns; /* of the window that runs */
    uint64_t hold_ns, t_more_ns;
    bool trying; /* the crew has grown and no window has passed since */
} crew;

void crew_init(crew *c, unsigned n);
/* A run of c->active members ended at now_ns (any clock that does not go back).  It took wall_ns; off_ns: how long members,
 * added up, were ready to run and did not.  Sets active for the next run. */
void crew_note(crew *c, uint64_t now_ns, uint64_t wall_ns, uint64_t off_ns);

#endif
