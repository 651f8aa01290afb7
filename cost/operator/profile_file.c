/* Reads a file of measured events, adds new ones and writes it: of equal events the least seconds. */
#include "cost/operator/profile_file.h"

#include <sys/stat.h>

#include "base/files/file.h"

AmStatus profile_file_open(ProfileFile *self, const char *path, AmError *error) {
    *self = (ProfileFile){.path = path};
    TRY(profile_open(&self->added, error));
    TRY(profile_open(&self->known, error));
    /* An empty file is a new one; a pipe is only written. */
    struct stat facts;
    if (stat(path, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size > 0)
        TRY(profile_read(self->known, path, error));
    return file_check_writable(path, error);
}

AmStatus profile_file_write(ProfileFile *self, AmError *error) {
    TRY(profile_merge(self->known, self->added, error));
    return profile_write(self->known, self->path, error);
}

void profile_file_close(ProfileFile *self) {
    profile_close(self->added);
    profile_close(self->known);
    *self = (ProfileFile){0};
}
