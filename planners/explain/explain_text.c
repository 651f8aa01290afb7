/* An explanation as text: its sections one after the other, those with nothing to say left out. */
#include "planners/explain/explain_sections.h"

void explanation_print(Text *text, const Explanation *self) {
    explanation_summary(text, self);
    for (int32_t k = 0; k < explanation_section_count(); k++) {
        ExplainSection section;
        explanation_section(&section, self, k, false);
        if (section.rows.data || section.note.data) text_append_string(text, "\n");
        if (section.rows.data) text_append_table(text, section.rows.data);
        if (section.note.data) text_append_string(text, section.note.data);
        if (section.rows.failed || section.note.failed) text->failed = true;
        text_free(&section.rows);
        text_free(&section.note);
    }
}
