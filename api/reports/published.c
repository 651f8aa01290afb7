/* The report `published`: predictions beside measured training runs.
 *
 * Reads a table of published runs (published/runs.h), predicts each row (published_rows.h) and, on request,
 * searches a plan for it (published_search.c). The text has a line for each row and the statistics of groups
 * of rows: median error, order of pairs.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/reports/published_rows.h"
#include "api/reports/reports.h"
#include "base/files/file.h"
#include "published/summary.h"

#define GIB 1073741824.0

/* The usable fraction of a device's memory. PyTorch shows 79.2 of the 80 GiB of an A100. CUDA's context and
 * cuBLAS take half a GiB of it, and the allocator leaves at least 1.5 % of its blocks unused. */
#define USABLE_MEMORY 0.97

/* The same for plans that a search finds, whose peak lacks the buffers of communicators: 1 to 3 GiB. */
#define SEARCHED_MEMORY 0.935

#define SEARCH_SECONDS 10.0

static const char *failure_of(const PublishedRow *row) {
    return row->outcome == PUBLISHED_NO_STRATEGY ? "no strategy is given" : row->error.text;
}

/* Returns the peak of allocations, as frameworks measure it: without buffers of communicators. */
static double peak_gib(const PublishedRow *row) {
    return (double)(row->fit.needed_bytes - row->strategy.kept_bytes) / GIB;
}

static void print_json(Text *text, const ReportCall *call, const PublishedRow *rows, int32_t count) {
    for (int32_t k = 0; k < count; k++) {
        const PublishedRow *row = &rows[k];
        bool is_predicted = row->outcome == PUBLISHED_PREDICTED;
        json_t *object = json_pack("{s:s, s:s, s:s, s:s, s:I}", "format", "automap-published-1", "source",
                                   row->run->source, "group", row->run->group, "row", row->run->row, "line",
                                   (json_int_t)row->run->line);
        json_object_set_new(object, "predicted_seconds",
                            is_predicted ? json_real(row->step_seconds) : json_null());
        json_object_set_new(object, "predicted_peak_gib",
                            is_predicted ? json_real(peak_gib(row)) : json_null());
        json_object_set_new(object, "fits", is_predicted ? json_boolean(row->fit.fits) : json_null());
        json_object_set_new(object, "error", is_predicted ? json_null() : json_string(failure_of(row)));
        if (option_has(call->options, "search")) {
            const PublishedChoice *search = &row->search;
            json_object_set_new(object, "searched_seconds",
                                search->plan ? json_real(search->seconds) : json_null());
            json_object_set_new(object, "searched_plan",
                                search->plan ? json_string(search->plan) : json_null());
            json_object_set_new(object, "search_error",
                                search->error ? json_string(search->error) : json_null());
        }
        json_write(text, object, JSON_STYLE_COMPACT);
        text_append_string(text, "\n");
        json_decref(object);
    }
}

/* ---- text ---- */

/* Appends nothing if the fraction is unknown. */
static void append_percent(Text *text, double fraction, bool has_sign) {
    if (isfinite(fraction)) text_append(text, has_sign ? "%+.1f %%" : "%.1f %%", 100 * fraction);
}

static void append_row(Text *text, const PublishedRow *row) {
    const PublishedRun *run = row->run;
    text_append(text, "%lld\t%s\t%s\t%s\t%lld x %lld x %lld\t%lld\t", (long long)run->line, run->source,
                run->group, run->row, (long long)run->data, (long long)run->tensor, (long long)run->pipeline,
                (long long)row->micro_batch);
    text_append_seconds(text, row->step_seconds);
    text_append_string(text, "\t");
    if (isfinite(run->step_seconds)) text_append_seconds(text, run->step_seconds);
    text_append_string(text, "\t");
    append_percent(text, row->step_seconds / run->step_seconds - 1, true);
    text_append(text, "\t%.1f GiB\t", peak_gib(row));
    if (isfinite(run->peak_gib)) text_append(text, "%.1f GiB", run->peak_gib);
    text_append(text, "\t%s\t%s\n", row->fit.fits ? "yes" : "no", run->outcome);
}

static void append_rows(Text *text, const PublishedRow *rows, int32_t count) {
    Text table = {.is_styled = text->is_styled}, failures = {0};
    text_append_string(&table, "line\tsource\tgroup\trow\tdata x tensor x stages\tmicro-batch\tpredicted\t"
                               "measured\terror\tpeak\tmeasured\tfits\toutcome\n");
    for (int32_t k = 0; k < count; k++) {
        if (rows[k].outcome == PUBLISHED_PREDICTED) append_row(&table, &rows[k]);
        else
            text_append(&failures, "line %lld: %s %s: %s\n", (long long)rows[k].run->line,
                        rows[k].run->source, rows[k].run->row, failure_of(&rows[k]));
    }
    if (table.failed) text->failed = true;
    else text_append_table(text, table.data);
    if (failures.length > 0) text_append_string(text, "\nskipped\n");
    if (failures.length > 0) text_append_string(text, failures.data);
    text_free(&table);
    text_free(&failures);
}

static void append_summary(Text *text, const char *source, const PublishedSummary *summary) {
    text_append(text, "%s\t%d\t%d\t", source, (int)summary->rows, (int)summary->failed);
    append_percent(text, summary->median, false);
    text_append_string(text, "\t");
    append_percent(text, summary->mean, false);
    text_append_string(text, "\t");
    append_percent(text, summary->percentile_90, false);
    text_append_string(text, "\t");
    append_percent(text, summary->bias, true);
    text_append_string(text, "\t");
    if (isfinite(summary->tau)) text_append(text, "%.2f", summary->tau);
    text_append_string(text, "\t");
    append_percent(text, summary->regret, false);
    text_append(text, "\t%d of %d\t%d of %d\n", (int)summary->oom_missed,
                (int)(summary->oom_missed + summary->oom_found), (int)summary->ok_refused,
                (int)(summary->ok_refused + summary->ok_found));
}

/* Rows without a strategy are left out: nothing was to be predicted. */
static int32_t pairs_of(PublishedPair *pairs, const PublishedRow *rows, int32_t count, const char *source) {
    int32_t used = 0;
    for (int32_t k = 0; k < count; k++) {
        const PublishedRun *run = rows[k].run;
        bool is_predicted = rows[k].outcome == PUBLISHED_PREDICTED;
        if (rows[k].outcome == PUBLISHED_NO_STRATEGY || (source && strcmp(run->source, source) != 0))
            continue;
        pairs[used++] = (PublishedPair){.group = run->group,
                                        .measured = run->step_seconds,
                                        .predicted = is_predicted ? rows[k].step_seconds : NAN,
                                        .is_oom = strcmp(run->outcome, "oom") == 0,
                                        .is_ok = strcmp(run->outcome, "ok") == 0,
                                        .has_memory = is_predicted,
                                        .fits = rows[k].fit.fits};
    }
    return used;
}

static AmStatus append_summaries(Text *text, const PublishedRow *rows, int32_t count, AmError *error) {
    Arena arena = {0};
    PublishedPair *pairs = ARENA_ARRAY(&arena, PublishedPair, count + 1);
    PublishedSummary summary;
    Text table = {.is_styled = text->is_styled};
    AmStatus status = pairs ? AM_OK : am_fail_memory(error, count);
    text_append_string(&table, "source\tmeasured\tfailed\tmedian\tmean\t90th percentile\tbias\ttau\tregret\t"
                               "oom missed\tfalse oom\n");
    for (int32_t k = 0; k < count && status == AM_OK; k++) {
        bool is_first = true;
        for (int32_t b = 0; b < k && is_first; b++)
            is_first = strcmp(rows[b].run->source, rows[k].run->source) != 0;
        if (!is_first) continue;
        int32_t used = pairs_of(pairs, rows, count, rows[k].run->source);
        status = published_summarize(&summary, pairs, used, error);
        if (status == AM_OK && used > 0) append_summary(&table, rows[k].run->source, &summary);
    }
    if (status == AM_OK)
        status = published_summarize(&summary, pairs, pairs_of(pairs, rows, count, NULL), error);
    if (status == AM_OK) append_summary(&table, "all", &summary);
    if (status == AM_OK && !table.failed) {
        text_append_string(text, "\nabsolute error of the step time, by source\n");
        text_append_table(text, table.data);
    }
    text_free(&table);
    arena_free(&arena);
    return status;
}

static void append_searches(Text *text, const PublishedRow *rows, int32_t count) {
    Text table = {.is_styled = text->is_styled};
    text_append_string(&table, "line\tsource\trow\tgiven\tsearched\tplan\n");
    for (int32_t k = 0; k < count; k++) {
        const PublishedRow *row = &rows[k];
        text_append(&table, "%lld\t%s\t%s\t", (long long)row->run->line, row->run->source, row->run->row);
        if (row->outcome == PUBLISHED_PREDICTED) text_append_seconds(&table, row->step_seconds);
        text_append_string(&table, "\t");
        if (row->search.plan) text_append_seconds(&table, row->search.seconds);
        text_append(&table, "\t%s\n",
                    row->search.plan    ? row->search.plan
                    : row->search.error ? row->search.error
                                        : "");
    }
    text_append_string(text, "\nplans of a search\n");
    text_append_table(text, table.data);
    text->failed |= table.failed;
    text_free(&table);
}

/* ---- the command ---- */

/* Copies the rows that --source and --row choose into the arena. */
static AmStatus choose(const ReportCall *call, Arena *arena, const PublishedRun *runs, int32_t count,
                       PublishedRow **rows, int32_t *row_count, AmError *error) {
    const char *source = option_text(call->options, "source");
    int64_t line = 0;
    option_integer(call->options, "row", &line);
    *rows = ARENA_ARRAY(arena, PublishedRow, count + 1);
    *row_count = 0;
    if (!*rows) return am_fail_memory(error, count);
    for (int32_t k = 0; k < count; k++)
        if ((line == 0 || runs[k].line == line) && (!source || strcmp(runs[k].source, source) == 0))
            (*rows)[(*row_count)++].run = &runs[k];
    if (*row_count > 0) return AM_OK;
    if (line > 0)
        return am_fail(error, AM_ERROR_USAGE, "", "--row %lld: no row is on this line", (long long)line);
    if (source) return am_fail(error, AM_ERROR_USAGE, "", "--source %.60s: no row has this source", source);
    return am_fail(error, AM_ERROR_INPUT, call->files[0], "expected rows below the first line");
}

/* Fails for a row that is not predicted, at its line. */
static AmStatus fail_row(const PublishedRow *row, const FileBytes *bytes, AmError *error) {
    const char *text = bytes->data, *end = text + bytes->length, *at = text;
    for (int64_t line = 1; line < row->run->line && at < end; line++) {
        const char *next = memchr(at, '\n', (size_t)(end - at));
        at = next ? next + 1 : end;
    }
    AmStatus code = row->error.code == AM_OK ? AM_ERROR_INPUT : row->error.code;
    return am_fail_at(error, code, bytes->name, text, bytes->length, at - text, "%s", failure_of(row));
}

/* Fails for the first row that is refused if no row is predicted. */
static AmStatus check_predicted(const PublishedRow *rows, int32_t count, const FileBytes *bytes,
                                AmError *error) {
    const PublishedRow *refused = NULL;
    for (int32_t k = 0; k < count; k++) {
        if (rows[k].outcome == PUBLISHED_PREDICTED) return AM_OK;
        if (rows[k].outcome == PUBLISHED_FAILED && !refused) refused = &rows[k];
    }
    return refused ? fail_row(refused, bytes, error) : AM_OK;
}

AmStatus report_published(Text *text, const ReportCall *call, AmError *error) {
    const char *module = option_text(call->options, "write-module");
    const char *plan = option_text(call->options, "write-plan");
    double memory_fraction = USABLE_MEMORY, searched_fraction = SEARCHED_MEMORY, seconds = SEARCH_SECONDS;
    bool searches = option_has(call->options, "search");
    PublishedRun *runs;
    PublishedRow *rows;
    int32_t run_count, count;
    Arena arena = {0};
    FileBytes bytes = {0};
    AmStatus status;
    bool writes = option_has(call->options, "write-module") || option_has(call->options, "write-plan");
    if (writes && !option_has(call->options, "row"))
        return am_fail(error, AM_ERROR_USAGE, "", "--write-module and --write-plan need --row");
    if (option_has(call->options, "seconds") && !option_has(call->options, "search"))
        return am_fail(error, AM_ERROR_USAGE, "", "--seconds needs --search");
    if (module) TRY(file_check_writable(module, error));
    if (plan) TRY(file_check_writable(plan, error));
    option_number(call->options, "seconds", &seconds);
    option_number(call->options, "memory-fraction", &memory_fraction);
    option_number(call->options, "memory-fraction", &searched_fraction);
    TRY(file_read(&bytes, call->files[0], error));
    TRY_OR_FAIL(published_read(&runs, &run_count, &arena, bytes.name, bytes.data, bytes.length, error));
    TRY_OR_FAIL(choose(call, &arena, runs, run_count, &rows, &count, error));
    TRY_OR_FAIL(published_predict(rows, count, memory_fraction, call->watch, error));
    const PublishedSearch search = {
        .seconds = seconds, .memory_fraction = searched_fraction, .watch = call->watch, .arena = &arena};
    if (searches) TRY_OR_FAIL(published_search(rows, count, &search, error));
    else TRY_OR_FAIL(check_predicted(rows, count, &bytes, error));
    if ((module || plan) && rows[0].outcome != PUBLISHED_PREDICTED)
        TRY_OR_FAIL(fail_row(&rows[0], &bytes, error));
    if (module || plan) TRY_OR_FAIL(published_write(&rows[0], memory_fraction, module, plan, error));
    if (call->format == AM_FORMAT_JSON) {
        print_json(text, call, rows, count);
    } else {
        append_rows(text, rows, count);
        if (searches) append_searches(text, rows, count);
        status = append_summaries(text, rows, count, error);
    }
fail:
    file_release(&bytes);
    arena_free(&arena);
    return status;
}
