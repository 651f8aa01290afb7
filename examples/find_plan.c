/* Searches a plan for a module in memory, with progress, and prints the plan.
 *
 *     find_plan MODEL CLUSTER [KEY=VALUE...]
 *     find_plan model.hlo.pb h100:8 evaluations=200 mesh=data=4,model=2
 *
 * Keys are those of `automap search --help`. An interrupt ends the search with the best plan so far.
 */
#include <automap.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t cancelled;

static void cancel(int number) {
    (void)number;
    cancelled = 1;
}

static int show_progress(void *user, const AmProgress *progress) {
    (void)user;
    fprintf(stderr, "%5.1f s  %s, %lld evaluations", progress->elapsed_seconds, progress->phase,
            (long long)progress->evaluations);
    if (!isnan(progress->best_seconds)) fprintf(stderr, ", best %.3g s", progress->best_seconds);
    fputs("\n", stderr);
    return 0; /* anything else ends the search */
}

static void show_message(void *user, AmMessage kind, const char *text) {
    (void)user;
    fprintf(stderr, "%s: %s\n", kind == AM_WARNING ? "warning" : "note", text);
}

static void *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    char *data = NULL;
    *bytes = 0;
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    if (length >= 0) data = malloc((size_t)length + 1);
    if (data) *bytes = fread(data, 1, (size_t)length, file);
    fclose(file);
    return data;
}

/* Sets the options "key=value" of the command line. */
static AmStatus read_options(AmOptions *options, int count, char **words, AmError *error) {
    AmStatus status = AM_OK;
    for (int k = 0; k < count && status == AM_OK; k++) {
        char *equals = strchr(words[k], '=');
        if (equals) *equals = '\0';
        status = am_options_set(options, words[k], equals ? equals + 1 : NULL, error);
    }
    return status;
}

static void print_plan(const AmPlan *plan) {
    printf("step %.4g s, bound %.4g s, gap %.2f %%, peak %.3g MB, %d micro-batches\n",
           am_plan_step_seconds(plan), am_plan_bound_seconds(plan), 100 * am_plan_gap(plan),
           (double)am_plan_peak_bytes(plan) / 1e6, (int)am_plan_micro_batches(plan));
    for (int s = 0; s < am_plan_stage_count(plan); s++) {
        AmStage stage = {.size = sizeof stage};
        if (am_plan_stage(plan, s, &stage, NULL) != AM_OK) return;
        printf("stage %d: %d devices, mesh", s, (int)stage.device_count);
        for (int axis = 0; axis < stage.axis_count; axis++)
            printf(" %s=%d", stage.axis_names[axis], (int)stage.axis_sizes[axis]);
        puts("");
    }
    for (int p = 0; p < am_plan_parameter_count(plan); p++) {
        AmPlanParameter row = {.size = sizeof row};
        if (am_plan_parameter(plan, p, &row, NULL) != AM_OK) return;
        if (strcmp(row.role, "weight") == 0)
            printf("%-40s stage %d  %s%s\n", row.path, (int)row.stage, row.type, row.sharding);
    }
}

int main(int count, char **words) {
    AmError error;
    AmModule *module = NULL;
    AmCluster *cluster = NULL;
    AmOptions *options = NULL;
    AmPlan *plan = NULL;
    size_t bytes;
    const AmCallbacks callbacks = {.size = sizeof callbacks,
                                   .on_progress = show_progress,
                                   .on_message = show_message,
                                   .cancel = &cancelled};
    if (count < 3) {
        fprintf(stderr, "usage: find_plan MODEL CLUSTER [KEY=VALUE...]\n");
        return AM_ERROR_USAGE;
    }
    void *data = read_file(words[1], &bytes);
    if (!data) {
        fprintf(stderr, "%s: cannot be read\n", words[1]);
        return AM_ERROR_INPUT;
    }
    signal(SIGINT, cancel);
    AmStatus status = am_module_parse(&module, data, bytes, words[1], &error);
    if (status == AM_OK) status = am_cluster_read(&cluster, words[2], &error);
    if (status == AM_OK) status = am_options_new(&options, AM_COMMAND_SEARCH, &error);
    if (status == AM_OK) status = read_options(options, count - 3, words + 3, &error);
    if (status == AM_OK) status = am_search(&plan, module, cluster, options, &callbacks, &error);
    if (plan) print_plan(plan);
    if (status != AM_OK) fprintf(stderr, "%s%s%s\n", error.source, *error.source ? ": " : "", error.text);
    am_plan_free(plan);
    am_options_free(options);
    am_cluster_free(cluster);
    am_module_free(module);
    free(data);
    return status;
}
