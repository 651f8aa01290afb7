/* Folding, messages and the bound; see additive_bound.h.
 *
 * Nodes are ordered as the program is. With phi(u) = cost(u) + all messages to u and gamma(u) = 1 / max(edges
 * forward, edges back), an edge (u, v) passes forward
 *
 *     to_v(b) = min over a of [ gamma(u) phi(u)(a) - to_u(a) + cost(u, v)(a, b) ]
 *
 * and back alike. Whatever the messages are,
 *
 *     sum over u of (1 - gamma(u) edges forward) min phi(u)
 *   + sum over (u, v) of min over a, b of [ gamma(u) phi(u)(a) - to_u(a) + cost(a, b) - to_v(b) ]
 *
 * is at most the cost of every labelling, since each message is added once and taken away once.
 */
#include "cost/additive_bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

enum { FOLD_ROUNDS = 5, SWEEPS_PER_BOUND = 4 };

/* A gain of the bound, by so many sweeps as may be, that is not worth going on for. */
#define LEAST_GAIN 0.04

/* Of what an edge could pay less, what it does pay less at once; and what rounding may add to shares. */
#define SHARE_STEP   0.5
#define SHARE_MARGIN 1e-5

/* One end of alike edges. */
typedef struct End {
    int32_t label_count, state_count;
    int32_t main;           /* class, that of most of the edges */
    const uint8_t *state;   /* [label_count]: which of the states that occur */
    const BoxState *values; /* [state_count]: which they are */
    double *message;        /* [label_count]: from the other end */
} End;

/* Edges that share their messages. ends[0] comes before ends[1] in the order of nodes. */
typedef struct Group {
    End ends[2];
    bool is_turned; /* ends[0] is the one that takes */
    /* [states of end 0][states of end 1], unweighted: of what the boxing costs if no other reader needs it
     * (NULL: there is none) the part that this edge pays. */
    float *seconds;
    const float *alone;
    float *slack; /* scratch */
} Group;

/* Edges of a group between two classes. */
typedef struct Pair {
    int32_t group, first, second; /* classes of ends 0 and 1 */
    double count;
} Pair;

/* A class's part in a group. */
typedef struct Incidence {
    int32_t group, end;
    int32_t count; /* edges of each of its nodes */
} Incidence;

/* Nodes alike. */
typedef struct Class {
    double count;
    int32_t label_count, first_incidence, incidence_count;
    int32_t edges[2]; /* of each node: with it as end 0, as end 1 */
    const float *seconds;
} Class;

/* What an edge pays for one pair of states. */
typedef struct Cell {
    float *seconds;
    double alone, slack;
    int32_t times; /* edges */
} Cell;

struct AdditiveFold {
    const AdditiveModel *model;
    const int32_t *class_of, *group_of; /* [node], [edge] */
    const StopSignal *stop;             /* or NULL */
    Class *classes;                     /* in the order of their first nodes */
    Group *groups;
    Pair *pairs;
    Incidence *incidences; /* by class */
    int32_t class_count, group_count, pair_count, incidence_count;
    double *phi, *best; /* scratch: labels, states */
    int32_t *sharers;   /* scratch: incidences of a class */
    Cell *cells;        /* scratch: as many */
};

/* ---- folding ---- */

typedef struct Numbering {
    uint64_t *keys; /* open addressing; 0: empty */
    int32_t *numbers;
    int32_t capacity, count;
} Numbering;

static bool numbering_open(Numbering *self, Arena *arena, int32_t most) {
    *self = (Numbering){.capacity = 64};
    while (self->capacity < 2 * most) self->capacity *= 2;
    self->keys = ARENA_ARRAY(arena, uint64_t, self->capacity);
    self->numbers = ARENA_ARRAY(arena, int32_t, self->capacity);
    return !arena->failed;
}

/* The number of a key: the next one where it is new. */
static int32_t number_of(Numbering *self, uint64_t key) {
    if (key == 0) key = 1;
    int32_t slot = (int32_t)(key * 0x9e3779b97f4a7c15u >> 33) & (self->capacity - 1);
    while (self->keys[slot] != 0 && self->keys[slot] != key) slot = (slot + 1) & (self->capacity - 1);
    if (self->keys[slot] == 0) {
        self->keys[slot] = key;
        self->numbers[slot] = self->count++;
    }
    return self->numbers[slot];
}

typedef struct Folder {
    Arena *arena;
    const AdditiveModel *model;
    AdditiveFold *fold;
    int32_t *order;                /* [node]: nodes in the order of the program */
    int32_t *place;                /* [node]: where in it */
    uint64_t *look, *color, *next; /* [edge], [node], [node] */
    uint64_t *former;              /* [node]: colors of the round before the last */
    int32_t *class_of, *group_of;  /* [node], [edge] */
} Folder;

static bool is_turned(const Folder *self, const AdditiveEdge *edge) {
    return self->place[edge->made] > self->place[edge->taken];
}

/* Operators by instruction, each before the tensor that it makes. */
static AmStatus order_nodes(Folder *self, AmError *error) {
    const AdditiveModel *model = self->model;
    int32_t keys = 2 * model->context->rules->count, next = 0;
    int32_t *node_of = ARENA_ARRAY(self->arena, int32_t, keys + 1);
    if (!node_of) return am_fail_memory(error, keys);
    for (int32_t k = 0; k < keys; k++) node_of[k] = -1;
    for (int32_t n = 0; n < model->node_count; n++)
        node_of[2 * model->nodes[n].instruction + model->nodes[n].is_tensor] = n;
    for (int32_t k = 0; k < keys; k++) {
        if (node_of[k] < 0) continue;
        self->place[node_of[k]] = next;
        self->order[next++] = node_of[k];
    }
    return AM_OK;
}

static uint64_t look_of_node(const AdditiveNode *node) {
    const int32_t parts[] = {node->label_count, node->is_tensor};
    uint64_t hash = hash_bytes(parts, sizeof parts, 0);
    return node->seconds ? hash_bytes(node->seconds, sizeof(float) * (size_t)node->label_count, hash) : hash;
}

static uint64_t look_of_edge(const Folder *self, const AdditiveEdge *edge) {
    const AdditiveNode *nodes = self->model->nodes;
    const float parts[] = {edge->scale, edge->share};
    uint64_t hash = hash_bytes(parts, sizeof parts, edge->is_wide + 2u * is_turned(self, edge));
    hash = hash_bytes(edge->made_in, (size_t)nodes[edge->made].label_count, hash);
    return hash_bytes(edge->needs, (size_t)nodes[edge->taken].label_count, hash);
}

/* Every node takes in what its edges lead to. */
static void refine(Folder *self) {
    const AdditiveModel *model = self->model;
    memcpy(self->next, self->color, sizeof *self->next * (size_t)model->node_count);
    for (int32_t e = 0; e < model->edge_count; e++) {
        const AdditiveEdge *edge = &model->edges[e];
        uint64_t here = hash_combine(self->look[e], self->color[edge->taken]);
        uint64_t there = hash_combine(self->look[e] + 1, self->color[edge->made]);
        self->next[edge->made] += hash_combine(here, 1); /* sums do not depend on the order of edges */
        self->next[edge->taken] += hash_combine(there, 2);
    }
    memcpy(self->former, self->color, sizeof *self->former * (size_t)model->node_count);
    for (int32_t n = 0; n < model->node_count; n++) self->color[n] = hash_combine(self->next[n], 3);
}

static AmStatus find_classes(Folder *self, AmError *error) {
    const AdditiveModel *model = self->model;
    AdditiveFold *fold = self->fold;
    Numbering numbering;
    if (!numbering_open(&numbering, self->arena, model->node_count + 1))
        return am_fail_memory(error, model->node_count);
    for (int32_t k = 0; k < model->node_count; k++) {
        int32_t n = self->order[k];
        self->class_of[n] = number_of(&numbering, self->color[n]);
    }
    fold->class_count = numbering.count;
    fold->classes = ARENA_ARRAY(self->arena, Class, numbering.count + 1);
    if (!fold->classes) return am_fail_memory(error, numbering.count);
    for (int32_t n = 0; n < model->node_count; n++) {
        Class *class = &fold->classes[self->class_of[n]];
        class->count++;
        class->label_count = model->nodes[n].label_count;
        class->seconds = model->nodes[n].seconds;
    }
    return AM_OK;
}

/* The states that occur at an end, numbered: state[label] and their values. */
static void list_states(Arena *arena, End *end, const BoxState *states) {
    uint8_t *state = ARENA_ARRAY(arena, uint8_t, end->label_count + 1);
    BoxState *values = ARENA_ARRAY(arena, BoxState, BOX_STATES + 1);
    int32_t number[BOX_STATES + 1];
    for (int32_t k = 0; k <= BOX_STATES; k++) number[k] = -1;
    for (int32_t label = 0; state && values && label < end->label_count; label++) {
        if (number[states[label]] < 0) {
            values[end->state_count] = states[label];
            number[states[label]] = end->state_count++;
        }
        state[label] = (uint8_t)number[states[label]];
    }
    end->state = state;
    end->values = values;
}

static void open_group(Folder *self, Group *group, const AdditiveEdge *edge) {
    const AdditiveModel *model = self->model;
    int32_t nodes[2] = {edge->made, edge->taken};
    const BoxState *states[2] = {edge->made_in, edge->needs};
    group->is_turned = is_turned(self, edge);
    for (int32_t k = 0; k < 2; k++) {
        int32_t from = group->is_turned ? 1 - k : k;
        End *end = &group->ends[k];
        end->label_count = model->nodes[nodes[from]].label_count;
        end->message = ARENA_ARRAY(self->arena, double, end->label_count + 1);
        list_states(self->arena, end, states[from]);
    }
    int32_t minor = group->ends[1].state_count, cells = group->ends[0].state_count * minor;
    float *alone = ARENA_ARRAY(self->arena, float, cells + 1), most = 0;
    group->seconds = ARENA_ARRAY(self->arena, float, cells + 1);
    if (self->arena->failed) return;
    for (int32_t a = 0; a < group->ends[0].state_count; a++)
        for (int32_t b = 0; b < minor; b++) {
            BoxState first = group->ends[0].values[a], second = group->ends[1].values[b];
            BoxState made = group->is_turned ? second : first, needed = group->is_turned ? first : second;
            bool is_any = made == BOX_ANY || needed == BOX_ANY;
            float cost = is_any ? 0 : model->boxes->seconds[edge->is_wide][made][needed] * edge->scale;
            alone[a * minor + b] = cost;
            if (isfinite(cost) && cost > most) most = cost;
        }
    for (int32_t k = 0; k < cells; k++) {
        if (!isfinite(alone[k])) alone[k] = most;
        group->seconds[k] = alone[k] * edge->share;
    }
    if (edge->share == 1) return;
    group->alone = alone;
    group->slack = ARENA_ARRAY(self->arena, float, cells + 1);
}

/* Edges that look alike between nodes that looked alike one round ago share a group. */
static AmStatus find_groups(Folder *self, AmError *error) {
    const AdditiveModel *model = self->model;
    AdditiveFold *fold = self->fold;
    Numbering groups, pairs;
    int32_t edges = model->edge_count;
    fold->groups = ARENA_ARRAY(self->arena, Group, edges + 1);
    fold->pairs = ARENA_ARRAY(self->arena, Pair, edges + 1);
    if (!numbering_open(&groups, self->arena, edges + 1) || !numbering_open(&pairs, self->arena, edges + 1))
        return am_fail_memory(error, edges);
    for (int32_t e = 0; e < edges && !self->arena->failed; e++) {
        const AdditiveEdge *edge = &model->edges[e];
        uint64_t key =
            hash_combine(hash_combine(self->look[e], self->former[edge->made]), self->former[edge->taken]);
        int32_t before = groups.count, group = self->group_of[e] = number_of(&groups, key);
        if (group == before) open_group(self, &fold->groups[group], edge);
        bool turned = fold->groups[group].is_turned;
        int32_t ends[2] = {self->class_of[turned ? edge->taken : edge->made],
                           self->class_of[turned ? edge->made : edge->taken]};
        before = pairs.count;
        const int32_t parts[] = {group, ends[0], ends[1]};
        int32_t pair = number_of(&pairs, hash_bytes(parts, sizeof parts, 0));
        if (pair == before) fold->pairs[pair] = (Pair){.group = group, .first = ends[0], .second = ends[1]};
        fold->pairs[pair].count++;
    }
    fold->group_count = groups.count;
    fold->pair_count = pairs.count;
    double *most = ARENA_ARRAY(self->arena, double, groups.count + 1);
    if (!most) return am_fail_memory(error, groups.count);
    for (int32_t p = 0; p < fold->pair_count; p++) {
        const Pair *pair = &fold->pairs[p];
        if (pair->count <= most[pair->group]) continue;
        most[pair->group] = pair->count;
        fold->groups[pair->group].ends[0].main = pair->first;
        fold->groups[pair->group].ends[1].main = pair->second;
    }
    return AM_OK;
}

/* What touches each class: read off one of its nodes, as all have the same. */
static AmStatus find_incidences(Folder *self, AmError *error) {
    const AdditiveModel *model = self->model;
    AdditiveFold *fold = self->fold;
    int32_t most = 0, most_incidences = 0;
    int32_t *first = ARENA_ARRAY(self->arena, int32_t, model->node_count + 2);
    int32_t *touching = ARENA_ARRAY(self->arena, int32_t, 2 * model->edge_count + 1);
    bool *is_done = ARENA_ARRAY(self->arena, bool, fold->class_count + 1);
    if (self->arena->failed) return am_fail_memory(error, model->edge_count);
    for (int32_t e = 0; e < model->edge_count; e++) {
        first[model->edges[e].made + 1]++;
        first[model->edges[e].taken + 1]++;
    }
    for (int32_t n = 0; n < model->node_count; n++) first[n + 1] += first[n];
    for (int32_t e = 0; e < model->edge_count; e++) { /* ends are told by the edge's direction */
        touching[first[model->edges[e].made]++] = e;
        touching[first[model->edges[e].taken]++] = -1 - e;
    }
    for (int32_t n = model->node_count; n > 0; n--) first[n] = first[n - 1];
    first[0] = 0;
    fold->incidences = ARENA_ARRAY(self->arena, Incidence, 2 * model->edge_count + 1);
    if (!fold->incidences) return am_fail_memory(error, model->edge_count);
    for (int32_t k = 0; k < model->node_count; k++) {
        int32_t n = self->order[k];
        Class *class = &fold->classes[self->class_of[n]];
        if (is_done[self->class_of[n]]) continue;
        is_done[self->class_of[n]] = true;
        class->first_incidence = fold->incidence_count;
        for (int32_t t = first[n]; t < first[n + 1]; t++) {
            int32_t e = touching[t] < 0 ? -1 - touching[t] : touching[t];
            int32_t group = self->group_of[e], end = (touching[t] < 0) ^ fold->groups[group].is_turned, at;
            for (at = class->first_incidence; at < fold->incidence_count; at++)
                if (fold->incidences[at].group == group && fold->incidences[at].end == end) break;
            if (at == fold->incidence_count)
                fold->incidences[fold->incidence_count++] = (Incidence){.group = group, .end = end};
            fold->incidences[at].count++;
            class->edges[end]++;
        }
        class->incidence_count = fold->incidence_count - class->first_incidence;
        if (class->label_count > most) most = class->label_count;
        if (class->incidence_count > most_incidences) most_incidences = class->incidence_count;
    }
    fold->phi = ARENA_ARRAY(self->arena, double, most + 1);
    fold->best = ARENA_ARRAY(self->arena, double, 2 * (BOX_STATES + 1));
    fold->sharers = ARENA_ARRAY(self->arena, int32_t, most_incidences + 1);
    fold->cells = ARENA_ARRAY(self->arena, Cell, most_incidences + 1);
    return self->arena->failed ? am_fail_memory(error, most) : AM_OK;
}

/* Colors nodes by what they are and what is as many edges away as there are rounds. */
static AmStatus find_colors(Folder *self, int32_t rounds, AmError *error) {
    const AdditiveModel *model = self->model;
    TRY(order_nodes(self, error));
    for (int32_t n = 0; n < model->node_count; n++) self->color[n] = look_of_node(&model->nodes[n]);
    for (int32_t e = 0; e < model->edge_count; e++) self->look[e] = look_of_edge(self, &model->edges[e]);
    for (int32_t round = 0; round < rounds; round++) refine(self);
    return AM_OK;
}

static AmStatus folder_open(Folder *self, Arena *arena, const AdditiveModel *model, AmError *error) {
    int32_t nodes = model->node_count + 1, edges = model->edge_count + 1;
    *self = (Folder){.arena = arena,
                     .model = model,
                     .fold = ARENA_ARRAY(arena, AdditiveFold, 1),
                     .order = ARENA_ARRAY(arena, int32_t, nodes),
                     .place = ARENA_ARRAY(arena, int32_t, nodes),
                     .look = ARENA_ARRAY(arena, uint64_t, edges),
                     .color = ARENA_ARRAY(arena, uint64_t, nodes),
                     .next = ARENA_ARRAY(arena, uint64_t, nodes),
                     .former = ARENA_ARRAY(arena, uint64_t, nodes),
                     .class_of = ARENA_ARRAY(arena, int32_t, nodes),
                     .group_of = ARENA_ARRAY(arena, int32_t, edges)};
    return arena->failed ? am_fail_memory(error, (int64_t)nodes + edges) : AM_OK;
}

AmStatus additive_fold(AdditiveFold **fold, Arena *arena, const AdditiveModel *model, AmError *error) {
    Folder self;
    TRY(folder_open(&self, arena, model, error));
    TRY(find_colors(&self, FOLD_ROUNDS, error));
    TRY(find_classes(&self, error));
    TRY(find_groups(&self, error));
    TRY(find_incidences(&self, error));
    self.fold->model = model;
    self.fold->class_of = self.class_of;
    self.fold->group_of = self.group_of;
    *fold = self.fold;
    return AM_OK;
}

AmStatus additive_kinds(int32_t **kinds, int32_t *kind_count, Arena *arena, const AdditiveModel *model,
                        const uint64_t *looks, int32_t rounds, AmError *error) {
    Folder self;
    TRY(folder_open(&self, arena, model, error));
    TRY(find_colors(&self, rounds, error));
    for (int32_t n = 0; n < model->node_count; n++)
        self.color[n] = hash_combine(self.color[n], looks[model->nodes[n].instruction]);
    TRY(find_classes(&self, error));
    *kinds = self.class_of;
    *kind_count = self.fold->class_count;
    return AM_OK;
}

void additive_fold_watch(AdditiveFold *fold, const StopSignal *stop) {
    fold->stop = stop;
}

int32_t additive_fold_count(const AdditiveFold *fold) {
    return fold->class_count;
}

/* ---- messages ---- */

/* phi of a class: its cost and all that is sent to it. Returns gamma. */
static double gather(const AdditiveFold *fold, int32_t c, const AdditiveWeights *weights) {
    const Class *class = &fold->classes[c];
    double weight = weights->compute;
    for (int32_t label = 0; label < class->label_count; label++)
        fold->phi[label] = class->seconds ? weight * class->seconds[label] : 0;
    for (int32_t k = class->first_incidence; k < class->first_incidence + class->incidence_count; k++) {
        const Incidence *incidence = &fold->incidences[k];
        const double *message = fold->groups[incidence->group].ends[incidence->end].message;
        for (int32_t label = 0; label < class->label_count; label++)
            fold->phi[label] += incidence->count * message[label];
    }
    int32_t most = class->edges[0] > class->edges[1] ? class->edges[0] : class->edges[1];
    return most > 0 ? 1.0 / most : 0;
}

/* What a class sends along a group to the other end, by the states there: in fold->best. Unlike a message it
 * is not normalised. */
static double *send(const AdditiveFold *fold, const Group *group, int32_t end, double gamma,
                    const AdditiveWeights *weights) {
    const End *from = &group->ends[end], *to = &group->ends[1 - end];
    double *least = fold->best, *sent = fold->best + BOX_STATES + 1;
    double weight = weights->communication;
    for (int32_t a = 0; a < from->state_count; a++) least[a] = INFINITY;
    for (int32_t label = 0; label < from->label_count; label++) {
        double value = gamma * fold->phi[label] - from->message[label];
        if (value < least[from->state[label]]) least[from->state[label]] = value;
    }
    for (int32_t b = 0; b < to->state_count; b++) sent[b] = INFINITY;
    int32_t minor = group->ends[1].state_count;
    for (int32_t a = 0; a < from->state_count; a++)
        for (int32_t b = 0; b < to->state_count; b++) {
            double value = least[a] + weight * group->seconds[end == 0 ? a * minor + b : b * minor + a];
            if (value < sent[b]) sent[b] = value;
        }
    return sent;
}

/* One sweep; `end` 0 forward, 1 back. */
static void sweep(AdditiveFold *fold, int32_t end, const AdditiveWeights *weights) {
    for (int32_t n = 0; n < fold->class_count; n++) {
        int32_t c = end == 0 ? n : fold->class_count - 1 - n;
        const Class *class = &fold->classes[c];
        double gamma = gather(fold, c, weights);
        for (int32_t k = class->first_incidence; k < class->first_incidence + class->incidence_count; k++) {
            const Incidence *incidence = &fold->incidences[k];
            Group *group = &fold->groups[incidence->group];
            if (incidence->end != end || group->ends[end].main != c) continue;
            const double *sent = send(fold, group, end, gamma, weights);
            End *to = &group->ends[1 - end];
            double least = INFINITY;
            for (int32_t b = 0; b < to->state_count; b++) least = fmin(least, sent[b]);
            for (int32_t label = 0; label < to->label_count; label++)
                to->message[label] = sent[to->state[label]] - least;
        }
    }
}

static double least_phi(const AdditiveFold *fold, const Class *class) {
    double least = INFINITY;
    for (int32_t label = 0; label < class->label_count; label++) least = fmin(least, fold->phi[label]);
    return class->label_count > 0 ? least : 0;
}

/* What the messages prove. Pairs are taken with phi of end `end`. */
static double evaluate(const AdditiveFold *fold, int32_t end, const AdditiveWeights *weights) {
    double bound = 0;
    for (int32_t c = 0; c < fold->class_count; c++) {
        const Class *class = &fold->classes[c];
        double gamma = gather(fold, c, weights);
        bound += class->count * (1 - gamma * class->edges[end]) * least_phi(fold, class);
    }
    int32_t gathered = -1;
    double gamma = 0;
    for (int32_t p = 0; p < fold->pair_count; p++) {
        const Pair *pair = &fold->pairs[p];
        const Group *group = &fold->groups[pair->group];
        int32_t c = end == 0 ? pair->first : pair->second;
        if (c != gathered) gamma = gather(fold, gathered = c, weights);
        const double *sent = send(fold, group, end, gamma, weights);
        const End *to = &group->ends[1 - end];
        double least = INFINITY;
        for (int32_t label = 0; label < to->label_count; label++)
            least = fmin(least, sent[to->state[label]] - to->message[label]);
        bound += pair->count * least;
    }
    return bound;
}

/* ---- shares ---- */

/* The edges by which a tensor is read pay together for its boxing, from the state in which it is kept to each
 * that is needed once. Which of them pays how much is free, state by state, as long as they pay no more than
 * once: any shares give a bound. What an edge need not pay, since another choice is dearer there by more,
 * goes to those for which that choice counts. */

static int32_t maker_end(const Group *group) {
    return group->is_turned ? 1 : 0;
}

/* Of a group the cell for the state in which a tensor is kept and one that its reader needs. */
static int32_t cell_of(const Group *group, int32_t kept, int32_t needed) {
    int32_t minor = group->ends[1].state_count;
    return group->is_turned ? needed * minor + kept : kept * minor + needed;
}

static int32_t find_state(const End *end, BoxState value) {
    for (int32_t k = 0; k < end->state_count; k++)
        if (end->values[k] == value) return k;
    return -1;
}

/* How much less each cell of a group could cost, and the bound be the same: fold->slack. Messages are looked
 * at from end 1, as evaluate(fold, 1) does. */
static void find_slack(AdditiveFold *fold, Group *group, const AdditiveWeights *weights) {
    double gamma = gather(fold, group->ends[1].main, weights), least = INFINITY;
    const End *first = &group->ends[0], *second = &group->ends[1];
    double *kept = fold->best, *given = fold->best + BOX_STATES + 1;
    for (int32_t b = 0; b < second->state_count; b++) kept[b] = INFINITY;
    for (int32_t a = 0; a < first->state_count; a++) given[a] = -INFINITY;
    for (int32_t label = 0; label < second->label_count; label++)
        kept[second->state[label]] =
            fmin(kept[second->state[label]], gamma * fold->phi[label] - second->message[label]);
    for (int32_t label = 0; label < first->label_count; label++)
        given[first->state[label]] = fmax(given[first->state[label]], first->message[label]);
    int32_t minor = second->state_count;
    for (int32_t k = 0; k < first->state_count * minor; k++) {
        group->slack[k] =
            (float)(kept[k % minor] - given[k / minor] + weights->communication * group->seconds[k]);
        least = fmin(least, group->slack[k]);
    }
    for (int32_t k = 0; k < first->state_count * minor; k++) group->slack[k] -= (float)least;
}

/* The incidences of a class by which its tensor is read and paid for together; their number. */
static int32_t list_sharers(AdditiveFold *fold, const Class *class) {
    int32_t count = 0;
    for (int32_t k = class->first_incidence; k < class->first_incidence + class->incidence_count; k++) {
        const Group *group = &fold->groups[fold->incidences[k].group];
        if (group->alone && fold->incidences[k].end == maker_end(group)) fold->sharers[count++] = k;
    }
    return count;
}

/* The cells of the sharers for one pair of states, in fold->cells; their number. */
static int32_t list_cells(AdditiveFold *fold, int32_t sharers, int32_t kept, BoxState needed) {
    int32_t count = 0;
    for (int32_t k = 0; k < sharers; k++) {
        const Incidence *incidence = &fold->incidences[fold->sharers[k]];
        const Group *group = &fold->groups[incidence->group];
        int32_t state = find_state(&group->ends[1 - maker_end(group)], needed);
        int32_t cell = state < 0 ? -1 : cell_of(group, kept, state);
        if (cell < 0 || !(group->alone[cell] > 0)) continue;
        fold->cells[count++] = (Cell){.seconds = &group->seconds[cell],
                                      .alone = group->alone[cell],
                                      .slack = group->slack[cell],
                                      .times = incidence->count};
    }
    return count;
}

static double sum_shares(const Cell *cells, int32_t count) {
    double sum = 0;
    for (int32_t k = 0; k < count; k++) sum += cells[k].times * (double)*cells[k].seconds / cells[k].alone;
    return sum;
}

static void share_cells(Cell *cells, int32_t count, double weight) {
    double wanting = 0, all = 0;
    for (int32_t k = 0; k < count; k++) {
        double spare = fmin(*cells[k].seconds, cells[k].slack / weight) * SHARE_STEP;
        *cells[k].seconds -= (float)fmax(spare, 0);
        all += cells[k].times;
        if (cells[k].slack <= 0) wanting += cells[k].times;
    }
    double left = (1 - SHARE_MARGIN - sum_shares(cells, count)) / (wanting > 0 ? wanting : all);
    for (int32_t k = 0; k < count; k++)
        if (wanting == 0 || cells[k].slack <= 0)
            *cells[k].seconds = (float)fmax(*cells[k].seconds + left * cells[k].alone, 0);
}

/* Classes that are nearly alike have groups in common: what one gave more may be too much for another. */
static void limit_cells(Cell *cells, int32_t count) {
    double sum = sum_shares(cells, count);
    for (int32_t k = 0; k < count && sum > 1; k++) *cells[k].seconds *= (float)((1 - SHARE_MARGIN) / sum);
}

static void share_out(AdditiveFold *fold, const AdditiveWeights *weights) {
    if (weights->communication <= 0) return;
    for (int32_t g = 0; g < fold->group_count; g++)
        if (fold->groups[g].alone) find_slack(fold, &fold->groups[g], weights);
    for (int32_t pass = 0; pass < 2; pass++)
        for (int32_t c = 0; c < fold->class_count; c++) {
            int32_t sharers = list_sharers(fold, &fold->classes[c]);
            if (sharers == 0) continue;
            const Group *group = &fold->groups[fold->incidences[fold->sharers[0]].group];
            int32_t states = group->ends[maker_end(group)].state_count;
            for (int32_t kept = 0; kept < states; kept++)
                for (int32_t needed = 0; needed < BOX_STATES; needed++) {
                    int32_t count = list_cells(fold, sharers, kept, (BoxState)needed);
                    if (pass == 0 && count > 0) share_cells(fold->cells, count, weights->communication);
                    else limit_cells(fold->cells, count);
                }
        }
}

double additive_bound(AdditiveFold *fold, const AdditiveWeights *weights, int32_t sweeps) {
    double best = 0;
    for (int32_t k = 0; k < sweeps && !(fold->stop && stop_wanted(fold->stop)); k++) {
        sweep(fold, 0, weights);
        sweep(fold, 1, weights);
        if (k % SWEEPS_PER_BOUND != SWEEPS_PER_BOUND - 1 && k != sweeps - 1) continue;
        double bound = evaluate(fold, 1, weights);
        share_out(fold, weights);
        bool is_settled = bound <= best * (1 + LEAST_GAIN / sweeps);
        best = fmax(best, bound);
        if (is_settled && k > 2 * SWEEPS_PER_BOUND) break;
    }
    return best;
}

/* ---- what a plan might change ---- */

/* Slack of an edge by the labels of its ends, looked at from end 1 as evaluate(fold, 1) does. */
static double edge_slack(AdditiveFold *fold, int32_t e, const int32_t *labels,
                         const AdditiveWeights *weights) {
    const AdditiveEdge *edge = &fold->model->edges[e];
    const Group *group = &fold->groups[fold->group_of[e]];
    int32_t first = group->is_turned ? edge->taken : edge->made;
    int32_t second = group->is_turned ? edge->made : edge->taken;
    const End *to = &group->ends[0], *from = &group->ends[1];
    double gamma = gather(fold, fold->class_of[second], weights), least = INFINITY;
    const double *sent = send(fold, group, 1, gamma, weights);
    for (int32_t label = 0; label < to->label_count; label++)
        least = fmin(least, sent[to->state[label]] - to->message[label]);
    double moved = group->seconds[to->state[labels[first]] * from->state_count + from->state[labels[second]]];
    return gamma * fold->phi[labels[second]] - from->message[labels[second]] +
           weights->communication * moved - to->message[labels[first]] - least;
}

static void find_class_slack(AdditiveFold *fold, double *slack, const int32_t *labels,
                             const AdditiveWeights *weights) {
    const AdditiveModel *model = fold->model;
    for (int32_t n = 0; n < model->node_count; n++) {
        const Class *class = &fold->classes[fold->class_of[n]];
        double gamma = gather(fold, fold->class_of[n], weights);
        slack[fold->class_of[n]] +=
            (1 - gamma * class->edges[1]) * (fold->phi[labels[n]] - least_phi(fold, class));
    }
    for (int32_t e = 0; e < model->edge_count; e++) {
        double here = edge_slack(fold, e, labels, weights);
        slack[fold->class_of[model->edges[e].made]] += here;
        slack[fold->class_of[model->edges[e].taken]] += here;
    }
}

static int compare_changes(const void *a, const void *b) {
    const AdditiveChange *x = a, *y = b;
    if (x->slack != y->slack) return x->slack < y->slack ? 1 : -1;
    return x->node != y->node ? (x->node > y->node) - (x->node < y->node) : 0;
}

/* The label of a class that costs least by its messages, beside two others. */
static int32_t next_label(const AdditiveFold *fold, const Class *class, int32_t but, int32_t nor) {
    int32_t best = -1;
    for (int32_t label = 0; label < class->label_count; label++)
        if (label != but && label != nor && (best < 0 || fold->phi[label] < fold->phi[best])) best = label;
    return best;
}

AmStatus additive_changes(AdditiveChange **changes, int32_t *count, Arena *arena, AdditiveFold *fold,
                          const int32_t *labels, const AdditiveWeights *weights, AmError *error) {
    const AdditiveModel *model = fold->model;
    double *slack = ARENA_ARRAY(arena, double, fold->class_count + 1);
    bool *is_done = ARENA_ARRAY(arena, bool, fold->class_count + 1);
    *changes = ARENA_ARRAY(arena, AdditiveChange, 2 * fold->class_count + 1);
    *count = 0;
    if (arena->failed) return am_fail_memory(error, fold->class_count);
    find_class_slack(fold, slack, labels, weights);
    for (int32_t n = 0; n < model->node_count; n++) {
        int32_t c = fold->class_of[n], label = labels[n];
        if (is_done[c] || model->nodes[n].is_tensor || !(slack[c] > 0)) continue;
        is_done[c] = true;
        gather(fold, c, weights);
        for (int32_t k = 0, before = -1; k < 2; k++) {
            int32_t other = next_label(fold, &fold->classes[c], label, before);
            if (other < 0) break;
            (*changes)[(*count)++] = (AdditiveChange){.node = n, .label = other, .slack = slack[c]};
            before = other;
        }
    }
    qsort(*changes, (size_t)*count, sizeof **changes, compare_changes);
    return AM_OK;
}

bool additive_is_alike(const AdditiveFold *fold, int32_t node, int32_t other) {
    return fold->class_of[node] == fold->class_of[other];
}
