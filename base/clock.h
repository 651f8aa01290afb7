/* Monotonic time in seconds, and CPU time of the process. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H
double clock_seconds(void);
double clock_cpu_seconds(void);
#endif
