/* The encoder of the hash: numbers as eight bytes, all else with its length first,
 * gathered in a buffer because most values are small. */
#include "ir/canonical/hash_encoder.h"

#include <string.h>

void ir_encode_begin(IrHashEncoder *encoder) {
    encoder->used = 0;
    sha256_begin(&encoder->sha);
}

static void feed_add(IrHashEncoder *encoder, const void *bytes, size_t count) {
    if (count > sizeof encoder->buffer - encoder->used) {
        sha256_add(&encoder->sha, encoder->buffer, encoder->used);
        encoder->used = 0;
    }
    if (count > sizeof encoder->buffer) {
        sha256_add(&encoder->sha, bytes, count);
    } else {
        memcpy(encoder->buffer + encoder->used, bytes, count);
        encoder->used += count;
    }
}

void ir_encode_end(IrHashEncoder *encoder, char hex[65]) {
    sha256_add(&encoder->sha, encoder->buffer, encoder->used);
    sha256_end(&encoder->sha, hex);
}

void ir_encode_integer(IrHashEncoder *encoder, int64_t value) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)value >> (8 * i));
    feed_add(encoder, bytes, sizeof bytes);
}

void ir_encode_integers(IrHashEncoder *encoder, const int64_t *values, int64_t count) {
    if (!values) count = 0;
    ir_encode_integer(encoder, count);
    for (int64_t i = 0; i < count; i++) ir_encode_integer(encoder, values[i]);
}

void ir_encode_bytes(IrHashEncoder *encoder, const void *bytes, size_t count) {
    ir_encode_integer(encoder, (int64_t)count);
    if (count > 0) feed_add(encoder, bytes, count);
}

void ir_encode_string(IrHashEncoder *encoder, const char *text) {
    ir_encode_bytes(encoder, text ? text : "", text ? strlen(text) : 0);
}
