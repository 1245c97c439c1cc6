/* plant.h - faults put in on purpose, to see that the tests find them.
 *
 * Only in builds with -DHEDDLE_PLANT=ON; everywhere else PLANTED(x) is a constant 0 and costs nothing. */
#ifndef HD_BASE_PLANT_H
#define HD_BASE_PLANT_H

typedef enum {
    PLANT_NONE,
    PLANT_SETTLE_TWICE,     /* a session is settled a second time */
    PLANT_LEAK_PAGE,        /* a page stays taken when a row is cancelled in prefill */
    PLANT_SHARED_OVERTAKES, /* a shared lease is granted past a waiting exclusive one */
    PLANT_PLAN_PAUSED,      /* a paused row gets a segment */
    PLANT_MISCOUNT_FED,     /* a row counts one token less as computed than it was */
    PLANT_CURSOR_SKIPS,     /* a step forgets one of its rows */
    N_PLANTS
} plant;

#ifdef HD_PLANT
extern plant hd_planted; /* set by the test before the engine is opened */
#define PLANTED(x) (hd_planted == (x))
#else
#define PLANTED(x) 0
#endif

#endif
