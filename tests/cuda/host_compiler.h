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
#include <unistd.h>

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
 * `root`: the source folder; `log`: a file for the compiler's words. `headers`: a folder for the precompiled
 * host.h, which is made where it is missing and which belongs to the level and to the sources of one moment;
 * NULL: host.h is read each time. */
static inline bool host_compile(const char *source, const char *library, const char *log, const char *root,
                                const char *level, const char *headers) {
    enum { BYTES = 4096 };
    char command[2 * BYTES], object[BYTES], flags[BYTES], header[BYTES] = "";
    const char *options = host_compiler_options();
    snprintf(object, sizeof object, "%s.o", library);
    snprintf(flags, sizeof flags,
             "-std=c++17 %s -w -c -fPIC -ffp-contract=off -fno-strict-aliasing -U_FORTIFY_SOURCE %s", level,
             options);
    if (headers) {
        snprintf(header, sizeof header, "%s/tests/cuda/host.h.gch", headers);
        snprintf(command, sizeof command,
                 "mkdir -p '%s/tests/cuda' && c++ %s -I'%s' -x c++-header '%s/tests/cuda/host.h' -o '%s.%d' "
                 "2>'%s' && mv '%s.%d' '%s'",
                 headers, flags, root, root, header, (int)getpid(), log, header, (int)getpid(), header);
        if (access(header, R_OK) != 0 && system(command) != 0) return false;
        snprintf(header, sizeof header, "-I'%s'", headers);
    }
    int length = snprintf(command, sizeof command,
                          "c++ %s %s -I'%s' '%s' -o '%s' 2>'%s' && "
                          "c++ -shared -Wl,-Bsymbolic %s '%s' -o '%s' 2>>'%s'",
                          flags, header, root, source, object, log,
                          host_kernels_are("sanitize") ? options : "", object, library, log);
    bool done = length < (int)sizeof command && system(command) == 0;
    remove(object);
    return done;
}

#endif
