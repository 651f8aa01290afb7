/* XML by expat, as a tree of elements with their attributes; text is ignored.
 *
 * A document's own entities are refused, and depth and number of elements are bounded, so that a
 * small file cannot become a large tree.
 */
#include <stdio.h>
#include <string.h>

#include "cost/cluster_import/import.h"

const char *xml_attribute(const XmlElement *element, const char *name) {
    for (int32_t k = 0; element->attributes[k]; k += 2)
        if (strcmp(element->attributes[k], name) == 0) return element->attributes[k + 1];
    return NULL;
}

const char *xml_path(Arena *arena, const XmlElement *element) {
    if (!element->parent) return arena_format(arena, "/%s", element->name);
    int32_t before = 0;
    for (const XmlElement *c = element->parent->first_child; c != element; c = c->next)
        before += strcmp(c->name, element->name) == 0;
    const char *path =
        arena_format(arena, "%s/%s[%d]", xml_path(arena, element->parent), element->name, before);
    return path ? path : "";
}

#ifdef AUTOMAP_HAVE_EXPAT
#include <expat.h>

enum { MOST_ELEMENTS = 1 << 16, DEEPEST = 64 };

typedef struct XmlReader {
    XML_Parser parser;
    Arena *arena;
    XmlElement *root, *open;
    int32_t count, depth;
    const char *fault;
} XmlReader;

static void stop(XmlReader *self, const char *fault) {
    if (!self->fault) self->fault = fault;
    XML_StopParser(self->parser, XML_FALSE);
}

static void start_element(void *user, const XML_Char *name, const XML_Char **attributes) {
    XmlReader *self = user;
    if (++self->count > MOST_ELEMENTS || ++self->depth > DEEPEST) {
        stop(self, "too many elements");
        return;
    }
    int32_t count = 0;
    while (attributes[count]) count++;
    XmlElement *element = ARENA_ARRAY(self->arena, XmlElement, 1);
    const char **copies = ARENA_ARRAY(self->arena, const char *, count + 1);
    const char *name_copy = arena_copy_string(self->arena, name);
    for (int32_t k = 0; k < count && copies; k++) copies[k] = arena_copy_string(self->arena, attributes[k]);
    if (self->arena->failed) {
        stop(self, "no memory");
        return;
    }
    *element = (XmlElement){.name = name_copy, .attributes = copies, .parent = self->open};
    if (!self->open) self->root = element;
    else if (self->open->last_child) self->open->last_child->next = element;
    else self->open->first_child = element;
    if (self->open) self->open->last_child = element;
    self->open = element;
}

static void end_element(void *user, const XML_Char *name) {
    XmlReader *self = user;
    (void)name;
    self->depth--;
    if (self->open) self->open = self->open->parent;
}

static void entity_declaration(void *user, const XML_Char *name, int is_parameter, const XML_Char *value,
                               int length, const XML_Char *base, const XML_Char *system,
                               const XML_Char *public_name, const XML_Char *notation) {
    (void)name, (void)is_parameter, (void)value, (void)length, (void)base;
    (void)system, (void)public_name, (void)notation;
    stop(user, "entities are not read");
}

AmStatus import_xml(Import *import, const FileBytes *file, AmError *error) {
    XmlElement *root = NULL;
    XmlReader self = {.parser = XML_ParserCreate(NULL), .arena = import->arena};
    if (!self.parser) return am_fail_memory(error, 0);
    XML_SetUserData(self.parser, &self);
    XML_SetElementHandler(self.parser, start_element, end_element);
    XML_SetEntityDeclHandler(self.parser, entity_declaration);
    AmStatus status = AM_OK;
    enum { PIECE = 1 << 20 };
    for (int64_t at = 0; status == AM_OK && at < file->length; at += PIECE) {
        int64_t left = file->length - at;
        int length = (int)(left < PIECE ? left : PIECE);
        if (XML_Parse(self.parser, file->data + at, length, left <= PIECE) == XML_STATUS_OK) continue;
        bool has_memory = XML_GetErrorCode(self.parser) != XML_ERROR_NO_MEMORY && !import->arena->failed;
        if (!has_memory) status = am_fail_memory(error, length);
        const char *fault = self.fault ? self.fault : XML_ErrorString(XML_GetErrorCode(self.parser));
        if (has_memory)
            status = am_fail_at(error, AM_ERROR_INPUT, file->name, file->data, file->length,
                                (int64_t)XML_GetCurrentByteIndex(self.parser), "XML: %s", fault);
    }
    XML_ParserFree(self.parser);
    root = self.root;
    TRY(status);
    if (!root) return am_fail(error, AM_ERROR_INPUT, file->name, "expected an XML element");
    if (strcmp(root->name, "system") == 0) return import_nccl(import, root, file->name, error);
    if (strcmp(root->name, "topology") == 0) return import_hwloc(import, root, file->name, error);
    return am_fail(error, AM_ERROR_INPUT, file->name,
                   "expected the XML of NCCL's topology (<system>) or hwloc's (<topology>), found <%s>",
                   root->name);
}

#else

AmStatus import_xml(Import *import, const FileBytes *file, AmError *error) {
    (void)import;
    return am_fail(error, AM_ERROR_RUNTIME, file->name,
                   "XML: this build cannot read it (libexpat was not found when it was configured)");
}

#endif
