/* The log of `run --log`: one JSON object for each step, written and flushed at once.
 *
 * A resumed run continues the log: lines of steps that run again are cut off (cut()).
 */
#define _POSIX_C_SOURCE 200809L
#include "cli/run/run_log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/files/file.h"
#include "base/system/process.h"
#include "cli/run/run_stream.h"

AmStatus run_log_open(RunLog *log, const char *path, bool resumes, AmError *error) {
    *log = (RunLog){.path = path, .is_cut = !resumes};
    log->file = resumes ? fopen(path, "a+") : file_open_in_place(path);
    if (log->file) return AM_OK;
    return am_fail(error, AM_ERROR_USAGE, path, "cannot be written: %s", strerror(errno));
}

static AmStatus check_written(RunLog *log, bool done, AmError *error) {
    if (done) return AM_OK;
    return am_fail(error, AM_ERROR_RUNTIME, log->path, "writing failed: %s", strerror(errno));
}

/* Returns whether a whole line of the log is of a step before `step`. */
static bool is_before(const char *line, ssize_t length, int64_t step) {
    json_t *object = line[length - 1] == '\n' ? json_loadb(line, (size_t)length, 0, NULL) : NULL;
    const json_t *value = json_object_get(object, "step");
    bool before = json_is_integer(value) && json_integer_value(value) < step;
    json_decref(object);
    return before;
}

/* Keeps the lines up to the first that is not of a step before `step`. */
static AmStatus cut(RunLog *log, int64_t step, AmError *error) {
    char *line = NULL;
    size_t room = 0;
    off_t end = 0;
    rewind(log->file);
    for (;;) {
        ssize_t length = getline(&line, &room, log->file);
        if (length <= 0 || !is_before(line, length, step)) break;
        end += (off_t)length;
    }
    free(line);
    log->is_cut = true;
    return check_written(log, fseeko(log->file, 0, SEEK_END) == 0 && ftruncate(fileno(log->file), end) == 0,
                         error);
}

static json_t *rate(int64_t count, double seconds) {
    return count > 0 && seconds > 0 ? json_real((double)count / seconds) : json_null();
}

AmStatus run_log_step(RunLog *log, const AmStep *step, AmError *error) {
    struct timespec now = {0};
    Text text = {0};
    if (!log->file) return AM_OK;
    if (!log->is_cut) TRY(cut(log, step->step, error));
    clock_gettime(CLOCK_REALTIME, &now);
    json_t *object = run_step_to_json(step);
    json_t *rest =
        json_pack("{s:o, s:o, s:{s:I, s:I}, s:f}", "examples_per_second", rate(step->examples, step->seconds),
                  "tokens_per_second", rate(step->tokens, step->seconds), "memory", "resident_bytes",
                  (json_int_t)process_resident_bytes(), "planned_bytes", (json_int_t)step->planned_bytes,
                  "time", (double)now.tv_sec + floor((double)now.tv_nsec / 1e6) / 1e3);
    bool made = object && rest && json_object_update(object, rest) == 0;
    if (made) json_write(&text, object, JSON_STYLE_COMPACT);
    json_decref(object);
    json_decref(rest);
    text_append_string(&text, "\n");
    AmStatus status = !made || text.failed ? am_fail_memory(error, 0) : AM_OK;
    if (status == AM_OK)
        status = check_written(log, fwrite(text.data, 1, text.length, log->file) == text.length, error);
    if (status == AM_OK) status = check_written(log, fflush(log->file) == 0, error);
    text_free(&text);
    return status;
}

AmStatus run_log_close(RunLog *log, AmError *error) {
    FILE *file = log->file;
    log->file = NULL;
    return file ? check_written(log, fclose(file) == 0, error) : AM_OK;
}
