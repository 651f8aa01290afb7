/* Runs a fuzzer's function over files and over all files in folders, one line of result. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/files/file.h"
#include "tests/fuzz/fuzz.h"

static int replay(const char *path, int depth) {
    FileBytes bytes;
    DIR *folder = depth > 0 ? opendir(path) : NULL;
    int count = 0;
    if (folder) {
        for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
            char inside[1024];
            snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name);
            if (entry->d_name[0] != '.') count += replay(inside, depth - 1);
        }
        closedir(folder);
        return count;
    }
    if (file_read(&bytes, path, NULL) != AM_OK) return 0;
    LLVMFuzzerTestOneInput((const uint8_t *)bytes.data, (size_t)bytes.length);
    file_release(&bytes);
    return 1;
}

int main(int argument_count, char **arguments) {
    int count = 0;
    for (int k = 1; k < argument_count; k++) count += replay(arguments[k], 1);
    printf("%d inputs\n", count);
    return count > 0 ? 0 : 1;
}
