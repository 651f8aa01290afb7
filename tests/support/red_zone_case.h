/* Red zones around values (executor/program/red_zones.h), for the devices "cpu" and "cuda":
 * planted writes after and before a value, a planted read, and models. */
#ifndef TESTS_SUPPORT_RED_ZONE_CASE_H
#define TESTS_SUPPORT_RED_ZONE_CASE_H

#include "module_case.h"
#include "runner_case.h"

/* The bytes by which a planted access misses; the kernel's own function. */
static int64_t red_zone_miss;
static void (*red_zone_run)(const KernelCall *call);

static inline void red_zone_write(const KernelCall *call) {
    red_zone_run(call);
    call->device->back_end->copy_within(call->device, (char *)call->results[0] + red_zone_miss,
                                        call->operands[0], 4);
}

static inline void red_zone_read(const KernelCall *call) {
    red_zone_run(call);
    call->device->back_end->copy_within(call->device, call->results[0],
                                        (char *)call->operands[0] + red_zone_miss, 4);
}

/* Runs c = dot(a, a), d = c + a on f32[3,3], 36 bytes each, with another function in the product's place. */
static inline AmStatus red_zone_try(KernelDevice *device, void (*planted)(const KernelCall *), int64_t miss,
                                    float *out, AmError *error) {
    static const char text[] =
        "HloModule m\nENTRY e { a = f32[3,3] parameter(0)\n"
        "  c = f32[3,3] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  ROOT d = f32[3,3] add(c, a) }\n";
    const KernelBackEnd *back_end = device->back_end;
    ModuleCase m = {0};
    const float in[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    AmStatus status;
    *error = (AmError){0};
    TRY_OR_FAIL(ir_read_bytes(&m.module, "test", text, (int64_t)strlen(text), error));
    TRY_OR_FAIL(ir_canonicalize(&m.canonical, m.module, error));
    TRY_OR_FAIL(
        program_from_computation(&m.program, &m.arena, m.canonical, m.canonical->entry, false, error));
    TRY_OR_FAIL(executable_prepare(&m.entry, &m.arena, device, NULL, m.program, false, error));
    TRY_OR_FAIL(executable_allocate(m.entry, &m.memory, NULL, error));
    if (back_end->finish) TRY_OR_FAIL(back_end->finish(device, error));
    KernelCall *call = m.entry->steps[0].kernel;
    red_zone_run = call->run;
    red_zone_miss = miss;
    if (planted) call->run = planted;
    back_end->copy_in(device, executable_parameter(m.entry, 0), in, sizeof in);
    TRY_OR_FAIL(executable_run(m.entry, error));
    back_end->copy_out(device, out, executable_output(m.entry, 0), sizeof in);
    TRY_OR_FAIL(back_end->synchronize(device, error));
fail:
    if (m.memory) back_end->release(device, m.memory);
    arena_free(&m.arena);
    ir_module_free(m.canonical);
    ir_module_free(m.module);
    return status;
}

static inline void red_zone_check_device(const char *name) {
    const KernelBackEnd *back_end;
    AmError error = {0};
    float out[9];
    setenv("AUTOMAP_RED_ZONES", "256", 1);
    KernelDevice *device = NULL;
    assert_int_equal(kernel_back_end_find(&back_end, name, &error), AM_OK);
    assert_int_equal(back_end->open(&device, &(KernelOptions){.index = 0}, &error), AM_OK);
    assert_int_equal(red_zone_try(device, NULL, 0, out, &error), AM_OK);
    assert_true(out[0] == 2 && out[8] == 2);
    static const int64_t misses[] = {36, 60, 256, -4, -256};
    for (size_t k = 0; k < sizeof misses / sizeof *misses; k++) {
        assert_int_equal(red_zone_try(device, red_zone_write, misses[k], out, &error), AM_ERROR_INTERNAL);
        assert_non_null(strstr(error.text, "step 0 (c)"));
    }
    assert_non_null(strstr(error.text, "after value 0 of a"));
    assert_int_equal(red_zone_try(device, red_zone_write, 32, out, &error), AM_OK);
    assert_int_equal(red_zone_try(device, red_zone_read, 36, out, &error), AM_OK);
    assert_true(isnan(out[0]));
    back_end->close(device);
    /* Without the environment the plan is the ordinary one: the write is not found. */
    unsetenv("AUTOMAP_RED_ZONES");
    assert_int_equal(back_end->open(&device, &(KernelOptions){.index = 0}, &error), AM_OK);
    assert_int_equal(red_zone_try(device, red_zone_write, 36, out, &error), AM_OK);
    back_end->close(device);
}

/* Losses and states of whole models, on one device and on four. */
static inline void red_zone_check_models(const char *device) {
    static const struct {
        const char *model;
        double loss_tolerance, state_tolerance;
        const char *mesh;
        bool full;
    } rows[] = {
        {"mlp_tiny", 1e-5, 1e-4, "data=2,model=2", false},
        {"gpt2_tiny", 1e-5, 1e-4, NULL, false},
        {"exact_gather", 0, 0, NULL, false},
        {"exact_linear", 0, 0, NULL, false},
        {"vgg_tiny", 1e-5, 1e-4, NULL, true},
        {"bert_tiny", 1e-5, 1e-4, NULL, true},
        {"t5_tiny", 1e-5, 1e-4, NULL, true},
        {"gpt2_tiny", 1e-5, 1e-4, "data=2,model=2", true},
    };
    setenv("AUTOMAP_RED_ZONES", "256", 1);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        Split split = {.mesh = rows[k].mesh, .choose = rows[k].mesh ? choose_some : NULL, .seed = 1};
        if (!rows[k].full || getenv("AUTOMAP_FULL"))
            check_split_on(device, rows[k].model, split, rows[k].loss_tolerance, rows[k].state_tolerance);
    }
    unsetenv("AUTOMAP_RED_ZONES");
}

#endif
