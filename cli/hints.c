/* Hints for frequent mistakes on the command line; the callers put them into usage errors.
 *
 * hint_option_for() finds the option of a file by its format, hint_synonym() that of a name from other
 * programs, such as --dp, and hint_typographic_dash() dashes that a word processor made.
 */
#define _XOPEN_SOURCE 700
#include "cli/hints.h"

#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "automap.h"
#include "base/files/file_format.h"

const char *hint_option_for(const char *word) {
    struct stat facts;
    if (stat(word, &facts) != 0) { /* a built-in cluster, such as "C" or "h100:4" */
        AmCluster *cluster;
        bool is_cluster = am_cluster_read(&cluster, word, NULL) == AM_OK;
        am_cluster_free(cluster);
        return is_cluster ? "--cluster" : NULL;
    }
    if (!S_ISREG(facts.st_mode)) return NULL; /* a pipe would wait for its writer */
    switch (file_format_of_path(word)) {
    case FILE_FORMAT_PLAN: return "--plan";
    case FILE_FORMAT_CLUSTER: return "--cluster";
    case FILE_FORMAT_ROLES: return "--roles";
    case FILE_FORMAT_PROFILE: return "--profile";
    default: return NULL;
    }
}

/* U+2010 to U+2015, E2 80 90 to E2 80 95, and the minus sign U+2212, E2 88 92. */
size_t hint_typographic_dash(const char *word) {
    size_t length = 0;
    for (;;) {
        const unsigned char *at = (const unsigned char *)word + length;
        bool is_dash = at[0] == 0xE2 && ((at[1] == 0x80 && at[2] >= 0x90 && at[2] <= 0x95) ||
                                         (at[1] == 0x88 && at[2] == 0x92));
        if (!is_dash) break;
        length += 3;
    }
    while (length > 0 && word[length] == '-') length++;
    return length;
}

bool hint_is_file(const char *word) {
    return access(word, F_OK) == 0 || strchr(word, '/') || strstr(word, ".hlo") || strstr(word, ".json");
}

const char *hint_synonym(const char *name, int32_t next) {
    static const char *const rows[][2] = {
        {"--output", "-o"},
        {"--out", "-o"},
        {"--dp", "--data"},
        {"--data-parallel", "--data"},
        {"--tp", "--tensor"},
        {"--tensor-parallel", "--tensor"},
        {"--mp", "--tensor"},
        {"--pp", "--stages"},
        {"--pipeline-parallel", "--stages"},
        {"--timeout", "--seconds"},
        {"--time-limit", "--seconds"},
        {"--budget", "--evaluations"},
        {"--trials", "--evaluations"},
        {"--iterations", "--evaluations"},
        {"--iterations", "--steps"},
        {"--epochs", "--steps"},
        {"--target", "--format"},
        {"--target", "--for"},
        {"--memory", "--memory-fraction"},
        {"--gpus", "--cluster"},
        {"--devices", "--cluster"},
        {"--hardware", "--cluster"},
        {"--weights", "--state"},
        {"--params", "--state"},
        {"--algorithm", "--searcher"},
        {"--log-file", "--log"},
        {"--verbosity", "--verbose"},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        if (strcmp(rows[k][0], name) == 0 && next-- == 0) return rows[k][1];
    return NULL;
}
