/* The topology that NCCL detects, as NCCL_TOPO_DUMP_FILE writes it.
 *
 *   <system> <cpu numaid> <pci busid link_speed link_width> ... <gpu dev sm>
 *                                                               <nvlink target count tclass>
 *                                                         ... <nic> <net name dev speed>
 *
 * CPUs, PCI bridges and cards become switches. PCIe links have 3/4 of their lanes' signalling rate, as NCCL
 * counts: 12 GB/s for 16 lanes of the third generation. An NVLink has the rate of its generation (by `sm`).
 * All links to NVSwitches together are one edge. Cards are on the rail of their number. Devices are numbered
 * by `dev`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cost/cluster_import/import.h"
#include "propagation/sharding/mesh.h"

typedef struct Gpu {
    int64_t number; /* dev */
    const char *bus;
    const XmlElement *element;
    const char *place;
} Gpu;

typedef struct NcclReader {
    Import *import;
    const char *source;
    AmError *error;
    Gpu *gpus;
    int32_t gpu_count, gpu_capacity, card_count;
} NcclReader;

/* One NVLink, one way, by compute capability. */
static const struct {
    int32_t least_sm;
    double bytes_per_second;
} nvlinks[] = {{100, 40.1e9}, {90, 20.6e9}, {86, 12e9}, {80, 20e9}, {70, 20e9}, {60, 18e9}};

static double number(const XmlElement *element, const char *name) {
    const char *text = xml_attribute(element, name);
    return text ? strtod(text, NULL) : 0;
}

static const XmlElement *child(const XmlElement *element, const char *name) {
    for (const XmlElement *c = element->first_child; c; c = c->next)
        if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

/* Valid values of attributes. NCCL writes 0, -1 or a word for a rate that the system does not
 * report, and a width of 255. */
static const struct {
    const char *element, *attribute;
    double least, most;
    bool may_be_unknown;
} ranges[] = {
    {"pci", "link_speed", 1, 1000, true}, {"pci", "link_width", 1, 64, true}, {"net", "speed", 10, 1e8, true},
    {"nvlink", "count", 1, 1000, false},  {"gpu", "sm", 10, 1000, false},
};

static bool is_unknown(const char *text) {
    static const char *const words[] = {"", "0", "-1", "255", NULL};
    if (strncasecmp(text, "unknown", 7) == 0) return true;
    for (int32_t k = 0; words[k]; k++)
        if (strcmp(text, words[k]) == 0) return true;
    return false;
}

/* Checks "16.0 GT/s PCIe": a number, and its unit after a space. */
static AmStatus check_numbers(const NcclReader *self, const XmlElement *element) {
    for (size_t k = 0; k < sizeof ranges / sizeof *ranges; k++) {
        const char *text = xml_attribute(element, ranges[k].attribute);
        if (strcmp(element->name, ranges[k].element) != 0 || !text) continue;
        if (ranges[k].may_be_unknown && is_unknown(text)) continue;
        char *end;
        double value = strtod(text, &end);
        if (end != text && (*end == 0 || *end == ' ') && value >= ranges[k].least && value <= ranges[k].most)
            continue;
        return am_fail(self->error, AM_ERROR_INPUT, self->source,
                       "%s: %s=\"%.40s\": expected a number from %g to %g",
                       xml_path(self->import->arena, element), ranges[k].attribute, text, ranges[k].least,
                       ranges[k].most);
    }
    for (const XmlElement *c = element->first_child; c; c = c->next) TRY(check_numbers(self, c));
    return AM_OK;
}

static bool has_number(const XmlElement *element, const char *name) {
    const char *text = xml_attribute(element, name);
    return text && !is_unknown(text);
}

static AmStatus find_gpus(NcclReader *self, const XmlElement *element) {
    for (const XmlElement *c = element->first_child; c; c = c->next) {
        const XmlElement *gpu = strcmp(c->name, "pci") == 0 ? child(c, "gpu") : NULL;
        if (gpu) {
            const char *dev = xml_attribute(gpu, "dev"), *bus = xml_attribute(c, "busid");
            char *end;
            int64_t value = dev ? strtol(dev, &end, 10) : -1;
            if (!dev || *end || end == dev || value < 0 || value >= MESH_MAX_DEVICES || !bus)
                return am_fail(
                    self->error, AM_ERROR_INPUT, self->source,
                    "expected a number \"dev\" of each <gpu> and a \"busid\" of the <pci> around it");
            ARENA_RESERVE(self->import->arena, self->gpus, self->gpu_count, self->gpu_capacity);
            if (self->import->arena->failed) return am_fail_memory(self->error, self->gpu_count);
            self->gpus[self->gpu_count++] = (Gpu){.number = value, .bus = bus, .element = gpu};
        }
        TRY(find_gpus(self, c));
    }
    return AM_OK;
}

static int compare_gpus(const void *a, const void *b) {
    int64_t x = ((const Gpu *)a)->number, y = ((const Gpu *)b)->number;
    return (x > y) - (x < y);
}

static void add_nvlinks(NcclReader *self, const Gpu *gpu) {
    const char *sm = xml_attribute(gpu->element, "sm");
    long capability = sm ? strtol(sm, NULL, 10) : 0;
    double rate = self->import->usual->nvlink_bytes_per_second, to_switches = 0;
    for (size_t k = sizeof nvlinks / sizeof *nvlinks; k-- > 0;)
        if (capability >= nvlinks[k].least_sm) rate = nvlinks[k].bytes_per_second;
    for (const XmlElement *link = gpu->element->first_child; link; link = link->next) {
        const char *target = xml_attribute(link, "target"), *class = xml_attribute(link, "tclass");
        double count = number(link, "count");
        if (strcmp(link->name, "nvlink") != 0 || !target || count < 1) continue;
        if (class && strncmp(class, "0x0680", 6) == 0) to_switches += count;
        for (const Gpu *peer = gpu + 1; peer < self->gpus + self->gpu_count; peer++)
            if (strcasecmp(peer->bus, target) == 0)
                import_add_edge(
                    self->import, gpu->place, peer->place,
                    import_link(self->import, "nvlink", count * rate, IMPORT_NVLINK_LATENCY_SECONDS), 1);
    }
    if (to_switches > 0)
        import_add_edge(
            self->import, gpu->place, "nvswitch",
            import_link(self->import, "nvswitch", to_switches * rate, IMPORT_NVLINK_LATENCY_SECONDS / 2), 1);
}

/* Adds the cards of an adapter. Where `pcie` is not NULL each has a place of its own, joined by that
 * link. */
static void add_cards(NcclReader *self, const XmlElement *nic, const char *above, const char *pcie) {
    for (const XmlElement *net = nic->first_child; net; net = net->next) {
        if (strcmp(net->name, "net") != 0) continue;
        char rail[32];
        snprintf(rail, sizeof rail, "/rail%d", self->card_count++);
        const char *link =
            has_number(net, "speed")
                ? import_link(self->import, "network", number(net, "speed") / 8 * 1e6 * IMPORT_NETWORK_SHARE,
                              IMPORT_NETWORK_LATENCY_SECONDS)
                : import_between(self->import, 0.5);
        const char *name = xml_attribute(net, "name"), *place = above;
        if (pcie) {
            place = import_place(self->import, "card", name ? name : rail + 1);
            import_add_edge(self->import, place, above, pcie, 1);
        }
        import_add_edge(self->import, place, rail, link, 1);
    }
}

/* Adds everything below a CPU or a bridge. */
static void add_below(NcclReader *self, const XmlElement *element, const char *place) {
    for (const XmlElement *c = element->first_child; c; c = c->next) {
        if (strcmp(c->name, "nic") == 0) add_cards(self, c, place, NULL);
        if (strcmp(c->name, "pci") != 0) continue;
        /* "16.0 GT/s PCIe" and 16 lanes are 32 GB/s, and 24 with IMPORT_PCIE_SHARE. */
        bool has_both = has_number(c, "link_speed") && has_number(c, "link_width");
        double rate = number(c, "link_speed") * number(c, "link_width") / 8 * 1e9; /* bytes/s */
        const char *pcie = import_pcie(self->import, has_both ? rate * IMPORT_PCIE_SHARE : 0),
                   *bus = xml_attribute(c, "busid");
        const XmlElement *gpu = child(c, "gpu"), *nic = child(c, "nic");
        if (gpu) {
            const Gpu *found = self->gpus;
            while (found->element != gpu) found++;
            import_add_edge(self->import, found->place, place, pcie, 1);
        } else if (nic) {
            add_cards(self, nic, place, pcie);
        } else if (bus) {
            const char *bridge = import_place(self->import, "pci", bus);
            import_add_edge(self->import, bridge, place, pcie, 1);
            add_below(self, c, bridge);
        }
    }
}

AmStatus import_nccl(Import *import, const XmlElement *root, const char *source, AmError *error) {
    NcclReader self = {.import = import, .source = source, .error = error};
    int32_t sockets = 0;
    TRY(import_claim(import, &import->server_source, source, "describes a server", error));
    TRY(check_numbers(&self, root));
    TRY(find_gpus(&self, root));
    if (self.gpu_count == 0 || self.gpu_count > IMPORT_MOST_GPUS)
        return am_fail(self.error, AM_ERROR_INPUT, self.source, "expected 1 to %d <gpu>", IMPORT_MOST_GPUS);
    qsort(self.gpus, (size_t)self.gpu_count, sizeof *self.gpus, compare_gpus);
    for (int32_t k = 0; k < self.gpu_count; k++) {
        if (k > 0 && self.gpus[k].number == self.gpus[k - 1].number)
            return am_fail(self.error, AM_ERROR_INPUT, self.source, "two <gpu> have dev=\"%lld\"",
                           (long long)self.gpus[k].number);
        for (int32_t j = 0; j < k; j++)
            if (strcasecmp(self.gpus[j].bus, self.gpus[k].bus) == 0)
                return am_fail(self.error, AM_ERROR_INPUT, self.source,
                               "%s: busid=\"%.40s\" is that of another <gpu>, too",
                               xml_path(self.import->arena, self.gpus[k].element->parent), self.gpus[k].bus);
        self.gpus[k].place = arena_format(self.import->arena, "device%d", k);
        if (!self.gpus[k].place) return am_fail_memory(self.error, self.gpu_count);
    }
    for (int32_t k = 0; k < self.gpu_count; k++) add_nvlinks(&self, &self.gpus[k]);
    const char *socket_link =
        import_link(import, "socket", IMPORT_SOCKET_BYTES_PER_SECOND, IMPORT_SOCKET_LATENCY_SECONDS);
    for (const XmlElement *c = root->first_child; c; c = c->next) {
        if (strcmp(c->name, "cpu") != 0) continue;
        char place[32];
        snprintf(place, sizeof place, "cpu%d", sockets++);
        add_below(&self, c, place);
        import_add_edge(import, place, "sockets", socket_link, 1);
    }
    import->top = "sockets";
    return import_end_server(import, self.gpu_count, error);
}
