/* Libraries of a vendor, opened at run time.
 *
 * A program built with CUDA links none of its libraries, so it starts on a machine
 * without them. The first use of a missing library fails with one line. A
 * library has a list of names, which are tried in order, wherever the loader
 * looks and then in the folders of toolkits. It has a table of function pointers
 * to fill, which is made from one list of functions:
 *
 *   #define FUNCTIONS(X) X(cuInit) X(cuMemAlloc)
 *   static struct { FUNCTIONS(CUDA_MEMBER) } table;
 *   static const CudaSymbol symbols[] = {FUNCTIONS(CUDA_SYMBOL)};   with
 *   #define CUDA_SYMBOL(function) CUDA_SYMBOL_IN(table, function)
 *
 * Headers rename functions by macros (cuMemAlloc is cuMemAlloc_v2): the members
 * and the requested names are the renamed ones, as in a call that is linked.
 */
#ifndef BASE_CUDA_LIBRARY_H
#define BASE_CUDA_LIBRARY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct CudaSymbol {
    const char *name;
    void *place; /* of the pointer to the function */
} CudaSymbol;

/* One for each library, static; the last three fields are cuda_library_open()'s. */
typedef struct CudaLibrary {
    const char *title;        /* for messages: "the NVIDIA driver" */
    const char *const *names; /* sonames in order of preference; NULL ends them */
    const CudaSymbol *symbols;
    int32_t symbol_count;
    bool tried;
    AmStatus status;
    AmError failure;
} CudaLibrary;

#define CUDA_MEMBER(function)           __typeof__(function) *function;
#define CUDA_NAME_TEXT(function)        #function
#define CUDA_NAME(function)             CUDA_NAME_TEXT(function)
#define CUDA_SYMBOL_IN(table, function) {CUDA_NAME(function), (void *)&(table).function},

/* Opens the library and fills its table, once; later calls give the same answer.
 * May be called by several threads. AM_ERROR_RUNTIME: it cannot be opened, or
 * lacks a function; the text names both. It stays open until the process ends. */
AmStatus cuda_library_open(CudaLibrary *library, AmError *error);

#endif
