/* What cluster files are imported from: every kind, recognised by content. What is
 * imported must be a cluster. */
#include "cost/cluster/cluster.h"
#include "cost/cluster_import/import.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const types[] = {"A100-80GB", "host"};
    for (int32_t k = 0; k < 2; k++) {
        AmError error = {0};
        Arena arena = {0};
        Import import;
        Cluster *cluster;
        json_t *description = NULL;
        if (import_begin(&import, &arena, types[k], NULL, &error) == AM_OK &&
            import_add(&import, fuzz_path(data, size), &error) == AM_OK &&
            import_finish(&description, &import, &error) == AM_OK &&
            cluster_from_json(&cluster, &arena, description, "import", &error) == AM_OK)
            cluster_free(cluster);
        json_decref(description);
        import_end(&import);
        arena_free(&arena);
    }
    return 0;
}
