#include "rotq/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
    bool is_float;
} dtypes[RQ_DTYPE_COUNT] = {
#define ROW(name, text, bytes, is_float) {text, bytes, is_float},
    RQ_DTYPE_LIST(ROW)
#undef ROW
};

const char *rq_dtype_name(rq_dtype dtype) { return dtypes[dtype].name; }

size_t rq_dtype_bytes(rq_dtype dtype) { return dtypes[dtype].bytes; }

bool rq_dtype_is_float(rq_dtype dtype) { return dtypes[dtype].is_float; }

bool rq_dtype_parse(const char *name, rq_dtype *dtype) {
    for (int i = 0; i < RQ_DTYPE_COUNT; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            *dtype = (rq_dtype)i;
            return true;
        }
    return false;
}
