/* Finds a plan, predicts its step, and trains with it; without DATA it stops after the prediction.
 *
 *     train MODEL CLUSTER [DATA STEPS]
 *     train model.hlo.pb nominal:4 data.npz 20
 *
 * Each device of the plan is a thread of this process. The initial state is random.
 */
#include <automap.h>
#include <stdio.h>

typedef struct Handles {
    AmModule *module;
    AmCluster *cluster;
    AmPlan *plan;
    AmSimulation *simulation;
    AmOptions *options; /* of the run */
} Handles;

static int show_step(void *user, const AmStep *step) {
    (void)user;
    printf("step %lld  loss %.5f\n", (long long)step->step, step->loss);
    return 0; /* anything else ends the run after this step */
}

/* Prints seconds and memory of each device. */
static AmStatus predict(Handles *self, AmError *error) {
    AmStatus status = am_simulate(&self->simulation, self->plan, NULL, NULL, NULL, error);
    if (status != AM_OK) return status;
    printf("predicted step %.4g s%s\n", am_simulation_step_seconds(self->simulation),
           am_simulation_fits(self->simulation) ? "" : ", which does not fit");
    for (int d = 0; d < am_simulation_device_count(self->simulation); d++) {
        AmDevice device = {.size = sizeof device};
        status = am_simulation_device(self->simulation, d, &device, error);
        if (status != AM_OK) return status;
        printf("device %d, stage %d: computes %.3g s, communicates %.3g s, peak %.3g MB\n",
               (int)device.device, (int)device.stage, device.compute_seconds, device.communication_seconds,
               (double)device.peak_bytes / 1e6);
    }
    return AM_OK;
}

static AmStatus train(Handles *self, const char *data, const char *steps, AmError *error) {
    const AmCallbacks callbacks = {.size = sizeof callbacks, .on_step = show_step};
    AmRunResult result = {.size = sizeof result};
    AmStatus status = am_options_new(&self->options, AM_COMMAND_RUN, error);
    if (status == AM_OK) status = am_options_set(self->options, "state", "random", error);
    if (status == AM_OK) status = am_options_set(self->options, "data", data, error);
    if (status == AM_OK) status = am_options_set(self->options, "steps", steps, error);
    if (status == AM_OK) status = am_run(self->module, self->plan, self->options, &callbacks, &result, error);
    if (status == AM_OK)
        printf("%lld steps, loss %.5f to %.5f, %.3g s a step\n", (long long)result.steps, result.first_loss,
               result.last_loss, result.seconds_per_step);
    return status;
}

int main(int count, char **words) {
    AmError error;
    Handles self = {0};
    if (count != 3 && count != 5) {
        fprintf(stderr, "usage: train MODEL CLUSTER [DATA STEPS]\n");
        return AM_ERROR_USAGE;
    }
    AmStatus status = am_module_read(&self.module, words[1], NULL, &error);
    if (status == AM_OK) status = am_cluster_read(&self.cluster, words[2], &error);
    if (status == AM_OK) status = am_search(&self.plan, self.module, self.cluster, NULL, NULL, &error);
    if (status == AM_OK) status = predict(&self, &error);
    if (status == AM_OK && count == 5) status = train(&self, words[3], words[4], &error);
    if (status != AM_OK) fprintf(stderr, "%s%s%s\n", error.source, *error.source ? ": " : "", error.text);
    am_options_free(self.options);
    am_simulation_free(self.simulation);
    am_plan_free(self.plan);
    am_cluster_free(self.cluster);
    am_module_free(self.module);
    return status;
}
