/* Divided copies: slices of the largest dimension for boxes, stretches of elements for dense
 * arrays. Types are converted in runs of elements that stay in the first-level cache.
 */
#include "executor/cpu/divide.h"

#include <string.h>

#include "executor/array/strided.h"
#include "executor/cpu/element.h"

/* Bytes that a thread copies per nanosecond in a long copy. */
static const double copy_rate = 6;
enum { RUN = 1024, GRAIN = 4096, MOST_ELEMENT = 16 };

typedef struct Copy {
    char *out;
    const char *in;
    const int64_t *out_strides, *in_strides, *dimensions;
    int32_t rank, divided; /* the dimension whose slices are the parts */
    int64_t element_bytes, count;
} Copy;

static void copy_slice(void *user, int32_t part, int32_t parts) {
    const Copy *copy = user;
    int64_t sizes[IR_MAX_RANK], first, end;
    int32_t d = copy->divided;
    memcpy(sizes, copy->dimensions, sizeof *sizes * (size_t)copy->rank);
    team_stretch(sizes[d], 1, part, parts, &first, &end);
    sizes[d] = end - first;
    strided_copy(copy->out + first * copy->out_strides[d] * copy->element_bytes, copy->out_strides,
                 copy->in + first * copy->in_strides[d] * copy->element_bytes, copy->in_strides, sizes,
                 copy->rank, copy->element_bytes);
}

void divided_copy(KernelDevice *device, void *out, const int64_t *out_strides, const void *in,
                  const int64_t *in_strides, const int64_t *dimensions, int32_t rank, int64_t element_bytes) {
    int64_t elements = strided_elements(dimensions, rank);
    int32_t parts = team_parts(device, (double)(elements * element_bytes) / copy_rate);
    Copy copy = {out, in, out_strides, in_strides, dimensions, rank, 0, element_bytes, elements};
    /* The outermost dimension that gives every part a share, so that slices are contiguous. */
    while (copy.divided < rank && dimensions[copy.divided] < parts) copy.divided++;
    if (parts == 1 || copy.divided == rank)
        strided_copy(out, out_strides, in, in_strides, dimensions, rank, element_bytes);
    else team_run(device, copy_slice, &copy, parts);
}

static void copy_stretch(void *user, int32_t part, int32_t parts) {
    const Copy *copy = user;
    int64_t first, end;
    team_stretch(copy->count, GRAIN, part, parts, &first, &end);
    memcpy(copy->out + first, copy->in + first, (size_t)(end - first));
}

void divided_copy_bytes(KernelDevice *device, void *out, const void *in, int64_t bytes) {
    Copy copy = {.out = out, .in = in, .count = bytes};
    team_run(device, copy_stretch, &copy, team_parts(device, (double)bytes / copy_rate));
}

static void fill_stretch(void *user, int32_t part, int32_t parts) {
    const Copy *copy = user;
    int64_t first, end;
    team_stretch(copy->count, GRAIN, part, parts, &first, &end);
    strided_fill(copy->out + first * copy->element_bytes, copy->in, end - first, copy->element_bytes);
}

void divided_fill(KernelDevice *device, void *out, const void *value, int64_t count, int64_t element_bytes) {
    char kept[MOST_ELEMENT]; /* it may be the first of those that are filled */
    memcpy(kept, value, (size_t)element_bytes);
    Copy copy = {.out = out, .in = kept, .count = count, .element_bytes = element_bytes};
    team_run(device, fill_stretch, &copy, team_parts(device, (double)(count * element_bytes) / copy_rate));
}

typedef struct Conversion {
    char *dense, *box;
    const int64_t *strides, *dimensions;
    int32_t rank;
    bool packs, is_dense; /* the box lies densely too */
    int64_t count, dense_bytes, box_bytes;
    ElementLoop *loop;
    ElementParameter parameter;
} Conversion;

static void convert_stretch(void *user, int32_t part, int32_t parts) {
    const Conversion *self = user;
    uint64_t run[2 * RUN];
    int64_t first, end;
    team_stretch(self->count, RUN, part, parts, &first, &end);
    for (int64_t at = first; at < end; at += RUN) {
        int64_t count = end - at < RUN ? end - at : RUN;
        char *dense = self->dense + at * self->dense_bytes;
        void *box = self->is_dense ? (void *)(self->box + at * self->box_bytes) : run;
        if (self->packs && !self->is_dense)
            strided_load(run, self->box, self->strides, self->dimensions, self->rank, at, count,
                         self->box_bytes);
        self->loop(self->packs ? dense : box, self->packs ? box : dense, NULL, NULL, count, &self->parameter,
                   NULL);
        if (!self->packs && !self->is_dense)
            strided_store(self->box, run, self->strides, self->dimensions, self->rank, at, count,
                          self->box_bytes);
    }
}

/* Prepares a conversion: joined dimensions make long runs, or one. */
static void convert(KernelDevice *device, Conversion *self, Dtype from, Dtype to) {
    int64_t sizes[IR_MAX_RANK], strides[IR_MAX_RANK];
    memcpy(sizes, self->dimensions, sizeof *sizes * (size_t)self->rank);
    memcpy(strides, self->strides, sizeof *strides * (size_t)self->rank);
    self->count = strided_elements(sizes, self->rank);
    self->rank = strided_coalesce(sizes, strides, NULL, self->rank);
    self->is_dense = self->rank == 0 || (self->rank == 1 && strides[0] == 1);
    self->dimensions = sizes;
    self->strides = strides;
    self->loop = element_convert_loop(from, to);
    self->parameter = (ElementParameter){.from = from, .to = to};
    team_run(device, convert_stretch, self, team_parts(device, (double)self->count));
}

void divided_convert(KernelDevice *device, void *out, Dtype to, const void *in, Dtype from, int64_t count) {
    int64_t stride = 1;
    divided_pack(device, out, to, in, from, &stride, &count, 1);
}

void divided_pack(KernelDevice *device, void *dense, Dtype to, const void *box, Dtype from,
                  const int64_t *strides, const int64_t *dimensions, int32_t rank) {
    Conversion self = {.dense = dense,
                       .box = (char *)box,
                       .strides = strides,
                       .dimensions = dimensions,
                       .rank = rank,
                       .packs = true,
                       .dense_bytes = dtype_bytes(to),
                       .box_bytes = dtype_bytes(from)};
    convert(device, &self, from, to);
}

void divided_unpack(KernelDevice *device, void *box, Dtype to, const int64_t *strides, const void *dense,
                    Dtype from, const int64_t *dimensions, int32_t rank) {
    Conversion self = {.dense = (char *)dense,
                       .box = box,
                       .strides = strides,
                       .dimensions = dimensions,
                       .rank = rank,
                       .dense_bytes = dtype_bytes(from),
                       .box_bytes = dtype_bytes(to)};
    convert(device, &self, from, to);
}
