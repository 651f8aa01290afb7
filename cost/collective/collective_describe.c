/* Explains the price of a collective: the algorithm, each of its steps with messages and busiest
 * link, and the times of the other algorithms. */
#include "cost/collective/collective_algorithms.h"
#include "cost/collective/nccl_model.h"

static void append_nccl(Text *text, ProgramCollectiveKind kind, double bytes,
                        const CollectiveTopology *topology, const Cluster *cluster) {
    NcclChoice best = nccl_model_choose(kind, bytes, topology, cluster), one;
    text_append(text, "NCCL %s, %s, ", nccl_algorithm_name(best.algorithm),
                nccl_protocol_name(best.protocol));
    text_append_seconds(text, best.seconds);
    text_append_string(text, "\n  latency ");
    text_append_seconds(text, best.latency);
    text_append_string(text, ", then ");
    text_append_bytes_size(text, best.bytes_per_second);
    text_append_string(text, "/s of the whole\n");
    const char *separator = "  others: ";
    for (int32_t a = 0; a < NCCL_ALGORITHMS; a++) {
        for (int32_t p = 0; p < NCCL_PROTOCOLS; p++) {
            bool is_best = a == (int32_t)best.algorithm && p == (int32_t)best.protocol;
            if (is_best ||
                !nccl_model_price(&one, (NcclAlgorithm)a, (NcclProtocol)p, kind, bytes, topology, cluster))
                continue;
            text_append(text, "%s%s %s ", separator, nccl_algorithm_name(one.algorithm),
                        nccl_protocol_name(one.protocol));
            text_append_seconds(text, one.seconds);
            separator = ", ";
        }
    }
    text_append_string(text, "\n");
}

static bool is_at(const double *around, double size) {
    return around[0] == size && around[1] == size;
}

static bool is_between(const double *around, double size) {
    return around[0] <= size && around[1] >= size;
}

static void append_bytes(Text *text, double bytes) {
    text_append_bytes_size(text, bytes < 1 ? 1 : bytes);
}

/* Appends "measured, 1.2 us, by ...", or the measured figures from which a time is interpolated or
 * extrapolated. */
static void append_measured(Text *text, double seconds, const char *by, const CollectiveEvidence *evidence,
                            double bytes, int32_t devices) {
    bool inside = is_between(evidence->devices, devices) && is_between(evidence->bytes, bytes);
    bool is_measured = is_at(evidence->devices, devices) && is_at(evidence->bytes, bytes);
    text_append(text, "%s, ", is_measured ? "measured" : inside ? "interpolated" : "extrapolated");
    text_append_seconds(text, seconds);
    text_append(text, ", %s", by);
    if (!is_measured) {
        text_append(text, ", from %.0f", evidence->devices[0]);
        if (evidence->devices[1] != evidence->devices[0])
            text_append(text, " and %.0f", evidence->devices[1]);
        text_append_string(text, " devices, ");
        append_bytes(text, evidence->bytes[0]);
        if (evidence->bytes[1] != evidence->bytes[0]) {
            text_append_string(text, " and ");
            append_bytes(text, evidence->bytes[1]);
        }
    }
    text_append_string(text, "\n");
}

void collective_describe(Text *text, ProgramCollectiveKind kind, double bytes,
                         const CollectiveTopology *topology, const Cluster *cluster) {
    static const char *const bases[] = {[COLLECTIVE_BY_RUN] = "by the profile of a run",
                                        [COLLECTIVE_BY_CLUSTER] = "by the curves of the cluster's link",
                                        [COLLECTIVE_BY_PROBE] = "by the profile of a probe"};
    double seconds;
    if (bytes < 1) bytes = 1;
    text_append(text, "%s of ", program_collective_name(kind));
    text_append_bytes_size(text, bytes);
    text_append(text, " among %d device%s of %d server%s: ", topology->devices,
                topology->devices == 1 ? "" : "s", topology->servers, topology->servers == 1 ? "" : "s");
    CollectiveEvidence evidence;
    CollectiveBasis basis = collective_measured(&seconds, &evidence, kind, bytes, topology, cluster);
    if (basis != COLLECTIVE_BY_MODEL) {
        append_measured(text, seconds, bases[basis], &evidence, bytes, topology->devices);
        return;
    }
    if (cluster->nccl && nccl_model_has(kind) && topology->devices > 1) {
        append_nccl(text, kind, bytes, topology, cluster);
        return;
    }
    const LinkLoads *islands;
    const CollectiveAlgorithm *best = collective_choose(&seconds, &islands, kind, bytes, topology, cluster);
    text_append(text, "%s, ", best ? best->name : "nothing to do");
    text_append_seconds(text, seconds);
    text_append_string(text, "\n");
    if (!best) return;
    double moved = bytes * (best->moves_whole ? topology->devices : 1);
    for (int32_t p = 0; p < best->pattern_count; p++) {
        const CollectiveMove *move = &islands->moves[best->patterns[p]];
        for (int32_t k = 0; k < move->step_count; k++) {
            const CollectiveStep *step = &move->steps[k];
            text_append(text, "  %s%s", collective_rounds(best, kind) == 2 ? "2 x " : "",
                        collective_patterns[best->patterns[p]].name);
            edge_terms_describe(text, step->terms, step->term_count, step->messages, step->latency, moved,
                                bytes, cluster);
        }
    }
    int32_t count;
    const CollectiveAlgorithm *rows = collective_algorithms(&count);
    const char *separator = "  others: ";
    for (int32_t k = 0; k < count; k++) {
        if (&rows[k] == best || !collective_can_use(&rows[k], kind, topology)) continue;
        text_append(text, "%s%s ", separator, rows[k].name);
        text_append_seconds(text, collective_algorithm_seconds(&rows[k], kind, bytes, topology, cluster));
        separator = ", ";
    }
    if (separator[0] == ',') text_append_string(text, "\n");
}
