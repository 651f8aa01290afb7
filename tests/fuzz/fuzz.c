/* What the fuzzers share: see fuzz.h. */
#define _GNU_SOURCE /* memfd_create */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ir/canonical.h"
#include "ir/encodings.h"

const char *fuzz_path(const uint8_t *data, size_t size) {
    static int file = -1;
    static char path[64];
    if (file < 0) {
        file = memfd_create("input", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    bool written = ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == (ssize_t)size;
    fuzz_check(written, "the input cannot be written", NULL);
    return path;
}

void fuzz_check(bool holds, const char *what, const AmError *error) {
    if (holds) return;
    fprintf(stderr, "%s%s%s\n", what, error ? ": " : "", error ? error->text : "");
    abort();
}

static bool hash(const IrModule *module, char hex[65]) {
    IrModule *canonical = NULL;
    AmError error = {0};
    if (ir_canonicalize(&canonical, module, &error) != AM_OK) return false;
    ir_hash(canonical, hex);
    ir_module_free(canonical);
    return true;
}

void fuzz_module(const uint8_t *data, size_t size) {
    static AmStatus (*const printers[])(Text *, const Hlo__HloModuleProto *,
                                        AmError *) = {ir_print_pb, ir_print_json, ir_print_text};
    static const char *const names[] = {"binary", "JSON", "text"};
    AmError error = {0};
    IrModule *module, *again;
    char expected[65], found[65];
    if (ir_read_bytes(&module, "input", (const char *)data, (int64_t)size, &error) != AM_OK) {
        fuzz_check(error.code != AM_OK && error.text[0], "a refusal without words", NULL);
        return;
    }
    for (size_t k = 0; hash(module, expected) && k < sizeof printers / sizeof *printers; k++) {
        Text text = {0};
        AmStatus status = printers[k](&text, module->message, &error);
        if (status == AM_OK) {
            status = ir_read_bytes(&again, names[k], text.data, (int64_t)text.length, &error);
            fuzz_check(status == AM_OK, "what was printed cannot be read", &error);
            fuzz_check(hash(again, found) && strcmp(found, expected) == 0,
                       "printed and read it is another module", NULL);
            ir_module_free(again);
        }
        fuzz_check(status != AM_ERROR_INTERNAL, names[k], &error);
        error = (AmError){0};
        text_free(&text);
    }
    ir_module_free(module);
}
