/* Reads the key "collective_model" of a cluster, which selects NCCL's tuning model (nccl_model.h).
 *
 * The value is a name, "alpha-beta" or "nccl", or an object that also has the links inside of servers and
 * the generation of GPUs: {"name": "nccl", "inside": "nvlink", "generation": "ampere"}.
 */
#include "cost/cluster/nccl_options.h"

#include <string.h>

#include "base/files/json.h"

typedef struct NcclGeneration {
    const char *name;
    double most_ll;
} NcclGeneration;

static const NcclGeneration generations[] = {{"volta", 39e9}, {"ampere", 87.7e9}, {"hopper", 141e9}};

static AmStatus fail_at(const char *source, const char *key, const char *expected, AmError *error) {
    return am_fail(error, AM_ERROR_INPUT, source, "$.collective_model%s: expected %s", key, expected);
}

static AmStatus read_name(bool *is_nccl, json_t *name, const char *source, const char *key, AmError *error) {
    const char *text = json_string_value(name);
    *is_nccl = text && strcmp(text, "nccl") == 0;
    if (*is_nccl || (text && strcmp(text, "alpha-beta") == 0)) return AM_OK;
    return fail_at(source, key, "\"alpha-beta\" or \"nccl\"", error);
}

static AmStatus read_object(NcclModel *model, bool *is_nccl, json_t *value, const char *source,
                            AmError *error) {
    static const char *const all[] = {"name", "inside", "generation", NULL}, *const name_only[] = {"name",
                                                                                                   NULL};
    TRY(read_name(is_nccl, json_object_get(value, "name"), source, ".name", error));
    TRY(json_only_keys(value, *is_nccl ? all : name_only, source, "$.collective_model", error));
    json_t *inside = json_object_get(value, "inside"), *generation = json_object_get(value, "generation");
    if (inside) {
        const char *text = json_string_value(inside);
        bool is_pci = text && strcmp(text, "pci") == 0;
        if (!is_pci && !(text && strcmp(text, "nvlink") == 0))
            return fail_at(source, ".inside", "\"nvlink\" or \"pci\"", error);
        model->inside = is_pci ? NCCL_PCI : NCCL_NVLINK;
    }
    if (!generation) return AM_OK;
    for (size_t k = 0; k < sizeof generations / sizeof *generations; k++) {
        const char *text = json_string_value(generation);
        if (!text || strcmp(text, generations[k].name) != 0) continue;
        model->most_ll = generations[k].most_ll;
        return AM_OK;
    }
    return fail_at(source, ".generation", "\"volta\", \"ampere\" or \"hopper\"", error);
}

AmStatus nccl_model_read(NcclModel **model, Arena *arena, json_t *root, const char *source, AmError *error) {
    json_t *value = json_object_get(root, "collective_model");
    NcclModel read = {.inside = NCCL_NVLINK};
    bool is_nccl = false;
    *model = NULL;
    if (!value) return AM_OK;
    if (json_is_object(value)) TRY(read_object(&read, &is_nccl, value, source, error));
    else TRY(read_name(&is_nccl, value, source, "", error));
    if (!is_nccl) return AM_OK;
    *model = ARENA_ARRAY(arena, NcclModel, 1);
    if (!*model) return am_fail_memory(error, (int64_t)sizeof read);
    **model = read;
    return AM_OK;
}
