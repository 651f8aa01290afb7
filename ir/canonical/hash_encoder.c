/* The feed of the hash: numbers as eight bytes, all else with its length first,
 * gathered in a buffer because most values are small. */
#include "ir/canonical/hash_encoder.h"

#include <string.h>

void ir_feed_begin(IrFeed *feed) {
    feed->used = 0;
    sha256_begin(&feed->sha);
}

static void feed_add(IrFeed *feed, const void *bytes, size_t count) {
    if (count > sizeof feed->buffer - feed->used) {
        sha256_add(&feed->sha, feed->buffer, feed->used);
        feed->used = 0;
    }
    if (count > sizeof feed->buffer) {
        sha256_add(&feed->sha, bytes, count);
    } else {
        memcpy(feed->buffer + feed->used, bytes, count);
        feed->used += count;
    }
}

void ir_feed_end(IrFeed *feed, char hex[65]) {
    sha256_add(&feed->sha, feed->buffer, feed->used);
    sha256_end(&feed->sha, hex);
}

void ir_feed_integer(IrFeed *feed, int64_t value) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)value >> (8 * i));
    feed_add(feed, bytes, sizeof bytes);
}

void ir_feed_integers(IrFeed *feed, const int64_t *values, int64_t count) {
    if (!values) count = 0;
    ir_feed_integer(feed, count);
    for (int64_t i = 0; i < count; i++) ir_feed_integer(feed, values[i]);
}

void ir_feed_bytes(IrFeed *feed, const void *bytes, size_t count) {
    ir_feed_integer(feed, (int64_t)count);
    if (count > 0) feed_add(feed, bytes, count);
}

void ir_feed_string(IrFeed *feed, const char *text) {
    ir_feed_bytes(feed, text ? text : "", text ? strlen(text) : 0);
}
