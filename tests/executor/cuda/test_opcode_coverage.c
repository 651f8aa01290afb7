/* The column "CUDA" of docs/running.md beside the tables of the CUDA back end:
 * every opcode has a way and the types that it lacks, or a reason for which it has none. With --print, the
 * column. Skipped (77) in a build without CUDA. Needs no GPU. */
#include <stdio.h>

#include "automap_features.h"

enum { SKIPPED = 77 };

#ifdef AUTOMAP_HAVE_CUDA
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/files/file.h"
#include "executor/cuda/coverage.h"
#include "executor/refused.h"

/* Copies cell `n` of a row of a table, counted from 0, without the spaces around it. */
static void read_cell(char *cell, size_t bytes, const char *row, int32_t n) {
    for (; n >= 0; n--) row = strchr(row, '|') + 1;
    row += strspn(row, " ");
    size_t length = strcspn(row, "|\n");
    while (length > 0 && row[length - 1] == ' ') length--;
    assert_true(length < bytes);
    memcpy(cell, row, length);
    cell[length] = '\0';
}

/* The row of an operator in the first table. */
static const char *find_row(const char *text, const char *name) {
    char start[80];
    snprintf(start, sizeof start, "\n| `%s` |", name);
    const char *row = strstr(text, start);
    return row ? row + 1 : NULL;
}

/* The cell of an opcode: "cuBLASLt, not narrow or complex". */
static void write_cell(char *cell, size_t bytes, IrOpcode opcode) {
    static const struct {
        unsigned set;
        const char *name;
    } sets[] = {{CUDA_NARROW, "narrow"}, {CUDA_COMPLEX, "complex"}, {CUDA_PRED, "pred"}};
    unsigned lacking = cuda_lacking_types(opcode);
    size_t length = (size_t)snprintf(cell, bytes, "%s", cuda_coverage_way(opcode));
    const char *before = ", not ";
    for (size_t k = 0; k < sizeof sets / sizeof *sets; k++)
        if (lacking & sets[k].set) {
            length += (size_t)snprintf(cell + length, bytes - length, "%s%s", before, sets[k].name);
            before = " or ";
        }
}

static void test_column_and_tables_agree(void **state) {
    (void)state;
    FileBytes bytes;
    assert_int_equal(file_read(&bytes, SOURCE_DIR "/docs/running.md", NULL), AM_OK);
    for (int32_t k = 0; k < IR_OPCODE_COUNT; k++) {
        const char *name = ir_opcode_name((IrOpcode)k), *way = cuda_coverage_way((IrOpcode)k);
        const char *row = find_row(bytes.data, name), *reason = cuda_lacks((IrOpcode)k);
        char types[64], column[64], cell[64], remarks[512];
        if (!way) fail_msg("CUDA neither runs '%s' nor has a reason in executor/cuda/coverage.c", name);
        if (!row) fail_msg("docs/running.md has no row for '%s'", name);
        read_cell(types, sizeof types, row, 1);
        read_cell(column, sizeof column, row, 4);
        read_cell(remarks, sizeof remarks, row, 5);
        write_cell(cell, sizeof cell, (IrOpcode)k);
        if (strcmp(column, cell) != 0)
            fail_msg("docs/running.md says '%s' of '%s' on CUDA, executor/cuda/coverage.c '%s'", column, name,
                     cell);
        if (reason && !strstr(remarks, reason))
            fail_msg("the remarks on '%s' in docs/running.md lack '%s'", name, reason);
        if ((strcmp(types, "none") == 0) != (refused_reason((IrOpcode)k) != NULL))
            fail_msg("docs/running.md and executor/refused.c differ on '%s'", name);
    }
    file_release(&bytes);
}

/* Opcodes in the table of lacking ones have no kernel. */
static void test_lacking_opcodes_have_no_kernel(void **state) {
    (void)state;
    int32_t count = 0;
    for (int32_t k = 0; k < IR_OPCODE_COUNT; k++) {
        if (!cuda_lacks((IrOpcode)k)) continue;
        count++;
        if (cuda_source_covers((IrOpcode)k) || refused_reason((IrOpcode)k))
            fail_msg("'%s' is on the list of what CUDA lacks for no reason", ir_opcode_name((IrOpcode)k));
    }
    assert_true(count > 0);
}

int main(int count, char **arguments) {
    if (count == 2 && strcmp(arguments[1], "--print") == 0) {
        for (int32_t k = 0; k < IR_OPCODE_COUNT; k++) {
            char cell[64];
            write_cell(cell, sizeof cell, (IrOpcode)k);
            printf("%s\t%s\n", ir_opcode_name((IrOpcode)k), cell);
        }
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_column_and_tables_agree),
        cmocka_unit_test(test_lacking_opcodes_have_no_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include "tests/support/without_cuda.h"
#endif
