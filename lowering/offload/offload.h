/* Offloading: optimizer state in the memory of the host.
 *
 * A stage with `offloads_optimizer` keeps its arrays of role optimizer in the host's memory. The device has a
 * copy of them only around the steps that read and replace them:
 *
 *     %40, %41 = host_load(%7, %8)            moments of w, from the host
 *     fusion { ... } -> %50, %51, %52         the update of w and of its moments
 *     host_store(%51, %52, %7, %8)            the new moments, to the host
 *
 * Host copies are collectives of one device: they are priced, ordered and overlapped as such. One load has
 * all arrays that a step is the first to read, and one store all that it replaces. A load is issued one such
 * step ahead, so that it runs beside the update before it. Values of the computation are the same, to the
 * bit.
 */
#ifndef LOWERING_OFFLOAD_OFFLOAD_H
#define LOWERING_OFFLOAD_OFFLOAD_H

#include "lowering/program/program.h"

/* Moves the optimizer's arrays of a fused program to the host, and inserts the copies among the steps; before
 * program_plan_buffers(). Scalars stay on the device, and so do arrays whose new value is no result of a
 * step. AM_ERROR_INTERNAL: no memory. */
AmStatus program_offload_optimizer(Program *program, AmError *error);

#endif
