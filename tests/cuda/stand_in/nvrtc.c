/* The stand-in NVRTC: keeps the text, comments blanked, as its machine code, after
 * a look at its brackets. Real compilation is the stand-in driver's; whether NVRTC itself takes
 * the text is for the tests that use the real one. Its version is one that no
 * NVRTC has, so the two never share a file of a cache. With STAND_IN_NVRTC_MEET=N a compilation
 * waits for N compilations at once, and fails where they do not come.
 */
#include <nvrtc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cuda/stand_in/image.h"
#include "tests/cuda/stand_in/stand_in.h"

#define EXPORT __attribute__((visibility("default")))
/* Works without a driver, where nothing is counted. */
#define ENTER(function)                                        \
    do {                                                       \
        const StandIn *entered_ = stand_in();                  \
        int code_ = entered_ ? entered_->enter(#function) : 0; \
        if (code_) return (nvrtcResult)code_;                  \
    } while (0)

struct _nvrtcProgram {
    char *text, *image;
    char log[160];
};

static const int architectures[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

EXPORT nvrtcResult nvrtcVersion(int *major, int *minor) {
    *major = 13;
    *minor = 99;
    return NVRTC_SUCCESS;
}

EXPORT const char *nvrtcGetErrorString(nvrtcResult result) {
    if (result == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE) return "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE";
    return result == NVRTC_SUCCESS ? "NVRTC_SUCCESS" : "NVRTC_ERROR_COMPILATION";
}

EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int *count) {
    *count = sizeof architectures / sizeof *architectures;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetSupportedArchs(int *list) {
    memcpy(list, architectures, sizeof architectures);
    return NVRTC_SUCCESS;
}

/* The length of the comment or literal that begins here, else 0. */
static size_t aside_length(const char *text) {
    static const char *const asides[][2] = {{"//", "\n"}, {"/*", "*/"}, {"\"", "\""}, {"'", "'"}};
    for (size_t k = 0; k < sizeof asides / sizeof *asides; k++) {
        size_t begin = strlen(asides[k][0]);
        if (strncmp(text, asides[k][0], begin) != 0) continue;
        const char *end = strstr(text + begin, asides[k][1]);
        return end ? (size_t)(end - text) + strlen(asides[k][1]) : strlen(text);
    }
    return 0;
}

static void blank_comments(char *text) {
    while (*text) {
        size_t length = aside_length(text);
        bool comment = length > 0 && *text == '/';
        for (size_t k = 0; comment && k < length; k++)
            if (text[k] != '\n') text[k] = ' ';
        text += length ? length : 1;
    }
}

EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *text, const char *name, int headers,
                                      const char *const *header_texts, const char *const *header_names) {
    (void)name, (void)header_texts, (void)header_names;
    ENTER(nvrtcCreateProgram);
    if (headers > 0) return NVRTC_ERROR_INVALID_INPUT;
    *program = calloc(1, sizeof **program);
    if (*program) (*program)->text = strdup(text);
    if (!*program || !(*program)->text) return NVRTC_ERROR_OUT_OF_MEMORY;
    blank_comments((*program)->text);
    return NVRTC_SUCCESS;
}

/* The line, from 1, of the first bracket that has no partner; 0: all have. */
static int unbalanced_line(const char *text) {
    enum { MOST = 256 };
    static const char open[] = "([{", close[] = ")]}";
    char stack[MOST];
    int depth = 0, line = 1;
    for (; *text; text++) {
        if (*text == '"' || *text == '\'') text += aside_length(text) - 1;
        const char *opens = strchr(open, *text), *closes = strchr(close, *text);
        if (*text == '\n') line++;
        if (opens && depth == MOST) return line;
        if (opens) stack[depth++] = close[opens - open];
        if (closes && (depth == 0 || stack[--depth] != *text)) return line;
    }
    return depth > 0 ? line : 0;
}

/* Returns whether as many compilations as STAND_IN_NVRTC_MEET says are under way, within 10 seconds. */
static bool meets_others(void) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
    static long begun;
    const char *text = getenv("STAND_IN_NVRTC_MEET");
    long wanted = text ? strtol(text, NULL, 10) : 0;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 10;
    pthread_mutex_lock(&mutex);
    if (wanted > 0) begun++;
    pthread_cond_broadcast(&moved);
    while (begun < wanted && pthread_cond_timedwait(&moved, &mutex, &end) == 0) {}
    bool met = begun >= wanted;
    pthread_mutex_unlock(&mutex);
    return met;
}

EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const *options) {
    ENTER(nvrtcCompileProgram);
    if (!meets_others()) return NVRTC_ERROR_INTERNAL_ERROR;
    static const char option[] = "--gpu-architecture=";
    const char *target = "";
    int line = unbalanced_line(program->text);
    for (int k = 0; k < count; k++)
        if (strncmp(options[k], option, strlen(option)) == 0) target = options[k] + strlen(option);
    if (!target[0]) return NVRTC_ERROR_INVALID_OPTION;
    if (line > 0) {
        snprintf(program->log, sizeof program->log, "automap.cu(%d): error: brackets do not match\n", line);
        return NVRTC_ERROR_COMPILATION;
    }
    size_t bytes = strlen(program->text) + strlen(target) + sizeof STAND_IN_IMAGE + 1;
    free(program->image);
    program->image = malloc(bytes);
    if (!program->image) return NVRTC_ERROR_OUT_OF_MEMORY;
    snprintf(program->image, bytes, "%s%s\n%s", STAND_IN_IMAGE, target, program->text);
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program) {
    free((*program)->text);
    free((*program)->image);
    free(*program);
    *program = NULL;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *bytes) {
    *bytes = strlen(program->log) + 1;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log) {
    strcpy(log, program->log);
    return NVRTC_SUCCESS;
}

/* With the NUL, for PTX and machine code alike: the driver has to find the end. */
EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *bytes) {
    *bytes = program->image ? strlen(program->image) + 1 : 0;
    return program->image ? NVRTC_SUCCESS : NVRTC_ERROR_INVALID_PROGRAM;
}

EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *image) {
    strcpy(image, program->image);
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *bytes) {
    return nvrtcGetCUBINSize(program, bytes);
}

EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *image) {
    return nvrtcGetCUBIN(program, image);
}
