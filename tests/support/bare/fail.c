/* rq_set_error without the rest of the library's base (no OpenSSL for the cross-compiled kernel tests). */
#include <stdarg.h>
#include <stdio.h>

#include "rotq/error.h"

void rq_set_error(rq_error *err, rq_status status, const char *format, ...) {
    if (!err) return;
    va_list args;
    va_start(args, format);
    err->status = status;
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
}
