/* Choices of a cluster's devices: all that quotas allow, and fewer of them. */
#ifndef PLANNERS_DEVICES_DEVICE_CHOICE_H
#define PLANNERS_DEVICES_DEVICE_CHOICE_H

#include "cost/cluster/cluster.h"
#include "planners/problem/search_scope.h"

enum { DEVICE_CHOICES_MOST = 160 };

/* Devices in the order in which a search takes them, server by server. */
typedef struct DeviceChoice {
    int32_t *devices; /* [count] */
    int32_t count;
    int32_t *of_type;      /* [type] the number of them */
    double price_per_hour; /* of all; NAN: a type has no price */
} DeviceChoice;

typedef struct DeviceChoices {
    DeviceChoice *choices; /* [count] the first one has all devices that quotas allow */
    int32_t count;
    bool is_whole; /* the first one is the cluster in its own order */
} DeviceChoices;

/* Lists the choices. Without scope->request->explores_prices: those without the slowest types; with it:
 * numbers of devices of each type that are 0, a power of two or all, at most DEVICE_CHOICES_MOST choices.
 * With fixed degrees or other decisions about devices, the first choice alone. It has the devices of
 * scope->request->space.initial where that is a plan of this cluster with fewer devices. AM_ERROR_USAGE: a
 * quota of an unknown type, or quotas without a device. */
AmStatus device_choices_list(DeviceChoices *choices, Arena *arena, const PlanContext *primary,
                             const Cluster *cluster, const SearchScope *scope, AmError *error);

#endif
