/* The models that benchmarks go through, and the median they report. */
#ifndef BENCH_ZOO_H
#define BENCH_ZOO_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/compare.h"

#define ZOO_FOLDER "datasets/models"

static inline int zoo_is_model(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

/* Returns the folders of datasets/models, sorted; both levels are the C heap's. -1: the working directory is
 * not the source folder. */
static inline int zoo_list(struct dirent ***models) {
    return scandir(ZOO_FOLDER, models, zoo_is_model, alphasort);
}

/* Paths of the model's binary, compressed or not, and of its roles. */
static inline bool zoo_paths(const char *model, char binary[4096], char roles[4096]) {
    snprintf(roles, 4096, ZOO_FOLDER "/%s/model.roles.json", model);
    snprintf(binary, 4096, ZOO_FOLDER "/%s/model.hlo.pb", model);
    if (access(binary, R_OK) == 0) return true;
    snprintf(binary, 4096, ZOO_FOLDER "/%s/model.hlo.pb.zst", model);
    return access(binary, R_OK) == 0;
}

/* Sorts `values`, so that values[0] is the least, and returns the median. */
static inline double zoo_median(double *values, int count) {
    qsort(values, (size_t)count, sizeof(*values), compare_doubles);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

#endif
