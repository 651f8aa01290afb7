/* The program of a test of CUDA in a build without CUDA: it is shown as skipped. */
#ifndef TESTS_SUPPORT_WITHOUT_CUDA_H
#define TESTS_SUPPORT_WITHOUT_CUDA_H

#include <stdio.h>

int main(void) {
    puts("skipped: built without CUDA");
    return 77;
}

#endif
