/* Shared by the files of the propagation over a module as read (propagation/spread/spread.h).
 *
 * Spread has the shardings of all leaves so far. spread.c passes over the module until nothing changes;
 * spread_forward.c and spread_backward.c have the rules by opcode, spread_products.c those of dot and
 * convolution, and spread_indices.c those of gather and scatter.
 */
#ifndef PROPAGATION_SPREAD_SPREAD_INTERNAL_H
#define PROPAGATION_SPREAD_SPREAD_INTERNAL_H

#include "propagation/spread/spread.h"

/* An instruction of a group of equal shardings. */
typedef struct GroupMember {
    int64_t group;
    int32_t instruction;
    bool is_as; /* all get the same sharding */
} GroupMember;

struct Spread {
    Arena *arena;
    const IrModule *module;
    TilesPool pool;
    int32_t *first_leaf;              /* [instructions + 1] in `leaves` */
    const IrShape **shapes;           /* of the leaves */
    const Tiles **leaves;             /* of an instruction all NULL or none */
    bool *is_given;                   /* [instructions] */
    const Hlo__OpSharding **spelling; /* [instructions]: in the given form; NULL: by tiles */
    int32_t *first_user;              /* [instructions + 1] in `users` */
    int32_t *users;                   /* each once, in the order of the module */
    int32_t *used_as;      /* of `users`: number of the operand that it is; of several -1 - the first */
    int32_t *parent;       /* [instructions]: computation */
    int32_t *caller;       /* [computations]: the while, conditional or call that runs it; -1 */
    int32_t *order;        /* [instructions]: operands before users, by computation */
    bool *operands_done;   /* [instructions]: no news from operands since it was last seen */
    bool *users_done;      /* likewise from users */
    const Tiles **scratch; /* [most leaves] */
    const Tiles **related; /* likewise */
    int32_t *path;         /* [instructions]: users of a product, in a row */
    uint32_t *open;        /* [instructions]: dimensions that an annotation leaves open, as bits */
    GroupMember *members;  /* by group */
    int32_t member_count;
    int32_t *group_of; /* [instructions]: first of `members`; -1: none */
    int32_t level;     /* 0..3 */
    bool is_second;    /* the phase in which parameters of the entry take shardings, too */
    bool *is_settled;  /* [leaves]: split in the first phase */
};

/* A correspondence of dimensions of two arrays: to[d] is -1 where d has none. */
typedef struct DimensionMap {
    int32_t to[IR_MAX_RANK];
    int32_t rank; /* of the array mapped to */
} DimensionMap;

static inline int32_t spread_leaf_count(const Spread *self, int32_t i) {
    return self->first_leaf[i + 1] - self->first_leaf[i];
}

static inline bool spread_has(const Spread *self, int32_t i) {
    return spread_leaf_count(self, i) > 0 && self->leaves[self->first_leaf[i]] != NULL;
}

/* Returns the sharding of an array; NULL if it has none. */
static inline const Tiles *spread_array(const Spread *self, int32_t i) {
    return spread_leaf_count(self, i) == 1 ? self->leaves[self->first_leaf[i]] : NULL;
}

/* Returns the first leaf of an element of the tuple that an instruction makes. */
int32_t spread_element_leaf(const Spread *self, int32_t tuple, int64_t element);
/* Returns whether the instruction has a sharding that is not on one device. */
bool spread_is_spatial(const Spread *self, int32_t i);
DimensionMap spread_no_map(int32_t rank);
const Tiles *spread_apply(Spread *self, const Tiles *from, const DimensionMap *map);
bool spread_is_target(const IrInstruction *instruction, const char *target);
/* Returns whether the instruction passes shardings on at this level. */
bool spread_passes(const IrInstruction *instruction, int32_t level);

/* Improves a leaf, or all leaves by `from` [leaves; NULL: no news]; returns whether one changed. */
bool spread_improve_leaf(Spread *self, int32_t i, int32_t leaf, const Tiles *from, bool may_reshard);
/* Improves all leaves of an instruction by one sharding. */
bool spread_improve_all(Spread *self, int32_t i, const Tiles *from, bool may_reshard);

/* Takes news from operands or users; returns whether the sharding changed. */
bool spread_from_operands(Spread *self, int32_t i);
bool spread_from_users(Spread *self, int32_t i);
/* Finds the sharding that the user at `use` of users[] implies for `i`: out[leaf], NULL without one. Returns
 * false without any. */
bool spread_from_user(Spread *self, int32_t i, int32_t use, int32_t level, const Tiles **out);

/* Reads groups and open dimensions from the annotations of the module. */
AmStatus spread_read_groups(Spread *self, AmError *error);
/* Refines a given sharding along its open dimensions; returns whether it changed. */
bool spread_refine(Spread *self, int32_t i, const Tiles *found);
bool spread_refine_from_users(Spread *self, int32_t i);
/* Takes news from the other members of the group; returns whether the sharding changed. */
bool spread_from_group(Spread *self, int32_t i);
/* Gives the members of each shard_as group one sharding. */
void spread_align_groups(Spread *self);

/* Spread products: dot and convolution. */
bool spread_product_result(Spread *self, int32_t i);
const Tiles *spread_product_operand(Spread *self, int32_t user, int32_t operand);

/* Spread gather and scatter. */
bool spread_gather_result(Spread *self, int32_t i);
bool spread_scatter_result(Spread *self, int32_t i);
const Tiles *spread_gather_operand(Spread *self, int32_t user, int32_t operand);
const Tiles *spread_scatter_operand(Spread *self, int32_t user, int32_t operand);

#endif
