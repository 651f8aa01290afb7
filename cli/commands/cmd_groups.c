/* automap groups: the linkage groups of a module. */
#include "cli/common.h"
#include "propagation/groups/strict.h"

static const char *order_name(int32_t k) {
    return groups_order_name((GroupOrder)k);
}

static AmStatus run(const Cli *cli, AmError *error) {
    PlanContext *context = NULL;
    LinkageGroups *groups;
    Arena arena = {0};
    int64_t axis_size = 8;
    int32_t by = GROUPS_BY_MEMBER;
    AmStatus status;
    TRY_OR_FAIL(cli_integer(cli, "--axis-size", 2, MESH_MAX_DEVICES, &axis_size, error));
    TRY_OR_FAIL(cli_choice(cli, "--order", order_name, GROUP_ORDER_COUNT, &by, error));
    TRY_OR_FAIL(cli_read_model(cli, 0, &context, error));
    if (cli_has(cli, "--strict"))
        TRY_OR_FAIL(strict_groups(&groups, &arena, context, (int32_t)axis_size, STRICT_STATE, error));
    else TRY_OR_FAIL(groups_of_classes(&groups, &arena, context, (int32_t)axis_size, error));
    int32_t *order = ARENA_ARRAY(&arena, int32_t, groups->group_count + 1);
    if (!order) {
        status = am_fail_memory(error, groups->group_count);
        goto fail;
    }
    TRY_OR_FAIL(groups_sort(order, groups, context, (GroupOrder)by, error));
    if (cli_has(cli, "--json")) {
        json_t *root;
        TRY_OR_FAIL(groups_to_json(&root, groups, context, order, error));
        status = cli_output_json(cli, root, JSON_STYLE_COMPACT, error);
    } else {
        Text text = {0};
        groups_print(&text, groups, context, order);
        status = cli_output(cli, &text, error);
        text_free(&text);
    }
fail:
    arena_free(&arena);
    plan_context_free(context);
    return status;
}

static const CliOption options[] = {
    CLI_GROUP("groups"),
    {"--strict", NULL, "Auto-MAP's mode: one axis, no reshards", false},
    {"--axis-size", "N", "devices on the axis (default 8)", false},
    {"--order", "ORDER", "member (default), size (most dimensions first) or impact (FLOPs)", false},
    CLI_OPTION_ROLES,
    {0}};

const CliCommand CLI_GROUPS = {.name = "groups",
                               .arguments = "MODEL",
                               .summary = "linkage groups: the weight dimensions that each decision fixes",
                               .least_arguments = 1,
                               .most_arguments = 1,
                               .options = options,
                               .examples = "groups model.hlo.pb --strict --axis-size 4",
                               .run = run};
