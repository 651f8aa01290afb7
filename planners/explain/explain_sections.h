/* An explanation as tables with notes, which text and HTML print each in its way. */
#ifndef PLANNERS_EXPLAIN_EXPLAIN_SECTIONS_H
#define PLANNERS_EXPLAIN_EXPLAIN_SECTIONS_H

#include "planners/explain/explain_plan.h"

/* Cells are separated by tabs, rows by line ends; the first row has the titles. Either may be empty. */
typedef struct ExplainSection {
    const char *title;
    Text rows, note;
} ExplainSection;

/* Appends one line: the step, its peak, stages and micro-batches. */
void explanation_summary(Text *text, const Explanation *explanation);

/* Returns the number of sections. */
int32_t explanation_section_count(void);
/* Fills a section, whose texts the caller frees; `is_full`: rows that matter little too. */
void explanation_section(ExplainSection *section, const Explanation *explanation, int32_t k, bool is_full);

#endif
