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

typedef struct SlicedCopy {
    const BoxCopy *box;
    int32_t divided; /* the dimension whose slices are the parts */
} SlicedCopy;

static void copy_slice(void *user, int32_t part, int32_t parts) {
    const SlicedCopy *copy = user;
    const BoxCopy *box = copy->box;
    int64_t sizes[IR_MAX_RANK], first, end;
    int32_t d = copy->divided;
    memcpy(sizes, box->dimensions, sizeof *sizes * (size_t)box->rank);
    team_stretch(sizes[d], 1, part, parts, &first, &end);
    sizes[d] = end - first;
    strided_copy((char *)box->out + first * box->out_strides[d] * box->element_bytes, box->out_strides,
                 (const char *)box->in + first * box->in_strides[d] * box->element_bytes, box->in_strides,
                 sizes, box->rank, box->element_bytes);
}

void divided_copy(KernelDevice *device, const BoxCopy *box) {
    int64_t bytes = strided_elements(box->dimensions, box->rank) * box->element_bytes;
    int32_t parts = team_parts(device, (double)bytes / copy_rate);
    SlicedCopy copy = {.box = box};
    /* The outermost dimension that gives every part a share, so that slices are contiguous. */
    while (copy.divided < box->rank && box->dimensions[copy.divided] < parts) copy.divided++;
    if (parts == 1 || copy.divided == box->rank)
        strided_copy(box->out, box->out_strides, box->in, box->in_strides, box->dimensions, box->rank,
                     box->element_bytes);
    else team_run(device, copy_slice, &copy, parts);
}

typedef struct Copy {
    char *out;
    const char *in;
    int64_t element_bytes, count;
} Copy;

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
    const int64_t stride = 1;
    const ElementBox box = {(void *)in, from, &stride, &count, 1};
    divided_pack(device, out, to, &box);
}

void divided_pack(KernelDevice *device, void *dense, Dtype to, const ElementBox *box) {
    Conversion self = {.dense = dense,
                       .box = box->data,
                       .strides = box->strides,
                       .dimensions = box->dimensions,
                       .rank = box->rank,
                       .packs = true,
                       .dense_bytes = dtype_bytes(to),
                       .box_bytes = dtype_bytes(box->type)};
    convert(device, &self, box->type, to);
}

void divided_unpack(KernelDevice *device, const ElementBox *box, const void *dense, Dtype from) {
    Conversion self = {.dense = (char *)dense,
                       .box = box->data,
                       .strides = box->strides,
                       .dimensions = box->dimensions,
                       .rank = box->rank,
                       .dense_bytes = dtype_bytes(from),
                       .box_bytes = dtype_bytes(box->type)};
    convert(device, &self, from, box->type);
}
