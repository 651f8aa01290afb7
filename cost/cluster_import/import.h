/* Imports: cluster files from the outputs of launchers and tools.
 *
 * Each file describes a part: a hostfile or a Slurm job the servers and their numbers of devices;
 * the topology of NCCL, hwloc or nvidia-smi the inside of one server; nccl-tests the speed of a
 * link by size; a system of SimuMax products, memory and both links; Aceso's operators products and memory;
 * Sailor's profiles products and links. import_add() recognises a file by its content and adds its part.
 * import_finish() takes missing parts from the built-in clusters and returns a cluster description.
 */
#ifndef COST_CLUSTER_IMPORT_IMPORT_H
#define COST_CLUSTER_IMPORT_IMPORT_H

#include <jansson.h>

#include "base/arena.h"
#include "base/files/file.h"
#include "base/status.h"
#include "cost/cluster/builtin_devices.h"

/* A link of one server. Vertices have their names in the server ("device3", "cpu0"); a vertex whose
 * name starts with '/' is shared by all servers ("/rail0"). */
typedef struct ImportEdge {
    const char *from, *to;
    const char *link; /* a key of `links` */
    double width;     /* parallel links */
} ImportEdge;

typedef struct ImportHost {
    const char *name;
    int32_t devices; /* 0: not given */
    int64_t place;   /* offset in the file that names it */
} ImportHost;

/* Shares of a peak by size: sums over the measurements whose sizes have one binary exponent. */
#define IMPORT_CURVE_BINS 192
typedef struct ImportCurve {
    double sizes[IMPORT_CURVE_BINS]; /* logarithms */
    double shares[IMPORT_CURVE_BINS];
    int32_t counts[IMPORT_CURVE_BINS];
} ImportCurve;

typedef struct Import {
    Arena *arena;
    const char *device_type;
    const ClusterDeviceLinks *usual; /* links of the device type */
    const char *between;             /* a requested built-in link between servers, or NULL */
    json_t *links;                   /* name -> description of a link */

    ImportHost *hosts;
    int32_t host_count, host_capacity;
    const char *hosts_source; /* file that names them, NULL: none did */
    bool has_hostfile;        /* hosts_source is a hostfile: a name without slots is one device */
    bool has_unknown_word;    /* in the hostfile, with a warning for the first one */

    int32_t device_count; /* of a server; 0: not given */
    ImportEdge *edges;
    int32_t edge_count, edge_capacity;
    const char *top;           /* the place from which all of the server is reached, or NULL */
    const char *server_source; /* file that describes it, NULL: none did */
    int64_t memory_bytes;      /* of a device; 0: not given */

    json_t *measured_inside, *measured_between; /* descriptions of links, or NULL */
    const char *inside_source, *between_source; /* their files */
    json_t *measured_hosts;       /* name -> ranks, of the measurement with most hosts, or NULL */
    const char *measured_source;  /* its file */
    bool has_both_links;          /* a file has both links, and one server needs no link between servers */
    json_t *measured_type;        /* members of the device type, in place of the built-in ones; or NULL */
    const char *type_source;      /* file that measures them, NULL: none did */
    ImportCurve products, memory; /* by FLOPs and by bytes */
    bool has_aceso_operators;
    json_t *sailor_layers, *sailor_model; /* files that belong together, or NULL */
    const char *sailor_layers_source, *sailor_model_source;
    AmWarnings warnings; /* assumptions about properties that no file contains */
} Import;

/* Fails with AM_ERROR_USAGE: no such device type, or `between` is no built-in link. */
AmStatus import_begin(Import *import, Arena *arena, const char *device_type, const char *between,
                      AmError *error);
/* Adds a file, "-" (stdin), or "hwloc" (this host). AM_ERROR_INPUT: the file is not recognised, or
 * repeats information of another; AM_ERROR_RUNTIME: this build lacks the library that reads it. */
AmStatus import_add(Import *import, const char *path, AmError *error);
/* Makes the description, the caller's reference. AM_ERROR_INPUT: the parts do not fit together. */
AmStatus import_finish(json_t **description, Import *import, AmError *error);
void import_end(Import *import);

/* Columns of vTrain's tables of all-reduces. */
#define IMPORT_VTRAIN_HEAD "time(ns),busbw"
/* Columns of Aceso's tables of collectives, and names of its tables of transfers. */
#define IMPORT_ACESO_HEAD    "data_size(MB),time(ms)"
#define IMPORT_ACESO_INSIDE  "p2p_intra_node"
#define IMPORT_ACESO_BETWEEN "p2p_inter_node"
bool import_is_aceso(const FileBytes *file);
#define IMPORT_ACESO_OPERATORS "op_name,forward-compute"
bool import_is_sailor(const FileBytes *file);

/* Read files: the readers, one for each kind of file. */
AmStatus import_hostfile(Import *import, const FileBytes *file, AmError *error);
AmStatus import_slurm(Import *import, const FileBytes *file, AmError *error);
AmStatus import_measurements(Import *import, const FileBytes *file, AmError *error);
AmStatus import_matrix(Import *import, const FileBytes *file, AmError *error);
AmStatus import_xml(Import *import, const FileBytes *file, AmError *error);
AmStatus import_simumax(Import *import, const FileBytes *file, AmError *error);
AmStatus import_aceso_operators(Import *import, const FileBytes *file, AmError *error);
AmStatus import_sailor(Import *import, const FileBytes *file, AmError *error);
/* Sets `measured_type` from the operators or the layers of all files, if there are any. */
AmStatus import_operators_finish(Import *import, AmError *error);
AmStatus import_sailor_finish(Import *import, AmError *error);
/* Reads the topology of this host as hwloc writes it, in the arena. */
AmStatus import_this_host(FileBytes *file, Arena *arena, AmError *error);

/* Add parts: the functions by which readers add devices and links. Names are copied. */
void import_add_host(Import *import, const char *name, size_t length, int64_t devices);
void import_add_edge(Import *import, const char *from, const char *to, const char *link, double width);
/* Adds a link of that rate per direction, all parallel links together; returns its name, which
 * contains kind and rate ("pcie-24", "nvswitch-371"). The curve is that of the built-in network
 * links if `kind` is a network, else of the links inside servers. */
const char *import_link(Import *import, const char *kind, double bytes_per_second, double latency_seconds);
/* Returns a PCIe link; 0: that of 16 lanes that is usual for the device type. */
const char *import_pcie(Import *import, double bytes_per_second);
/* Returns the link between servers that was requested, measured, or is usual, with a fraction of its latency:
 * half for an edge from a card to a switch. */
const char *import_between(Import *import, double share);
/* Returns "card-mlx5_0": the name of a vertex, from the name in the file. */
const char *import_place(Import *import, const char *kind, const char *name);
/* Adds a measurement: its share of the peak, at a size of FLOPs or bytes. */
void import_curve_add(ImportCurve *curve, double size, double share);
/* Returns the points [size, share], means over the measurements of similar sizes; the caller's reference.
 * Below them are the points of the built-in curve of that name (NULL: none), with at most the share of the
 * first measured point. */
json_t *import_curve_json(const Import *import, const ImportCurve *curve, const char *built_in);
/* Makes a file the only one with a claim, such as "describes a server": `*owner` becomes a copy of its name.
 * AM_ERROR_INPUT: another file has made the claim. */
AmStatus import_claim(Import *import, const char **owner, const char *source, const char *claim,
                      AmError *error);
/* Ends the description of a server. AM_ERROR_INPUT: it has too many links. */
AmStatus import_end_server(Import *import, int32_t devices, AmError *error);

/* Bytes per second and direction between two sockets, if no file contains the rate. */
#define IMPORT_SOCKET_BYTES_PER_SECOND 16e9
#define IMPORT_SOCKET_LATENCY_SECONDS  1e-6
#define IMPORT_NVLINK_LATENCY_SECONDS  4e-6 /* from device to device; of a switch half of it each */
#define IMPORT_NETWORK_LATENCY_SECONDS 5e-6 /* from a card to its switch */
/* The fraction of a network card's signalling rate that carries data: 12 GB/s of 12.5 at 100 Gb/s. */
#define IMPORT_NETWORK_SHARE 0.96
/* The fraction of PCIe's signalling rate that carries data: 12 GB/s of 16 in the third generation. */
#define IMPORT_PCIE_SHARE 0.75

#define IMPORT_MOST_GPUS 256 /* of a server */

/* An XML element; children and attributes in file order. */
typedef struct XmlElement {
    const char *name;
    const char *const *attributes; /* name, value, name, value, ..., NULL */
    struct XmlElement *first_child, *last_child, *next, *parent;
} XmlElement;
/* Returns an attribute; NULL where it has none of that name. */
const char *xml_attribute(const XmlElement *element, const char *name);
/* Returns "/system/cpu[0]/pci[1]", elements of one name counted from 0; in the arena, "" without memory. */
const char *xml_path(Arena *arena, const XmlElement *element);
AmStatus import_nccl(Import *import, const XmlElement *root, const char *source, AmError *error);
AmStatus import_hwloc(Import *import, const XmlElement *root, const char *source, AmError *error);

#endif
