/* Writing a module: the message it was read from, in the encoding that the
 * file's suffix names. The suffix may be followed by .gz or .zst.
 */
#include <stdio.h>
#include <string.h>

#include "base/files/file.h"
#include "ir/encodings.h"

typedef AmStatus PrintFunction(Text *out, const Hlo__HloModuleProto *message, AmError *error);

typedef struct Encoding {
    const char *suffix;
    PrintFunction *print;
} Encoding;

static const Encoding encodings[] = {
    {".pb", ir_print_pb},
    {".json", ir_print_json},
    {".txt", ir_print_text},
};

static bool ends_with(const char *path, size_t length, const char *suffix) {
    size_t suffix_length = strlen(suffix);
    return length >= suffix_length && memcmp(path + length - suffix_length, suffix, suffix_length) == 0;
}

/* Returns the encoding of a path; standard output gets text, for human readers. */
static const Encoding *choose(const char *path) {
    size_t length = strcmp(path, "-") == 0 ? 0 : strlen(path);
    if (length == 0) return &encodings[2];
    if (ends_with(path, length, ".gz")) {
        length -= strlen(".gz");
    } else if (ends_with(path, length, ".zst")) {
        length -= strlen(".zst");
    }
    for (size_t i = 0; i < sizeof encodings / sizeof *encodings; i++) {
        if (ends_with(path, length, encodings[i].suffix)) return &encodings[i];
    }
    return NULL;
}

AmStatus ir_write(const IrModule *module, const char *path, AmError *error) {
    const Encoding *encoding = choose(path);
    if (encoding == NULL) {
        return am_fail(
            error, AM_ERROR_USAGE, path,
            "expected a name that ends in .hlo.pb, .hlo.json or .hlo.txt, with .gz or .zst or without");
    }
    if (module->message == NULL) {
        return am_fail(error, AM_ERROR_INTERNAL, path, "a derived module has no message to write");
    }
    Text text = {0};
    AmStatus status = encoding->print(&text, module->message, error);
    if (status != AM_OK && error && !error->source[0])
        snprintf(error->source, sizeof error->source, "%s", module->source);
    if (status == AM_OK) status = file_write(path, text.data, text.length, error);
    text_free(&text);
    return status;
}
