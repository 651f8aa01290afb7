/* Learning in Auto-MAP's own mode: its hyper-parameters (section 5.1) and its stopping rule.
 *
 * After every exploring episode, the policy plays one alone. The run ends when the policy has
 * settled: a number of its consecutive episodes earned as much as the best episode of all (for
 * pipelines, whose lengths differ little, within 0.5 %), after a least number of steps. The optimal
 * strategy is not used.
 */
#ifndef PLANNERS_AUTOMAP_PAPER_PAPER_LEARN_H
#define PLANNERS_AUTOMAP_PAPER_PAPER_LEARN_H

#include "planners/rl/dqn_run.h"
#include "planners/single_stage/single_stage_search.h"

/* Why a run ended. */
typedef enum PaperEnd {
    PAPER_SETTLED,     /* the policy had */
    PAPER_STEPS,       /* a pipeline's epsilon was at its end */
    PAPER_EPISODES,    /* as many episodes as --evaluations allows */
    PAPER_SECONDS,     /* --seconds */
    PAPER_INTERRUPTED, /* by the user */
    PAPER_ENDS
} PaperEnd;
const char *paper_end_name(PaperEnd end); /* "settled", ... */

typedef struct PaperLearning {
    int64_t episodes; /* that explored, and that the policy played */
    int64_t steps;    /* of those that explored */
    double best;      /* reward of the best episode */
    double greedy;    /* of the last that the policy played */
    double seconds;
    PaperEnd end;
} PaperLearning;

/* Learns in `environment`. `space` says with which of Auto-MAP's settings. Every episode is a line of
 * scope->request->callbacks.on_episode: episode, reward, best, epsilon, loss, greedy. */
AmStatus paper_learn(PaperLearning *learning, Environment *environment, PlanSpace space,
                     const SearchScope *scope, AmError *error);

#endif
