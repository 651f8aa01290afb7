/* The report `groups`: the linkage groups of a module. */
#include "api/reports/reports.h"
#include "propagation/groups/strict.h"

enum { DEFAULT_AXIS_SIZE = 8 };

AmStatus report_groups(Text *text, const ReportCall *call, AmError *error) {
    PlanContext *context = NULL;
    LinkageGroups *groups;
    Arena arena = {0};
    int64_t axis_size = DEFAULT_AXIS_SIZE;
    int32_t by = GROUPS_BY_MEMBER;
    AmStatus status;
    option_integer(call->options, "axis-size", &axis_size);
    option_choice(call->options, "order", &by);
    TRY(report_read_module(&context, call, 0, error));
    if (option_has(call->options, "strict"))
        TRY_OR_FAIL(strict_groups(&groups, &arena, context, (int32_t)axis_size, STRICT_STATE, error));
    else TRY_OR_FAIL(groups_of_classes(&groups, &arena, context, (int32_t)axis_size, error));
    int32_t *order = ARENA_ARRAY(&arena, int32_t, groups->group_count + 1);
    if (!order) {
        status = am_fail_memory(error, groups->group_count);
        goto fail;
    }
    TRY_OR_FAIL(groups_sort(order, groups, context, (GroupOrder)by, error));
    if (call->format == AM_FORMAT_JSON) {
        json_t *root;
        TRY_OR_FAIL(groups_to_json(&root, groups, context, order, error));
        status = api_append_json(text, root, JSON_STYLE_COMPACT, error);
    } else {
        groups_print(text, groups, context, order);
    }
fail:
    arena_free(&arena);
    plan_context_free(context);
    return status;
}
