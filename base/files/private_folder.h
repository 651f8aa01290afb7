/* Folders for files that only this user may have written, such as a cache of machine code. */
#ifndef BASE_FILES_PRIVATE_FOLDER_H
#define BASE_FILES_PRIVATE_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opens the folder, a descriptor that the caller closes. With `creates` it and those above it are made with
 * mode 0700 where they do not exist. Returns NULL if the folder itself is a directory, not a symbolic link,
 * owned by this user, and not writable by others; else the reason, a static text, and *folder is
 * -1. `path` is absolute and is changed while the call lasts. */
const char *private_folder_open(int *folder, char *path, bool creates);
extern const char PRIVATE_FOLDER_MISSING[]; /* the reason where the folder does not exist */

/* Makes the folder, and those above it, with mode 0700 where they do not exist. Returns NULL if it is a
 * directory of this user alone, else the reason, a static text. */
const char *private_folder_make(char *path);

/* Writes the folder that holds the caches of all programs, such as "/home/me/.cache", to path[bytes). Returns
 * false if the environment names none. */
bool private_folder_cache(char *path, size_t bytes);

/* Reads a regular file of this user, of at most `most` bytes, into *text, which the caller frees. A NUL
 * follows its `*length` bytes. *text is NULL if the file is missing. Returns the reason of a failure, or
 * NULL. */
const char *private_file_read(char **text, size_t *length, int folder, const char *name, int64_t most);
/* Replaces a file as a whole: by a new file that is renamed. Returns 0 or an errno. */
int private_file_replace(int folder, const char *name, const char *text, size_t length);

#endif
