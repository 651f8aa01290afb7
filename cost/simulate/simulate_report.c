/* A simulation as JSON and as text.
 *
 * Both have step time, devices with their busy, communicating and idle seconds, memory at the peak,
 * collectives, transfers, and the critical path. Devices that differ in number only share a line of the
 * text.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cost/simulate/critical_path.h"
#include "cost/simulate/simulate.h"
#include "lowering/plan_file/plan_parts.h"
#include "lowering/program/program_trace.h"

enum { MOST_PATH_ITEMS = 8, MOST_PATH_ITEMS_JSON = 32 };

static double busy_fraction(const Simulation *simulation, const SimulatedDevice *device) {
    return simulation_busy_fraction(device->compute_seconds, simulation->step_seconds);
}

/* Returns the FLOPs per second of useful work, all devices together. */
static double flops_per_second(const Simulation *simulation) {
    return simulation->step_seconds > 0 ? simulation->flops / simulation->step_seconds : 0;
}

static json_t *device_to_json(const Simulation *simulation, const SimulatedDevice *device) {
    json_t *object = json_pack(
        "{s:i, s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f}",
        "device", device->device, "stage", device->stage, "name", device->name, "peak_bytes",
        (json_int_t)device->memory.peak_bytes, "weights_bytes", (json_int_t)device->memory.weights_bytes,
        "gradients_bytes", (json_int_t)device->memory.gradients_bytes, "optimizer_bytes",
        (json_int_t)device->memory.optimizer_bytes, "activation_bytes",
        (json_int_t)device->memory.activation_bytes, "in_flight_bytes",
        (json_int_t)device->memory.in_flight_bytes, "collective_bytes",
        (json_int_t)device->memory.collective_bytes, "channel_bytes", (json_int_t)device->channel_bytes,
        "needed_bytes", (json_int_t)device->needed_bytes, "limit_bytes", (json_int_t)device->limit_bytes,
        "memory_bytes", (json_int_t)device->memory_bytes, "compute_seconds", device->compute_seconds,
        "communication_seconds", device->communication_seconds, "hidden_seconds", device->hidden_seconds,
        "idle_seconds", device->idle_seconds, "busy_fraction", busy_fraction(simulation, device));
    if (object && device->memory.host_bytes > 0)
        json_object_set_new(object, "host_bytes", json_integer((json_int_t)device->memory.host_bytes));
    return object;
}

/* The kind of a step, and its name in the user's program. */
typedef struct StepName {
    char operator_name[64];
    const char *op_name;
} StepName;

static const char *name_origin(const IrModule *module, int32_t origin) {
    if (!module || origin < 0 || origin >= module->instruction_count) return "";
    const IrInstruction *instruction = &module->instructions[origin];
    return instruction->op_name && instruction->op_name[0] ? instruction->op_name : instruction->name;
}

static const char *name_value(const Program *program, int32_t value) {
    return name_origin(program->module, program->values[value].origin);
}

static void name_step(StepName *name, const Program *program, int32_t step) {
    name->op_name = "";
    if (step >= program->execution.step_count) {
        snprintf(name->operator_name, sizeof name->operator_name, "update");
        return;
    }
    int32_t origin = program_trace_name(name->operator_name, sizeof name->operator_name, program, step);
    name->op_name = name_origin(program->module, origin);
}

static json_t *peak_to_json(const MemoryPeak *peak) {
    if (!peak->program) return json_null();
    json_t *tensors = json_array();
    StepName name;
    for (int32_t k = 0; k < peak->tensor_count; k++) {
        const MemoryTensor *tensor = &peak->tensors[k];
        const IrShape *shape = &tensor->program->values[tensor->value].shape;
        json_t *dimensions = json_array();
        for (int32_t d = 0; d < shape->rank; d++)
            json_array_append_new(dimensions, json_integer((json_int_t)shape->dimensions[d]));
        json_array_append_new(
            tensors,
            json_pack("{s:s, s:o, s:s, s:o, s:I}", "kind", memory_kind_name(tensor->kind), "op_name",
                      plan_string_to_json(name_value(tensor->program, tensor->value)), "type",
                      dtype_name(shape->type), "dimensions", dimensions, "bytes", (json_int_t)tensor->bytes));
    }
    name_step(&name, peak->program, peak->step);
    return json_pack("{s:s, s:o, s:o}", "operator", name.operator_name, "op_name",
                     plan_string_to_json(name.op_name), "tensors", tensors);
}

/* Returns the path itself and the items that take most of it. */
static json_t *path_to_json(const CriticalPath *path) {
    if (!path) return json_null();
    json_t *items = json_array();
    for (int32_t k = 0; k < path->item_count && k < MOST_PATH_ITEMS_JSON; k++) {
        const CriticalItem *item = &path->items[k];
        StepName name;
        name_step(&name, item->program, item->step);
        json_array_append_new(items,
                              json_pack("{s:s, s:o, s:i, s:I, s:f}", "operator", name.operator_name,
                                        "op_name", plan_string_to_json(name.op_name), "rank", item->rank,
                                        "count", (json_int_t)item->count, "seconds", item->seconds));
    }
    return json_pack("{s:f, s:f, s:f, s:i, s:o}", "compute_seconds", path->compute_seconds,
                     "collective_seconds", path->collective_seconds, "transfer_seconds",
                     path->transfer_seconds, "operators", path->item_count, "longest", items);
}

json_t *simulation_to_json(const Simulation *simulation) {
    json_t *devices = json_array(), *collectives = json_object(), *warnings = json_array();
    for (int32_t d = 0; d < simulation->device_count; d++)
        json_array_append_new(devices, device_to_json(simulation, &simulation->devices[d]));
    for (int32_t kind = 0; kind < PRICE_COLLECTIVE_KINDS; kind++) {
        const CollectivePrice *price = &simulation->collectives[kind];
        if (price->count == 0) continue;
        json_object_set_new(collectives, program_collective_name((ProgramCollectiveKind)kind),
                            json_pack("{s:I, s:f, s:f, s:f}", "count", (json_int_t)price->count,
                                      "tensor_bytes", price->tensor_bytes, "sent_bytes", price->sent_bytes,
                                      "seconds", price->seconds));
    }
    for (int32_t k = 0; k < simulation->warnings.count; k++)
        json_array_append_new(warnings, json_string(simulation->warnings.texts[k]));
    json_t *transfers =
        json_pack("{s:I, s:f, s:f}", "count", (json_int_t)simulation->transfers.count, "bytes",
                  simulation->transfers.bytes, "seconds", simulation->transfers.seconds);
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:b, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "format",
        "automap-simulation-1", "module", simulation->module_name ? simulation->module_name : "", "cluster",
        simulation->cluster_name, "step_seconds", simulation->step_seconds, "flops", simulation->flops,
        "flops_per_second", flops_per_second(simulation), "executed_flops", simulation->executed_flops,
        "bubble_fraction", simulation->bubble_fraction, "fits", (int)simulation->fit.fits, "peak_bytes",
        (json_int_t)simulation->fit.needed_bytes, "limit_bytes", (json_int_t)simulation->fit.limit_bytes,
        "collectives", collectives, "transfers", transfers, "critical_path",
        path_to_json(simulation->critical_path), "memory_peak", peak_to_json(&simulation->peak), "devices",
        devices, "warnings", warnings);
    const HostFit *host = &simulation->host;
    if (root && host->needed_bytes > 0)
        json_object_set_new(root, "host",
                            json_pack("{s:i, s:b, s:I, s:I, s:I}", "server", host->server, "fits",
                                      (int)host->fits, "needed_bytes", (json_int_t)host->needed_bytes,
                                      "limit_bytes", (json_int_t)host->limit_bytes, "memory_bytes",
                                      (json_int_t)host->memory_bytes));
    return root;
}

static void append_table(Text *text, const Text *rows) {
    text_append_table(text, rows->data ? rows->data : "");
}

static void print_collectives(Text *text, const Simulation *simulation) {
    Text rows = {0};
    for (int32_t kind = 0; kind < PRICE_COLLECTIVE_KINDS; kind++) {
        const CollectivePrice *price = &simulation->collectives[kind];
        if (price->count == 0) continue;
        if (!rows.data) text_append_string(&rows, "collective\tcount\ttensors\tsent per device\ttime\n");
        text_append(&rows, "%s\t%lld\t", program_collective_name((ProgramCollectiveKind)kind),
                    (long long)price->count);
        text_append_bytes_size(&rows, price->tensor_bytes);
        text_append_string(&rows, "\t");
        text_append_bytes_size(&rows, price->sent_bytes);
        text_append_string(&rows, "\t");
        text_append_seconds(&rows, price->seconds);
        text_append_string(&rows, "\n");
    }
    if (rows.data) text_append_string(text, "\n");
    append_table(text, &rows);
    text_free(&rows);
}

static void print_transfers(Text *text, const Simulation *simulation) {
    const TransferTotal *total = &simulation->transfers;
    if (total->count == 0) return;
    text_append(text, "\n%lld transfers between stages, ", (long long)total->count);
    text_append_bytes_size(text, total->bytes);
    text_append_string(text, ", ");
    text_append_seconds(text, total->seconds);
    text_append_string(text, "\n");
}

/* Devices that differ in number only share a line. */
static bool is_alike(const SimulatedDevice *a, const SimulatedDevice *b) {
    return a->stage == b->stage && a->compute_seconds == b->compute_seconds &&
           a->communication_seconds == b->communication_seconds && a->hidden_seconds == b->hidden_seconds &&
           a->idle_seconds == b->idle_seconds && a->memory_bytes == b->memory_bytes &&
           a->memory.peak_bytes == b->memory.peak_bytes && a->channel_bytes == b->channel_bytes &&
           a->memory.gradients_bytes == b->memory.gradients_bytes;
}

static void print_devices(Text *text, const Simulation *simulation) {
    Text rows = {0};
    bool has_stages =
        simulation->device_count > 0 && simulation->devices[simulation->device_count - 1].stage > 0;
    if (has_stages) text_append_string(&rows, "stage\t");
    text_append_string(&rows,
                       "device\tcompute\tcommunication\thidden\tidle\tbusy\tpeak memory\tweights\tgradients\t"
                       "optimizer\tactivations\ttransfer slots\n");
    for (int32_t d = 0; d < simulation->device_count;) {
        const SimulatedDevice *device = &simulation->devices[d];
        int32_t first = d++;
        while (d < simulation->device_count && is_alike(device, &simulation->devices[d])) d++;
        if (has_stages) text_append(&rows, "%d\t", device->stage);
        text_append(&rows, "%s", device->name);
        if (d - first > 1) text_append(&rows, " and %d alike", d - first - 1);
        const double seconds[] = {device->compute_seconds, device->communication_seconds,
                                  device->hidden_seconds, device->idle_seconds};
        const int64_t bytes[] = {
            device->needed_bytes,           device->memory.weights_bytes,    device->memory.gradients_bytes,
            device->memory.optimizer_bytes, device->memory.activation_bytes, device->channel_bytes};
        for (size_t k = 0; k < sizeof seconds / sizeof *seconds; k++) {
            text_append_string(&rows, "\t");
            text_append_seconds(&rows, seconds[k]);
        }
        text_append(&rows, "\t%.0f%%", 100 * busy_fraction(simulation, device));
        for (size_t k = 0; k < sizeof bytes / sizeof *bytes; k++) {
            text_append_string(&rows, "\t");
            text_append_bytes_size(&rows, (double)bytes[k]);
        }
        text_append_string(&rows, "\n");
    }
    text_append_string(text, "\n");
    append_table(text, &rows);
    text_free(&rows);
}

static void print_path(Text *text, const Simulation *simulation) {
    const CriticalPath *path = simulation->critical_path;
    Text rows = {0};
    if (!path || simulation->step_seconds <= 0) return;
    /* Under zb_2p the path is longer than the step. */
    double length = path->compute_seconds + path->collective_seconds + path->transfer_seconds;
    double percent = 100 / fmax(simulation->step_seconds, length);
    text_append(text, "\ncritical path: %.0f%% computing, %.0f%% collectives, %.0f%% transfers\n",
                path->compute_seconds * percent, path->collective_seconds * percent,
                path->transfer_seconds * percent);
    text_append_string(&rows, "of the step\ttime\ttimes\trank\toperator\top_name\n");
    for (int32_t k = 0; k < path->item_count && k < MOST_PATH_ITEMS; k++) {
        const CriticalItem *item = &path->items[k];
        StepName name;
        name_step(&name, item->program, item->step);
        text_append(&rows, "%.1f%%\t", item->seconds * percent);
        text_append_seconds(&rows, item->seconds);
        text_append(&rows, "\t%lld\t%d\t%s\t%s\n", (long long)item->count, item->rank, name.operator_name,
                    name.op_name);
    }
    append_table(text, &rows);
    text_free(&rows);
}

static void print_peak(Text *text, const Simulation *simulation) {
    const MemoryPeak *peak = &simulation->peak;
    Text rows = {0};
    StepName name;
    if (!peak->program) return;
    const SimulatedDevice *device = &simulation->devices[simulation->fullest];
    name_step(&name, peak->program, peak->step);
    text_append(text, "\nmemory is fullest on %s at %s %s: ", device->name, name.operator_name, name.op_name);
    text_append_bytes_size(text, (double)device->memory.in_flight_bytes);
    text_append_string(text, " kept for the backward pass, ");
    text_append_bytes_size(text, (double)device->memory.collective_bytes);
    text_append_string(text, " filled by collectives");
    if (device->channel_bytes > 0) {
        text_append_string(text, "; transfer slots, ");
        text_append_bytes_size(text, (double)device->channel_bytes);
    }
    if (device->kept_bytes > 0) {
        text_append_string(text, "; held outside of the step, ");
        text_append_bytes_size(text, (double)device->kept_bytes);
    }
    text_append_string(text, "\n");
    text_append_string(&rows, "bytes\ttype\tkind\top_name\n");
    for (int32_t k = 0; k < peak->tensor_count; k++) {
        const MemoryTensor *tensor = &peak->tensors[k];
        const IrShape *shape = &tensor->program->values[tensor->value].shape;
        text_append_bytes_size(&rows, (double)tensor->bytes);
        text_append(&rows, "\t%s[", dtype_name(shape->type));
        for (int32_t d = 0; d < shape->rank; d++)
            text_append(&rows, d > 0 ? ",%lld" : "%lld", (long long)shape->dimensions[d]);
        text_append(&rows, "]\t%s\t%s\n", memory_kind_name(tensor->kind),
                    name_value(tensor->program, tensor->value));
    }
    append_table(text, &rows);
    text_free(&rows);
}

void simulation_print(Text *text, const Simulation *simulation) {
    text_append(text, "%s on cluster %s, %d device%s\nstep ",
                simulation->module_name ? simulation->module_name : "module", simulation->cluster_name,
                simulation->device_count, simulation->device_count == 1 ? "" : "s");
    text_append_seconds(text, simulation->step_seconds);
    text_append_string(text, ", ");
    text_append_count(text, flops_per_second(simulation));
    text_append(text, "%sFLOP/s of useful work, devices idle %.1f%%; fullest device ",
                flops_per_second(simulation) < 1000 ? " " : "", 100 * simulation->bubble_fraction);
    const SimulatedDevice *fullest = &simulation->devices[simulation->fullest];
    memory_append_use(text, fullest->needed_bytes, fullest->limit_bytes, fullest->memory_bytes);
    if (fullest->needed_bytes > fullest->limit_bytes) {
        text_append_style(text, TEXT_RED);
        text_append_string(text, ": DOES NOT FIT");
        text_append_style(text, TEXT_PLAIN);
    }
    text_append_string(text, "\n");
    if (simulation->host.needed_bytes > 0) {
        text_append(text,
                    "optimizer state in the memory of the host of server %d: ", simulation->host.server);
        memory_append_use(text, simulation->host.needed_bytes, simulation->host.limit_bytes,
                          simulation->host.memory_bytes);
        text_append_string(text, simulation->host.fits ? "\n" : ": DOES NOT FIT\n");
    }
    print_collectives(text, simulation);
    print_transfers(text, simulation);
    print_devices(text, simulation);
    print_peak(text, simulation);
    print_path(text, simulation);
}
