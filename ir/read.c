/* Reading a module: bytes of any encoding, recognised by their beginning. JSON
 * starts with a brace; binary has control characters (its tags) among its first
 * bytes, text has none; all else is binary.
 */
#define _XOPEN_SOURCE 700
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files/file.h"
#include "base/files/file_format.h"
#include "ir/encodings.h"

typedef AmStatus ParseFunction(Hlo__HloModuleProto **message, Arena *arena, AmWarnings *warnings,
                               const char *source, const char *data, int64_t length, AmError *error);

/* The number of bytes examined to distinguish text from binary. */
#define TEXT_SAMPLE 4096

static bool is_text(const char *data, int64_t length) {
    int64_t count = length < TEXT_SAMPLE ? length : TEXT_SAMPLE;
    for (int64_t i = 0; i < count; i++) {
        unsigned char c = (unsigned char)data[i];
        if (c == 0x7F || (c < 0x20 && (c < '\t' || c > '\r'))) return false;
    }
    return true;
}

static ParseFunction *recognise(const char *data, int64_t length) {
    int64_t at = 0;
    while (at < length && data[at] && strchr(" \t\r\n", data[at])) at++;
    if (at < length && data[at] == '{') return ir_parse_json;
    return is_text(data, length) ? ir_parse_text : ir_parse_pb;
}

/* Adds to the error the position in the file of the refused instruction. */
static void add_place(const IrModule *module, const Hlo__HloModuleProto *message, ParseFunction *parse,
                      const char *data, int64_t length, AmError *error) {
    if (module->refused == NULL || message == NULL) return;
    if (parse == ir_parse_text) {
        int64_t at = ir_find_in_text(data, length, module->refused->id);
        if (at >= 0) am_error_locate(error, data, length, at);
        return;
    }
    for (size_t c = 0; c < message->n_computations; c++) {
        const Hlo__HloComputationProto *computation = message->computations[c];
        for (size_t i = 0; i < computation->n_instructions; i++) {
            if (computation->instructions[i] != module->refused) continue;
            am_error_prefix(error, "computations[%zu].instructions[%zu]: ", c, i);
            return;
        }
    }
}

AmStatus ir_read_bytes(IrModule **module, const char *source, const char *data, int64_t length,
                       AmError *error) {
    AmStatus status;
    Hlo__HloModuleProto *message = NULL;
    *module = NULL;
    if (length == 0)
        return am_fail(error, AM_ERROR_INPUT, source, "the file is empty, expected an HLO module");
    TRY(file_format_expect(FILE_FORMAT_HLO, source, data, length, error));
    int64_t mark = file_mark_bytes(data, length);
    data += mark;
    length -= mark;
    IrModule *read = ir_module_new(source);
    if (read == NULL) return am_fail_memory(error, sizeof *read);
    ParseFunction *parse = recognise(data, length);
    TRY_OR_FAIL(parse(&message, &read->arena, &read->warnings, source, data, length, error));
    TRY_OR_FAIL(ir_build(read, message, error));
    TRY_OR_FAIL(ir_verify(read, error));
    if (read->unplanned) add_place(read, message, parse, data, length, read->unplanned);
    *module = read;
    return AM_OK;
fail:
    add_place(read, message, parse, data, length, error);
    ir_module_free(read);
    return status;
}

/* Refuses a folder, with the module or the other model in it. */
static AmStatus check_folder(const char *path, AmError *error) {
    static const char *const names[] = {"model.hlo.pb", "model.hlo.pb.zst", "model.hlo.pb.gz",
                                        "model.hlo.txt", "model.hlo.json"};
    struct stat facts;
    char inside[4096];
    if (strcmp(path, "-") == 0 || stat(path, &facts) != 0 || !S_ISDIR(facts.st_mode)) return AM_OK;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        int length = snprintf(inside, sizeof inside, "%s/%s", path, names[k]);
        if (length < 0 || (size_t)length >= sizeof inside || access(inside, R_OK) != 0) continue;
        return am_fail(error, AM_ERROR_INPUT, path, "is a directory, expected a file; did you mean %s?",
                       inside);
    }
    int length = snprintf(inside, sizeof inside, "%s/saved_model.pb", path);
    if (length > 0 && (size_t)length < sizeof inside && access(inside, R_OK) == 0)
        return am_fail(
            error, AM_ERROR_INPUT, path,
            "this is a TensorFlow SavedModel, expected an HLO module; export the training step as HLO");
    return AM_OK; /* reading says that it is a folder */
}

AmStatus ir_read(IrModule **module, const char *path, AmError *error) {
    FileBytes bytes;
    *module = NULL;
    TRY(check_folder(path, error));
    TRY(file_read(&bytes, path, error));
    AmStatus status = ir_read_bytes(module, bytes.name, bytes.data, bytes.length, error);
    file_release(&bytes);
    return status;
}
