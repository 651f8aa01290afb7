/* Colours and the progress line on terminals.
 *
 * Colours: --color always|never decides; auto, the default, has colours where the stream is a
 * terminal, NO_COLOR is unset or empty and TERM is not "dumb". Files and pipes have
 * none under auto. The progress line is on stderr, drawn over itself, and wiped out
 * before any other line of stderr.
 */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stdio.h>

#include "cli/common.h"

/* Returns whether output of the command to the stream has colours. `cli` may be NULL: auto. */
bool terminal_is_styled(const Cli *cli, FILE *stream);
/* Returns whether the text that the command writes to -o or stdout has colours; JSON has none. */
bool terminal_output_is_styled(const Cli *cli);
/* Returns AM_ERROR_USAGE for --color with another value. */
AmStatus terminal_check_color(const Cli *cli, AmError *error);

/* A line of stderr that is drawn over itself. Zero-initialize, then open; the others do nothing on a line
 * that is not shown. */
typedef struct TerminalLine {
    bool is_shown, is_drawn;
    double drawn; /* clock of the last drawing */
} TerminalLine;

/* Begins a line that is drawn anew, shown where stderr is a terminal, unless --quiet. */
void terminal_line_open(TerminalLine *line, const Cli *cli);
/* Returns true for a line that is shown and was drawn at least a tenth of a second ago. */
bool terminal_line_is_due(TerminalLine *line, double now);
/* Draws the text at clock `now`, cut to the width of the terminal. */
void terminal_line_draw(TerminalLine *line, const char *text, double now);
void terminal_line_clear(TerminalLine *line);

/* Appends "3 h 05 min", "3 min" or "12 s". */
void terminal_append_time(Text *text, double seconds);

#endif
