/* Cases in files: modules and the expected text of their simplification, roles, rules, assignments and
 * programs.
 *
 * README.md beside this file describes the format. With AUTOMAP_UPDATE=1 in the environment the
 * expected texts are replaced by the present ones, to be reviewed as changes of the files.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/file.h"
#include "ir/analysis/roles.h"
#include "ir/canonical/canonical.h"
#include "lowering/spmd/lower.h"
#include "tests/support/pin_case.h"

enum { MOST_SPLITS = 8 };

typedef struct Case {
    const char *name, *mesh;
    const char *attributes;          /* of the module */
    const char *splits[MOST_SPLITS]; /* PATTERN=SHARDING */
    int32_t split_count;
    int64_t device;
} Case;

/* Sets `actual` to the present text of a case, without a last newline; `module`: its HLO text. */
typedef void PrintCase(Text *actual, const Case *self, const char *module);

static void require(AmStatus status, const AmError *error, const Case *self, const char *module) {
    if (status != AM_OK)
        fail_msg("%s: line %d: %s\n%s\nin\n%s", self->name, (int)error->line, error->text, error->excerpt,
                 module);
}

static void open_case(IrModule **read, IrModule **canonical, const Case *self, const char *module) {
    AmError error = {0};
    require(ir_read_bytes(read, "case", module, (int64_t)strlen(module), &error), &error, self, module);
    require(ir_canonicalize(canonical, *read, &error), &error, self, module);
}

/* "NAME: instruction(operands) ..." of each computation of the canonical module, the root with a star. */
static void print_simplified(Text *actual, const Case *self, const char *module) {
    IrModule *read, *canonical;
    open_case(&read, &canonical, self, module);
    for (int32_t c = 0; c < canonical->computation_count; c++) {
        const IrComputation *body = &canonical->computations[c];
        text_append(actual, "%s%s:", c > 0 ? "\n" : "", body->name);
        for (int32_t i = body->first; i < body->first + body->count; i++) {
            const IrInstruction *instruction = &canonical->instructions[i];
            text_append(actual, " %s%s(", instruction->name, i == body->root ? "*" : "");
            for (int32_t k = 0; k < instruction->operand_count; k++)
                text_append(actual, "%s%s", k ? " " : "",
                            canonical->instructions[instruction->operands[k]].name);
            text_append_string(actual, ")");
        }
    }
    ir_module_free(canonical);
    ir_module_free(read);
}

/* Warnings, the loss, the role and pair of each parameter, and the instructions of each phase. */
static void print_roles(Text *actual, const Case *self, const char *module) {
    Arena arena = {0};
    IrModule *read, *canonical;
    IrRoles *roles;
    AmError error = {0};
    open_case(&read, &canonical, self, module);
    require(ir_find_roles(&roles, &arena, canonical, NULL, &error), &error, self, module);
    for (int32_t k = 0; k < canonical->warnings.count; k++)
        text_append(actual, "warning: %s\n", canonical->warnings.texts[k]);
    if (roles->loss < 0) text_append(actual, "no loss among %d outputs", roles->output_count);
    else text_append(actual, "loss: output %d of %d", roles->loss, roles->output_count);
    for (int32_t p = 0; p < roles->parameter_count; p++) {
        const IrParameter *parameter = &roles->parameters[p];
        text_append(actual, "\n%s: %s", parameter->path, ir_role_name(parameter->role));
        if (parameter->output >= 0)
            text_append(actual, ", next in output %d by %s", parameter->output, parameter->paired_by);
    }
    for (int32_t phase = 0; phase <= IR_PHASE_OTHER; phase++) {
        bool any = false;
        for (int32_t i = 0; i < canonical->instruction_count; i++) {
            if (roles->phases[i] != (IrPhase)phase) continue;
            if (!any) text_append(actual, "\n%s:", ir_phase_name((IrPhase)phase));
            text_append(actual, " %s", canonical->instructions[i].name);
            any = true;
        }
    }
    ir_module_free(canonical);
    ir_module_free(read);
    arena_free(&arena);
}

/* The dimension classes: size, tie, their dimensions "x.0" and their factors "dot.0". */
static void print_classes(Text *actual, const Case *self, const char *module) {
    PlanContext *context;
    AmError error = {0};
    require(plan_context_parse(&context, "case", module, (int64_t)strlen(module), &error), &error, self,
            module);
    const Classes *classes = context->classes;
    const IrInstruction *instructions = context->canonical->instructions;
    for (int32_t c = 0; c < classes->count; c++) {
        text_append(actual, "%ssize %lld, tie %d:", c > 0 ? "\n" : "", (long long)classes->classes[c].size,
                    classes->classes[c].tie);
        for (int32_t i = 0; i < context->rules->count; i++)
            for (int32_t n = classes->first_node[i]; n < classes->first_node[i + 1]; n++)
                if (classes->class_of[n] == c)
                    text_append(actual, " %s.%d", instructions[i].name, n - classes->first_node[i]);
        text_append_string(actual, "; factors");
        for (int32_t i = 0; i < context->rules->count; i++)
            for (int32_t f = classes->first_factor[i]; f < classes->first_factor[i + 1]; f++)
                if (classes->class_of_factor[f] == c)
                    text_append(actual, " %s.%d", instructions[i].name, f - classes->first_factor[i]);
    }
    plan_context_free(context);
}

/* The rule of the root. */
static void print_rule(Text *actual, const Case *self, const char *module) {
    Arena arena = {0};
    IrModule *read, *canonical;
    Rules *rules;
    AmError error = {0};
    open_case(&read, &canonical, self, module);
    require(rules_build(&rules, &arena, canonical, &error), &error, self, module);
    rule_print(actual, &rules->rules[canonical->computations[canonical->entry].root]);
    ir_module_free(canonical);
    ir_module_free(read);
    arena_free(&arena);
}

static PlanContext *assign(Assignment **assignment, PlanStage *stage, Arena *arena, const Case *self,
                           const char *module) {
    PlanContext *context;
    AmError error = {0};
    PropagationPin pins[MOST_SPLITS];
    if (!self->mesh) fail_msg("%s: no @mesh", self->name);
    require(plan_context_parse(&context, "case", module, (int64_t)strlen(module), &error), &error, self,
            module);
    require(mesh_parse(&stage->mesh, arena, self->mesh, &error), &error, self, module);
    for (int32_t k = 0; k < self->split_count; k++)
        require(propagation_parse_pin(&pins[k], arena, self->splits[k], &error), &error, self, module);
    require(pin_stage(stage, arena, context, pins, self->split_count, &error), &error, self, module);
    require(plan_assign(assignment, arena, context, stage, &error), &error, self, module);
    return context;
}

/* The stored state of every instruction of the entry, and the axes on which its partial sum is left to a
 * user. */
static void print_assignment(Text *actual, const Case *self, const char *module) {
    Arena arena = {0};
    PlanStage stage = {0};
    Assignment *assignment;
    PlanContext *context = assign(&assignment, &stage, &arena, self, module);
    const IrComputation *entry = &context->canonical->computations[context->canonical->entry];
    for (int32_t i = entry->first; i < entry->first + entry->count; i++) {
        if (!assignment->live[i]) continue;
        text_append(actual, "%s%s: ", actual->length > 0 ? "\n" : "",
                    context->canonical->instructions[i].name);
        if (context->rules->on_demand[i]) text_append_string(actual, "on demand");
        else sbp_print(actual, &stage.mesh, assignment->stored[i]);
        for (int32_t axis = 0; axis < stage.mesh.axis_count; axis++)
            if (assignment->deferred[i] >> axis & 1)
                text_append(actual, ", partial on %s", stage.mesh.axes[axis].name);
    }
    plan_context_free(context);
    arena_free(&arena);
}

/* The program of one device. */
static void print_program(Text *actual, const Case *self, const char *module) {
    Arena arena = {0};
    PlanStage stage = {0};
    Assignment *assignment;
    Program *program;
    AmError error = {0};
    PlanContext *context = assign(&assignment, &stage, &arena, self, module);
    require(plan_lower(&program, &arena, context, assignment, (int32_t)self->device, &error), &error, self,
            module);
    program_print(actual, program);
    while (actual->length > 0 && actual->data[actual->length - 1] == '\n')
        actual->data[--actual->length] = '\0';
    plan_context_free(context);
    arena_free(&arena);
}

static bool begins(const char *line, const char *with) {
    return strncmp(line, with, strlen(with)) == 0;
}

/* Returns whether a line such as "add_up {" begins a computation. */
static bool opens_computation(const char *line) {
    size_t length = strlen(line);
    return length > 2 && strcmp(line + length - 2, " {") == 0 && !strchr(line, '=');
}

/* Takes a setting of a case, "@mesh data=4". */
static void take_setting(Case *self, const char *line) {
    if (begins(line, "@mesh ")) self->mesh = line + 6;
    else if (begins(line, "@module ")) self->attributes = line + 8;
    else if (begins(line, "@device ")) self->device = strtoll(line + 8, NULL, 10);
    else if (begins(line, "@split ") && self->split_count < MOST_SPLITS)
        self->splits[self->split_count++] = line + 7;
    else
        fail_msg("%s: %s: expected @module, @mesh, @device or at most %d @split", self->name, line,
                 MOST_SPLITS);
}

/* Runs the cases of a file; `updated` becomes the file with the present texts. Returns how many differ. */
static int32_t run_file(Text *updated, int32_t *count, char *file, const char *path, PrintCase *print) {
    enum { PRELUDE, ENTRY, BODY, EXPECTED } part = PRELUDE;
    Text prelude = {0}, entry = {0}, computations = {0}, body = {0}, expected = {0}, actual = {0};
    bool in_computation = false;
    Case self = {0};
    int32_t line_number = 0, first_line = 0, different = 0;
    for (char *line = file, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        line_number++;
        bool is_end = !next, is_case = begins(line, "=== ");
        if (part == EXPECTED && (is_case || is_end)) {
            Text module = {0};
            while (expected.length > 0 && expected.data[expected.length - 1] == '\n')
                expected.data[--expected.length] = '\0';
            text_append(&module, "HloModule case%s%s\n%s%sENTRY main {\n%s%s}\n", self.attributes ? ", " : "",
                        self.attributes ? self.attributes : "", prelude.data ? prelude.data : "",
                        computations.data ? computations.data : "", entry.data ? entry.data : "", body.data);
            print(&actual, &self, module.data);
            if (strcmp(actual.data, expected.data ? expected.data : "") != 0) {
                print_error("%s:%d: %s\n     got %s\nexpected %s\n", path, first_line, self.name, actual.data,
                            expected.data ? expected.data : "");
                different++;
            }
            (*count)++;
            text_append(updated, "%s\n", actual.data);
            if (is_case) text_append_string(updated, "\n");
            text_free(&module);
            text_free(&actual);
            text_free(&expected);
            text_free(&body);
            text_free(&computations);
        }
        if (is_case) {
            self = (Case){.name = line + 4};
            first_line = line_number;
            part = BODY;
        }
        if (part != EXPECTED && !(is_end && !*line)) text_append(updated, "%s\n", line);
        if (part == BODY && strcmp(line, "---") == 0) part = EXPECTED;
        else if (part == PRELUDE && strcmp(line, "@entry") == 0) part = ENTRY;
        else if (part == BODY && *line == '@') take_setting(&self, line);
        else if (part == BODY && (in_computation || opens_computation(line))) {
            in_computation = strcmp(line, "}") != 0;
            text_append(&computations, "%s\n", line);
        } else if (!is_case && *line != '#')
            text_append(part == PRELUDE ? &prelude
                        : part == ENTRY ? &entry
                        : part == BODY  ? &body
                                        : &expected,
                        "%s\n", line);
    }
    text_free(&prelude);
    text_free(&entry);
    text_free(&body);
    text_free(&expected);
    return different;
}

static void run_folder(const char *folder, PrintCase *print) {
    bool updates = getenv("AUTOMAP_UPDATE") != NULL;
    char pattern[512];
    glob_t found;
    int32_t count = 0, different = 0;
    snprintf(pattern, sizeof pattern, SOURCE_DIR "/tests/cases/%s/*.cases", folder);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    for (size_t k = 0; k < found.gl_pathc; k++) {
        FileBytes bytes;
        Text updated = {0};
        AmError error = {0};
        if (file_read(&bytes, found.gl_pathv[k], &error) != AM_OK) fail_msg("%s", error.text);
        char *file = calloc((size_t)bytes.length + 1, 1);
        assert_non_null(file);
        memcpy(file, bytes.data, (size_t)bytes.length);
        file_release(&bytes);
        int32_t changed = run_file(&updated, &count, file, found.gl_pathv[k], print);
        if (updates && changed > 0)
            assert_int_equal(file_write(found.gl_pathv[k], updated.data, updated.length, &error), AM_OK);
        different += changed;
        text_free(&updated);
        free(file);
    }
    globfree(&found);
    print_message("%s: %d cases\n", folder, count);
    assert_true(count > 0);
    if (!updates) assert_int_equal(different, 0);
}

static void test_simplification(void **state) {
    (void)state;
    run_folder("simplify", print_simplified);
}

static void test_roles(void **state) {
    (void)state;
    run_folder("roles", print_roles);
}

static void test_rules(void **state) {
    (void)state;
    run_folder("rules", print_rule);
}

static void test_classes(void **state) {
    (void)state;
    run_folder("classes", print_classes);
}

static void test_assignments(void **state) {
    (void)state;
    run_folder("assignment", print_assignment);
}

static void test_programs(void **state) {
    (void)state;
    run_folder("lowering", print_program);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simplification), cmocka_unit_test(test_roles),
        cmocka_unit_test(test_rules),          cmocka_unit_test(test_classes),
        cmocka_unit_test(test_assignments),    cmocka_unit_test(test_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
