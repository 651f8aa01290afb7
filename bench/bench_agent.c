/* Benchmark of the pipeline inference agent on unseen sets.
 *
 *   bench_agent [AGENT [COUNT]]     (default datasets/agents/pipeline.safetensors, 10000 sets)
 *
 * Rows "name, ours, limit, ok or no": the excess of its plans over the exact optimum, mean and 95th
 * percentile in percent, invalid plans, and milliseconds of a plan, mean and most; then without a limit the
 * policy alone (one partial plan at a time, a tenth of the sets), the greedy and the even split, and the time
 * by events.
 */
#include <stdio.h>
#include <stdlib.h>

#include "planners/inference_grade.h"

#define SEED 2000003 /* as automap agent evaluate */

static void row(const char *name, double ours, double limit) {
    printf("%s\t%.4g\t%g\t%s\n", name, ours, limit, ours <= limit ? "ok" : "no");
}

static void plain_row(const char *name, double ours) {
    printf("%s\t%.4g\t-\t-\n", name, ours);
}

int main(int count, char **words) {
    const char *path = count > 1 ? words[1] : "datasets/agents/pipeline.safetensors";
    int32_t sets = count > 2 ? atoi(words[2]) : 10000;
    AmError error = {0};
    InferenceGrade grade, alone;
    Agent *agent;
    if (sets < 10) sets = 10;
    if (inference_agent_read(&agent, path, &error) != AM_OK ||
        inference_grade(&grade, agent, INFERENCE_WIDTH, SEED, sets, &error) != AM_OK ||
        inference_grade(&alone, agent, 1, SEED, sets / 10, &error) != AM_OK) {
        fprintf(stderr, "bench_agent: %s\n", error.text);
        return 1;
    }
    row("agent: mean excess %", 100 * grade.mean, 1);
    row("agent: 95th percentile %", 100 * grade.percentile_95, 3);
    row("agent: invalid plans", grade.invalid, 0);
    row("agent: mean ms a plan", 1e3 * grade.mean_seconds, 50);
    row("agent: most ms a plan", 1e3 * grade.most_seconds, 50);
    plain_row("agent: worst %", 100 * grade.worst);
    plain_row("agent: mean % by events", 100 * grade.by_events);
    plain_row("policy alone: mean %", 100 * alone.mean);
    plain_row("policy alone: 95th percentile %", 100 * alone.percentile_95);
    plain_row("policy alone: mean ms a plan", 1e3 * alone.mean_seconds);
    plain_row("greedy split: mean %", 100 * grade.greedy_mean);
    plain_row("even split: mean %", 100 * grade.even_mean);
    plain_row("even split: does not fit", grade.even_invalid);
    agent_free(agent);
    return 0;
}
