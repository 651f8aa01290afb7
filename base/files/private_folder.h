/* Folders for files that only this user may have written, such as a cache of machine code. */
#ifndef BASE_FILES_PRIVATE_FOLDER_H
#define BASE_FILES_PRIVATE_FOLDER_H

#include <stdbool.h>

/* Opens the folder, a descriptor that the caller closes. With `creates` it and those above it are made with
 * mode 0700 where they do not exist. Returns NULL if the folder itself is a directory, not a symbolic link,
 * owned by this user, and not writable by others; else the reason, a static text, and *folder is
 * -1. `path` is absolute and is changed while the call lasts. */
const char *private_folder_open(int *folder, char *path, bool creates);
extern const char PRIVATE_FOLDER_MISSING[]; /* the reason where the folder does not exist */

/* The same without the descriptor: the folder is made. */
const char *private_folder_make(char *path);

#endif
