/* Switches of a stage in a plan file, by a table of their keys. */
#include "lowering/plan_file/stage_switches.h"

#include <stddef.h>

#include "base/files/json.h"

#define MOST_KEPT_BYTES ((int64_t)1 << 50)

static const struct {
    const char *key;
    size_t offset; /* of the bool in a PlanStage */
} switches[] = {
    {"even", offsetof(PlanStage, is_even)},
    {"keeps_gathered_weights", offsetof(PlanStage, keeps_gathered_weights)},
    {"rounds_parts", offsetof(PlanStage, rounds_parts)},
    {"all_reduces_gradients", offsetof(PlanStage, all_reduces_gradients)},
    {"reduces_in_f32", offsetof(PlanStage, reduces_in_f32)},
    {"offloads_optimizer", offsetof(PlanStage, offloads_optimizer)},
};

enum { SWITCH_COUNT = sizeof switches / sizeof *switches };

AmStatus stage_switches_read(PlanStage *stage, json_t *object, const char *source, const char *where,
                             AmError *error) {
    for (int32_t k = 0; k < SWITCH_COUNT; k++) {
        const json_t *value = json_object_get(object, switches[k].key);
        *(bool *)((char *)stage + switches[k].offset) = json_is_true(value);
        if (value && !json_is_boolean(value))
            return am_fail(error, AM_ERROR_INPUT, source, "%s.%s: expected true or false", where,
                           switches[k].key);
    }
    stage->kept_bytes = 0;
    if (!json_object_get(object, "kept_bytes")) return AM_OK;
    return json_get_integer(&stage->kept_bytes, object, "kept_bytes", 0, MOST_KEPT_BYTES, source, where,
                            error);
}

void stage_switches_write(json_t *object, const PlanStage *stage) {
    for (int32_t k = 0; k < SWITCH_COUNT; k++)
        if (*(const bool *)((const char *)stage + switches[k].offset))
            json_object_set_new(object, switches[k].key, json_true());
    if (stage->kept_bytes > 0)
        json_object_set_new(object, "kept_bytes", json_integer((json_int_t)stage->kept_bytes));
}
