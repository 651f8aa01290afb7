/* Sections of the page of an explanation: origin, comparison, cluster, parameters.
 *
 * Bars are widths in per cent of the longest one, so that they fit every screen. The search field is a
 * script of the page: it hides the rows that lack one of the words.
 */
#include "planners/explain/explain_page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "automap.h"
#include "lowering/plan_file/plan_parts.h"

/* ---- text and tables ---- */

static void append_escaped(Text *text, const char *string, size_t length) {
    for (size_t k = 0; k < length; k++) {
        const char c = string[k];
        if (c == '&') text_append_string(text, "&amp;");
        else if (c == '<') text_append_string(text, "&lt;");
        else if (c == '>') text_append_string(text, "&gt;");
        else if (c == '"') text_append_string(text, "&quot;");
        else text_append_bytes(text, &c, 1);
    }
}

void html_append(Text *text, const char *string) {
    append_escaped(text, string, strlen(string));
}

/* Appends the row at `cells` as cells of `tag`, aligned as those of the row at `like`. Returns the next
 * row. */
static const char *append_row(Text *text, const char *tag, const char *cells, const char *like) {
    text_append_string(text, "<tr>");
    for (bool is_last = false; !is_last;) {
        size_t length = strcspn(cells, "\t\n"), like_length = strcspn(like, "\t\n");
        bool is_digit = like_length > 0 && like[0] >= '0' && like[0] <= '9';
        bool is_signed = like_length > 0 && (like[0] == '+' || like[0] == '-');
        text_append(text, "<%s%s>", tag, is_digit || is_signed ? " class=\"number\"" : "");
        append_escaped(text, cells, length);
        text_append(text, "</%s>", tag);
        is_last = cells[length] != '\t';
        cells += length + (cells[length] != '\0');
        like += like_length + (like[like_length] == '\t');
    }
    text_append_string(text, "</tr>\n");
    return cells;
}

void html_append_table(Text *text, const char *rows, const char *id) {
    text_append_string(text, "<div class=\"wide\" tabindex=\"0\"><table");
    if (id) text_append(text, " id=\"%s\"", id);
    text_append_string(text, ">\n");
    const char *end = rows + strcspn(rows, "\n");
    if (*rows) rows = append_row(text, "th", rows, *end ? end + 1 : end);
    while (*rows) rows = append_row(text, "td", rows, rows);
    text_append_string(text, "</table></div>\n");
}

/* Appends a cell with the user's names: characters that would break a table are shown as '?'. */
static void append_cell(Text *rows, const char *name, char end) {
    for (const char *c = name; *c; c++) text_append_bytes(rows, (unsigned char)*c < ' ' ? "?" : c, 1);
    text_append_bytes(rows, &end, 1);
}

void explain_page_origin(Text *text, const ExplainPage *page) {
    text_append(text, "<p class=\"origin\">automap %s, %s", AM_VERSION, page->date);
    if (page->command) {
        text_append_string(text, ": <code>");
        html_append(text, page->command);
        text_append_string(text, "</code>");
    }
    text_append_string(text, "</p>\n");
}

/* ---- the step beside baselines and bound ---- */

typedef struct Bar {
    const char *name, *class;
    double seconds;
} Bar;

static int by_seconds(const void *a, const void *b) {
    const Bar *first = a, *second = b;
    if (first->seconds != second->seconds) return first->seconds < second->seconds ? -1 : 1;
    return strcmp(first->name, second->name);
}

void explain_page_comparison(Text *text, const Explanation *explanation, const ExplainPage *page) {
    const Plan *plan = page->plan;
    json_t *baselines = json_object_get(plan->settings, "baselines");
    size_t most = json_object_size(baselines) + 2, count = 0;
    Bar *bars = calloc(most, sizeof *bars);
    const char *name;
    json_t *value;
    if (!bars) {
        text->failed = true;
        return;
    }
    bars[count++] = (Bar){"this plan", "forward", explanation->plan.step_seconds};
    if (plan->bound_seconds > 0) bars[count++] = (Bar){"lower bound", "update", plan->bound_seconds};
    json_object_foreach(baselines, name, value) {
        if (json_number_value(value) > 0) bars[count++] = (Bar){name, "other", json_number_value(value)};
    }
    qsort(bars, count, sizeof *bars, by_seconds);
    text_append_string(text, "<h2>Baselines and bound</h2>\n<p>");
    if (plan->bound_seconds > 0)
        text_append(text, "gap %.1f %% between this plan and the lower bound. ",
                    100 * (explanation->plan.step_seconds / plan->bound_seconds - 1));
    else text_append_string(text, "The plan file has no lower bound. ");
    if (json_object_size(baselines) == 0) text_append_string(text, "The plan file has no baselines. ");
    text_append_string(text,
                       "</p>\n<table class=\"compared\">\n<tr><th>plan</th><th class=\"number\">step</th>"
                       "<th class=\"number\">relative</th><th></th></tr>\n");
    for (size_t k = 0; k < count; k++) {
        text_append_string(text, "<tr><td>");
        html_append(text, bars[k].name);
        text_append_string(text, "</td><td class=\"number\">");
        text_append_seconds(text, bars[k].seconds);
        text_append(text, "</td><td class=\"number\">%.2f</td><td class=\"bars\">",
                    bars[k].seconds / explanation->plan.step_seconds);
        text_append(text, "<div class=\"bar %s\" style=\"width:%.2f%%\"></div></td></tr>\n", bars[k].class,
                    100 * bars[k].seconds / bars[count - 1].seconds);
    }
    text_append_string(text, "</table>\n");
    free(bars);
}

/* ---- cluster ---- */

static void append_rate(Text *rows, const json_t *rate) {
    if (json_is_number(rate)) text_append(rows, "%.4g GB/s", json_number_value(rate) / 1e9);
}

static void append_link(Text *rows, const json_t *description, const char *link) {
    if (!link) return;
    append_cell(rows, link, ' ');
    append_rate(rows, json_object_get(json_object_get(json_object_get(description, "links"), link),
                                      "bytes_per_second"));
}

void explain_page_cluster(Text *text, const ExplainPage *page) {
    const json_t *description = page->plan->cluster_description, *server;
    const json_t *types = json_object_get(description, "device_types");
    const char *between = json_string_value(json_object_get(description, "between_servers"));
    size_t edges = json_array_size(json_object_get(json_object_get(description, "topology"), "edges")), k;
    Text rows = {0};
    text_append_string(&rows, "servers\tdevices each\tdevice\tmemory\tmemory rate\tlink\n");
    json_array_foreach(json_object_get(description, "servers"), k, server) {
        const char *name = json_string_value(json_object_get(server, "device_type"));
        const json_t *type = json_object_get(types, name), *count = json_object_get(server, "count");
        text_append(&rows, "%lld\t%lld\t", count ? (long long)json_integer_value(count) : 1LL,
                    (long long)json_integer_value(json_object_get(server, "devices")));
        append_cell(&rows, name ? name : "", '\t');
        text_append_bytes_size(&rows, json_number_value(json_object_get(type, "memory_bytes")));
        text_append_string(&rows, "\t");
        append_rate(&rows, json_object_get(type, "memory_bytes_per_second"));
        text_append_string(&rows, "\t");
        append_link(&rows, description, json_string_value(json_object_get(server, "link")));
        text_append_string(&rows, "\n");
    }
    text_append_string(text, "<h2>Cluster</h2>\n");
    if (rows.data) html_append_table(text, rows.data, NULL);
    if (rows.failed) text->failed = true;
    text_free(&rows);
    if (between) append_link(&rows, description, between);
    if (between && rows.data) {
        text_append_string(text, "<p>between servers: ");
        html_append(text, rows.data);
        text_append_string(text, "</p>\n");
    }
    if (rows.failed) text->failed = true;
    if (edges > 0) text_append(text, "<p>topology: %zu rows of links</p>\n", edges);
    text_free(&rows);
}

/* ---- parameters ---- */

static const char search_field[] =
    "<p><label>search <input id=\"find\" type=\"search\" placeholder=\"name, role or axis\"></label> "
    "<span id=\"found\" aria-live=\"polite\"></span></p>\n";

static const char search_script[] =
    "<script>\n"
    "const rows=[...document.querySelectorAll('#parameters tr')].slice(1)\n"
    "function find(){const words=document.getElementById('find').value.toLowerCase().split(' ')\n"
    "let shown=0;for(const row of rows){const text=row.textContent.toLowerCase()\n"
    "row.hidden=!words.every(word=>text.includes(word));shown+=!row.hidden}\n"
    "document.getElementById('found').textContent=shown+' of '+rows.length}\n"
    "document.getElementById('find').addEventListener('input',find);find()\n"
    "</script>\n";

static void append_parameter(Text *rows, const json_t *row, const PlanContext *context) {
    int32_t number = (int32_t)json_integer_value(json_object_get(row, "number"));
    const IrParameter *parameter = &context->roles->parameters[number];
    const IrShape *shape = &plan_context_instruction(context, parameter->instruction)->shape;
    append_cell(rows, json_string_value(json_object_get(row, "path")), '\t');
    text_append(rows, "%s\t", ir_role_name(parameter->role));
    ir_shape_append(rows, shape);
    text_append(rows, "\t%lld\t", (long long)json_integer_value(json_object_get(row, "stage")));
    /* Appends "[data,-]": the axes of each dimension. */
    const json_t *axes, *axis;
    size_t d, k;
    text_append_string(rows, "[");
    json_array_foreach(json_object_get(row, "sharding"), d, axes) {
        text_append_string(rows, d ? "," : "");
        if (json_array_size(axes) == 0) text_append_string(rows, "-");
        json_array_foreach(axes, k, axis) text_append(rows, "%s%s", k ? "+" : "", json_string_value(axis));
    }
    text_append_string(rows, "]\t");
    text_append_bytes_size(rows, (double)ir_shape_bytes(shape));
    text_append_string(rows, "\n");
}

AmStatus explain_page_parameters(Text *text, const ExplainPage *page, AmError *error) {
    json_t *parameters, *row;
    size_t k;
    Text rows = {0};
    TRY(plan_parameters_to_json(&parameters, page->plan, page->context, error));
    text_append_string(&rows, "parameter\trole\tshape\tstage\tsharding\tbytes\n");
    json_array_foreach(parameters, k, row) append_parameter(&rows, row, page->context);
    json_decref(parameters);
    text_append_string(text, "<h2>Parameters</h2>\n");
    text_append_string(text, search_field);
    if (rows.data) html_append_table(text, rows.data, "parameters");
    text_append_string(text, search_script);
    if (rows.failed) text->failed = true;
    text_free(&rows);
    return AM_OK;
}
