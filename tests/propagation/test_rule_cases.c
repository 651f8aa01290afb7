/* Every opcode that has a rule, in every assignment of states that the rule allows.
 *
 * For each module of rule_cases.h, each of several sizes and meshes, with equal and
 * unequal shares, every choice is a variable: per axis the factor of each operator and
 * the state in which each tensor is stored. All combinations are tried where there are
 * few, else a fixed sample: the plan is completed, lowered for every device and run, and
 * every rank's results must be those of one device, bit by bit.
 *
 * AUTOMAP_FULL: 60 combinations of each module, size and mesh or all there are, 240 of a module and
 * mesh; AUTOMAP_CASE=TEXT: only modules whose name holds the text. */
/* cost: 74 seconds */
#include "propagation/rules/rules.h"
#include "tests/support/carrier_cases.h"
#include "tests/support/plan_case.h"
#include "tests/support/rule_cases.h"
#include "tests/support/sample.h"

enum { MOST_VARIABLES = 256, MOST_OPTIONS = 16, MOST_OVERRIDES = 64, DRAWS_FOR_ONE = 30 };

static const struct {
    const char *mesh;
    double shares[2][8]; /* [axis][part]; 0: equal */
} meshes[] = {
    {"x=2", {{0}}},
    {"x=3", {{0}}},
    {"x=4", {{0}}},
    {"x=8", {{0}}},
    {"x=2,y=2", {{0}}},
    {"x=2,y=3", {{0}}},
    {"x=2,y=2,z=2", {{0}}},
    {"x=2", {{0.6, 0.4}}},
    {"x=3", {{0.5, 0.2, 0.3}}},
    {"x=4", {{0.4, 0.1, 0.2, 0.3}}},
    {"x=2,y=2", {{0.75, 0.25}, {0}}},
    {"x=2,y=3", {{0}, {0.25, 0.5, 0.25}}},
};
enum { MESH_COUNT = sizeof meshes / sizeof *meshes, EQUAL_MESHES = 7 };

/* a, b, c and d: sizes divisible on most meshes, on few, and smaller than the mesh. */
static const int64_t sizes[][4] = {{24, 12, 4, 8}, {6, 8, 12, 4}, {7, 10, 5, 9}, {3, 6, 2, 5}};
enum { SIZE_COUNT = sizeof sizes / sizeof *sizes };

/* One choice of a plan: an axis's effect on an instruction. */
typedef enum VariableKind { VARIABLE_FACTOR, VARIABLE_STATE, VARIABLE_SILENT } VariableKind;

typedef struct Variable {
    VariableKind kind;
    int32_t instruction, axis, option_count;
    int32_t options[MOST_OPTIONS];
    int32_t partial; /* the option with which partial values arise and go on */
} Variable;

typedef struct CaseSizes {
    Variable variables[MOST_VARIABLES];
    int32_t count, chosen[MOST_VARIABLES];
    double combinations;
} CaseSizes;

typedef struct Totals {
    int64_t cases, refused, wrong, carried; /* carried: partial values used without a reduction */
    Random random;
    bool prefers_partial;
    char last_wrong[160]; /* the module and mesh that failed last */
} Totals;

/* Opcodes with a factor that some plan split. */
static bool is_covered[IR_OPCODE_COUNT + 1];

static void add_option(Variable *variable, int32_t option) {
    if (variable->option_count < MOST_OPTIONS) variable->options[variable->option_count++] = option;
}

static void add_variable(CaseSizes *self, const Variable *variable) {
    if (variable->option_count < 2) return;
    assert_true(self->count < MOST_VARIABLES);
    self->variables[self->count++] = *variable;
    self->combinations *= variable->option_count;
}

/* Returns whether an operand is made by an operator. */
static bool takes_a_result(const PlanContext *context, int32_t i) {
    const SplitOptions *split_options = context->split_options;
    for (int32_t k = split_options->first_operand[i]; k < split_options->first_operand[i + 1]; k++) {
        int32_t source = split_options->operands[k];
        if (!context->rules->on_demand[source] && context->rules->rules[source].operand_count > 0)
            return true;
    }
    return false;
}

/* All choices of a mesh. An operator's split may also be left to the axis priorities, which are empty:
 * partial values may then pass through it. */
static void find_variables(CaseSizes *self, const PlanContext *context, const Mesh *mesh) {
    const SplitOptions *split_options = context->split_options;
    *self = (CaseSizes){.combinations = 1};
    for (int32_t k = 0; k < split_options->decided_count; k++) {
        int32_t i = split_options->decided[k];
        const FactorRule *rule = &context->rules->rules[i];
        const IrShape *shape = split_options_array_shape(&context->canonical->instructions[i]);
        bool is_operator = rule->operand_count > 0 && rule->result_count > 0;
        bool is_carrier =
            is_operator && split_options->linearity[i] != LINEARITY_NONE && takes_a_result(context, i);
        for (int32_t axis = 0; axis < mesh->axis_count; axis++) {
            Variable factor = {.kind = VARIABLE_FACTOR, .instruction = i, .axis = axis};
            Variable state = {.kind = VARIABLE_STATE, .instruction = i, .axis = axis};
            add_option(&factor, -1);
            add_option(&state, -1);
            for (int32_t f = 0; is_operator && f < rule->factor_count; f++)
                if (factor_may_split(&rule->factors[f])) {
                    add_option(&factor, f);
                    if (rule->factors[f].kind == FACTOR_REDUCTION) factor.partial = factor.option_count - 1;
                }
            if (factor.option_count > 1) is_covered[context->canonical->instructions[i].opcode] = true;
            for (int32_t d = 0; shape->type != DTYPE_TUPLE && d < shape->rank; d++)
                if (shape->dimensions[d] > 1) add_option(&state, d);
            if (is_carrier) state.partial = state.option_count - 1;
            add_variable(self, &factor);
            add_variable(self, &state);
        }
        if (is_carrier) {
            Variable silent = {.kind = VARIABLE_SILENT,
                               .instruction = i,
                               .option_count = 2,
                               .options = {0, 1},
                               .partial = 1};
            add_variable(self, &silent);
        }
    }
}

static PlanOverride *override_of(PlanStage *stage, int32_t instruction) {
    for (int32_t k = 0; k < stage->override_count; k++)
        if (stage->overrides[k].instruction == instruction) return &stage->overrides[k];
    assert_true(stage->override_count < MOST_OVERRIDES);
    PlanOverride *override = &stage->overrides[stage->override_count++];
    *override = (PlanOverride){.instruction = instruction, .has_factors = true, .has_states = true};
    for (int32_t axis = 0; axis < MESH_MAX_AXES; axis++) override->factors[axis] = -1;
    return override;
}

static void make_overrides(PlanStage *stage, const CaseSizes *self) {
    stage->override_count = 0;
    for (int32_t v = 0; v < self->count; v++) {
        const Variable *variable = &self->variables[v];
        int32_t option = variable->options[self->chosen[v]];
        PlanOverride *override = override_of(stage, variable->instruction);
        if (variable->kind == VARIABLE_FACTOR) override->factors[variable->axis] = option;
        if (variable->kind == VARIABLE_SILENT && self->chosen[v]) override->has_factors = false;
        if (variable->kind == VARIABLE_STATE && option >= 0)
            override->states.axis[variable->axis] = sbp_split(option);
    }
}

static void print_plan(const PlanCase *one, const PlanStage *stage, const Assignment *assignment) {
    const PlanContext *context = one->context;
    for (int32_t k = 0; k < stage->override_count; k++) {
        const PlanOverride *override = &stage->overrides[k];
        Text text = {0};
        const IrInstruction *instruction = &context->canonical->instructions[override->instruction];
        text_append(&text, "  %s = %s ", instruction->name, ir_opcode_name(instruction->opcode));
        rule_print(&text, &context->rules->rules[override->instruction]);
        text_append_string(&text, "  factors");
        for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
            text_append(&text, " %d", override->factors[axis]);
        text_append_string(&text, "  stored ");
        sbp_print(&text, &stage->mesh, override->states);
        printf("%s\n", text.data);
        text_free(&text);
    }
    Arena arena = {0};
    Program *program;
    AmError error = {0};
    if (assignment && plan_lower(&program, &arena, context, assignment, 0, &error) == AM_OK) {
        Text text = {0};
        program_print(&text, program);
        printf("%s\n", text.data);
        text_free(&text);
    }
    arena_free(&arena);
}

/* Returns whether the stage follows the request; loops align the states of their carried values,
 * and operators that carry partial sums split nothing. */
static bool is_obeyed(const PlanContext *context, const PlanStage *stage, const Assignment *assignment) {
    for (int32_t k = 0; k < stage->override_count && context->rules->loop_count == 0; k++) {
        const PlanOverride *override = &stage->overrides[k];
        int32_t i = override->instruction;
        for (int32_t axis = 0; axis < stage->mesh.axis_count; axis++)
            if (assignment->stored[i].axis[axis] != override->states.axis[axis] ||
                (override->has_factors &&
                 assignment->factor[i * MESH_MAX_AXES + axis] != override->factors[axis]))
                return false;
    }
    return true;
}

/* One plan: false, it was refused. */
static bool run_plan(const PlanCase *one, const PlanRanks *ranks, const PlanStage *stage, const char *name,
                     Totals *totals) {
    Arena arena = {0};
    AmError error = {0};
    Assignment *assignment = NULL;
    AmStatus status = plan_assign(&assignment, &arena, one->context, stage, &error);
    bool refused = status == AM_ERROR_INPUT;
    if (status == AM_OK && !is_obeyed(one->context, stage, assignment))
        status = am_fail(&error, AM_ERROR_INTERNAL, "", "the plan says otherwise");
    if (status == AM_OK) status = plan_case_run(one, ranks, assignment, &error);
    if (!refused && status != AM_OK) {
        if (totals->wrong++ == 0 || strcmp(totals->last_wrong, name) != 0) { /* the first of each */
            snprintf(totals->last_wrong, sizeof totals->last_wrong, "%s", name);
            printf("WRONG %s: %s\n", name, error.text);
            print_plan(one, stage, assignment);
        }
    }
    for (int32_t i = 0; status == AM_OK && i < one->context->rules->count; i++)
        totals->carried += assignment->carries[i] != 0;
    totals->cases += !refused;
    totals->refused += refused;
    arena_free(&arena);
    return !refused;
}

/* The next of all combinations; false after the last. */
static bool count_up(CaseSizes *self) {
    for (int32_t v = 0; v < self->count; v++) {
        if (++self->chosen[v] < self->variables[v].option_count) return true;
        self->chosen[v] = 0;
    }
    return false;
}

static void run_on_mesh(const PlanCase *one, int32_t m, int32_t limit, const char *name, Totals *totals) {
    Arena arena = {0};
    PlanOverride overrides[MOST_OVERRIDES];
    PlanStage stage = {.overrides = overrides};
    CaseSizes *assignment = malloc(sizeof *assignment);
    PlanRanks ranks;
    AmError error = {0};
    char where[160];
    if (mesh_parse(&stage.mesh, &arena, meshes[m].mesh, &error) != AM_OK) fail_msg("%s", error.text);
    for (int32_t axis = 0; axis < stage.mesh.axis_count && axis < 2; axis++)
        if (meshes[m].shares[axis][0] > 0) stage.mesh.axes[axis].shares = meshes[m].shares[axis];
    snprintf(where, sizeof where, "%s on %s%s", name, meshes[m].mesh, m >= EQUAL_MESHES ? " unequal" : "");
    plan_ranks_open(&ranks, stage.mesh.device_count);
    find_variables(assignment, one->context, &stage.mesh);
    if (assignment->combinations <= limit) {
        do {
            make_overrides(&stage, assignment);
            run_plan(one, &ranks, &stage, where, totals);
        } while (count_up(assignment));
    } else {
        int32_t done = 0;
        for (int32_t draw = 0; done < limit && draw < limit * DRAWS_FOR_ONE; draw++) {
            for (int32_t v = 0; v < assignment->count; v++) {
                const Variable *variable = &assignment->variables[v];
                assignment->chosen[v] = (int32_t)random_below(&totals->random, variable->option_count);
                if (totals->prefers_partial && random_below(&totals->random, 4) > 0)
                    assignment->chosen[v] = variable->partial;
            }
            make_overrides(&stage, assignment);
            done += run_plan(one, &ranks, &stage, where, totals);
        }
    }
    plan_ranks_close(&ranks);
    free(assignment);
    arena_free(&arena);
}

/* One module of some sizes on all meshes. */
static void run_module(const char *name, const char *entry, int32_t size, int32_t limit, Totals *totals) {
    static char text[RULE_CASE_TEXT];
    char title[128];
    PlanCase one;
    snprintf(title, sizeof title, "%s of %lld,%lld,%lld,%lld", name, (long long)sizes[size][0],
             (long long)sizes[size][1], (long long)sizes[size][2], (long long)sizes[size][3]);
    rule_case_text(text, entry, sizes[size]);
    plan_case_open(&one, title, text, (uint64_t)size + 1);
    for (int32_t m = 0; m < MESH_COUNT; m++) run_on_mesh(&one, m, limit, title, totals);
    plan_case_close(&one);
}

static void report(const char *what, const Totals *totals) {
    printf("%s: %lld cases, %lld wrong, %lld plans refused, %lld partial values passed on\n", what,
           (long long)totals->cases, (long long)totals->wrong, (long long)totals->refused,
           (long long)totals->carried);
    fflush(stdout);
}

static bool is_full(void) {
    const char *full = getenv("AUTOMAP_FULL");
    return full && strcmp(full, "1") == 0;
}

/* A name given in AUTOMAP_CASE: only the modules whose name holds it. */
static bool is_wanted(const char *name) {
    const char *only = getenv("AUTOMAP_CASE");
    return !only || strstr(name, only);
}

/* The first size of case number k: sanitized programs take this one alone. */
static int32_t first_size(int32_t k) {
    return sample_of(0, k % SIZE_COUNT);
}

static void test_operators(void **state) {
    (void)state;
    Totals totals = {0};
    random_seed(&totals.random, 6);
    for (int32_t k = 0; k < RULE_CASE_COUNT; k++) {
        if (!is_wanted(rule_cases[k].name)) continue;
        for (int32_t size = first_size(k); size < SIZE_COUNT; size += sample_of(1, SIZE_COUNT))
            run_module(rule_cases[k].name, rule_cases[k].text, size, is_full() ? 60 : 1, &totals);
    }
    report("operators", &totals);
    assert_int_equal(totals.wrong, 0);
}

static void test_elementwise_operators(void **state) {
    (void)state;
    Totals totals = {0};
    random_seed(&totals.random, 7);
    for (int32_t k = 0; k < ELEMENTWISE_CASE_COUNT + ALIKE_OPCODE_COUNT; k++) {
        char entry[1024];
        ElementwiseCase alike;
        const ElementwiseCase *one = k < ELEMENTWISE_CASE_COUNT ? &elementwise_cases[k] : &alike;
        if (one == &alike && !elementwise_case_alike(&alike, &alike_opcodes[k - ELEMENTWISE_CASE_COUNT]))
            continue;
        if (!is_wanted(one->opcode)) continue;
        elementwise_case_entry(entry, one);
        /* All have one rule: each tries one size. */
        int32_t first = is_full() ? 0 : k % SIZE_COUNT;
        for (int32_t size = first; size < SIZE_COUNT; size += is_full() ? 1 : SIZE_COUNT)
            run_module(one->opcode, entry, size, is_full() ? 20 : 1, &totals);
    }
    report("element-wise operators", &totals);
    assert_int_equal(totals.wrong, 0);
}

/* Partial values of every kind before every operator that may pass them on, and some that may not. */
static void test_partial_values(void **state) {
    (void)state;
    Totals totals = {.prefers_partial = true};
    random_seed(&totals.random, 8);
    for (int32_t p = 0; p < PRODUCER_CASE_COUNT; p++)
        for (int32_t k = 0; k < CARRIER_CASE_COUNT; k++) {
            char entry[2048], name[128];
            snprintf(name, sizeof name, "%s, %s", producer_cases[p].name, carrier_cases[k].name);
            if (!is_wanted(name) || !carrier_case_entry(entry, &producer_cases[p], &carrier_cases[k]))
                continue;
            for (int32_t size = 0; size < SIZE_COUNT; size++)
                if (is_full() || size == (p + k) % SIZE_COUNT)
                    run_module(name, entry, size, is_full() ? 20 : 1, &totals);
        }
    report("partial values", &totals);
    assert_int_equal(totals.wrong, 0);
    assert_true(totals.carried > totals.cases / 10 || getenv("AUTOMAP_CASE"));
}

/* Every opcode whose class has a rule of its own was split; but rng, which gives other numbers each time. */
static void test_coverage(void **state) {
    (void)state;
    static const struct {
        IrOpcode opcode;
        const char *rule;
    } opcodes[] = {
#define OPCODE(name, text, arity, rule, ...) {IR_##name, #rule},
#include "ir/opcodes.def"
#undef OPCODE
    };
    static const char *const without[] = {"BLOCKED", "TUPLE", "FREE", "PARAMETER", "BROADCAST", "RANDOM"};
    int32_t covered = 0, missed = 0;
    for (size_t k = 0; k < sizeof opcodes / sizeof *opcodes; k++) {
        bool has_rule = true;
        for (size_t w = 0; w < sizeof without / sizeof *without; w++)
            has_rule &= strcmp(opcodes[k].rule, without[w]) != 0;
        covered += is_covered[opcodes[k].opcode];
        if (!has_rule || is_covered[opcodes[k].opcode]) continue;
        printf("no case of %s\n", ir_opcode_name(opcodes[k].opcode));
        missed++;
    }
    printf("%d opcodes were split\n", covered);
    assert_true(missed == 0 || getenv("AUTOMAP_CASE"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operators),
        cmocka_unit_test(test_elementwise_operators),
        cmocka_unit_test(test_partial_values),
        cmocka_unit_test(test_coverage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
