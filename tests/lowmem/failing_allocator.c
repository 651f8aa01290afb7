/* A module for LD_PRELOAD that makes allocations fail, one after the other.
 *
 * Before an allocation that will fail the process forks. In the child malloc, calloc, realloc or an
 * anonymous mmap returns NULL, once or from then on, and the child's end is checked; the parent
 * waits and continues. One run of a command thus tests all its allocations. By default only the
 * first FAILING_REPEATS allocations of each call stack fail. Settings come from the environment:
 *
 *   FAILING_REPORT   file for the result: one line of counts; before it one line per failure with both stacks
 *   FAILING_DEPTH    frames of a call stack that count (default 12)
 *   FAILING_REPEATS  failures per call stack (default 1; 0: every allocation fails)
 *   FAILING_SHARE    of N call stacks one is tried (default 1: each)
 *   FAILING_OUTPUT   text file that must be complete, up to its last line end, if it exists after a
 *                    child's failure
 *   FAILING_AT       plain mode for programs of several threads: allocation number N fails in this
 *                    process, without a fork
 *   FAILING_ON       1: plain mode fails from N on
 *
 * A child must end with exit code 0, or with 1 to 5 and one line (at most three with an excerpt) on
 * stderr.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);

enum { MOST_FRAMES = 24, STACKS = 1 << 20, MOST_FILES = 64, SPIN_WAIT_SECONDS = 15 };

static struct {
    bool is_armed, is_child, fails_on, is_plain;
    int depth, repeats, share, report, mode;
    long at, counted, tried, exits[6], bad;
    pid_t owner;
    const char *output;
    void *frames[MOST_FRAMES];
    int frame_count;
} state;
static struct {
    uint64_t hash;
    uint32_t seen;
} stacks[STACKS];
static __thread bool is_inside;

static void write_stack(int file, void **frames, int count) {
    bool before = is_inside;
    is_inside = true;
    backtrace_symbols_fd(frames, count, file);
    is_inside = before;
}

/* In a child: reports where it was struck, then dies by the same signal. */
static void report_signal(int number) {
    void *frames[MOST_FRAMES];
    is_inside = true;
    int count = backtrace(frames, MOST_FRAMES);
    dprintf(state.report, "signal %d in\n", number);
    write_stack(state.report, frames, count);
    is_inside = true;
    signal(number, SIG_DFL);
    raise(number);
}

static void catch_signals(void) {
    static char room[1 << 16];
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM};
    stack_t other = {.ss_sp = room, .ss_size = sizeof room};
    sigaltstack(&other, NULL);
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        struct sigaction action = {.sa_handler = report_signal, .sa_flags = SA_ONSTACK | SA_RESETHAND};
        sigaction(numbers[k], &action, NULL);
    }
    alarm(SPIN_WAIT_SECONDS);
}

/* True: this allocation has been seen so often that it does not fail. */
static bool is_known(void) {
    uint64_t hash = 1469598103934665603u;
    int depth = state.frame_count < state.depth ? state.frame_count : state.depth;
    for (int k = 2; k < depth; k++) hash = (hash ^ (uintptr_t)state.frames[k]) * 1099511628211u;
    if (state.share > 1 && (hash >> 20) % (uint64_t)state.share) return true;
    if (state.repeats == 0) return false;
    for (uint64_t k = hash % STACKS, tries = 0; tries < STACKS; k = (k + 1) % STACKS, tries++) {
        if (stacks[k].seen && stacks[k].hash != hash) continue;
        stacks[k].hash = hash;
        return stacks[k].seen++ >= (uint32_t)state.repeats;
    }
    return true;
}

static bool is_complete(const char *path) {
    char last = '\0';
    int file = open(path, O_RDONLY);
    bool is_read = file >= 0 && lseek(file, -1, SEEK_END) >= 0 && read(file, &last, 1) == 1;
    if (file >= 0) close(file);
    return is_read && last == '\n';
}

/* Checks a child's end; its output on stderr is in `errors`. */
static void judge(int status, int errors) {
    static char text[4096];
    char why[64] = "";
    ssize_t got = pread(errors, text, sizeof text - 1, 0);
    int lines = 0;
    text[got > 0 ? got : 0] = '\0';
    for (char *c = text; *c; c++) lines += *c == '\n';
    state.tried++;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code < 0) snprintf(why, sizeof why, "signal %d", WTERMSIG(status));
    else if (code > 5) snprintf(why, sizeof why, "exit code %d", code);
    else if (code > 0 && (lines < 1 || lines > 3))
        snprintf(why, sizeof why, "exit code %d, %d lines", code, lines);
    else if (code > 1) snprintf(why, sizeof why, "exit code %d, expected 0 or 1", code);
    else if (code > 0 && state.output && access(state.output, F_OK) == 0 && !is_complete(state.output))
        snprintf(why, sizeof why, "exit code %d, but a part of the output is there", code);
    if (code >= 0 && code <= 5) state.exits[code]++;
    if (!*why) return;
    state.bad++;
    dprintf(state.report, "BAD %s: allocation %ld%s: %.300s\nfailed at\n", why, state.counted,
            state.mode ? " and all after it" : "", text);
    write_stack(state.report, state.frames, state.frame_count);
}

/* An open regular file, which the child shares: the child's changes are undone. */
typedef struct OpenFile {
    off_t offset, bytes;
    bool is_written;
    char path[512], kept[520]; /* of a file that is written: its name, and a second one */
} OpenFile;

static OpenFile files[MOST_FILES];

static void keep_files(void) {
    for (int k = 3; k < MOST_FILES; k++) {
        OpenFile *file = &files[k];
        struct stat facts;
        char link_name[32];
        *file = (OpenFile){.offset = -1};
        if (k == state.report || fstat(k, &facts) != 0 || !S_ISREG(facts.st_mode)) continue;
        file->offset = lseek(k, 0, SEEK_CUR);
        file->bytes = facts.st_size;
        file->is_written = (fcntl(k, F_GETFL) & O_ACCMODE) != O_RDONLY;
        if (!file->is_written) continue;
        snprintf(link_name, sizeof link_name, "/proc/self/fd/%d", k);
        ssize_t length = readlink(link_name, file->path, sizeof file->path - 1);
        file->path[length > 0 ? length : 0] = '\0';
        snprintf(file->kept, sizeof file->kept, "%s.kept", file->path);
        if (link(file->path, file->kept) != 0) file->path[0] = '\0';
    }
}

static void restore_files(void) {
    for (int k = 3; k < MOST_FILES; k++) {
        OpenFile *file = &files[k];
        if (file->offset < 0) continue;
        lseek(k, file->offset, SEEK_SET);
        if (!file->is_written || ftruncate(k, file->bytes) != 0 || !file->path[0]) continue;
        if (access(file->path, F_OK) == 0) unlink(file->kept);
        else if (rename(file->kept, file->path) != 0)
            dprintf(state.report, "BAD cannot restore %s\n", file->path);
    }
}

/* True in the child, whose allocation fails. */
static bool fork_and_judge(int mode) {
    int errors = memfd_create("errors", 0);
    keep_files();
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        dup2(errors, 2);
        state.is_child = true;
        state.fails_on = mode == 1;
        state.mode = mode;
        catch_signals();
        return true;
    }
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    state.mode = mode;
    if (child > 0) judge(status, errors);
    close(errors);
    restore_files();
    return false;
}

static bool must_fail(void) {
    if (!state.is_armed || is_inside) return false;
    if (state.is_child) return state.fails_on;
    if (state.is_plain) {
        long number = __atomic_add_fetch(&state.counted, 1, __ATOMIC_RELAXED);
        return state.at > 0 && (number == state.at || (state.fails_on && number > state.at));
    }
    if (getpid() != state.owner || gettid() != getpid()) return false;
    int error = errno;
    state.counted++;
    is_inside = true;
    state.frame_count = backtrace(state.frames, MOST_FRAMES);
    bool fails = !is_known() && (fork_and_judge(0) || fork_and_judge(1));
    is_inside = false;
    errno = error;
    if (fails) errno = ENOMEM;
    return fails;
}

static void *fail(void) {
    errno = ENOMEM;
    return NULL;
}

void *malloc(size_t bytes) {
    return must_fail() ? fail() : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
    return must_fail() ? fail() : __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes) {
    return must_fail() ? fail() : __libc_realloc(old, bytes);
}

void *mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset) {
    if ((flags & MAP_ANONYMOUS) && must_fail()) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, file, offset);
}

/* A child's file that has no name yet is the parent's, too: it does not get one. */
int linkat(int old_folder, const char *old, int new_folder, const char *name, int flags) {
    if (state.is_child) return 0;
    return (int)syscall(SYS_linkat, old_folder, old, new_folder, name, flags);
}

int rename(const char *old, const char *name) {
    if (state.is_child && access(old, F_OK) != 0) return 0;
    return (int)syscall(SYS_rename, old, name);
}

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

__attribute__((constructor)) static void begin(void) {
    const char *report = getenv("FAILING_REPORT");
    void *frames[2];
    if (!report) return;
    backtrace(frames, 2); /* loads its library */
    state.report = open(report, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0666);
    state.depth = (int)setting("FAILING_DEPTH", 12) + 2;
    state.repeats = (int)setting("FAILING_REPEATS", 1);
    state.share = (int)setting("FAILING_SHARE", 1);
    state.at = setting("FAILING_AT", -1);
    state.is_plain = state.at >= 0;
    state.fails_on = state.is_plain && setting("FAILING_ON", 0);
    state.output = getenv("FAILING_OUTPUT");
    state.owner = getpid();
    if (state.is_plain) catch_signals();
    state.is_armed = true;
}

__attribute__((destructor)) static void end(void) {
    if (!state.is_armed || state.is_child || getpid() != state.owner) return;
    state.is_armed = false;
    dprintf(state.report, "COUNTS allocations %ld tried %ld bad %ld exits", state.counted, state.tried,
            state.bad);
    for (int k = 0; k < 6; k++) dprintf(state.report, " %ld", state.exits[k]);
    dprintf(state.report, "\n");
}
