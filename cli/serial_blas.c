/* Keeps OpenBLAS from starting threads of its own.
 *
 * The constructor of libopenblas starts one thread per core. Under a limit on address space such a thread
 * repeats its request for a buffer of 128 MB without end, and exit() waits for it; where the thread cannot
 * start, OpenBLAS raises SIGINT. automap divides products over its own threads, so one BLAS thread is enough.
 * The constructor runs before main() and before any function of the program, so that a variable of the
 * environment comes too late: the program defines the function by which the library reads its number of
 * threads. A dynamic loader prefers the program's definition; in a static link the library's own one wins
 * over this weak one.
 */
int openblas_num_threads_env(void);

__attribute__((weak, visibility("default"))) int openblas_num_threads_env(void) {
    return 1;
}
