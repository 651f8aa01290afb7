/* What cluster files are imported from: every kind, recognised by content. What is
 * imported must be a cluster. A profile of Sailor gets a model, a table of Aceso the name of one. */
#include <string.h>

#include "cost/cluster/cluster.h"
#include "cost/cluster_import/import.h"
#include "tests/fuzz/fuzz.h"

/* Adds the data as a file, and what belongs to it. */
static AmStatus add(Import *import, const uint8_t *data, size_t size, AmError *error) {
    AmStatus added = import_add(import, fuzz_path(data, size), error);
    if (import->sailor_layers && !import->sailor_model) {
        import->sailor_model =
            json_pack("{s:i, s:i, s:i}", "hidden_size", 64, "sequence_length", 32, "heads", 2);
        import->sailor_model_source = "model";
    }
    FileBytes file = {0};
    if (size < sizeof IMPORT_ACESO_OPERATORS ||
        memcmp(data, IMPORT_ACESO_OPERATORS, sizeof IMPORT_ACESO_OPERATORS - 1))
        return added;
    *error = (AmError){0};
    TRY(file_read(&file, fuzz_path(data, size), error));
    file.name = "fuzz_tp1_algo0.csv";
    AmStatus status = import_aceso_operators(import, &file, error);
    file_release(&file);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const types[] = {"A100-80GB", "host"};
    for (int32_t k = 0; k < 2; k++) {
        AmError error = {0};
        Arena arena = {0};
        Import import;
        Cluster *cluster;
        json_t *description = NULL;
        if (import_begin(&import, &arena, types[k], NULL, &error) == AM_OK &&
            add(&import, data, size, &error) == AM_OK &&
            import_finish(&description, &import, &error) == AM_OK &&
            cluster_from_json(&cluster, &arena, description, "import", &error) == AM_OK)
            cluster_free(cluster);
        json_decref(description);
        import_end(&import);
        arena_free(&arena);
    }
    return 0;
}
