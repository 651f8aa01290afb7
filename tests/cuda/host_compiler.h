/* Compiles device code for the host (host.h) to a library: for the tests of
 * generated kernels and for the stand-in driver.
 *
 * AUTOMAP_HOST_KERNELS chooses the instrumentation. "sanitize": the address and
 * undefined-behaviour sanitizers, for a program that is linked with the address
 * sanitizer. "races": the race detector of host_races.h, for any program. A
 * finding ends the process. Unset: none. Contraction is off, as for the GPU.
 */
#ifndef TESTS_CUDA_HOST_COMPILER_H
#define TESTS_CUDA_HOST_COMPILER_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline bool host_kernels_are(const char *kind) {
    const char *chosen = getenv("AUTOMAP_HOST_KERNELS");
    return chosen && strcmp(chosen, kind) == 0;
}

static inline const char *host_compiler_options(void) {
    if (host_kernels_are("sanitize"))
        return "-g1 -fno-omit-frame-pointer "
               "-fsanitize=address,alignment,bounds,shift,signed-integer-overflow,"
               "float-cast-overflow,integer-divide-by-zero,unreachable,vla-bound -fno-sanitize-recover=all";
    return host_kernels_are("races") ? "-DHOST_RACES -fsanitize=thread -Wno-tsan" : "";
}

/* Runs c++ in two commands, since the thread sanitizer's own library is not to be linked.
 * `root`: the source folder; `log`: a file for the compiler's words. */
static inline bool host_compile(const char *source, const char *library, const char *log, const char *root,
                                const char *level) {
    enum { BYTES = 4096 };
    char command[BYTES], object[BYTES];
    const char *options = host_compiler_options();
    snprintf(object, sizeof object, "%s.o", library);
    int length = snprintf(command, sizeof command,
                          "c++ -std=c++17 %s -w -c -fPIC -ffp-contract=off -fno-strict-aliasing "
                          "-U_FORTIFY_SOURCE %s -I'%s' '%s' -o '%s' 2>'%s' && "
                          "c++ -shared -Wl,-Bsymbolic %s '%s' -o '%s' 2>>'%s'",
                          level, options, root, source, object, log,
                          host_kernels_are("sanitize") ? options : "", object, library, log);
    bool done = length < BYTES && system(command) == 0;
    remove(object);
    return done;
}

#endif
