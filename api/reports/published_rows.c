/* The rows of the report `published`. A row names a model, a machine and a strategy. It becomes a training
 * step of models/transformer.h, a cluster of built-in devices and a Strategy, whose plan is simulated. Rows
 * of equal models share one module.
 */
#include "api/reports/published_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/parallel.h"
#include "cost/cluster/cluster_servers.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/problem/candidate_pool.h"
#include "planners/problem/scratch.h"
#include "propagation/stages/stages.h"
#include "published/conventions.h"

enum { ROWS_OF_TASK = 16, DEFAULT_PER_SERVER = 8, MOST_MICRO_BATCH = 1024 };

/* ---- fields of a row ---- */

#define REFUSE(error, ...) am_fail(error, AM_ERROR_INPUT, "", __VA_ARGS__)

static AmStatus read_family(TransformerFamily *family, const char *model, AmError *error) {
    for (int32_t k = 0; k < TRANSFORMER_FAMILIES; k++)
        if (strcmp(model, transformer_family_name((TransformerFamily)k)) == 0) {
            *family = (TransformerFamily)k;
            return AM_OK;
        }
    return REFUSE(error, "unknown model %.60s (expected gpt, bert, llama or t5)", model);
}

/* Kernels and types of gradients. */
static AmStatus read_conventions(TransformerShape *shape, const PublishedRun *run, AmError *error) {
    PublishedConventions conventions;
    TRY(published_conventions(&conventions, run, error));
    shape->fused = conventions.is_flash ? TRANSFORMER_FUSES_ATTENTION : TRANSFORMER_FUSES_NORMS;
    shape->has_plain_softmax = !conventions.is_flash && !conventions.fuses_softmax;
    shape->uses_flash_1 = conventions.uses_flash_1;
    shape->has_plain_norms = !conventions.fuses_norms;
    shape->is_eager = conventions.is_eager;
    shape->has_dropout = conventions.has_dropout;
    shape->joins_loss = conventions.joins_loss;
    shape->joins_products = conventions.joins_products;
    shape->recomputes_all = shape->recompute == TRANSFORMER_RECOMPUTE_FULL;
    shape->recomputes_head = shape->recomputes_all && conventions.recomputes_head;
    shape->reads_lengths = conventions.reads_lengths;
    shape->has_masters = shape->type != DTYPE_F32 && run->zero < 3;
    if (!conventions.has_f32_gradients) shape->gradient_type = shape->type;
    return AM_OK;
}

/* Shapes are compared by their bytes, so that padding is cleared, too. */
static AmStatus read_shape(TransformerShape *shape, const PublishedRun *run, AmError *error) {
    memset(shape, 0, sizeof *shape);
    if (run->missing) return REFUSE(error, "column %s is empty (expected a value)", run->missing);
    shape->layers = run->layers;
    shape->width = run->hidden;
    shape->heads = run->heads;
    shape->kv_heads = run->kv_heads > 0 ? run->kv_heads : run->heads;
    shape->ffn = run->ffn > 0 ? run->ffn : 4 * run->hidden;
    shape->vocabulary = run->vocabulary;
    shape->sequence = run->sequence;
    shape->batch = run->global_batch;
    shape->type = DTYPE_BF16;
    shape->optimizer = TRANSFORMER_ADAM;
    TRY(read_family(&shape->family, run->model, error));
    shape->recompute = TRANSFORMER_RECOMPUTE_NONE;
    if (strcmp(run->recompute, "full") == 0) shape->recompute = TRANSFORMER_RECOMPUTE_FULL;
    else if (strcmp(run->recompute, "selective") == 0) shape->recompute = TRANSFORMER_RECOMPUTE_SELECTIVE;
    else if (run->recompute[0] && strcmp(run->recompute, "none") != 0)
        return REFUSE(error, "unknown recomputation %.60s (expected none, selective or full)",
                      run->recompute);
    if (run->type[0]) shape->type = dtype_from_name(run->type);
    if (shape->type != DTYPE_F32 && shape->type != DTYPE_BF16 && shape->type != DTYPE_F16)
        return REFUSE(error, "unknown dtype %.60s (expected f32, bf16 or f16)", run->type);
    TRY(read_conventions(shape, run, error));
    if (strcmp(run->optimizer, "sgd") == 0) shape->optimizer = TRANSFORMER_SGD;
    else if (run->optimizer[0] && strcmp(run->optimizer, "adam") != 0)
        return REFUSE(error, "unknown optimizer %.60s (expected adam or sgd)", run->optimizer);
    if (run->outcome[0] && strcmp(run->outcome, "ok") != 0 && strcmp(run->outcome, "oom") != 0)
        return REFUSE(error, "unknown outcome %.60s (expected ok or oom)", run->outcome);
    return transformer_check(shape, error);
}

static AmStatus read_schedule(ScheduleKind *kind, const PublishedRun *run, AmError *error) {
    const char *name = run->schedule;
    bool is_plain = !name[0] || strcmp(name, "none") == 0;
    *kind = is_plain                     ? SCHEDULE_1F1B
            : strcmp(name, "zb_1p") == 0 ? SCHEDULE_ZB_H1 /* which has the same memory */
                                         : schedule_kind_find(name);
    if (*kind == SCHEDULE_KINDS)
        return REFUSE(error,
                      "schedule %.60s cannot be planned (expected none, gpipe, 1f1b, zb_h1, zb_1p, zb_2p or "
                      "interleaved_1f1b)",
                      name);
    return AM_OK;
}

/* Reads all of the strategy but the micro-batches; chunks that are not given stay 0. */
static AmStatus read_strategy(Strategy *strategy, const PublishedRun *run, AmError *error) {
    PublishedConventions conventions;
    TRY(published_conventions(&conventions, run, error));
    *strategy = (Strategy){.data = (int32_t)run->data,
                           .tensor = (int32_t)run->tensor,
                           .stages = (int32_t)run->pipeline,
                           .zero = run->zero > 0 ? (int32_t)run->zero : 0,
                           .splits_sequence = run->splits_sequence == 1,
                           .rounds_parts = true,
                           .rounds_sums = !conventions.has_f32_gradients && run->zero < 3,
                           .all_reduces_gradients = conventions.all_reduces_gradients,
                           .reduces_in_f32 = conventions.has_f32_reductions,
                           .counts_tables = conventions.counts_tables,
                           .gathered_size = conventions.gathers_logits ? run->vocabulary : 0};
    int64_t context = run->context > 1 ? run->context : 1;
    if (run->expert > 1) return REFUSE(error, "the models have no experts to split (expected expert 1)");
    strategy->context = (int32_t)context;
    if (run->data * context * run->tensor * run->pipeline != run->devices)
        return REFUSE(error, "data %lld x context %lld x tensor %lld x pipeline %lld: expected %lld devices",
                      (long long)run->data, (long long)context, (long long)run->tensor,
                      (long long)run->pipeline, (long long)run->devices);
    if (strategy->zero > 3) return REFUSE(error, "zero %lld: expected 0 to 3", (long long)run->zero);
    TRY(read_schedule(&strategy->schedule, run, error));
    bool is_interleaved = strategy->schedule == SCHEDULE_INTERLEAVED && strategy->stages > 1;
    if (run->chunks > 1 && !is_interleaved)
        return REFUSE(error, "%lld chunks: expected schedule interleaved_1f1b", (long long)run->chunks);
    if (run->global_batch % run->data != 0)
        return REFUSE(error, "global_batch %lld: expected a multiple of data %lld",
                      (long long)run->global_batch, (long long)run->data);
    if (run->micro_batch > 0 && run->global_batch % (run->data * run->micro_batch) != 0)
        return REFUSE(error, "global_batch %lld: expected a multiple of data %lld x micro_batch %lld",
                      (long long)run->global_batch, (long long)run->data, (long long)run->micro_batch);
    strategy->chunks = is_interleaved ? (run->chunks > 0 ? (int32_t)run->chunks : 0) : 1;
    return AM_OK;
}

static AmStatus read_servers(ClusterServers *servers, const PublishedRun *run, AmError *error) {
    PublishedConventions conventions;
    TRY(published_conventions(&conventions, run, error));
    int64_t per_server = run->per_server > 0 ? run->per_server : DEFAULT_PER_SERVER;
    *servers = (ClusterServers){.device_type = run->device,
                                .devices = (int32_t)run->devices,
                                .per_server = (int32_t)per_server,
                                .gbit_per_device = run->network_gbit_per_device,
                                .waits_for_collectives = !conventions.overlaps};
    return AM_OK;
}

static AmStatus read_cluster(Cluster **cluster, Arena *arena, const PublishedRun *run, AmError *error) {
    ClusterServers servers;
    json_t *description;
    TRY(read_servers(&servers, run, error));
    TRY(cluster_of_servers(&description, &servers, error));
    AmStatus status = cluster_from_json(cluster, arena, description, "the row's cluster", error);
    json_decref(description);
    return status;
}

bool published_is_same_problem(const PublishedRun *run, const PublishedRun *other) {
    TransformerShape shape, other_shape;
    ClusterServers servers, others;
    if (run->global_batch != other->global_batch || run->hidden != other->hidden) return false; /* quickly */
    if (read_shape(&shape, run, NULL) != AM_OK || read_shape(&other_shape, other, NULL) != AM_OK)
        return false;
    if (read_servers(&servers, run, NULL) != AM_OK || read_servers(&others, other, NULL) != AM_OK)
        return false;
    bool is_same_rate = servers.gbit_per_device == others.gbit_per_device ||
                        (isnan(servers.gbit_per_device) && isnan(others.gbit_per_device));
    return memcmp(&shape, &other_shape, sizeof shape) == 0 &&
           strcmp(servers.device_type, others.device_type) == 0 && servers.devices == others.devices &&
           servers.per_server == others.per_server && is_same_rate &&
           servers.waits_for_collectives == others.waits_for_collectives;
}

/* ---- one row ---- */

/* The module of a shape, and its latest rewriting in micro-batches. */
typedef struct ShapeModule {
    PlanContext *primary, *split;
    int32_t micro_batches;
    bool separate_backward;
} ShapeModule;

/* Finds the context for a strategy; rows that follow one another often need the same. */
static AmStatus find_context(const PlanContext **context, ShapeModule *module, const Strategy *strategy,
                             AmError *error) {
    const MicroBatchSettings batching = strategy_batching(strategy);
    *context = module->primary;
    if (batching.micro_batches == 1) return AM_OK;
    bool is_same = module->split && module->micro_batches == batching.micro_batches &&
                   module->separate_backward == batching.separate_backward;
    if (!is_same) {
        plan_context_free(module->split);
        module->split = NULL;
        TRY(plan_context_split(&module->split, module->primary, &batching, error));
        module->micro_batches = batching.micro_batches;
        module->separate_backward = batching.separate_backward;
    }
    *context = module->split;
    return AM_OK;
}

/* Simulates one strategy and keeps it if it is the first, or better (plan_is_better()). A strategy that the
 * module refuses is an error of the row only where no other is possible. */
static AmStatus try_strategy(PublishedRow *row, ShapeModule *module, const Cluster *cluster, Arena *scratch,
                             const Strategy *strategy, double memory_fraction) {
    ArenaMark mark = arena_mark(scratch);
    AmError error = {0};
    PlanCandidate priced;
    const PlanContext *context;
    AmStatus status = find_context(&context, module, strategy, &error);
    if (status == AM_OK)
        status = strategy_simulate(&priced, scratch, context, cluster, strategy, memory_fraction, &error);
    bool is_first = row->outcome != PUBLISHED_PREDICTED;
    if (status != AM_OK) {
        if (is_first && row->error.code == AM_OK) row->error = error;
        arena_release(scratch, mark);
        return status == AM_ERROR_INFEASIBLE || status == AM_ERROR_INPUT ? AM_OK : status;
    }
    if (is_first || plan_is_better(priced.seconds, &priced.fit, row->step_seconds, &row->fit)) {
        row->outcome = PUBLISHED_PREDICTED;
        row->strategy = *strategy;
        row->micro_batch = row->run->global_batch / strategy->data / strategy->micro_batches;
        row->step_seconds = priced.seconds;
        row->fit = priced.fit;
    }
    arena_release(scratch, mark);
    return AM_OK;
}

/* Tries every number of chunks where none is given, also one, as 1f1b. */
static AmStatus try_chunks(PublishedRow *row, ShapeModule *module, const Cluster *cluster, Arena *scratch,
                           Strategy strategy, double memory_fraction) {
    if (strategy.chunks > 0) return try_strategy(row, module, cluster, scratch, &strategy, memory_fraction);
    int64_t parts = row->run->layers + 2;
    for (int32_t chunks = 2; chunks <= parts / strategy.stages && chunks * strategy.stages <= STAGES_MOST;
         chunks++) {
        int64_t all = (int64_t)chunks * strategy.stages;
        strategy.chunks = chunks;
        if (row->run->layers % all == 0 || row->run->layers / strategy.stages < 4)
            TRY(try_strategy(row, module, cluster, scratch, &strategy, memory_fraction));
    }
    strategy.chunks = 1;
    strategy.schedule = SCHEDULE_1F1B;
    return try_strategy(row, module, cluster, scratch, &strategy, memory_fraction);
}

/* NCCL has buffers for each connection of a channel, of its three protocols (src/init.cc and
 * src/include/device.h of NCCL): 8 steps of 512 threads of 8 lines of 16 bytes, 8 steps of 640 threads of 120
 * words of 8 bytes, and 4 MiB. A device has three incoming connections in each channel: one in a ring, two in
 * a tree. */
#define CONNECTION_BYTES (8 * 512 * 8 * 16 + 8 * 640 * 120 * 8 + (4 << 20))
enum { INCOMING_CONNECTIONS = 3 };

/* Channels of NCCL: two for each link of NVLink, and few on PCIe. */
static int64_t channels_of(const PublishedRun *run) {
    const char *type = cluster_builtin_device_named(run->device);
    const char *link = type ? cluster_builtin_device_link(type) : NULL;
    if (!link || strncmp(link, "nvlink", strlen("nvlink")) != 0) return 4;
    return strcmp(link, "nvlink-v100") == 0 || strcmp(link, "nvlink-p100") == 0 ? 12 : 24;
}

/* Pipeline engines have at least two buffers for outputs of the last stage (DeepSpeed, Aleph Alpha's
 * Scaling). Some free an output only when that of a later micro-batch takes its place. */
enum { OUTPUT_BUFFERS = 2 };
#define MOST_KEPT_BYTES 1e15

/* Returns the bytes of the logits that are kept so, beside those of the latest micro-batch. */
static int64_t kept_output_bytes(const PublishedRow *row, int64_t micro_batch, int32_t micro_batches) {
    PublishedConventions conventions;
    const PublishedRun *run = row->run;
    if (published_conventions(&conventions, run, NULL) != AM_OK || !conventions.keeps_outputs) return 0;
    int64_t context = run->context > 1 ? run->context : 1, tensor = run->tensor > 1 ? run->tensor : 1;
    int64_t count = micro_batches < OUTPUT_BUFFERS ? micro_batches : OUTPUT_BUFFERS;
    double logits = (double)(run->sequence / context) * (double)run->vocabulary * (double)micro_batch;
    if (!conventions.gathers_logits) logits /= (double)tensor;
    return (int64_t)fmin((double)(count * dtype_bytes(row->shape.type)) * logits, MOST_KEPT_BYTES);
}

static AmStatus predict(PublishedRow *row, ShapeModule *module, Arena *scratch, double memory_fraction) {
    const PublishedRun *run = row->run;
    Cluster *cluster;
    Strategy strategy = row->strategy;
    /* Communicators of all devices, of each axis that is not all of them, and of neighbouring stages. */
    const int64_t axes[] = {run->data, run->tensor, run->context, run->pipeline};
    int64_t groups = run->devices > 1;
    for (size_t k = 0; k < sizeof axes / sizeof *axes; k++) groups += axes[k] > 1 && axes[k] < run->devices;
    if (run->pipeline > 1) groups += run->pipeline > 2 ? 2 : 1;
    strategy.kept_bytes = groups * channels_of(run) * INCOMING_CONNECTIONS * CONNECTION_BYTES;
    AmStatus status = read_cluster(&cluster, scratch, run, &row->error);
    if (status != AM_OK) return AM_OK; /* the row's */
    int64_t share = run->global_batch / run->data;
    int64_t first = run->micro_batch > 0 ? run->micro_batch : 1;
    int64_t last = run->micro_batch > 0 ? run->micro_batch : MOST_MICRO_BATCH;
    for (int64_t size = first; size <= last && size <= share && status == AM_OK; size *= 2) {
        if (share % size != 0 || share / size > MICRO_BATCHES_MOST) continue;
        strategy.micro_batches = (int32_t)(share / size);
        strategy.kept_outputs = kept_output_bytes(row, size, strategy.micro_batches);
        status = try_chunks(row, module, cluster, scratch, strategy, memory_fraction);
    }
    if (row->outcome != PUBLISHED_PREDICTED && row->error.code == AM_OK)
        am_fail(&row->error, AM_ERROR_INFEASIBLE, "", "at most %d micro-batches can be made",
                MICRO_BATCHES_MOST);
    cluster_free(cluster);
    return status;
}

/* ---- all rows ---- */

/* Rows of one shape. */
typedef struct ShapeTask {
    PublishedRow **rows;
    int32_t count;
    AmStatus status;
    AmError error;
} ShapeTask;

typedef struct PredictionTasks {
    ShapeTask *tasks;
    Scratch *scratch;
    SearchWatch *watch;
    double memory_fraction;
} PredictionTasks;

static AmStatus open_module(PlanContext **primary, const TransformerShape *shape, AmError *error) {
    IrModule *module;
    TRY(transformer_module(&module, shape, error));
    return plan_context_of(primary, module, NULL, error);
}

static void run_task(void *user, int32_t k) {
    const PredictionTasks *self = user;
    ShapeTask *task = &self->tasks[k];
    Arena *scratch = scratch_take(self->scratch);
    ShapeModule module = {0};
    task->status = open_module(&module.primary, &task->rows[0]->shape, &task->error);
    if (task->status == AM_ERROR_INPUT) {
        for (int32_t r = 0; r < task->count; r++) task->rows[r]->error = task->error;
        task->status = AM_OK;
        task->count = 0;
    }
    for (int32_t r = 0; r < task->count && task->status == AM_OK; r++) {
        task->status = predict(task->rows[r], &module, scratch, self->memory_fraction);
        if (task->status != AM_OK) task->error = task->rows[r]->error;
        search_watch_count(self->watch, 1, NAN);
    }
    plan_context_free(module.split);
    plan_context_free(module.primary);
    scratch_give(self->scratch, scratch);
}

/* Rows by shape, then by number of micro-batches where that is given, one stage or several,
 * and by line. */
static int compare_rows(const void *left, const void *right) {
    const PublishedRow *a = *(PublishedRow *const *)left, *b = *(PublishedRow *const *)right;
    int order = memcmp(&a->shape, &b->shape, sizeof a->shape);
    if (order) return order;
    int64_t first = a->run->micro_batch * a->run->data, second = b->run->micro_batch * b->run->data;
    if (first != second) return first < second ? -1 : 1;
    bool is_one = a->run->pipeline == 1, other_is_one = b->run->pipeline == 1;
    if (is_one != other_is_one) return is_one ? -1 : 1;
    return (a->run->line > b->run->line) - (a->run->line < b->run->line);
}

/* Reads the fields of the row; returns whether there is a step to simulate. */
static bool read_row(PublishedRow *row) {
    const PublishedRun *run = row->run;
    row->outcome = PUBLISHED_FAILED;
    if (run->data < 0 || run->tensor < 0 || run->pipeline < 0) {
        row->outcome = PUBLISHED_NO_STRATEGY;
        return false;
    }
    if (read_shape(&row->shape, run, &row->error) != AM_OK) return false;
    return read_strategy(&row->strategy, run, &row->error) == AM_OK;
}

static int32_t make_tasks(ShapeTask *tasks, PublishedRow **sorted, int32_t count) {
    int32_t task_count = 0;
    for (int32_t k = 0, end; k < count; k = end) {
        for (end = k + 1; end < count && end < k + ROWS_OF_TASK; end++)
            if (memcmp(&sorted[end]->shape, &sorted[k]->shape, sizeof sorted[k]->shape) != 0) break;
        tasks[task_count++] = (ShapeTask){.rows = sorted + k, .count = end - k};
    }
    return task_count;
}

AmStatus published_predict(PublishedRow *rows, int32_t count, double memory_fraction, SearchWatch *watch,
                           AmError *error) {
    Arena arena = {0};
    PublishedRow **sorted = ARENA_ARRAY(&arena, PublishedRow *, count + 1);
    PredictionTasks self = {.tasks = ARENA_ARRAY(&arena, ShapeTask, count + 1),
                            .watch = watch,
                            .memory_fraction = memory_fraction,
                            .scratch = scratch_create()};
    AmStatus status = arena.failed || !self.scratch ? am_fail_memory(error, count) : AM_OK;
    int32_t used = 0, task_count = 0;
    for (int32_t k = 0; k < count && status == AM_OK; k++)
        if (read_row(&rows[k])) sorted[used++] = &rows[k];
    if (status == AM_OK) {
        qsort(sorted, (size_t)used, sizeof *sorted, compare_rows);
        task_count = make_tasks(self.tasks, sorted, used);
        search_watch_expect(watch, used);
        parallel_for(task_count, 0, run_task, &self);
    }
    for (int32_t k = 0; k < task_count && status == AM_OK; k++) {
        status = self.tasks[k].status;
        if (status != AM_OK && error) *error = self.tasks[k].error;
    }
    if (self.scratch) scratch_free(self.scratch);
    arena_free(&arena);
    return status;
}

AmStatus published_open(PlanContext **primary, Cluster **cluster, Arena *arena, const PublishedRow *row,
                        AmError *error) {
    TransformerShape shape;
    *primary = NULL;
    *cluster = NULL;
    TRY(read_shape(&shape, row->run, error));
    TRY(read_cluster(cluster, arena, row->run, error));
    return open_module(primary, &shape, error);
}

/* ---- files ---- */

AmStatus published_write(const PublishedRow *row, double memory_fraction, const char *module_path,
                         const char *plan_path, AmError *error) {
    Arena arena = {0};
    PlanContext *primary = NULL;
    Cluster *cluster = NULL;
    PlanCandidate priced;
    AmStatus status;
    TRY_OR_FAIL(open_module(&primary, &row->shape, error));
    if (module_path) TRY_OR_FAIL(ir_write(primary->module, module_path, error));
    if (!plan_path) goto fail;
    const MicroBatchSettings batching = strategy_batching(&row->strategy);
    const PlanContext *context;
    TRY_OR_FAIL(read_cluster(&cluster, &arena, row->run, error));
    TRY_OR_FAIL(plan_context_for(&context, primary, &batching, error));
    TRY_OR_FAIL(strategy_simulate(&priced, &arena, context, cluster, &row->strategy, memory_fraction, error));
    TRY_OR_FAIL(plan_write(priced.plan, primary, plan_path, error));
fail:
    cluster_free(cluster);
    plan_context_free(primary);
    arena_free(&arena);
    return status;
}
