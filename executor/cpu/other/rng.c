/* rng: uniform or normal numbers. HLO promises a distribution, not which bits.
 *
 * Here the bits are those of Philox-4x32-10. The key is the instruction's number in its module, and the
 * counter goes on through its runs. So a run of a program is reproducible, and every rank that holds the
 * instruction draws the same numbers. A word w makes the fraction (w >> 11) 2^-53. uniform gives a + u (b -
 * a), always below b; for integers the integral part. normal uses two fractions per number (Box and Muller,
 * "A note on the generation of random normal deviates", 1958).
 */
#include <math.h>

#include "executor/array/scalar64.h"
#include "executor/array/strided.h"
#include "executor/cpu/cpu.h"
#include "executor/cpu/other/random_bits.h"
#include "executor/cpu/other/rng.h"
#include "ir/hlo.pb-c.h"

typedef struct RngKernel {
    RngForm form;
    uint64_t *counter; /* blocks that were drawn so far, of the whole */
} RngKernel;

/* Draws two fractions in [0, 1), from block `block` of this run. */
static void draw(double fractions[2], const RngKernel *kernel, int64_t block) {
    uint32_t words[4];
    random_philox(words, kernel->form.key, *kernel->counter + (uint64_t)block, 0);
    for (int32_t k = 0; k < 2; k++) {
        uint64_t word = (uint64_t)words[2 * k + 1] << 32 | words[2 * k];
        fractions[k] = (double)(word >> 11) * 0x1p-53;
    }
}

static double as_double(const Scalar64 *value, Scalar64Kind kind) {
    return kind == SCALAR64_FLOATING ? value->floating
           : kind == SCALAR64_SIGNED ? (double)value->as_signed
                                     : (double)value->as_unsigned;
}

/* Stores a + u (b - a), below b as the type rounds it. */
static void store_uniform(char *out, Dtype type, double a, double b, double fraction) {
    Scalar64 value = {.floating = a + fraction * (b - a)};
    if (scalar64_kind(type) != SCALAR64_FLOATING) value.floating = floor(value.floating);
    scalar64_store(out, type, &value, SCALAR64_FLOATING, 1, 1);
    if (scalar64_kind(type) != SCALAR64_FLOATING || !(a < b)) return;
    scalar64_load(&value, out, type, 1, 1);
    if (value.floating < b) return;
    value.floating = a;
    scalar64_store(out, type, &value, SCALAR64_FLOATING, 1, 1);
}

static void run_rng(const KernelCall *call) {
    const RngKernel *kernel = call->compiled;
    Dtype type = call->result_shapes[0]->type;
    int64_t elements = ir_shape_elements(call->result_shapes[0]), bytes = dtype_bytes(type);
    Scalar64Kind kind = scalar64_kind(type);
    Scalar64 first, second;
    scalar64_load(&first, call->operands[0], type, 1, 1);
    scalar64_load(&second, call->operands[1], type, 1, 1);
    double a = as_double(&first, kind), b = as_double(&second, kind), fractions[2];
    char *out = call->results[0];
    const IrShape *local = call->result_shapes[0];
    int64_t index[IR_MAX_RANK] = {0}, drawn = -1;
    for (int64_t i = 0; i < elements; i++) {
        int64_t place = random_place(&kernel->form.global, kernel->form.shard, index);
        int64_t block = kernel->form.is_normal ? place : place / 2;
        if (block != drawn) draw(fractions, kernel, block);
        drawn = block;
        strided_next(index, local->dimensions, local->rank);
        if (!kernel->form.is_normal) {
            store_uniform(out + i * bytes, type, a, b, fractions[place % 2]);
            continue;
        }
        double radius = sqrt(-2 * log(1 - fractions[0])), angle = 6.283185307179586477 * fractions[1];
        Scalar64 value = {.floating = a + b * radius * cos(angle)};
        scalar64_store(out + i * bytes, type, &value, SCALAR64_FLOATING, 1, 1);
    }
    *kernel->counter += (uint64_t)kernel->form.blocks;
}

AmStatus rng_read(RngForm *form, const KernelCall *call, AmError *error) {
    const IrModule *module = call->program->module;
    int32_t origin = call->instruction->origin;
    const Hlo__HloInstructionProto *message =
        origin >= 0 && origin < module->instruction_count ? module->instructions[origin].message : NULL;
    Dtype type = call->result_shapes[0]->type;
    if (!message || call->operand_count != 2 || call->result_count != 1)
        return kernel_call_refuse(call, "not with these operands", error);
    bool is_normal = message->distribution == HLO__RANDOM_DISTRIBUTION__RNG_NORMAL;
    if (!is_normal && message->distribution != HLO__RANDOM_DISTRIBUTION__RNG_UNIFORM)
        return kernel_call_refuse(call, "only the uniform and the normal distribution", error);
    if (!scalar64_supports(type) || (is_normal && !dtype_is_floating(type)))
        return kernel_call_refuse(call, "not on this type", error);
    for (int32_t k = 0; k < 2; k++)
        if (call->operand_shapes[k]->type != type || call->operand_shapes[k]->rank != 0)
            return kernel_call_refuse(call, "its bounds are not two numbers of its type", error);
    *form = (RngForm){.is_normal = is_normal,
                      .key = (uint64_t)origin + 1,
                      .global = *call->result_shapes[0],
                      .shard = call->instruction->compute.shard};
    if (form->shard) form->global.dimensions = form->shard->global;
    int64_t elements = ir_shape_elements(&form->global);
    form->blocks = is_normal ? elements : elements / 2 + elements % 2;
    return AM_OK;
}

AmStatus cpu_prepare_rng(KernelCall *call, Arena *arena, AmError *error) {
    RngKernel *kernel = ARENA_ARRAY(arena, RngKernel, 1);
    uint64_t *counter = ARENA_ARRAY(arena, uint64_t, 1);
    if (arena->failed) return am_fail_memory(error, (int64_t)sizeof *kernel);
    *kernel = (RngKernel){.counter = counter};
    TRY(rng_read(&kernel->form, call, error));
    call->compiled = kernel;
    call->run = run_rng;
    return AM_OK;
}
