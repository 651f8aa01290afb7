/* Roles, pairs, loss and phases of every committed model beside those of its exporter, and roles files.
 * tests/cases/roles/ has small modules. */
/* cost: 5 seconds */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ir/analysis/roles.h"
#include "ir/canonical/canonical.h"
#include "tests/support/sample.h"

#define MODELS SOURCE_DIR "/datasets/models"

typedef struct Case {
    IrModule *module, *canonical;
    IrRoles *roles;
    Arena arena;
    AmError error;
} Case;

/* The parts removed from a module before its analysis. */
typedef enum Stripped { NOTHING, METADATA, DONATIONS, BOTH, STRIPPED_COUNT } Stripped;

static void strip(IrModule *module, Stripped stripped) {
    if (stripped == DONATIONS || stripped == BOTH) module->alias_count = 0;
    for (int32_t i = 0; (stripped == METADATA || stripped == BOTH) && i < module->instruction_count; i++) {
        module->instructions[i].op_name = module->instructions[i].source_file = "";
        module->instructions[i].source_line = 0;
    }
}

static void open_stripped(Case *c, const char *path, Stripped stripped) {
    *c = (Case){0};
    if (ir_read(&c->module, path, &c->error) != AM_OK) fail_msg("%s: %s", path, c->error.text);
    strip(c->module, stripped);
    if (ir_canonicalize(&c->canonical, c->module, &c->error) != AM_OK)
        fail_msg("%s: %s", path, c->error.text);
}

static void open_case(Case *c, const char *path) {
    open_stripped(c, path, NOTHING);
}

static void close_case(Case *c) {
    ir_module_free(c->canonical);
    ir_module_free(c->module);
    arena_free(&c->arena);
}

static const char *model_file(const char *model, char path[512]) {
    snprintf(path, 512, MODELS "/%s/model.hlo.pb", model);
    if (access(path, R_OK) != 0) snprintf(path, 512, MODELS "/%s/model.hlo.pb.zst", model);
    return path;
}

static const char *roles_file(const char *model, char path[512]) {
    snprintf(path, 512, MODELS "/%s/model.roles.json", model);
    return path;
}

static void assert_same_phases(const char *model, const Case *c, const IrPhase *found, const IrPhase *told) {
    for (int32_t i = 0; i < c->canonical->instruction_count; i++)
        if (found[i] != told[i])
            fail_msg("%s: %s (%s): found %s, expected %s", model, c->canonical->instructions[i].name,
                     c->canonical->instructions[i].op_name, ir_phase_name(found[i]), ir_phase_name(told[i]));
}

/* Without the file and the removed parts, the analysis agrees with the exporter. */
static void check_model(const char *model, Stripped stripped) {
    char path[512];
    Case c, whole;
    IrRoles *told;
    open_stripped(&c, model_file(model, path), stripped);
    open_case(&whole, path);
    assert_int_equal(ir_find_roles(&c.roles, &c.arena, c.canonical, NULL, &c.error), AM_OK);
    if (ir_find_roles(&told, &whole.arena, whole.canonical, roles_file(model, path), &whole.error) != AM_OK)
        fail_msg("%s: %s", whole.error.source, whole.error.text);
    assert_int_equal(c.roles->loss, told->loss);
    for (int32_t p = 0; p < told->parameter_count; p++) {
        const IrParameter *found = &c.roles->parameters[p], *expected = &told->parameters[p];
        if (found->role != expected->role || found->output != expected->output)
            fail_msg("%s: %s: found %s, output %d, expected %s, output %d", model, found->path,
                     ir_role_name(found->role), found->output, ir_role_name(expected->role),
                     expected->output);
        assert_string_equal(expected->paired_by, expected->output >= 0 ? "roles file" : "");
        if (found->output >= 0 && stripped != NOTHING) assert_string_not_equal(found->paired_by, "alias");
    }
    assert_same_phases(model, &whole, c.roles->phases, told->phases);
    close_case(&c);
    close_case(&whole);
}

static bool is_product(const IrInstruction *instruction) {
    return instruction->opcode == IR_DOT || instruction->opcode == IR_CONVOLUTION;
}

/* Checks the phases implied by op_names: transposed instructions are not the optimizer's, and
 * instructions recomputed by a checkpoint are recomputed. Returns the number of recomputed
 * products. */
static int check_names(const char *model) {
    char path[512];
    Case c;
    int recomputed = 0;
    open_case(&c, model_file(model, path));
    assert_int_equal(ir_find_roles(&c.roles, &c.arena, c.canonical, NULL, &c.error), AM_OK);
    for (int32_t i = 0; i < c.canonical->instruction_count; i++) {
        const IrInstruction *instruction = &c.canonical->instructions[i];
        IrPhase phase = c.roles->phases[i];
        bool is_rematted = strstr(instruction->op_name, "rematted_computation") != NULL;
        bool is_transposed = strstr(instruction->op_name, "transpose(") != NULL;
        if (is_product(instruction)) {
            recomputed += phase == IR_PHASE_RECOMPUTED;
            if (is_rematted != (phase == IR_PHASE_RECOMPUTED) ||
                (is_transposed && !is_rematted && phase != IR_PHASE_BACKWARD))
                fail_msg("%s: %s is %s", model, instruction->op_name, ir_phase_name(phase));
        }
        if (is_transposed && (phase == IR_PHASE_OPTIMIZER || phase == IR_PHASE_FORWARD))
            fail_msg("%s: %s is %s", model, instruction->op_name, ir_phase_name(phase));
    }
    close_case(&c);
    return recomputed;
}

/* Data flow alone finds the roles that the exporter takes from the pytrees, also without op_names
 * and donations. With a single example it cannot identify the batch dimension. */
static void every_model_as_exported(void **state) {
    (void)state;
    DIR *directory = opendir(MODELS);
    assert_non_null(directory);
    int models = 0;
    for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        char path[512];
        if (entry->d_name[0] == '.' || access(roles_file(entry->d_name, path), R_OK) != 0) continue;
        if (strcmp(entry->d_name, "gpt2_batch1") == 0) continue;
        /* Reads only the hardest case of the full-size models, which are compressed. */
        bool is_large = strstr(model_file(entry->d_name, path), ".zst") != NULL;
        if (is_large && sample_of(1, 0) == 0) continue;
        for (int stripped = is_large ? BOTH : NOTHING; stripped < STRIPPED_COUNT; stripped++)
            check_model(entry->d_name, (Stripped)stripped);
        int recomputed = check_names(entry->d_name);
        assert_int_equal(recomputed > 0, strncmp(entry->d_name, "llama", 5) == 0);
        models++;
    }
    closedir(directory);
    assert_true(models >= 10);
}

/* XLA aliases donated buffers by shape; the pairs cross here, with a warning unless a roles file has them. */
static void swapped_states(void **state) {
    (void)state;
    for (int with_file = 0; with_file < 2; with_file++) {
        char path[512];
        Case c;
        open_case(&c, model_file("two_swapped", path));
        const char *roles = with_file ? roles_file("two_swapped", path) : NULL;
        assert_int_equal(ir_find_roles(&c.roles, &c.arena, c.canonical, roles, &c.error), AM_OK);
        assert_int_equal(c.roles->parameters[0].output, 1);
        assert_int_equal(c.roles->parameters[1].output, 0);
        assert_int_equal(c.roles->loss, 2);
        assert_string_equal(c.roles->parameters[0].paired_by, with_file ? "roles file" : "data flow");
        assert_int_equal(c.canonical->warnings.count, !with_file);
        if (!with_file) assert_non_null(strstr(c.canonical->warnings.texts[0], "2 donated parameters"));
        close_case(&c);
    }
}

/* Every mistake is refused with the position in the file and the expectation. */
static void bad_roles_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } files[] = {
        {"[]", "$: expected an object"},
        {"{}", "$.format: missing, expected \"automap-roles-1\""},
        {"{\"format\": \"automap-roles-2\", \"parameters\": [], \"loss\": null}", "$.format"},
        {"{\"format\": \"automap-roles-1\", \"parameters\": [], \"loss\": null}",
         "expected the module's 3 parameters"},
        {"{\"format\": \"automap-roles-1\", \"parameters\": [], \"loss\": null, \"losses\": 1}", "losses"},
        {"{\"format\": \"automap-roles-1\", \"whole_batch\": true, \"parameters\": [], \"loss\": null}",
         "$.whole_batch"},
        {"FIRST, \"role\": \"weights\", \"output\": 1}", "$.parameters[0].role"},
        {"FIRST, \"role\": \"weight\", \"output\": 3}", "$.parameters[0].output"},
        {"FIRST, \"role\": \"weight\", \"output\": 2}", "another shape"},
        {"FIRST, \"role\": \"weight\", \"output\": null}", "expected the index of an output"},
        {"FIRST, \"role\": \"data\", \"output\": 1}", "expected null"},
        {"FIRST, \"role\": \"weight\"}", "$.parameters[0].output"},
        {"FIRST, \"role\": \"weight\", \"output\": 1, \"extra\": 1}", "extra"},
        {"FIRST, \"role\": \"weight\", \"output\": 1, \"batch_dimension\": 1}",
         "for a parameter of role data only"},
        {"FIRST, \"role\": \"data\", \"output\": null, \"batch_dimension\": 2}",
         "$.parameters[0].batch_dimension"},
        {"{\"format\": \"automap-roles-1\", \"loss\": null, \"parameters\": [{\"number\": 1, \"path\": "
         "\"a\"}, 2, 3]}",
         "$.parameters[0].number"},
        {"{\"format\": \"automap-roles-1\", \"loss\": null, \"parameters\": [{\"number\": 0, \"path\": "
         "\"a\", "
         "\"role\": \"data\", \"output\": null}, 2, 3]}",
         "$.parameters[0].path"},
    };
    static const char first[] =
        "{\"format\": \"automap-roles-1\", \"loss\": null, \"parameters\": [{\"number\": 0, "
        "\"path\": \"first['kernel']\"";
    char model[512], path[64], text[512];
    Case c;
    open_case(&c, model_file("two_swapped", model));
    snprintf(path, sizeof path, "/tmp/automap_test_roles.%d.json", (int)getpid());
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        bool begins = strncmp(files[i].text, "FIRST", 5) == 0;
        if (begins) snprintf(text, sizeof text, "%s%s, 2, 3]}", first, files[i].text + 5);
        else snprintf(text, sizeof text, "%s", files[i].text);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(text, file);
        fclose(file);
        AmError error = {0};
        AmStatus status = ir_find_roles(&c.roles, &c.arena, c.canonical, path, &error);
        if (status != AM_ERROR_INPUT || !strstr(error.text, files[i].message))
            fail_msg("%s: status %d, \"%s\", expected \"%s\"", text, status, error.text, files[i].message);
    }
    remove(path);
    close_case(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_as_exported),
        cmocka_unit_test(swapped_states),
        cmocka_unit_test(bad_roles_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
