/* Parses and writes the parts of Rainbow by name ("double=on,n-step=3"): the option --learner and the
 * metadata of trained agents. */
#include "planners/rl/learner_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dqn/network.h"

#define MOST_STEPS  64
#define USUAL_ALPHA 0.2 /* Auto-MAP, section 5.1 */

static const char *const names[] = {
#define LEARNER_PART_NAME(name, text) text,
    LEARNER_PART_LIST(LEARNER_PART_NAME)
#undef LEARNER_PART_NAME
};

/* Values of the parts; switches are 0 or 1. */
static int32_t value_of(const AgentSettings *settings, LearnerPart part) {
    switch (part) {
    case LEARNER_DOUBLE: return settings->double_q;
    case LEARNER_DUELING: return settings->dueling;
    case LEARNER_PRIORITIZED: return settings->alpha > 0;
    case LEARNER_N_STEP: return settings->n_step;
    case LEARNER_NOISY: return settings->noisy;
    default: return settings->atoms;
    }
}

static bool is_switch(LearnerPart part) {
    return part != LEARNER_N_STEP && part != LEARNER_ATOMS;
}

static AmStatus read_value(int32_t *value, LearnerPart part, const char *text, AmError *error) {
    int32_t most = part == LEARNER_ATOMS ? NETWORK_MAX_ATOMS : MOST_STEPS;
    char *end;
    if (is_switch(part)) {
        *value = strcmp(text, "on") == 0;
        if (*value || strcmp(text, "off") == 0) return AM_OK;
        return am_fail(error, AM_ERROR_USAGE, "", "--learner %s=%.40s: expected on or off", names[part],
                       text);
    }
    long number = strtol(text, &end, 10);
    *value = (int32_t)number;
    if (*text && !*end && number >= 0 && number <= most && !(part == LEARNER_ATOMS && number == 1))
        return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, "", "--learner %s=%.40s: expected %s to %d", names[part], text,
                   part == LEARNER_ATOMS ? "0, or 2" : "0", most);
}

/* Applies one NAME=VALUE. */
static AmStatus apply(AgentSettings *settings, char *word, uint32_t allowed, AmError *error) {
    char *value = strchr(word, '=');
    int32_t number;
    if (value) *value++ = '\0';
    for (LearnerPart part = 0; part < LEARNER_PARTS; part++) {
        if (strcmp(word, names[part]) != 0) continue;
        if (!(allowed >> part & 1))
            return am_fail(
                error, AM_ERROR_USAGE, "",
                part == LEARNER_DUELING
                    ? "--learner dueling: the network has one output, the value of an action"
                    : "--learner %s: this agent takes one action at each state and values no others",
                names[part]);
        TRY(read_value(&number, part, value ? value : is_switch(part) ? "on" : "", error));
        switch (part) {
        case LEARNER_DOUBLE: settings->double_q = number; break;
        case LEARNER_DUELING: settings->dueling = number; break;
        case LEARNER_PRIORITIZED: settings->alpha = number ? USUAL_ALPHA : 0; break;
        case LEARNER_N_STEP: settings->n_step = number; break;
        case LEARNER_NOISY: settings->noisy = number; break;
        default: settings->atoms = number; break;
        }
        return AM_OK;
    }
    return am_fail(error, AM_ERROR_USAGE, "",
                   "--learner %.40s: expected double, dueling, prioritized, n-step=N, noisy or atoms=N",
                   word);
}

AmStatus learner_parts_apply(AgentSettings *settings, const char *text, uint32_t allowed, AmError *error) {
    char copy[LEARNER_TEXT_BYTES];
    char *rest = NULL;
    if (!text) return AM_OK;
    if (strlen(text) >= sizeof copy)
        return am_fail(error, AM_ERROR_USAGE, "", "--learner: expected at most %d characters",
                       LEARNER_TEXT_BYTES - 1);
    memcpy(copy, text, strlen(text) + 1);
    for (char *word = strtok_r(copy, ",", &rest); word; word = strtok_r(NULL, ",", &rest))
        TRY(apply(settings, word, allowed, error));
    return AM_OK;
}

const char *learner_parts_text(char text[LEARNER_TEXT_BYTES], const AgentSettings *settings,
                               const AgentSettings *others) {
    int32_t length = 0;
    text[0] = '\0';
    for (LearnerPart part = 0; part < LEARNER_PARTS; part++) {
        int32_t value = value_of(settings, part);
        const char *comma = length > 0 ? "," : "";
        size_t left = LEARNER_TEXT_BYTES - (size_t)length;
        if (value == value_of(others, part)) continue;
        if (is_switch(part))
            length += snprintf(text + length, left, "%s%s=%s", comma, names[part], value ? "on" : "off");
        else length += snprintf(text + length, left, "%s%s=%d", comma, names[part], value);
    }
    return text;
}
