/* A file of measured events that a command adds to. */
#ifndef COST_OPERATOR_PROFILE_FILE_H
#define COST_OPERATOR_PROFILE_FILE_H

#include "cost/operator/profile.h"

typedef struct ProfileFile {
    const char *path;
    Profile *added; /* new measurements */
    Profile *known; /* the previous contents of the file */
} ProfileFile;

/* Reads the file if it exists. AM_ERROR_INPUT: it is no profile; AM_ERROR_USAGE: it cannot be
 * written. Release with profile_file_close(), also after an error; a zeroed struct is allowed
 * there. */
AmStatus profile_file_open(ProfileFile *self, const char *path, AmError *error);
/* Writes both: of equal events the least seconds. */
AmStatus profile_file_write(ProfileFile *self, AmError *error);
void profile_file_close(ProfileFile *self);

#endif
