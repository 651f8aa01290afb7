/* Queries of a cluster: efficiencies, links between devices, names.
 *
 * cluster_efficiency() interpolates the measured fraction of a peak over the logarithm of the size.
 * cluster_print() writes the types, the servers and the links for `automap cluster`.
 */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "cost/cluster/topology.h"

double cluster_efficiency(const ClusterCurve *curve, double size) {
    if (curve->count == 0) return 1;
    if (!(size > curve->least)) return curve->fractions[0];
    if (size >= curve->most) return curve->fractions[curve->count - 1];
    double x = log2(size);
    int32_t k = 0;
    while (k < curve->count - 2 && x >= curve->log_sizes[k + 1]) k++;
    double along = (x - curve->log_sizes[k]) / (curve->log_sizes[k + 1] - curve->log_sizes[k]);
    return curve->fractions[k] + along * (curve->fractions[k + 1] - curve->fractions[k]);
}

const ClusterDeviceType *cluster_device_type(const Cluster *cluster, int32_t device) {
    return &cluster->types[cluster->servers[cluster->server_of[device]].type];
}

bool cluster_is_mixed(const Cluster *cluster) {
    for (int32_t d = 1; d < cluster->device_count; d++)
        if (cluster_device_type(cluster, d) != cluster_device_type(cluster, 0)) return true;
    return false;
}

int32_t cluster_group_link(const Cluster *cluster, int32_t servers) {
    if (servers == 1) return cluster->inside_link;
    return cluster->topology->is_derived ? cluster->between_servers : -1;
}

int32_t cluster_link_between(const Cluster *cluster, int32_t a, int32_t b) {
    if (a == b) return -1;
    int32_t server = cluster->server_of[a];
    return server == cluster->server_of[b] ? cluster->servers[server].link : cluster->between_servers;
}

double cluster_host_copy_seconds(const Cluster *cluster, int32_t device, double bytes) {
    double rate = cluster->servers[cluster->server_of[device]].host_bytes_per_second;
    if (rate <= 0) return INFINITY;
    return cluster_device_type(cluster, device)->host_latency_seconds + bytes / rate;
}

int32_t cluster_type_named(const Cluster *cluster, const char *name) {
    const char *alias = cluster_builtin_device_named(name);
    int32_t found = -1;
    for (int32_t t = 0; t < cluster->type_count; t++) {
        bool is_alias = alias && found < 0 && strcmp(cluster->types[t].name, alias) == 0;
        if (strcasecmp(cluster->types[t].name, name) == 0 || is_alias) found = t;
    }
    return found;
}

const char *cluster_device_name(const Cluster *cluster, Arena *arena, int32_t device) {
    if (cluster->parent) return cluster_device_name(cluster->parent, arena, cluster_number(cluster, device));
    int32_t server = cluster->server_of[device];
    return arena_format(arena, "server%d/%s-%d", server, cluster_device_type(cluster, device)->name,
                        device - cluster->servers[server].first_device);
}

int64_t cluster_least_memory(const Cluster *cluster, const int32_t *devices, int32_t count) {
    int64_t least = INT64_MAX;
    if (!devices) count = cluster->device_count;
    for (int32_t k = 0; k < count; k++) {
        int64_t bytes = cluster_device_type(cluster, devices ? devices[k] : k)->memory_bytes;
        if (bytes < least) least = bytes;
    }
    return least;
}

static void print_types(Text *text, const Cluster *cluster) {
    Text rows = {0};
    bool has_prices = false;
    for (int32_t t = 0; t < cluster->type_count; t++) has_prices |= !isnan(cluster->types[t].price_per_hour);
    text_append(&rows, "device\tmemory\tmemory rate\tFLOP/s%s\n", has_prices ? "\tprice per hour" : "");
    for (int32_t t = 0; t < cluster->type_count; t++) {
        const ClusterDeviceType *type = &cluster->types[t];
        text_append(&rows, "%s\t", type->name);
        text_append_bytes_size(&rows, (double)type->memory_bytes);
        text_append_string(&rows, "\t");
        text_append_bytes_size(&rows, type->memory_bytes_per_second);
        text_append_string(&rows, "/s\t");
        const char *separator = "";
        for (int32_t d = 0; d < DTYPE_COUNT; d++) {
            if (!type->named[d]) continue;
            text_append(&rows, "%s%s ", separator, dtype_name((Dtype)d));
            text_append_count(&rows, type->flops_per_second[d]);
            separator = ", ";
        }
        if (!isnan(type->price_per_hour)) text_append(&rows, "\t%.4g", type->price_per_hour);
        else if (has_prices) text_append_string(&rows, "\t-");
        text_append_string(&rows, "\n");
    }
    text_append_table(text, rows.data ? rows.data : "");
    text_free(&rows);
}

/* Prints the links of a graph: the number and the rate of the edges of each. */
static void print_topology(Text *text, const Cluster *cluster) {
    const Topology *topology = cluster->topology;
    Text rows = {0};
    text_append(text, "\ntopology: %d switches, %d edges\n", topology->vertex_count - topology->device_count,
                topology->edge_count);
    text_append_string(&rows, "link\tedges\teach way\tlatency\n");
    for (int32_t link = 0; link < cluster->link_count; link++) {
        int32_t count = 0;
        double least = INFINITY, most = 0, latency = 0;
        for (int32_t e = 0; e < topology->edge_count; e++) {
            const TopologyEdge *edge = &topology->edges[e];
            if (edge->link != link) continue;
            count++;
            least = fmin(least, edge->bytes_per_second);
            most = fmax(most, edge->bytes_per_second);
            latency = fmax(latency, edge->latency_seconds);
        }
        if (count == 0) continue;
        text_append(&rows, "%s\t%d\t", cluster->links[link].name, count);
        text_append_bytes_size(&rows, least);
        text_append_string(&rows, "/s");
        if (most > least) {
            text_append_string(&rows, " to ");
            text_append_bytes_size(&rows, most);
            text_append_string(&rows, "/s");
        }
        text_append_string(&rows, "\t");
        text_append_seconds(&rows, latency);
        text_append_string(&rows, "\n");
    }
    text_append_table(text, rows.data ? rows.data : "");
    text_free(&rows);
}

/* Prints `width` parallel links. */
static void print_link(Text *text, const Cluster *cluster, int32_t link, double width) {
    if (link < 0) return;
    text_append(text, "%s, ", cluster->links[link].name);
    if (width != 1) text_append(text, "width %.4g, ", width);
    text_append_bytes_size(text, cluster->links[link].bytes_per_second * width);
    text_append_string(text, "/s, ");
    text_append_seconds(text, cluster->links[link].latency_seconds);
}

void cluster_print(Text *text, const Cluster *cluster) {
    text_append(text, "cluster %s: %d device%s on %d server%s\n\n", cluster->name, cluster->device_count,
                cluster->device_count == 1 ? "" : "s", cluster->server_count,
                cluster->server_count == 1 ? "" : "s");
    print_types(text, cluster);
    text_append_string(text, "\n");
    Text rows = {0};
    text_append_string(&rows, "servers\tdevices\tlink inside\n");
    for (int32_t s = 0; s < cluster->server_count;) {
        const ClusterServer *server = &cluster->servers[s];
        int32_t first = s++;
        while (s < cluster->server_count && cluster->servers[s].type == server->type &&
               cluster->servers[s].link == server->link && cluster->servers[s].width == server->width &&
               cluster->servers[s].device_count == server->device_count)
            s++;
        text_append(&rows, "%d\t%d x %s\t", s - first, server->device_count,
                    cluster->types[server->type].name);
        print_link(&rows, cluster, server->link, server->width);
        text_append_string(&rows, "\n");
    }
    text_append_table(text, rows.data ? rows.data : "");
    text_free(&rows);
    if (!cluster->topology->is_derived) {
        print_topology(text, cluster);
    } else if (cluster->between_servers >= 0) {
        text_append_string(text, "\nbetween servers: ");
        print_link(text, cluster, cluster->between_servers, 1);
        text_append_string(text, "\n");
    }
}
