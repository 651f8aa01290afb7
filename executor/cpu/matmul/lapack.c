/* LAPACK custom calls: the factorizations that JAX on CPU leaves to a library, run by the LAPACK of OpenBLAS.
 *
 * A target is `lapack_<s|d|c|z><routine>_ffi`. It works on a batch of matrices and vectors. The table has
 * their sizes, one word each: a letter for the type and a letter for each dimension. So one function checks
 * every call, packs the operands column by column, as LAPACK reads them, and unpacks the results. The options
 * of a call (which triangle, which vectors) are numbers in its backend_config, "{uplo = 76 : ui8}". When a
 * call is prepared, the routine returns the size of its memory. It then runs once per matrix.
 */
#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "executor/array/strided.h"
#include "executor/cpu/cpu.h"
#include "executor/cpu/matmul/lapack_routines.h"
#include "ir/hlo.pb-c.h"

enum { MOST_PIECES = 6, MOST_SIZE = 30000 };

/* One operand or result of one batch item: a matrix, a vector or a number. */
typedef struct Piece {
    Dtype type;
    int64_t rows, columns, bytes;
    int64_t at; /* offset in the scratch memory, where it lies column by column */
} Piece;

typedef struct LapackKernel {
    const LapackRoutine *routine;
    int32_t operand_count, result_count;
    Piece operands[MOST_PIECES], results[MOST_PIECES];
    LapackJob job; /* all but the addresses */
    int64_t batches;
    int64_t work_at, real_at, integer_at;
    bool is_empty;
} LapackKernel;

/* Returns the number after "name = " in the custom call's configuration, or `otherwise`. */
static int read_option(const KernelCall *call, const char *name, int otherwise) {
    const IrModule *module = call->program->module;
    int32_t origin = call->instruction->origin;
    if (!module || origin < 0 || origin >= module->instruction_count) return otherwise;
    const Hlo__HloInstructionProto *message = module->instructions[origin].message;
    if (!message || !message->backend_config.data) return otherwise;
    const char *text = (const char *)message->backend_config.data;
    size_t length = message->backend_config.len, name_length = strlen(name);
    for (size_t at = 1; at + name_length + 3 < length; at++) {
        if (isalnum((unsigned char)text[at - 1]) || text[at - 1] == '_') continue;
        if (memcmp(text + at, name, name_length) != 0 || memcmp(text + at + name_length, " = ", 3) != 0)
            continue;
        int value = 0;
        for (at += name_length + 3; at < length && isdigit((unsigned char)text[at]) && value < INT_MAX / 10;
             at++)
            value = 10 * value + (text[at] - '0');
        return value;
    }
    return otherwise;
}

static Dtype piece_type(char letter, Dtype type) {
    switch (letter) {
    case 'T': return type;
    case 'R': return dtype_real_part(type);
    case 'C': return dtype_real_part(type) == DTYPE_F32 ? DTYPE_C64 : DTYPE_C128;
    default: return DTYPE_S32;
    }
}

/* Returns the size that a letter stands for; a free letter takes `actual` when it is first seen. */
static int64_t size_of(int64_t sizes[26], char letter, int64_t actual) {
    int64_t m = sizes['m' - 'a'], n = sizes['n' - 'a'];
    if (letter == 'k') return m < n ? m : n;
    if (letter == 'a') return n > 0 ? n - 1 : 0;
    if (sizes[letter - 'a'] < 0) sizes[letter - 'a'] = actual;
    return sizes[letter - 'a'];
}

/* The sizes of a call: those by letter, -1 if unknown, and those of the batch. */
typedef struct CallSizes {
    Dtype type;
    const IrShape *first; /* operand; its leading `batch_rank` dimensions are the batch's */
    int32_t batch_rank;
    int64_t of_letter[26];
} CallSizes;

/* Reads "Tmn Tk I" against the shapes, and the sizes that are unknown from them. */
static bool describe_pieces(Piece *pieces, int32_t *count, const char *words, const IrShape *const *shapes,
                            int32_t shape_count, CallSizes *sizes) {
    int32_t batch_rank = sizes->batch_rank;
    *count = 0;
    for (const char *word = words; *word; word += *word == ' ') {
        Piece *piece = &pieces[*count];
        if (*count >= shape_count) return false;
        const IrShape *shape = shapes[(*count)++];
        *piece = (Piece){.type = piece_type(*word++, sizes->type), .rows = 1, .columns = 1};
        if (shape->type != piece->type || shape->rank < batch_rank) return false;
        for (int32_t d = 0; d < batch_rank; d++)
            if (shape->dimensions[d] != sizes->first->dimensions[d]) return false;
        int32_t d = batch_rank;
        for (; *word && *word != ' '; word++, d++) {
            if (d >= shape->rank || shape->dimensions[d] > MOST_SIZE) return false;
            if (size_of(sizes->of_letter, *word, shape->dimensions[d]) != shape->dimensions[d]) return false;
            *(d == batch_rank ? &piece->rows : &piece->columns) = shape->dimensions[d];
        }
        if (d != shape->rank) return false;
        piece->bytes = piece->rows * piece->columns * dtype_bytes(piece->type);
    }
    return *count == shape_count;
}

/* Transposes between the row-major order of arrays and the column-major order of LAPACK. */
static void turn(char *out, const char *in, const Piece *piece, bool to_columns) {
    const int64_t dimensions[2] = {piece->rows, piece->columns};
    const int64_t by_rows[2] = {piece->columns, 1}, by_columns[2] = {1, piece->rows};
    strided_copy(out, to_columns ? by_columns : by_rows, in, to_columns ? by_rows : by_columns, dimensions, 2,
                 dtype_bytes(piece->type));
}

static void run_lapack(const KernelCall *call) {
    const LapackKernel *kernel = call->compiled;
    char *scratch = call->scratch;
    LapackJob job = kernel->job;
    for (int32_t r = 0; kernel->is_empty && r < kernel->result_count; r++)
        memset(call->results[r], 0, (size_t)ir_shape_bytes(call->result_shapes[r]));
    if (kernel->is_empty) return;
    for (int32_t k = 0; k < kernel->operand_count; k++) job.operands[k] = scratch + kernel->operands[k].at;
    for (int32_t r = 0; r < kernel->result_count; r++) job.results[r] = scratch + kernel->results[r].at;
    job.work = scratch + kernel->work_at;
    job.real_work = scratch + kernel->real_at;
    job.integer_work = (int *)(void *)(scratch + kernel->integer_at);
    for (int64_t batch = 0; batch < kernel->batches; batch++) {
        for (int32_t k = 0; k < kernel->operand_count; k++) {
            const Piece *piece = &kernel->operands[k];
            turn(job.operands[k], (const char *)call->operands[k] + batch * piece->bytes, piece, true);
        }
        for (int32_t r = 0; r < kernel->result_count; r++) {
            int32_t from = kernel->routine->starts_as[r] - 1;
            if (from >= 0) memcpy(job.results[r], job.operands[from], (size_t)kernel->results[r].bytes);
            else memset(job.results[r], 0, (size_t)kernel->results[r].bytes);
        }
        kernel->routine->run(&job);
        for (int32_t r = 0; r < kernel->result_count; r++) {
            const Piece *piece = &kernel->results[r];
            turn((char *)call->results[r] + batch * piece->bytes, job.results[r], piece, false);
        }
    }
}

/* Sizes and options of the job; false: they do not belong together. */
static bool describe_job(LapackKernel *kernel, const KernelCall *call, const int64_t sizes[26]) {
    LapackJob *job = &kernel->job;
    job->routine = kernel->routine->function;
    job->type = kernel->routine->type;
    job->m = (int)sizes['m' - 'a'];
    job->n = (int)sizes['n' - 'a'];
    job->p = (int)sizes['p' - 'a'];
    job->u = (int)sizes['u' - 'a'];
    job->v = (int)sizes['v' - 'a'];
    if (job->m < 0) job->m = job->n;
    job->uplo = (char)read_option(call, "uplo", 'L');
    job->mode = (char)read_option(call, "mode", 'V');
    job->side = (char)read_option(call, "side", 'L');
    job->trans = (char)read_option(call, "trans_x", 'N');
    job->diag = (char)read_option(call, "diag", 'N');
    job->left = (char)read_option(call, "compute_left", 'V');
    job->right = (char)read_option(call, "compute_right", 'V');
    job->low = read_option(call, "low", 1);
    job->high = read_option(call, "high", job->n);
    return (job->uplo == 'L' || job->uplo == 'U') && strchr("LR", job->side) && strchr("NTC", job->trans) &&
           strchr("NU", job->diag) && strchr("NV", job->left) && strchr("NV", job->right) &&
           read_option(call, "sort", 'N') == 'N' && kernel->routine->fits(job);
}

/* Asks the routine for its working memory. */
static void plan_memory(LapackKernel *kernel, KernelCall *call) {
    double answer[2] = {0}, real_answer[2];
    int integer_answer[2];
    int64_t at = 0, number = dtype_bytes(kernel->routine->type);
    LapackJob job = kernel->job;
    for (int32_t k = 0; k < kernel->operand_count; k++) {
        kernel->operands[k].at = at;
        at += kernel_align(kernel->operands[k].bytes);
    }
    for (int32_t r = 0; r < kernel->result_count; r++) {
        kernel->results[r].at = at;
        at += kernel_align(kernel->results[r].bytes);
    }
    /* Reads and writes only the results and a status. */
    double status[2] = {0};
    for (int32_t k = 0; k < MOST_PIECES; k++) job.operands[k] = job.results[k] = status;
    job.is_query = true;
    job.work = answer;
    job.real_work = real_answer;
    job.integer_work = integer_answer;
    job.work_count = -1;
    if (!kernel->is_empty) kernel->routine->run(&job);
    bool single = dtype_real_part(kernel->routine->type) == DTYPE_F32;
    float short_answer;
    memcpy(&short_answer, answer, sizeof short_answer);
    double wanted = single ? ceil((double)short_answer * (1 + 0x1p-23)) : answer[0];
    kernel->job.work_count = wanted >= 1 && wanted < INT_MAX ? (int)wanted : 1;
    kernel->job.real_count = job.real_count;
    kernel->job.integer_count = job.integer_count;
    kernel->work_at = at;
    kernel->real_at = kernel->work_at + kernel_align(kernel->job.work_count * number);
    kernel->integer_at =
        kernel->real_at + kernel_align(job.real_count * dtype_bytes(dtype_real_part(job.type)));
    call->scratch_bytes = kernel->integer_at + kernel_align(job.integer_count * (int64_t)sizeof(int));
}

bool cpu_covers_lapack(const char *target) {
    return target && strncmp(target, "lapack_", 7) == 0;
}

AmStatus cpu_prepare_lapack(KernelCall *call, Arena *arena, AmError *error) {
    const char *target = call->attributes->custom_call_target;
    LapackKernel *kernel = ARENA_ARRAY(arena, LapackKernel, 1);
    CallSizes sizes;
    if (!kernel) return am_fail_memory(error, (int64_t)sizeof *kernel);
    for (int32_t k = 0; k < 26; k++) sizes.of_letter[k] = -1;
    kernel->routine = lapack_find(target);
    if (!kernel->routine) return kernel_call_refuse(call, "this LAPACK routine is not known", error);
    const char *words = kernel->routine->operands, *end = strchr(words, ' ');
    if (call->operand_count < 1 || call->operand_count > MOST_PIECES || call->result_count > MOST_PIECES)
        return kernel_call_refuse(call, "not with these operands", error);
    const IrShape *first = call->operand_shapes[0];
    int32_t batch_rank = first->rank + 1 - (int32_t)(end ? (size_t)(end - words) : strlen(words));
    sizes.type = kernel->routine->type;
    sizes.first = first;
    sizes.batch_rank = batch_rank;
    if (batch_rank < 0 ||
        !describe_pieces(kernel->operands, &kernel->operand_count, words, call->operand_shapes,
                         call->operand_count, &sizes) ||
        !describe_pieces(kernel->results, &kernel->result_count, kernel->routine->results,
                         call->result_shapes, call->result_count, &sizes) ||
        !describe_job(kernel, call, sizes.of_letter))
        return kernel_call_refuse(call, "its operands, results and options do not fit together", error);
    kernel->batches = strided_elements(first->dimensions, batch_rank);
    kernel->is_empty = kernel->batches == 0 || kernel->job.n == 0 || kernel->job.m == 0;
    plan_memory(kernel, call);
    call->compiled = kernel;
    call->run = run_lapack;
    return AM_OK;
}
