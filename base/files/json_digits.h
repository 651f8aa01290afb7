/* Measured numbers in JSON: 0.12345678 becomes 0.1235. */
#ifndef BASE_FILES_JSON_DIGITS_H
#define BASE_FILES_JSON_DIGITS_H

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

/* Returns the number in four digits, since more are noise; the caller's reference. */
static inline json_t *json_four_digits(double value) {
    char text[32];
    snprintf(text, sizeof text, "%.4g", value);
    return json_real(strtod(text, NULL));
}

#endif
