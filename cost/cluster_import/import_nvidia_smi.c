/* The matrix of nvidia-smi topo -m.
 *
 * An entry is the distance of two devices or cards: PIX one PCIe switch, PXB several, PHB the host
 * bridge, NODE bridges of one NUMA node, SYS another node; or NV and a number of NVLinks, which
 * hides the distance. Each level includes the levels below it, so that groups are the closure of
 * all pairs up to a level. Every group of two or more that is larger than its subgroups becomes a
 * switch: up to PHB with PCIe links, above with the links between sockets. Distances that NVLinks
 * hide are assumed to be of the top level.
 *
 * If a device has more NVLinks in its row than its type has in total, each number counts the links
 * to a common switch; otherwise they are links of the pair.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/union_find.h"
#include "cost/cluster_import/import.h"

enum { MOST_NAMES = 2 * IMPORT_MOST_GPUS, LONGEST_NAME = 63 };

typedef enum Level { PIX, PXB, PHB, NODE, SYS, LEVEL_COUNT } Level;
static const char *const level_names[] = {"PIX", "PXB", "PHB", "NODE", "SYS"};

typedef struct MatrixReader {
    Import *import;
    const FileBytes *file;
    AmError *error;
    char (*names)[LONGEST_NAME + 1]; /* [count] of the columns */
    bool *is_gpu;                    /* [count] */
    int16_t
        *cells; /* [count * count] a level, minus the number of NVLinks, LEVEL_COUNT: the same or unknown */
    int32_t count, gpus, cards;
    const char **places; /* [count] the highest switch so far that a column is below */
} MatrixReader;

static AmStatus fail_at(const MatrixReader *self, const char *at, const char *expected) {
    return am_fail_at(self->error, AM_ERROR_INPUT, self->file->name, self->file->data, self->file->length,
                      at - self->file->data, "%s", expected);
}

/* Copies the next word of a line into `word`, without the escapes that underline the head. Returns where the
 * word starts, NULL at the line's end. */
static const char *next_word(const char **at, char *word) {
    size_t length = 0;
    const char *start = NULL;
    for (; **at && **at != '\n'; ++*at) {
        if (**at == '\033') {
            while (**at && **at != '\n' && !isalpha((unsigned char)**at)) ++*at;
            if (!**at || **at == '\n') break;
            continue;
        }
        if (isspace((unsigned char)**at)) {
            if (start) break;
            continue;
        }
        if (!start) start = *at;
        if (length < LONGEST_NAME) word[length++] = **at;
    }
    word[length] = '\0';
    return start;
}

static bool is_column(const char *word) {
    size_t digits = strcspn(word, "0123456789");
    return word[digits] &&
           (strncmp(word, "GPU", 3) == 0 || strncmp(word, "NIC", 3) == 0 || strncmp(word, "mlx", 3) == 0 ||
            strncmp(word, "ib", 2) == 0 || strncmp(word, "bnxt", 4) == 0);
}

/* Reads the head "GPU0 GPU1 NIC0 CPU Affinity ...": the columns are the words before the first that is no
 * device. */
static AmStatus read_head(MatrixReader *self, const char **at) {
    char word[LONGEST_NAME + 1];
    const char *start = *at;
    for (const char *found; (found = next_word(at, word)) && is_column(word);) {
        if (self->count == MOST_NAMES) return fail_at(self, found, "more than 512 columns");
        self->is_gpu[self->count] = strncmp(word, "GPU", 3) == 0;
        self->gpus += self->is_gpu[self->count];
        memcpy(self->names[self->count++], word, sizeof word);
    }
    if (self->gpus == 0 || self->gpus > IMPORT_MOST_GPUS)
        return fail_at(self, start, "expected a head such as \"GPU0 GPU1 NIC0 CPU Affinity\"");
    return AM_OK;
}

static AmStatus read_cell(MatrixReader *self, int16_t *cell, const char *at, const char *word, bool is_same) {
    *cell = LEVEL_COUNT;
    if (is_same)
        return strcmp(word, "X") == 0 ? AM_OK : fail_at(self, at, "expected X between a device and itself");
    for (int32_t level = 0; level < LEVEL_COUNT; level++)
        if (strcmp(word, level_names[level]) == 0) {
            *cell = (int16_t)level;
            return AM_OK;
        }
    long links = strncmp(word, "NV", 2) == 0 ? strtol(word + 2, NULL, 10) : 0;
    if (links < 1 || links > 1000)
        return fail_at(self, at, "expected PIX, PXB, PHB, NODE, SYS or NV and a number of links");
    *cell = (int16_t)-links;
    return AM_OK;
}

static AmStatus read_body(MatrixReader *self, const char *at) {
    for (int32_t row = 0; row < self->count; row++) {
        char word[LONGEST_NAME + 1];
        at += *at == '\n';
        const char *found = next_word(&at, word);
        while (!found && *at) {
            at++;
            found = next_word(&at, word);
        }
        if (!found || strcmp(word, self->names[row]) != 0)
            return fail_at(self, found ? found : at, "expected a row for each column, in the same order");
        for (int32_t column = 0; column < self->count; column++) {
            found = next_word(&at, word);
            if (!found) return fail_at(self, at, "expected a word for each column");
            TRY(read_cell(self, &self->cells[row * self->count + column], found, word, row == column));
            if (column < row &&
                self->cells[row * self->count + column] != self->cells[column * self->count + row])
                return fail_at(self, found, "the matrix is not symmetric");
        }
        at += strcspn(at, "\n");
    }
    return AM_OK;
}

/* Returns the number of NVLinks of the pair. */
static int32_t links_between(const MatrixReader *self, int32_t a, int32_t b) {
    int16_t cell = self->cells[a * self->count + b];
    return cell < 0 ? -cell : 0;
}

static void add_nvlinks(MatrixReader *self) {
    const ClusterDeviceLinks *usual = self->import->usual;
    double rate = usual->nvlink_bytes_per_second;
    for (int32_t a = 0; a < self->count; a++) {
        int32_t sum = 0, most = 0;
        for (int32_t b = 0; b < self->count; b++) {
            sum += links_between(self, a, b);
            if (links_between(self, a, b) > most) most = links_between(self, a, b);
        }
        if (sum > usual->nvlinks && sum > most) {
            import_add_edge(
                self->import, self->places[a], "nvswitch",
                import_link(self->import, "nvswitch", most * rate, IMPORT_NVLINK_LATENCY_SECONDS / 2), 1);
            continue;
        }
        for (int32_t b = a + 1; b < self->count; b++)
            if (links_between(self, a, b) > 0)
                import_add_edge(self->import, self->places[a], self->places[b],
                                import_link(self->import, "nvlink", links_between(self, a, b) * rate,
                                            IMPORT_NVLINK_LATENCY_SECONDS),
                                1);
    }
}

/* Adds one level: groups that became larger get a switch above the places that they join. */
static AmStatus add_level(MatrixReader *self, int32_t *group, Level level) {
    const char *link = level <= PHB ? import_pcie(self->import, 0)
                                    : import_link(self->import, "socket", IMPORT_SOCKET_BYTES_PER_SECOND,
                                                  IMPORT_SOCKET_LATENCY_SECONDS);
    const char *above[MOST_NAMES] = {0};
    int32_t before[MOST_NAMES];
    bool grew[MOST_NAMES] = {0};
    for (int32_t k = 0; k < self->count; k++) before[k] = union_find_root(group, k);
    for (int32_t a = 0; a < self->count; a++)
        for (int32_t b = a + 1; b < self->count; b++)
            if (level == SYS || self->cells[a * self->count + b] == (int16_t)level)
                group[union_find_root(group, b)] = union_find_root(group, a);
    for (int32_t k = 0; k < self->count; k++)
        grew[union_find_root(group, k)] |= before[k] != union_find_root(group, k);
    for (int32_t k = 0; k < self->count; k++) {
        int32_t root = union_find_root(group, k);
        if (!grew[root]) continue;
        if (!above[root]) above[root] = arena_format(self->import->arena, "%s%d", level_names[level], root);
        if (!above[root]) return am_fail_memory(self->error, level);
        /* A device's own link to its first switch is PCIe at every level. */
        if (before[k] == k)
            import_add_edge(self->import, self->places[k], above[root],
                            self->places[k] == self->names[k] ? import_pcie(self->import, 0) : link, 1);
    }
    /* From here on the switch stands for the group's first member. */
    for (int32_t k = 0; k < self->count; k++)
        if (above[union_find_root(group, k)]) self->places[k] = above[union_find_root(group, k)];
    return AM_OK;
}

/* Devices by number, cards by name; cards reach a rail each. */
static AmStatus name_places(MatrixReader *self) {
    int32_t device = 0;
    for (int32_t k = 0; k < self->count; k++) {
        char rail[32];
        if (self->is_gpu[k]) {
            snprintf(self->names[k], sizeof self->names[k], "device%d", device++);
        } else {
            char card[LONGEST_NAME + 1];
            snprintf(card, sizeof card, "card-%.57s", self->names[k]);
            memcpy(self->names[k], card, sizeof card);
            snprintf(rail, sizeof rail, "/rail%d", self->cards++);
            import_add_edge(self->import, card, rail, import_between(self->import, 0.5), 1);
        }
        self->places[k] = self->names[k];
    }
    return self->import->arena->failed ? am_fail_memory(self->error, self->count) : AM_OK;
}

AmStatus import_matrix(Import *import, const FileBytes *file, AmError *error) {
    MatrixReader self = {.import = import, .file = file, .error = error};
    const char *at = strstr(file->data, "GPU0");
    TRY(import_claim(import, &import->server_source, file->name, "describes a server", error));
    self.names = arena_alloc(import->arena, MOST_NAMES * sizeof *self.names);
    self.is_gpu = ARENA_ARRAY(import->arena, bool, MOST_NAMES);
    if (import->arena->failed) return am_fail_memory(error, MOST_NAMES);
    TRY(read_head(&self, &at));
    int32_t *group = ARENA_ARRAY(import->arena, int32_t, self.count);
    self.cells = ARENA_ARRAY(import->arena, int16_t, self.count * self.count);
    self.places = ARENA_ARRAY(import->arena, const char *, self.count);
    if (import->arena->failed) return am_fail_memory(error, self.count);
    TRY(read_body(&self, at + strcspn(at, "\n")));
    TRY(name_places(&self));
    add_nvlinks(&self);
    for (int32_t k = 0; k < self.count; k++) group[k] = k;
    for (Level level = PIX; level < LEVEL_COUNT; level++) TRY(add_level(&self, group, level));
    import->top = self.count > 1 ? self.places[0] : NULL;
    return import_end_server(import, self.gpus, error);
}
