/* Uses an installed librotq as a stranger would: nothing but <rotq/rotq.h> and pkg-config. */
#include <rotq/rotq.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    rq_error err = {0};
    rq_rotation q = {0};
    rq_quant_format format;
    if (strcmp(rq_version(), ROTQ_VERSION) != 0) {
        fprintf(stderr, "library %s, headers %s\n", rq_version(), ROTQ_VERSION);
        return 1;
    }
    if (rq_rotation_hadamard(576, 1, 0, &q, &err) != RQ_OK || rq_rotation_orthogonality_error(&q) > 1e-12) {
        fprintf(stderr, "a Hadamard rotation of order 576: %s\n", err.message);
        return 1;
    }
    rq_rotation_deinit(&q);
    if (rq_quant_format_make(RQ_AFFINE, 7, 64, &format, &err) != RQ_ERR_USAGE || !strstr(err.message, "7")) {
        fprintf(stderr, "7 bits were not refused by name: %s\n", err.message);
        return 1;
    }
    printf("%s\n", rq_version());
    return 0;
}
