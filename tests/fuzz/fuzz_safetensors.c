/* Safetensors headers. Beyond not crashing: whatever is accepted must be JSON to jansson too, must tile the data, and
 * must come out of our own writer and back unchanged. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "rotq/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition) {
    if (!condition) abort();
}

/* jansson keeps numbers in 64 bits and double, so it may refuse one that we only skip. */
static void must_be_json(const char *text, size_t size) {
    json_error_t error;
    json_t *json = json_loadb(text, size, 0, &error);
    must(json || json_error_code(&error) == json_error_numeric_overflow);
    json_decref(json);
}

static void must_tile(const rq_tensor_info *infos, size_t count, uint64_t data_bytes) {
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        must(infos[i].offset == at && infos[i].rank <= RQ_MAX_RANK && strlen(infos[i].name) < SIZE_MAX);
        at += infos[i].bytes;
    }
    must(at == data_bytes);
}

static void must_survive_writing(rq_tensor_info *infos, size_t count, uint64_t data_bytes) {
    char *header = NULL;
    size_t bytes = 0, n = 0;
    rq_tensor_info *again = NULL;
    must(rq_safetensors_build_header(infos, count, NULL, &header, &bytes, NULL) == RQ_OK);
    must(rq_safetensors_parse_header("again", header + 8, bytes - 8, data_bytes, &again, &n, NULL) == RQ_OK);
    must(n == count && bytes % 8 == 0);
    free(again);
    free(header);
}

/* The first 2 bytes say how many data bytes follow the header, so that both sides can be made to agree. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rq_tensor_info *infos = NULL;
    size_t count = 0;
    rq_error err;
    if (size < 2) return 0;
    const uint64_t data_bytes = (uint64_t)data[0] | (uint64_t)data[1] << 8;
    const char *text = (const char *)data + 2;
    if (rq_safetensors_parse_header("fuzz", text, size - 2, data_bytes, &infos, &count, &err) != RQ_OK) {
        must(err.status != RQ_OK && err.message[0]);
        return 0;
    }
    must_be_json(text, size - 2);
    must_tile(infos, count, data_bytes);
    must_survive_writing(infos, count, data_bytes);
    free(infos);
    return 0;
}
