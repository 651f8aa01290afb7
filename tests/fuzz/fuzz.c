/* Common code of the fuzzers: bytes as a file, modules in each encoding, arrays, and checks that abort. */
#define _GNU_SOURCE /* memfd_create */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/files/array_file.h"
#include "base/hash.h"
#include "ir/canonical/canonical.h"
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

/* Prints, reads back, and gives the hash of what came back. False where the form cannot hold the module. */
static bool pass_through(size_t form, const Hlo__HloModuleProto *message, IrModule **again, char hex[65]) {
    static AmStatus (*const printers[])(Text *, const Hlo__HloModuleProto *,
                                        AmError *) = {ir_print_pb, ir_print_json, ir_print_text};
    Text text = {0};
    AmError error = {0};
    AmStatus status = printers[form](&text, message, &error);
    fuzz_check(status != AM_ERROR_INTERNAL, "printing", &error);
    if (status == AM_OK) {
        status = ir_read_bytes(again, "printed", text.data, (int64_t)text.length, &error);
        fuzz_check(status == AM_OK, "what was printed cannot be read", &error);
        fuzz_check(hash(*again, hex), "what was printed has no hash", NULL);
    }
    text_free(&text);
    return status == AM_OK;
}

/* All forms where inputs are replayed; under libFuzzer one, which the bytes choose, since it has many
 * inputs. */
static bool is_chosen(size_t form, const uint8_t *data, size_t size) {
#ifdef AUTOMAP_FUZZ
    return hash_bytes(data, size, 0) % 3 == form;
#else
    (void)data;
    (void)size;
    return form < 3;
#endif
}

/* Text leaves out what an opcode does not use and has no words for the
 * attributes of unknown ones; what came out of it once must stay the same. */
void fuzz_module(const uint8_t *data, size_t size) {
    AmError error = {0};
    IrModule *module, *again, *third;
    char expected[65], found[65];
    if (ir_read_bytes(&module, "input", (const char *)data, (int64_t)size, &error) != AM_OK) {
        fuzz_check(error.code != AM_OK && error.text[0], "a refusal without words", NULL);
        return;
    }
    bool hashed = hash(module, expected);
    for (size_t form = 0; hashed && form < 3; form++) {
        if (!is_chosen(form, data, size) || !pass_through(form, module->message, &again, found)) continue;
        if (form == 2) {
            memcpy(expected, found, sizeof expected);
            fuzz_check(pass_through(form, again->message, &third, found), "text of text", NULL);
            ir_module_free(third);
        }
        fuzz_check(strcmp(found, expected) == 0, "printed and read it is another module", NULL);
        ir_module_free(again);
    }
    ir_module_free(module);
}

void fuzz_arrays(const uint8_t *data, size_t size) {
    AmError error = {0};
    ArrayFile file;
    if (array_file_open(&file, fuzz_path(data, size), &error) != AM_OK) return;
    for (int32_t k = 0; k < file.count; k++) {
        /* What a file says to hold beyond a gigabyte no reader asks for here. */
        if (file.entries[k].bytes > (int64_t)1 << 30) continue;
        void *values = malloc((size_t)file.entries[k].bytes + 1);
        fuzz_check(values != NULL, "memory", NULL);
        (void)array_file_read(&file, &file.entries[k], values, &error);
        free(values);
    }
    array_file_close(&file);
}
