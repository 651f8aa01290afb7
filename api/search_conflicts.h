/* The pairs of options that exclude one another in a search. */
#ifndef API_SEARCH_CONFLICTS_H
#define API_SEARCH_CONFLICTS_H

#include "api/search_settings.h"

/* Returns AM_ERROR_USAGE for the first pair of the table that a request has, by the names that the user gave:
 * "--quota V100=2 and --init-plan p.json: the latter has its own devices". */
AmStatus search_conflicts_check(const SearchSettings *settings, const AmOptions *options, AmError *error);

#endif
