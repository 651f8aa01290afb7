/* hwloc's description of a machine (lstopo --of xml, or of this host).
 *
 * For the device type "host" the devices are the cores; several packages are joined by the link
 * between sockets, and each core has its share of the memory. For any other type the devices are
 * the GPUs among the PCI devices (by class and vendor), joined by the bridges above them. Cards
 * have the usual link between servers, since hwloc does not report their rate.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cost/cluster_import/import.h"
#include "propagation/sharding/mesh.h"

typedef struct HwlocReader {
    Import *import;
    int32_t packages, cores, gpus, cards, bridges;
    double memory;
} HwlocReader;

static bool is_type(const XmlElement *object, const char *type) {
    const char *own = strcmp(object->name, "object") == 0 ? xml_attribute(object, "type") : NULL;
    return own && strcmp(own, type) == 0;
}

static void count_parts(HwlocReader *self, const XmlElement *element) {
    for (const XmlElement *c = element->first_child; c; c = c->next) {
        const char *memory = is_type(c, "NUMANode") ? xml_attribute(c, "local_memory") : NULL;
        self->packages += is_type(c, "Package");
        self->cores += is_type(c, "Core");
        if (memory) self->memory += strtod(memory, NULL);
        count_parts(self, c);
    }
}

/* Returns the link with the rate of hwloc: GB/s after the encoding, 0 if the system does not report it. */
static const char *pcie_link(HwlocReader *self, const XmlElement *object) {
    const char *speed = xml_attribute(object, "pci_link_speed");
    double rate = speed ? strtod(speed, NULL) : 0;
    return import_pcie(self->import, rate > 0.01 && rate < 1e4 ? rate * 1e9 * IMPORT_PCIE_SHARE : 0);
}

static void add_pci_device(HwlocReader *self, const XmlElement *object, const char *above) {
    const char *pci = xml_attribute(object, "pci_type"), *bus = xml_attribute(object, "pci_busid");
    char device[32], rail[32];
    if (!pci || !bus) return;
    /* A display or 3D controller of NVIDIA or AMD: "0302 [10de:20b0] [...] a1"; a network controller. */
    bool is_display = strncmp(pci, "0300", 4) == 0 || strncmp(pci, "0302", 4) == 0;
    bool is_gpu = is_display && (strstr(pci, "[10de:") || strstr(pci, "[1002:"));
    bool is_card = strncmp(pci, "0200", 4) == 0 || strncmp(pci, "0207", 4) == 0;
    if (is_gpu) {
        snprintf(device, sizeof device, "device%d", self->gpus++);
        import_add_edge(self->import, device, above, pcie_link(self, object), 1);
    } else if (is_card) {
        const char *card = import_place(self->import, "card", bus);
        snprintf(rail, sizeof rail, "/rail%d", self->cards++);
        import_add_edge(self->import, card, above, pcie_link(self, object), 1);
        import_add_edge(self->import, card, rail, import_between(self->import, 0.5), 1);
    }
}

/* Adds the PCI devices below an object, joined to the place above them. */
static void add_below(HwlocReader *self, const XmlElement *element, const char *above) {
    const char *const socket = self->packages > 1
                                   ? import_link(self->import, "socket", IMPORT_SOCKET_BYTES_PER_SECOND,
                                                 IMPORT_SOCKET_LATENCY_SECONDS)
                                   : NULL;
    for (const XmlElement *c = element->first_child; c; c = c->next) {
        const char *place = above, *kind = xml_attribute(c, "bridge_type");
        if (is_type(c, "Package") && socket) {
            const char *number = xml_attribute(c, "os_index");
            place = import_place(self->import, "package", number ? number : "0");
            import_add_edge(self->import, place, above, socket, 1);
        } else if (is_type(c, "Bridge") && kind && kind[0] == '1') {
            place = arena_format(self->import->arena, "bridge%d", self->bridges++);
            if (!place) return;
            import_add_edge(self->import, place, above, pcie_link(self, c), 1);
        } else if (is_type(c, "PCIDev")) {
            add_pci_device(self, c, above);
        }
        add_below(self, c, place);
    }
}

/* Cores of packages; `package`: the one that the element is in. */
static void add_cores(HwlocReader *self, const XmlElement *element, const char *package, const char *memory) {
    for (const XmlElement *c = element->first_child; c; c = c->next) {
        const char *inside = package;
        if (is_type(c, "Package")) {
            inside = arena_format(self->import->arena, "package%d", self->packages++);
            if (!inside) return;
            import_add_edge(self->import, inside, "machine",
                            import_link(self->import, "socket", IMPORT_SOCKET_BYTES_PER_SECOND,
                                        IMPORT_SOCKET_LATENCY_SECONDS),
                            1);
        } else if (is_type(c, "Core") && package) {
            char device[32];
            snprintf(device, sizeof device, "device%d", self->cores++);
            import_add_edge(self->import, device, package, memory, 1);
        }
        add_cores(self, c, inside, memory);
    }
}

AmStatus import_hwloc(Import *import, const XmlElement *root, const char *source, AmError *error) {
    HwlocReader self = {.import = import};
    TRY(import_claim(import, &import->server_source, source, "describes a server", error));
    count_parts(&self, root);
    import->top = "machine";
    if (strcmp(import->device_type, "host") != 0) {
        add_below(&self, root, "machine");
        if (self.gpus == 0)
            return am_fail(error, AM_ERROR_INPUT, source,
                           "expected GPUs among the PCI devices (the device type \"host\" takes cores)");
        return import_end_server(import, self.gpus, error);
    }
    if (self.cores == 0 || self.cores > MESH_MAX_DEVICES)
        return am_fail(error, AM_ERROR_INPUT, source, "expected 1 to %d cores", MESH_MAX_DEVICES);
    int32_t cores = self.cores;
    if (self.memory >= cores && self.memory <= 0x1p53) import->memory_bytes = (int64_t)(self.memory / cores);
    if (self.packages > 1) {
        self.cores = self.packages = 0;
        const char *memory = import_link(import, "memory", 4e9, 2e-6);
        add_cores(&self, root, NULL, memory);
    } else {
        import->top = NULL;
    }
    return import_end_server(import, cores, error);
}
