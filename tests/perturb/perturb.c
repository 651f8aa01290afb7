/* The program automap_perturbed: automap on the CPU with the rounding errors of other libraries.
 *
 * Linked with --wrap=kernel_prepare, so that every kernel call of a run on the CPU passes through here. The
 * variable AUTOMAP_PERTURB has a seed, then words with commas between:
 *
 *   7            operands of f32 products and all their results move by at most one unit in the last place;
 *                so do sums. Results of exp, tanh and others move by at most two units. 0: nothing moves
 *   7,tf32       operands of f32 products keep 10 bits of fraction: to nearest, towards zero for even seeds
 *   0,list       "product ORIGIN OPCODE" on standard error for each product of the program
 *   0,scale@41   the product of canonical instruction 41 is multiplied by 1.01
 *   0,cut@41     the last term of its sums is left out
 *   0,turn@41    its results lie in reverse order, as after a wrong transposition
 *
 * A move is a hash of seed, instruction, rank, step and index. Equal settings give equal losses. One in 64 of
 * the 16-bit results moves: libraries accumulate them in f32, and few sums lie near a rounding edge.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "executor/kernels.h"

enum { HALF_SHARE = 64 };                        /* of this many 16-bit results one moves */
enum { LANE_LEFT = 1, LANE_RIGHT, LANE_RESULT }; /* operands 0 and 1, then result k */

typedef struct Settings {
    uint64_t seed;
    bool tf32, list;
    int32_t scaled, cut, turned; /* canonical instruction, or -1 */
} Settings;

/* A call that passes through here: the kernel's own call, and copies of a product's operands. */
typedef struct Perturbed {
    KernelCall inner;
    Settings settings;
    void *copies[2]; /* NULL: the kernel reads the operand itself */
    int32_t origin, places;
    uint64_t step;
} Perturbed;

AmStatus __real_kernel_prepare(KernelCall **call, Arena *arena, KernelDevice *device, const Program *program,
                               const ProgramStep *step, AmError *error);
AmStatus __wrap_kernel_prepare(KernelCall **call, Arena *arena, KernelDevice *device, const Program *program,
                               const ProgramStep *step, AmError *error);

/* Fills settings from the environment; ends the program where they are not understood. */
static void read_settings(Settings *settings) {
    const char *text = getenv("AUTOMAP_PERTURB");
    char *rest = "";
    *settings = (Settings){.scaled = -1, .cut = -1, .turned = -1};
    if (!text) return;
    settings->seed = strtoull(text, &rest, 10);
    while (*rest == ',') {
        char word[16] = "";
        int32_t origin = -1, used = 0;
        if (sscanf(rest, ",%15[a-z0-9]%n@%d%n", word, &used, &origin, &used) < 1) break;
        if (strcmp(word, "tf32") == 0) settings->tf32 = true;
        else if (strcmp(word, "list") == 0) settings->list = true;
        else if (strcmp(word, "scale") == 0) settings->scaled = origin;
        else if (strcmp(word, "cut") == 0) settings->cut = origin;
        else if (strcmp(word, "turn") == 0) settings->turned = origin;
        else break;
        rest += used;
    }
    if (*rest) {
        fprintf(
            stderr,
            "AUTOMAP_PERTURB: unknown word '%s' (expected SEED[,tf32][,list][,scale@N][,cut@N][,turn@N])\n",
            rest);
        exit(2);
    }
}

static bool is_product(IrOpcode opcode) {
    return opcode == IR_DOT || opcode == IR_CONVOLUTION || opcode == IR_RAGGED_DOT;
}

/* Returns whether another library of mathematics rounds an operator differently; all round sqrt alike. */
static bool is_transcendental(IrOpcode opcode) {
    return ir_opcode_has(opcode, FACT_TRANSCENDENTAL) && opcode != IR_SQRT;
}

/* Returns the units in the last place by which the results of a call may move. */
static int32_t places_of(const KernelCall *call) {
    if (call->fusion) {
        for (int32_t k = 0; k < call->fusion->op_count; k++)
            if (is_transcendental(call->fusion->ops[k].opcode)) return 2;
        return 0;
    }
    const ProgramInstruction *instruction = call->instruction;
    switch (instruction->opcode) {
    case IR_DOT:
    case IR_CONVOLUTION:
    case IR_RAGGED_DOT:
    case IR_BATCH_NORM_TRAINING:
    case IR_BATCH_NORM_INFERENCE:
    case IR_BATCH_NORM_GRAD:
    case IR_FFT:
    case IR_CHOLESKY:
    case IR_TRIANGULAR_SOLVE: return 1;
    case IR_REDUCE:
    case IR_REDUCE_WINDOW:
        return ir_computation_operator(call->program->module, instruction->compute.called) == IR_ADD;
    case IR_SELECT_AND_SCATTER:
        return ir_computation_operator(call->program->module, instruction->compute.called_second) == IR_ADD;
    default: return is_transcendental(instruction->opcode) ? 2 : 0;
    }
}

/* Returns the places, in [-most, most], by which an element moves. */
static int64_t move_of(const Perturbed *self, int32_t lane, int64_t at, int32_t most) {
    uint64_t stream = ((uint64_t)self->origin * 64 + (uint64_t)lane) << 32 ^ self->step << 8 ^
                      (uint64_t)self->inner.program->device;
    return (int64_t)(random_at(self->settings.seed, stream, (uint64_t)at) % (uint64_t)(2 * most + 1)) - most;
}

static bool can_move(Dtype type) {
    return type == DTYPE_F32 || type == DTYPE_F64 || type == DTYPE_BF16 || type == DTYPE_F16;
}

static double value_of(uint64_t bits, Dtype type) {
    double wide;
    float narrow;
    uint32_t half = (uint32_t)bits;
    if (type == DTYPE_BF16) return dtype_bf16_to_float((uint16_t)bits);
    if (type == DTYPE_F16) return dtype_f16_to_float((uint16_t)bits);
    memcpy(&wide, &bits, sizeof wide);
    memcpy(&narrow, &half, sizeof narrow);
    return type == DTYPE_F64 ? wide : (double)narrow;
}

/* Moves one element. Numbers of few bits stay, as sums of such numbers are exact in any order: whole ones,
 * and f32 ones whose last eight bits are 0. So do infinities, NaN and their neighbours. */
static void move_element(char *element, Dtype type, int64_t places) {
    enum { MOST_WHOLE = 1 << 24, MOST_WHOLE_HALF = 16, LAST_BITS = 0xff };
    size_t bytes = (size_t)dtype_bytes(type);
    uint64_t bits = 0;
    memcpy(&bits, element, bytes);
    double value = value_of(bits, type);
    if (!isfinite(value) || fabs(value) > (type == DTYPE_F16 ? 6e4 : 3e38) || fabs(value) < 1e-37) return;
    if (fabs(value) <= (bytes == 2 ? MOST_WHOLE_HALF : MOST_WHOLE) && value == rint(value)) return;
    if (type == DTYPE_F32 && (bits & LAST_BITS) == 0) return;
    bits += (uint64_t)places;
    memcpy(element, &bits, bytes);
}

static void move_all(const Perturbed *self, void *data, const IrShape *shape, int32_t lane, int32_t most) {
    int64_t count = ir_shape_elements(shape), bytes = dtype_bytes(shape->type);
    for (int64_t at = 0; can_move(shape->type) && at < count; at++) {
        int64_t places = move_of(self, lane, at, most);
        if (bytes == 2 && move_of(self, lane, at + count, HALF_SHARE / 2) != 0) continue;
        move_element((char *)data + at * bytes, shape->type, places);
    }
}

/* Shortens f32 to tf32's 10 bits of fraction. */
static void shorten_all(const Perturbed *self, float *data, int64_t count) {
    enum { DROPPED = 13 };
    uint32_t half = self->settings.seed % 2 ? (UINT32_C(1) << (DROPPED - 1)) - 1 : 0;
    for (int64_t at = 0; at < count; at++) {
        uint32_t bits;
        memcpy(&bits, &data[at], sizeof bits);
        if ((bits & 0x7f800000u) == 0x7f800000u) continue;
        if (half) bits += half + (bits >> DROPPED & 1);
        bits &= ~((UINT32_C(1) << DROPPED) - 1);
        memcpy(&data[at], &bits, sizeof bits);
    }
}

/* Sets the last elements along a dimension to zero. */
static void cut_last(char *data, const IrShape *shape, int64_t dimension) {
    int64_t inner = dtype_bytes(shape->type), outer = 1, size = shape->dimensions[dimension];
    for (int64_t d = 0; d < shape->rank; d++)
        if (d < dimension) outer *= shape->dimensions[d];
        else if (d > dimension) inner *= shape->dimensions[d];
    for (int64_t k = 0; k < outer; k++) memset(data + (k * size + size - 1) * inner, 0, (size_t)inner);
}

/* Copies operand k of a product and perturbs the copy by the settings. */
static void copy_operand(Perturbed *self, const void *operand, int32_t k) {
    const IrShape *shape = self->inner.operand_shapes[k];
    const IrAttributes *attributes = self->inner.instruction->attributes;
    int64_t dimension = -1;
    memcpy(self->copies[k], operand, (size_t)ir_shape_bytes(shape));
    if (shape->type == DTYPE_F32 && self->settings.tf32)
        shorten_all(self, self->copies[k], ir_shape_elements(shape));
    else if (shape->type == DTYPE_F32 && self->settings.seed)
        move_all(self, self->copies[k], shape, LANE_LEFT + k, 1);
    if (k > 0 || self->settings.cut != self->origin) return;
    if (attributes->convolution) dimension = attributes->convolution->input_feature;
    else if (attributes->dot && attributes->dot->contracting_count > 0)
        dimension = attributes->dot->lhs_contracting[0];
    if (dimension >= 0 && shape->dimensions[dimension] > 0) cut_last(self->copies[k], shape, dimension);
}

static void scale_all(void *data, const IrShape *shape) {
    for (int64_t at = 0; at < ir_shape_elements(shape); at++)
        if (shape->type == DTYPE_F32) ((float *)data)[at] *= 1.01f;
        else if (shape->type == DTYPE_BF16)
            ((uint16_t *)data)[at] = dtype_float_to_bf16(dtype_bf16_to_float(((uint16_t *)data)[at]) * 1.01f);
}

static void turn_all(char *data, const IrShape *shape) {
    int64_t bytes = dtype_bytes(shape->type), last = ir_shape_elements(shape) - 1;
    char kept[16];
    for (int64_t at = 0; at < last - at; at++) {
        memcpy(kept, data + at * bytes, (size_t)bytes);
        memcpy(data + at * bytes, data + (last - at) * bytes, (size_t)bytes);
        memcpy(data + (last - at) * bytes, kept, (size_t)bytes);
    }
}

static void run_perturbed(const KernelCall *call) {
    Perturbed *self = (Perturbed *)(uintptr_t)call->compiled;
    void *operands[3] = {NULL};
    KernelCall inner = self->inner;
    inner.operands = call->operands;
    inner.results = call->results;
    inner.scratch = call->scratch;
    self->step++;
    for (int32_t k = 0; k < call->operand_count && k < 3 && self->copies[0]; k++) {
        if (k < 2) copy_operand(self, call->operands[k], k);
        operands[k] = k < 2 ? self->copies[k] : call->operands[k];
        inner.operands = operands;
    }
    inner.run(&inner);
    for (int32_t r = 0; r < call->result_count; r++) {
        if (self->settings.seed && self->places > 0)
            move_all(self, call->results[r], call->result_shapes[r], LANE_RESULT + r, self->places);
        if (!self->copies[0]) continue;
        if (self->settings.scaled == self->origin) scale_all(call->results[r], call->result_shapes[r]);
        if (self->settings.turned == self->origin) turn_all(call->results[r], call->result_shapes[r]);
    }
}

AmStatus __wrap_kernel_prepare(KernelCall **call, Arena *arena, KernelDevice *device, const Program *program,
                               const ProgramStep *step, AmError *error) {
    Settings settings;
    read_settings(&settings);
    TRY(__real_kernel_prepare(call, arena, device, program, step, error));
    KernelCall *made = *call;
    if (device->back_end != &kernels_cpu || (made->fusion && made->fusion->op_count == 0)) return AM_OK;
    Perturbed *self = ARENA_ARRAY(arena, Perturbed, 1);
    if (!self) return am_fail_memory(error, (int64_t)sizeof *self);
    *self = (Perturbed){.inner = *made, .settings = settings, .places = places_of(made)};
    self->origin = made->instruction ? made->instruction->origin : made->fusion->ops[0].origin;
    if (made->instruction && is_product(made->instruction->opcode)) {
        if (settings.list)
            fprintf(stderr, "product %d %s\n", self->origin, ir_opcode_name(made->instruction->opcode));
        for (int32_t k = 0; k < 2; k++) {
            self->copies[k] =
                aligned_alloc(64, (size_t)kernel_align(ir_shape_bytes(made->operand_shapes[k]) + 64));
            if (!self->copies[k]) return am_fail_memory(error, ir_shape_bytes(made->operand_shapes[k]));
        }
    }
    if (!self->copies[0] && self->places == 0) return AM_OK;
    made->compiled = self;
    made->run = run_perturbed;
    return AM_OK;
}
