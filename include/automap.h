/* automap's public C API: read a training step, find a plan for a cluster, use the plan.
 *
 *     AmModule *module; AmCluster *cluster; AmPlan *plan; AmError error;
 *     am_module_read(&module, "model.hlo.pb", NULL, &error);
 *     am_cluster_read(&cluster, "h100:8", &error);
 *     am_search(&plan, module, cluster, NULL, NULL, &error);
 *     am_plan_write(plan, "plan.json", &error);
 *
 * Errors. The library never exits the process. A call that can fail returns an AmStatus and
 * overwrites the caller's AmError, which needs no initialisation: AM_OK and empty texts on success,
 * the error of this call otherwise. `error` may be NULL. On failure the call sets its handle to
 * NULL. Status values are also the exit codes of the command line tool.
 *
 * Memory. A handle belongs to the caller, who releases it with the matching *_free, which accepts
 * NULL. A buffer that a call returns is released with am_free(). Every other returned pointer lives
 * as long as the handle that it was read from. A plan is freed before its module and cluster.
 *
 * Structs with a member `size` may grow. The caller sets `size` to sizeof(struct) before the call;
 * the library reads and writes that many bytes only. A size of 0 is AM_ERROR_USAGE.
 *
 * Threads. Calls on different handles may run at the same time in any threads. Each call states
 * which handles it needs alone ("alone: module"): no other call may use them meanwhile. Each *_free
 * needs its handle alone. All other handles may be shared. A plan counts as a use of its module in
 * calls that state it.
 *
 * Arguments have one order: the handle that the call makes, handles and files that it reads, format, options,
 * callbacks, texts or facts that it returns, and `error` as the last one.
 *
 * Numbers in files have a decimal point in every locale.
 */
#ifndef AUTOMAP_H
#define AUTOMAP_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#include "automap_status.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define AM_API __attribute__((visibility("default")))
#else
#define AM_API
#endif

#define AM_VERSION "0.1.0"

/* The form of a report. */
typedef enum AmFormat {
    AM_FORMAT_TEXT,
    AM_FORMAT_JSON,
    AM_FORMAT_HTML,    /* of explanations */
    AM_FORMAT_TERMINAL /* text with colours */
} AmFormat;

/* Opaque handles. */
typedef struct AmModule AmModule;           /* a module with its derived data */
typedef struct AmCluster AmCluster;         /* devices and links */
typedef struct AmOptions AmOptions;         /* settings of one command, by key */
typedef struct AmPlan AmPlan;               /* a plan of a module on a cluster */
typedef struct AmSimulation AmSimulation;   /* one predicted step */
typedef struct AmSweep AmSweep;             /* strategies of a sweep */
typedef struct AmExplanation AmExplanation; /* the reasons for a plan's decisions */

AM_API const char *am_version(void); /* static */
/* Writes the optional parts of this library, and the versions of CUDA's libraries found; the caller frees
 * *text. `bytes` may be NULL. Any thread. */
AM_API AmStatus am_features(char **text, size_t *bytes, AmError *error);
AM_API void am_free(void *buffer); /* a buffer of this library; NULL is allowed */

/* ---- options ---- */

typedef enum AmCommand {
    AM_COMMAND_SEARCH,
    AM_COMMAND_SIMULATE,
    AM_COMMAND_EXPLAIN,
    AM_COMMAND_EXPORT,
    AM_COMMAND_RUN,
    AM_COMMAND_SWEEP,
    AM_COMMAND_INFO,
    AM_COMMAND_GROUPS,
    AM_COMMAND_PROPAGATE,
    AM_COMMAND_LOWER,
    AM_COMMAND_CLUSTER,
    AM_COMMAND_PUBLISHED,
    AM_COMMAND_AGENT_TRAIN,
    AM_COMMAND_AGENT_TRAIN_SEARCH,
    AM_COMMAND_AGENT_EVALUATE,
    AM_COMMAND_AGENT_GENERATE,
    AM_COMMAND_COMPARE,
    AM_COMMAND_CONVERT
} AmCommand;

/* Creates empty options of one command: everything has its default. */
AM_API AmStatus am_options_new(AmOptions **options, AmCommand command, AmError *error);
AM_API void am_options_free(AmOptions *options);
/* Sets one option. Keys are those of the command line ("mesh", "memory-fraction"); '_' equals '-'. A key may
 * begin with "--": errors then name options in this form. Switches accept "true" and "false", and NULL for
 * true. A key that may be repeated adds a value at each call; any other key replaces its value. NULL removes
 * the value of another key. AM_ERROR_USAGE names an unknown key with the nearest one, or a bad
 * value with the expectation; the options are then unchanged. Alone: options. */
AM_API AmStatus am_options_set(AmOptions *options, const char *key, const char *value, AmError *error);
/* Checks that the values fit together, as the command does before it reads files. AM_ERROR_USAGE. */
AM_API AmStatus am_options_check(const AmOptions *options, AmError *error);
AM_API const char *am_options_get(const AmOptions *options, const char *key); /* the last value, or NULL */

/* An option of a command, as `automap COMMAND --help` shows it. */
typedef struct AmOptionFacts {
    size_t size;       /* sizeof(AmOptionFacts), set by the caller */
    const char *key;   /* "mesh" */
    const char *value; /* "data=4,model=8"; NULL for a switch */
    const char *help;
    int is_repeatable;
} AmOptionFacts;
AM_API int32_t am_option_count(AmCommand command);
/* Describes option k. AM_ERROR_USAGE: there is no option k. */
AM_API AmStatus am_option(AmCommand command, int32_t k, AmOptionFacts *facts, AmError *error);

/* ---- callbacks ---- */

typedef enum AmMessage { AM_NOTE, AM_WARNING } AmMessage;

/* The state of a long call. An evaluation is one plan, complete or partial, that a search or an explanation
 * prices. In its place, training of an agent counts problems, published results count rows, and a measurement
 * of a machine counts thousandths of its time. */
typedef struct AmProgress {
    size_t size; /* of the library's struct */
    int is_last; /* the call is about to return */
    double elapsed_seconds;
    const char *phase;    /* "baselines", "single stage" */
    int64_t evaluations;  /* so far */
    int64_t limit;        /* expected number at the end, in the unit of `evaluations`; 0: unknown */
    double best_seconds;  /* step of the best plan that fits; NAN: none yet */
    double bound_seconds; /* lower bound of the step; NAN: unknown */
    double seconds_left;  /* NAN: unknown */
} AmProgress;

/* An output of a step, or of a validation (option "eval-every"): the mean over its batches,
 * the sum of integers. */
typedef struct AmOutput {
    int32_t number; /* of the module's outputs */
    int is_loss, is_integer;
    int64_t count; /* elements */
    const double *values;
} AmOutput;

/* A step of a run. Its arrays live until the callback returns. */
typedef struct AmStep {
    size_t size;  /* of the library's struct */
    int64_t step; /* from 0 */
    double loss;  /* NAN where the module has none */
    double seconds;
    int64_t examples, tokens; /* of its batch; 0: unknown */
    int64_t planned_bytes;    /* memory of the ranks of this process, by the plan of their buffers */
    int32_t watched_count;
    const AmOutput *watched; /* the outputs of the option "watch" */
    int32_t validated_count; /* 0: no validation after this step */
    const AmOutput *validated;
    int64_t validated_batches;
    double validated_seconds; /* not part of `seconds` */
} AmStep;

typedef struct AmRunResult AmRunResult;

/* Functions that a call calls with `user`, all but on_episode in the thread of the caller. Members may be
 * NULL, and so may the struct. A callback may not use the handles of the call. */
typedef struct AmCallbacks {
    size_t size; /* sizeof(AmCallbacks), set by the caller */
    void *user;
    /* About five times a second, and once at the end. Not 0: stop. */
    int (*on_progress)(void *user, const AmProgress *progress);
    /* After a step of am_run(). Not 0: stop after this step. */
    int (*on_step)(void *user, const AmStep *step);
    /* A line of text without a line end. */
    void (*on_message)(void *user, AmMessage kind, const char *text);
    /* An episode of a searcher, as a JSON object; in a thread of the search. */
    void (*on_episode)(void *user, const char *json);
    /* After a search without a plan that fits: the nearest plan, and changes that would fit, as a JSON
     * object. */
    void (*on_infeasible)(void *user, const char *json);
    /* Set by a signal handler or another thread: stop. */
    const volatile sig_atomic_t *cancel;
    /* After the last step of a run, with the figures of each device. */
    void (*on_result)(void *user, const AmRunResult *result);
} AmCallbacks;

/* ---- modules ---- */

/* Reads an HLO module (binary, JSON or text, by content; gzip and zstd are opened). `roles_path`: the
 * roles of the parameters, or NULL for model.roles.json beside a file model.*. */
AM_API AmStatus am_module_read(AmModule **module, const char *path, const char *roles_path, AmError *error);
/* Reads an HLO module (binary, JSON or text) in memory, not compressed. The call keeps no pointer to `data`.
 * `name` stands for the file in errors; NULL: "<memory>". */
AM_API AmStatus am_module_parse(AmModule **module, const void *data, size_t bytes, const char *name,
                                AmError *error);
AM_API void am_module_free(AmModule *module);
AM_API const char *am_module_name(const AmModule *module);
AM_API const char *am_module_sha256(const AmModule *module); /* 64 hexadecimal digits */
AM_API int32_t am_module_instruction_count(const AmModule *module);
AM_API int32_t am_module_parameter_count(const AmModule *module);
AM_API int32_t am_module_output_count(const AmModule *module);
AM_API int32_t am_module_loss(const AmModule *module); /* index of the output, or -1 */
AM_API int32_t am_module_warning_count(const AmModule *module);
AM_API const char *am_module_warning(const AmModule *module, int32_t k); /* NULL beyond the count */

/* A parameter of the module. */
typedef struct AmParameter {
    size_t size; /* sizeof(AmParameter), set by the caller */
    int32_t number;
    const char *path; /* "params['dense']['kernel']" */
    const char *type; /* "f32" */
    const char *role; /* "weight", "optimizer", "state", "data" or "constant" */
    int32_t rank;
    const int64_t *dimensions; /* [rank] */
    int32_t output;            /* index of the output that updates it, or -1 */
} AmParameter;
/* Describes a parameter. AM_ERROR_USAGE: there is no parameter of this number. */
AM_API AmStatus am_module_parameter(const AmModule *module, int32_t number, AmParameter *facts,
                                    AmError *error);
/* Checks a target ("megatron"). AM_ERROR_INFEASIBLE, with the reason: it can run no plan of the module. */
AM_API AmStatus am_module_check_target(const AmModule *module, const char *target, AmError *error);

/* ---- clusters ---- */

/* Reads a cluster file or a built-in cluster by name ("C", "nominal:4"). "host:4" is not measured here: it
 * has nominal figures. */
AM_API AmStatus am_cluster_read(AmCluster **cluster, const char *name_or_path, AmError *error);
/* Reads a cluster file in memory, with `name` as that of am_module_parse(). */
AM_API AmStatus am_cluster_parse(AmCluster **cluster, const void *data, size_t bytes, const char *name,
                                 AmError *error);
/* Reads a cluster with options of AM_COMMAND_CLUSTER. "host:4" is this machine as four ranks: the first call
 * measures it, at most 10 s, and keeps the result. NULL: this machine with its GPUs, measured now ("probe"),
 * or the cluster in the outputs of other tools ("import"). One measurement at a time in a process. */
AM_API AmStatus am_cluster_open(AmCluster **cluster, const char *name_or_path, const AmOptions *options,
                                const AmCallbacks *callbacks, AmError *error);
/* Writes the cluster as text, or as a cluster file (JSON); the caller frees *text. `bytes` may be NULL. */
AM_API AmStatus am_cluster_print(const AmCluster *cluster, AmFormat format, char **text, size_t *bytes,
                                 AmError *error);
AM_API void am_cluster_free(AmCluster *cluster);
AM_API const char *am_cluster_name(const AmCluster *cluster);
AM_API int32_t am_cluster_device_count(const AmCluster *cluster);

/* ---- search ---- */

/* Finds a plan. Without the option "mesh" the search covers one-stage plans and pipelines. The option
 * "measure" runs plans in processes of their own (fork), one after the other.
 * AM_INTERRUPTED: stopped; *plan is the best so far, or NULL where there is none.
 * AM_ERROR_INFEASIBLE: no plan fits the memory; the text names the nearest one and what would fit.
 * AM_ERROR_INPUT: the module trains nothing (unless "inference" is set), or XLA has optimized it.
 * Alone: module. */
AM_API AmStatus am_search(AmPlan **plan, AmModule *module, const AmCluster *cluster, const AmOptions *options,
                          const AmCallbacks *callbacks, AmError *error);

/* ---- plans ---- */

/* Reads a plan file and checks it against the module, which must outlive the plan. Alone: module. */
AM_API AmStatus am_plan_read(AmPlan **plan, AmModule *module, const char *path, AmError *error);
/* Reads a plan in memory and checks it against the module, which must outlive the plan. Alone: module. */
AM_API AmStatus am_plan_parse(AmPlan **plan, AmModule *module, const void *data, size_t bytes,
                              const char *name, AmError *error);
AM_API AmStatus am_plan_write(const AmPlan *plan, const char *path, AmError *error); /* "-": stdout */
/* Writes the plan file as text of *bytes bytes (may be NULL), NUL-terminated; the caller frees *json. */
AM_API AmStatus am_plan_to_json(const AmPlan *plan, char **json, size_t *bytes, AmError *error);
AM_API void am_plan_free(AmPlan *plan);

/* Writes the fastest plan that am_search() found for a target ("jax"). AM_ERROR_INFEASIBLE: none. */
AM_API AmStatus am_plan_write_for(const AmPlan *plan, const char *target, const char *path, AmError *error);
/* Writes the plan with its memory, shardings, baselines and origin, as text or JSON; the caller frees *text.
 * `is_verbose`: a row for each group of parameters. `bytes` may be NULL. */
AM_API AmStatus am_plan_print(const AmPlan *plan, AmFormat format, int is_verbose, char **text, size_t *bytes,
                              AmError *error);

AM_API double am_plan_step_seconds(const AmPlan *plan);  /* predicted */
AM_API double am_plan_bound_seconds(const AmPlan *plan); /* no plan that it covers takes less; NAN: unknown */
AM_API double am_plan_gap(const AmPlan *plan);           /* step over bound, minus 1; NAN: unknown */
AM_API int64_t am_plan_peak_bytes(const AmPlan *plan);   /* of the fullest device, with transfer slots */
AM_API int64_t am_plan_evaluations(const AmPlan *plan);  /* of the search that found the plan */
AM_API int32_t am_plan_micro_batches(const AmPlan *plan);
AM_API const char *am_plan_schedule(const AmPlan *plan); /* "none", "1f1b", "gpipe", "zb_h1", ... */
AM_API const char *am_plan_searcher(const AmPlan *plan);
AM_API const char *am_plan_space(const AmPlan *plan);
AM_API int32_t am_plan_stage_count(const AmPlan *plan);
AM_API int32_t am_plan_device_count(const AmPlan *plan); /* of all stages */
AM_API int32_t am_plan_parameter_count(const AmPlan *plan);

/* A stage with its devices as a mesh: row-major, the last axis fastest. */
typedef struct AmStage {
    size_t size;   /* sizeof(AmStage), set by the caller */
    int32_t first; /* number of its first device among those of the plan */
    int32_t device_count;
    const int32_t *devices; /* [device_count]: numbers in the cluster */
    int32_t axis_count;
    const char *const *axis_names; /* [axis_count] */
    const int32_t *axis_sizes;     /* [axis_count] */
} AmStage;
/* Describes a stage. AM_ERROR_USAGE: there is no stage of this number. */
AM_API AmStatus am_plan_stage(const AmPlan *plan, int32_t stage, AmStage *facts, AmError *error);

/* The prediction of a device. Bytes of weights, gradients, optimizer and activations are those at the
 * peak. */
typedef struct AmDevice {
    size_t size;    /* sizeof(AmDevice), set by the caller */
    int32_t device; /* number in the cluster */
    int32_t stage;
    int64_t peak_bytes; /* with transfer slots */
    int64_t weights_bytes, gradients_bytes, optimizer_bytes, activation_bytes, slot_bytes;
    double compute_seconds, communication_seconds, idle_seconds;
    int64_t host_bytes; /* of optimizer state in the memory of its host, besides */
} AmDevice;
/* Describes a device. `k`: number among the devices of the plan, stage by stage. AM_ERROR_USAGE: there is no
 * device k. */
AM_API AmStatus am_plan_device(const AmPlan *plan, int32_t k, AmDevice *facts, AmError *error);

/* A parameter with its sharding. */
typedef struct AmPlanParameter {
    size_t size; /* sizeof(AmPlanParameter), set by the caller */
    int32_t number;
    const char *path, *type, *role;
    int32_t rank;
    const int64_t *dimensions; /* [rank], of the global tensor */
    int32_t stage;             /* that holds it */
    const char *sharding;      /* "[data,-,data+model]": axes by dimension, '-' for none */
    const char *const *axes;   /* [rank]: "data", "data+model", or "" */
} AmPlanParameter;
/* Describes a parameter. AM_ERROR_USAGE: there is no parameter of this number. */
AM_API AmStatus am_plan_parameter(const AmPlan *plan, int32_t number, AmPlanParameter *facts, AmError *error);

/* A baseline that am_search() compared the plan with. */
typedef struct AmBaseline {
    size_t size;        /* sizeof(AmBaseline), set by the caller */
    const char *name;   /* "data_parallel", "megatron" */
    double seconds;     /* of its step; NAN: it does not apply or does not fit */
    const char *reason; /* why not, or NULL */
} AmBaseline;
AM_API int32_t am_plan_baseline_count(const AmPlan *plan); /* 0 for a plan from a file */
/* Describes baseline k. AM_ERROR_USAGE: there is no baseline k. */
AM_API AmStatus am_plan_baseline(const AmPlan *plan, int32_t k, AmBaseline *facts, AmError *error);

/* ---- reports of files ---- */

/* Writes the report of a command on files, as `automap COMMAND FILE...` prints it:
 *
 *     AM_COMMAND_INFO       MODEL: instructions, parameters, loops and work of a module
 *     AM_COMMAND_GROUPS     MODEL: the linkage groups of its weights
 *     AM_COMMAND_PROPAGATE  MODEL: HLO text with a sharding on every instruction (options "mesh", "pin")
 *     AM_COMMAND_LOWER      MODEL: the program of one device (options "plan", "device")
 *     AM_COMMAND_CLUSTER    no file: the built-in clusters; "forget": removes measurements of "host:N"
 *     AM_COMMAND_PUBLISHED  RUNS.csv: predictions beside measured runs
 *     AM_COMMAND_AGENT_EVALUATE  AGENT [FILE...]: the agent beside the exact optimum
 *
 * As text or JSON, NUL-terminated; the caller frees *text. `bytes` may be NULL. Any number of calls at the
 * same time. */
AM_API AmStatus am_report(AmCommand command, const char *const *files, int32_t file_count, AmFormat format,
                          const AmOptions *options, const AmCallbacks *callbacks, char **text, size_t *bytes,
                          AmError *error);
/* Trains an agent, or writes problems that train it, to the file `path`. The command of the options selects:
 *
 *     AM_COMMAND_AGENT_TRAIN         no file: the agent that cuts pipelines
 *     AM_COMMAND_AGENT_TRAIN_SEARCH  MODEL...: the policy of the searcher "dqn"
 *     AM_COMMAND_AGENT_GENERATE      no file: arrays of generated sets
 *
 * on_episode reports in a thread of the training. AM_INTERRUPTED: stopped; the agent so far is
 * in the file. Any number of calls at the same time. */
AM_API AmStatus am_agent_write(const char *const *files, int32_t file_count, const char *path,
                               const AmOptions *options, const AmCallbacks *callbacks, AmError *error);
/* Finds the file of roles that am_module_read() takes beside a module; NULL: none. The caller frees *path. */
AM_API AmStatus am_roles_path(const char *module_path, char **path, AmError *error);
/* Writes a module in another encoding: the suffix of `output` selects binary, JSON or text (.hlo.pb,
 * .hlo.json, .hlo.txt; each also .gz or .zst). A folder of checkpoints becomes one file of arrays,
 * .safetensors or .npz. `options`: NULL, or those of AM_COMMAND_CONVERT. "mixed-precision" "bf16" writes a
 * module whose matrix products and convolutions compute in bf16, while parameters and outputs keep their
 * types. The file of roles goes with it, where `output` is a model.* in another folder. AM_ERROR_INPUT: no
 * product of f32 is outside the optimizer. */
AM_API AmStatus am_convert(const char *input, const char *output, const AmOptions *options,
                           const AmCallbacks *callbacks, AmError *error);

/* ---- simulation ---- */

/* Predicts a step of the plan. `cluster`: another cluster than the plan's, or NULL. A plan that does not fit
 * is simulated, too. Alone: the plan's module. */
AM_API AmStatus am_simulate(AmSimulation **simulation, const AmPlan *plan, const AmCluster *cluster,
                            const AmOptions *options, const AmCallbacks *callbacks, AmError *error);
AM_API void am_simulation_free(AmSimulation *simulation);
AM_API double am_simulation_step_seconds(const AmSimulation *simulation);
AM_API int am_simulation_fits(const AmSimulation *simulation); /* in the memory of every device */
AM_API int32_t am_simulation_device_count(const AmSimulation *simulation);
/* Describes a device, with `k` as in am_plan_device(). AM_ERROR_USAGE: there is no device k. */
AM_API AmStatus am_simulation_device(const AmSimulation *simulation, int32_t k, AmDevice *facts,
                                     AmError *error);
/* Writes the report as text or JSON, NUL-terminated; the caller frees *text. `bytes` may be NULL. */
AM_API AmStatus am_simulation_print(const AmSimulation *simulation, AmFormat format, char **text,
                                    size_t *bytes, AmError *error);

/* ---- sweep ---- */

/* A strategy: the devices in `stages` stages, each a mesh of `data` x `tensor`. */
typedef struct AmStrategy {
    size_t size; /* sizeof(AmStrategy), set by the caller */
    int32_t data, tensor, stages, micro_batches;
    const char *schedule; /* "none" for one stage */
    const char *reason;   /* why there is no such plan; NULL: it was simulated */
    double step_seconds;
    double examples_per_second; /* 0: the module has no batch */
    int64_t peak_bytes;         /* of the fullest device */
    int fits;
} AmStrategy;

/* Simulates the plans of all data, tensor and pipeline degrees. AM_ERROR_INFEASIBLE: the module cannot be
 * rewritten in the number of micro-batches of the options. Alone: module, which outlives the sweep. */
AM_API AmStatus am_sweep(AmSweep **sweep, AmModule *module, const AmCluster *cluster,
                         const AmOptions *options, const AmCallbacks *callbacks, AmError *error);
AM_API void am_sweep_free(AmSweep *sweep);
/* Strategies: those that fit, fastest first; those that do not fit; those without a plan. */
AM_API int32_t am_sweep_count(const AmSweep *sweep);
/* Describes strategy k. AM_ERROR_USAGE: there is no strategy k. */
AM_API AmStatus am_sweep_strategy(const AmSweep *sweep, int32_t k, AmStrategy *facts, AmError *error);
/* Gives the plan of strategy k. AM_ERROR_INFEASIBLE: it has none. Alone: the module of the sweep. */
AM_API AmStatus am_sweep_plan(AmPlan **plan, const AmSweep *sweep, int32_t k, AmError *error);
/* Writes the sweep as text or JSON, NUL-terminated; the caller frees *text. `bytes` may be NULL. */
AM_API AmStatus am_sweep_print(const AmSweep *sweep, AmFormat format, char **text, size_t *bytes,
                               AmError *error);

/* ---- explanation ---- */

/* Simulates the plan and single changes of it. AM_INTERRUPTED: stopped, without a result. Alone: the plan's
 * module. */
AM_API AmStatus am_explain(AmExplanation **explanation, const AmPlan *plan, const AmOptions *options,
                           const AmCallbacks *callbacks, AmError *error);
AM_API void am_explanation_free(AmExplanation *explanation);
/* Writes the explanation as text, JSON or a page of HTML, NUL-terminated; the caller frees *text. The plan
 * must still be there. `bytes` may be NULL. */
AM_API AmStatus am_explanation_print(const AmExplanation *explanation, AmFormat format, char **text,
                                     size_t *bytes, AmError *error);

/* ---- difference ---- */

/* Writes the differences of two plans of one module handle, as text or JSON: predictions, decisions with
 * their cost, parameters, collectives. Each plan is simulated on its cluster. The caller frees *text, which
 * is NUL-terminated. `bytes` may be NULL. AM_INTERRUPTED: stopped, without a result. Alone: the plans'
 * module.
 */
AM_API AmStatus am_diff(const AmPlan *first, const AmPlan *second, AmFormat format,
                        const AmCallbacks *callbacks, char **text, size_t *bytes, AmError *error);

/* ---- comparison ---- */

/* Writes the error of the predicted timeline beside the trace of a run, the option "trace", as text or JSON:
 * for each device, stage and pass. `cluster` NULL: the plan's own. The caller frees *text, which is
 * NUL-terminated. `bytes` may be NULL. AM_ERROR_INPUT: the trace is of another plan. AM_INTERRUPTED: stopped,
 * without a result. Alone: the plan's module. */
AM_API AmStatus am_compare(const AmPlan *plan, const AmCluster *cluster, AmFormat format,
                           const AmOptions *options, const AmCallbacks *callbacks, char **text, size_t *bytes,
                           AmError *error);

/* ---- export ---- */

/* Writes the plan for another system. `target` is "jax", "torch" or "automap", which give JSON, or "hlo",
 * "shardy", "megatron" or "torchtitan", which give text unless the option "json" is set. "dtensor" is an
 * alias of "torch". The result is NUL-terminated; the caller frees *text. `bytes` may be NULL.
 * AM_ERROR_INFEASIBLE: the other system cannot hold the same plan; the text has the reason. Alone: the plan's
 * module. */
AM_API AmStatus am_export(const AmPlan *plan, const char *target, const AmOptions *options,
                          const AmCallbacks *callbacks, char **text, size_t *bytes, AmError *error);

/* ---- run ---- */

/* The result of a run. */
struct AmRunResult {
    size_t size; /* sizeof(AmRunResult), set by the caller */
    int64_t steps;
    double seconds_per_step; /* mean without the first step */
    double first_loss, last_loss;
    int64_t peak_bytes;                          /* of the device with most: allocation and scratch memory */
    double predicted_seconds;                    /* step of the plan; NAN: no plan */
    int64_t not_finite_steps, first_not_finite;  /* whose loss was infinite or not a number; the first */
    int64_t resident_bytes, peak_resident_bytes; /* of this process at the end, and the most */
    int64_t early_resident_bytes;                /* after step 10 */
    int64_t channel_bytes;                       /* slots of transfers between stages, on the host */
    double compile_seconds;                      /* compilation of kernels */
    int64_t graphs, graph_nodes;                 /* recorded graphs of kernels, and their nodes */
    /* [device_count]: allocation without scratch memory, scratch memory of kernels, predicted allocation
     * (NULL: no plan). They live until on_result returns, and are NULL in the struct of the caller. */
    int32_t device_count;
    const int64_t *device_peak_bytes, *device_scratch_bytes, *device_predicted_bytes;
    const char *carried_module; /* the plan file's own module, if it is another; lives as long */
    const char *carried_sha256;
};
/* Trains in this process: each device of the plan is a thread. `plan` NULL: the whole module on one device.
 * `result` may be NULL. AM_INTERRUPTED: stopped after a step; requested files are written and the result is
 * valid. AM_ERROR_RUNTIME: a rank failed, or the loss was not finite. Alone: module, and no second run of
 * the process at the same time. */
AM_API AmStatus am_run(AmModule *module, const AmPlan *plan, const AmOptions *options,
                       const AmCallbacks *callbacks, AmRunResult *result, AmError *error);

/* The processes that run a plan together, started by mpirun, torchrun or srun; one process without them.
 * Each has an even share of the plan's devices. Joining waits at most `join_seconds` for the others; 0: 60.
 * One join at a time in a process. */
typedef struct AmProcesses AmProcesses;
AM_API AmStatus am_processes_join(AmProcesses **processes, double join_seconds, AmError *error);
AM_API int32_t am_processes_index(const AmProcesses *processes); /* of this process; 0 reports and writes */
AM_API int32_t am_processes_count(const AmProcesses *processes);
/* Runs am_run() in all processes together, with the same module, plan and options. Callbacks are called in
 * process 0. A failure in one process ends the others with AM_ERROR_RUNTIME and a line that names it. Alone:
 * processes and module, and no second run of the process at the same time. */
AM_API AmStatus am_processes_run(AmProcesses *processes, AmModule *module, const AmPlan *plan,
                                 const AmOptions *options, const AmCallbacks *callbacks, AmRunResult *result,
                                 AmError *error);
/* Leaves the run. `failure`: the error for which this process leaves, which ends the others; NULL: none.
 * Alone: processes. */
AM_API void am_processes_leave(AmProcesses *processes, const AmError *failure);
/* Ends MPI if joining started it, once and as the last action of a process. Returns 1 when MPI has ended, or
 * was not started. `is_orderly`: every process calls this. Otherwise, after a failure, MPI is not ended,
 * because its end waits for all processes: the result is 0, and the process should end by _exit(). An orderly
 * end that takes longer than `seconds` calls give_up(), which must not return. Alone. */
AM_API int am_processes_end(int is_orderly, double seconds, void (*give_up)(void));

#ifdef __cplusplus
}
#endif
#endif
