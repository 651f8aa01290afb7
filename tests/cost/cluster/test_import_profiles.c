/* Imports of measured operators, layers and links: tables of Aceso and files of Sailor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cost/cluster/topology.h"
#include "cost/cluster_import/import.h"
#include "tests/support/imported.h"

/* A sample in Aceso's form: width 1024, 4,096 tokens, times that give round shares of the V100's peak of
 * 125e12 after a launch of 4 us. Below the measured sizes the built-in curve applies. */
static void operators_of_aceso_give_curves(void **state) {
    (void)state;
    static const double products[][2] = {{0x1p33, 0.5},
                                         {1.5 * 0x1p34, (0.515396075520 + 0.412316860416) / 2},
                                         {0x1p35, 0.549755813888},
                                         {1e6, 0.02}};
    static const double bytes[][2] = {{2 * 256 * 0x1p20, 512 * 0x1p20 / 746e-6 / 900e9},
                                      {2 * 8.016 * 0x1p20, 16.032 * 0x1p20 / 20e-6 / 900e9},
                                      {1e5, 0.15}};
    Imported self;
    assert_int_equal(
        IMPORT(&self, "V100-32GB", NULL, SAMPLE("hostfile"), SAMPLE("gpt_tiny_mbs2_tp1_algo0.csv")), AM_OK);
    const ClusterDeviceType *type = cluster_device_type(self.cluster, 0);
    for (size_t k = 0; k < sizeof products / sizeof *products; k++)
        assert_true(fabs(cluster_efficiency(&type->dot[DTYPE_F16], products[k][0]) - products[k][1]) < 1e-8);
    for (size_t k = 0; k < sizeof bytes / sizeof *bytes; k++)
        assert_true(fabs(cluster_efficiency(&type->memory, bytes[k][0]) - bytes[k][1]) < 1e-8);
    end(&self);
    /* Several tables add their points; another source of products does not. */
    assert_int_equal(IMPORT(&self, "V100-32GB", NULL, SAMPLE("hostfile"),
                            SAMPLE("gpt_tiny_mbs2_tp1_algo0.csv"), SAMPLE("gpt_tiny_mbs2_tp1_algo0.csv")),
                     AM_OK);
    end(&self);
    assert_int_equal(
        IMPORT(&self, "V100-32GB", NULL, SAMPLE("gpt_tiny_mbs2_tp1_algo0.csv"), SAMPLE("simumax.json")),
        AM_ERROR_INPUT);
    assert_non_null(strstr(self.error.text, "describes a device type, as"));
    end(&self);
    assert_int_equal(IMPORT(&self, "P100-16GB", NULL, SAMPLE("gpt_tiny_mbs2_tp1_algo0.csv")), AM_ERROR_INPUT);
    end(&self);
}

/* The rate inside a server is that of one pair, between servers that of all its devices, in GB/s at
 * log2(MB). */
static void coefficients_of_sailor_give_links(void **state) {
    (void)state;
    Imported self;
    assert_int_equal(IMPORT(&self, "A100-40GB", NULL, SAMPLE("network_coeffs.json")), AM_OK);
    assert_int_equal(self.cluster->device_count, 4);
    const ClusterLink *link = &self.cluster->links[cluster_link_between(self.cluster, 0, 1)];
    for (double bytes = 0x1p20; bytes <= 0x1p30; bytes *= 2) {
        double rate = fmin(200e9, 1e9 * (100 + 10 * log2(bytes / 1e6)));
        assert_true(fabs(link->bytes_per_second * cluster_efficiency(&link->efficiency, bytes) - rate) < 1);
    }
    end(&self);
    assert_int_equal(IMPORT(&self, "A100-40GB", NULL, SAMPLE("network_coeffs.json"),
                            write_file("a slots=4\nb slots=4\n", strlen("a slots=4\nb slots=4\n"))),
                     AM_OK);
    link = &self.cluster->links[cluster_link_between(self.cluster, 0, 4)];
    assert_true(fabs(link->bytes_per_second * cluster_efficiency(&link->efficiency, 0x1p22) -
                     1e9 * (10 + log2(0x1p22 / 1e6))) < 1);
    end(&self);
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, SAMPLE("network_coeffs.json")), AM_ERROR_INPUT);
    assert_non_null(strstr(self.error.text, "$.intra: no device type is A100-80GB"));
    end(&self);
    assert_int_equal(
        IMPORT(&self, "A100-40GB", NULL, SAMPLE("network_coeffs.json"), SAMPLE("all_reduce.json")),
        AM_ERROR_INPUT);
    end(&self);
}

/* Shares of the f32 peak by the formula in the head of import_sailor.c, computed with other software. */
static void layers_of_sailor_give_products(void **state) {
    (void)state;
    static const double points[][2] = {{1.145324612e+10, 0.5135755852}, {9.162596898e+10, 0.9171038544}};
    Imported self;
    assert_int_equal(IMPORT(&self, "V100-16GB", NULL, SAMPLE("hostfile"), SAMPLE("training_config.json"),
                            SAMPLE("sailor_profile.json")),
                     AM_OK);
    const ClusterDeviceType *type = cluster_device_type(self.cluster, 0);
    for (size_t k = 0; k < sizeof points / sizeof *points; k++)
        assert_true(fabs(cluster_efficiency(&type->dot[DTYPE_F32], points[k][0]) - points[k][1]) < 1e-6);
    assert_non_null(type->measured); /* 16-bit products keep theirs */
    end(&self);
    /* Layers faster than the f32 peak ran in TF32. */
    assert_int_equal(IMPORT(&self, "T4", NULL, SAMPLE("hostfile"), SAMPLE("training_config.json"),
                            SAMPLE("sailor_profile.json")),
                     AM_OK);
    type = cluster_device_type(self.cluster, 0);
    assert_true(fabs(type->flops_per_second[DTYPE_F32] - 3.28013840e+13) < 1e-6 * 3.28013840e+13);
    end(&self);
    assert_int_equal(IMPORT(&self, "V100-16GB", NULL, SAMPLE("sailor_profile.json")), AM_ERROR_INPUT);
    assert_non_null(strstr(self.error.text, "expected a second --import of Sailor's training_config.json"));
    end(&self);
    assert_int_equal(IMPORT(&self, "V100-16GB", NULL, SAMPLE("training_config.json")), AM_ERROR_INPUT);
    assert_non_null(strstr(self.error.text, "expected a second --import of Sailor's profile.json"));
    end(&self);
}

/* Files of Sailor with one mistake each. A profile comes with the sample's sizes. */
static void wrong_files_of_sailor_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
        bool is_profile;
    } rows[] = {
        {"{\"intra\": 3}", "$.intra: expected an object", false},
        {"{\"intra\": {\"A100-40\": 3}}", "expected an object for each device type", false},
        {"{\"intra\": {\"A100-40\": {}}}", "expected a number of devices", false},
        {"{\"intra\": {\"A100-40\": {\"two\": []}}}", "expected numbers of devices as keys", false},
        {"{\"intra\": {\"A100-40\": {\"999\": []}}}", "expected numbers of devices as keys", false},
        {"{\"intra\": {\"A100-40\": {\"2\": []}}}", "$.intra.A100-40.2: expected [[a, b, c]", false},
        {"{\"intra\": {\"A100-40\": {\"2\": [[0, 1], 4]}}}", "expected [[a, b, c]", false},
        {"{\"intra\": {\"A100-40\": {\"2\": [[0, \"x\", 1], 4]}}}", "expected [[a, b, c]", false},
        {"{\"intra\": {\"A100-40\": {\"2\": [[0, 1, 1], -4]}}}", "with a rate above 0", false},
        {"{\"intra\": {\"A100-40\": {\"2\": [[0, -1, 1], 4e9]}}}", "coefficients of rates above 0", false},
        /* Entries that no link is made of. */
        {"{\"intra\": {\"A100-40\": {\"2\": [[0, 0, 1], 4e9], \"4\": [[0, 0], 4e9]}}}",
         "$.intra.A100-40.4: expected [[a, b, c]", false},
        {"{\"intra\": {\"V100-16\": {\"2\": [1]}, \"A100-40\": {\"2\": [[0, 0, 1], 4e9]}}}",
         "$.intra.V100-16.2: expected [[a, b, c]", false},
        {"{\"intra\": {\"B\": 3, \"A100-40\": {\"2\": [[0, 0, 1], 4e9]}}}",
         "expected an object for each device type", false},
        {"{\"hidden_size\": -3}", "$.hidden_size: expected", true},
        {"{\"hidden_size\": 64, \"type\": \"llama\"}", "$.type: \"llama\" (expected \"gpt2\"", true},
        {"{\"hidden_size\": 64, \"sequence_length\": 64}", "$.heads: missing", true},
        {"{\"1\": 3}", "$.1: expected an object of tensor degrees", true},
        {"{\"1\": {\"2\": {}}}", "expected a micro-batch with tensor degree", true},
        {"{\"1x\": {}}", "expected micro-batches as keys", true},
        {"{\"1\": {\"1\": {}}}", "$.1.1.0: expected seconds above 0", true},
        {"{\"1\": {\"1\": {\"0\": [0, 1, 1]}}}", "$.1.1.0: expected seconds above 0", true},
        {"{\"1\": {\"1\": {\"0\": [1e-9, 1, 1]}}}", "a layer faster than its memory traffic", true},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        Imported self;
        const char *made = write_file(rows[k].text, strlen(rows[k].text));
        const char *other = strstr(rows[k].text, "hidden_size") ? SAMPLE("sailor_profile.json")
                                                                : SAMPLE("training_config.json");
        AmStatus status = IMPORT(&self, "A100-40GB", NULL, made, rows[k].is_profile ? other : NULL);
        if (status != AM_ERROR_INPUT || !strstr(self.error.text, rows[k].message))
            fail_msg("row %zu: status %d, \"%s\" does not say \"%s\"", k, status, self.error.text,
                     rows[k].message);
        end(&self);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_of_aceso_give_curves),
        cmocka_unit_test(coefficients_of_sailor_give_links),
        cmocka_unit_test(layers_of_sailor_give_products),
        cmocka_unit_test(wrong_files_of_sailor_are_refused),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
