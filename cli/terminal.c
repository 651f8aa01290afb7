/* The terminal: colours, and a progress line that is drawn at most ten times a second.
 *
 * Colours follow --color, NO_COLOR and the kind of the stream. A line is cut to the width of the terminal,
 * by characters and not by bytes.
 */
#define _DEFAULT_SOURCE
#include "cli/terminal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const double SECONDS_BETWEEN_DRAWINGS = 0.1;

bool terminal_is_styled(const Cli *cli, FILE *stream) {
    const char *wanted = cli ? cli_text(cli, "--color") : NULL;
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    if (wanted && strcmp(wanted, "always") == 0) return true;
    if (wanted && strcmp(wanted, "never") == 0) return false;
    if ((no_color && *no_color) || (term && strcmp(term, "dumb") == 0)) return false;
    return isatty(fileno(stream));
}

bool terminal_output_is_styled(const Cli *cli) {
    const char *path = cli_text(cli, "-o");
    bool is_stdout = !path || strcmp(path, "-") == 0;
    return is_stdout && !cli_has(cli, "--json") && terminal_is_styled(cli, stdout);
}

static const char *color_name(int32_t k) {
    static const char *const names[] = {"auto", "always", "never"};
    return names[k];
}

AmStatus terminal_check_color(const Cli *cli, AmError *error) {
    int32_t choice;
    return cli_choice(cli, "--color", color_name, 3, &choice, error);
}

void terminal_line_open(TerminalLine *line, const Cli *cli) {
    const char *term = getenv("TERM");
    *line = (TerminalLine){0};
    line->is_shown = isatty(2) && !cli_has(cli, "--quiet") && !(term && strcmp(term, "dumb") == 0);
}

bool terminal_line_is_due(TerminalLine *line, double now) {
    return line->is_shown && !(line->is_drawn && now - line->drawn < SECONDS_BETWEEN_DRAWINGS);
}

void terminal_line_draw(TerminalLine *line, const char *text, double now) {
    struct winsize size;
    size_t length = strlen(text);
    pid_t group = tcgetpgrp(2); /* -1: not the controlling terminal */
    bool is_in_background = group != -1 && group != getpgrp();
    if (!line->is_shown || is_in_background) return;
    /* A line that is wider than the terminal cannot be wiped out. */
    if (ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 1) {
        size_t columns = size.ws_col - 1u; /* of characters, each a byte and its continuation */
        for (length = 0; text[length]; length++)
            if (((unsigned char)text[length] & 0xC0) != 0x80 && columns-- == 0) break;
    }
    fprintf(stderr, "\r%.*s\033[K", (int)length, text);
    fflush(stderr);
    line->is_drawn = true;
    line->drawn = now;
}

void terminal_line_clear(TerminalLine *line) {
    if (!line->is_drawn) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    line->is_drawn = false;
}

void terminal_append_time(Text *text, double seconds) {
    int64_t minutes = (int64_t)(seconds / 60);
    if (minutes >= 60)
        text_append(text, "%lld h %02lld min", (long long)minutes / 60, (long long)minutes % 60);
    else if (minutes > 0) text_append(text, "%lld min", (long long)minutes);
    else text_append(text, "%.0f s", ceil(seconds));
}
