/* automap's public C API.
 *
 * The library never exits the process. A call that can fail returns an AmStatus
 * and overwrites the caller's AmError, which needs no initialisation: AM_OK and
 * empty texts on success, the error of this call otherwise. `error` may be NULL.
 * On failure the call sets its handle to NULL. Status values are also the exit
 * codes of the command line tool. A handle belongs to the caller, who releases it
 * with the matching *_free. Every other returned pointer lives as long as the
 * handle that it was read from. Numbers in files have a decimal point in every locale.
 */
#ifndef AUTOMAP_H
#define AUTOMAP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define AM_API __attribute__((visibility("default")))
#else
#define AM_API
#endif

#define AM_VERSION "0.1.0"

typedef enum AmStatus {
    AM_OK = 0,
    AM_ERROR_INTERNAL = 1,   /* a bug of ours, or no memory left */
    AM_ERROR_USAGE = 2,      /* an argument that means nothing */
    AM_ERROR_INPUT = 3,      /* a bad input file */
    AM_ERROR_INFEASIBLE = 4, /* no plan fits, or an export would not be the same plan */
    AM_ERROR_RUNTIME = 5,    /* a rank failed while running */
    AM_INTERRUPTED = 130     /* the caller asked to stop; the best result so far is returned */
} AmStatus;

/* The error of the last call: problem, position and expectation. `line` and `column` count from 1
 * and are 0 without a text; `excerpt` is then empty. For binary input `text` names the byte, for
 * JSON the path. */
typedef struct AmError {
    AmStatus code;
    char source[512];
    int64_t line, column;
    char text[1024];
    char excerpt[256];
} AmError;

/* Opaque: a module with its derived data, a cluster, a plan of the two. */
typedef struct AmModule AmModule;
typedef struct AmCluster AmCluster;
typedef struct AmPlan AmPlan;

AM_API const char *am_version(void); /* static */

/* Reads an HLO module (binary, JSON or text, by content). `roles_path`: the roles of the
 * parameters, or NULL. On success the caller owns *module: am_module_free(). */
AM_API AmStatus am_module_read(AmModule **module, const char *path, const char *roles_path, AmError *error);
AM_API void am_module_free(AmModule *module);                /* NULL is allowed */
AM_API const char *am_module_name(const AmModule *module);   /* the module's */
AM_API const char *am_module_sha256(const AmModule *module); /* 64 hexadecimal digits; the module's */
AM_API int32_t am_module_instruction_count(const AmModule *module);

/* Reads a cluster file or a built-in cluster by name ("C", "nominal:4"). "host:4" is not measured here: it
 * has nominal figures; pass the file that `automap cluster host:4 --json` writes. On success *cluster is the
 * caller's: am_cluster_free(). */
AM_API AmStatus am_cluster_read(AmCluster **cluster, const char *name_or_path, AmError *error);
AM_API void am_cluster_free(AmCluster *cluster); /* NULL is allowed */
AM_API int32_t am_cluster_device_count(const AmCluster *cluster);

/* Zero or NULL selects the default. A negative number, one that is not finite, or a
 * memory fraction above 1 is AM_ERROR_USAGE. */
typedef struct AmSearchOptions {
    const char *mesh;       /* "data=4,model=8"; default: every split of the devices, and stages */
    int64_t evaluations;    /* plans priced at most */
    double seconds;         /* cap on time; the result then depends on the machine */
    double memory_fraction; /* of a device's memory that a plan may fill */
    uint64_t seed;
} AmSearchOptions;

/* Searches all plan spaces; with `mesh`, single-stage plans only. One search per module at a
 * time. `options` may be NULL. The caller frees *plan before the module and the cluster.
 * AM_ERROR_INFEASIBLE: no plan fits the memory; the text names the nearest one. */
AM_API AmStatus am_search(AmPlan **plan, const AmModule *module, const AmCluster *cluster,
                          const AmSearchOptions *options, AmError *error);
/* Reads a plan file and checks it against the module, which must outlive the plan. */
AM_API AmStatus am_plan_read(AmPlan **plan, const AmModule *module, const char *path, AmError *error);
AM_API AmStatus am_plan_write(const AmPlan *plan, const char *path, AmError *error); /* "-": stdout */
AM_API void am_plan_free(AmPlan *plan);                                              /* NULL is allowed */
AM_API double am_plan_step_seconds(const AmPlan *plan);                              /* predicted */

#ifdef __cplusplus
}
#endif
#endif
