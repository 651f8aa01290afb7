/* The environment of the agent that cuts pipelines (Auto-MAP sections 3.5 and 4.5).
 *
 * A state is a chain of at most 128 layers with units of devices, and the stages chosen so far from the
 * left. An action is the end of the next stage, in layers and in units of devices. An exact table masks
 * actions from which no plan within the memory can be completed. Auto-MAP's radius masks those far from the
 * balance of work. The agent sees an action by features of its remainder: the rest of the chain, the devices
 * and the number of stages for it. All of them are ratios, so that one network serves every length of chain,
 * every number of devices and every mix of rates.
 *
 * The length of a pipeline (chain.h) is
 *
 *   Q(action) = max(M (t + 2 c) + r, t + 2 c + V(rest)),   V(rest) = estimate(rest) (1 + output / 5)
 *
 * where t, c and r belong to the stage just chosen, and V is the learned length of the rest under
 * the agent's policy. The reward of a stage is the increase of the step, E_{s+1} - E_s, so that the
 * return after an action is E_{s+1}; it is learned relative to the estimate. The estimate is the
 * shortest of four splits of the rest that only distribute work; the others are features. The rest
 * of a single stage has a known length.
 *
 * A rest is equal for every partial plan that leads to it. So a table that all states of an episode share
 * keeps its features and the network's output for it.
 *
 * The environment does not search: every stage is chosen once.
 */
#ifndef PLANNERS_CUT_AGENT_CUT_AGENT_ENVIRONMENT_H
#define PLANNERS_CUT_AGENT_CUT_AGENT_ENVIRONMENT_H

#include "planners/cut_agent/chain.h"
#include "planners/cut_agent/cut_agent_arrays.h"

#define CUT_AGENT_FEATURES     32
#define CUT_AGENT_CANDIDATES   64 /* at most, of one step */
#define CUT_AGENT_OUTPUT_SCALE 5

/* The remainder of an action: a number of stages on the layers from a place and the units from one
 * on. */
typedef struct CutAgentRest {
    double estimate; /* of its length (file head) */
    bool is_known;   /* a single stage is left: `estimate` is its length, and the network is not evaluated */
    bool is_valued;  /* output is valid: evaluated by the network, or known */
    double output;
    float features[CUT_AGENT_FEATURES];
} CutAgentRest;

/* One action and its properties. */
typedef struct CutAgentCandidate {
    int32_t place, unit; /* where the stage ends */
    ChainStage stage;
    CutAgentRest *rest;
} CutAgentCandidate;

/* The rests of a problem. Each is filled when the first candidate needs it. */
typedef struct CutAgentTable {
    Arena *arena;
    /* [(left, unit, place)]: the first place at or after `place` where `left` more stages fit into memory:
     * they have all layers from there and all units from `unit`. count + 1: there is no such place. */
    uint8_t *next;
    double *balanced;     /* [(left, unit, place)]: features_balanced_length(), 0: not computed yet */
    CutAgentRest **rests; /* likewise, NULL: not filled yet */
} CutAgentTable;

typedef struct CutAgentState {
    const ChainProblem *problem;
    ChainPlan plan; /* its first `chosen` stages */
    int32_t chosen;
    double occupied;         /* sum of t + 2 c of the chosen stages */
    double least;            /* that the pipeline takes because of them alone */
    int32_t candidate_count; /* 0: done */
    CutAgentCandidate candidates[CUT_AGENT_CANDIDATES];
    CutAgentTable table; /* its arrays are shared with copies of the state */
} CutAgentState;

/* Starts an episode: the first candidates. The arena owns the table and all rests. AM_ERROR_USAGE: more than
 * CUT_AGENT_POINTS layers; AM_ERROR_INFEASIBLE: no partition fits the memory. */
AmStatus cut_agent_reset(CutAgentState *state, const ChainProblem *problem, Arena *arena, AmError *error);

/* Takes a candidate; the last stage follows by itself. */
AmStatus cut_agent_step(CutAgentState *state, int32_t candidate, AmError *error);

/* Returns Q of a candidate whose rest is valued, and with it the length of the whole pipeline. */
double cut_agent_length(const CutAgentState *state, int32_t candidate);
double cut_agent_total_length(const CutAgentState *state, double length);

/* Returns the length of a valued rest. */
double cut_agent_rest_length(const CutAgentRest *rest);
/* Returns the target output of the network for a rest of length `length`. */
double cut_agent_target(const CutAgentRest *rest, double length);

/* Returns whether any partition fits the memory. */
bool cut_agent_is_feasible(const ChainProblem *problem);

#endif
