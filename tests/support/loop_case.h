/* Loops for tests of the runner: scans over layers, over time and over
 * micro-batches, nested, with branches inside. All numbers are whole and small, so
 * every split equals one device bit for bit, whatever the order of its sums. */
#ifndef TESTS_SUPPORT_LOOP_CASE_H
#define TESTS_SUPPORT_LOOP_CASE_H

#include "lowering/spmd/lower.h"
#include "runner_case.h"

/* Integers from -2 to 2, derived from the state file or the seed. */
#define LOOP_WHOLE(name, shape)                                                \
    "  " name "_scale = " shape " broadcast(eight), dimensions={}\n"           \
    "  " name "_scaled = " shape " multiply(" name "_given, " name "_scale)\n" \
    "  " name "_floor = " shape " floor(" name "_scaled)\n"                    \
    "  " name " = " shape " clamp(least, " name "_floor, most)\n"
#define LOOP_CONSTANTS                                                                  \
    "  eight = f32[] constant(8) least = f32[] constant(-2) most = f32[] constant(2)\n" \
    "  zero = s32[] constant(0) nothing = f32[] constant(0)\n"
#define LOOP_CLAMPED "least = f32[] constant(-2) most = f32[] constant(2)\n"
#define LOOP_ADD     "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"
#define LOOP_LESS(name, tuple, index, count)                                                 \
    name " { s = " tuple " parameter(0)\n"                                                   \
         "  i = s32[] get-tuple-element(s), index=" index " n = s32[] constant(" count ")\n" \
         "  ROOT c = pred[] compare(i, n), direction=LT }\n"

#define LOOP_FORWARD  "(s32[], f32[4,8], f32[3,8,8], f32[3,4,8])"
#define LOOP_BACKWARD "(s32[], f32[4,8], f32[3,8,8], f32[3,4,8], f32[3,8,8])"

#define LOOP_LAYER_BACKWARD                                                                    \
    "layer_backward { s = " LOOP_BACKWARD " parameter(0)\n"                                    \
    "  i = s32[] get-tuple-element(s), index=0 g = f32[4,8] get-tuple-element(s), index=1\n"   \
    "  w = f32[3,8,8] get-tuple-element(s), index=2 kept = f32[3,4,8] get-tuple-element(s), "  \
    "index=3\n"                                                                                \
    "  d = f32[3,8,8] get-tuple-element(s), index=4\n"                                         \
    "  zero = s32[] constant(0) one = s32[] constant(1) two = s32[] constant(2) " LOOP_CLAMPED \
    "  k = s32[] subtract(two, i)\n"                                                           \
    "  piece = f32[1,8,8] dynamic-slice(w, k, zero, zero), dynamic_slice_sizes={1,8,8}\n"      \
    "  own = f32[8,8] reshape(piece)\n"                                                        \
    "  row = f32[1,4,8] dynamic-slice(kept, k, zero, zero), dynamic_slice_sizes={1,4,8}\n"     \
    "  h = f32[4,8] reshape(row)\n"                                                            \
    "  gradient = f32[8,8] dot(h, g), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"    \
    "  placed = f32[1,8,8] reshape(gradient)\n"                                                \
    "  more = f32[3,8,8] dynamic-update-slice(d, placed, k, zero, zero)\n"                     \
    "  product = f32[4,8] dot(g, own), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"   \
    "  next = f32[4,8] clamp(least, product, most) j = s32[] add(i, one)\n"                    \
    "  ROOT r = " LOOP_BACKWARD " tuple(j, next, w, kept, more) }\n"

/* h = clamp(h w[i]) over three layers, every h kept; then backwards, with the gradient of every layer. */
static const char loop_layers[] =
    "HloModule layers\n" LOOP_ADD LOOP_LESS("more", LOOP_FORWARD, "0", "3") LOOP_LESS(
        "more_backward", LOOP_BACKWARD, "0",
        "3") "layer { s = " LOOP_FORWARD " parameter(0)\n"
             "  i = s32[] get-tuple-element(s), index=0 h = f32[4,8] get-tuple-element(s), index=1\n"
             "  w = f32[3,8,8] get-tuple-element(s), index=2 kept = f32[3,4,8] get-tuple-element(s), "
             "index=3\n"
             "  zero = s32[] constant(0) one = s32[] constant(1) " LOOP_CLAMPED
             "  piece = f32[1,8,8] dynamic-slice(w, i, zero, zero), dynamic_slice_sizes={1,8,8}\n"
             "  own = f32[8,8] reshape(piece)\n"
             "  product = f32[4,8] dot(h, own), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
             "  next = f32[4,8] clamp(least, product, most) row = f32[1,4,8] reshape(h)\n"
             "  keep = f32[3,4,8] dynamic-update-slice(kept, row, i, zero, zero) j = s32[] add(i, one)\n"
             "  ROOT r = " LOOP_FORWARD " tuple(j, next, w, keep) }\n" LOOP_LAYER_BACKWARD
             "ENTRY step { w_given = f32[3,8,8] parameter(0) x_given = f32[4,8] parameter(1)\n" LOOP_CONSTANTS
                 LOOP_WHOLE("w", "f32[3,8,8]") LOOP_WHOLE(
                     "x", "f32[4,8]") "  kept = f32[3,4,8] broadcast(nothing), dimensions={}\n"
                                      "  t = " LOOP_FORWARD " tuple(zero, x, w, kept)\n"
                                      "  f = " LOOP_FORWARD " while(t), condition=more, body=layer\n"
                                      "  y = f32[4,8] get-tuple-element(f), index=1 all = f32[3,4,8] "
                                      "get-tuple-element(f), index=3\n"
                                      "  none = f32[3,8,8] broadcast(nothing), dimensions={}\n"
                                      "  u = " LOOP_BACKWARD " tuple(zero, y, w, all, none)\n"
                                      "  b = " LOOP_BACKWARD
                                      " while(u), condition=more_backward, body=layer_backward\n"
                                      "  d = f32[3,8,8] get-tuple-element(b), index=4 updated = f32[3,8,8] "
                                      "add(w, d)\n"
                                      "  loss = f32[] reduce(y, nothing), dimensions={0,1}, to_apply=add\n"
                                      "  ROOT r = (f32[3,8,8], f32[]) tuple(updated, loss) }\n";

/* The same layers, which hand on twice their weights for the backward pass: values of no example beside those
 * of examples. */
static const char loop_scaled[] =
    "HloModule scaled\n" LOOP_ADD LOOP_LESS("more", LOOP_BACKWARD, "0", "3") LOOP_LESS(
        "more_backward", LOOP_BACKWARD, "0",
        "3") "layer { s = " LOOP_BACKWARD " parameter(0)\n"
             "  i = s32[] get-tuple-element(s), index=0 h = f32[4,8] get-tuple-element(s), index=1\n"
             "  w = f32[3,8,8] get-tuple-element(s), index=2 kept = f32[3,4,8] get-tuple-element(s), "
             "index=3\n"
             "  doubles = f32[3,8,8] get-tuple-element(s), index=4\n"
             "  zero = s32[] constant(0) one = s32[] constant(1) " LOOP_CLAMPED
             "  piece = f32[1,8,8] dynamic-slice(w, i, zero, zero), dynamic_slice_sizes={1,8,8}\n"
             "  own = f32[8,8] reshape(piece) double = f32[1,8,8] add(piece, piece)\n"
             "  product = f32[4,8] dot(h, own), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
             "  next = f32[4,8] clamp(least, product, most) row = f32[1,4,8] reshape(h)\n"
             "  keep = f32[3,4,8] dynamic-update-slice(kept, row, i, zero, zero) j = s32[] add(i, one)\n"
             "  more = f32[3,8,8] dynamic-update-slice(doubles, double, i, zero, zero)\n"
             "  ROOT r = " LOOP_BACKWARD " tuple(j, next, w, keep, more) }\n" LOOP_LAYER_BACKWARD
             "ENTRY step { w_given = f32[3,8,8] parameter(0) x_given = f32[4,8] parameter(1)\n" LOOP_CONSTANTS
                 LOOP_WHOLE("w", "f32[3,8,8]") LOOP_WHOLE(
                     "x", "f32[4,8]") "  kept = f32[3,4,8] broadcast(nothing), dimensions={}\n"
                                      "  none = f32[3,8,8] broadcast(nothing), dimensions={}\n"
                                      "  t = " LOOP_BACKWARD " tuple(zero, x, w, kept, none)\n"
                                      "  f = " LOOP_BACKWARD " while(t), condition=more, body=layer\n"
                                      "  y = f32[4,8] get-tuple-element(f), index=1 all = f32[3,4,8] "
                                      "get-tuple-element(f), index=3\n"
                                      "  doubles = f32[3,8,8] get-tuple-element(f), index=4\n"
                                      "  u = " LOOP_BACKWARD " tuple(zero, y, doubles, all, none)\n"
                                      "  b = " LOOP_BACKWARD
                                      " while(u), condition=more_backward, body=layer_backward\n"
                                      "  d = f32[3,8,8] get-tuple-element(b), index=4 updated = f32[3,8,8] "
                                      "add(w, d)\n"
                                      "  loss = f32[] reduce(y, nothing), dimensions={0,1}, to_apply=add\n"
                                      "  ROOT r = (f32[3,8,8], f32[]) tuple(updated, loss) }\n";

#define LOOP_TIME "(s32[], f32[4,8], f32[5,4,6], f32[6,8], f32[8,8], f32[5,4,8])"

/* h = clamp(x[t] u + h v) over five times; u and v are the same at every one. */
static const char loop_recurrent[] = "HloModule recurrent\n" LOOP_ADD LOOP_LESS(
    "more", LOOP_TIME, "0",
    "5") "cell { s = " LOOP_TIME " parameter(0)\n"
         "  t = s32[] get-tuple-element(s), index=0 h = f32[4,8] get-tuple-element(s), index=1\n"
         "  x = f32[5,4,6] get-tuple-element(s), index=2 u = f32[6,8] get-tuple-element(s), index=3\n"
         "  v = f32[8,8] get-tuple-element(s), index=4 out = f32[5,4,8] get-tuple-element(s), index=5\n"
         "  zero = s32[] constant(0) one = s32[] constant(1) " LOOP_CLAMPED
         "  piece = f32[1,4,6] dynamic-slice(x, t, zero, zero), dynamic_slice_sizes={1,4,6}\n"
         "  now = f32[4,6] reshape(piece)\n"
         "  a = f32[4,8] dot(now, u), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
         "  b = f32[4,8] dot(h, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
         "  sum = f32[4,8] add(a, b) next = f32[4,8] clamp(least, sum, most) row = f32[1,4,8] reshape(next)\n"
         "  more = f32[5,4,8] dynamic-update-slice(out, row, t, zero, zero) later = s32[] add(t, one)\n"
         "  ROOT r = " LOOP_TIME " tuple(later, next, x, u, v, more) }\n"
         "ENTRY step { u_given = f32[6,8] parameter(0) v_given = f32[8,8] parameter(1)\n"
         "  x_given = f32[5,4,6] parameter(2)\n" LOOP_CONSTANTS LOOP_WHOLE("u", "f32[6,8]")
             LOOP_WHOLE("v", "f32[8,8]") LOOP_WHOLE(
                 "x", "f32[5,4,6]") "  h = f32[4,8] broadcast(nothing), dimensions={} out = f32[5,4,8] "
                                    "broadcast(nothing), dimensions={}\n"
                                    "  t = " LOOP_TIME " tuple(zero, h, x, u, v, out) w = " LOOP_TIME
                                    " while(t), condition=more, body=cell\n"
                                    "  last = f32[4,8] get-tuple-element(w), index=1 all = f32[5,4,8] "
                                    "get-tuple-element(w), index=5\n"
                                    "  gradient = f32[6,8] dot(x, all), lhs_contracting_dims={0,1}, "
                                    "rhs_contracting_dims={0,1}\n"
                                    "  next_u = f32[6,8] add(u, gradient)\n"
                                    "  squares = f32[8,8] dot(last, last), lhs_contracting_dims={0}, "
                                    "rhs_contracting_dims={0}\n"
                                    "  next_v = f32[8,8] add(v, squares)\n"
                                    "  loss = f32[] reduce(all, nothing), dimensions={0,1,2}, to_apply=add\n"
                                    "  ROOT r = (f32[6,8], f32[8,8], f32[]) tuple(next_u, next_v, loss) }\n";

#define LOOP_PARTS "(s32[], f32[6,8], f32[3,4,6], f32[6,8], f32[])"

/* Three micro-batches: the gradients of w and the losses are added up. */
static const char loop_accumulated[] = "HloModule accumulated\n" LOOP_ADD LOOP_LESS(
    "more", LOOP_PARTS, "0",
    "3") "part { s = " LOOP_PARTS " parameter(0)\n"
         "  i = s32[] get-tuple-element(s), index=0 w = f32[6,8] get-tuple-element(s), index=1\n"
         "  x = f32[3,4,6] get-tuple-element(s), index=2 d = f32[6,8] get-tuple-element(s), index=3\n"
         "  sum = f32[] get-tuple-element(s), index=4\n"
         "  zero = s32[] constant(0) one = s32[] constant(1) nothing = f32[] constant(0) " LOOP_CLAMPED
         "  piece = f32[1,4,6] dynamic-slice(x, i, zero, zero), dynamic_slice_sizes={1,4,6}\n"
         "  own = f32[4,6] reshape(piece)\n"
         "  product = f32[4,8] dot(own, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
         "  y = f32[4,8] clamp(least, product, most)\n"
         "  gradient = f32[6,8] dot(own, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
         "  more = f32[6,8] add(d, gradient)\n"
         "  loss = f32[] reduce(y, nothing), dimensions={0,1}, to_apply=add\n"
         "  total = f32[] add(sum, loss) j = s32[] add(i, one)\n"
         "  ROOT r = " LOOP_PARTS " tuple(j, w, x, more, total) }\n"
         "ENTRY step { w_given = f32[6,8] parameter(0) x_given = f32[3,4,6] parameter(1)\n" LOOP_CONSTANTS
             LOOP_WHOLE("w", "f32[6,8]")
                 LOOP_WHOLE("x", "f32[3,4,6]") "  d = f32[6,8] broadcast(nothing), dimensions={}\n"
                                               "  t = " LOOP_PARTS
                                               " tuple(zero, w, x, d, nothing) r = " LOOP_PARTS
                                               " while(t), condition=more, body=part\n"
                                               "  sum = f32[6,8] get-tuple-element(r), index=3 "
                                               "updated = f32[6,8] add(w, sum)\n"
                                               "  loss = f32[] get-tuple-element(r), index=4 ROOT o "
                                               "= (f32[6,8], f32[]) tuple(updated, loss) }\n";

#define LOOP_OUTER "(s32[], f32[4,8], f32[3,8,8])"
#define LOOP_INNER "(s32[], f32[4,8], f32[8,8])"

/* Every layer is applied twice by an inner loop; then an odd one is clamped, an even one is negated. */
static const char loop_nested[] =
    "HloModule nested\n" LOOP_ADD LOOP_LESS("more", LOOP_OUTER, "0", "3") LOOP_LESS(
        "again", LOOP_INNER, "0",
        "2") "apply { s = " LOOP_INNER " parameter(0)\n"
             "  i = s32[] get-tuple-element(s), index=0 h = f32[4,8] get-tuple-element(s), index=1\n"
             "  w = f32[8,8] get-tuple-element(s), index=2 one = s32[] constant(1) " LOOP_CLAMPED
             "  product = f32[4,8] dot(h, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
             "  next = f32[4,8] clamp(least, product, most) j = s32[] add(i, one)\n"
             "  ROOT r = " LOOP_INNER " tuple(j, next, w) }\n"
             "odd { p = (f32[4,8], f32[8,8]) parameter(0) h = f32[4,8] get-tuple-element(p), index=0\n"
             "  w = f32[8,8] get-tuple-element(p), index=1 " LOOP_CLAMPED
             "  product = f32[4,8] dot(h, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
             "  ROOT r = f32[4,8] clamp(least, product, most) }\n"
             "even { h = f32[4,8] parameter(0) ROOT r = f32[4,8] negate(h) }\n"
             "layer { s = " LOOP_OUTER " parameter(0)\n"
             "  i = s32[] get-tuple-element(s), index=0 h = f32[4,8] get-tuple-element(s), index=1\n"
             "  w = f32[3,8,8] get-tuple-element(s), index=2\n"
             "  zero = s32[] constant(0) one = s32[] constant(1) two = s32[] constant(2)\n"
             "  piece = f32[1,8,8] dynamic-slice(w, i, zero, zero), dynamic_slice_sizes={1,8,8}\n"
             "  own = f32[8,8] reshape(piece) t = " LOOP_INNER " tuple(zero, h, own)\n"
             "  v = " LOOP_INNER " while(t), condition=again, body=apply\n"
             "  y = f32[4,8] get-tuple-element(v), index=1 half = s32[] remainder(i, two)\n"
             "  is = pred[] compare(half, zero), direction=NE both = (f32[4,8], f32[8,8]) tuple(y, own)\n"
             "  z = f32[4,8] conditional(is, both, y), true_computation=odd, false_computation=even\n"
             "  j = s32[] add(i, one) ROOT r = " LOOP_OUTER " tuple(j, z, w) }\n"
             "ENTRY step { w_given = f32[3,8,8] parameter(0) x_given = f32[4,8] parameter(1)\n" LOOP_CONSTANTS
                 LOOP_WHOLE("w", "f32[3,8,8]") LOOP_WHOLE(
                     "x", "f32[4,8]") "  t = " LOOP_OUTER " tuple(zero, x, w) v = " LOOP_OUTER
                                      " while(t), condition=more, body=layer\n"
                                      "  y = f32[4,8] get-tuple-element(v), index=1\n"
                                      "  gradient = f32[8,8] dot(x, y), lhs_contracting_dims={0}, "
                                      "rhs_contracting_dims={0}\n"
                                      "  wide = f32[3,8,8] broadcast(gradient), dimensions={1,2} updated = "
                                      "f32[3,8,8] add(w, wide)\n"
                                      "  loss = f32[] reduce(y, nothing), dimensions={0,1}, to_apply=add\n"
                                      "  ROOT o = (f32[3,8,8], f32[]) tuple(updated, loss) }\n";

static const char *const loop_modules[] = {loop_layers, loop_recurrent, loop_accumulated, loop_nested};
enum { LOOP_MODULES = sizeof loop_modules / sizeof *loop_modules };

/* Collectives of a program's regions, and of theirs. */
static inline int32_t loop_count_inside(const Program *program, bool inside) {
    int32_t count = 0;
    for (int32_t k = 0; k < program->instruction_count; k++) {
        const ProgramInstruction *instruction = &program->instructions[k];
        count += inside && instruction->kind == PROGRAM_COLLECTIVE;
        for (int32_t r = 0; r < instruction->regions.count; r++)
            count += loop_count_inside(instruction->regions.programs[r], true);
    }
    return count;
}

/* Two devices take the same steps, though their parts may differ in size. */
static inline void loop_same_steps(const Program *a, const Program *b) {
    assert_int_equal(a->execution.step_count, b->execution.step_count);
    assert_int_equal(a->instruction_count, b->instruction_count);
    for (int32_t s = 0; s < a->execution.step_count; s++)
        assert_int_equal(a->execution.steps[s].instruction, b->execution.steps[s].instruction);
    for (int32_t k = 0; k < a->instruction_count; k++)
        for (int32_t r = 0; r < a->instructions[k].regions.count; r++)
            loop_same_steps(a->instructions[k].regions.programs[r], b->instructions[k].regions.programs[r]);
}

/* The number of collectives in loops; a rank's allocation has the size in the plan. */
static inline int32_t loop_inspect(const PlanContext *context, const Plan *plan, const RunReport *report) {
    Arena arena = {0};
    Assignment *assignment;
    Program *program, *other;
    AmError error = {0};
    if (plan_assign(&assignment, &arena, context, &plan->stages[0], &error) != AM_OK ||
        plan_lower(&program, &arena, context, assignment, 0, &error) != AM_OK)
        fail_msg("%s", error.text);
    assert_int_equal(report->peak_bytes[0], kernel_align(program->allocation.bytes));
    for (int32_t device = 1; device < plan->stages[0].mesh.device_count; device++) {
        if (plan_lower(&other, &arena, context, assignment, device, &error) != AM_OK)
            fail_msg("%s", error.text);
        loop_same_steps(program, other);
    }
    int32_t count = loop_count_inside(program, false);
    arena_free(&arena);
    return count;
}

/* Runs some steps from the same random state and leaves all outputs of the last one in `outputs`;
 * gives the number of collectives in loops. */
static inline int32_t loop_run(const char *path, const char *device, const char *comm, Split split,
                               int64_t steps, const char *outputs) {
    AmError error = {0};
    Arena arena = {0};
    PlanContext *context;
    int32_t inside = 0;
    RunReport report;
    RunOptions options = {.steps = steps,
                          .device = device,
                          .comm = comm,
                          .state_path = "random",
                          .seed = 5,
                          .outputs_path = outputs};
    if (plan_context_read(&context, path, NULL, &error) != AM_OK) fail_msg("%s", error.text);
    if (split.mesh) options.plan = make_plan(&arena, context, split.mesh, split.choose, split.seed);
    if (run_module(context, &options, &arena, &report, &error) != AM_OK)
        fail_msg("%s on %s (seed %d): %s", path, split.mesh, (int)split.seed, error.text);
    assert_true(fabs(report.first_loss) >= 1); /* the numbers have not all become 0 */
    if (options.plan) inside = loop_inspect(context, options.plan, &report);
    arena_free(&arena);
    plan_context_free(context);
    return inside;
}

/* Collectives in loops, of all splits together. */
static inline int32_t loop_check(const char *text, const char *device, const char *comm, const Split *splits,
                                 int32_t count) {
    char path[] = "/tmp/automap_loop_XXXXXX", expected[64], outputs[64];
    int32_t inside = 0;
    int file = mkstemp(path);
    assert_int_equal(write(file, text, strlen(text)), (ssize_t)strlen(text));
    close(file);
    snprintf(expected, sizeof expected, "%s_one.npz", path);
    snprintf(outputs, sizeof outputs, "%s_split.npz", path);
    /* A GPU records its work in the second step, and replays it from the third one on. */
    int64_t steps = strcmp(device, "cpu") == 0 ? 2 : 4;
    loop_run(path, "cpu", NULL, (Split){0}, steps, expected);
    for (int32_t k = 0; k < count; k++) {
        inside += loop_run(path, device, comm, splits[k], steps, outputs);
        compare_states(outputs, expected, 0);
    }
    unlink(path);
    unlink(expected);
    unlink(outputs);
    return inside;
}

#endif
