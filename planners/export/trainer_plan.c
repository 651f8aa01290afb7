/* A plan as the degrees of a trainer of transformers.
 *
 * Such a trainer numbers its ranks tensor first, then data, then pipeline, and has one degree of each for the
 * whole model: so every stage has the same mesh, on devices in order. Inside, tensor parallelism splits
 * heads, MLP width and vocabulary, which is the baseline "megatron" (planners/baselines/baseline.h); a plan
 * with other axis priorities is refused. ZeRO is over the data axis. Stages hold whole layers of one stack
 * (trainer_layers.c).
 */
#include "planners/export/trainer_plan.h"

#include "lowering/micro_batch/micro_batches.h"
#include "planners/baselines/baseline.h"
#include "planners/baselines/layer_spans.h"
#include "planners/export/trainer_reader.h"
#include "planners/targets/target_checks.h"
#include "propagation/assign/storage.h"

/* ---- devices ---- */

/* Finds the axes of the meshes. They are named "data" and "model", in this order. */
static AmStatus find_axes(TrainerReader *self) {
    static const char *const axis_names[TRAINER_AXES] = {"data", "model"};
    const Mesh *mesh = &self->plan->stages[0].mesh;
    int32_t found = 0;
    for (int32_t role = 0; role < TRAINER_AXES; role++) {
        self->axes[role] = -1;
        self->sizes[role] = 1;
        for (int32_t axis = 0; axis < mesh->axis_count; axis++)
            if (strcmp(mesh->axes[axis].name, axis_names[role]) == 0) self->axes[role] = axis;
        if (self->axes[role] < 0) continue;
        self->sizes[role] = mesh->axes[self->axes[role]].size;
        found++;
    }
    if (found == mesh->axis_count &&
        (found < TRAINER_AXES || self->axes[TRAINER_DATA] < self->axes[TRAINER_MODEL]))
        return AM_OK;
    return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                   "%s are for meshes data x model, and the plan's has other axes; " TRAINER_REMEDY,
                   self->row->form, self->row->name);
}

/* Refuses overrides, and devices out of order. */
static AmStatus check_devices(const TrainerReader *self) {
    const Plan *plan = self->plan;
    for (int32_t s = 0, next = 0; s < plan->stage_count; s++) {
        const PlanStage *stage = &plan->stages[s];
        if (stage->override_count > 0 || stage->reshard_count > 0)
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                           "%s cannot represent the plan's overrides of stage %d", self->row->form, s);
        for (int32_t d = 0; d < stage->mesh.device_count; d++, next++)
            if (stage->devices[d] != next)
                return am_fail(
                    self->error, AM_ERROR_INFEASIBLE, "",
                    "%s number devices in order, and the plan has device %d as rank %d; " TRAINER_REMEDY,
                    self->row->form, stage->devices[d], next, self->row->name);
    }
    return AM_OK;
}

static AmStatus check_schedule(const TrainerReader *self) {
    const Plan *plan = self->plan;
    ScheduleKind kind = plan_schedule(plan);
    if (plan->stage_count == 1 || plan->micro_batches == 1) return AM_OK;
    if (kind == SCHEDULE_INTERLEAVED && plan->micro_batches % plan->stage_count != 0)
        return am_fail(
            self->error, AM_ERROR_INFEASIBLE, "",
            "%s interleaves chunks where the stages divide the micro-batches, and %d do not divide %d",
            self->row->trainer, plan->stage_count, plan->micro_batches);
    return AM_OK;
}

/* ---- axis priorities ---- */

static bool has_entry(const PlanAxisPriority *priority, const PlanEntry *entry) {
    for (int32_t k = 0; k < priority->count; k++)
        if (priority->entries[k].kind == entry->kind &&
            priority->entries[k].class_index == entry->class_index)
            return true;
    return false;
}

/* Returns whether two axis priorities decide the same about operators, in any order. */
static bool same_operators(const PlanAxisPriority *a, const PlanAxisPriority *b) {
    for (int32_t k = 0; k < a->count; k++)
        if (a->entries[k].kind == PLAN_COMPUTE && !has_entry(b, &a->entries[k])) return false;
    for (int32_t k = 0; k < b->count; k++)
        if (b->entries[k].kind == PLAN_COMPUTE && !has_entry(a, &b->entries[k])) return false;
    return true;
}

/* Returns whether all stages have the baseline's axis priorities. */
static bool has_priorities(const TrainerReader *self, const PlanStage *baseline) {
    for (int32_t s = 0; s < self->plan->stage_count; s++)
        for (int32_t role = 0; role < TRAINER_AXES; role++)
            if (self->sizes[role] > 1 &&
                !same_operators(&self->plan->stages[s].axis_priorities[self->axes[role]],
                                &baseline->axis_priorities[role]))
                return false;
    return true;
}

/* Compares the stages with the baseline, without and with sequence parallelism. */
static AmStatus compare_priorities(TrainerReader *self, StageProblem *problem) {
    AxisPlan axis_plan = {0};
    PlanStage baseline = {0};
    bool found = true;
    if (self->sizes[TRAINER_MODEL] > 1)
        TRY(baseline_megatron(problem, TRAINER_MODEL, &axis_plan, &found, self->error));
    for (int32_t with_sequence = 0; found && with_sequence < 2; with_sequence++) {
        AxisPlan lists = axis_plan;
        if (with_sequence &&
            (self->sizes[TRAINER_MODEL] == 1 || !baseline_sequence(problem, TRAINER_MODEL, &lists)))
            break;
        if (self->sizes[TRAINER_DATA] > 1 && !baseline_batch(problem, TRAINER_DATA, &lists)) break;
        problem_stage(problem, &lists, self->arena, &baseline);
        if (self->arena->failed) return am_fail_memory(self->error, 0);
        if (!has_priorities(self, &baseline)) continue;
        self->splits_sequence = with_sequence;
        return AM_OK;
    }
    return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                   "%s split heads, MLP width, vocabulary and batch, and the plan splits something "
                   "else; " TRAINER_REMEDY,
                   self->row->form, self->row->name);
}

/* Refuses splits other than those of the baseline on the mesh of the stages. */
static AmStatus check_priorities(TrainerReader *self, const Cluster *cluster) {
    const PlanStage *stage = &self->plan->stages[0];
    const ProblemSettings settings = problem_settings(SPACE_AUTO, CLUSTER_DEFAULT_MEMORY_FRACTION);
    const Mesh mesh = {.axis_count = TRAINER_AXES,
                       .axes = {{.name = "data", .size = self->sizes[TRAINER_DATA]},
                                {.name = "model", .size = self->sizes[TRAINER_MODEL]}},
                       .device_count = stage->mesh.device_count};
    StageProblem *problem;
    TRY(problem_create(&problem, self->context, cluster, &mesh, stage->devices, &settings, self->error));
    AmStatus status = compare_priorities(self, problem);
    problem_free(problem);
    return status;
}

/* Refuses storage in shards over another axis than that of the batch. */
static AmStatus check_storage_axes(const TrainerReader *self, int32_t s) {
    const PlanStage *stage = &self->plan->stages[s];
    for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
        for (int32_t e = 0; e < stage->axis_priorities[axis].count && axis != self->axes[TRAINER_DATA]; e++) {
            PlanEntryKind kind = stage->axis_priorities[axis].entries[e].kind;
            if (kind != PLAN_COMPUTE)
                return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                               "%s has ZeRO over the batch's devices, and the plan has %s of stage %d in "
                               "shards over axis %s; " TRAINER_REMEDY,
                               self->row->trainer, plan_entry_kind_name(kind), s, stage->mesh.axes[axis].name,
                               self->row->name);
        }
    return AM_OK;
}

/* Accepts one of the trainer's levels of ZeRO, the same on all stages. */
static AmStatus check_storage(TrainerReader *self) {
    for (int32_t s = 0; s < self->plan->stage_count; s++) {
        int32_t level = storage_zero_level(&self->plan->stages[s]);
        TRY(check_storage_axes(self, s));
        if (!(self->row->zero_levels >> level & 1))
            return am_fail(self->error, AM_ERROR_INFEASIBLE, "",
                           "%s has no ZeRO %d, which stage %d of the plan has; " TRAINER_REMEDY,
                           self->row->trainer, level, s, self->row->name);
        if (s > 0 && level != self->zero_level)
            return am_fail(
                self->error, AM_ERROR_INFEASIBLE, "",
                "%s give all stages the same level of ZeRO, and the plan has %d and %d; " TRAINER_REMEDY,
                self->row->form, self->zero_level, level, self->row->name);
        self->zero_level = level;
        if (self->plan->stages[s].offloads_optimizer != self->plan->stages[0].offloads_optimizer)
            return am_fail(
                self->error, AM_ERROR_INFEASIBLE, "",
                "%s offload the optimizer state of all stages or of no stage, and stages 0 and %d of the "
                "plan differ; " TRAINER_REMEDY,
                self->row->form, s, self->row->name);
    }
    return AM_OK;
}

/* ---- weights ---- */

/* Checks that equal shards divide heads and widths. A table of the vocabulary, which is in no layer, is
 * padded. */
static AmStatus check_weights(const TrainerReader *self) {
    const IrRoles *roles = self->context->roles;
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrParameter *weight = &roles->parameters[p];
        if (weight->role != IR_ROLE_WEIGHT || layer_path(weight->path).number < 0) continue;
        const Assignment *assignment =
            self->ranks.assignments[self->ranks.map ? self->ranks.map->owner[p] : 0];
        AmError why = {0};
        if (target_check_even(self->target, &assignment->stage->mesh, assignment->stored[weight->instruction],
                              plan_context_instruction(self->context, weight->instruction), &why) != AM_OK)
            return am_fail(
                self->error, AM_ERROR_INFEASIBLE, "",
                "%s's tensor degree divides heads and widths, and %d does not divide those of %s; search "
                "--mesh data=D,model=T chooses another degree T",
                self->row->trainer, self->sizes[TRAINER_MODEL], weight->path);
    }
    return AM_OK;
}

/* ---- the degrees ---- */

static AmStatus check_plan(TrainerReader *self, const Cluster *cluster) {
    TRY(target_check_module(self->target, self->context, self->error));
    TRY(target_check_plan(self->target, self->plan, self->error));
    TRY(find_axes(self));
    TRY(check_devices(self));
    TRY(check_schedule(self));
    TRY(check_storage(self));
    TRY(check_priorities(self, cluster));
    TRY(plan_ranks(&self->ranks, self->arena, self->context, self->plan, self->error));
    TRY(check_weights(self));
    TRY(trainer_check_recomputation(self));
    return self->plan->stage_count > 1 ? trainer_count_layers(self) : AM_OK;
}

AmStatus trainer_plan_read(TrainerPlan *degrees, Arena *arena, Target target, const PlanContext *context,
                           const Plan *plan, AmError *error) {
    TrainerReader self = {.arena = arena,
                          .target = target,
                          .row = target_row(target),
                          .context = plan_context_used(plan, context),
                          .plan = plan,
                          .error = error};
    Cluster *cluster;
    TRY(cluster_from_json(&cluster, arena, plan->cluster_description, "the plan", error));
    AmStatus status = check_plan(&self, cluster);
    cluster_free(cluster);
    TRY(status);
    *degrees = (TrainerPlan){.data = self.sizes[TRAINER_DATA],
                             .tensor = self.sizes[TRAINER_MODEL],
                             .stages = plan->stage_count,
                             .parts = self.ranks.parts->stage_count,
                             .ranks = self.ranks.rank_count,
                             .schedule = plan_schedule(plan),
                             .zero_level = self.zero_level,
                             .splits_sequence = self.splits_sequence,
                             .offloads_optimizer = plan->stages[0].offloads_optimizer,
                             .micro_batches = plan->micro_batches,
                             .layers = self.layers,
                             .recomputed = self.recomputed,
                             .recomputes_all = self.recomputes_all,
                             .recomputed_modules = self.recomputed_modules};
    /* The examples of a micro-batch, which are equal on all data ranks. */
    int64_t batch = micro_batches_limit(plan_context_primary(self.context));
    int64_t shares = (int64_t)self.plan->micro_batches * self.sizes[TRAINER_DATA];
    if (batch % shares != 0)
        return am_fail(
            self.error, AM_ERROR_INFEASIBLE, "",
            "%s's micro-batches are equal, and %d micro-batches on %d devices do not divide %lld examples",
            self.row->trainer, self.plan->micro_batches, self.sizes[TRAINER_DATA], (long long)batch);
    degrees->examples = batch / shares;
    degrees->batch = batch;
    return AM_OK;
}

json_t *trainer_plan_layers(const TrainerPlan *degrees) {
    json_t *layers = json_array();
    for (int32_t p = 0; degrees->layers && p < degrees->parts; p++)
        json_array_append_new(layers, json_integer(degrees->layers[p]));
    return layers;
}
