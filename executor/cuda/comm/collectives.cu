/* Collectives on the device: moving the parts of arrays, and reducing operands
 * in group order as executor/comm/comm_local.c does, bit for bit.
 *
 * A part is a slab: rows of `row` contiguous elements, `pitch` elements apart.
 * Element i of a part lies at (i / row) * pitch + i % row, so one part may lie in
 * its source and in its destination with different rows. Reductions accumulate
 * floating values in f64 and integers in 64 bits and are rounded once. In a
 * launch blockIdx.y is the part; the blocks of a row share its elements.
 * The layout of both structures is that of executor/cuda/comm/movement.h.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;
typedef float f32;
typedef double f64;

struct alignas(16) Sixteen {
    u64 low, high;
};

struct Slab {
    s64 row, pitch;
};

struct Move {
    const void *from;
    void *to;
    s64 units; /* of unit_bytes, which also slabs count in */
    Slab from_slab, to_slab;
    s64 unit_bytes; /* 1, 2, 4, 8 or 16 */
};

struct Fold {
    const void *const *operands; /* [member_count], in group order */
    void *result;                /* contiguous */
    s64 elements, start;         /* of the part in every operand */
    Slab slab;
    s64 member_count, reduction; /* SbpReduction */
};

__device__ s64 first_of_thread() {
    return (s64)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ s64 step_of_threads() {
    return (s64)gridDim.x * blockDim.x;
}
/* Most parts are one row, which needs no division. */
__device__ s64 place(const Slab &slab, s64 i) {
    return i < slab.row ? i : i / slab.row * slab.pitch + i % slab.row;
}

template <typename Unit> __device__ void move_units(const Move &move) {
    const Unit *from = (const Unit *)move.from;
    Unit *to = (Unit *)move.to;
    for (s64 i = first_of_thread(); i < move.units; i += step_of_threads())
        to[place(move.to_slab, i)] = from[place(move.from_slab, i)];
}

extern "C" __global__ void move_parts(const Move *moves) {
    const Move move = moves[blockIdx.y];
    switch (move.unit_bytes) {
    case 1: move_units<u8>(move); break;
    case 2: move_units<u16>(move); break;
    case 4: move_units<u32>(move); break;
    case 8: move_units<u64>(move); break;
    default: move_units<Sixteen>(move);
    }
}

/* SbpReduction, in its order. */
enum { ADD, MAX, MIN, MULTIPLY, AND, OR };

/* Maxima and minima propagate NaN. */
__device__ f64 fold(f64 a, f64 b, s64 reduction) {
    switch (reduction) {
    case ADD: return a + b;
    case MULTIPLY: return a * b;
    case MAX: return a > b || a != a ? a : b;
    case MIN: return a < b || a != a ? a : b;
    case AND: return a != 0 && b != 0;
    default: return a != 0 || b != 0;
    }
}

/* u64 or s64; sums and products wrap, so they are taken unsigned. */
template <typename Scalar64> __device__ Scalar64 fold(Scalar64 a, Scalar64 b, s64 reduction) {
    switch (reduction) {
    case ADD: return (Scalar64)((u64)a + (u64)b);
    case MULTIPLY: return (Scalar64)((u64)a * (u64)b);
    case MAX: return a > b ? a : b;
    case MIN: return a < b ? a : b;
    case AND: return a & b;
    default: return a | b;
    }
}

template <typename To, typename From> __device__ To bits_as(From value) {
    union {
        From from;
        To to;
    } word;
    word.from = value;
    return word.to;
}

/* 16-bit floating types go by way of f32; rounded to nearest, ties to even. */
__device__ f64 load_bf16(u16 bits) {
    return bits_as<f32>((u32)bits << 16);
}
__device__ u16 store_bf16(f64 value) {
    const u32 bits = bits_as<u32>((f32)value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40u);
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
/* A half is a float with its exponent moved: scaled by 2^112, or 2^-112, powers
 * that are exact for all but subnormal halves' fractions, which rounding by an
 * addition at the right size cuts off. */
__device__ f64 load_f16(u16 bits) {
    const u32 size = (u32)(bits & 0x7fffu) << 13;
    const u32 widened =
        size >= 0x0f800000u ? size + 0x70000000u : bits_as<u32>(bits_as<f32>(size) * 0x1p112f);
    return bits_as<f32>(widened | (u32)(bits & 0x8000u) << 16);
}
__device__ u16 store_f16(f64 value) {
    const u32 bits = bits_as<u32>((f32)value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return (u16)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
    if (size >= 0x477ff000u) return (u16)(sign | 0x7c00u);
    if (size < 0x38800000u) return (u16)(sign | (bits_as<u32>(bits_as<f32>(size) + 0.5f) - 0x3f000000u));
    return (u16)(sign | ((size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13));
}

__device__ u8 store_pred(u64 value) {
    return value != 0;
}
template <typename To, typename From> __device__ To as(From value) {
    return (To)value;
}

/* Elements are `Type` in memory and `Scalar64` while they are folded. */
template <typename Type, typename Scalar64, Scalar64 (*load)(Type), Type (*store)(Scalar64)>
__device__ void fold_parts(const Fold *folds) {
    const Fold part = folds[blockIdx.y];
    Type *result = (Type *)part.result;
    for (s64 i = first_of_thread(); i < part.elements; i += step_of_threads()) {
        const s64 at = part.start + place(part.slab, i);
        Scalar64 sum = load(((const Type *)part.operands[0])[at]);
        for (s64 member = 1; member < part.member_count; member++)
            sum = fold(sum, load(((const Type *)part.operands[member])[at]), part.reduction);
        result[i] = store(sum);
    }
}

extern "C" __global__ void fold_parts_pred(const Fold *folds) {
    fold_parts<u8, u64, as, store_pred>(folds);
}
extern "C" __global__ void fold_parts_s8(const Fold *folds) {
    fold_parts<s8, s64, as, as>(folds);
}
extern "C" __global__ void fold_parts_s16(const Fold *folds) {
    fold_parts<s16, s64, as, as>(folds);
}
extern "C" __global__ void fold_parts_s32(const Fold *folds) {
    fold_parts<s32, s64, as, as>(folds);
}
extern "C" __global__ void fold_parts_s64(const Fold *folds) {
    fold_parts<s64, s64, as, as>(folds);
}
extern "C" __global__ void fold_parts_u8(const Fold *folds) {
    fold_parts<u8, u64, as, as>(folds);
}
extern "C" __global__ void fold_parts_u16(const Fold *folds) {
    fold_parts<u16, u64, as, as>(folds);
}
extern "C" __global__ void fold_parts_u32(const Fold *folds) {
    fold_parts<u32, u64, as, as>(folds);
}
extern "C" __global__ void fold_parts_u64(const Fold *folds) {
    fold_parts<u64, u64, as, as>(folds);
}
extern "C" __global__ void fold_parts_f32(const Fold *folds) {
    fold_parts<f32, f64, as, as>(folds);
}
extern "C" __global__ void fold_parts_f64(const Fold *folds) {
    fold_parts<f64, f64, as, as>(folds);
}
extern "C" __global__ void fold_parts_bf16(const Fold *folds) {
    fold_parts<u16, f64, load_bf16, store_bf16>(folds);
}
extern "C" __global__ void fold_parts_f16(const Fold *folds) {
    fold_parts<u16, f64, load_f16, store_f16>(folds);
}
