/* Parts of a cluster: some of its devices, in another order.
 *
 * A part is a cluster like any other, so that all of a search can work on it: device 0 of the part V100 V100
 * P100 may be device 7 of the cluster. cluster_number() gives the number in the cluster's description.
 */
#include "cost/cluster/cluster.h"
#include "cost/cluster/topology.h"

AmStatus cluster_part(Cluster **part, Arena *arena, const Cluster *of, const int32_t *devices, int32_t count,
                      AmError *error) {
    Cluster *self = ARENA_ARRAY(arena, Cluster, 1);
    int32_t *numbers = ARENA_ARRAY(arena, int32_t, count);
    *part = NULL;
    if (arena->failed) return am_fail_memory(error, count);
    *self = *of;
    self->device_count = count;
    for (int32_t k = 0; k < count; k++) numbers[k] = cluster_number(of, devices[k]);
    self->numbers = numbers;
    self->parent = of->parent ? of->parent : of;
    /* The servers of the listed devices, in their order: one for each run of devices of one server. */
    int32_t *server_of = ARENA_ARRAY(arena, int32_t, self->device_count);
    ClusterServer *servers = ARENA_ARRAY(arena, ClusterServer, self->device_count);
    if (arena->failed) return am_fail_memory(error, self->device_count);
    self->server_count = 0;
    for (int32_t k = 0; k < self->device_count; k++) {
        int32_t server = of->server_of[devices[k]];
        if (k == 0 || server != of->server_of[devices[k - 1]]) {
            servers[self->server_count] = of->servers[server];
            servers[self->server_count].first_device = k;
            servers[self->server_count++].device_count = 0;
        }
        server_of[k] = self->server_count - 1;
        servers[self->server_count - 1].device_count++;
    }
    for (int32_t s = 0; s < self->server_count; s++)
        if (servers[s].device_count == 1) servers[s].link = -1;
    self->servers = servers;
    self->server_of = server_of;
    if (self->server_count == 1) self->between_servers = -1;
    TRY(topology_part(&self->topology, arena, of, devices, count, error));
    cluster_find_sole_links(self);
    self->collectives = collective_cache_create();
    if (!self->collectives) return am_fail_memory(error, 0);
    json_incref(self->description);
    *part = self;
    return AM_OK;
}
