/* Imports: each kind of file, several together, and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files/json.h"
#include "cost/cluster/topology.h"
#include "cost/cluster_import/import.h"
#include "tests/support/imported.h"

static void assert_route(Imported *self, int32_t a, int32_t b, const char *expected) {
    int32_t *edges = ARENA_ARRAY(&self->arena, int32_t, self->cluster->topology->longest), count;
    topology_route(self->cluster->topology, a, b, edges, &count);
    Text text = {0};
    for (int32_t k = 0; k < count; k++) {
        if (k > 0) text_append_string(&text, ", ");
        topology_append_edge(&text, self->cluster, edges[k]);
    }
    assert_string_equal(text.data, expected);
    text_free(&text);
}

static void hosts_give_servers(void **state) {
    (void)state;
    Imported self;
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, SAMPLE("hostfile")), AM_OK);
    assert_int_equal(self.cluster->server_count, 2);
    assert_int_equal(self.cluster->device_count, 8);
    assert_string_equal(self.cluster->links[cluster_link_between(self.cluster, 0, 1)].name, "nvlink-a100");
    assert_string_equal(self.cluster->links[cluster_link_between(self.cluster, 0, 4)].name, "infiniband-200");
    end(&self);
    assert_int_equal(IMPORT(&self, "T4", "ethernet-25", SAMPLE("slurm.env")), AM_OK);
    assert_int_equal(self.cluster->server_count, 5);
    assert_int_equal(self.cluster->device_count, 32);
    assert_int_equal(self.cluster->servers[4].device_count, 4);
    assert_string_equal(self.cluster->links[cluster_link_between(self.cluster, 0, 31)].name, "ethernet-25");
    end(&self);
}

static void node_lists_are_expanded(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t servers, devices;
    } good[] = {
        {"SLURM_JOB_NODELIST=n1\nSLURM_GPUS_ON_NODE=4\n", 1, 4},
        {"export SLURM_NODELIST='a[1-2]-ib[0-1]'\nexport SLURM_GPUS_PER_NODE=a100:8\n", 4, 32},
        {"declare -x SLURM_JOB_NODELIST=\"x[098-102,7]\"\ndeclare -x SLURM_NTASKS_PER_NODE=\"2\"\n", 6, 12},
        {"SLURM_JOB_NODELIST=a,b[1,3-4],c\r\nSLURM_TASKS_PER_NODE=1,2(x3),1\r\n", 5, 8},
    };
    for (size_t k = 0; k < sizeof good / sizeof *good; k++) {
        Imported self;
        const char *made = write_file(good[k].text, strlen(good[k].text));
        if (IMPORT(&self, "host", NULL, made) != AM_OK) fail_msg("row %zu: %s", k, self.error.text);
        assert_int_equal(self.cluster->server_count, good[k].servers);
        assert_int_equal(self.cluster->device_count, good[k].devices);
        end(&self);
    }
}

/* Every form of a hostfile: servers, devices of the first and of the last one. */
static void hostfiles_have_many_forms(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t servers, first, last;
    } good[] = {
        {"worker-1:8\nworker-2:8\n", 2, 8, 8},
        {"worker-1:4,worker-2:2", 2, 4, 2},
        {"# a comment\r\n\r\nworker-1 slots=8 max_slots=16 # more\r\n", 1, 8, 8},
        {"worker-1 max-slots=16 slots=8\n\tuser@worker-2:2 binding=rr\n", 2, 8, 2},
        {"10.0.0.1:4\n10.0.0.2 slots=4\n", 2, 4, 4},
        {"[fe80::1]:4\n[fe80::2%eth0] slots=4\n2001:db8::3 slots=4\n", 3, 4, 4},
        {"node[001-003,7]:4\nlogin slots=2\n", 5, 4, 2},
        {"node[1-2,5] slots=6,login:2\n", 4, 6, 2},
        {"a\na\na\nb\nb\n", 2, 3, 2},
        {"a\nb\na\n", 2, 2, 1},
        {"worker-1\n", 1, 1, 1},
        {"node[1-3]\nlogin\n", 4, 1, 1},
        {"a:8\nb\n", 2, 8, 1},
    };
    for (size_t k = 0; k < sizeof good / sizeof *good; k++) {
        Imported self;
        const char *made = write_file(good[k].text, strlen(good[k].text));
        if (IMPORT(&self, "host", NULL, made) != AM_OK) fail_msg("row %zu: %s", k, self.error.text);
        assert_int_equal(self.cluster->server_count, good[k].servers);
        assert_int_equal(self.cluster->servers[0].device_count, good[k].first);
        assert_int_equal(self.cluster->servers[good[k].servers - 1].device_count, good[k].last);
        end(&self);
    }
    /* A name without slots is one device, with a warning that names the remedy. */
    Import plain;
    Arena arena = {0};
    AmError error = {0};
    json_t *description = NULL;
    assert_int_equal(import_begin(&plain, &arena, "host", NULL, &error), AM_OK);
    assert_int_equal(import_add(&plain, write_file("a\nb\n", 4), &error), AM_OK);
    assert_int_equal(import_finish(&description, &plain, &error), AM_OK);
    assert_int_equal(plain.warnings.count, 2);
    assert_non_null(
        strstr(plain.warnings.texts[0], "names without slots have one device (\"a slots=8\": eight)"));
    json_decref(description);
    import_end(&plain);
    arena_free(&arena);
    /* Plain names get the devices of the server that another file describes. */
    static const char matrix[] = "GPU0 GPU1\nGPU0 X NV18\nGPU1 NV18 X\n";
    char other[] = "/tmp/automap-names-XXXXXX";
    Imported self;
    int file = mkstemp(other);
    assert_int_equal(write(file, "a\nb\nc\n", 6), 6);
    close(file);
    assert_int_equal(IMPORT(&self, "H100-80GB", NULL, other, write_file(matrix, sizeof matrix - 1)), AM_OK);
    assert_int_equal(self.cluster->server_count, 3);
    assert_int_equal(self.cluster->device_count, 6);
    end(&self);
    unlink(other);
}

static void assert_table(Imported *self, const char *part) {
    Text text = {0};
    cluster_print(&text, self->cluster);
    if (!strstr(text.data, part)) fail_msg("\"%s\" is not in:\n%s", part, text.data);
    text_free(&text);
}

/* Tables and names have the rate of all parallel links, also in a file that counts them in `width`. */
static void parallel_links_count(void **state) {
    (void)state;
    Imported self;
    static const char matrix[] = "GPU0 GPU1 GPU2\nGPU0 X NV18 NV18\nGPU1 NV18 X NV18\nGPU2 NV18 NV18 X\n";
    assert_int_equal(IMPORT(&self, "H100-80GB", NULL, write_file(matrix, sizeof matrix - 1)), AM_OK);
    assert_table(&self, "nvswitch-370.8, 371 GB/s");
    assert_table(&self, "pcie-48 ");
    end(&self);
    /* NCCL lists the links to each of four switches. */
    static const char nccl[] =
        "<system><cpu><pci busid=\"1\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"><gpu dev=\"0\" "
        "sm=\"90\">"
        "<nvlink target=\"7\" count=\"5\" tclass=\"0x068000\"/><nvlink target=\"8\" count=\"4\" "
        "tclass=\"0x068000\"/>"
        "<nvlink target=\"9\" count=\"4\" tclass=\"0x068000\"/><nvlink target=\"a\" count=\"5\" "
        "tclass=\"0x068000\"/>"
        "</gpu></pci><pci busid=\"2\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"><gpu dev=\"1\" "
        "sm=\"90\">"
        "<nvlink target=\"7\" count=\"18\" tclass=\"0x068000\"/></gpu></pci></cpu></system>";
    AmStatus read = IMPORT(&self, "H100-80GB", NULL, write_file(nccl, sizeof nccl - 1));
    if (read != AM_ERROR_RUNTIME) { /* without libexpat */
        if (read != AM_OK) fail_msg("%s", self.error.text);
        assert_table(&self, "nvswitch-370.8, 371 GB/s");
        assert_table(&self, "pcie-48 ");
    }
    end(&self);
    static const char wide[] =
        "{\"format\": \"automap-cluster-1\", \"name\": \"wide\", \"device_types\": {\"d\": "
        "{\"memory_bytes\": 1000, "
        "\"memory_bytes_per_second\": 1e9, \"flops_per_second\": {\"f32\": 1e9}}}, \"links\": {\"lane\": "
        "{\"bytes_per_second\": 20e9}}, \"servers\": [{\"device_type\": \"d\", \"devices\": 2}], "
        "\"topology\": {\"edges\": "
        "[{\"from\": \"server0/device0\", \"to\": \"server0/device1\", \"link\": \"lane\", \"width\": 4}]}}";
    self = (Imported){0};
    AmStatus status = json_parse(&self.description, "wide", wide, sizeof wide - 1, &self.error);
    if (status == AM_OK)
        status = cluster_from_json(&self.cluster, &self.arena, self.description, "wide", &self.error);
    if (status != AM_OK) fail_msg("%s", self.error.text);
    assert_table(&self, "lane, width 4, 80 GB/s");
    end(&self);
}

/* The columns of a table are found by their head: older tables of all_gather have no operation and root. */
static void tables_of_other_releases(void **state) {
    (void)state;
    static const char old[] = "# nThread 1\n# Rank  0 Pid 7 on node1 device  0 [0x07] A100\n"
                              "# Rank  1 Pid 7 on node1 device  1 [0x08] A100\n"
                              "#                                out-of-place        in-place\n"
                              "#  size  count  type  time  algbw  busbw  error  time  algbw  busbw  error\n"
                              "  1024 128 float 10.0 0.10 0.05 0e+00 10.1 0.10 0.05 0e+00\n"
                              "  1000000000 125000000 float 10010.0 99.90 49.95 0e+00 10000 100 50 0e+00\n";
    Imported self;
    if (IMPORT(&self, "A100-80GB", NULL, write_file(old, sizeof old - 1)) != AM_OK)
        fail_msg("%s", self.error.text);
    assert_true(fabs(self.cluster->links[self.cluster->servers[0].link].bytes_per_second - 50e9) < 1e8);
    end(&self);
    static const char shifted[] = "# algbw\n 1000000 128 float 10.0 100 100.0 50.0 0\n";
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, write_file(shifted, sizeof shifted - 1)),
                     AM_ERROR_INPUT);
    assert_non_null(strstr(self.error.text, "\"algbw\" of size over time"));
    end(&self);
}

static void near_names_are_proposed(void **state) {
    (void)state;
    Imported self;
    assert_int_equal(IMPORT(&self, "H100-80", NULL, SAMPLE("hostfile")), AM_ERROR_USAGE);
    assert_non_null(strstr(self.error.text, "; did you mean H100-80GB?"));
    end(&self);
    assert_int_equal(IMPORT(&self, "T4", "infiniband400", SAMPLE("hostfile")), AM_ERROR_USAGE);
    assert_non_null(strstr(self.error.text, "; did you mean infiniband-400?"));
    end(&self);
}

static void nccl_draws_a_server(void **state) {
    (void)state;
    Imported self;
    AmStatus status = IMPORT(&self, "A100-40GB", NULL, SAMPLE("nccl.xml"), SAMPLE("hostfile"));
    if (status == AM_ERROR_RUNTIME) {
        end(&self);
        skip();
    }
    assert_int_equal(status, AM_OK);
    assert_int_equal(self.cluster->device_count, 8);
    assert_route(&self, 0, 3,
                 "server0/device0 -> server0/nvswitch (nvswitch-240), server0/nvswitch -> server0/device3 "
                 "(nvswitch-240)");
    assert_route(
        &self, 0, 4,
        "server0/device0 -> server0/pci-0000:01:00.0 (pcie-24), server0/pci-0000:01:00.0 -> "
        "server0/card-mlx5_0 (pcie-24), server0/card-mlx5_0 -> rail0 (network-24), rail0 -> "
        "server1/card-mlx5_0 (network-24), server1/card-mlx5_0 -> server1/pci-0000:01:00.0 (pcie-24), "
        "server1/pci-0000:01:00.0 -> server1/device0 (pcie-24)");
    assert_true(self.cluster->topology->edges[0].bytes_per_second == 240e9);
    end(&self);
    /* Alone it is one server, whose cards lead nowhere. */
    assert_int_equal(IMPORT(&self, "A100-40GB", NULL, SAMPLE("nccl.xml")), AM_OK);
    assert_int_equal(self.cluster->server_count, 1);
    assert_int_equal(self.cluster->topology->edge_count, 12);
    end(&self);
}

static void a_matrix_draws_a_server(void **state) {
    (void)state;
    Imported self;
    assert_int_equal(IMPORT(&self, "V100-16GB", "roce-100", SAMPLE("matrix.txt"), SAMPLE("hostfile")), AM_OK);
    assert_int_equal(self.cluster->device_count, 8);
    assert_route(&self, 0, 1, "server0/device0 -> server0/device1 (nvlink-80)");
    assert_true(self.cluster->topology->edges[4].bytes_per_second == 80e9);
    assert_route(&self, 2, 3,
                 "server0/device2 -> server0/PXB2 (pcie-12), server0/PXB2 -> server0/PHB2 (pcie-12), "
                 "server0/PHB2 -> server0/device3 (pcie-12)");
    assert_route(&self, 1, 5,
                 "server0/device1 -> server0/PIX1 (pcie-12), server0/PIX1 -> server0/card-NIC0 (pcie-12), "
                 "server0/card-NIC0 -> rail0 (roce-100), rail0 -> server1/card-NIC0 (roce-100), "
                 "server1/card-NIC0 -> server1/PIX1 (pcie-12), server1/PIX1 -> server1/device1 (pcie-12)");
    end(&self);
    static const char switched[] = "GPU0 GPU1 GPU2 CPU Affinity\nGPU0 X NV12 NV12 0-3\nGPU1 NV12 X NV12 0-3\n"
                                   "GPU2 NV12 NV12 X 0-3\n";
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, write_file(switched, sizeof switched - 1)), AM_OK);
    assert_route(&self, 0, 2,
                 "server0/device0 -> server0/nvswitch (nvswitch-240), server0/nvswitch -> server0/device2 "
                 "(nvswitch-240)");
    end(&self);
    static const char paired[] = "GPU0 GPU1 GPU2 CPU Affinity\nGPU0 X NV6 NV6 0-3\nGPU1 NV6 X NV6 0-3\n"
                                 "GPU2 NV6 NV6 X 0-3\n";
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, write_file(paired, sizeof paired - 1)), AM_OK);
    assert_route(&self, 0, 2, "server0/device0 -> server0/device2 (nvlink-120)");
    end(&self);
}

static void hwloc_gives_cores_or_gpus(void **state) {
    (void)state;
    Imported self;
    AmStatus status = IMPORT(&self, "host", NULL, SAMPLE("hwloc.xml"));
    if (status == AM_ERROR_RUNTIME) {
        end(&self);
        skip();
    }
    assert_int_equal(status, AM_OK);
    assert_int_equal(self.cluster->device_count, 4);
    assert_int_equal(self.cluster->types[0].memory_bytes, 4000000000);
    assert_route(
        &self, 0, 1,
        "server0/device0 -> server0/package0 (memory-4), server0/package0 -> server0/device1 (memory-4)");
    assert_int_equal(self.cluster->topology->edge_count, 4 + 2);
    end(&self);
    assert_int_equal(IMPORT(&self, "T4", NULL, SAMPLE("hwloc.xml"), SAMPLE("hostfile")), AM_OK);
    assert_int_equal(self.cluster->device_count, 8);
    assert_route(&self, 0, 2,
                 "server0/device0 -> server0/bridge0 (pcie-11.82), server0/bridge0 -> server0/package-0 "
                 "(pcie-11.82), server0/package-0 -> server0/machine (socket-16), server0/machine -> "
                 "server0/package-1 (socket-16), server0/package-1 -> server0/device2 (pcie-12)");
    end(&self);
#ifdef AUTOMAP_SANITIZED
    setenv("HWLOC_COMPONENTS", "-pci", 1); /* libpciaccess never frees its names of devices */
#endif
    status = IMPORT(&self, "host", NULL, "hwloc");
    assert_true(status == AM_OK || status == AM_ERROR_RUNTIME);
    if (status == AM_OK) assert_true(self.cluster->device_count >= 1);
    end(&self);
}

/* The sample is made of 2 us a step and 100 GB/s from 1 GiB on, half of it at 1 MiB. */
static void measurements_give_a_curve(void **state) {
    (void)state;
    Imported self;
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, SAMPLE("all_reduce.json"), SAMPLE("hostfile")), AM_OK);
    const ClusterLink *link = &self.cluster->links[cluster_link_between(self.cluster, 0, 1)];
    assert_string_equal(link->name, "measured-inside");
    assert_true(fabs(link->latency_seconds - 2e-6) < 1e-12);
    assert_true(fabs(link->bytes_per_second - 100e9) < 1e6);
    assert_true(fabs(cluster_efficiency(&link->efficiency, 1 << 20) - 0.5) < 1e-3);
    assert_true(cluster_efficiency(&link->efficiency, 1 << 30) == 1);
    end(&self);
    /* The table of two servers: 20 us a step between them, 12 GB/s for each. */
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, SAMPLE("all_reduce.txt"), SAMPLE("hostfile")), AM_OK);
    link = &self.cluster->links[cluster_link_between(self.cluster, 0, 4)];
    assert_string_equal(link->name, "measured-between");
    assert_true(fabs(link->latency_seconds - 20e-6) < 1e-9);
    assert_true(fabs(link->bytes_per_second - 12e9) < 1e7);
    end(&self);
    /* Without other files it also defines the servers: the hosts of its ranks. */
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, SAMPLE("all_reduce.json")), AM_OK);
    assert_int_equal(self.cluster->server_count, 1);
    assert_int_equal(self.cluster->device_count, 4);
    assert_true(fabs(self.cluster->links[self.cluster->servers[0].link].bytes_per_second - 100e9) < 1e6);
    end(&self);
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, SAMPLE("all_reduce.txt"), SAMPLE("all_reduce.json")),
                     AM_OK);
    assert_int_equal(self.cluster->server_count, 2);
    assert_int_equal(self.cluster->device_count, 4);
    assert_string_equal(self.cluster->links[self.cluster->between_servers].name, "measured-between");
    assert_string_equal(self.cluster->links[self.cluster->servers[1].link].name, "measured-inside");
    end(&self);
}

/* Rows of vTrain's table of four A100: prices are exact at measured sizes. */
static void a_vtrain_table_gives_a_curve(void **state) {
    (void)state;
    static const char table[] = "size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)\n"
                                "1048576,262144,float,51400,30.60,52740,29.82\n"
                                "2097152,524288,float,55740,56.44,55940,56.23\n"
                                "16777216,4194304,float,179600,140.11,177800,141.56\n"
                                "268435456,67108864,float,1929000,208.73,1927700,208.88\n";
    static const double rows[][2] = {
        {1048576, 51400e-9}, {2097152, 55740e-9}, {16777216, 179600e-9}, {268435456, 1929000e-9}};
    Imported self;
    const char *made = write_file(table, sizeof table - 1);
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, made), AM_OK);
    assert_int_equal(self.cluster->server_count, 1);
    assert_int_equal(self.cluster->device_count, 4);
    assert_non_null(strstr(self.warning, "1 server is assumed, from the ranks in "));
    const ClusterLink *link = &self.cluster->links[cluster_link_between(self.cluster, 0, 1)];
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        double rate = link->bytes_per_second * cluster_efficiency(&link->efficiency, rows[k][0]);
        double seconds = 6 * link->latency_seconds + 1.5 * rows[k][0] / rate;
        assert_true(fabs(seconds - rows[k][1]) < 1e-6 * rows[k][1]);
    }
    end(&self);
}

/* A file in the folder of samples: a table of Aceso has its meaning in its name. */
static void tables_of_aceso_give_links(void **state) {
    (void)state;
    static const double rows[][2] = {{12, 2.4e-3}, {8, 1.5e-3}, {64, 12e-3}, {256, 48e-3}};
    static const double transfers[][2] = {{1, 3.9e9}, {64, 5.2e9}, {1024, 5.4e9}};
    Imported self;
    assert_int_equal(IMPORT(&self, "V100-32GB", NULL, SAMPLE("prim_gpt_all_reduce_4gpus.csv")), AM_OK);
    assert_int_equal(self.cluster->device_count, 4);
    const ClusterLink *link = &self.cluster->links[cluster_link_between(self.cluster, 0, 1)];
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        double bytes = rows[k][0] * 0x1p20;
        double rate = link->bytes_per_second * cluster_efficiency(&link->efficiency, bytes);
        assert_true(fabs(6 * link->latency_seconds + 1.5 * bytes / rate - rows[k][1]) < 1e-6 * rows[k][1]);
    }
    end(&self);
    assert_int_equal(IMPORT(&self, "V100-32GB", NULL, SAMPLE("p2p_inter_node.csv")), AM_OK);
    assert_int_equal(self.cluster->server_count, 2);
    link = &self.cluster->links[cluster_link_between(self.cluster, 0, 1)];
    for (size_t k = 0; k < sizeof transfers / sizeof *transfers; k++) {
        double bytes = transfers[k][0] * 0x1p20, seconds = bytes / transfers[k][1];
        double rate = link->bytes_per_second * cluster_efficiency(&link->efficiency, bytes);
        assert_true(fabs(2 * link->latency_seconds + bytes / rate - seconds) < 1e-6 * seconds);
    }
    end(&self);
    /* Without a name the ranks are unknown. */
    static const char table[] = "data_size(MB),time(ms)\n1,1\n2,2\n";
    assert_int_equal(IMPORT(&self, "V100-32GB", NULL, write_file(table, sizeof table - 1)), AM_ERROR_INPUT);
    assert_non_null(strstr(self.error.text, "expected a file name such as prim_gpt_all_reduce_4gpus.csv"));
    end(&self);
}

/* Rows of tables of Aceso, under names that state their meaning. */
static void wrong_tables_of_aceso_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *suffix, *text, *message;
        int32_t line;
    } rows[] = {
        {"_all_reduce_4gpus.csv", "data_size(MB),time(ms)\n1,2\nx,3\n",
         "expected a size in MB and a time in ms", 3},
        {"_all_reduce_4gpus.csv", "data_size(MB),time(ms)\n1,2\n2,-3\n", "expected a time or a rate above 0",
         3},
        {"_all_reduce_4gpus.csv", "data_size(MB),time(ms)\n1,2\n\n2,-3\n",
         "expected a time or a rate above 0", 4},
        {"_all_reduce_4gpus.csv", "data_size(MB),time(ms)\n2,2\n1,2\n2,3\n", "expected each size once", 4},
        {"_all_reduce_4gpus.csv", "data_size(MB),time(ms)\n1e99,2\n",
         "expected a size of one byte to 10^9 MB", 2},
        {"_all_reduce_4gpus.csv", "data_size(MB),time(ms)\n", "expected at least two sizes", 0},
        {"_all_reduce_99999gpus.csv", "data_size(MB),time(ms)\n1,2\n2,3\n", "expected a file name such as",
         0},
        {"_all_reduce_4.csv", "data_size(MB),time(ms)\n1,2\n2,3\n", "expected a file name such as", 0},
        {"_p2p_intra_node.csv", "1,2\n3\n", "as many rates in GB/s", 1},
        {"_p2p_intra_node.csv", "1,2\n3,0\n", "expected a time or a rate above 0", 1},
        {"_p2p_intra_node.csv", "1,2\n3,1e308\n", "expected a rate below 1,000,000 GB/s", 1},
        {"_p2p_intra_node.csv", "1,2\n3,4,5\n", "expected as many rates in GB/s as sizes", 2},
        {"_p2p_intra_node.csv", "1,2\n3,x\n", "as many rates in GB/s", 1},
        {"_p2p_intra_node.csv", "1,2\n3\n4\n", "as many rates in GB/s", 1},
        {"_p2p_intra_node.csv", "1,2\n3,4\n\n3,4\n", "expected nothing after the line of rates", 4},
        {"_p2p_intra_node.csv", "1,2\n3,4\ngarbage\n", "expected nothing after the line of rates", 3},
        {"_p2p_intra_node.csv", "1,2", "expected at least two sizes", 0},
        {"_p2p_intra_node.csv", "\n\n", "expected at least two sizes", 0},
#define OPERATORS "op_name,forward-compute,backward-compute,input_size,output_size,weights,activations\n"
        {"_tp1_algo0.csv", OPERATORS, "no row \"enc-1st-layernorm\" (expected a table of a GPT or T5)", 0},
        {"_tp4_algo0.csv", OPERATORS, "times of tp2 and above contain all-reduces", 0},
        {"_algo0.csv", OPERATORS, "expected a file name such as", 0},
        {"_tp1_algo0.csv", OPERATORS "enc-MLP-gelu,1,2\n", "expected a name, two times", 2},
        {"_tp1_algo0.csv", OPERATORS "enc-MLP-gelu,0,2,1,1,0,1\n", "expected times above 0", 2},
        {"_tp1_algo0.csv", OPERATORS "enc-MLP-gelu,nan,2,1,1,0,1\n", "expected times above 0", 2},
        {"_tp1_algo0.csv", OPERATORS "enc-MLP-gelu,1,2,1,1,0,1e99\n", "expected sizes above 0", 2},
        {"_tp1_algo0.csv", OPERATORS "\nenc-attention-dense,1,2,1,1,0,1\n", "expected sizes above 0", 3},
        {"_tp1_algo0.csv", OPERATORS "enc-MLP-gelu,1,2,1,1,0,1\nenc-MLP-gelu,1,2,1,1,0,1\n",
         "each operator once", 3},
        {"_tp1_algo0.csv",
         OPERATORS "enc-1st-layernorm,63,218,16,32,0,16\nenc-2nd-layernorm,63,218,16,32,0,16\n"
                   "enc-attention-softmax,63,218,16,32,0,16\nenc-MLP-gelu,63,218,16,32,0,16\n"
                   "enc-attention-qkv,1,2,32,32,24,16\nenc-attention-dense,484,810,32,32,8,16\n"
                   "enc-MLP-GEMM-1,1484,2810,32,32,32,16\nenc-MLP-GEMM-2,1484,2810,32,32,32,16\n",
         "(expected at most 125 TFLOP/s, the f16 peak of V100-32GB)", 6},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", path, rows[k].suffix);
        FILE *file = fopen(name, "wb");
        assert_non_null(file);
        fputs(rows[k].text, file);
        fclose(file);
        Imported self;
        AmStatus status = IMPORT(&self, "V100-32GB", NULL, name);
        unlink(name);
        if (status != AM_ERROR_INPUT || !strstr(self.error.text, rows[k].message) ||
            (rows[k].line && self.error.line != rows[k].line))
            fail_msg("row %zu: status %d, line %d: \"%s\" does not say \"%s\"", k, status,
                     (int)self.error.line, self.error.text, rows[k].message);
        end(&self);
    }
}

/* Products of equal FLOPs are one point, with the mean of their shares. The link has the rate of all_reduce,
 * and its latency of 6 us is that of six steps. A second file adds servers, between which the file has a
 * link. */
static void a_system_gives_products_and_links(void **state) {
    (void)state;
    static const double points[][2] = {{2.0 * 512 * 512 * 512, 0.25}, {2.0 * 4096 * 4096 * 4096, 0.65}};
    Imported self;
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, SAMPLE("simumax.json")), AM_OK);
    assert_int_equal(self.cluster->device_count, 4);
    const ClusterDeviceType *type = cluster_device_type(self.cluster, 0);
    assert_true(type->memory_bytes == 40LL << 30 && type->memory_bytes_per_second == 1500e9);
    assert_true(type->flops_per_second[DTYPE_BF16] == 300e12 && type->flops_per_second[DTYPE_F16] == 300e12);
    assert_true(cluster_efficiency(&type->memory, 1e6) == 0.8);
    for (size_t k = 0; k < sizeof points / sizeof *points; k++)
        assert_true(fabs(cluster_efficiency(&type->dot[DTYPE_BF16], points[k][0]) - points[k][1]) < 1e-9);
    const ClusterLink *link = &self.cluster->links[cluster_link_between(self.cluster, 0, 1)];
    assert_true(fabs(link->bytes_per_second - 150e9) < 1 && fabs(link->latency_seconds - 1e-6) < 1e-15);
    end(&self);
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, SAMPLE("simumax.json"),
                            write_file("a slots=4\nb slots=4\n", strlen("a slots=4\nb slots=4\n"))),
                     AM_OK);
    assert_int_equal(self.cluster->server_count, 2);
    link = &self.cluster->links[cluster_link_between(self.cluster, 0, 4)];
    assert_true(fabs(link->bytes_per_second - 4 * 25e9 * 0.8) < 1);
    assert_true(fabs(link->latency_seconds - 5e-6) < 1e-15);
    end(&self);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
#define TEXT(text) \
    { text, sizeof text - 1 }
/* A system of SimuMax with these members of "matmul", and of the file. */
#define SYSTEM(matmul, more)                                                                  \
    TEXT("{\"accelerator\": {\"mem_gbs\": 80, \"bandwidth\": {\"default\": {\"gbps\": 1600, " \
         "\"efficient_factor\": 0.9}}, \"op\": {\"matmul\": {" matmul "}}}" more "}")
    static const struct {
        struct {
            const char *bytes;
            size_t length;
        } text;
        const char *message;
    } rows[] = {
        {TEXT(""), "expected at least one host"},
        {TEXT("# nothing\n\n"), "expected at least one host"},
        {TEXT("worker-1 worker-2\n"), "expected a line such as"},
        {TEXT("12,2.4\n24,4.6\n"), "expected a line such as"},
        {TEXT("worker-1:\n"), "expected 1 to 65536 slots"},
        {TEXT("worker-1:0\n"), "expected 1 to 65536 slots"},
        {TEXT("worker-1:8x\n"), "expected a line such as"},
        {TEXT("[fe80::1\n"), "expected a line such as"},
        {TEXT("w:8:9\n"), "expected a line such as"},
        {TEXT("a:8:9\n"), "expected a line such as"},
        {TEXT("[a:8:9]:4\n"), "expected a line such as"},
        {TEXT("a slots=2 slots=3\n"), "slots are given twice"},
        {TEXT("a:2 slots=3\n"), "slots are given twice"},
        {TEXT("[worker]:4\n"), "expected a line such as"},
        {TEXT("node[1-2:4\n"), "a bracket of the node list is not closed"},
        {TEXT("worker-1:4\nworker-1\n"), "\"worker-1\" is named twice"},
        {TEXT("a[1-2]:4\na2:4\n"), "\"a2\" is named twice"},
        {TEXT("worker-1 slots=0\n"), "expected 1 to 65536 slots"},
        {TEXT("worker-1 slots=-4\n"), "expected 1 to 65536 slots"},
        {TEXT("worker-1 slots=99999999999999999999\n"), "expected 1 to 65536 slots"},
        {TEXT("worker-1 slots=4\nworker-1 slots=4\n"), "\"worker-1\" is named twice"},
        {TEXT("worker-1 slots=60000\nworker-2 slots=60000\n"), "120000 devices, more than 65536"},
        {TEXT("worker-1 slots=4; rm\n"), "expected a line such as"},
        {TEXT("worker\0-1 slots=4\n"), "a zero byte"},
        {TEXT("\xff\xfe\n"), "this is UTF-16 text (expected UTF-8)"},
        {TEXT("{\"format\": \"automap-plan-1\"}\n"), "this is a plan, expected a hostfile"},
        {TEXT("SLURM_JOB_ID=3\n"), "expected SLURM_JOB_NODELIST"},
        {TEXT("SLURM_JOB_NODELIST=\n"), "expected at least one host"},
        {TEXT("SLURM_JOB_NODELIST=a[1-\n"), "a bracket of the node list is not closed"},
        {TEXT("SLURM_JOB_NODELIST=a[1-x]\n"), "expected a node list such as"},
        {TEXT("SLURM_JOB_NODELIST=a[3-1]\n"), "expected a node list such as"},
        {TEXT("SLURM_JOB_NODELIST=a[]\n"), "expected a node list such as"},
        {TEXT("SLURM_JOB_NODELIST=a]b\n"), "expected a node list such as"},
        {TEXT("SLURM_JOB_NODELIST=a[0-999999999]\n"), "more than 65536 hosts"},
        {TEXT("SLURM_JOB_NODELIST=a[0-9999][0-9999][0-9999]\n"), "more than 65536 hosts"},
        {TEXT("SLURM_JOB_NODELIST=a[1,1]\n"), "\"a1\" is named twice"},
        {TEXT("SLURM_JOB_NODELIST=a[1-2]\n"),
         "no number of devices for \"a1\" (expected SLURM_GPUS_PER_NODE"},
        {TEXT("SLURM_JOB_NODELIST=a[1-2]\nSLURM_TASKS_PER_NODE=4,4,4\n"), "more numbers than nodes"},
        {TEXT("SLURM_JOB_NODELIST=a[1-3]\nSLURM_TASKS_PER_NODE=4(x2)\n"), "fewer numbers than nodes"},
        {TEXT("SLURM_JOB_NODELIST=a[1-3]\nSLURM_TASKS_PER_NODE=4(y3)\n"), "expected a number for each node"},
        {TEXT("SLURM_JOB_NODELIST=a[1-3]\nSLURM_JOB_NUM_NODES=4\n"), "another number of nodes"},
        {TEXT("SLURM_JOB_NODELIST=a\nSLURM_GPUS_PER_NODE=a100:4,v100:2\n"), "devices of one type"},
        {TEXT("GPU0\n"), "expected a row for each column"},
        {TEXT("GPU0 GPU1\nGPU0 X PIX\nGPU1 SYS X\n"), "the matrix is not symmetric"},
        {TEXT("GPU0 GPU1\nGPU0 X\nGPU1 PIX X\n"), "expected a word for each column"},
        {TEXT("GPU0 GPU1\nGPU0 X NV0\nGPU1 NV0 X\n"), "expected PIX, PXB"},
        {TEXT("GPU0 GPU1\nGPU0 PIX PIX\nGPU1 PIX X\n"), "expected X between"},
        {TEXT("GPU0 GPU1\nGPU1 X PIX\nGPU0 PIX X\n"), "expected a row for each column"},
        {TEXT("{\"results\": 4}"), "$.results: expected an array"},
        {TEXT("{\"results\": []}"), "$.devices: missing"},
        {TEXT("{\"results\": [4]}"), "$.results[0]: expected \"size\""},
        {TEXT("{\"results\": [{\"size\": 8, \"out_of_place\": {\"time\": -1}}]}"),
         "$.results[0]: expected \"time\""},
        {TEXT(
             "{\"results\": [{\"size\": 8, \"in_place\": {\"time\": 1, \"alg_bw\": 1, \"bus_bw\": \"x\"}}]}"),
         "$.results[0]: expected \"alg_bw\""},
        {TEXT("{\"results\": 4"), "not valid JSON"},
        {TEXT("{\"results\": [], \"devices\": [4]}"), "$.devices[0].hostname: expected a string"},
        {TEXT("{\"results\": [], \"devices\": []}"), "measurements: expected at least two sizes"},
        {TEXT("# algbw\n 8 2 float sum\n"), "expected size, count"},
        {TEXT("# algbw\n 12000 2 float sum -1 12 1 1\n 12000 2 float sum -1 12 1 1\n"),
         "expected a size above"},
        {TEXT("# algbw\n 12000 2 float sum -1 12 1 1\n 24000 2 float sum -1 24 1 1\n"),
         "measurements: expected at least two ranks"},
        {TEXT("size(B),count,type,time(ns),busbw(GB/s)\n1048576,262144\n"), "expected size, count, type"},
        {TEXT("size(B),count,type,time(ns),busbw(GB/s)\n"), "measurements: expected at least two sizes"},
        {TEXT("size(B),count,type,time(ns),busbw(GB/s)\n1048576,1,float,51400,80\n"),
         "expected busbw of 2(n-1)/n"},
        {TEXT("size(B),count,type,time(ns),busbw(GB/s)\n1048576,1,float,0,80\n"),
         "expected \"time(ns)\", nanoseconds above 0"},
        {TEXT("size(B),count,type,time(ns),busbw(GB/s)\n1000000,1,float,100000,19.05\n"
              "2000000,1,float,120000,28.57\n"),
         "busbw of another number of ranks (expected 7, as in the last row)"},
        {TEXT("{\"accelerator\""), "JSON"},
        {TEXT("{\"accelerator\": 3}"), "$.accelerator: expected an object"},
        {TEXT("{\"accelerator\": {\"op\": {}}}"), "$.accelerator.op.matmul: missing"},
        {SYSTEM("\"tflops\": -3, \"efficient_factor\": 1", ""), "$.accelerator.op.matmul.tflops: expected"},
        {SYSTEM("\"tflops\": 3, \"efficient_factor\": 1.5", ""),
         "$.accelerator.op.matmul.efficient_factor: expected"},
        {SYSTEM("\"tflops\": 3, \"efficient_factor\": 1, \"accurate_efficient_factor\": {\"b=1, m=0, k=1, "
                "n=1, \": 1}",
                ""),
         "\"b=1, m=0, k=1, n=1, \" (expected "},
        {SYSTEM("\"tflops\": 3, \"efficient_factor\": 1, \"accurate_efficient_factor\": {\"b=1, m=1, k=1, "
                "n=1, \": 1e9}",
                ""),
         "a share of the peak, above 0 and at most 1"},
        {SYSTEM("\"tflops\": 3, \"efficient_factor\": 1, \"accurate_efficient_factor\": {\"b=1, m=1e13, k=1, "
                "n=1, \": 1}",
                ""),
         "expected \"b=1, m=4096"},
        {SYSTEM("\"tflops\": 3, \"efficient_factor\": 1", ", \"num_per_node\": 0, \"networks\": {}"),
         "$.num_per_node: expected"},
        {SYSTEM("\"tflops\": 3, \"efficient_factor\": 1",
                ", \"num_per_node\": 2, \"networks\": {\"inter_node\": 3}"),
         "$.networks.inter_node: expected an object"},
        {SYSTEM("\"tflops\": 3, \"efficient_factor\": 1",
                ", \"num_per_node\": 2, \"networks\": {\"high_intra_node\": {\"bandwidth\": "
                "{\"gbps\": 1e99}}}"),
         "$.networks.high_intra_node.bandwidth.gbps: expected"},
        {TEXT("<system"), "XML"},
        {TEXT("<html></html>"), "XML"},
        {TEXT("<system></system>"), "<gpu>"},
        {TEXT("<system><cpu><pci busid=\"1\"><gpu dev=\"x\"/></pci></cpu></system>"),
         "\"dev\" of each <gpu>"},
        {TEXT("<system><cpu><pci busid=\"1\"><gpu dev=\"0\"/></pci><pci busid=\"2\"><gpu "
              "dev=\"0\"/></pci></cpu>"
              "</system>"),
         "two <gpu> have dev=\"0\""},
        {TEXT("<system><cpu><pci busid=\"1\"><gpu dev=\"0\"/></pci><pci busid=\"1\"><gpu "
              "dev=\"1\"/></pci></cpu>"
              "</system>"),
         "/system/cpu[0]/pci[1]: busid=\"1\" is that of another <gpu>"},
        {TEXT(
             "<system><cpu/><cpu><pci busid=\"1\" link_speed=\"fast\"><gpu dev=\"0\"/></pci></cpu></system>"),
         "/system/cpu[1]/pci[0]: link_speed=\"fast\": expected a number from 1 to 1000"},
        {TEXT("<system><pci link_width=\"128\"/></system>"), "/system/pci[0]: link_width=\"128\""},
        {TEXT("<system><net speed=\"-5\"/></system>"), "/system/net[0]: speed=\"-5\""},
        {TEXT("<system><gpu sm=\"nan\"/></system>"), "/system/gpu[0]: sm=\"nan\""},
        {TEXT("<system><gpu><nvlink count=\"0\"/></gpu></system>"), "/system/gpu[0]/nvlink[0]: count=\"0\""},
        {TEXT("<!DOCTYPE a [<!ENTITY b \"cccc\">]><system>&b;</system>"), "entities are not read"},
        {TEXT("<topology><object type=\"Machine\"/></topology>"), "expected GPUs among the PCI devices"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        Imported self;
        const char *made = write_file(rows[k].text.bytes, rows[k].text.length);
        AmStatus status = IMPORT(&self, "A100-80GB", NULL, made);
        bool lacks_xml = status == AM_ERROR_RUNTIME && rows[k].text.bytes[0] == '<';
        if (!lacks_xml && (status != AM_ERROR_INPUT || !strstr(self.error.text, rows[k].message)))
            fail_msg("row %zu: status %d, \"%s\" does not say \"%s\"", k, status, self.error.text,
                     rows[k].message);
        end(&self);
    }
}

/* Errors and warnings in a hostfile or a table have the line. */
static void places_are_lines(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t line;
    } bad[] = {
        {"a:4\nb:4\nb:4\nc:4\n", 3},
        {"# x\na slots=2 slots=3\n", 2},
        {"# algbw\n# y\n 8 2 float sum\n", 3},
        {"size(B),count,type,time(ns),busbw(GB/s)\n1048576,1,float,-1,80\n", 2},
        {"size(B),count,type,time(ns),busbw(GB/s)\n1000000,1,float,100000,17.14\n"
         "2000000,1,float,100000,38.10\n3000000,1,float,120000,42.85\n",
         3},
    };
    Imported self;
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        const char *made = write_file(bad[k].text, strlen(bad[k].text));
        assert_int_equal(IMPORT(&self, "A100-80GB", NULL, made), AM_ERROR_INPUT);
        if (self.error.line != bad[k].line)
            fail_msg("row %zu: line %d: %s", k, (int)self.error.line, self.error.text);
        end(&self);
    }
    static const char unknown[] = "\xef\xbb\xbf"
                                  "a slots=2\nb slots=2 foo=3 max_slots=4\n";
    const char *made = write_file(unknown, sizeof unknown - 1);
    assert_int_equal(IMPORT(&self, "host", NULL, made), AM_OK);
    assert_int_equal(self.cluster->device_count, 4);
    assert_non_null(strstr(self.warning, ":2: \"foo\" has no effect"));
    end(&self);
}

static void parts_must_fit_together(void **state) {
    (void)state;
    Imported self;
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, SAMPLE("hostfile"), SAMPLE("slurm.env")),
                     AM_ERROR_INPUT);
    assert_non_null(strstr(self.error.text, "names the hosts, as"));
    end(&self);
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, SAMPLE("slurm.env"), SAMPLE("matrix.txt")),
                     AM_ERROR_INPUT);
    assert_non_null(strstr(self.error.text, "\"node001\" has 8 devices, but the server of"));
    end(&self);
    assert_int_equal(IMPORT(&self, "A100-80GB", NULL, SAMPLE("all_reduce.json"), SAMPLE("matrix.txt")),
                     AM_ERROR_INPUT);
    assert_non_null(strstr(self.error.text, "a link inside servers was measured, but"));
    assert_non_null(strstr(self.error.source, "all_reduce.json"));
    end(&self);
    assert_int_equal(IMPORT(&self, "A100-80GB", "roce-100", SAMPLE("matrix.txt")), AM_ERROR_USAGE);
    assert_non_null(strstr(self.error.text, "there is one server"));
    end(&self);
    static const char one[] = "worker-1 slots=4\n";
    assert_int_equal(IMPORT(&self, "A100-80GB", "roce-100", write_file(one, sizeof one - 1)), AM_ERROR_USAGE);
    assert_non_null(strstr(self.error.text, "there is one server"));
    end(&self);
    assert_int_equal(IMPORT(&self, "A101", NULL, SAMPLE("hostfile")), AM_ERROR_USAGE);
    assert_non_null(strstr(self.error.text, "there is no device type \"A101\", expected one of V100-32GB"));
    end(&self);
    assert_int_equal(IMPORT(&self, "H1000", NULL, SAMPLE("hostfile")), AM_ERROR_USAGE);
    assert_non_null(strstr(self.error.text, "did you mean H100?")); /* the short name */
    end(&self);
    Import refused; /* needs no import_end() */
    self = (Imported){0};
    assert_int_equal(import_begin(&refused, &self.arena, "T4", "carrier-pigeon", &self.error),
                     AM_ERROR_USAGE);
    assert_null(refused.links);
    end(&self);
    assert_int_equal(IMPORT(&self, "T4", NULL, "no/such/file"), AM_ERROR_INPUT);
    end(&self);
}

static void every_device_type_is_imported(void **state) {
    (void)state;
    Imported self;
    for (int32_t k = 0; cluster_builtin_device_name(k); k++) {
        const char *name = cluster_builtin_device_name(k);
        const ClusterDeviceLinks *links = cluster_builtin_device_links(name);
        json_t *pcie = cluster_builtin_link(links->pcie);
        if (IMPORT(&self, name, NULL, SAMPLE("hostfile")) != AM_OK) fail_msg("%s: %s", name, self.error.text);
        assert_int_equal(self.cluster->device_count, 8);
        assert_string_equal(cluster_device_type(self.cluster, 0)->name, name);
        assert_non_null(pcie);
        json_decref(pcie);
        end(&self);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_give_servers),
        cmocka_unit_test(node_lists_are_expanded),
        cmocka_unit_test(hostfiles_have_many_forms),
        cmocka_unit_test(parallel_links_count),
        cmocka_unit_test(tables_of_other_releases),
        cmocka_unit_test(near_names_are_proposed),
        cmocka_unit_test(nccl_draws_a_server),
        cmocka_unit_test(a_matrix_draws_a_server),
        cmocka_unit_test(hwloc_gives_cores_or_gpus),
        cmocka_unit_test(measurements_give_a_curve),
        cmocka_unit_test(a_vtrain_table_gives_a_curve),
        cmocka_unit_test(tables_of_aceso_give_links),
        cmocka_unit_test(wrong_tables_of_aceso_are_refused),
        cmocka_unit_test(a_system_gives_products_and_links),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(places_are_lines),
        cmocka_unit_test(parts_must_fit_together),
        cmocka_unit_test(every_device_type_is_imported),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
