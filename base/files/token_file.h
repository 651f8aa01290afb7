/* Files of tokens: one long row of vocabulary indices, read in pieces.
 *
 *   raw         u16 after u16, as nanoGPT writes them; with the suffix .u32, u32 after u32
 *   llm.c       a header of 256 int32: 20240520, 1, count, then u16; 20240801, 7, count, then u32
 *   Megatron    NAME.bin holds the documents one after the other, NAME.idx their number, lengths and
 *               type; either may be named
 *   numpy       a .npy of one dimension, of integers
 *
 * All numbers are little-endian. The first bytes identify a file; raw files, which have no header,
 * need the suffix .bin, .u16 or .u32.
 */
#ifndef BASE_FILES_TOKEN_FILE_H
#define BASE_FILES_TOKEN_FILE_H

#include <stdbool.h>

#include "base/dtype.h"
#include "base/files/file_part.h"

typedef struct TokenFile {
    FileParts file;
    char *path;         /* C heap; of the file that has the tokens */
    const char *format; /* "raw", "llm.c", "Megatron" or "numpy" */
    Dtype type;         /* of a token: an integer of 8 to 64 bits */
    int64_t start;      /* byte of the first token */
    int64_t count;
    int64_t documents; /* Megatron's; 0: not known */
} TokenFile;

/* Returns whether the file is one of these, by its first bytes and its name. False too where it cannot be
 * read. */
bool token_file_is(const char *path);

/* Opens a file. AM_ERROR_INPUT names the problem and its position; `file` is then closed. */
AmStatus token_file_open(TokenFile *file, const char *path, AmError *error);
void token_file_close(TokenFile *file);

/* Tokens first .. first + count - 1 into tokens[count]; `bytes` has room for count * 8. A token below 0 or
 * not below `limit` (0: none) is refused with its place and value: AM_ERROR_INPUT. AM_ERROR_RUNTIME: the file
 * cannot be read, or has changed. */
AmStatus token_file_read(const TokenFile *file, int64_t first, int64_t count, int64_t limit, void *bytes,
                         int64_t *tokens, AmError *error);

#endif
