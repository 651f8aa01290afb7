/* The store of a profile: a table of keys, each with its samples.
 *
 * Between sizes: the samples nearest in the logarithms of the sizes, each scaled
 * from its work to the requested work, averaged geometrically with weights that
 * fall with the square of the distance,
 *
 *   seconds = exp( sum w_i ln(s_i W / W_i) / sum w_i ),   w_i = 1 / d_i^2
 *
 * over at most NEAREST of them. An equal size (d = 0) is the answer itself.
 */
#include "cost/operator/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/file.h"
#include "base/files/file_format.h"
#include "base/files/json.h"
#include "base/hash.h"
#include "cost/operator/measured_events.h"

enum { NEAREST = 4, FIRST_SLOTS = 256, MOST_EVENTS = 1 << 20, MOST_SAMPLES = 4096 };

typedef struct Sample {
    const double *sizes;
    double work, seconds;
    int32_t count; /* measurements; `seconds` is their mean */
    ProfileSource source;
} Sample;

typedef struct Event {
    const char *key;
    uint64_t hash;
    int32_t size_count, sample_count, sample_capacity;
    Sample *samples;
} Event;

struct ProfileType {
    const char *name;
    Event *events;
    int32_t count, capacity;
    int32_t *slots; /* [slot_count], a power of two: event + 1, 0 where free */
    int32_t slot_count;
};

struct Profile {
    Arena arena;
    ProfileType **types;
    int32_t type_count, type_capacity;
};

AmStatus profile_open(Profile **profile, AmError *error) {
    *profile = calloc(1, sizeof **profile);
    return *profile ? AM_OK : am_fail_memory(error, (int64_t)sizeof **profile);
}

void profile_close(Profile *profile) {
    if (!profile) return;
    arena_free(&profile->arena);
    free(profile);
}

static ProfileType *find_type(const Profile *profile, const char *name) {
    for (int32_t t = 0; t < profile->type_count; t++)
        if (strcmp(profile->types[t]->name, name) == 0) return profile->types[t];
    return NULL;
}

static ProfileType *make_type(Profile *profile, const char *name) {
    Arena *arena = &profile->arena;
    ProfileType *type = find_type(profile, name);
    if (type) return type;
    ARENA_RESERVE(arena, profile->types, profile->type_count, profile->type_capacity);
    type = ARENA_ARRAY(arena, ProfileType, 1);
    int32_t *slots = ARENA_ARRAY(arena, int32_t, FIRST_SLOTS);
    const char *copy = arena_copy_string(arena, name);
    if (arena->failed) return NULL;
    *type = (ProfileType){.name = copy, .slots = slots, .slot_count = FIRST_SLOTS};
    return profile->types[profile->type_count++] = type;
}

static uint64_t hash_of(const StepEvent *event) {
    return hash_bytes(event->key.data, event->key.length, 0);
}

static const Event *find_event(const ProfileType *type, const StepEvent *wanted, uint64_t hash) {
    uint64_t mask = (uint64_t)type->slot_count - 1;
    for (uint64_t s = hash & mask; type->slots[s]; s = (s + 1) & mask) {
        const Event *event = &type->events[type->slots[s] - 1];
        if (event->hash == hash && event->size_count == wanted->size_count &&
            strcmp(event->key, wanted->key.data) == 0)
            return event;
    }
    return NULL;
}

static void put_event(ProfileType *type, int32_t event) {
    uint64_t mask = (uint64_t)type->slot_count - 1, s = type->events[event].hash & mask;
    while (type->slots[s]) s = (s + 1) & mask;
    type->slots[s] = event + 1;
}

static Event *make_event(Profile *profile, ProfileType *type, const StepEvent *of) {
    Arena *arena = &profile->arena;
    uint64_t hash = hash_of(of);
    const Event *known = find_event(type, of, hash);
    if (known) return &type->events[known - type->events];
    ARENA_RESERVE(arena, type->events, type->count, type->capacity);
    const char *key = arena_copy_bytes(arena, of->key.data, of->key.length);
    bool grows = 2 * (type->count + 1) > type->slot_count;
    int32_t *slots = grows ? ARENA_ARRAY(arena, int32_t, 2 * type->slot_count) : type->slots;
    if (arena->failed) return NULL;
    type->events[type->count] = (Event){.key = key, .hash = hash, .size_count = of->size_count};
    if (grows) {
        type->slots = slots;
        type->slot_count *= 2;
        for (int32_t k = 0; k < type->count; k++) put_event(type, k);
    }
    put_event(type, type->count);
    return &type->events[type->count++];
}

static bool has_sizes(const Sample *sample, const StepEvent *event) {
    return event->size_count == 0 ||
           memcmp(sample->sizes, event->sizes, sizeof(double) * (size_t)event->size_count) == 0;
}

/* Finds the sample of these sizes; `*sample` is created with a count of 0 if missing, and is NULL
 * if the event has MOST_SAMPLES of them. */
static AmStatus find_sample(Sample **sample, Profile *profile, const char *device_type, ProfileSource source,
                            const StepEvent *of, double work, AmError *error) {
    ProfileType *type = make_type(profile, device_type);
    Event *event = type && type->count < MOST_EVENTS ? make_event(profile, type, of) : NULL;
    if (!event) return am_fail_memory(error, MOST_EVENTS);
    for (int32_t k = 0; k < event->sample_count; k++) {
        *sample = &event->samples[k];
        if ((*sample)->source == source && has_sizes(*sample, of)) return AM_OK;
    }
    *sample = NULL;
    if (event->sample_count == MOST_SAMPLES) return AM_OK;
    Arena *arena = &profile->arena;
    ARENA_RESERVE(arena, event->samples, event->sample_count, event->sample_capacity);
    double *sizes = ARENA_ARRAY(arena, double, of->size_count + 1);
    if (arena->failed) return am_fail_memory(error, event->sample_count);
    for (int32_t k = 0; k < of->size_count; k++) sizes[k] = of->sizes[k];
    *sample = &event->samples[event->sample_count++];
    **sample = (Sample){.sizes = sizes, .work = work, .source = source};
    return AM_OK;
}

AmStatus profile_add(Profile *profile, const char *device_type, ProfileSource source, const StepEvent *of,
                     double work, double seconds, AmError *error) {
    Sample *sample;
    TRY(find_sample(&sample, profile, device_type, source, of, work, error));
    if (!sample) return AM_OK;
    if (sample->count < INT32_MAX) sample->count++;
    sample->seconds += (seconds - sample->seconds) / sample->count;
    return AM_OK;
}

/* Adds the samples of an event; of two equal ones the shorter stays. */
static AmStatus merge_event(Profile *profile, const char *device_type, const Event *from, AmError *error) {
    StepEvent event = {.size_count = from->size_count};
    AmStatus status = AM_OK;
    text_append_string(&event.key, from->key);
    if (event.key.failed) status = am_fail_memory(error, (int64_t)strlen(from->key));
    for (int32_t k = 0; k < from->sample_count && status == AM_OK; k++) {
        const Sample *sample = &from->samples[k];
        Sample *own = NULL;
        for (int32_t d = 0; d < from->size_count; d++) event.sizes[d] = sample->sizes[d];
        status = find_sample(&own, profile, device_type, sample->source, &event, sample->work, error);
        if (status != AM_OK || !own) continue;
        if (own->count == 0 || sample->seconds < own->seconds) own->seconds = sample->seconds;
        own->count = 1;
    }
    text_free(&event.key);
    return status;
}

AmStatus profile_merge(Profile *profile, const Profile *other, AmError *error) {
    for (int32_t t = 0; t < other->type_count; t++)
        for (int32_t k = 0; k < other->types[t]->count; k++)
            TRY(merge_event(profile, other->types[t]->name, &other->types[t]->events[k], error));
    return AM_OK;
}

/* A collective's time is known for sizes up to four times as large or small as one that was measured. */
#define MOST_SCALED 4.0 /* squared octaves */

/* The function that scales a sample to other sizes: a callback, or work. */
typedef struct SampleScale {
    ProfileScale *scale; /* NULL: work */
    const void *user;
    double wanted; /* of the event in the query */
} SampleScale;

static bool find_seconds(const ProfileType *type, ProfileSource source, const StepEvent *of,
                         const SampleScale *scaling, double *seconds) {
    const Event *event = find_event(type, of, hash_of(of));
    const Sample *nearest[NEAREST];
    double distances[NEAREST], weights = 0, sum = 0;
    int32_t count = 0;
    for (int32_t s = 0; event && s < event->sample_count; s++) {
        if (event->samples[s].source != source) continue;
        /* The squared distance in the binary logarithms of the sizes. */
        double far = 0;
        for (int32_t k = 0; k < of->size_count; k++) {
            double step = log2((of->sizes[k] + 1) / (event->samples[s].sizes[k] + 1));
            far += step * step;
        }
        if (has_sizes(&event->samples[s], of)) {
            *seconds = event->samples[s].seconds;
            return true;
        }
        if (count == NEAREST && far >= distances[NEAREST - 1]) continue;
        int32_t place = count < NEAREST ? count++ : NEAREST - 1;
        for (; place > 0 && distances[place - 1] > far; place--) {
            nearest[place] = nearest[place - 1];
            distances[place] = distances[place - 1];
        }
        nearest[place] = &event->samples[s];
        distances[place] = far;
    }
    if (scaling->scale && count > 0 && distances[0] > MOST_SCALED) return false;
    for (int32_t k = 0; k < count; k++) {
        double weight = 1 / (distances[k] + 1e-9);
        weights += weight;
        double have = scaling->scale ? scaling->scale(scaling->user, nearest[k]->sizes) : nearest[k]->work;
        bool is_known = scaling->scale ? scaling->wanted > 0 && have > 0 : scaling->wanted >= 1 && have >= 1;
        sum += weight * log(nearest[k]->seconds * (is_known ? scaling->wanted / have : 1));
    }
    if (count > 0) *seconds = exp(sum / weights);
    return count > 0;
}

bool profile_seconds(const ProfileType *type, ProfileSource source, const StepEvent *event, double work,
                     double *seconds) {
    const SampleScale by_work = {.wanted = work};
    return find_seconds(type, source, event, &by_work, seconds);
}

bool profile_seconds_by(const ProfileType *type, ProfileSource source, const StepEvent *event,
                        ProfileScale *scale, const void *user, double *seconds) {
    const SampleScale scaling = {scale, user, scale(user, event->sizes)};
    return find_seconds(type, source, event, &scaling, seconds);
}

void profile_around(const ProfileType *type, ProfileSource source, const StepEvent *of, double *below,
                    double *above) {
    const Event *event = find_event(type, of, hash_of(of));
    double size = of->sizes[0];
    *below = -INFINITY;
    *above = INFINITY;
    for (int32_t s = 0; event && s < event->sample_count; s++) {
        if (event->samples[s].source != source) continue;
        double have = event->samples[s].sizes[0];
        if (have <= size) *below = fmax(*below, have);
        if (have >= size) *above = fmin(*above, have);
    }
    if (isinf(*below)) *below = *above;
    if (isinf(*above)) *above = *below;
}

/* The file under construction, for messages. */
typedef struct ProfileReader {
    Profile *profile;
    const char *source;
    AmError *error;
} ProfileReader;

static AmStatus fail_at(const ProfileReader *self, const char *where, const char *expected) {
    return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: %s", where, expected);
}

static AmStatus read_row(const ProfileReader *self, const char *type, json_t *row, const char *where) {
    static const char *const keys[] = {"event", "sizes", "work", "seconds", "probed", NULL};
    const char *key;
    json_t *sizes, *probed = json_object_get(row, "probed");
    double work, seconds;
    if (!json_is_object(row)) return fail_at(self, where, "expected an object");
    TRY(json_only_keys(row, keys, self->source, where, self->error));
    TRY(json_get_string(&key, row, "event", self->source, where, self->error));
    TRY(json_get_array(&sizes, row, "sizes", self->source, where, self->error));
    TRY(json_get_number(&work, row, "work", 0, 1e30, self->source, where, self->error));
    TRY(json_get_number(&seconds, row, "seconds", 1e-12, 1e9, self->source, where, self->error));
    if (probed && !json_is_boolean(probed))
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s.probed: expected true or false", where);
    StepEvent event = {.size_count = (int32_t)json_array_size(sizes)};
    const char *fault = *key ? measured_collective_fault(key, event.size_count) : "expected an event's name";
    if (fault)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s.event: %s, found \"%.100s\"", where,
                       fault, key);
    if (json_array_size(sizes) > STEP_EVENT_MOST_SIZES)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s.sizes: more than %d", where,
                       STEP_EVENT_MOST_SIZES);
    for (int32_t k = 0; k < event.size_count; k++) {
        json_t *size = json_array_get(sizes, (size_t)k);
        event.sizes[k] = json_is_integer(size) ? (double)json_integer_value(size) : -1;
        if (event.sizes[k] < 0)
            return am_fail(self->error, AM_ERROR_INPUT, self->source,
                           "%s.sizes[%d]: expected an integer of at least 0", where, k);
    }
    text_append_string(&event.key, key);
    ProfileSource source = json_is_true(probed) ? PROFILE_PROBE : PROFILE_RUN;
    Sample *sample = NULL;
    AmStatus status = event.key.failed
                          ? am_fail_memory(self->error, (int64_t)strlen(key))
                          : find_sample(&sample, self->profile, type, source, &event, work, self->error);
    text_free(&event.key);
    if (status != AM_OK) return status;
    if (!sample)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: more than %d sizes of one event",
                       where, MOST_SAMPLES);
    if (sample->count > 0)
        return am_fail(self->error, AM_ERROR_INPUT, self->source, "%s: duplicate row (same event and sizes)",
                       where);
    sample->seconds = seconds;
    sample->count = 1;
    return AM_OK;
}

AmStatus profile_read(Profile *profile, const char *path, AmError *error) {
    FileBytes bytes = {0};
    json_t *root = NULL;
    TRY(file_read(&bytes, path, error));
    AmStatus status;
    TRY_OR_FAIL(file_format_expect(FILE_FORMAT_PROFILE, bytes.name, bytes.data, bytes.length, error));
    TRY_OR_FAIL(json_parse(&root, bytes.name, bytes.data, (size_t)bytes.length, error));
    const ProfileReader reader = {profile, bytes.name, error};
    static const char *const keys[] = {"format", "device_types", NULL};
    const char *name;
    json_t *types, *rows;
    if (!json_is_object(root)) TRY_OR_FAIL(fail_at(&reader, "$", "expected a profile, an object"));
    TRY_OR_FAIL(json_check_format(root, "automap-profile-1", reader.source, reader.error));
    TRY_OR_FAIL(json_only_keys(root, keys, reader.source, "$", reader.error));
    TRY_OR_FAIL(json_get_object(&types, root, "device_types", reader.source, "$", reader.error));
    json_object_foreach(types, name, rows) {
        char where[256];
        TRY_OR_FAIL(json_get_array(&rows, types, name, reader.source, "$.device_types", reader.error));
        if (!make_type(reader.profile, name)) TRY_OR_FAIL(am_fail_memory(reader.error, 0));
        for (size_t k = 0; k < json_array_size(rows); k++) {
            snprintf(where, sizeof where, "$.device_types.%.200s[%zu]", name, k);
            TRY_OR_FAIL(read_row(&reader, name, json_array_get(rows, k), where));
        }
    }
fail:
    json_decref(root);
    file_release(&bytes);
    return status;
}

static void append_event(Text *text, const Event *event, const char *separator) {
    json_t *key = json_string(event->key);
    for (int32_t s = 0; s < event->sample_count; s++) {
        const Sample *sample = &event->samples[s];
        text_append(text, "%s\n  {\"event\": ", s ? "," : separator);
        json_write(text, key, JSON_STYLE_COMPACT);
        text_append_string(text, ", \"sizes\": [");
        for (int32_t k = 0; k < event->size_count; k++)
            text_append(text, "%s%.0f", k ? ", " : "", sample->sizes[k]);
        text_append(text, "], \"work\": %.0f, \"seconds\": %.4g%s}", sample->work, sample->seconds,
                    sample->source == PROFILE_PROBE ? ", \"probed\": true" : "");
    }
    text->failed |= !key;
    json_decref(key);
}

AmStatus profile_write(const Profile *profile, const char *path, AmError *error) {
    Text text = {0};
    text_append_string(&text, "{\"format\": \"automap-profile-1\", \"device_types\": {");
    for (int32_t t = 0; t < profile->type_count; t++) {
        const ProfileType *type = profile->types[t];
        json_t *name = json_string(type->name);
        text_append_string(&text, t ? ",\n" : "\n");
        json_write(&text, name, JSON_STYLE_COMPACT);
        text.failed |= !name;
        json_decref(name);
        text_append_string(&text, ": [");
        for (int32_t k = 0; k < type->count; k++) append_event(&text, &type->events[k], k ? "," : "");
        text_append_string(&text, "]");
    }
    text_append_string(&text, "}}\n");
    AmStatus status = text.failed ? am_fail_memory(error, (int64_t)text.capacity)
                                  : file_write(path, text.data, text.length, error);
    text_free(&text);
    return status;
}

AmStatus profile_attach(const Profile *profile, Cluster *cluster, const char *path, AmError *error) {
    int32_t found = 0;
    for (int32_t t = 0; t < cluster->type_count; t++) {
        cluster->types[t].profile = find_type(profile, cluster->types[t].name);
        found += cluster->types[t].profile != NULL;
    }
    if (found > 0) return AM_OK;
    return am_fail(error, AM_ERROR_INPUT, path, "$.device_types: none of cluster %s's, whose first is \"%s\"",
                   cluster->name, cluster->types[0].name);
}
