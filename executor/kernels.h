/* Kernels: the implementation of a lowered program's steps. One interface for several back ends:
 * executor/cpu and executor/cuda.
 *
 * Every rank opens a device. A step that is neither a collective (comm.h) nor control flow
 * (control_flow.h) becomes a KernelCall once, before the first training step: prepare() checks that the
 * back end supports it, computes everything that depends on shapes alone and returns the needed
 * scratch memory. The runner then binds addresses and calls finish(), which compiles and uploads
 * the code and data of the calls. Every training step calls run(), which allocates nothing and
 * cannot fail; it may return before the work is done, which the device does in the order of the
 * calls. A later failure of the device is returned by synchronize().
 */
#ifndef EXECUTOR_KERNELS_H
#define EXECUTOR_KERNELS_H

#include "lowering/program/program.h"

typedef struct KernelBackEnd KernelBackEnd;

/* The device of a rank; a back end's own struct begins with this. */
typedef struct KernelDevice {
    const KernelBackEnd *back_end;
    double compile_seconds;      /* of finish() */
    int64_t graphs, graph_nodes; /* recorded capture regions; nodes of all of them */
} KernelDevice;

typedef struct KernelCall KernelCall;
struct KernelCall {
    KernelDevice *device;
    const Program *program;
    const ProgramInstruction *instruction; /* NULL: a fusion */
    const IrAttributes *attributes;        /* of the instruction */
    const ProgramFusion *fusion;           /* NULL: an instruction */
    const ProgramRowGroup *rows;           /* that it is a step of, or NULL */
    int32_t operand_count, result_count;
    const IrShape **operand_shapes, **result_shapes; /* local */
    void **operands, **results;                      /* addresses, bound after prepare() */
    void *scratch;                                   /* scratch_bytes, aligned to 64 */
    int64_t scratch_bytes;
    const void *compiled; /* what prepare() worked out; in its arena */
    /* Computes values that depend on addresses; or NULL. */
    void (*bind)(const KernelCall *call);
    void (*run)(const KernelCall *call);
};

typedef struct KernelOptions {
    int32_t index;        /* which device of this machine, modulo their number */
    int32_t threads;      /* that share a kernel's work on the host; 0: its processors over ranks_here */
    int32_t ranks_here;   /* on this machine, of all processes; 0: this one alone */
    bool tf32;            /* f32 products may round their operands to 10 bits of fraction */
    AmWarnings *warnings; /* warnings of prepare(); or NULL */
} KernelOptions;

/* All functions but open() may be called by any one thread at a time. */
struct KernelBackEnd {
    const char *name; /* "cpu" */
    AmStatus (*open)(KernelDevice **device, const KernelOptions *options, AmError *error);
    void (*close)(KernelDevice *device);
    /* Fills scratch_bytes, compiled and run. AM_ERROR_INPUT names opcode and position of an
     * unsupported step. */
    AmStatus (*prepare)(KernelCall *call, Arena *arena, AmError *error);
    /* Joins the calls of a row group's steps, so that the last one does the work of all; values that the
     * group alone uses have no addresses. AM_ERROR_INPUT: it cannot, and they run one after the other.
     * NULL: likewise. */
    AmStatus (*join_rows)(KernelCall *const *calls, Arena *arena, AmError *error);
    /* After all calls of a device are prepared and bound; NULL: nothing to do. */
    AmStatus (*finish)(KernelDevice *device, AmError *error);
    /* Memory of the device, zeroed and aligned to 64 bytes or more. */
    AmStatus (*allocate)(KernelDevice *device, void **memory, int64_t bytes, AmError *error);
    void (*release)(KernelDevice *device, void *memory);
    /* Memory of the host, zeroed and aligned to 64 bytes or more, which copies to and from the device reach
     * at their full rate. */
    AmStatus (*allocate_host)(KernelDevice *device, void **memory, int64_t bytes, AmError *error);
    void (*release_host)(KernelDevice *device, void *memory);
    /* The host's memory may be used again when these return. */
    void (*copy_in)(KernelDevice *device, void *to, const void *host, int64_t bytes);
    void (*copy_out)(KernelDevice *device, void *host, const void *from, int64_t bytes);
    void (*copy_within)(KernelDevice *device, void *to, const void *from, int64_t bytes);
    /* A capture region is work that is equal in every step and during which the host does not wait.
     * begin() returns true if it was replayed from *record and is not issued again; false if it is
     * issued now, between begin() and end(), which may record it. end() returns false if the issued
     * work had to be recorded, could not be and has not run; it is then issued once more, from
     * begin() on. *record starts as NULL; close() releases it. Both or neither are NULL. */
    bool (*begin)(KernelDevice *device, void **record);
    bool (*end)(KernelDevice *device, void **record);
    /* Waits for all that was issued; reports what failed since the last time. */
    AmStatus (*synchronize)(KernelDevice *device, AmError *error);
};

extern const KernelBackEnd kernels_cpu;
extern const KernelBackEnd kernels_cuda; /* in a build with CUDA */
/* The host with one thread: needs no opening, and any number of callers share it. */
extern KernelDevice kernel_device_cpu;

/* Finds the back end of that name ("cpu", "cuda"). AM_ERROR_RUNTIME: this build lacks it; AM_ERROR_USAGE: the
 * name is unknown. */
AmStatus kernel_back_end_find(const KernelBackEnd **back_end, const char *name, AmError *error);

/* The functions of a device's back end of the same names. */
static inline AmStatus device_finish(KernelDevice *device, AmError *error) {
    return device->back_end->finish ? device->back_end->finish(device, error) : AM_OK;
}
static inline void device_copy_in(KernelDevice *device, void *to, const void *host, int64_t bytes) {
    device->back_end->copy_in(device, to, host, bytes);
}
static inline void device_copy_out(KernelDevice *device, void *host, const void *from, int64_t bytes) {
    device->back_end->copy_out(device, host, from, bytes);
}
static inline void device_copy_within(KernelDevice *device, void *to, const void *from, int64_t bytes) {
    device->back_end->copy_within(device, to, from, bytes);
}
static inline AmStatus device_synchronize(KernelDevice *device, AmError *error) {
    return device->back_end->synchronize(device, error);
}

/* Makes the call of one step: shapes, then the back end's
 * prepare(). Addresses are NULL until kernel_bind(). */
AmStatus kernel_prepare(KernelCall **call, Arena *arena, KernelDevice *device, const Program *program,
                        const ProgramStep *step, AmError *error);
/* Sets the addresses; `addresses` [value] are those of the program's values. */
void kernel_bind(KernelCall *call, void *const *addresses, void *scratch);

/* Fails: "no kernel for 'fft' on c64[4] (instruction fft.3 at model.py:12): REASON", AM_ERROR_INPUT. */
AmStatus kernel_refuse(const Program *program, int32_t origin, IrOpcode opcode, const char *reason,
                       AmError *error);
/* Refuses a call with AM_ERROR_INPUT and the text of kernel_refuse(); a fusion is named by its first
 * operator. */
AmStatus kernel_call_refuse(const KernelCall *call, const char *reason, AmError *error);

/* Returns the program's value of array k of a call: its operands, then its results. */
int32_t kernel_call_value(const KernelCall *call, int32_t k);

/* Returns the bytes rounded up to 64, as the buffer plan aligns values. */
static inline int64_t kernel_align(int64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

#endif
