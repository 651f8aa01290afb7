/* Imports: cluster files made from what launchers and tools already know.
 *
 * Each file tells a part: a hostfile or a Slurm job which servers there are and how
 * many devices they have; the topology of NCCL, hwloc or nvidia-smi what one server
 * looks like inside; nccl-tests how fast a link is at which size. import_add()
 * recognises a file by its content and adds its part; import_finish() fills in what
 * nobody told from the built-in clusters and gives a cluster description.
 */
#ifndef COST_IMPORT_H
#define COST_IMPORT_H

#include <jansson.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/status.h"

/* A link of one server. Places are named as they are in the server ("device3",
 * "cpu0"); a place whose name starts with '/' is one for all servers ("/rail0"). */
typedef struct ImportEdge {
    const char *from, *to;
    const char *link; /* a key of `links` */
    double width;     /* parallel links */
} ImportEdge;

typedef struct ImportHost {
    const char *name;
    int32_t devices; /* 0: not told */
} ImportHost;

/* What is known of a built-in device type's surroundings. */
typedef struct ImportType {
    const char *device_type;
    const char *inside, *pcie, *between; /* built-in links */
    double nvlink_bytes_per_second;      /* of one NVLink, one way */
    int32_t nvlinks;                     /* that a device has */
} ImportType;

typedef struct Import {
    Arena *arena;
    const ImportType *type;
    const char *between; /* a built-in link between servers that was asked for, or NULL */
    json_t *links;       /* name -> description of a link */

    ImportHost *hosts;
    int32_t host_count, host_capacity;
    const char *hosts_source; /* file that names them, NULL: none did */
    bool has_hostfile;        /* hosts_source is a hostfile: a name without slots is one device */

    int32_t device_count; /* of a server; 0: not told */
    ImportEdge *edges;
    int32_t edge_count, edge_capacity;
    const char *top;           /* the place from which all of the server is reached, or NULL */
    const char *server_source; /* file that describes it, NULL: none did */
    int64_t memory_bytes;      /* of a device; 0: not told */

    json_t *measured_inside, *measured_between; /* descriptions of links, or NULL */
    json_t *measured_hosts;      /* name -> ranks, of the measurement with most hosts, or NULL */
    const char *measured_source; /* its file */
    AmWarnings warnings;         /* what was taken to be so, since no file tells it */
} Import;

/* AM_ERROR_USAGE: no such device type, or `between` is no built-in link. */
AmStatus import_begin(Import *import, Arena *arena, const char *device_type, const char *between,
                      AmError *error);
/* A file, "-" (stdin), or "hwloc": this host. AM_ERROR_INPUT: it is none that can be
 * recognised, or says what another one said already; AM_ERROR_RUNTIME: this build
 * lacks the library that reads it. */
AmStatus import_add(Import *import, const char *path, AmError *error);
/* The description, the caller's reference. AM_ERROR_INPUT: the parts do not fit together. */
AmStatus import_finish(json_t **description, Import *import, AmError *error);
void import_end(Import *import);

/* The readers, one for each kind of file. */
AmStatus import_hostfile(Import *import, const FileBytes *file, AmError *error);
AmStatus import_slurm(Import *import, const FileBytes *file, AmError *error);
AmStatus import_measurements(Import *import, const FileBytes *file, AmError *error);
AmStatus import_matrix(Import *import, const FileBytes *file, AmError *error);
AmStatus import_xml(Import *import, const FileBytes *file, AmError *error);
/* The topology of this host as hwloc writes it, in the arena. */
AmStatus import_this_host(FileBytes *file, Arena *arena, AmError *error);

/* What readers add. Names are copied. */
void import_add_host(Import *import, const char *name, size_t length, int64_t devices);
void import_add_edge(Import *import, const char *from, const char *to, const char *link, double width);
/* A link of so many bytes a second each way, all parallel links together; returns its name, which tells kind
 * and rate ("pcie-24", "nvswitch-371"). The curve is that of the built-in links of a network, where `kind` is
 * that, else of those inside. */
const char *import_link(Import *import, const char *kind, double bytes_per_second, double latency_seconds);
/* A PCIe link; 0: that of 16 lanes that is usual for the device type. */
const char *import_pcie(Import *import, double bytes_per_second);
/* The link between servers that was asked for, was measured, or is usual, with a share of its latency:
 * half of it where it is an edge from a card to a switch. */
const char *import_between(Import *import, double share);
/* "card-mlx5_0": a place named after what the file calls it. */
const char *import_place(Import *import, const char *kind, const char *name);
/* AM_ERROR_INPUT if another file has described a server already. */
AmStatus import_claim_server(Import *import, const char *source, AmError *error);
/* All of a server is told. AM_ERROR_INPUT: it has too many links. */
AmStatus import_end_server(Import *import, int32_t devices, AmError *error);

/* Bytes a second each way between two sockets, where no file tells more. */
#define IMPORT_SOCKET_BYTES_PER_SECOND 16e9
#define IMPORT_SOCKET_LATENCY_SECONDS  1e-6
#define IMPORT_NVLINK_LATENCY_SECONDS  4e-6 /* from device to device; of a switch half of it each */
#define IMPORT_NETWORK_LATENCY_SECONDS 5e-6 /* from a card to its switch */
/* Of what a network card signals so much is left for data: 12 GB/s of 12.5 at 100 Gb/s. */
#define IMPORT_NETWORK_SHARE 0.96
/* Of what PCIe signals so much is left for data: 12 GB/s of 16 in the third generation. */
#define IMPORT_PCIE_SHARE 0.75

#define IMPORT_MOST_GPUS 256 /* of a server */

/* An XML element; children and attributes in file order. */
typedef struct XmlElement {
    const char *name;
    const char *const *attributes; /* name, value, name, value, ..., NULL */
    struct XmlElement *first_child, *last_child, *next, *parent;
} XmlElement;
/* NULL where it has none of that name. */
const char *xml_attribute(const XmlElement *element, const char *name);
/* "/system/cpu[0]/pci[1]", elements of one name counted from 0; in the arena, "" without memory. */
const char *xml_path(Arena *arena, const XmlElement *element);
AmStatus import_nccl(Import *import, const XmlElement *root, const char *source, AmError *error);
AmStatus import_hwloc(Import *import, const XmlElement *root, const char *source, AmError *error);

#endif
