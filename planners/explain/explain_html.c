/* An explanation as a self-contained page: pictures as SVG, then the sections as tables.
 *
 * The timeline has a row for each stage: the computation of its first device on top, in the colour
 * of the pass and with the number of the micro-batch, and below it, thinner, collectives and
 * transfers. White is idle time. Colours also differ in lightness, and every box has a tooltip.
 */
#include <math.h>

#include "planners/explain/explain_page.h"
#include "planners/explain/explain_sections.h"

/* Pixels; places and widths along a picture are percentages of it, so that all screens show it whole. */
enum { LABEL = 64, ROW = 46, COMPUTE_HEIGHT = 24, COLLECTIVE_HEIGHT = 9, TICKS = 6, BAR = 22 };

/* Percentages of boxes in which a number has room, on wide and on narrow screens, and the least one. */
#define LEAST_NUMBERED        1.6
#define LEAST_NUMBERED_NARROW 6.0
#define LEAST_BOX             0.03
/* Bars of memory are drawn larger if the fullest stage uses less than this share of its limit. */
#define LEAST_USE 0.2

static const struct {
    const char *name, *class;
} works[EXPLAINED_WORKS] = {[EXPLAINED_FORWARD] = {"forward pass", "forward"},
                            [EXPLAINED_BACKWARD] = {"backward pass", "backward"},
                            [EXPLAINED_UPDATE] = {"updates", "update"},
                            [EXPLAINED_OTHER] = {"other: constants", "other"},
                            [EXPLAINED_COLLECTIVE] = {"collectives", "collective"},
                            [EXPLAINED_TRANSFER] = {"transfers between stages", "transfer"}};

static const char style[] =
    "<style>\n"
    ":root{color-scheme:light dark;--page:#fbfbf9;--ink:#1c1c1a;--faint:#6b6a66;--line:#dcdad4;--box:#ffffff;"
    "--forward:#2f66ad;--backward:#a85a08;--update:#1f7a55;--other:#6b6a66;--collective:#6b46a8;"
    "--transfer:#b02a3e}\n"
    "@media (prefers-color-scheme:dark){:root{--page:#1a1a19;--ink:#f1f0ec;--faint:#a5a39c;--line:#3a3935;"
    "--box:#111111;--forward:#7fb0ee;--backward:#e6ab55;--update:#55c297;--other:#a5a39c;"
    "--collective:#b79cea;--transfer:#ef7f8c}}\n"
    "body{background:var(--page);color:var(--ink);font:14px/1.45 system-ui,sans-serif;max-width:1180px;"
    "margin:24px auto;padding:0 16px}\n"
    "h1{font-size:22px;margin:0}h2{font-size:16px;margin:28px 0 8px}p{color:var(--faint);margin:4px 0 12px}\n"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px}\n"
    "th,td{padding:3px 14px 3px 0;text-align:left;white-space:nowrap;border-bottom:1px solid var(--line)}\n"
    "th{color:var(--faint);font-weight:500}.number{text-align:right;font-variant-numeric:tabular-nums}\n"
    "pre{white-space:pre-wrap;color:var(--faint);font:13px/1.5 system-ui,sans-serif;margin:6px 0}\n"
    "svg{display:block;width:100%;overflow:visible}.chart{padding:0 2px 0 64px}\n"
    "@media (max-width:700px){.minor{display:none}}\n"
    "text{fill:var(--ink);font:12px system-ui,sans-serif}\n"
    "text.faint{fill:var(--faint)}text.iteration{fill:var(--box);font-size:11px;pointer-events:none}\n"
    "line{stroke:var(--line)}.frame{fill:none;stroke:var(--line)}\n"
    ".forward{fill:var(--forward)}.backward{fill:var(--backward)}.update{fill:var(--update)}"
    ".other{fill:var(--other)}.collective{fill:var(--collective)}.transfer{fill:var(--transfer)}\n"
    ".forward,.backward,.update,.other{stroke:var(--page);stroke-width:.6}\n"
    ".origin{overflow-wrap:anywhere}code{font:12px ui-monospace,monospace}input{font:inherit;padding:3px "
    "8px}\n"
    ".compared{width:100%}.bars{width:60%;min-width:96px;padding-right:0}.bar{height:14px;min-width:1px}\n"
    "div.forward{background:var(--forward)}div.update{background:var(--update)}"
    "div.other{background:var(--other)}\n"
    ".key{display:inline-block;margin-right:18px}.key svg{display:inline;width:11px;height:11px;"
    "margin-right:6px}\n"
    "</style>\n";

/* ---- tables ---- */

static void append_section(Text *text, const Explanation *self, int32_t k) {
    ExplainSection section;
    explanation_section(&section, self, k, true);
    if (section.rows.data || section.note.data) text_append(text, "<h2>%s</h2>\n", section.title);
    if (section.rows.data) html_append_table(text, section.rows.data, NULL);
    if (section.note.data) {
        text_append_string(text, "<pre>");
        html_append(text, section.note.data);
        text_append_string(text, "</pre>\n");
    }
    if (section.rows.failed || section.note.failed) text->failed = true;
    text_free(&section.rows);
    text_free(&section.note);
}

/* ---- pictures ---- */

static void append_key(Text *text, const char *class, const char *name) {
    text_append(text,
                "<span class=\"key\"><svg viewBox=\"0 0 10 10\"><rect class=\"%s\" width=\"10\" "
                "height=\"10\"/></svg>%s</span>\n",
                class, name);
}

static void append_label(Text *text, int32_t row) {
    text_append(text, "<text x=\"-%d\" y=\"%d\">stage %d</text>\n", LABEL, row * ROW + 16, row);
}

static void append_span(Text *text, const ExplainedSpan *span, double percent_per_second) {
    bool is_collective = span->work >= EXPLAINED_COLLECTIVE;
    double x = span->start * percent_per_second, width = (span->end - span->start) * percent_per_second;
    int32_t y = span->stage * ROW + (is_collective ? COMPUTE_HEIGHT + 3 : 0);
    text_append(text, "<rect class=\"%s\" x=\"%.3f%%\" y=\"%d\" width=\"%.3f%%\" height=\"%d\"><title>%s",
                works[span->work].class, x, y, width > LEAST_BOX ? width : LEAST_BOX,
                is_collective ? COLLECTIVE_HEIGHT : COMPUTE_HEIGHT, works[span->work].name);
    if (!is_collective && span->work != EXPLAINED_OTHER) text_append(text, " %d", span->iteration);
    text_append_string(text, ", ");
    text_append_seconds(text, span->end - span->start);
    text_append_string(text, " from ");
    text_append_seconds(text, span->start);
    text_append_string(text, "</title></rect>\n");
    if (!is_collective && span->work != EXPLAINED_OTHER && width > LEAST_NUMBERED)
        text_append(text, "<text class=\"iteration%s\" x=\"%.2f%%\" dx=\"3\" y=\"%d\">%d</text>\n",
                    width > LEAST_NUMBERED_NARROW ? "" : " minor", x, y + 16, span->iteration);
}

static void append_timeline(Text *text, const Explanation *self) {
    int32_t bottom = self->stages.count * ROW;
    text_append_string(text, "<h2>Timeline</h2>\n<p>");
    for (int32_t work = 0; work < EXPLAINED_WORKS; work++)
        append_key(text, works[work].class, works[work].name);
    text_append(
        text,
        "</p>\n<div class=\"chart\"><svg height=\"%d\" role=\"img\" aria-label=\"timeline of the stages\">\n",
        bottom + 22);
    for (int32_t tick = 0; tick <= TICKS; tick++) {
        double x = 100.0 * tick / TICKS;
        text_append(
            text,
            "<line x1=\"%.2f%%\" y1=\"0\" x2=\"%.2f%%\" y2=\"%d\"/><text class=\"faint%s\" x=\"%.2f%%\" "
            "y=\"%d\" text-anchor=\"%s\">",
            x, x, bottom, tick % 3 ? " minor" : "", x, bottom + 16,
            tick == 0       ? "start"
            : tick == TICKS ? "end"
                            : "middle");
        text_append_seconds(text, self->plan.step_seconds * tick / TICKS);
        text_append_string(text, "</text>\n");
    }
    for (int32_t s = 0; s < self->stages.count; s++) append_label(text, s);
    for (int32_t k = 0; k < self->spans.count; k++)
        append_span(text, &self->spans.of[k], 100 / self->plan.step_seconds);
    text_append_string(text, "</svg></div>\n");
}

enum { MEMORY_BARS = 6 };

static const struct {
    const char *name, *class;
} memory_bars[MEMORY_BARS] = {{"weights", "forward"},         {"gradients", "backward"},
                              {"optimizer", "update"},        {"activations", "collective"},
                              {"transfer slots", "transfer"}, {"held outside of the step", "other"}};

static int64_t memory_bytes(const ExplainedStage *stage, int32_t kind) {
    const int64_t bytes[MEMORY_BARS] = {
        stage->fullest.use.weights_bytes,   stage->fullest.use.gradients_bytes,
        stage->fullest.use.optimizer_bytes, stage->fullest.use.activation_bytes,
        stage->fullest.channel_bytes,       stage->fullest.kept_bytes};
    return bytes[kind];
}

/* Appends the bar of a stage, and its bytes below it. `whole` is the share of the limit at the end of the
 * frame. */
static void append_memory_bar(Text *text, const ExplainedStage *stage, int32_t row, double whole) {
    double limit = (double)stage->fullest.limit_bytes, from = 0, sum = 0;
    append_label(text, row);
    for (int32_t k = 0; k < MEMORY_BARS && limit > 0; k++) {
        double bytes = (double)memory_bytes(stage, k), share = bytes / limit / whole;
        sum += bytes;
        if (share > 1 - from) share = 1 - from; /* it does not fit: the frame is its end */
        text_append(text,
                    "<rect class=\"%s\" x=\"%.3f%%\" y=\"%d\" width=\"%.3f%%\" height=\"%d\"><title>%s, ",
                    memory_bars[k].class, 100 * from, row * ROW, 100 * share, BAR, memory_bars[k].name);
        text_append_bytes_size(text, bytes);
        text_append_string(text, "</title></rect>\n");
        from += share;
    }
    text_append(text, "<rect class=\"frame\" x=\"0\" y=\"%d\" width=\"100%%\" height=\"%d\"/>\n", row * ROW,
                BAR);
    text_append(text, "<text class=\"faint\" x=\"0\" y=\"%d\">", row * ROW + BAR + 15);
    text_append_bytes_size(text, sum);
    text_append_string(text, " of ");
    text_append_bytes_size(text, limit);
    if (limit > 0) text_append(text, ", %.3g %%", 100 * sum / limit);
    text_append_string(text, "</text>\n");
}
static void append_memory(Text *text, const Explanation *self) {
    bool holds = false;
    double most = 0;
    for (int32_t s = 0; s < self->stages.count; s++) {
        const ExplainedStage *stage = &self->stages.of[s];
        double bytes = 0;
        for (int32_t k = 0; k < MEMORY_BARS; k++) bytes += (double)memory_bytes(stage, k);
        if (stage->fullest.limit_bytes > 0) most = fmax(most, bytes / (double)stage->fullest.limit_bytes);
        holds |= stage->fullest.kept_bytes > 0;
    }
    text_append_string(text, "<h2>Memory</h2>\n<p>");
    for (int32_t k = 0; k < MEMORY_BARS - !holds; k++)
        append_key(text, memory_bars[k].class, memory_bars[k].name);
    double whole = most > 0 && most < LEAST_USE ? most : 1;
    if (whole < 1) text_append(text, "a frame is %.3g %% of the limit, which is ", 100 * whole);
    else text_append_string(text, "a frame is the limit: ");
    text_append(text,
                "%g of the memory of the stage's fullest device</p>\n<div class=\"chart\"><svg height=\"%d\" "
                "role=\"img\" aria-label=\"memory of the stages\">\n",
                self->plan.memory_fraction, self->stages.count * ROW);
    for (int32_t s = 0; s < self->stages.count; s++) append_memory_bar(text, &self->stages.of[s], s, whole);
    text_append_string(text, "</svg></div>\n");
}

AmStatus explanation_print_html(Text *text, const Explanation *self, const ExplainPage *page,
                                AmError *error) {
    text_append_string(text, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                             "<meta name=\"viewport\" content=\"width=device-width\">\n<title>");
    html_append(text, page->title);
    text_append_string(text, "</title>\n");
    text_append_string(text, style);
    text_append_string(text, "</head><body>\n<h1>");
    html_append(text, page->title);
    text_append_string(text, "</h1>\n<p>");
    explanation_summary(text, self);
    text_append_string(text, "</p>\n");
    explain_page_origin(text, page);
    explain_page_comparison(text, self, page);
    if (self->spans.count > 0 && self->plan.step_seconds > 0) append_timeline(text, self);
    append_memory(text, self);
    for (int32_t k = 0; k < explanation_section_count(); k++) append_section(text, self, k);
    TRY(explain_page_parameters(text, page, error));
    explain_page_cluster(text, page);
    text_append_string(text, "</body></html>\n");
    return AM_OK;
}
