/* The reports of am_report(): a function for each command, which appends text or a JSON object.
 *
 * Each function reads its own files: report_read_module() a module, report_read_cluster() (clusters.h) a
 * cluster.
 */
#ifndef API_REPORTS_REPORTS_H
#define API_REPORTS_REPORTS_H

#include "api/handles.h"
#include "api/options.h"
#include "api/work.h"

/* The arguments of am_report(). */
typedef struct ReportCall {
    const char *const *files;
    int32_t file_count;
    const AmOptions *options; /* of the command; or NULL */
    AmFormat format;
    const AmCallbacks *callbacks; /* a copy of api_copy_callbacks() */
    SearchWatch *watch;           /* counts rows; or NULL */
} ReportCall;

AmStatus report_info(Text *text, const ReportCall *call, AmError *error);
AmStatus report_groups(Text *text, const ReportCall *call, AmError *error);
AmStatus report_propagate(Text *text, const ReportCall *call, AmError *error);
AmStatus report_lower(Text *text, const ReportCall *call, AmError *error);
AmStatus report_clusters(Text *text, const ReportCall *call, AmError *error);
AmStatus report_published(Text *text, const ReportCall *call, AmError *error);
AmStatus report_agent(Text *text, const ReportCall *call, AmError *error);

/* Reads file k as a module, with the roles of the option "roles", and reports its warnings. */
AmStatus report_read_module(PlanContext **context, const ReportCall *call, int32_t k, AmError *error);

#endif
