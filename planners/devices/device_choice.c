/* Lists choices of devices as numbers of devices of each type.
 *
 * A number n of a type means its first n devices in the order of device_order_list(), so that servers are
 * used up one after another.
 */
#include "planners/devices/device_choice.h"

#include <math.h>
#include <string.h>

#include "base/suggest.h"
#include "base/text.h"
#include "planners/devices/device_order.h"
#include "planners/problem/placement.h"

enum { MOST_LEVELS = 20 };

typedef struct Lister {
    Arena *arena;
    const Cluster *cluster;
    DeviceChoices *choices;
    int32_t *order;   /* [device_count] all devices */
    int32_t *most;    /* [type] by quotas */
    int32_t *ranking; /* [type] the types in the order of their first devices: the slowest is last */
    AmError *error;
} Lister;

/* Adds the choice with so many devices of each type. */
static AmStatus add_choice(Lister *self, const int32_t *of_type) {
    const Cluster *cluster = self->cluster;
    int32_t types = cluster->type_count;
    DeviceChoice *choice = &self->choices->choices[self->choices->count];
    *choice = (DeviceChoice){.devices = ARENA_ARRAY(self->arena, int32_t, cluster->device_count),
                             .of_type = ARENA_ARRAY(self->arena, int32_t, types)};
    if (self->arena->failed) return am_fail_memory(self->error, cluster->device_count);
    for (int32_t k = 0; k < cluster->device_count; k++) {
        int32_t type = cluster->servers[cluster->server_of[self->order[k]]].type;
        if (choice->of_type[type] == of_type[type]) continue;
        choice->of_type[type]++;
        choice->devices[choice->count++] = self->order[k];
    }
    for (int32_t t = 0; t < types; t++)
        if (of_type[t] > 0) choice->price_per_hour += of_type[t] * cluster->types[t].price_per_hour;
    self->choices->count++;
    return AM_OK;
}

static AmStatus fail_type(const Lister *self, const DeviceQuota *quota) {
    const Cluster *cluster = self->cluster;
    char hint[SUGGEST_HINT_BYTES] = "";
    Text names = {0};
    const char **list = ARENA_ARRAY(self->arena, const char *, cluster->type_count);
    for (int32_t t = 0; t < cluster->type_count; t++) {
        text_append(&names, "%s%s", t ? ", " : "", cluster->types[t].name);
        if (list) list[t] = cluster->types[t].name;
    }
    if (list) suggest_hint(hint, quota->type, list, (size_t)cluster->type_count);
    bool has_memory = list && !names.failed;
    if (has_memory)
        am_fail(self->error, AM_ERROR_USAGE, "",
                "--quota %s=%d: cluster %s has no such device type (expected %s%s)%s", quota->type,
                quota->most, cluster->name, cluster->type_count > 1 ? "one of " : "", names.data, hint);
    text_free(&names);
    return has_memory ? AM_ERROR_USAGE : am_fail_memory(self->error, 0);
}

/* Sets the largest numbers of devices by the quotas. */
static AmStatus read_quotas(Lister *self, const SearchScope *scope) {
    const Cluster *cluster = self->cluster;
    int32_t count = 0;
    for (int32_t s = 0; s < cluster->server_count; s++)
        self->most[cluster->servers[s].type] += cluster->servers[s].device_count;
    for (int32_t k = 0; k < scope->request->devices.quota_count; k++) {
        const DeviceQuota *quota = &scope->request->devices.quotas[k];
        int32_t type = cluster_type_named(cluster, quota->type);
        if (type < 0) return fail_type(self, quota);
        for (int32_t b = 0; b < k; b++)
            if (cluster_type_named(cluster, scope->request->devices.quotas[b].type) == type)
                return am_fail(self->error, AM_ERROR_USAGE, "",
                               "--quota %s=%d and --quota %s=%d: expected one quota of %s",
                               scope->request->devices.quotas[b].type, scope->request->devices.quotas[b].most,
                               quota->type, quota->most, cluster->types[type].name);
        if (quota->most < self->most[type]) self->most[type] = quota->most;
    }
    for (int32_t t = 0; t < cluster->type_count; t++) count += self->most[t];
    if (count > 0) return AM_OK;
    return am_fail(self->error, AM_ERROR_USAGE, "", "--quota: no device of cluster %s is left",
                   cluster->name);
}

/* Leaves out the slowest type, the two slowest, and so on. */
static AmStatus add_fast_types(Lister *self, int32_t *numbers) {
    memcpy(numbers, self->most, sizeof *numbers * (size_t)self->cluster->type_count);
    for (int32_t k = self->cluster->type_count - 1; k > 0; k--) {
        if (self->ranking[k] < 0) continue;
        numbers[self->ranking[k]] = 0;
        TRY(add_choice(self, numbers));
    }
    return AM_OK;
}

typedef struct Levels {
    int32_t numbers[MOST_LEVELS], count;
} Levels;

/* Counts the products of the numbers of levels, and finds the type with most levels. */
static double count_products(const Levels *levels, int32_t types, int32_t *longest) {
    double products = 1;
    *longest = 0;
    for (int32_t t = 0; t < types; t++) {
        products *= levels[t].count;
        if (levels[t].count > levels[*longest].count) *longest = t;
    }
    return products;
}

static AmStatus add_products(Lister *self, int32_t *numbers) {
    int32_t types = self->cluster->type_count, longest;
    Levels *levels = ARENA_ARRAY(self->arena, Levels, types);
    if (!levels) return am_fail_memory(self->error, types);
    for (int32_t t = 0; t < types; t++) { /* 0, the powers of two below the most, and the most */
        Levels *of = &levels[t];
        *of = (Levels){.count = 1};
        for (int32_t n = 1; n < self->most[t] && of->count < MOST_LEVELS - 1; n *= 2)
            of->numbers[of->count++] = n;
        if (self->most[t] > 0) of->numbers[of->count++] = self->most[t];
    }
    while (count_products(levels, types, &longest) > DEVICE_CHOICES_MOST && levels[longest].count > 2) {
        /* leaves out every second level between the first and the last one */
        Levels *of = &levels[longest];
        int32_t last = of->numbers[of->count - 1], kept = 1;
        for (int32_t k = 2; k < of->count - 1; k += 2) of->numbers[kept++] = of->numbers[k];
        of->numbers[kept++] = last;
        of->count = kept;
    }
    double products = count_products(levels, types, &longest);
    for (int32_t k = 1; k < products && self->choices->count < DEVICE_CHOICES_MOST; k++) {
        bool is_all = true;
        for (int32_t t = 0, rest = k; t < types; rest /= levels[t++].count) {
            numbers[t] = levels[t].numbers[rest % levels[t].count];
            is_all &= numbers[t] == self->most[t];
        }
        if (!is_all) TRY(add_choice(self, numbers));
    }
    return AM_OK;
}

/* Leaves out the devices that no pin of devices names: no operator may be left for them. */
static AmStatus add_pinned_devices(Lister *self, const SearchScope *scope) {
    const Cluster *cluster = self->cluster;
    const PropagationPin *pins = scope->request->constraints.pins;
    DeviceChoice *choice = &self->choices->choices[self->choices->count];
    bool *named = ARENA_ARRAY(self->arena, bool, cluster->device_count);
    int32_t all = self->choices->choices[0].count, kept = 0;
    if (!named) return am_fail_memory(self->error, cluster->device_count);
    for (int32_t k = 0; k < scope->request->constraints.pin_count; k++) {
        char unknown[PIN_ARGUMENT_BYTES];
        if (pin_kind(&pins[k]) == PIN_DEVICES && !placement_mark_devices(named, unknown, cluster, &pins[k]))
            return AM_OK;
    }
    TRY(add_choice(self, self->most));
    for (int32_t k = 0; k < all; k++) {
        int32_t device = choice->devices[k], type = cluster->servers[cluster->server_of[device]].type;
        if (named[device]) {
            choice->devices[kept++] = device;
            continue;
        }
        choice->of_type[type]--;
        choice->price_per_hour -= cluster->types[type].price_per_hour;
    }
    choice->count = kept;
    if (kept == 0 || kept == all) self->choices->count--;
    return AM_OK;
}

/* Leaves the devices of the plan to start from, if it was made for a part of this cluster. */
static void keep_given_devices(DeviceChoice *choice, const Cluster *cluster, const Plan *initial) {
    int32_t devices = 0, count = 0;
    if (!initial || strcmp(initial->cluster_sha256, cluster->sha256) != 0) return;
    for (int32_t s = 0; s < initial->stage_count; s++) devices += initial->stages[s].mesh.device_count;
    if (devices >= cluster->device_count) return;
    for (int32_t k = 0; k < choice->count; k++) {
        int32_t device = choice->devices[k];
        bool is_kept = false;
        for (int32_t s = 0; s < initial->stage_count; s++)
            for (int32_t d = 0; d < initial->stages[s].mesh.device_count; d++)
                is_kept |= initial->stages[s].devices[d] == device;
        if (is_kept) choice->devices[count++] = device;
        else choice->of_type[cluster->servers[cluster->server_of[device]].type]--;
    }
    choice->count = count;
}

AmStatus device_choices_list(DeviceChoices *choices, Arena *arena, const PlanContext *primary,
                             const Cluster *cluster, const SearchScope *scope, AmError *error) {
    const SpaceRequest *space = &scope->request->space;
    int32_t types = cluster->type_count;
    *choices = (DeviceChoices){.is_whole = true};
    Lister self = {.arena = arena, .cluster = cluster, .choices = choices, .error = error};
    choices->choices = ARENA_ARRAY(arena, DeviceChoice, DEVICE_CHOICES_MOST + types);
    self.order = ARENA_ARRAY(arena, int32_t, cluster->device_count);
    self.most = ARENA_ARRAY(arena, int32_t, types);
    self.ranking = ARENA_ARRAY(arena, int32_t, types);
    int32_t *numbers = ARENA_ARRAY(arena, int32_t, types);
    if (arena->failed) return am_fail_memory(error, cluster->device_count);
    if (scope->request->devices.keeps_order) {
        for (int32_t d = 0; d < cluster->device_count; d++) self.order[d] = d;
    } else {
        TRY(device_order_list(self.order, &choices->is_whole, cluster, error));
        TRY(device_order_follow_pins(self.order, &choices->is_whole, primary, cluster,
                                     &scope->request->constraints, error));
    }
    TRY(read_quotas(&self, scope));
    int32_t count = 0; /* of the ranking: types by their first device in the order */
    for (int32_t k = 0; k < self.cluster->device_count; k++) {
        int32_t type = self.cluster->servers[self.cluster->server_of[self.order[k]]].type, at = 0;
        while (at < count && self.ranking[at] != type) at++;
        if (at == count && self.most[type] > 0) self.ranking[count++] = type;
    }
    for (; count < self.cluster->type_count; count++) self.ranking[count] = -1;
    TRY(add_choice(&self, self.most));
    keep_given_devices(&choices->choices[0], cluster, space->initial);
    choices->is_whole &= choices->choices[0].count == cluster->device_count;
    /* The number of devices is open, but for pins and degrees. */
    bool is_free = !space->mesh && !scope->request->constraints.kept && !space->initial &&
                   !scope->request->devices.keeps_order && scope->searcher != SEARCHER_BASELINE &&
                   scope->searcher != SEARCHER_RANDOM;
    if (!is_free) return AM_OK;
    if (scope->request->constraints.pin_count > 0) return add_pinned_devices(&self, scope);
    if (!degrees_are_free(&scope->request->constraints.degrees)) return AM_OK;
    return scope->request->explores_prices ? add_products(&self, numbers) : add_fast_types(&self, numbers);
}
