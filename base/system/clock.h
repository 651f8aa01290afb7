/* Monotonic time in seconds, and CPU time of the process and of the calling thread. */
#ifndef BASE_SYSTEM_CLOCK_H
#define BASE_SYSTEM_CLOCK_H
/* Returns the seconds since an arbitrary moment; processor seconds of all threads of the process; of this
 * thread. */
double clock_seconds(void);
double clock_cpu_seconds(void);
double clock_thread_seconds(void);
#endif
