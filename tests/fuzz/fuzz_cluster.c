/* Cluster files. */
#include "cost/cluster/cluster.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    AmError error = {0};
    Arena arena = {0};
    Cluster *cluster;
    Text text = {0};
    if (cluster_read(&cluster, &arena, fuzz_path(data, size), &error) == AM_OK) {
        cluster_print(&text, cluster);
        text_free(&text);
        cluster_free(cluster);
    }
    arena_free(&arena);
    return 0;
}
