/* The parts of Rainbow by name, as the option --learner has them: NAME=VALUE, separated by commas.
 *
 *   double=on, dueling=on, prioritized=off, n-step=3, noisy=on, atoms=51
 *
 * n-step=0 are whole returns, atoms=0 the mean return. Names that a text lacks keep their setting.
 */
#ifndef PLANNERS_RL_LEARNER_PARTS_H
#define PLANNERS_RL_LEARNER_PARTS_H

#include "dqn/agent.h"

#define LEARNER_PART_LIST(X)      \
    X(DOUBLE, "double")           \
    X(DUELING, "dueling")         \
    X(PRIORITIZED, "prioritized") \
    X(N_STEP, "n-step")           \
    X(NOISY, "noisy")             \
    X(ATOMS, "atoms")
typedef enum LearnerPart {
#define LEARNER_PART_ENUM(name, text) LEARNER_##name,
    LEARNER_PART_LIST(LEARNER_PART_ENUM)
#undef LEARNER_PART_ENUM
        LEARNER_PARTS
} LearnerPart;

/* Parts of a network with one output: the mean over its actions is the output itself. */
#define LEARNER_OF_ONE_OUTPUT ((1U << LEARNER_PARTS) - 1 - (1U << LEARNER_DUELING))
/* Parts where every transition has the whole return: there is no next action to choose. */
#define LEARNER_OF_WHOLE_RETURNS (1U << LEARNER_PRIORITIZED | 1U << LEARNER_NOISY | 1U << LEARNER_ATOMS)

/* Bytes of learner_parts_text(). */
#define LEARNER_TEXT_BYTES 128

/* Changes the settings as `text` says; NULL: not at all. `allowed`: a bit for each part that the agent may
 * have. AM_ERROR_USAGE names an unknown part, one that is not allowed, or a bad value. */
AmStatus learner_parts_apply(AgentSettings *settings, const char *text, uint32_t allowed, AmError *error);

/* Writes the parts in which settings differ from others, "" if none; learner_parts_apply() reads it. */
const char *learner_parts_text(char text[LEARNER_TEXT_BYTES], const AgentSettings *settings,
                               const AgentSettings *others);

#endif
