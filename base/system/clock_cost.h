/* The overhead of a measurement: seconds between two consecutive readings of clock_seconds(), the
 * minimum of several. */
#ifndef BASE_SYSTEM_CLOCK_COST_H
#define BASE_SYSTEM_CLOCK_COST_H
double clock_cost(void);
#endif
