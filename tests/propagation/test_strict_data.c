/* Auto data parallelism: for every model of the zoo strict mode finds the first dimension of every
 * data input, without options, except for those listed with the obstacle. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "propagation/groups/strict.h"

#define MODELS SOURCE_DIR "/datasets/models"

/* Models whose examples cannot be computed apart, exactly; and those of more than 20,000 instructions,
 * whose smaller forms are here. */
static const struct {
    const char *model, *because;
    bool is_left_out;
} overrides[] = {
    {"accumulated_tiny", "its batch is cut into micro-batches, which a loop goes through", false},
    {"dropout_tiny", "its bits come from halves of one array, set side by side", false},
    {"flax_tiny", "batch norm takes statistics over the batch", false},
    {"resnet_tiny", "batch norm takes statistics over the batch", false},
    {"resnet50_batch16", "batch norm takes statistics over the batch", false},
    {"moe_tiny", "experts have one capacity for the whole batch", false},
    {"moe_sorted_tiny", "experts have one capacity for the whole batch", false},
    {"gpt2_batch1", "its batch has one example", false},
    {"bert48", "large", true},
    {"t5_paper_24_3b", "large", true},
    {"t5_paper_24_11b", "large", true},
    {"t5_pipeline_24_3b", "large", true},
    {"t5_pipeline_24_11b", "large", true},
};

static const char *override_of(const char *model, bool *is_left_out) {
    for (size_t k = 0; k < sizeof overrides / sizeof *overrides; k++) {
        if (strcmp(overrides[k].model, model) != 0) continue;
        *is_left_out = overrides[k].is_left_out;
        return overrides[k].because;
    }
    *is_left_out = false;
    return NULL;
}

/* The dimension of the parameter that the best groups split; -1: none. */
static int32_t dimension_split(const LinkageGroups *groups, int32_t parameter) {
    for (int32_t b = 0; b < groups->best_count; b++) {
        const LinkageGroup *group = &groups->groups[groups->best[b]];
        for (int32_t m = 0; m < group->member_count; m++)
            if (group->members[m].parameter == parameter) return group->members[m].dimension;
    }
    return -1;
}

/* How many data inputs the model has; all are split along their first dimension, or none is. */
static int32_t check_model(const char *model, const char *path, const char *because) {
    PlanContext *context;
    AmError error = {0};
    Arena arena = {0};
    LinkageGroups *groups;
    int32_t inputs = 0;
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    if (strict_groups(&groups, &arena, context, 2, STRICT_DATA, &error) != AM_OK) fail_msg("%s", error.text);
    for (int32_t p = 0; p < context->roles->parameter_count; p++) {
        const IrParameter *parameter = &context->roles->parameters[p];
        const IrShape *shape = &context->canonical->instructions[parameter->instruction].shape;
        if (parameter->role != IR_ROLE_DATA || shape->rank == 0) continue;
        inputs++;
        int32_t found = dimension_split(groups, p);
        if (found != (because ? -1 : 0))
            fail_msg("%s: %s is split along %d%s%s", model, parameter->path, found,
                     because ? ", though " : "", because ? because : "");
    }
    arena_free(&arena);
    plan_context_free(context);
    return inputs;
}

static void test_zoo(void **state) {
    (void)state;
    DIR *folder = opendir(MODELS);
    assert_non_null(folder);
    int32_t models = 0, inputs = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[1024];
        bool is_left_out;
        const char *because = override_of(entry->d_name, &is_left_out);
        if (entry->d_name[0] == '.' || is_left_out) continue;
        snprintf(path, sizeof path, MODELS "/%s/model.hlo.pb", entry->d_name);
        if (access(path, R_OK) != 0)
            snprintf(path, sizeof path, MODELS "/%s/model.hlo.pb.zst", entry->d_name);
        if (access(path, R_OK) != 0) continue;
        inputs += check_model(entry->d_name, path, because);
        models++;
    }
    closedir(folder);
    print_message("%d models, %d data inputs\n", models, inputs);
    assert_true(models >= 25 && inputs >= 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_zoo)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
