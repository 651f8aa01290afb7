/* The options of every command of the API, in tables that the command line shares.
 *
 * A table is a macro that calls ROW(key, value, help, is_repeatable, rule) for each option. The API makes
 * rows of options.h of them; cli/ makes rows of its own with "--" before the key:
 *
 *     #define CLI_ROW(key, value, help, repeatable, rule) {"--" key, value, help, repeatable},
 *
 * `value` names the argument in --help; NULL for a switch. `rule` is the check of a value (options.h).
 */
#ifndef API_OPTION_ROWS_H
#define API_OPTION_ROWS_H

/* Returns the key that replaces an earlier one, which is still accepted; returns other keys unchanged. */
const char *option_present_key(const char *key);

/* Rows of several commands. */
#define OPTION_ROW_SEED(ROW) \
    ROW("seed", "N", "seed of the random numbers (default 0)", false, RULE_INTEGER(0, INT64_MAX))
#define OPTION_ROW_INFERENCE(ROW) \
    ROW("inference", NULL, "accept a module that updates no weight", false, RULE_SWITCH)
#define OPTION_ROW_MEMORY_FRACTION(ROW) \
    ROW("memory-fraction", "F", "usable part of a device's memory (default 0.9)", false, RULE_NUMBER(1e-6, 1))
#define OPTION_ROW_PROFILE(ROW) \
    ROW("profile", "FILE", "measured operator times (from run --profile)", false, RULE_TEXT)

#define OPTION_ROW_NO_PROBE(ROW)                                                                     \
    ROW("no-probe", NULL, "never measure this machine for host:N; stored or nominal figures", false, \
        RULE_SWITCH)
#define OPTION_ROW_TRAINING_SEED(ROW) \
    ROW("seed", "N", "seed of the random numbers (default 0)", false, RULE_INTEGER(0, 1000000))

/* ---- search ---- */

#define SEARCH_SPACE_ROWS(ROW)                                                                             \
    ROW("space", "SPACE", "auto (default), single_stage, operator, data, pipeline or hybrid", false,       \
        RULE_CHOICE(OPTION_SPACES))                                                                        \
    ROW("for", "TARGET", "jax, hlo, shardy, torch, megatron, torchtitan (default automap)", false,         \
        RULE_CHOICE(OPTION_TARGETS))                                                                       \
    ROW("mesh", "data=4,model=8", "mesh of one-stage plans (default: every split of the devices)", false,  \
        RULE_TEXT)                                                                                         \
    ROW("stages", "N", "number of pipeline stages; 1: no pipelines", false, RULE_INTEGER(1, STAGES_MOST))  \
    ROW("pipeline", "N", "the same as --stages", false, RULE_INTEGER(1, STAGES_MOST))                      \
    ROW("devices-per-stage", "W", "devices of each stage", false, RULE_INTEGER(1, MESH_MAX_DEVICES))       \
    ROW("data", "D", "data degree of each stage: devices that split its examples", false,                  \
        RULE_INTEGER(1, MESH_MAX_DEVICES))                                                                 \
    ROW("tensor", "T", "tensor degree of each stage: devices that split its weights", false,               \
        RULE_INTEGER(1, MESH_MAX_DEVICES))                                                                 \
    ROW("pin", "PATTERN=SHARDING", "sharding by path or scope: '*/mlp_in/kernel=-,model'", true, RULE_PIN) \
    ROW("hints", "FILE", "JSON file of pins, stages, devices and degrees", false, RULE_TEXT)               \
    ROW("keep-shardings", NULL, "shardings of the module kept in every plan", false, RULE_SWITCH)          \
    ROW("even", NULL, "equal contiguous shards, of one stage unless --space hybrid", false, RULE_SWITCH)   \
    ROW("quota", "TYPE=N", "at most N devices of a type", true, RULE_TEXT)                                 \
    ROW("pareto", NULL, "fewer devices tried, too; the front of time and money", false, RULE_SWITCH)       \
    ROW("keep-order", NULL, "devices in the order of the cluster file", false, RULE_SWITCH)                \
    ROW("offload", "NAME", "auto (default: if nothing else fits), none or optimizer: host memory", false,  \
        RULE_CHOICE(OPTION_OFFLOADS))                                                                      \
    ROW("no-overrides", NULL, "no overrides for single operators", false, RULE_SWITCH)

#define SEARCH_METHOD_ROWS(ROW)                                                                             \
    ROW("searcher", "NAME", "auto (default), dqn, anneal, greedy, exact, exhaustive, random, agent", false, \
        RULE_CHOICE(OPTION_SEARCHERS))                                                                      \
    ROW("baseline", "NAME", "only this baseline, priced (the names are below)", false,                      \
        RULE_CHOICE(OPTION_BASELINES))                                                                      \
    ROW("no-seeds", NULL, "no start from baselines and screened estimates", false, RULE_SWITCH)             \
    ROW("no-polish", NULL, "no local improvement of the searcher's plans", false, RULE_SWITCH)              \
    ROW("objective", "NAME", "time (default), cost: money for a step, or paper: Auto-MAP's own", false,     \
        RULE_CHOICE(OPTION_OBJECTIVES))                                                                     \
    ROW("evaluations", "N", "most plans priced (default: by the module's size; see below)", false,          \
        RULE_INTEGER(1, 1000000000))                                                                        \
    ROW("seconds", "S", "time limit in seconds; the plan then depends on the machine", false,               \
        RULE_NUMBER(1e-3, 1e9))                                                                             \
    ROW("measure", "N", "runs of the plans found, on host:N; the fastest plan is returned", false,          \
        RULE_INTEGER(1, 1000))                                                                              \
    ROW("agent", "AGENT", "trained agent for pipelines (default: the built-in one)", false, RULE_TEXT)      \
    ROW("policy", "POLICY", "policy of dqn and auto, or untrained (default: the built-in one)", false,      \
        RULE_TEXT)                                                                                          \
    ROW("learner", "PARTS", "parts of the DQN of --objective paper: double=off,noisy,atoms=N", false,       \
        RULE_TEXT)                                                                                          \
    ROW("device", "cpu|cuda", "device for the training of the DQN (default cpu)", false,                    \
        RULE_CHOICE(OPTION_DEVICES))                                                                        \
    OPTION_ROW_SEED(ROW)

#define SEARCH_ATTENTION_ROWS(ROW)                                                                      \
    ROW("attention", "NAME", "auto (default), fused or unfused: softmax(QK^T)V as one operator", false, \
        RULE_CHOICE(OPTION_ATTENTIONS))                                                                 \
    ROW("keep-remat", NULL, "recomputation stays as the source prescribes it", false, RULE_SWITCH)

#define SEARCH_PIPELINE_ROWS(ROW)                                                                       \
    ROW("micro-batches", "M|auto", "number of micro-batches; auto: the fastest power of two that fits", \
        false, RULE_MICRO_BATCHES)                                                                      \
    ROW("schedule", "NAME", "1f1b (default), gpipe, zb_h1, zb_2p or interleaved_1f1b", false,           \
        RULE_CHOICE(OPTION_SCHEDULES))                                                                  \
    ROW("chunks", "V", "chunks per stage of interleaved_1f1b (default 2)", false,                       \
        RULE_INTEGER(1, STAGES_MOST / 2))                                                               \
    ROW("layers", "auto|loop|split", "split: one parameter per layer of a stack (default auto)", false, \
        RULE_CHOICE(OPTION_LAYERS))                                                                     \
    ROW("relax", "NAME", "permitted: batch_statistics_per_micro_batch, rounded_sums", true,             \
        RULE_CHOICE(OPTION_RELAXATIONS))

#define SEARCH_INPUT_ROWS(ROW)                                               \
    ROW("init-plan", "PLAN", "further plan to start from", false, RULE_TEXT) \
    OPTION_ROW_PROFILE(ROW)

/* ---- simulate ---- */

#define OPTION_ROW_SLOW(ROW) \
    ROW("slow", "DEVICE=FACTOR,...", "slow devices: operators take FACTOR times as long", false, RULE_TEXT)

#define SIMULATE_ROWS(ROW)                                                                   \
    OPTION_ROW_PROFILE(ROW)                                                                  \
    OPTION_ROW_MEMORY_FRACTION(ROW)                                                          \
    ROW("jitter", "F", "random delay of operators, as a mean fraction of their time", false, \
        RULE_NUMBER(0, 10))                                                                  \
    ROW("seed", "N", "seed of the jitter (default 0)", false, RULE_INTEGER(0, INT64_MAX))    \
    OPTION_ROW_SLOW(ROW)

#define SIMULATE_OUTPUT_ROWS(ROW)                                                                  \
    ROW("verbose", NULL, "cost of each collective and transfer, with the other algorithms", false, \
        RULE_SWITCH)

#define SIMULATE_TRACE_ROWS(ROW) \
    ROW("trace", "T.json", "timeline as a Chrome trace (opens in Perfetto)", false, RULE_TEXT)

/* ---- compare ---- */

#define COMPARE_ROWS(ROW)                                                        \
    ROW("trace", "RUN.json", "trace of run --trace; required", false, RULE_TEXT) \
    OPTION_ROW_PROFILE(ROW)                                                      \
    OPTION_ROW_SLOW(ROW)

/* ---- reports of modules ---- */

#define OPTION_ROW_ROLES(ROW) \
    ROW("roles", "FILE", "parameter roles (default: model.roles.json beside MODEL)", false, RULE_TEXT)

#define INFO_ROWS(ROW)    \
    OPTION_ROW_ROLES(ROW) \
    ROW("verbose", NULL, "every loop instead of the largest five", false, RULE_SWITCH)

#define CONVERT_ROWS(ROW)                                                                     \
    ROW("mixed-precision", "bf16", "products in bf16; weights and optimizer stay f32", false, \
        RULE_CHOICE(OPTION_PRECISIONS))                                                       \
    OPTION_ROW_ROLES(ROW)

#define GROUPS_ROWS(ROW)                                                                               \
    ROW("strict", NULL, "Auto-MAP's mode: one axis, no reshards", false, RULE_SWITCH)                  \
    ROW("axis-size", "N", "devices on the axis (default 8)", false, RULE_INTEGER(2, MESH_MAX_DEVICES)) \
    ROW("order", "ORDER", "member (default), size (most dimensions first) or impact (FLOPs)", false,   \
        RULE_CHOICE(OPTION_GROUP_ORDERS))                                                              \
    OPTION_ROW_ROLES(ROW)

#define PROPAGATE_ROWS(ROW)                                                                                 \
    ROW("mesh", "data=2,model=4", "axes of the mesh and their sizes", false, RULE_TEXT)                     \
    ROW("pin", "PATTERN=SHARDING", "sharding by path or scope: '*/mlp_in/kernel=-,model'", true, RULE_TEXT) \
    ROW("keep-shardings", NULL, "start from the shardings of the module; --mesh is optional", false,        \
        RULE_SWITCH)                                                                                        \
    ROW("strict", NULL, "Auto-MAP's mode: one axis, no reshards", false, RULE_SWITCH)                       \
    OPTION_ROW_ROLES(ROW)

#define LOWER_ROWS(ROW)                                                                             \
    ROW("plan", "PLAN", "plan; none: the module on one device; required", false, RULE_TEXT)         \
    ROW("device", "D", "device of the plan, counted over its stages (default 0)", false, RULE_TEXT) \
    OPTION_ROW_ROLES(ROW)

/* ---- sweep ---- */

#define SWEEP_ROWS(ROW)                                                                     \
    ROW("micro-batches", "M", "this number only (default: the powers of two)", false,       \
        RULE_INTEGER(1, MICRO_BATCHES_MOST))                                                \
    ROW("schedule", "NAME", "a row for this schedule (default: 1f1b, or gpipe)", true,      \
        RULE_CHOICE(OPTION_SCHEDULES))                                                      \
    ROW("relax", "NAME", "permitted: batch_statistics_per_micro_batch, rounded_sums", true, \
        RULE_CHOICE(OPTION_RELAXATIONS))

/* ---- explain ---- */

#define EXPLAIN_ROWS(ROW)                                                                                 \
    ROW("evaluations", "N", "most changes simulated (default: by the module's size, at least 24)", false, \
        RULE_INTEGER(1, INT32_MAX))

/* ---- export ---- */

#define EXPORT_FORMAT_ROWS(ROW)                                                                   \
    ROW("format", "F", "jax, hlo, shardy, torch, megatron, torchtitan, automap; required", false, \
        RULE_CHOICE(OPTION_TARGETS))

#define EXPORT_ROWS(ROW)                                                                              \
    ROW("whole-layers", NULL, "cuts of a pipeline moved to the nearest layer boundaries", false,      \
        RULE_SWITCH)                                                                                  \
    ROW("spelling", "S", "hlo: tiles or named (mesh axes); shardy: closed or open dimensions", false, \
        RULE_CHOICE(OPTION_SPELLINGS))

/* ---- run ---- */

#define RUN_TRAINING_ROWS(ROW)                                                                             \
    ROW("steps", "N", "number of steps (default 1)", false, RULE_INTEGER(1, INT64_MAX))                    \
    ROW("state", "FILE", "initial values by path, .safetensors or .npz; random: by --seed", false,         \
        RULE_TEXT)                                                                                         \
    ROW("on-nan", "stop|warn", "reaction to a loss that is not finite (default stop: exit code 5)", false, \
        RULE_CHOICE(OPTION_ON_NAN))                                                                        \
    ROW("save", "FILE", "final state, .safetensors or .npz", false, RULE_TEXT)                             \
    OPTION_ROW_SEED(ROW)

#define RUN_DATA_ROWS(ROW)                                                                               \
    ROW("data", "[NAME=]FILE", "examples: arrays by path, or tokens (docs/running.md)", true, RULE_TEXT) \
    ROW("shuffle", NULL, "new order of the examples in every epoch, by --seed", false, RULE_SWITCH)      \
    ROW("prefetch", "N", "batches loaded ahead of the step (default 2)", false,                          \
        RULE_INTEGER(1, FEED_MOST_PREFETCH))

#define RUN_VALIDATION_ROWS(ROW)                                                                      \
    ROW("eval", "MODEL", "module that runs over held-out data after the last step", false, RULE_TEXT) \
    ROW("eval-data", "[NAME=]FILE", "held-out examples, in the forms of --data", true, RULE_TEXT)     \
    ROW("eval-every", "K", "validate after every K steps, too", false, RULE_INTEGER(1, INT64_MAX))    \
    ROW("eval-roles", "FILE", "its parameter roles (default: model.roles.json beside it)", false, RULE_TEXT)

#define RUN_CHECKPOINT_ROWS(ROW)                                                                      \
    ROW("checkpoint", "DIR", "folder of checkpoints: after the last step and on an interrupt", false, \
        RULE_TEXT)                                                                                    \
    ROW("every", "K", "a checkpoint after every K steps, too", false, RULE_INTEGER(1, INT64_MAX))     \
    ROW("keep", "N", "number of checkpoints kept (default 2)", false, RULE_INTEGER(1, 1000000))       \
    ROW("resume", NULL, "continues from the newest checkpoint; --steps includes its steps", false,    \
        RULE_SWITCH)

#define RUN_OUTPUT_ROWS(ROW)                                                        \
    ROW("watch", "'output[K]'", "value of output K at every step", true, RULE_TEXT) \
    ROW("outputs", "OUT.npz", "every output of the last step", false, RULE_TEXT)

#define RUN_TRACE_ROWS(ROW)                                                                                  \
    ROW("trace", "T.json", "activity of every rank as a Chrome trace (opens in Perfetto)", false, RULE_TEXT) \
    ROW("trace-steps", "N", "number of last steps in the trace (default 3)", false,                          \
        RULE_INTEGER(1, 1000000))                                                                            \
    ROW("profile", "FILE", "profile that receives operator times, for simulate --profile", false, RULE_TEXT)

#define RUN_DEVICE_ROWS(ROW)                                                                           \
    ROW("device", "cpu|cuda", "device of the ranks (default cpu)", false, RULE_CHOICE(OPTION_DEVICES)) \
    ROW("threads", "N", "threads per rank on the host (default: its processors / ranks)", false,       \
        RULE_INTEGER(1, 256))                                                                          \
    ROW("comm", "local|mpi|nccl", "collectives: threads of one process, MPI or NCCL", false, RULE_TEXT)

#define RUN_PRECISION_ROWS(ROW) \
    ROW("tf32", NULL, "tf32 operands for f32 matrix products (--device cuda)", false, RULE_SWITCH)

/* ---- cluster ---- */

#define CLUSTER_PROBE_ROWS(ROW)                                                                        \
    ROW("probe", NULL, "measures this host or its GPUs, in under a minute", false, RULE_SWITCH)        \
    ROW("device", "NAME", "measured device: cuda or cpu (default: cuda where there is a GPU)", false,  \
        RULE_CHOICE(OPTION_DEVICES))                                                                   \
    ROW("devices", "N", "devices of the cluster (default: all GPUs, or the host as one)", false,       \
        RULE_INTEGER(1, 1024))                                                                         \
    ROW("profile", "FILE", "profile that receives the measured operators, as of run --profile", false, \
        RULE_TEXT)

#define CLUSTER_FORGET_ROWS(ROW) \
    ROW("forget", NULL, "removal of the kept measurement of host:N", false, RULE_SWITCH)

#define CLUSTER_IMPORT_ROWS(ROW)                                                                    \
    ROW("import", "FILE", "output of another tool (below), or hwloc: this host", true, RULE_TEXT)   \
    ROW("device-type", "NAME", "type of the imported devices, such as A100-80GB", false, RULE_TEXT) \
    ROW("between", "LINK", "link between the imported servers, such as infiniband-200", false, RULE_TEXT)

/* ---- published ---- */

#define PUBLISHED_ROWS(ROW)                                                                               \
    ROW("source", "NAME", "rows of this source only", false, RULE_TEXT)                                   \
    ROW("row", "LINE", "the row on this line of the file only", false, RULE_INTEGER(2, 1000000000))       \
    ROW("memory-fraction", "F", "usable part of a device's memory (default 0.97; --search 0.935)", false, \
        RULE_NUMBER(1e-6, 1))                                                                             \
    ROW("search", NULL, "the plan that a search finds for each row, also without a strategy", false,      \
        RULE_SWITCH)                                                                                      \
    ROW("seconds", "S", "longest search of a row (default 10)", false, RULE_NUMBER(1e-3, 1e6))

#define PUBLISHED_OUTPUT_ROWS(ROW)                                                   \
    ROW("write-module", "FILE", "module of the row, for simulate", false, RULE_TEXT) \
    ROW("write-plan", "PLAN", "plan of the row, for simulate", false, RULE_TEXT)

/* ---- agents ---- */

#define AGENT_TRAIN_ROWS(ROW)                                                                              \
    ROW("episodes", "N", "episodes in all (default 60000)", false, RULE_INTEGER(1, 1000000000))            \
    OPTION_ROW_TRAINING_SEED(ROW)                                                                          \
    ROW("device", "cpu|cuda", "device for the training (default cpu)", false, RULE_CHOICE(OPTION_DEVICES)) \
    ROW("learner", "PARTS", "parts of Rainbow: prioritized=off,n-step=N,noisy,atoms=N", false, RULE_TEXT)

#define AGENT_TRAIN_SEARCH_ROWS(ROW)                                                                  \
    ROW("problems", "N", "generated problems (default 1000)", false, RULE_INTEGER(1, 1000000000))     \
    OPTION_ROW_TRAINING_SEED(ROW)                                                                     \
    ROW("learner", "PARTS", "parts of Rainbow: n-step=N,double,prioritized=off,noisy,atoms=N", false, \
        RULE_TEXT)                                                                                    \
    ROW("supervised", NULL, "regression on the teacher's plans, without episodes", false, RULE_SWITCH)

/* `units` are counted between reports, by default a `part` of all. */
#define AGENT_CHECKPOINT_ROWS(ROW, units, part)                                                    \
    ROW("report", "N", units " between reports and checkpoints (default: a " part ")", false,      \
        RULE_INTEGER(1, 1000000000))                                                               \
    ROW("checkpoint", "FILE", "state to continue from, written at every report", false, RULE_TEXT) \
    ROW("resume", NULL, "training continues from --checkpoint", false, RULE_SWITCH)

#define AGENT_EVALUATE_ROWS(ROW)                                                                       \
    ROW("cluster", "CLUSTER", "devices of profile graphs and modules (default C)", false, RULE_TEXT)   \
    OPTION_ROW_NO_PROBE(ROW)                                                                           \
    ROW("stages", "N", "stages of files (default: one per server; arrays have their own)", false,      \
        RULE_INTEGER(1, CHAIN_MAX_STAGES))                                                             \
    ROW("micro-batches", "M", "micro-batches of files (default 16, modules 8; arrays have their own)", \
        false, RULE_INTEGER(1, 1 << 20))                                                               \
    ROW("width", "N", "partial plans side by side (default 64; 1: the policy alone)", false,           \
        RULE_INTEGER(1, CUT_AGENT_MOST_WIDTH))                                                         \
    ROW("count", "N", "unseen sets (default 10000)", false, RULE_INTEGER(1, 10000000))                 \
    OPTION_ROW_TRAINING_SEED(ROW)

#define AGENT_GENERATE_ROWS(ROW)                                                               \
    ROW("count", "N", "sets (default 1000)", false, RULE_INTEGER(1, CUT_AGENT_FILE_MOST_SETS)) \
    OPTION_ROW_TRAINING_SEED(ROW)

#endif
