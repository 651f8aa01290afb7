/* The kernels of sums over tiles: 16 x 16 threads, each with every 16th row and key of a tile.
 *
 * The text for the greatest score of each of 70 rows, over 70 keys, with 8 numbers a head (shortened):
 *
 *     __shared__ f32 stage[2176];                             16 columns of 64 rows and of 64 keys
 *     __shared__ f64 lanes[1024];
 *     const u32 x = threadIdx.x % 16u, y = threadIdx.x / 16u;
 *     const u32 r0 = (u32)(rest % 2u) * 64u;                  the block's first row
 *     f64 g0[4];                                              sums of a thread, at first the identity
 *     for (u32 k0 = 0; k0 < 70u; k0 += 64u) {                 append_loops(): tiles of keys
 *     if (keys_least > rows_most && first_key <= rows_least) continue;    append_skip(): causal mask
 *     f32 s2[16] = {};                                        append_score(): 4 rows x 4 keys
 *     for (u32 d0 = 0; d0 < 8u; d0 += 16u) {
 *     stage[0u + n / 16u * 17u + n % 16u] = number;           append_stage(): rows, then keys
 *     s2[i * 4u + j] = fmaf(a[i], b[j], s2[i * 4u + j]);      append_products()
 *     }
 *     const u32 l1 = r0 + y + 16u * i, l4 = k0 + x + 16u * j; append_elements(): for each i, j
 *     const f32 v2 = v0 * v1;                                 the score scaled, then masked
 *     g0[i] = greatest_of(g0[i], summand0);
 *     }
 *     lanes[(y + 16u * i) * 16u + x] = g0[i];                 append_element_results()
 *     for (u32 n = 1; n < 16u; n++) sum = greatest_of(sum, lanes[threadIdx.x * 16u + n]);
 *     out1[l0 * 140u + l2 * 70u + l1] = v1;                   l0 and l2: batch and head of the block
 *
 * A product such as probabilities times values has its tile in shared memory (append_sum_product()).
 */
#include <stdio.h>

#include "base/integers.h"
#include "executor/cuda/codegen/attention/region_writer.h"

enum {
    SIDE = 16,               /* threads along a tile's rows, and along its keys; widths of a step */
    MOST_TILE = 64,          /* rows or keys of a tile */
    SHARED_BYTES = 44 << 10, /* of a block */
    MOST_REGISTERS = 128     /* words of a thread for sums and scores */
};

typedef struct TileWriter {
    RegionWriter *writer;
    const RegionPlan *plan;
    const Program *region; /* of the plan */
    Text *out;
    const RegionSum *first;
    bool by_row, by_key; /* a block has a tile of rows, of keys */
    bool *needed;        /* [value]: of the tiles */
    int64_t row_tile, key_tile;
    int64_t row_steps, key_steps; /* rows and keys of a thread */
    const char *index, *suffix, *number, *fma;
} TileWriter;

static const ProgramInstruction *instruction_of(const TileWriter *self, const RegionSum *sum) {
    return &self->region->instructions[sum->instruction];
}

static bool is_member(const TileWriter *self, int32_t s) {
    return region_plan_alike(self->plan, self->first, &self->plan->sums[s]);
}

static bool is_needed_score(const TileWriter *self, int32_t i) {
    return self->plan->is_score[i] && self->needed[self->region->instructions[i].first_result];
}

static int64_t size_of(const TileWriter *self, int32_t label) {
    return self->plan->blocks.labels.sizes[label];
}

/* The labels of widths in the order in which both operands of a product number them. */
typedef struct Widths {
    int32_t count, list[REGION_MOST_LABELS];
    int64_t all; /* indices */
} Widths;

/* Finds the widths of a value. Products sum over those of the scores' operands; the other operand of a sum
 * gives its widths to the result. */
static Widths find_widths(const TileWriter *self, int32_t value) {
    const ValueLabels *labels = &self->plan->blocks.labels.values[value];
    Widths widths = {.all = 1};
    for (int32_t k = 0; k < labels->count && widths.count < REGION_MOST_LABELS; k++)
        if (region_plan_is_width(self->plan, labels->list[k])) {
            widths.list[widths.count++] = labels->list[k];
            widths.all *= size_of(self, labels->list[k]);
        }
    return widths;
}

static int32_t other_operand(const TileWriter *self, const RegionSum *sum) {
    return instruction_of(self, sum)->operands[!sum->tile];
}

static int64_t width_of(const TileWriter *self, const RegionSum *sum) {
    return find_widths(self, other_operand(self, sum)).all;
}

/* Returns whether an earlier member has its tile in shared memory. */
static bool shares_tile(const TileWriter *self, int32_t s) {
    const RegionSum *sum = &self->plan->sums[s];
    int32_t tile = instruction_of(self, sum)->operands[sum->tile];
    for (int32_t before = 0; before < s; before++) {
        const RegionSum *other = &self->plan->sums[before];
        if (other->kind == SUM_PRODUCT && is_member(self, before) &&
            instruction_of(self, other)->operands[other->tile] == tile)
            return true;
    }
    return false;
}

/* ---- sizes ---- */

static int64_t bytes_of_number(const TileWriter *self) {
    return dtype_bytes(self->plan->product);
}

/* Numbers of one step of a product in shared memory. */
static int64_t stage_numbers(const TileWriter *self) {
    int64_t most = 1;
    for (int32_t i = 0; i < self->region->instruction_count; i++)
        if (is_needed_score(self, i)) most = (self->row_tile + self->key_tile) * (SIDE + 1);
    for (int32_t s = 0; s < self->plan->sum_count; s++)
        if (is_member(self, s) && self->plan->sums[s].kind == SUM_PRODUCT)
            most = larger_integer(most, SIDE * multiple_above(width_of(self, &self->plan->sums[s]), SIDE));
    return most;
}

/* Numbers that the threads of a block give one another at the end of a sum of elements; 0: none. */
static int64_t lane_numbers(const TileWriter *self) {
    for (int32_t s = 0; s < self->plan->sum_count; s++)
        if (is_member(self, s) && self->plan->sums[s].kind == SUM_ELEMENTS && !(self->by_row && self->by_key))
            return self->by_row ? self->row_tile * SIDE : self->by_key ? self->key_tile * SIDE : SIDE * SIDE;
    return 0;
}

static bool fits(const TileWriter *self) {
    int64_t numbers = stage_numbers(self), words = bytes_of_number(self) / 4, registers = 0;
    int64_t pairs = self->row_steps * self->key_steps;
    for (int32_t i = 0; i < self->region->instruction_count; i++)
        registers += is_needed_score(self, i) ? pairs * words : 0;
    for (int32_t s = 0; s < self->plan->sum_count; s++) {
        const RegionSum *sum = &self->plan->sums[s];
        if (!is_member(self, s)) continue;
        if (sum->kind == SUM_PRODUCT && !shares_tile(self, s))
            numbers += self->row_tile * (self->key_tile + 1);
        if (sum->kind == SUM_PRODUCT)
            registers += (self->by_row ? self->row_steps : self->key_steps) * words *
                         (multiple_above(width_of(self, sum), SIDE) / SIDE);
        else registers += self->by_row && self->by_key ? 2 * pairs : 2 * self->row_steps;
    }
    return numbers * bytes_of_number(self) + 8 * lane_numbers(self) <= SHARED_BYTES &&
           registers <= MOST_REGISTERS;
}

static int64_t tile_for(int64_t size) {
    int64_t tile = SIDE;
    while (tile < size && tile < MOST_TILE) tile *= 2;
    return tile;
}

static AmStatus choose_tiles(TileWriter *self, AmError *error) {
    self->row_tile = tile_for(size_of(self, self->plan->row));
    self->key_tile = tile_for(size_of(self, self->plan->key));
    for (;;) {
        self->row_steps = self->row_tile / SIDE;
        self->key_steps = self->key_tile / SIDE;
        if (fits(self)) return AM_OK;
        if (self->row_tile == SIDE && self->key_tile == SIDE)
            return am_fail(error, AM_ERROR_INPUT, "", "its widths are larger than a tile");
        if (self->row_tile >= self->key_tile) self->row_tile /= 2;
        else self->key_tile /= 2;
    }
}

/* ---- text ---- */

static void append_barrier(TileWriter *self) {
    text_append_string(self->out, "__syncthreads();\n");
}

/* Appends an unrolled loop, so that arrays with its index are in registers. */
static void append_unrolled(TileWriter *self, const char *name, int64_t count) {
    text_append(self->out, "#pragma unroll\nfor (u32 %s = 0; %s < %lldu; %s++)\n", name, name,
                (long long)count, name);
}

/* Appends the parameters, shared arrays and the place of a block. Returns the number of blocks. */
static int64_t append_head(TileWriter *self) {
    RegionWriter *writer = self->writer;
    int64_t blocks = 1;
    cuda_append_signature(self->out, writer->call, writer->source, "u8", false);
    text_append(self->out, "__shared__ %s stage[%lld];\n", self->number, (long long)stage_numbers(self));
    if (lane_numbers(self) > 0)
        text_append(self->out, "__shared__ f64 lanes[%lld];\n", (long long)lane_numbers(self));
    for (int32_t s = 0; s < self->plan->sum_count; s++) {
        const RegionSum *sum = &self->plan->sums[s];
        if (is_member(self, s) && sum->kind == SUM_PRODUCT && !shares_tile(self, s))
            text_append(self->out, "__shared__ %s tile%d[%lld];\n", self->number,
                        instruction_of(self, sum)->operands[sum->tile],
                        (long long)(self->row_tile * (self->key_tile + 1)));
    }
    text_append(self->out,
                "const u32 x = threadIdx.x %% %du, y = threadIdx.x / %du;\nu32 rest = blockIdx.x;\n", SIDE,
                SIDE);
    for (int32_t side = 0; side < 2; side++) {
        bool is_block = side == 0 ? self->by_row : self->by_key;
        int64_t tile = side == 0 ? self->row_tile : self->key_tile;
        int64_t size = size_of(self, side == 0 ? self->plan->row : self->plan->key);
        int64_t tiles = (size + tile - 1) / tile;
        if (!is_block) continue;
        text_append(self->out, "const %s %s0 = (%s)(rest %% %lldu) * %lld%s;\nrest /= %lldu;\n", self->index,
                    side == 0 ? "r" : "k", self->index, (long long)tiles, (long long)tile, self->suffix,
                    (long long)tiles);
        blocks *= tiles;
    }
    for (int32_t l = 0; l < self->plan->blocks.labels.count; l++) {
        if (!self->plan->is_unit[l] || !region_plan_has(self->plan, self->first->value, l)) continue;
        text_append(self->out, "const %s l%d = rest %% %lldu;\nrest /= %lldu;\n", self->index, l,
                    (long long)size_of(self, l), (long long)size_of(self, l));
        blocks *= size_of(self, l);
    }
    return blocks;
}

/* Appends the sums in registers. */
static void append_sums(TileWriter *self) {
    for (int32_t s = 0; s < self->plan->sum_count; s++) {
        const RegionSum *sum = &self->plan->sums[s];
        int64_t steps = self->by_row ? self->row_steps : self->by_key ? self->key_steps : 1;
        if (!is_member(self, s)) continue;
        if (sum->kind == SUM_PRODUCT) {
            steps *= multiple_above(width_of(self, sum), SIDE) / SIDE;
            text_append(self->out, "%s g%d[%lld] = {};\n", self->number, s, (long long)steps);
            continue;
        }
        if (self->by_row && self->by_key) steps *= self->key_steps;
        text_append(self->out, "f64 g%d[%lld];\n", s, (long long)steps);
        append_unrolled(self, "i", steps);
        text_append(self->out, "g%d[i] = %s;\n", s, region_writer_identity(self->writer, sum));
    }
}

/* Appends the largest and the least position of a vector of integers in a tile. */
static void append_positions(TileWriter *self, int32_t parameter, bool is_row) {
    text_append(self->out, "for (%s n = %s0; n < %s1; n++) {\nconst s64 at = (s64)in%d[n];\n", self->index,
                is_row ? "r" : "k", is_row ? "r" : "k", parameter);
    if (is_row)
        text_append_string(self->out, "if (at > rows_most) rows_most = at;\nif (at < rows_least) "
                                      "rows_least = at;\n}\n");
    else
        text_append(self->out,
                    "if (at < keys_least) keys_least = at;\n}\nif ((s64)in%d[0] > first_key) first_key = "
                    "(s64)in%d[0];\n",
                    parameter, parameter);
}

/* Skips a tile whose keys are all after its rows. The first key must not be after any of these rows. */
static void append_skip(TileWriter *self) {
    const CausalMask *mask = &self->plan->mask;
    if (!self->plan->has_mask) return;
    for (int32_t side = 0; side < 2; side++) {
        const char *name = side == 0 ? "r" : "k";
        text_append(self->out, "const %s %s1 = least_of(%s0 + %lld%s, (%s)%lld%s);\n", self->index, name,
                    name, (long long)(side == 0 ? self->row_tile : self->key_tile), self->suffix, self->index,
                    (long long)size_of(self, side == 0 ? self->plan->row : self->plan->key), self->suffix);
    }
    text_append_string(self->out, "s64 rows_most = (s64)r1 - 1, rows_least = (s64)r0;\n"
                                  "s64 keys_least = (s64)k0, first_key = 0;\n");
    for (int32_t k = 0; k < mask->row_count; k++) append_positions(self, mask->rows[k], true);
    for (int32_t k = 0; k < mask->key_count; k++) append_positions(self, mask->keys[k], false);
    text_append_string(self->out, "if (keys_least > rows_most && first_key <= rows_least) continue;\n");
}

/* A copy of a part of a value in shared memory. */
typedef struct Stage {
    int32_t value, label;   /* lines are of this label */
    const char *from;       /* expression of the first line */
    int64_t lines, columns; /* columns are of the widths */
    const char *column;     /* expression of the first one */
    int64_t stride, at;     /* from line to line; of the first number */
} Stage;

static void append_stage(TileWriter *self, const Stage *stage, const Widths *widths) {
    RegionWriter *writer = self->writer;
    Text number = {0};
    char name[32];
    int32_t value = stage->value, label = stage->label;
    long long lines = stage->lines, columns = stage->columns;
    text_append(self->out,
                "for (u32 n = threadIdx.x; n < %lldu; n += %du) {\n"
                "const %s l%d = %s + n / %lldu, d = %s + n %% %lldu;\n%s number = 0;\n"
                "if (l%d < %lld%s && d < %lld%s) {\n",
                lines * columns, CUDA_THREADS, self->index, label, stage->from, columns, stage->column,
                columns, self->number, label, (long long)size_of(self, label), self->suffix,
                (long long)widths->all, self->suffix);
    region_writer_append_labels(writer, widths->list, widths->count, "d");
    region_element_begin(&writer->element, NULL);
    region_element_append(&writer->element, &value, 1);
    snprintf(name, sizeof name, "v%d", writer->element.slots[value]);
    cuda_append_convert(&number, self->region->values[value].shape.type, self->plan->product, name);
    text_append(self->out, "number = %s;\n}\nstage[%lldu + n / %lldu * %lldu + n %% %lldu] = number;\n}\n",
                number.failed ? "" : number.data, (long long)stage->at, columns, (long long)stage->stride,
                columns);
    self->out->failed |= number.failed;
    text_free(&number);
}

/* Adds the products of one step: `rows` x `columns` numbers of a thread, those of the left side at
 * LEFT(i, c), those of the right one at RIGHT(j, c), with c from 0 to SIDE - 1. */
static void append_products(TileWriter *self, const char *sums, int64_t rows, int64_t columns,
                            const char *left, const char *right) {
    append_unrolled(self, "c", SIDE);
    text_append(self->out, "{\n%s a[%lld], b[%lld];\n", self->number, (long long)rows, (long long)columns);
    append_unrolled(self, "i", rows);
    text_append(self->out, "a[i] = %s;\n", left);
    append_unrolled(self, "j", columns);
    text_append(self->out, "b[j] = %s;\n", right);
    append_unrolled(self, "i", rows);
    append_unrolled(self, "j", columns);
    text_append(self->out, "%s[i * %lldu + j] = %s(a[i], b[j], %s[i * %lldu + j]);\n}\n", sums,
                (long long)columns, self->fma, sums, (long long)columns);
}

static void append_score(TileWriter *self, int32_t i) {
    const ProgramInstruction *instruction = &self->region->instructions[i];
    bool left_rows = region_plan_has(self->plan, instruction->operands[0], self->plan->row);
    int32_t rows = instruction->operands[!left_rows], keys = instruction->operands[left_rows];
    int64_t at = self->row_tile * (SIDE + 1);
    char name[32], right[96];
    Widths widths = find_widths(self, rows);
    Stage of_rows = {rows, self->plan->row, "r0", self->row_tile, SIDE, "d0", SIDE + 1, 0};
    Stage of_keys = {keys, self->plan->key, "k0", self->key_tile, SIDE, "d0", SIDE + 1, at};
    snprintf(name, sizeof name, "s%d", i);
    snprintf(right, sizeof right, "stage[%lldu + (x + %du * j) * %du + c]", (long long)at, SIDE, SIDE + 1);
    text_append(self->out, "%s %s[%lld] = {};\nfor (%s d0 = 0; d0 < %lld%s; d0 += %d%s) {\n", self->number,
                name, (long long)(self->row_steps * self->key_steps), self->index, (long long)widths.all,
                self->suffix, SIDE, self->suffix);
    append_barrier(self);
    append_stage(self, &of_rows, &widths);
    append_stage(self, &of_keys, &widths);
    append_barrier(self);
    append_products(self, name, self->row_steps, self->key_steps, "stage[(y + 16u * i) * 17u + c]", right);
    text_append_string(self->out, "}\n");
}

/* Appends the elements of the tiles: summands, and the numbers that products read from shared memory. */
static void append_elements(TileWriter *self) {
    const RegionPlan *plan = self->plan;
    RegionWriter *writer = self->writer;
    RegionElement *element = &writer->element;
    int64_t pitch = self->key_tile + 1;
    char place[64];
    snprintf(place, sizeof place, "[i * %lldu + j]", (long long)self->key_steps);
    append_unrolled(self, "i", self->row_steps);
    append_unrolled(self, "j", self->key_steps);
    text_append(self->out, "{\nconst %s l%d = r0 + y + %du * i, l%d = k0 + x + %du * j;\n", self->index,
                plan->row, SIDE, plan->key, SIDE);
    for (int32_t s = 0; s < plan->sum_count; s++)
        if (is_member(self, s) && plan->sums[s].kind == SUM_PRODUCT && !shares_tile(self, s))
            text_append(self->out, "%s t%d = 0;\n", self->number, s);
    text_append(self->out, "if (l%d < %lld%s && l%d < %lld%s) {\n", plan->row,
                (long long)size_of(self, plan->row), self->suffix, plan->key,
                (long long)size_of(self, plan->key), self->suffix);
    region_element_begin(element, place);
    for (int32_t s = 0; s < plan->sum_count; s++) {
        const RegionSum *sum = &plan->sums[s];
        const ProgramInstruction *instruction = instruction_of(self, sum);
        if (!is_member(self, s)) continue;
        if (sum->kind == SUM_PRODUCT && !shares_tile(self, s)) {
            int32_t tile = instruction->operands[sum->tile];
            region_element_append(element, &tile, 1);
            text_append(self->out, "t%d = v%d;\n", s, element->slots[tile]);
        }
        if (sum->kind != SUM_ELEMENTS) continue;
        region_element_append(element, instruction->operands, instruction->opcode == IR_DOT ? 2 : 1);
        char old[96], summand[32];
        snprintf(summand, sizeof summand, "summand%d", s);
        if (self->by_row && self->by_key) snprintf(old, sizeof old, "g%d%s", s, place);
        else snprintf(old, sizeof old, "g%d[%s]", s, self->by_row ? "i" : self->by_key ? "j" : "0");
        text_append(self->out, "const f64 %s = ", summand);
        region_writer_append_summand(writer, sum);
        text_append(self->out, ";\n%s = ", old);
        region_writer_append_fold(writer, sum, old, summand);
        text_append_string(self->out, ";\n");
    }
    text_append_string(self->out, "}\n");
    for (int32_t s = 0; s < plan->sum_count; s++)
        if (is_member(self, s) && plan->sums[s].kind == SUM_PRODUCT && !shares_tile(self, s))
            text_append(self->out, "tile%d[(y + %du * i) * %lldu + x + %du * j] = t%d;\n",
                        instruction_of(self, &plan->sums[s])->operands[plan->sums[s].tile], SIDE,
                        (long long)pitch, SIDE, s);
    text_append_string(self->out, "}\n");
}

/* Adds the tile's part of a product: over its keys, or over its rows. */
static void append_sum_product(TileWriter *self, int32_t s) {
    const RegionSum *sum = &self->plan->sums[s];
    int32_t tile = instruction_of(self, sum)->operands[sum->tile];
    Widths widths = find_widths(self, other_operand(self, sum));
    int64_t width = multiple_above(widths.all, SIDE), pitch = self->key_tile + 1;
    Stage stage = {other_operand(self, sum),
                   self->by_row ? self->plan->key : self->plan->row,
                   self->by_row ? "k0 + at" : "r0 + at",
                   SIDE,
                   width,
                   "0",
                   width,
                   0};
    char name[32], left[96], right[64];
    snprintf(name, sizeof name, "g%d", s);
    if (self->by_row)
        snprintf(left, sizeof left, "tile%d[(y + %du * i) * %lldu + at + c]", tile, SIDE, (long long)pitch);
    else snprintf(left, sizeof left, "tile%d[(at + c) * %lldu + y + %du * i]", tile, (long long)pitch, SIDE);
    snprintf(right, sizeof right, "stage[c * %lldu + x + %du * j]", (long long)width, SIDE);
    text_append(self->out, "for (u32 at = 0; at < %lldu; at += %du) {\n",
                (long long)(self->by_row ? self->key_tile : self->row_tile), SIDE);
    append_barrier(self);
    append_stage(self, &stage, &widths);
    append_barrier(self);
    append_products(self, name, self->by_row ? self->row_steps : self->key_steps, width / SIDE, left, right);
    text_append_string(self->out, "}\n");
}

static void append_loops(TileWriter *self) {
    int32_t loops = 0;
    for (int32_t l = 0; l < self->plan->blocks.labels.count; l++) {
        if (!self->plan->is_unit[l] || !self->first->is_looped[l]) continue;
        text_append(self->out, "for (%s l%d = 0; l%d < %lld%s; l%d++)\n", self->index, l, l,
                    (long long)size_of(self, l), self->suffix, l);
        loops++;
    }
    for (int32_t side = 0; side < 2; side++) {
        const char *name = side == 0 ? "r0" : "k0";
        if (side == 0 ? self->by_row : self->by_key) continue;
        text_append(self->out, "for (%s %s = 0; %s < %lld%s; %s += %lld%s)\n", self->index, name, name,
                    (long long)size_of(self, side == 0 ? self->plan->row : self->plan->key), self->suffix,
                    name, (long long)(side == 0 ? self->row_tile : self->key_tile), self->suffix);
        loops++;
    }
    if (loops == 0) text_append_string(self->out, "do ");
    text_append_string(self->out, "{\n");
    append_skip(self);
    bool has_scores = false;
    for (int32_t i = 0; i < self->region->instruction_count; i++) {
        if (!is_needed_score(self, i)) continue;
        append_score(self, i);
        has_scores = true;
    }
    if (!has_scores) append_barrier(self);
    append_elements(self);
    for (int32_t s = 0; s < self->plan->sum_count; s++)
        if (is_member(self, s) && self->plan->sums[s].kind == SUM_PRODUCT) append_sum_product(self, s);
    text_append_string(self->out, loops == 0 ? "} while (false);\n" : "}\n");
}

/* Writes the results of a product: row or key i and width j of each thread. */
static void append_product_results(TileWriter *self, int32_t s) {
    const RegionSum *sum = &self->plan->sums[s];
    int32_t label = self->by_row ? self->plan->row : self->plan->key;
    Widths widths = find_widths(self, other_operand(self, sum));
    int64_t columns = multiple_above(widths.all, SIDE) / SIDE;
    append_unrolled(self, "i", self->by_row ? self->row_steps : self->key_steps);
    append_unrolled(self, "j", columns);
    text_append(self->out,
                "{\nconst %s l%d = %s0 + y + %du * i, d = x + %du * j;\nif (l%d < %lld%s && d < %lld%s) {\n"
                "const %s sum = g%d[i * %lldu + j];\n",
                self->index, label, self->by_row ? "r" : "k", SIDE, SIDE, label,
                (long long)size_of(self, label), self->suffix, (long long)widths.all, self->suffix,
                self->number, s, (long long)columns);
    region_writer_append_labels(self->writer, widths.list, widths.count, "d");
    region_writer_finish(self->writer, sum);
    text_append_string(self->out, "}\n}\n");
}

/* Folds the lanes of a sum of elements, and writes its results. */
static void append_element_results(TileWriter *self, int32_t s) {
    const RegionSum *sum = &self->plan->sums[s];
    int32_t row = self->plan->row, key = self->plan->key, label = self->by_row ? row : key;
    int64_t lanes = self->by_row || self->by_key ? SIDE : SIDE * SIDE;
    int64_t steps = self->by_row ? self->row_steps : self->by_key ? self->key_steps : 1;
    if (self->by_row && self->by_key) {
        append_unrolled(self, "i", self->row_steps);
        append_unrolled(self, "j", self->key_steps);
        text_append(self->out,
                    "{\nconst %s l%d = r0 + y + %du * i, l%d = k0 + x + %du * j;\n"
                    "if (l%d < %lld%s && l%d < %lld%s) {\nconst f64 sum = g%d[i * %lldu + j];\n",
                    self->index, row, SIDE, key, SIDE, row, (long long)size_of(self, row), self->suffix, key,
                    (long long)size_of(self, key), self->suffix, s, (long long)self->key_steps);
        region_writer_finish(self->writer, sum);
        text_append_string(self->out, "}\n}\n");
        return;
    }
    append_barrier(self);
    if (lanes == SIDE) {
        append_unrolled(self, "i", steps);
        text_append(self->out, "lanes[(%s + %du * i) * %du + %s] = g%d[i];\n", self->by_row ? "y" : "x", SIDE,
                    SIDE, self->by_row ? "x" : "y", s);
    } else text_append(self->out, "lanes[threadIdx.x] = g%d[0];\n", s);
    append_barrier(self);
    text_append(self->out, "if (threadIdx.x < %lldu) {\n", (long long)(lanes == SIDE ? steps * SIDE : 1));
    if (lanes == SIDE)
        text_append(self->out, "const %s l%d = %s0 + threadIdx.x;\nif (l%d < %lld%s) {\n", self->index, label,
                    self->by_row ? "r" : "k", label, (long long)size_of(self, label), self->suffix);
    else text_append_string(self->out, "{\n");
    text_append(self->out, "f64 sum = lanes[threadIdx.x * %lldu];\nfor (u32 n = 1; n < %lldu; n++) sum = ",
                (long long)lanes, (long long)lanes);
    char lane[64];
    snprintf(lane, sizeof lane, "lanes[threadIdx.x * %lldu + n]", (long long)lanes);
    region_writer_append_fold(self->writer, sum, "sum", lane);
    text_append_string(self->out, ";\n");
    region_writer_finish(self->writer, sum);
    text_append_string(self->out, "}\n}\n");
}

AmStatus region_writer_tiles(RegionWriter *writer, const RegionSum *first, AmError *error) {
    const RegionPlan *plan = writer->plan;
    TileWriter self = {.writer = writer,
                       .plan = plan,
                       .region = writer->region,
                       .out = &writer->body,
                       .first = first,
                       .by_row = region_plan_has(plan, first->value, plan->row),
                       .by_key = region_plan_has(plan, first->value, plan->key),
                       .needed = ARENA_ARRAY(writer->arena, bool, writer->region->value_count + 1),
                       .index = writer->index,
                       .suffix = writer->suffix,
                       .number = writer->number,
                       .fma = plan->product == DTYPE_F64 ? "fma" : "fmaf"};
    if (!self.needed) return am_fail_memory(error, self.region->value_count);
    for (int32_t s = 0; s < plan->sum_count; s++) {
        const ProgramInstruction *instruction = instruction_of(&self, &plan->sums[s]);
        if (is_member(&self, s)) region_plan_mark(plan, self.needed, instruction->operands, 2, -1);
    }
    TRY(choose_tiles(&self, error));
    int64_t blocks = append_head(&self);
    append_sums(&self);
    append_loops(&self);
    for (int32_t s = 0; s < plan->sum_count; s++) {
        if (!is_member(&self, s)) continue;
        if (plan->sums[s].kind == SUM_PRODUCT) append_product_results(&self, s);
        else append_element_results(&self, s);
    }
    text_append_string(self.out, "}\n");
    return cuda_source_launch_long(writer->source, "attention", self.out, blocks, CUDA_THREADS, error);
}
