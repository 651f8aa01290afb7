/* This host as libhwloc sees it, in the XML that its tools write: one reader serves
 * both this machine and files from others.
 */
#include "cost/cluster_import/import.h"

#ifdef AUTOMAP_HAVE_HWLOC
#include <hwloc.h>

AmStatus import_this_host(FileBytes *file, Arena *arena, AmError *error) {
    hwloc_topology_t topology;
    char *text = NULL;
    int length = 0;
    if (hwloc_topology_init(&topology) < 0)
        return am_fail(error, AM_ERROR_RUNTIME, "", "hwloc does not start");
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    bool done = hwloc_topology_load(topology) == 0 &&
                hwloc_topology_export_xmlbuffer(topology, &text, &length, 0) == 0;
    if (done) {
        /* The length counts the NUL. */
        *file = (FileBytes){.name = "<hwloc>",
                            .data = arena_copy_bytes(arena, text, (size_t)length - 1),
                            .length = length - 1};
        hwloc_free_xmlbuffer(topology, text);
    }
    hwloc_topology_destroy(topology);
    if (!done) return am_fail(error, AM_ERROR_RUNTIME, "", "hwloc cannot describe this host");
    return file->data ? AM_OK : am_fail_memory(error, length);
}

#else

AmStatus import_this_host(FileBytes *file, Arena *arena, AmError *error) {
    (void)file;
    (void)arena;
    return am_fail(error, AM_ERROR_RUNTIME, "",
                   "hwloc: this build has none (libhwloc was not found when it was configured)");
}

#endif
