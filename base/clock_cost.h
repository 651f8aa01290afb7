/* What measuring takes: seconds between two readings of clock_seconds() with nothing in between, the least of
 * some. */
#ifndef BASE_CLOCK_COST_H
#define BASE_CLOCK_COST_H
double clock_cost(void);
#endif
