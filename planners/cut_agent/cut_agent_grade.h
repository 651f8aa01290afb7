/* Grading the agent that cuts pipelines: its plans beside the exact optimum, an even split and a greedy one.
 *
 * The plans come from cut_agent_plan() alone, which reaches no exact search (tests/check_cut_agent).
 * Lengths are the chain's (chain.h), for which the optimum is exact (chain_exact.h); by_events is the time of
 * the plan over that of the optimum's, both by chain_simulate().
 */
#ifndef PLANNERS_CUT_AGENT_CUT_AGENT_GRADE_H
#define PLANNERS_CUT_AGENT_CUT_AGENT_GRADE_H

#include <signal.h>

#include "planners/cut_agent/chain_exact.h"
#include "planners/cut_agent/cut_agent.h"

typedef struct CutAgentGrade {
    int32_t count, invalid;
    double mean, percentile_95, worst;    /* length over the optimum, less 1 */
    double by_events;                     /* mean time over that of the optimum's plan, less 1 */
    double even_mean, greedy_mean;        /* of the sets where those fit the memory */
    int32_t even_invalid, greedy_invalid; /* where they do not */
    double mean_seconds, most_seconds;    /* of the processor, for one plan */
} CutAgentGrade;

/* Grades the agent on sets 0 .. count - 1 under the seed. AM_INTERRUPTED once `*interrupted` is set (NULL:
 * never). */
AmStatus cut_agent_grade(CutAgentGrade *grade, Agent *agent, int32_t width, uint64_t seed, int32_t count,
                         const volatile sig_atomic_t *interrupted, AmError *error);

/* One problem: lengths in seconds; NAN where a plan does not fit the memory. */
typedef struct CutAgentCase {
    ChainPlan plan, exact_plan;
    double exact, agent, greedy, even;
    double exact_by_events, agent_by_events;
    double seconds, exact_seconds; /* of the processor, for the agent and the exact search */
    bool is_valid;                 /* the agent's plan */
} CutAgentCase;

/* Grades the agent on one problem. AM_ERROR_INFEASIBLE: no partition fits. */
AmStatus cut_agent_grade_case(CutAgentCase *result, const ChainProblem *problem, Agent *agent, int32_t width,
                              AmError *error);

#endif
