/* The overhead of a measurement: the least seconds between two consecutive readings of the clock. */
#include "base/system/clock_cost.h"

#include "base/system/clock.h"

enum { READINGS = 1000 };

double clock_cost(void) {
    double least = 1;
    for (int k = 0; k < READINGS; k++) {
        double begin = clock_seconds(), cost = clock_seconds() - begin;
        if (cost < least) least = cost;
    }
    return least;
}
