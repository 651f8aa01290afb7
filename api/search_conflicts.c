/* The pairs of options that exclude one another in a search, as one table: trait, other trait, reason.
 *
 * A trait is a property of the request that an option or the file of hints gives: "--searcher greedy" gives
 * OTHER_SEARCHER, NOT_DQN and NO_POLICY. find_method() and find_plans() alone recognise traits and name them.
 * A new conflict is a row, and perhaps a trait.
 */
#include "api/search_conflicts.h"

#include "planners/problem/placement.h"
#include "propagation/plan/pipeline_schedule.h"

typedef enum TraitKind {
    /* the goal */
    PAPER,
    COST,
    PARETO,
    NOT_PAPER,
    /* the method */
    ONE_BASELINE,
    OTHER_SEARCHER, /* than the baseline's */
    NOT_DQN,
    NO_POLICY, /* a searcher without one */
    EXHAUSTIVE,
    RANDOM,
    EVALUATIONS,
    DEVICE,
    POLICY,
    LEARNER,
    AGENT,
    MEASURE,
    INIT_PLAN,
    /* the plans */
    FOR,
    FOR_TRAINER,
    FOR_RESIDENT, /* a target whose optimizer state is on the devices */
    FOR_ONE_MICRO_BATCH,
    FOR_STACKS, /* a target whose plans have stacked parameters alone */
    OFFLOAD,    /* of all plans */
    MESH,
    KEEP_SHARDINGS,
    PIN,
    QUOTA,
    DEGREE,
    STAGES,        /* several */
    PINNED_STAGES, /* several, by the pins */
    ONE_STAGE,     /* the option that permits only one-stage plans */
    ONE_KIND,      /* the option that leaves one-stage plans or pipelines alone */
    MICRO_BATCHES, /* several, or as many as suit */
    SPLIT_LAYERS,
    SCHEDULE,
    LACKED_SCHEDULE, /* which the target lacks */
    CHUNKS,
    NO_CHUNKS, /* a schedule without them */
    TRAIT_COUNT
} TraitKind;

static const char OWN_DEVICES[] = "the latter decides on the devices itself",
                  OWN_DEGREES[] = "the latter sets the degrees itself",
                  OWN_STAGES[] = "the latter sets the stages itself", ONE[] = "its plans have one stage",
                  AS_READ[] = "the latter is about parameters of the module as read",
                  BY_TIME[] = "measured plans are compared by time";

static const struct Conflict {
    TraitKind trait, other;
    const char *reason;
} CONFLICTS[] = {
    {FOR, PAPER, "only --objective time has targets"},
    {OFFLOAD, FOR_RESIDENT, "the latter makes no plans with optimizer state in the hosts"},
    {OFFLOAD, PAPER, "its plans keep optimizer state on the devices"},
    {OFFLOAD, INIT_PLAN, "the initial plan decides on offloading"},
    {ONE_BASELINE, OTHER_SEARCHER, "a baseline is priced without a search"},
    {ONE_BASELINE, FOR_TRAINER, "strategies of the trainer are searched"},
    {EVALUATIONS, EXHAUSTIVE, "every plan is priced"},
    {DEVICE, NOT_DQN, "a device trains the network of --searcher dqn"},
    {POLICY, NO_POLICY, "only dqn and auto have a policy"},
    {LEARNER, NOT_PAPER, "a policy has the parts that it was trained with"},
    {INIT_PLAN, ONE_BASELINE, "the latter starts from no plan"},
    {INIT_PLAN, RANDOM, "the latter starts from no plan"},
    {MEASURE, PAPER, BY_TIME},
    {MEASURE, COST, BY_TIME},
    {MEASURE, PARETO, BY_TIME},
    {QUOTA, PAPER, OWN_DEVICES},
    {QUOTA, KEEP_SHARDINGS, OWN_DEVICES},
    {QUOTA, INIT_PLAN, OWN_DEVICES},
    {COST, KEEP_SHARDINGS, OWN_DEVICES},
    {COST, INIT_PLAN, OWN_DEVICES},
    {COST, FOR, OWN_DEVICES},
    {PARETO, PAPER, OWN_DEVICES},
    {PARETO, KEEP_SHARDINGS, OWN_DEVICES},
    {PARETO, INIT_PLAN, OWN_DEVICES},
    {PARETO, FOR, OWN_DEVICES},
    {DEGREE, PAPER, OWN_DEGREES},
    {DEGREE, MESH, OWN_DEGREES},
    {DEGREE, KEEP_SHARDINGS, OWN_DEGREES},
    {DEGREE, ONE_BASELINE, OWN_DEGREES},
    {PINNED_STAGES, ONE_BASELINE, OWN_STAGES},
    {PINNED_STAGES, PAPER, OWN_STAGES},
    {AGENT, ONE_KIND, "the agent cuts pipelines in --space auto and hybrid"},
    {PINNED_STAGES, ONE_STAGE, ONE},
    {STAGES, ONE_STAGE, ONE},
    {MICRO_BATCHES, FOR_ONE_MICRO_BATCH, "its plans have one micro-batch"},
    {MICRO_BATCHES, KEEP_SHARDINGS, "its plans have one micro-batch"},
    {SPLIT_LAYERS, PIN, AS_READ},
    {SPLIT_LAYERS, KEEP_SHARDINGS, AS_READ},
    {SPLIT_LAYERS, PAPER, AS_READ},
    {SPLIT_LAYERS, FOR_STACKS, AS_READ},
    {LACKED_SCHEDULE, FOR, "the target lacks this schedule"},
    {SCHEDULE, ONE_STAGE, "a schedule applies to pipelines"},
    {CHUNKS, NO_CHUNKS, "only --schedule interleaved_1f1b has chunks"},
};

/* The name of a trait: "--searcher", "greedy". NULL: the request lacks the trait. */
typedef struct Trait {
    const char *name, *value;
} Trait;

typedef struct Traits {
    Trait of[TRAIT_COUNT];
    char numbers[2][24], label[PIN_LABEL_BYTES];
    const char *pin_file;
} Traits;

/* Returns the trait `name value`, if it holds. */
static Trait trait_if(bool holds, const char *name, const char *value) {
    return holds ? (Trait){name, value} : (Trait){0};
}

/* Returns the trait of an option that was given. */
static Trait given(const AmOptions *options, const char *key, const char *name) {
    return trait_if(option_has(options, key), name, option_text(options, key));
}

static const char *print_number(char *buffer, size_t size, int64_t number) {
    snprintf(buffer, size, "%lld", (long long)number);
    return number > 0 ? buffer : "auto";
}

/* Sets the traits of the goal and of the method, each with its option and value. */
static void find_method(Trait *of, const SearchScope *search, const AmOptions *options) {
    const char *searcher = searcher_name(search->searcher);
    bool is_paper = search->request->objective == OBJECTIVE_PAPER;
    of[PAPER] = trait_if(is_paper, "--objective", "paper");
    of[NOT_PAPER] = trait_if(!is_paper, "--objective", search_objective_name(search->request->objective));
    of[COST] = trait_if(search->request->objective == OBJECTIVE_COST, "--objective", "cost");
    of[PARETO] = trait_if(option_has(options, "pareto"), "--pareto", NULL);

    of[ONE_BASELINE] = given(options, "baseline", "--baseline");
    of[OTHER_SEARCHER] = trait_if(search->searcher != SEARCHER_BASELINE, "--searcher", searcher);
    of[NOT_DQN] = trait_if(search->searcher != SEARCHER_DQN, "--searcher", searcher);
    of[NO_POLICY] = trait_if(search->searcher != SEARCHER_DQN && search->searcher != SEARCHER_AUTO,
                             "--searcher", searcher);
    of[EXHAUSTIVE] = trait_if(search->searcher == SEARCHER_EXHAUSTIVE, "--searcher", searcher);
    of[RANDOM] = trait_if(search->searcher == SEARCHER_RANDOM, "--searcher", searcher);
    of[EVALUATIONS] = given(options, "evaluations", "--evaluations");
    of[DEVICE] = given(options, "device", "--device");
    of[POLICY] = given(options, "policy", "--policy");
    of[LEARNER] = given(options, "learner", "--learner");
    of[AGENT] = given(options, "agent", "--agent");
    of[MEASURE] = trait_if(search->request->measures > 0, "--measure", option_text(options, "measure"));
    of[INIT_PLAN] = given(options, "init-plan", "--init-plan");
}

/* Sets the traits of the plans, each with its option and value. */
static void find_plans(Traits *traits, const SearchSettings *settings, const AmOptions *options) {
    const SearchScope *search = &settings->scope;
    const TargetRow *target = target_row(search->request->constraints.target);
    const HintsFile *hints = &settings->hints;
    const PropagationPin *last_pin;
    Trait *of = traits->of;
    const char *schedule =
        search->request->space.schedule ? search->request->space.schedule : schedule_kind_name(SCHEDULE_1F1B);
    int32_t kind = schedule_kind_find(schedule), micro_batches = settings->scope.micro_batches;
    bool has_stages = search_has_stages(search);
    of[FOR] = trait_if(search->request->constraints.target != TARGET_AUTOMAP, "--for", target->name);
    of[FOR_TRAINER] = trait_if(target->trainer, "--for", target->name);
    of[FOR_RESIDENT] = trait_if(target->offload != TARGET_OFFLOADS, "--for", target->name);
    of[FOR_STACKS] = trait_if(!target->splits_layers, "--for", target->name);
    of[FOR_ONE_MICRO_BATCH] = trait_if(!target->has_micro_batches, "--for", target->name);
    of[OFFLOAD] = trait_if(search->request->offload == OFFLOAD_OPTIMIZER, "--offload", "optimizer");
    of[MESH] = given(options, "mesh", "--mesh");
    of[KEEP_SHARDINGS] = trait_if(option_has(options, "keep-shardings"), "--keep-shardings", NULL);
    of[PIN] = given(options, "pin", "--pin");
    if (search->request->constraints.pin_count > 0 && !of[PIN].name)
        of[PIN] = option_has(options, "hints") ? given(options, "hints", "--hints")
                                               : (Trait){"a mark in the module", NULL};
    of[QUOTA] = given(options, "quota", "--quota");
    const Degrees *degrees = &search->request->constraints.degrees;
    for (int32_t k = 0; k < DEGREE_KINDS; k++)
        if (degrees->origins[k]) traits->of[DEGREE] = (Trait){degrees->origins[k], NULL};
    traits->of[STAGES] =
        trait_if(degrees->stages > 1 && degrees->origins[DEGREE_STAGES], degrees->origins[DEGREE_STAGES],
                 print_number(traits->numbers[0], sizeof traits->numbers[0], degrees->stages));
    if (placement_stages(search->request->constraints.pins, search->request->constraints.pin_count,
                         &last_pin) > 1) {
        of[PINNED_STAGES] = (Trait){pin_place(traits->label, last_pin), NULL};
        traits->pin_file = pin_file(last_pin);
    }
    const Trait narrowing = settings->narrowed_by   ? (Trait){settings->narrowed_by, NULL}
                            : of[ONE_BASELINE].name ? of[ONE_BASELINE]
                            : of[PAPER].name        ? of[PAPER]
                                                    : (Trait){"--space", plan_space_name(search->kind)};
    of[ONE_STAGE] = trait_if(!has_stages, narrowing.name, narrowing.value);
    of[ONE_KIND] = trait_if(!search_spans_stages(search), narrowing.name, narrowing.value);
    const char *place = option_has(options, "micro-batches") ? "--micro-batches" : hints->micro_batches_place;
    of[MICRO_BATCHES] =
        place ? trait_if(micro_batches != 1, place,
                         print_number(traits->numbers[1], sizeof traits->numbers[1], micro_batches))
              : trait_if(micro_batches != 1, "--space", plan_space_name(search->kind));
    of[SPLIT_LAYERS] = trait_if(settings->request.forms.layers == LAYERS_SPLIT, "--layers", "split");
    of[SCHEDULE] = given(options, "schedule", "--schedule");
    of[LACKED_SCHEDULE] =
        trait_if(search->request->space.schedule && has_stages && !(target->schedules >> kind & 1),
                 "--schedule", search->request->space.schedule);
    of[CHUNKS] = given(options, "chunks", "--chunks");
    of[NO_CHUNKS] = trait_if(kind != SCHEDULE_INTERLEAVED, "--schedule", schedule);
}

AmStatus search_conflicts_check(const SearchSettings *settings, const AmOptions *options, AmError *error) {
    Traits traits = {.pin_file = ""};
    find_method(traits.of, &settings->scope, options);
    find_plans(&traits, settings, options);
    for (size_t k = 0; k < sizeof CONFLICTS / sizeof *CONFLICTS; k++) {
        const struct Conflict *conflict = &CONFLICTS[k];
        const Trait *one = &traits.of[conflict->trait], *other = &traits.of[conflict->other];
        if (!one->name || !other->name) continue;
        return am_fail(error, AM_ERROR_USAGE, conflict->trait == PINNED_STAGES ? traits.pin_file : "",
                       "%.300s%s%.200s and %.300s%s%.200s: %s", one->name, one->value ? " " : "",
                       one->value ? one->value : "", other->name, other->value ? " " : "",
                       other->value ? other->value : "", conflict->reason);
    }
    return AM_OK;
}
