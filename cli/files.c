/* Finds the arguments of a command line that are input or output files, by a table of options, and compares
 * them, so that no output replaces an input. */
#define _XOPEN_SOURCE 700
#include "cli/files.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The use of a file that an option names. */
typedef struct FileUse {
    const char *option;
    const char *command; /* NULL: every other */
    const char *input;   /* the content to read; NULL: the file is written */
    const char *word;    /* an argument that is no file, or NULL */
    bool is_improved;    /* -o may replace it */
    bool is_pair;        /* NAME=FILE */
} FileUse;

/* The first row that fits counts. Folders, whose files have names of their own, have none. */
static const FileUse uses[] = {
    {.option = "-o"},
    {.option = "--log"},
    {.option = "--also", .is_pair = true},
    {.option = "--outputs"},
    {.option = "--save"},
    {.option = "--trace", .command = "compare", .input = "trace"},
    {.option = "--trace"},
    {.option = "--html"},
    {.option = "--write-module"},
    {.option = "--write-plan"},
    {.option = "--plan", .command = "simulate"},
    {.option = "--profile", .command = "run"},
    {.option = "--profile", .command = "cluster"},
    {.option = "--checkpoint", .command = "agent train"},
    {.option = "--checkpoint", .command = "agent train-search"},
    {.option = "--roles", .input = "roles"},
    {.option = "--cluster", .input = "cluster"},
    {.option = "--profile", .input = "profile"},
    {.option = "--plan", .input = "plan", .word = "none"},
    {.option = "--state", .input = "state", .word = "random"},
    {.option = "--data", .input = "data"},
    {.option = "--init-plan", .input = "plan", .is_improved = true},
    {.option = "--hints", .input = "file of hints"},
    {.option = "--eval", .input = "module"},
    {.option = "--eval-data", .input = "data"},
    {.option = "--eval-roles", .input = "roles"},
    {.option = "--agent", .input = "agent"},
    {.option = "--policy", .input = "policy", .word = "untrained"},
    {.option = "--import", .input = "file", .word = "hwloc"},
};
enum { USE_COUNT = sizeof uses / sizeof uses[0], MOST_OUTPUTS = 64, MOST_LINKS = 40, PATH_BYTES = 4096 };

/* A file that is there by device and inode; one that is not, nor through its links, by those of its
 * folder and its name. */
typedef struct Place {
    dev_t device;
    ino_t inode;
    char name[256];
    bool is_regular;
} Place;

typedef struct Output {
    const char *option, *path;
    Place place;
} Output;

typedef struct Outputs {
    Output rows[MOST_OUTPUTS];
    int32_t count;
} Outputs;

static bool is_command(const Cli *cli, const char *name) {
    return strcmp(cli->command->name, name) == 0;
}

/* Replaces a path that is a symbolic link by the path that the link has; false: it is no link. */
static bool follow_link(char path[PATH_BYTES]) {
    char target[PATH_BYTES], joined[2 * PATH_BYTES];
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0) return false;
    target[length] = '\0';
    const char *slash = target[0] == '/' ? NULL : strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    int written = snprintf(joined, sizeof joined, "%.*s%s", folder, path, target);
    if (written >= PATH_BYTES) return false;
    memcpy(path, joined, (size_t)written + 1);
    return true;
}

static Place place_of(const char *path) {
    struct stat facts;
    char folder[PATH_BYTES];
    Place place = {0};
    if (stat(path, &facts) == 0 && strcmp(path, "-") != 0)
        return (Place){facts.st_dev, facts.st_ino, .name = "", .is_regular = S_ISREG(facts.st_mode)};
    snprintf(folder, sizeof folder, "%s", path);
    for (int32_t links = 0; links < MOST_LINKS && strcmp(path, "-") != 0 && follow_link(folder);) links++;
    char *slash = strrchr(folder, '/');
    snprintf(place.name, sizeof place.name, "%.255s", slash ? slash + 1 : folder);
    if (slash) slash[1] = '\0';
    if (strcmp(path, "-") == 0 || stat(slash ? folder : ".", &facts) != 0) return place;
    place.device = facts.st_dev;
    place.inode = facts.st_ino;
    return place;
}

static bool is_same(const Place *a, const Place *b) {
    return a->device == b->device && a->inode == b->inode && strcmp(a->name, b->name) == 0;
}

static const FileUse *find_use(const Cli *cli, const char *option) {
    for (int32_t k = 0; k < USE_COUNT; k++)
        if (strcmp(uses[k].option, option) == 0 && (!uses[k].command || is_command(cli, uses[k].command)))
            return &uses[k];
    return NULL;
}

/* ---- outputs ---- */

static AmStatus add_output(Outputs *outputs, const char *option, const char *path, AmError *error) {
    Place place = place_of(path), nowhere = place_of("/dev/null");
    if (is_same(&place, &nowhere) || outputs->count == MOST_OUTPUTS) return AM_OK;
    for (int32_t k = 0; k < outputs->count; k++) {
        const Output *other = &outputs->rows[k];
        if (!is_same(&place, &other->place)) continue;
        if (strcmp(path, "-") == 0)
            return am_fail(error, AM_ERROR_USAGE, "", "%s and %s would both be on stdout: expected %s FILE",
                           other->option, option, other->option);
        if (strcmp(path, other->path) != 0)
            return am_fail(error, AM_ERROR_USAGE, "", "%s %.200s and %s %.200s are one file", other->option,
                           other->path, option, path);
        return am_fail(error, AM_ERROR_USAGE, "", "%s and %s are both %.200s", other->option, option, path);
    }
    outputs->rows[outputs->count++] = (Output){option, path, place};
    return AM_OK;
}

/* ---- inputs ---- */

/* Checks an input. Names, streams, folders and missing files are left to the reader's own error. */
static AmStatus check_input(const Outputs *outputs, const char *path, const char *what, bool is_improved,
                            AmError *error) {
    Place place = place_of(path);
    for (int32_t k = 0; place.is_regular && k < outputs->count; k++) {
        const Output *output = &outputs->rows[k];
        if (!is_same(&place, &output->place) || (is_improved && strcmp(output->option, "-o") == 0)) continue;
        return am_fail(error, AM_ERROR_USAGE, "", "%s %.200s would replace the %s that is read",
                       output->option, output->path, what);
    }
    return AM_OK;
}

/* Returns the content of an argument that is read; NULL for other arguments. */
static const char *argument_input(const Cli *cli, int32_t argument) {
    if (is_command(cli, "agent evaluate")) return argument == 0 ? "agent" : "file";
    if (is_command(cli, "convert")) return argument == 0 ? "module" : NULL;
    if (is_command(cli, "cluster")) return "cluster";
    if (is_command(cli, "published")) return "file";
    return argument == cli->argument_count - 1 ? "module" : "plan";
}

/* Checks the roles beside a module, which are read unless others are named. */
static AmStatus check_roles(const Outputs *outputs, const Cli *cli, const char *module, AmError *error) {
    char *path = NULL;
    if (!cli_has(cli, "--roles")) TRY(am_roles_path(module, &path, error));
    AmStatus status = path ? check_input(outputs, path, "roles", false, error) : AM_OK;
    am_free(path);
    return status;
}

AmStatus cli_check_files(const Cli *cli, const char *output, AmError *error) {
    Outputs outputs = {.count = 0};
    const char *result = output;
    static const char *const printing[] = {"simulate", "explain", "published"}; /* without -o */
    if (cli_has(cli, "-o")) result = cli_text(cli, "-o");
    for (size_t k = 0; !result && k < sizeof printing / sizeof *printing; k++)
        if (is_command(cli, printing[k])) result = "-";
    if (result) TRY(add_output(&outputs, "-o", result, error));
    for (int32_t k = 0; k < cli->given_count; k++) {
        const char *option = cli->given[k].option->name;
        const FileUse *use = find_use(cli, option);
        bool is_output = use && !use->input && strcmp(option, "-o") != 0;
        for (int32_t v = 0; is_output && v < cli->given[k].count; v++) {
            const char *value = cli->given[k].values[v], *equals = strchr(value, '=');
            TRY(add_output(&outputs, option, use->is_pair && equals ? equals + 1 : value, error));
        }
    }
    if (is_command(cli, "convert") && cli->argument_count > 1)
        TRY(add_output(&outputs, "OUT", cli->arguments[1], error));
    for (int32_t k = 0; k < cli->argument_count; k++) {
        const char *what = argument_input(cli, k);
        if (what) TRY(check_input(&outputs, cli->arguments[k], what, false, error));
        if (what && strcmp(what, "module") == 0) TRY(check_roles(&outputs, cli, cli->arguments[k], error));
    }
    for (int32_t k = 0; k < cli->given_count; k++) {
        const FileUse *use = find_use(cli, cli->given[k].option->name);
        for (int32_t v = 0; use && use->input && v < cli->given[k].count; v++) {
            const char *value = cli->given[k].values[v], *equals = strchr(value, '='); /* [NAME=]FILE */
            if (use->word && strcmp(value, use->word) == 0) continue;
            TRY(check_input(&outputs, value, use->input, use->is_improved, error));
            if (equals) TRY(check_input(&outputs, equals + 1, use->input, use->is_improved, error));
        }
    }
    return AM_OK;
}

const char *cli_main_input(const Cli *cli) {
    if (cli_has(cli, "--import")) return cli_text(cli, "--import");
    for (int32_t k = 0; k < cli->argument_count; k++) {
        const char *what = argument_input(cli, k);
        if (what && strcmp(what, "module") == 0) return cli->arguments[k];
    }
    return cli->argument_count > 0 ? cli->arguments[0] : NULL;
}
