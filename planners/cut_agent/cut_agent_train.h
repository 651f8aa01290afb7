/* Offline training of the agent that cuts pipelines on generated arrays.
 *
 * A round plays CUT_AGENT_ROUND episodes side by side, every one on a set of its own (cut_agent_arrays.h). A
 * fixed number of updates follows. An episode explores for a random number of stages, from none to all but
 * the last two, among the actions whose Q is within a tenth of the best. It is greedy from there on. The
 * actions from the last exploring one on are stored, with the length of the rest as their return.
 *
 * A training has three phases, of 60, 30 and 10 % of the episodes. The learning rate falls to a third and to
 * a tenth. Each phase begins with the network of the one before and a fresh replay.
 *
 * Everything is a function of the seed: an interrupted training continued from its checkpoint
 * ends with the same network, bit for bit, on the same kind of processor.
 */
#ifndef PLANNERS_CUT_AGENT_CUT_AGENT_TRAIN_H
#define PLANNERS_CUT_AGENT_CUT_AGENT_TRAIN_H

#include <signal.h>

#include "planners/cut_agent/cut_agent.h"
#include "planners/problem/search_watch.h"
#include "planners/rl/learner_parts.h"

#define CUT_AGENT_ROUND 64
/* Parts of Rainbow that the agent can have: it has one output, and its next action is the one it takes. */
#define CUT_AGENT_PARTS (LEARNER_OF_WHOLE_RETURNS | 1U << LEARNER_N_STEP)

typedef struct CutAgentProgress {
    int64_t episodes, episode_count;
    double loss;     /* mean of the updates since the last report */
    double estimate; /* mean return over the estimate of the transitions stored since then */
    Agent *agent;
} CutAgentProgress;

typedef struct CutAgentTraining {
    uint64_t seed;
    int64_t episodes;       /* in all; rounded up to whole rounds */
    DqnDevice device;       /* of the agent */
    const char *learner;    /* parts of Rainbow (learner_parts.h); NULL: the usual ones */
    const char *checkpoint; /* written at every report and at the end; or NULL */
    bool resume;            /* from the checkpoint */
    const volatile sig_atomic_t *interrupted;
    int64_t report_every; /* episodes; 0: never */
    AmStatus (*on_report)(void *user, const CutAgentProgress *progress, AmError *error);
    void *user;
    SearchWatch *watch; /* counts the episodes; or NULL */
} CutAgentTraining;

/* Returns the trained agent; agent_free releases it. When interrupted it writes the checkpoint and
 * returns the agent in its current state, with `*done` finished episodes. AM_ERROR_INPUT: the
 * checkpoint belongs to another training. */
AmStatus cut_agent_train(Agent **agent, int64_t *done, const CutAgentTraining *training, AmError *error);

#endif
