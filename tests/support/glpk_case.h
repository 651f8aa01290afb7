/* Mixed integer programs solved by GLPK, run as a process. */
#ifndef TESTS_SUPPORT_GLPK_CASE_H
#define TESTS_SUPPORT_GLPK_CASE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <unistd.h>

enum { GLPK_SKIPPED = 77 };

static inline bool glpk_is_there(void) {
    if (system("glpsol --version >/dev/null 2>&1") == 0) return true;
    puts("skipped: there is no glpsol (Debian: glpk-utils)");
    return false;
}

/* The optimum in the file that glpsol writes: "s mip ROWS COLUMNS o OBJECTIVE". */
static inline double glpk_optimum(const char *path) {
    char line[256], proven = 0;
    double optimum = NAN;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "s mip %*d %*d %c %lf", &proven, &optimum) == 2) break;
    fclose(file);
    assert_int_equal(proven, 'o');
    return optimum;
}

/* Solves the program that `write` writes in CPLEX's LP format. */
static inline double glpk_solve(void (*write)(FILE *file, const void *problem), const void *problem) {
    char folder[] = "/tmp/automap-glpk-XXXXXX", program[64], solution[64], command[256];
    assert_non_null(mkdtemp(folder));
    snprintf(program, sizeof program, "%s/program.lp", folder);
    snprintf(solution, sizeof solution, "%s/solution", folder);
    FILE *file = fopen(program, "w");
    assert_non_null(file);
    write(file, problem);
    assert_int_equal(fclose(file), 0);
    snprintf(command, sizeof command, "glpsol --lp %s -w %s >%s/log", program, solution, folder);
    assert_int_equal(system(command), 0);
    double optimum = glpk_optimum(solution);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    return optimum;
}

#endif
