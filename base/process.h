/* The process as the system sees it: what memory it holds, what processors it may use. */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H

#include <stdint.h>

/* Bytes of memory that are in use and not swapped out; 0 where the system does
 * not tell. Allocates nothing. */
int64_t process_resident_bytes(void);
/* The most that it ever was; 0 where the system does not tell. */
int64_t process_peak_resident_bytes(void);
/* Processors that the calling thread may run on; at least 1. */
int32_t process_processors(void);

#endif
