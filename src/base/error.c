#include "rotq/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "rotq/rotq.h"

static const struct {
    const char *text;
    int exit_code;
} statuses[] = {
#define ROW(name, text, code) {text, code},
    RQ_STATUS_LIST(ROW)
#undef ROW
};

const char *rq_version(void) { return ROTQ_VERSION; }

const char *rq_status_text(rq_status status) { return statuses[status].text; }

int rq_status_exit_code(rq_status status) { return statuses[status].exit_code; }

void rq_set_error(rq_error *err, rq_status status, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        err->status = status;
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
    }
}

void rq_note_add(rq_notes *notes, rq_note_level level, const char *code, const char *format, ...) {
    if (!notes) return;
    if (notes->count == notes->capacity) {
        const size_t capacity = notes->capacity ? 2 * notes->capacity : 16;
        rq_note *items = realloc(notes->items, capacity * sizeof *items);
        if (!items) {
            notes->lost++;
            return;
        }
        notes->items = items;
        notes->capacity = capacity;
    }
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    rq_note note = {level, rq_strdup(code), rq_strdup(text)};
    if (!note.code || !note.text) {
        free(note.code);
        free(note.text);
        notes->lost++;
        return;
    }
    notes->items[notes->count++] = note;
}

void rq_notes_deinit(rq_notes *notes) {
    if (!notes) return;
    for (size_t i = 0; i < notes->count; i++) {
        free(notes->items[i].code);
        free(notes->items[i].text);
    }
    free(notes->items);
    *notes = (rq_notes){0};
}
