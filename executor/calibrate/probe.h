/* Measures this host and its GPUs: the rates of a cluster file.
 *
 * A back end times four kinds of work on a device (executor/cpu/probe_cpu.c and
 * executor/cuda/probe_cuda.c): products of square matrices, an element-wise operator, an empty
 * kernel, and copies to another device. It also defines how ranks on its devices communicate, for
 * collectives (probe_collectives.h) and, on an asynchronous device, for transfers instead of
 * copies. From these probe_measure() computes the parameters of the cost model (cost/operator/operator.c,
 * seconds = launch + max(FLOPs / (peak e), bytes / (rate e))): peaks are the best rates, curves the
 * fraction of the peak at each size, without launches.
 */
#ifndef EXECUTOR_CALIBRATE_PROBE_H
#define EXECUTOR_CALIBRATE_PROBE_H

#include <jansson.h>

#include "base/dtype.h"
#include "base/status.h"
#include "executor/calibrate/calibration_threads.h"
#include "executor/calibrate/probe_operators.h"

typedef struct ProbeBackEnd ProbeBackEnd;

/* The measured device; a back end's own struct begins with this. */
typedef struct ProbeDevice {
    const ProbeBackEnd *back_end;
    char name[128];
    int64_t memory_bytes; /* of the device */
    int64_t usable_bytes; /* allocation limit of one measurement */
} ProbeDevice;

/* Work is done `repeats` times in succession; *seconds is the total. The first call of a size
 * prepares it. */
struct ProbeBackEnd {
    const char *name;
    /* AM_ERROR_RUNTIME: the reason why there is none. */
    AmStatus (*count)(int32_t *count, AmError *error);
    AmStatus (*open)(ProbeDevice **device, int32_t index, AmError *error);
    void (*close)(ProbeDevice *device);
    bool (*has_type)(Dtype type); /* of products */
    /* side x side by side x side. AM_ERROR_INPUT: this device cannot, in that type. */
    AmStatus (*product)(ProbeDevice *device, Dtype type, int64_t side, int32_t repeats, double *seconds,
                        AmError *error);
    /* y = a x + y in f32 */
    AmStatus (*element_wise)(ProbeDevice *device, int64_t elements, int32_t repeats, double *seconds,
                             AmError *error);
    AmStatus (*launch)(ProbeDevice *device, int32_t repeats, double *seconds, AmError *error);
    /* From this device to that of index `peer`, which may be this one. */
    AmStatus (*copy)(ProbeDevice *device, int32_t peer, int64_t bytes, int32_t repeats, double *seconds,
                     AmError *error);
    /* Classes of operators by the kernels of ranks (probe_operators()), which share `processors` of the host;
     * NULL: they are priced by the figures above. */
    AmStatus (*operators)(json_t **operators, int32_t ranks, int32_t threads, double end,
                          const ProbePace *pace, const ProbeListener *listener, AmError *error);
    int32_t (*processors)(void);
    /* Fills in how `count` ranks on `devices` of these devices could communicate, the best way first, all but
     * most_bytes; false: there is no such way. */
    bool (*find_ranks)(ProbeRanks *ranks, int32_t way, int32_t count, int32_t devices);
};

extern const ProbeBackEnd probe_cpu;
extern const ProbeBackEnd probe_cuda; /* in a build with CUDA */

/* Measures and describes this machine as a cluster file's object (the caller's
 * reference). `device`: "cpu", "cuda", or NULL for CUDA where there is a GPU.
 * `devices`: how many the cluster has, which share what there is evenly where
 * there are fewer; 0: all GPUs, or the host as one. `seconds`: after so long no
 * larger size is begun; more than 20 bring nothing. `listener` may be NULL. AM_ERROR_RUNTIME: no such
 * device, or it failed; AM_ERROR_USAGE: they cannot share evenly. */
AmStatus probe_measure(json_t **description, const char *device, int32_t devices, double seconds,
                       const ProbeListener *listener, AmError *error);

/* Measures the processors of this host shortly, for any number of ranks: the caller's reference to an object
 * for host_cluster_describe() (cost/cluster/host_cluster.h), without the keys that name the machine.
 *
 *   {"processors": 2, "alone": DEVICE_TYPE, "together": DEVICE_TYPE, "link": LINK, "shared": LINK}
 *
 * "alone" is one rank with all processors, "together" as many ranks as processors, "link" joins these, and
 * "shared" joins twice as many. `seconds`: the time after which nothing is begun; the probe takes at most
 * a second more. `listener` may be NULL. AM_ERROR_RUNTIME: a thread cannot be started. */
AmStatus probe_measure_host(json_t **measurement, double seconds, const ProbeListener *listener,
                            AmError *error);

#endif
