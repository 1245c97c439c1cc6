/* plant.c - the one fault that is switched on, in builds that can (plant.h). */
#include "base/plant.h"

#ifdef HD_PLANT
plant hd_planted = PLANT_NONE; /* a seam for tests: set before the threads that read it start */
#endif
