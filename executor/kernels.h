/* Kernels: what runs the steps of a lowered program. One interface for several
 * back ends (architecture, decision 9); executor/cpu is the first.
 *
 * A step becomes a KernelCall once, before the first training step: prepare()
 * checks that the back end can run it, works out everything that depends on
 * shapes alone and says how much scratch memory it wants. The runner then binds
 * addresses, and every training step calls run(), which allocates nothing and
 * cannot fail. A device that fails later says so in synchronize().
 */
#ifndef EXECUTOR_KERNELS_H
#define EXECUTOR_KERNELS_H

#include "propagation/program.h"

typedef struct KernelCall KernelCall;
struct KernelCall {
    const Program *program;
    const ProgramInstruction *instruction; /* NULL: a fusion */
    const ProgramFusion *fusion;           /* NULL: an instruction */
    int32_t operand_count, result_count;
    const IrShape **operand_shapes, **result_shapes; /* local */
    void **operands, **results;                      /* addresses, bound after prepare() */
    void *scratch;                                   /* scratch_bytes, aligned to 64 */
    int64_t scratch_bytes;
    const void *compiled; /* what prepare() worked out; in its arena */
    /* Kernels with steps of their own (loops) pass addresses on to them; or NULL. */
    void (*bind)(const KernelCall *call);
    void (*run)(const KernelCall *call);
};

typedef struct KernelBackEnd {
    const char *name; /* "cpu" */
    /* Fills scratch_bytes, compiled and run. AM_ERROR_INPUT names opcode and
     * place where there is no kernel. */
    AmStatus (*prepare)(KernelCall *call, Arena *arena, AmError *error);
    /* Memory of the device, zeroed and aligned to 64 bytes. */
    AmStatus (*allocate)(void **memory, int64_t bytes, AmError *error);
    void (*release)(void *memory);
    void (*copy_in)(void *device, const void *host, int64_t bytes);
    void (*copy_out)(void *host, const void *device, int64_t bytes);
    void (*copy_within)(void *to, const void *from, int64_t bytes);
    AmStatus (*synchronize)(AmError *error);
} KernelBackEnd;

extern const KernelBackEnd kernels_cpu;

/* Makes the call of one step that is no collective: shapes, then the back end's
 * prepare(). Addresses are NULL until kernel_bind(). */
AmStatus kernel_prepare(KernelCall **call, Arena *arena, const KernelBackEnd *back_end,
                        const Program *program, const ProgramStep *step, AmError *error);
/* Sets the addresses in the rank's allocation at `base`. */
void kernel_bind(KernelCall *call, char *base, void *scratch);
/* Address of a value in the rank's allocation. */
void *kernel_address(const Program *program, int32_t value, char *base);

/* "no kernel for 'fft' on c64[4] (instruction fft.3 at model.py:12): REASON", AM_ERROR_INPUT. */
AmStatus kernel_refuse(const Program *program, int32_t origin, IrOpcode opcode, const char *reason,
                       AmError *error);

#endif
