/* Names of repeated layers, written as ranges: "params['layer'][{0..5,12}]['kernel']". */
#include "planners/explain/layer_names.h"

#include <string.h>

void layer_name_add(Arena *arena, LayerName *name, int64_t number) {
    int32_t at = name->count;
    if (number < 0) return;
    while (at > 0 && name->numbers[at - 1] > number) at--;
    if (at > 0 && name->numbers[at - 1] == number) return;
    ARENA_RESERVE(arena, name->numbers, name->count, name->capacity);
    if (!name->numbers) return;
    memmove(name->numbers + at + 1, name->numbers + at, sizeof *name->numbers * (size_t)(name->count - at));
    name->numbers[at] = number;
    name->count++;
}

void layer_name_append(Text *text, const LayerName *name, int32_t end) {
    text_append_bytes(text, name->path.path, (size_t)name->path.before);
    if (name->count > 1) text_append_string(text, "{");
    for (int32_t first = 0, next; first < name->count; first = next) {
        for (next = first + 1; next < name->count && name->numbers[next] == name->numbers[next - 1] + 1;)
            next++;
        text_append(text, first > 0 ? ",%lld" : "%lld", (long long)name->numbers[first]);
        if (next - first > 1) text_append(text, "..%lld", (long long)name->numbers[next - 1]);
    }
    if (name->count > 1) text_append_string(text, "}");
    if (end > name->path.after)
        text_append_bytes(text, name->path.path + name->path.after, (size_t)(end - name->path.after));
}
