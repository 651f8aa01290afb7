/* Local memory of the kernels in a cubin, read from the attributes of its ELF file.
 *
 * ptxas writes the stack frame of every function into section .nv.info as attribute
 * 0x11 (symbol, bytes). A frame holds spilled registers, arrays with indices that are
 * unknown at compile time, and copies of parameters: all of it is local memory, which is a part of the device
 * memory. A kernel without it has a frame of 0 bytes.
 */
#ifndef TESTS_SUPPORT_CUBIN_CASE_H
#define TESTS_SUPPORT_CUBIN_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cuda/nvrtc.h"

enum { CUBIN_FRAME_SIZE = 0x11, CUBIN_SIZED = 4, CUBIN_ARCHITECTURES = 3 };

/* Each has machine code of its own. */
static const int32_t cubin_architectures[CUBIN_ARCHITECTURES] = {80, 90, 100};

typedef struct CubinFrame {
    const char *name; /* of a kernel, or of a function that was not inlined */
    uint32_t bytes;
} CubinFrame;

/* Returns whether the name is in the cubin or PTX. */
static inline bool cubin_holds(const CudaImage *image, const char *name) {
    int64_t length = (int64_t)strlen(name);
    for (int64_t at = 0; at + length <= image->bytes; at++)
        if (image->data[at] == name[0] && memcmp(image->data + at, name, (size_t)length) == 0) return true;
    return false;
}

static inline const Elf64_Shdr *cubin_section(const CudaImage *image, const char *name) {
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)(const void *)image->data;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(const void *)(image->data + head->e_shoff);
    const char *names = image->data + sections[head->e_shstrndx].sh_offset;
    for (int32_t k = 0; k < head->e_shnum; k++)
        if (strcmp(names + sections[k].sh_name, name) == 0) return &sections[k];
    fail_msg("the cubin has no section %s", name);
    return NULL;
}

/* Finds the functions of a cubin with a stack frame: at most `most`; returns the number of all. */
static inline int32_t cubin_frames(CubinFrame *frames, int32_t most, const CudaImage *image) {
    const Elf64_Shdr *info = cubin_section(image, ".nv.info");
    const Elf64_Sym *symbols =
        (const Elf64_Sym *)(const void *)(image->data + cubin_section(image, ".symtab")->sh_offset);
    const char *names = image->data + cubin_section(image, ".strtab")->sh_offset;
    const char *at = image->data + info->sh_offset, *end = at + info->sh_size;
    int32_t described = 0, count = 0;
    while (at + 4 <= end) {
        uint32_t words[2];
        uint16_t bytes = 0;
        if (at[0] == CUBIN_SIZED) memcpy(&bytes, at + 2, sizeof bytes);
        if (at[0] == CUBIN_SIZED && at[1] == CUBIN_FRAME_SIZE) {
            memcpy(words, at + 4, sizeof words);
            described++;
            if (words[1] > 0 && count < most)
                frames[count] = (CubinFrame){names + symbols[words[0]].st_name, words[1]};
            count += words[1] > 0;
        }
        at += 4 + bytes;
    }
    assert_true(described > 0);
    return count;
}

/* Returns whether the frame is of rare paths in CUDA's arithmetic: a function for divisions of extreme
 * numbers or large angles that ptxas adds, or the array with which sine, cosine and tangent reduce large
 * angles. `unit`: the text with the kernel. */
static inline bool cubin_frame_is_rare(const CubinFrame *frame, const char *unit) {
    enum { MOST_BYTES = 48 }; /* 40 by NVRTC 13.0, 48 by 12.4 */
    static const char *const names[] = {" sin", " cos", " tan", "(sin", "(cos", "(tan", "complex_"};
    const char *kernel = strstr(unit, frame->name);
    if (strstr(frame->name, "$__internal_")) return true;
    if (!kernel || frame->bytes > MOST_BYTES) return false;
    size_t length = (size_t)(strstr(kernel, "\n}\n") - kernel);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        const char *at = strstr(kernel, names[k]);
        if (at && at < kernel + length) return true;
    }
    return false;
}

/* Compiles a text for an architecture and fails if a function has a stack frame. Returns false
 * where NVRTC does not know the architecture. `image` may be NULL. */
static inline bool cubin_check(CudaImage *image, Arena *arena, const char *title, const char *unit,
                               int32_t architecture) {
    enum { MOST = 256 };
    AmError error = {0};
    CudaImage own;
    CubinFrame frames[MOST];
    int32_t found = 0;
    if (!image) image = &own;
    if (cuda_compile(image, arena, unit, architecture, &error) != AM_OK)
        fail_msg("%s: sm_%d: %s", title, architecture, error.text);
    if (image->log[0]) fail_msg("%s: sm_%d: %s", title, architecture, image->log);
    if (memcmp(image->data, ELFMAG, SELFMAG) != 0) return false;
    int32_t count = cubin_frames(frames, MOST, image);
    assert_true(count <= MOST);
    for (int32_t k = 0; k < count; k++) {
        if (cubin_frame_is_rare(&frames[k], unit)) continue;
        print_error("%s: sm_%d: %s has %u bytes of local memory\n", title, architecture, frames[k].name,
                    frames[k].bytes);
        found++;
    }
    if (found > 0) fail_msg("%s: sm_%d: %d functions with local memory", title, architecture, found);
    return true;
}

#endif
