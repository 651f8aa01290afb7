/* The choice between attention as separate operators and as one operator. The module is priced in both forms
 * on one device: splits change the shapes of attention and of everything else alike. */
#include "planners/problem/attention_choice.h"

#include "base/system/parallel.h"
#include "cost/step/price.h"
#include "lowering/spmd/lower.h"

/* Returns whether scores of all operators have 16-bit types. */
static bool has_narrow_scores(const PlanContext *context) {
    const IrAttentions *found = context->attention;
    for (int32_t r = 0; r < found->count; r++) {
        const IrInstruction *scores = plan_context_instruction(context, found->rows[r].scores);
        Dtype type = plan_context_instruction(context, scores->operands[0])->shape.type;
        if (!found->rows[r].reason && type != DTYPE_F16 && type != DTYPE_BF16) return false;
    }
    return true;
}

/* Finds the seconds of the whole module's computing on the slowest type. */
static AmStatus price(double *seconds, const PlanContext *context, const Cluster *cluster, AmError *error) {
    Arena arena = {0};
    Program *program;
    AmStatus status = plan_lower_one_device(&program, &arena, context, error);
    *seconds = 0;
    for (int32_t s = 0; s < cluster->server_count && status == AM_OK; s++) {
        const ClusterServer *server = &cluster->servers[s];
        StepPrice step;
        if (s > 0 && server->type == cluster->servers[s - 1].type) continue;
        status = price_program(&step, program, cluster, &server->first_device, error);
        if (status == AM_OK && step.compute_seconds > *seconds) *seconds = step.compute_seconds;
    }
    arena_free(&arena);
    return status;
}

AmStatus attention_has_kernels(bool *has, PlanContext *unfused, const Cluster *cluster, AmError *error) {
    TRY(plan_context_find_attention(unfused, error));
    *has = ir_count_attention(unfused->attention) > 0;
    if (!*has) return AM_OK;
    bool is_narrow = has_narrow_scores(unfused);
    for (int32_t s = 0; s < cluster->server_count; s++) {
        const ClusterDeviceType *type = &cluster->types[cluster->servers[s].type];
        *has &= type->operators || (is_narrow && type->named[DTYPE_BF16]);
    }
    return AM_OK;
}

/* The price of a form, by one thread. */
typedef struct PriceTask {
    const PlanContext *form;
    const Cluster *cluster;
    double seconds;
    AmStatus status;
    AmError error;
} PriceTask;

static void price_task(void *user, int32_t k) {
    PriceTask *task = (PriceTask *)user + k;
    task->status = price(&task->seconds, task->form, task->cluster, &task->error);
}

AmStatus attention_choose(PlanContext **primary, PlanContext **other, const Cluster *cluster,
                          AmError *error) {
    PlanContext *unfused = *primary, *fused;
    *other = NULL;
    bool has_kernels;
    TRY(attention_has_kernels(&has_kernels, unfused, cluster, error));
    if (!has_kernels) return AM_OK;
    TRY(plan_context_fuse(&fused, unfused, error));
    PriceTask tasks[] = {{.form = unfused, .cluster = cluster}, {.form = fused, .cluster = cluster}};
    parallel_for(2, 0, price_task, tasks);
    for (int32_t k = 0; k < 2; k++) TRY(am_pass_error(tasks[k].status, &tasks[k].error, error));
    bool is_faster = tasks[1].seconds < tasks[0].seconds;
    *primary = is_faster ? fused : unfused;
    *other = is_faster ? unfused : fused;
    return AM_OK;
}

/* The choice of one form, by one thread. */
typedef struct ChoiceTask {
    PlanContext *form, *other;
    const Cluster *cluster;
    AmStatus status;
    AmError error;
} ChoiceTask;

static void choice_task(void *user, int32_t k) {
    ChoiceTask *task = (ChoiceTask *)user + k;
    task->status = attention_choose(&task->form, &task->other, task->cluster, &task->error);
}

AmStatus attention_choose_all(PlanContext **forms, PlanContext **others, int32_t count,
                              const Cluster *cluster, AmError *error) {
    Arena arena = {0};
    ChoiceTask *tasks = ARENA_ARRAY(&arena, ChoiceTask, count + 1);
    AmStatus status = tasks ? AM_OK : am_fail_memory(error, count);
    for (int32_t k = 0; k < count && tasks; k++)
        tasks[k] = (ChoiceTask){.form = forms[k], .cluster = cluster};
    if (tasks) parallel_for(count, 0, choice_task, tasks);
    for (int32_t k = 0; k < count && status == AM_OK; k++) {
        status = am_pass_error(tasks[k].status, &tasks[k].error, error);
        forms[k] = tasks[k].form;
        others[k] = tasks[k].other;
    }
    arena_free(&arena);
    return status;
}
