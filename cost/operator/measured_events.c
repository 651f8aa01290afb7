/* Measured steps and collectives as events of a profile: their work and keys. The number of devices is part
 * of a collective's key and not a size: measurements are not interpolated between two numbers of devices. */
#include "cost/operator/measured_events.h"

#include <assert.h>
#include <string.h>

#include "cost/operator/operator.h"
#include "propagation/sharding/mesh.h"

AmStatus measured_add_step(Profile *profile, const char *device_type, ProfileSource source,
                           const Program *program, int32_t step, double seconds, AmError *error) {
    OperatorWork work;
    StepEvent event = {0};
    AmStatus status = AM_OK;
    if (step_event(&event, program, &program->execution.steps[step])) {
        operator_work(&work, program, &program->execution.steps[step]);
        status = profile_add(profile, device_type, source, &event, work.flops + work.bytes, seconds, error);
    }
    text_free(&event.key);
    return status;
}

bool measured_collective(StepEvent *event, const MeasuredCollective *of) {
    event->key.length = 0;
    text_append(&event->key, "%s of %d", program_collective_name(of->kind), of->devices);
    if (of->link)
        text_append(&event->key, " over %s in %d server%s", of->link, of->servers,
                    of->servers == 1 ? "" : "s");
    event->size_count = 1;
    event->sizes[0] = of->bytes;
    return !event->key.failed;
}

AmStatus measured_add_collective(Profile *profile, const char *device_type, ProfileSource source,
                                 const MeasuredCollective *of, double seconds, AmError *error) {
    StepEvent event = {0};
    AmStatus status = measured_collective(&event, of)
                          ? profile_add(profile, device_type, source, &event, of->bytes, seconds, error)
                          : am_fail_memory(error, 64);
    text_free(&event.key);
    return status;
}

/* Returns the text after "KIND of " in a collective's key; NULL for other keys. */
static const char *after_kind(const char *key) {
    for (int32_t k = 0; k < PROGRAM_DEVICE_COLLECTIVES; k++) {
        const char *name = program_collective_name((ProgramCollectiveKind)k);
        size_t length = strlen(name);
        if (strncmp(key, name, length) == 0 && strncmp(key + length, " of ", 4) == 0) return key + length + 4;
    }
    return NULL;
}

/* Reads a number of 1 to 7 digits without sign or leading zeros; *end is after it. -1: no number. */
static int32_t read_count(const char *text, const char **end) {
    int32_t count = 0;
    size_t digits = strspn(text, "0123456789");
    if (digits < 1 || digits > 7 || text[0] == '0') return -1;
    for (size_t k = 0; k < digits; k++) count = 10 * count + (text[k] - '0');
    *end = text + digits;
    return count;
}

const char *measured_collective_fault(const char *key, int32_t size_count) {
    static const char devices_fault[] = "expected a collective of 2 to 65536 devices";
    static const char link_fault[] =
        "expected nothing more, or \" over LINK in N servers\", N at most the devices";
    const char *rest = after_kind(key), *last = NULL;
    if (!rest) return NULL;
    static_assert(MESH_MAX_DEVICES == 65536, "as the message says");
    int32_t devices = read_count(rest, &rest);
    if (devices < 2 || devices > MESH_MAX_DEVICES) return devices_fault;
    if (size_count != 1) return "expected one size of a collective, its bytes";
    if (!*rest) return NULL;
    for (const char *at = rest; (at = strstr(at, " in ")) != NULL; at++) last = at;
    if (strncmp(rest, " over ", 6) != 0 || !last || last <= rest + 6) return link_fault;
    int32_t servers = read_count(last + 4, &rest);
    if (servers < 1 || servers > devices) return link_fault;
    return strcmp(rest, servers == 1 ? " server" : " servers") == 0 ? NULL : link_fault;
}
