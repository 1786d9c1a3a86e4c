/* The rotation sidecar: any bytes give a status, never a crash, and never more memory than the limits of
 * rotate/limits.h allow. What is accepted must be written back and read again as the same text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rotq/rotation.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rq_rotation_set set, again;
    rq_error err;
    char *text = NULL, *text_again = NULL;
    if (rq_rotation_set_parse((const char *)data, size, NULL, &set, &err) != RQ_OK) return 0;
    if (rq_rotation_set_json(&set, &text, &err) != RQ_OK) abort();
    if (rq_rotation_set_parse(text, strlen(text), NULL, &again, &err) != RQ_OK) abort();
    if (rq_rotation_set_json(&again, &text_again, &err) != RQ_OK || strcmp(text, text_again) != 0) abort();
    free(text);
    free(text_again);
    rq_rotation_set_deinit(&set);
    rq_rotation_set_deinit(&again);
    return 0;
}
