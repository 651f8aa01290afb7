/* Folders for files that only this user may have written, such as a cache of machine code. */
#ifndef BASE_PRIVATE_FOLDER_H
#define BASE_PRIVATE_FOLDER_H

#include <stdbool.h>

/* Makes the folder and those above it with mode 0700 where they do not exist. Returns NULL if the folder
 * itself is a directory, not a symbolic link, owned by this user, and not writable or readable by others;
 * else the reason, a static text. `path` is absolute and is changed while the call lasts. */
const char *private_folder_make(char *path);

#endif
