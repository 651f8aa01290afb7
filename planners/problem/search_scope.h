/* The request of the user, and the scope of a search.
 *
 *     SearchRequest   the wishes of the user; a part of a search may have a changed copy of its own
 *     SearchScope     the space, method and limits of one search; each part has its own
 *
 * search_context.h has the state of a search, budget.h counts against the limits of a scope, baseline_list.h
 * names the baselines, and search_result.h has the result.
 */
#ifndef PLANNERS_PROBLEM_SEARCH_SCOPE_H
#define PLANNERS_PROBLEM_SEARCH_SCOPE_H

#include "base/text.h"
#include "cost/step/memory.h"
#include "dqn/learner.h"
#include "lowering/micro_batch/micro_batches.h"
#include "planners/problem/baseline_list.h"
#include "planners/problem/placement.h"
#include "planners/problem/plan_constraints.h"
#include "planners/problem/problem.h"

#define SEARCHER_LIST(X)                                                                \
    X(AUTO, "auto", "plans of the trained policy, then annealing and polish (default)") \
    X(DQN, "dqn", "deep Q-learning, then polished")                                     \
    X(ANNEAL, "anneal", "simulated annealing, then polished")                           \
    X(GREEDY, "greedy", "the best insertion until none helps, then polished")           \
    X(EXACT, "exact", "branch and bound over the axis priorities of every mesh")        \
    X(EXHAUSTIVE, "exhaustive", "every plan of the space")                              \
    X(RANDOM, "random", "one random valid plan; with --evaluations N the best of N")    \
    X(BASELINE, "baseline", "the baseline that --baseline names")                       \
    X(AGENT, "agent", "pipelines as the cut agent cuts them")
typedef enum Searcher {
#define SEARCHER_ENUM(name, text, help) SEARCHER_##name,
    SEARCHER_LIST(SEARCHER_ENUM)
#undef SEARCHER_ENUM
        SEARCHER_COUNT
} Searcher;
const char *searcher_name(Searcher searcher);

/* The goal: the fastest plan, or Auto-MAP's own rules and rewards. */
typedef enum SearchObjective {
    OBJECTIVE_TIME,  /* the seconds of a step */
    OBJECTIVE_PAPER, /* Auto-MAP's own: paper_search.h */
    OBJECTIVE_COST,  /* the price of a step, among choices of devices (device_search.h) */
    OBJECTIVE_COUNT
} SearchObjective;
const char *search_objective_name(SearchObjective objective); /* "time", "paper", "cost" */

/* The plans of a search that keep optimizer state in the host's memory. */
typedef enum OffloadChoice {
    OFFLOAD_AUTO,     /* all of a second search, if no other plan fits */
    OFFLOAD_NONE,     /* none */
    OFFLOAD_OPTIMIZER /* all: constraints.offloads_optimizer */
} OffloadChoice;
#define OFFLOAD_CHOICES 3
const char *offload_choice_name(OffloadChoice choice); /* "auto", ... */

#define SEARCH_DEFAULT_EVALUATIONS 500
#define SEARCH_PAPER_EPISODES      20000
#define SEARCH_EXACT_EVALUATIONS   5000    /* the default of SEARCHER_EXACT */
#define SEARCH_DEFAULT_WORK        2000000 /* plans times instructions */
#define SEARCH_LEAST_EVALUATIONS   40
#define SEARCH_FIRST_STAGE_PLANS   48 /* evaluations of the first, small round of one-stage plans */
#define SEARCH_TRIAL_EVALUATIONS   16 /* of a stage, PURPOSE_TRIAL */
#define SEARCH_DEFAULT_CHUNKS      2
#define SEARCH_SEED_STEP           7919 /* between the rounds of a search */

/* At most so many devices of a type. */
typedef struct DeviceQuota {
    const char *type; /* its name in the cluster, or a short name */
    int32_t most;
} DeviceQuota;

/* The purpose of a search, which may be a part of another one. */
typedef enum SearchPurpose {
    PURPOSE_RESULT, /* the plans of the result, by all parts of the search */
    /* -- of a whole search -- */
    PURPOSE_TRIAL, /* whether a plan fits: few one-stage plans, no changes of single decisions */
    PURPOSE_FLOOR, /* the plans that every budget has, which take no evaluation, and no others */
    /* -- of a round -- */
    PURPOSE_PIPELINES, /* a first, small round: pipelines alone, before one-stage plans in the next one */
    PURPOSE_STAGES,    /* the same of SEARCHER_DQN: the policy continues with SEARCH_FIRST_STAGE_PLANS
                          evaluations */
    /* -- of a one-stage search -- */
    PURPOSE_ALL_ROUNDS,       /* with a cap: further rounds, each of twice the size, until it is reached */
    PURPOSE_FIRST_PLANS,      /* the first plans of a search that a later round repeats, without baselines */
    PURPOSE_SHARED_BASELINES, /* baselines alone, which get unequal shares on mixed devices */
} SearchPurpose;

/* Steps of plans that were found before a search began. A zeroed value: none were. */
typedef struct KnownSteps {
    double rival_seconds; /* the best step of the other parts of the search, or 0. Meshes that are slower by
                             estimates get few evaluations. */
    /* The best plan of another form of the module. */
    double form_seconds;     /* its step, or 0 */
    bool form_has_pipelines; /* pipelines of that form are about as fast */
    bool form_is_split;      /* that form has split layers and was searched on a sample of them */
} KnownSteps;

/* The space that is searched, beside its kind. Strings and the plan are the caller's. */
typedef struct SpaceRequest {
    const char *mesh;           /* "data=4,model=8" or NULL: every ordered split of the devices */
    const char *schedule;       /* of pipelines (pipeline_schedule.h), or NULL: 1f1b where it can be */
    int32_t chunks;             /* of each stage, schedule interleaved_1f1b alone; 0: SEARCH_DEFAULT_CHUNKS */
    bool no_overrides;          /* plans by axis priorities alone, without overrides (override_search.h) */
    bool may_add_micro_batches; /* SPACE_SINGLE_STAGE: more of them where no plan fits; none were requested */
    uint32_t relaxations;       /* bits by Relaxation: changes of meaning that micro-batches may make */
    const Plan *initial;        /* --init-plan, or NULL */
} SpaceRequest;

/* How the space is searched, beside the searcher. The caller owns the strings. */
typedef struct MethodRequest {
    const char *called;  /* the baseline's name as the user has it, for errors; or NULL */
    const char *agent;   /* file of the pipeline cut agent; NULL: the one built in */
    const char *policy;  /* of DQN and AUTO: a file, or "untrained"; NULL: the one built in */
    const char *learner; /* OBJECTIVE_PAPER: parts of Rainbow (learner_parts.h); NULL: the paper's */
    DqnDevice device;    /* of the DQN: where its network is trained */
    bool no_seeds;       /* start without the baselines */
    bool no_polish;
    bool no_learning;     /* the policy of --searcher dqn does not learn; for benchmarks */
    bool no_stage_choice; /* it has plans of one stage alone; for benchmarks */
    bool changes_stages;  /* it changes cuts, recomputation and schedule of its pipelines; for benchmarks */
} MethodRequest;

/* Stacked parameters of layers (ir/layers/layers.h). */
typedef enum LayersChoice {
    LAYERS_AUTO,  /* split where that is faster: module_forms.h */
    LAYERS_LOOP,  /* the module as read */
    LAYERS_SPLIT, /* one parameter for each layer */
    LAYERS_CHOICES
} LayersChoice;
const char *layers_choice_name(LayersChoice choice); /* "auto", ... */

/* The forms of the module (planners/forms/module_forms.h). */
typedef struct FormRequest {
    LayersChoice layers; /* LAYERS_LOOP also where other options exclude a split */
    AttentionChoice attention;
    bool keeps_recomputation; /* of the source */
    bool keeps_shardings;     /* of the module, which then stays as read */
} FormRequest;

/* The devices of the cluster that plans may use. The caller owns the quotas. */
typedef struct DeviceOptions {
    const DeviceQuota *quotas; /* [quota_count], of device_search() */
    int32_t quota_count;
    bool keeps_order; /* devices in the order of the cluster's file */
} DeviceOptions;

/* The calling program: its wish to stop, and its observers. It owns all of them. */
typedef struct SearchCallbacks {
    const volatile sig_atomic_t *interrupted;
    SearchWatch *watch; /* receives the progress; or NULL */
    /* One JSON line per episode: evaluations, reward, best, epsilon, loss; or NULL. */
    void (*on_episode)(void *user, const char *json_line);
    void *user;
} SearchCallbacks;

/* The request of the caller, which nothing changes. Parts of a search share it by pointer, or search with a
 * copy (search_with_request()) that has other devices, another memory limit or an offloaded optimizer. Zero
 * is the default of every member but constraints.memory_fraction. */
typedef struct SearchRequest {
    SearchObjective objective;
    bool explores_prices; /* plans on fewer devices, too, and the front of seconds and money */
    int32_t measures; /* runs of plans that follow; the pool then has one-stage plans of other structures */
    SpaceRequest space;
    FormRequest forms;
    OffloadChoice offload;
    PlanConstraints constraints;
    DeviceOptions devices;
    MethodRequest method;
    SearchCallbacks callbacks;
} SearchRequest;

/* What one search covers, and how far it may go. A search changes its own copy for each of its parts. Zero is
 * the default of every member but limits.evaluations. */
typedef struct SearchScope {
    const SearchRequest *request;
    PlanSpace kind; /* of the space */
    Searcher searcher;
    Baseline baseline; /* SEARCHER_BASELINE only */
    uint64_t seed;
    int32_t micro_batches; /* of all plans; 0: all numbers that divide the batch and suit the search */
    bool skip_bound;       /* gap and model gap are not wanted */
    SearchLimits limits;
    /* -- zero in the scope of callers: set by the search of which this one is a part -- */
    SearchPurpose purpose;
    bool ends_at_default; /* with a cap: nothing after the default budget, since other searches follow */
    bool finishes_later;  /* bound and memory of the ranks are left to plan_search_finish() */
    struct BoundAhead *bound_ahead; /* a place for a bound beside the search (search_bound.h); or NULL */
    KnownSteps known;
    PlanContext *splits; /* SEARCHER_DQN chooses the number of micro-batches, from that of the context on: the
                            module as read; or NULL */
    const struct StageChoices *stages; /* pipelines among which SEARCHER_DQN chooses, too (stage_choices.h);
                                          or NULL */
    PlanContext *climbs; /* every round ends in a climb over single changes (plan_climb.h), in this module as
                            read; or NULL */
    const Placement *placement; /* the stages of the pinned scopes, in the module; NULL: none are pinned */
} SearchScope;

/* -- scopes of parts of a search -- */

/* Returns the scope with another request: a copy in `*request`, which outlives it. */
SearchScope search_with_request(const SearchScope *scope, SearchRequest *request);

/* Returns the rewriting of a module for plans with a number of micro-batches, with the relaxations of the
 * request. */
MicroBatchSettings search_micro_batching(const SearchRequest *request, int32_t micro_batches);

/* Returns the scope of the one-stage part of a search over any number of stages: without a bound, since the
 * whole space has its own, and with annealing where the searcher cuts pipelines alone. */
SearchScope search_one_stage_part(const SearchScope *scope);
/* Returns the scope of a part of `size` evaluations, within the rest of the caller's budget. */
SearchScope search_part(const SearchScope *scope, const SearchBudget *budget, int64_t size);
/* Sets the time limit of a part to the time until the deadline; 0, none, without one. */
void search_limit_seconds(SearchScope *part, const StopSignal *stop);

/* Returns the user's limits as the budget of several searches from now on: no cap where the limit of
 * evaluations is a default. Interrupts are left to the searches. */
SearchBudget search_user_budget(const SearchScope *scope);
/* Returns whether a scope is the plan of a baseline with several stages. */
bool search_is_pipeline_baseline(const SearchScope *scope);
/* Returns whether a scope is the plan of a baseline with recomputation. */
bool search_is_recomputed_baseline(const SearchScope *scope);
/* Returns whether a search is over one-stage plans and of several (SPACE_AUTO, SPACE_HYBRID); a baseline is
 * not. */
bool search_spans_stages(const SearchScope *scope);
/* Returns whether the simulation of a pipeline of the module takes more than some ten milliseconds. */
bool search_module_is_large(const PlanContext *primary);
/* Returns whether plans of a search may have several stages. */
bool search_has_stages(const SearchScope *scope);

/* Returns the schedules of several stages that a search may propose, bits by ScheduleKind: the requested one,
 * else all that the target runs. */
uint32_t search_schedules(const SearchRequest *request);
/* Checks a plan against the decisions of the user: degrees, placement of scopes, pinned shardings.
 * AM_ERROR_INFEASIBLE names the one that it does not keep. */
AmStatus search_check_plan(const SearchScope *scope, const Plan *plan, AmError *error);

/* Restricts a scope by options that only one-stage plans support: a mesh of all devices,
 * equal shards for another system, a searcher of axis priorities. Makes SPACE_AUTO the remaining space, and a
 * baseline's space its own; returns the restricting option ("--mesh"), or NULL. One stage by the fixed
 * degrees restricts it, too, without an option to report. */
const char *search_narrow(SearchScope *scope);

/* Fills the common fields of every plan: module, cluster and search; one stage and one micro-batch. */
void search_describe_plan(Plan *plan, const PlanContext *context, const Cluster *cluster,
                          const SearchScope *scope);

#endif
