/* The sections of the page of an explanation that are not in its text: how the page was made, the step beside
 * baselines and bound, the cluster, and the sharding of every parameter. */
#ifndef PLANNERS_EXPLAIN_EXPLAIN_PAGE_H
#define PLANNERS_EXPLAIN_EXPLAIN_PAGE_H

#include "base/text.h"
#include "planners/explain/explain_plan.h"

/* Appends characters that HTML gives a meaning as their names. */
void html_append(Text *text, const char *string);
/* Appends rows of cells, separated by tabs and line ends, as a table; the first row has the titles. `id` may
 * be NULL. */
void html_append_table(Text *text, const char *rows, const char *id);

/* Appends "automap 0.1.0, 2026-11-28: automap explain ...". */
void explain_page_origin(Text *text, const ExplainPage *page);
void explain_page_comparison(Text *text, const Explanation *explanation, const ExplainPage *page);
void explain_page_cluster(Text *text, const ExplainPage *page);
/* Appends the table of parameters, with a field that searches its rows. */
AmStatus explain_page_parameters(Text *text, const ExplainPage *page, AmError *error);

#endif
