/* Shardy's attributes read as shardings over named axes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "propagation/propagate/read_sharding.h"
#include "propagation/propagate/read_shardy.h"

#define MESHES "{other = #sdy.mesh<[\"x\"=8]>, mesh = #sdy.mesh<[\"data\"=2, \"model\"=4]>}"

/* The attribute of an instruction of a module with these meshes, read. */
static AmStatus read_attribute(Hlo__OpSharding **read, Arena *arena, const char *meshes, const char *text,
                               AmError *error) {
    Hlo__FrontendAttributes__MapEntry of_module = HLO__FRONTEND_ATTRIBUTES__MAP_ENTRY__INIT;
    Hlo__FrontendAttributes__MapEntry of_value = HLO__FRONTEND_ATTRIBUTES__MAP_ENTRY__INIT;
    Hlo__FrontendAttributes__MapEntry *module_map[] = {&of_module}, *value_map[] = {&of_value};
    Hlo__FrontendAttributes module_attributes = HLO__FRONTEND_ATTRIBUTES__INIT;
    Hlo__FrontendAttributes value_attributes = HLO__FRONTEND_ATTRIBUTES__INIT;
    Hlo__HloModuleProto module = HLO__HLO_MODULE_PROTO__INIT;
    Hlo__HloInstructionProto instruction = HLO__HLO_INSTRUCTION_PROTO__INIT;
    of_module.key = (char *)"xla.sdy.meshes";
    of_module.value = (char *)meshes;
    of_value.key = (char *)"xla.sdy.sharding";
    of_value.value = (char *)text;
    module_attributes.n_map = value_attributes.n_map = 1;
    module_attributes.map = module_map;
    value_attributes.map = value_map;
    if (meshes) module.frontend_attributes = &module_attributes;
    if (text) instruction.frontend_attributes = &value_attributes;
    return shardy_read(read, arena, &module, &instruction, error);
}

static void test_states(void **state) {
    (void)state;
    static const struct {
        const char *text;
        Sbp axis[2];
    } cases[] = {
        {"#sdy.sharding<@mesh, [{\"data\"}, {}]>", {1, 0}},
        {"#sdy.sharding<@mesh, [{}, {\"model\"}]>", {0, 2}},
        {"#sdy.sharding<@mesh, [{\"data\", \"model\"}, {?}]>", {1, 1}},
        {"#sdy.sharding<@mesh, [{\"model\", ?}p2, {\"data\"}p0], replicated={}>", {2, 1}},
        {"#sdy.sharding_per_value<[<@mesh, [{}, {\"data\"}]>]>", {2, 0}},
        {"#sdy.sharding<@mesh, [{\\\"data\\\"}, {}]>", {1, 0}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Arena arena = {0};
        AmError error = {0};
        Mesh mesh;
        Hlo__OpSharding *read;
        DeviceTiles tiles;
        SbpState found;
        assert_int_equal(mesh_parse(&mesh, &arena, "data=2,model=4", &error), AM_OK);
        if (read_attribute(&read, &arena, MESHES, cases[k].text, &error) != AM_OK) fail_msg("%s", error.text);
        assert_non_null(read);
        assert_int_equal(sharding_read(&tiles, &arena, read, &error), AM_OK);
        assert_true(sharding_to_state(&found, &tiles, &mesh));
        assert_memory_equal(found.axis, cases[k].axis, sizeof cases[k].axis);
        arena_free(&arena);
    }
}

static void test_refusals(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",
        "#sdy.sharding<@mesh",
        "#sdy.sharding<@mesh, [{\"data\"}, {}",
        "#sdy.sharding<@mesh, [{\"rows\"}]>",
        "#sdy.sharding<@mesh, [{\"data\":(1)2}]>",
        "#sdy.sharding<@mesh, [{data}]>",
        "#sdy.sharding<@nowhere, [{\"data\"}]>",
        "#sdy.sharding_per_value<[<@mesh, [{}]>, <@mesh, [{\"data\"}]>]>",
        "#sdy.sharding<@mesh, [{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]>",
    };
    static const char *const meshes[] = {
        NULL, "", "{", "{mesh", "{mesh = #sdy.mesh<[\"data\"]>}", "{mesh = #sdy.mesh<[\"data\"=2"};
    Arena arena = {0};
    Hlo__OpSharding *read;
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        AmError error = {0};
        assert_int_equal(read_attribute(&read, &arena, MESHES, texts[k], &error), AM_ERROR_INPUT);
    }
    for (size_t k = 0; k < sizeof meshes / sizeof *meshes; k++) {
        AmError error = {0};
        assert_int_equal(
            read_attribute(&read, &arena, meshes[k], "#sdy.sharding<@mesh, [{\"data\"}]>", &error),
            AM_ERROR_INPUT);
    }
    AmError error = {0};
    assert_int_equal(read_attribute(&read, &arena, MESHES, NULL, &error), AM_OK);
    assert_null(read);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_states), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
