/* Work and keys of what was measured; see measured_events.h. How many devices take part is in a collective's
 * key and no size: between two numbers of them nothing is known. */
#include "cost/measured_events.h"

#include "cost/operator.h"

AmStatus measured_add_step(Profile *profile, const char *device_type, ProfileSource source,
                           const Program *program, int32_t step, double seconds, AmError *error) {
    OperatorWork work;
    StepEvent event = {0};
    AmStatus status = AM_OK;
    if (step_event(&event, program, &program->steps[step])) {
        operator_work(&work, program, &program->steps[step]);
        status = profile_add(profile, device_type, source, &event, work.flops + work.bytes, seconds, error);
    }
    text_free(&event.key);
    return status;
}

bool measured_collective(StepEvent *event, ProgramCollectiveKind kind, double bytes, int32_t devices) {
    event->key.length = 0;
    text_append(&event->key, "%s of %d", program_collective_name(kind), devices);
    event->size_count = 1;
    event->sizes[0] = bytes;
    return !event->key.failed;
}

AmStatus measured_add_collective(Profile *profile, const char *device_type, ProfileSource source,
                                 ProgramCollectiveKind kind, double bytes, int32_t devices, double seconds,
                                 AmError *error) {
    StepEvent event = {0};
    AmStatus status = measured_collective(&event, kind, bytes, devices)
                          ? profile_add(profile, device_type, source, &event, bytes, seconds, error)
                          : am_fail_memory(error, 64);
    text_free(&event.key);
    return status;
}
