/* Training steps for tests of micro-batches, in HLO: a layer y = clamp(x w) on a
 * batch of eight, and what models do with a batch besides. All numbers are whole
 * and small. */
#ifndef TESTS_SUPPORT_MICRO_BATCH_CASE_H
#define TESTS_SUPPORT_MICRO_BATCH_CASE_H

#define BATCH_ADD     "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"
#define BATCH_MAXIMUM "max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }\n"
#define BATCH_AND     "both { a = pred[] parameter(0) b = pred[] parameter(1) ROOT c = pred[] and(a, b) }\n"
#define BATCH_LESS \
    "less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = pred[] compare(a, b), direction=LT }\n"

#define BATCH_START                                                                     \
    "  eight = f32[] constant(8) least = f32[] constant(-2) most = f32[] constant(2)\n" \
    "  nothing = f32[] constant(0) one = f32[] constant(1)\n"
#define BATCH_WHOLE(name, shape)                                               \
    "  " name "_scale = " shape " broadcast(eight), dimensions={}\n"           \
    "  " name "_scaled = " shape " multiply(" name "_given, " name "_scale)\n" \
    "  " name "_floor = " shape " floor(" name "_scaled)\n"                    \
    "  " name " = " shape " clamp(least, " name "_floor, most)\n"
#define BATCH_INPUTS                                                                               \
    "  w_given = f32[6,8] parameter(0) x_given = f32[8,6] parameter(1)\n" BATCH_START BATCH_WHOLE( \
        "w", "f32[6,8]") BATCH_WHOLE("x", "f32[8,6]")
#define BATCH_LAYER(y, x, w)                                                                             \
    "  " y "_product = f32[8,8] dot(" x ", " w "), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n" \
    "  " y " = f32[8,8] clamp(least, " y "_product, most)\n"
#define BATCH_GRADIENT(g, x, y) \
    "  " g " = f32[6,8] dot(" x ", " y "), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
#define BATCH_LOSS(y) "  loss = f32[] reduce(" y ", nothing), dimensions={0,1}, to_apply=add\n"

static const char batch_dense[] =
    "HloModule dense\n" BATCH_ADD "ENTRY step {\n" BATCH_INPUTS BATCH_LAYER("y", "x", "w")
        BATCH_GRADIENT("g", "x", "y") "  updated = f32[6,8] add(w, g)\n" BATCH_LOSS(
            "y") "  ROOT r = (f32[6,8], f32[]) tuple(updated, loss) }\n";

/* The gradient is a product of 16 bits, and moved and negated before it is f32. Its sums need more bits than
 * bf16 has, so that a rounding in each micro-batch shows. */
static const char batch_16bit[] = "HloModule sixteen\n" BATCH_ADD "ENTRY step {\n" BATCH_INPUTS BATCH_LAYER(
    "y", "x",
    "w") "  number = bf16[8,6] iota(), iota_dimension=0 first = bf16[] constant(120)\n"
         "  from = bf16[8,6] broadcast(first), dimensions={} factors = bf16[8,6] add(number, from)\n"
         "  x_half = bf16[8,6] convert(x) y_half = bf16[8,8] convert(y)\n"
         "  large = bf16[8,6] multiply(x_half, factors)\n"
         "  d = bf16[8,6] dot(y_half, large), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
         "  t = bf16[6,8] transpose(d), dimensions={1,0} n = bf16[6,8] negate(t)\n"
         "  g = f32[6,8] convert(n) updated = f32[6,8] subtract(w, g)\n" BATCH_LOSS(
             "y") "  ROOT r = (f32[6,8], f32[]) tuple(updated, loss) }\n";

/* Every example is weighted by the number of examples that count; a column marks them. */
static const char batch_masked_mean[] =
    "HloModule masked\n" BATCH_ADD "ENTRY step {\n" BATCH_INPUTS BATCH_LAYER(
        "y", "x",
        "w") "  column = f32[8,1] slice(x), slice={[0:8], [0:1]} first = f32[8] reshape(column)\n"
             "  none = f32[8] broadcast(nothing), dimensions={} counts = pred[8] compare(first, none), "
             "direction=GT\n"
             "  mask = f32[8] convert(counts) count = f32[] reduce(mask, nothing), dimensions={0}, "
             "to_apply=add\n"
             "  all = f32[8] broadcast(count), dimensions={} weight = f32[8] multiply(mask, all)\n"
             "  weights = f32[8,8] broadcast(weight), dimensions={0} weighed = f32[8,8] multiply(y, "
             "weights)\n" BATCH_GRADIENT("g", "x", "weighed") "  updated = f32[6,8] add(w, g)\n" BATCH_LOSS(
                 "weighed") "  ROOT r = (f32[6,8], f32[], f32[]) tuple(updated, loss, count) }\n";

/* A factor by the norm of all gradients. */
static const char batch_clipping[] =
    "HloModule clipping\n" BATCH_ADD "ENTRY step {\n" BATCH_INPUTS BATCH_LAYER("y", "x", "w") BATCH_GRADIENT(
        "g", "x",
        "y") "  squares = f32[6,8] multiply(g, g)\n"
             "  norm = f32[] reduce(squares, nothing), dimensions={0,1}, to_apply=add\n"
             "  factor = f32[] minimum(norm, most) factors = f32[6,8] broadcast(factor), dimensions={}\n"
             "  clipped = f32[6,8] multiply(g, factors) updated = f32[6,8] add(w, clipped)\n" BATCH_LOSS(
                 "y") "  ROOT r = (f32[6,8], f32[]) tuple(updated, loss) }\n";

/* Gradients are scaled, and the step is left out where one is not finite. */
static const char batch_loss_scale[] =
    "HloModule scale\n" BATCH_ADD BATCH_AND "ENTRY step {\n" BATCH_INPUTS
    "  scale = f32[] parameter(2) known = f32[] add(scale, most)\n" BATCH_LAYER(
        "y", "x", "w") "  wide = f32[8,8] broadcast(known), dimensions={} scaled = f32[8,8] multiply(y, "
                       "wide)\n" BATCH_GRADIENT(
                           "g", "x", "scaled") "  finite = pred[6,8] is-finite(g) yes = pred[] "
                                               "constant(true)\n"
                                               "  fine = pred[] reduce(finite, yes), dimensions={0,1}, "
                                               "to_apply=both\n"
                                               "  take = pred[6,8] broadcast(fine), dimensions={} more = "
                                               "f32[6,8] add(w, g)\n"
                                               "  updated = f32[6,8] select(take, more, w)\n"
                                               "  next = f32[] select(fine, scale, one)\n" BATCH_LOSS(
                                                   "y") "  ROOT r = (f32[6,8], f32[], f32[]) tuple(updated, "
                                                        "loss, next) }\n";

static const char batch_maximum[] =
    "HloModule maximum\n" BATCH_ADD BATCH_MAXIMUM
    "ENTRY step {\n" BATCH_INPUTS BATCH_LAYER("y", "x", "w") BATCH_GRADIENT(
        "g", "x", "y") "  updated = f32[6,8] add(w, g) low = f32[] constant(-inf)\n"
                       "  top = f32[8] reduce(y, low), dimensions={0}, to_apply=max top_negative = f32[8] "
                       "negate(top)\n" BATCH_LOSS(
                           "y") "  ROOT r = (f32[6,8], f32[], f32[8]) tuple(updated, loss, top_negative) }\n";

/* Bits by counters, over rows and over all elements, and a key; and of a merged dimension. */
static const char batch_counters[] =
    "HloModule counters\n" BATCH_ADD "ENTRY step {\n" BATCH_INPUTS
    "  key = s32[] parameter(2) rows = s32[8,6] iota(), iota_dimension=0 flat = s32[48] iota(), "
    "iota_dimension=0\n"
    "  all = s32[8,6] reshape(flat) keys = s32[8,6] broadcast(key), dimensions={}\n"
    "  seven = s32[] constant(7) sevens = s32[8,6] broadcast(seven), dimensions={}\n"
    "  product = s32[8,6] multiply(rows, sevens) sum = s32[8,6] add(product, all) keyed = s32[8,6] add(sum, "
    "keys)\n"
    "  two = s32[] constant(5) twos = s32[8,6] broadcast(two), dimensions={} bits = s32[8,6] and(keyed, "
    "twos)\n"
    "  kept = f32[8,6] convert(bits) dropped = f32[8,6] multiply(x, kept)\n" BATCH_LAYER("y", "dropped", "w")
        BATCH_GRADIENT("g", "dropped", "y") "  updated = f32[6,8] add(w, g)\n" BATCH_LOSS(
            "y") "  merged = f32[48] reshape(dropped) ROOT r = (f32[6,8], f32[], f32[48]) tuple(updated, "
                 "loss, merged) }\n";

static const char batch_per_example[] =
    "HloModule examples\n" BATCH_ADD "ENTRY step {\n" BATCH_INPUTS BATCH_LAYER("y", "x", "w")
        BATCH_GRADIENT("g", "x", "y") "  updated = f32[6,8] add(w, g)\n" BATCH_LOSS(
            "y") "  losses = f32[8] reduce(y, nothing), dimensions={1}, to_apply=add\n"
                 "  turned = f32[8,8] transpose(y), dimensions={1,0} flat = f32[64] reshape(y)\n"
                 "  ROOT r = (f32[6,8], f32[], f32[8], f32[8,8], f32[64]) tuple(updated, loss, losses, "
                 "turned, flat) }\n";

/* One table looks words up and scores them. */
static const char batch_embedding[] =
    "HloModule tied\n" BATCH_ADD
    "ENTRY step { t_given = f32[10,4] parameter(0) words = s32[8,3] parameter(1)\n" BATCH_START BATCH_WHOLE(
        "t",
        "f32[10,4]") "  rows = f32[8,3,4] gather(t, words), offset_dims={2}, collapsed_slice_dims={0}, "
                     "start_index_map={0}, "
                     "index_vector_dim=2, slice_sizes={1,4}\n"
                     "  h = f32[8,4] reduce(rows, nothing), dimensions={1}, to_apply=add\n"
                     "  scores = f32[8,10] dot(h, t), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
                     "  y = f32[8,10] clamp(least, scores, most)\n"
                     "  to_table = f32[10,4] dot(y, h), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
                     "  to_h = f32[8,4] dot(y, t), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                     "  to_rows = f32[8,3,4] broadcast(to_h), dimensions={0,2}\n"
                     "  empty = f32[10,4] broadcast(nothing), dimensions={}\n"
                     "  found = f32[10,4] scatter(empty, words, to_rows), update_window_dims={2}, "
                     "inserted_window_dims={0}, "
                     "scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=add\n"
                     "  g = f32[10,4] add(to_table, found) updated = f32[10,4] add(t, g)\n"
                     "  loss = f32[] reduce(y, nothing), dimensions={0,1}, to_apply=add\n"
                     "  ROOT r = (f32[10,4], f32[]) tuple(updated, loss) }\n";

/* Rows of the products are positions, and examples within them, as in PyTorch's attention. Each example is
 * compared over its positions. */
static const char batch_positions[] =
    "HloModule positions\n" BATCH_ADD BATCH_MAXIMUM "ENTRY step {\n"
    "  t_given = f32[10,6] parameter(0) w_given = f32[6,8] parameter(1) words = s32[8,4] "
    "parameter(2)\n" BATCH_START BATCH_WHOLE("t", "f32[10,6]") BATCH_WHOLE(
        "w",
        "f32[6,8]") "  found = f32[8,4,6] gather(t, words), offset_dims={2}, collapsed_slice_dims={0}, "
                    "start_index_map={0}, "
                    "index_vector_dim=2, slice_sizes={1,6}\n"
                    "  turned = f32[4,8,6] transpose(found), dimensions={1,0,2} rows = f32[32,6] "
                    "reshape(turned)\n"
                    "  product = f32[32,8] dot(rows, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
                    "  apart = f32[4,8,8] reshape(product) low = f32[] constant(-inf)\n"
                    "  top = f32[8,8] reduce(apart, low), dimensions={0}, to_apply=max\n"
                    "  tops = f32[4,8,8] broadcast(top), dimensions={1,2} below = f32[4,8,8] subtract(apart, "
                    "tops)\n"
                    "  y = f32[4,8,8] clamp(least, below, most) back = f32[32,8] reshape(y)\n"
                    "  g = f32[6,8] dot(rows, back), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
                    "  to_rows = f32[32,6] dot(back, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
                    "  to_turned = f32[4,8,6] reshape(to_rows) to_found = f32[8,4,6] transpose(to_turned), "
                    "dimensions={1,0,2}\n"
                    "  empty = f32[10,6] broadcast(nothing), dimensions={}\n"
                    "  d = f32[10,6] scatter(empty, words, to_found), update_window_dims={2}, "
                    "inserted_window_dims={0}, "
                    "scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=add\n"
                    "  next_t = f32[10,6] add(t, d) next_w = f32[6,8] add(w, g)\n"
                    "  loss = f32[] reduce(y, nothing), dimensions={0,1,2}, to_apply=add\n"
                    "  ROOT r = (f32[10,6], f32[6,8], f32[]) tuple(next_t, next_w, loss) }\n";

/* A first pass over the batch finds the weights of a second. */
static const char batch_two_passes[] =
    "HloModule passes\n" BATCH_ADD "ENTRY step {\n" BATCH_INPUTS BATCH_LAYER("y", "x", "w") BATCH_GRADIENT(
        "g", "x",
        "y") "  moved = f32[6,8] add(w, g) v = f32[6,8] clamp(least, moved, most)\n" BATCH_LAYER("z", "x",
                                                                                                 "v")
        BATCH_GRADIENT("d", "x", "z") "  updated = f32[6,8] add(w, d)\n" BATCH_LOSS(
            "z") "  ROOT r = (f32[6,8], f32[]) tuple(updated, loss) }\n";

/* An operator on all examples may run after the micro-batches. */
static const char batch_sorted[] =
    "HloModule sorted\n" BATCH_ADD BATCH_LESS "ENTRY step {\n" BATCH_INPUTS BATCH_LAYER("y", "x", "w")
        BATCH_GRADIENT("g", "x", "y") "  updated = f32[6,8] add(w, g)\n" BATCH_LOSS(
            "y") "  losses = f32[8] reduce(y, nothing), dimensions={1}, to_apply=add\n"
                 "  ranked = f32[8] sort(losses), dimensions={0}, to_apply=less\n"
                 "  ROOT r = (f32[6,8], f32[], f32[8]) tuple(updated, loss, ranked) }\n";

/* The gradient of an example needs the order of its numbers, one of two results of a sort in the forward
 * pass, and a sum over all examples of products with the other one, as the balance of experts does. */
static const char batch_balanced[] =
    "HloModule balanced\n" BATCH_ADD "pairs { a = f32[] parameter(0) b = f32[] parameter(1)\n"
    "  i = s32[] parameter(2) j = s32[] parameter(3) ROOT c = pred[] compare(a, b), direction=LT }\n"
    "ENTRY step {\n" BATCH_INPUTS BATCH_LAYER(
        "y", "x",
        "w") "  place = s32[8,8] iota(), iota_dimension=1\n"
             "  both = (f32[8,8], s32[8,8]) sort(y, place), dimensions={1}, is_stable=true, to_apply=pairs\n"
             "  ranked = f32[8,8] get-tuple-element(both), index=0\n"
             "  order = s32[8,8] get-tuple-element(both), index=1\n"
             "  moved = f32[8] dot(ranked, y), lhs_batch_dims={0}, lhs_contracting_dims={1}, "
             "rhs_batch_dims={0}, rhs_contracting_dims={1}\n"
             "  balance = f32[] reduce(moved, nothing), dimensions={0}, to_apply=add\n"
             "  squares = f32[] multiply(balance, balance)\n" BATCH_LOSS(
                 "y") "  total = f32[] add(loss, squares) places = f32[8,8] convert(order)\n"
                      "  weight = f32[8,8] broadcast(balance), dimensions={} d = f32[8,8] multiply(places, "
                      "weight)\n" BATCH_GRADIENT(
                          "g", "x", "d") "  updated = f32[6,8] subtract(w, g)\n"
                                         "  ROOT r = (f32[6,8], f32[]) tuple(updated, total) }\n";

/* Two parts of four examples each, added up: example by example of a part. */
static const char batch_regrouped[] =
    "HloModule regrouped\n" BATCH_ADD "ENTRY step {\n" BATCH_INPUTS "  parts = f32[2,4,6] reshape(x)\n"
    "  pairs = f32[4,6] reduce(parts, nothing), dimensions={0}, to_apply=add\n"
    "  product = f32[4,8] dot(pairs, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
    "  y = f32[4,8] clamp(least, product, most)\n"
    "  g = f32[6,8] dot(pairs, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
    "  updated = f32[6,8] add(w, g)\n" BATCH_LOSS(
        "y") "  ROOT r = (f32[6,8], f32[]) tuple(updated, loss) }\n";

/* A conditional takes the finished gradient and the activations of all examples, and gives both. */
static const char batch_branches[] =
    "HloModule branches\n" BATCH_ADD
    "kept { p = (f32[6,8], f32[8,8]) parameter(0) g = f32[6,8] get-tuple-element(p), index=0\n"
    "  y = f32[8,8] get-tuple-element(p), index=1 ROOT r = (f32[6,8], f32[8,8]) tuple(g, y) }\n"
    "turned { p = (f32[6,8], f32[8,8]) parameter(0) g = f32[6,8] get-tuple-element(p), index=0\n"
    "  y = f32[8,8] get-tuple-element(p), index=1 h = f32[6,8] negate(g) z = f32[8,8] negate(y)\n"
    "  ROOT r = (f32[6,8], f32[8,8]) tuple(h, z) }\n"
    "ENTRY step {\n" BATCH_INPUTS BATCH_LAYER("y", "x", "w") BATCH_GRADIENT("g", "x", "y") BATCH_LOSS(
        "y") "  falls = pred[] compare(loss, nothing), direction=LT\n"
             "  both = (f32[6,8], f32[8,8]) tuple(g, y)\n"
             "  chosen = (f32[6,8], f32[8,8]) conditional(falls, both, both), true_computation=kept, "
             "false_computation=turned\n"
             "  move = f32[6,8] get-tuple-element(chosen), index=0 seen = f32[8,8] "
             "get-tuple-element(chosen), "
             "index=1\n"
             "  updated = f32[6,8] add(w, move) ROOT r = (f32[6,8], f32[], f32[8,8]) tuple(updated, loss, "
             "seen) "
             "}\n";

/* Every example is compared with the one of its rank. */
static const char batch_ranked[] =
    "HloModule ranked\n" BATCH_ADD BATCH_LESS "ENTRY step {\n" BATCH_INPUTS BATCH_LAYER(
        "y", "x",
        "w") "  losses = f32[8] reduce(y, nothing), dimensions={1}, to_apply=add\n"
             "  ranked = f32[8] sort(losses), dimensions={0}, to_apply=less, "
             "metadata={op_name=\"model/rank\" "
             "source_file=\"net.py\" source_line=9}\n"
             "  wide = f32[8,8] broadcast(ranked), dimensions={0} apart = f32[8,8] subtract(y, "
             "wide)\n" BATCH_GRADIENT("g", "x", "apart") "  updated = f32[6,8] add(w, g)\n" BATCH_LOSS(
                 "apart") "  ROOT r = (f32[6,8], f32[]) tuple(updated, loss) }\n";

/* Examples less their mean, with a running mean. They come in four equal copies, so
 * that two or four micro-batches have one mean. */
static const char batch_normalized[] =
    "HloModule normalized\n" BATCH_ADD "ENTRY step {\n"
    "  w_given = f32[6,8] parameter(0) own = f32[8,6] parameter(1) base_given = f32[2,6] parameter(2)\n"
    "  running = f32[8] parameter(3) gamma = f32[8] parameter(4)\n" BATCH_START BATCH_WHOLE("w", "f32[6,8]")
        BATCH_WHOLE(
            "base",
            "f32[2,6]") "  copies = f32[2,4,6] broadcast(base), dimensions={0,2} rows = f32[8,6] "
                        "reshape(copies)\n"
                        "  zeros = f32[8,6] broadcast(nothing), dimensions={} no = f32[8,6] multiply(own, "
                        "zeros)\n"
                        "  x = f32[8,6] add(rows, no)\n" BATCH_LAYER(
                            "y", "x",
                            "w") "  sum = f32[8] reduce(y, nothing), dimensions={0}, to_apply=add, "
                                 "metadata={op_name=\"model/mean\" "
                                 "source_file=\"net.py\" source_line=7}\n"
                                 "  eighth = f32[] constant(0.125) eighths = f32[8] broadcast(eighth), "
                                 "dimensions={}\n"
                                 "  mean = f32[8] multiply(sum, eighths) means = f32[8,8] broadcast(mean), "
                                 "dimensions={1}\n"
                                 "  centered = f32[8,8] subtract(y, means)\n"
                                 "  gammas = f32[8,8] broadcast(gamma), dimensions={1} out = f32[8,8] "
                                 "multiply(centered, gammas)\n" BATCH_LOSS("out") BATCH_GRADIENT(
                                     "g", "x", "gammas") "  updated = f32[6,8] add(w, g)\n"
                                                         "  next_running = f32[8] add(running, mean)\n"
                                                         "  grown = f32[8] reduce(centered, nothing), "
                                                         "dimensions={0}, to_apply=add\n"
                                                         "  next_gamma = f32[8] add(gamma, grown)\n"
                                                         "  ROOT r = (f32[6,8], f32[], f32[8], f32[8]) "
                                                         "tuple(updated, loss, next_running, next_gamma) }\n";

#endif
