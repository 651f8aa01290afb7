/* The process as the system sees it: what memory it holds, what processors it may use. */
#ifndef BASE_SYSTEM_PROCESS_H
#define BASE_SYSTEM_PROCESS_H

#include <stdint.h>

/* Returns the bytes of resident memory; 0 if the system does not report it. Allocates nothing. */
int64_t process_resident_bytes(void);
/* Returns the peak of the resident memory; 0 if the system does not report it. */
int64_t process_peak_resident_bytes(void);
/* Processors that the calling thread may run on; at least 1. */
int32_t process_processors(void);

#endif
