/* rotq rotation: look at, check, make and write out the rotations of a model. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"

static const char help[] =
    "usage: rotq rotation show FILE|DIR [--json]\n"
    "       rotq rotation verify FILE|DIR [--json]\n"
    "       rotq rotation make --n N --head-dim D --layers L --out DIR [options]\n"
    "       rotq rotation export FILE|DIR --out R.safetensors\n"
    "\n"
    "A rotation sidecar (rotation.json) describes the orthogonal matrices that `rotq convert` folds into a model:\n"
    "R1 on the residual stream and one R2 per layer in head space. Hadamard kinds are rebuilt from a seed; dense\n"
    "matrices are stored in rotation.safetensors beside it. DIR is a directory with a rotation.json.\n"
    "\n"
    "  show     what is in the file; --json prints the sidecar itself in canonical form\n"
    "  verify   rebuild every matrix, compare the digests, and measure max |Q^T Q - I|; the exit status is not 0\n"
    "           when a digest differs (11) or the error is above 1e-10 (Hadamard) or 1e-5 (dense)\n"
    "  make     write a sidecar without converting a model\n"
    "      --n N            hidden size: R1 is [N, N]\n"
    "      --head-dim D     R2 is [D, D]\n"
    "      --layers L       how many R2; not needed with --r2 none\n"
    "      --rotation WHAT  R1: hadamard (default), block:B, random, none, or a sidecar to copy (FILE or DIR)\n"
    "      --r2 WHAT        hadamard (default), random, none\n"
    "      --seed S         0 to 2^63 - 1 (default 0)\n"
    "      --out DIR        created when missing; an existing rotation there is never replaced\n"
    "  export   every matrix written out: F64 tensors R1 and R2.<layer>, for other programs\n"
    "\n"
    "Examples:\n"
    "  rotq rotation verify my-model-4bit\n"
    "  rotq rotation make --n 576 --head-dim 64 --layers 30 --seed 42 --out r\n"
    "  rotq rotation export r --out r/all.safetensors\n";

typedef struct arguments {
    bool json, help;
    const char *out, *rotation, *r2;
    uint64_t n, head_dim, layers, seed;
    const char *const *operands;
    int operand_count;
} arguments;

enum { OPT_JSON = 256, OPT_HELP, OPT_OUT, OPT_ROTATION, OPT_R2, OPT_N, OPT_HEAD_DIM, OPT_LAYERS, OPT_SEED };

static const struct option read_options[] = {
    {"json", no_argument, NULL, OPT_JSON}, {"help", no_argument, NULL, OPT_HELP}, {NULL, 0, NULL, 0}};
static const struct option export_options[] = {
    {"out", required_argument, NULL, OPT_OUT}, {"help", no_argument, NULL, OPT_HELP}, {NULL, 0, NULL, 0}};
static const struct option make_options[] = {{"n", required_argument, NULL, OPT_N},
                                             {"head-dim", required_argument, NULL, OPT_HEAD_DIM},
                                             {"layers", required_argument, NULL, OPT_LAYERS},
                                             {"rotation", required_argument, NULL, OPT_ROTATION},
                                             {"r2", required_argument, NULL, OPT_R2},
                                             {"seed", required_argument, NULL, OPT_SEED},
                                             {"out", required_argument, NULL, OPT_OUT},
                                             {"help", no_argument, NULL, OPT_HELP},
                                             {NULL, 0, NULL, 0}};

static int parse_number(const char *option, const char *text, uint64_t max, uint64_t *out) {
    if (rq_cli_parse_u64(text, max, out)) return 0;
    return rq_cli_usage("--%s \"%s\" is not a whole number from 0 to %" PRIu64, option, text, max);
}

/* 0, or the exit status of a usage error. argv[0] is the word of the action. */
static int parse_arguments(int argc, char **argv, const struct option *options, arguments *a) {
    *a = (arguments){.rotation = "hadamard", .r2 = "hadamard"};
    char command[32];
    snprintf(command, sizeof command, "rotation %s", argv[0]);
    for (int option; (option = rq_cli_next_option(command, argc, argv, ":h", options, NULL)) != -1;) {
        int bad = 0;
        switch (option) {
        case OPT_JSON:
            a->json = true;
            break;
        case 'h':
        case OPT_HELP:
            a->help = true;
            break;
        case OPT_OUT:
            a->out = optarg;
            break;
        case OPT_ROTATION:
            a->rotation = optarg;
            break;
        case OPT_R2:
            a->r2 = optarg;
            break;
        case OPT_N:
            bad = parse_number("n", optarg, UINT32_MAX, &a->n);
            break;
        case OPT_HEAD_DIM:
            bad = parse_number("head-dim", optarg, UINT32_MAX, &a->head_dim);
            break;
        case OPT_LAYERS:
            bad = parse_number("layers", optarg, UINT32_MAX, &a->layers);
            break;
        case OPT_SEED:
            bad = parse_number("seed", optarg, INT64_MAX, &a->seed);
            break;
        default:
            return rq_status_exit_code(RQ_ERR_USAGE);
        }
        if (bad) return bad;
    }
    a->operands = (const char *const *)argv + optind;
    a->operand_count = argc - optind;
    return 0;
}

static bool exists_in(const char *directory, const char *name, rq_error *err) {
    const size_t bytes = strlen(directory) + strlen(name) + 2;
    char *path = malloc(bytes);
    struct stat s;
    if (!path) return false; /* the library will say so a moment later */
    snprintf(path, bytes, "%s/%s", directory, name);
    const bool exists = lstat(path, &s) == 0;
    if (exists) (void)rq_fail(err, RQ_ERR_EXISTS, "%s exists and is not replaced", path);
    free(path);
    return exists;
}

static const char *kind_name(rq_rotation_kind kind) {
    switch (kind) {
    case RQ_ROTATION_HADAMARD:
        return "signed-hadamard";
    case RQ_ROTATION_BLOCK_HADAMARD:
        return "block-hadamard";
    case RQ_ROTATION_DENSE:
        return "dense";
    case RQ_ROTATION_IDENTITY:
        break;
    }
    return "identity";
}

static void print_matrix(const rq_rotation *q) {
    printf("%s, n = %zu", kind_name(q->kind), q->n);
    if (q->kind == RQ_ROTATION_BLOCK_HADAMARD) printf(", block %zu", q->order);
    if (q->hk) printf(" = %zu * 2^%u, H_%zu by %s", q->K, q->m, q->K, q->construction);
}

static void print_set(const rq_rotation_set *set) {
    printf("seed %" PRIu64 "\nR1   ", set->seed);
    print_matrix(&set->r1);
    printf("\nR2   ");
    if (set->r2) {
        print_matrix(&set->r2[0]);
        printf(", %zu layers\n", set->n_layers);
    } else {
        printf("none\n");
    }
}

static int print_json(const rq_rotation_set *set) {
    char *text = NULL;
    rq_error err;
    if (rq_rotation_set_json(set, &text, &err) != RQ_OK) return rq_cli_fail(&err);
    fputs(text, stdout);
    free(text);
    return 0;
}

static int show(const char *operand, bool json) {
    rq_rotation_set set = {0};
    rq_error err;
    if (rq_rotation_set_read(operand, &set, &err) != RQ_OK) return rq_cli_fail(&err);
    int exit_status = 0;
    if (json)
        exit_status = print_json(&set);
    else
        print_set(&set);
    rq_rotation_set_deinit(&set);
    return exit_status;
}

/* ---- verify ---- */

typedef struct measurement {
    double error, limit;
    size_t layer; /* of the worst R2 */
} measurement;

/* The worst of `count` rotations; negative when out of memory. */
static measurement measure(const rq_rotation *rotations, size_t count) {
    measurement m = {.limit = rotations->kind == RQ_ROTATION_DENSE ? 1e-5 : 1e-10};
    for (size_t i = 0; i < count; i++) {
        const double error = rq_rotation_orthogonality_error(&rotations[i]);
        if (error < 0) return (measurement){.error = -1};
        if (error > m.error) {
            m.error = error;
            m.layer = i;
        }
    }
    return m;
}

static json_t *measurement_json(const rq_rotation *q, const measurement *m) {
    return json_pack("{s:s, s:I, s:f, s:f}", "kind", kind_name(q->kind), "n", (json_int_t)q->n, "orthogonality_error",
                     m->error, "limit", m->limit);
}

/* A failure to read is a finding of verify, so --json reports it on stdout as well. */
static int report_unreadable(const char *operand, const rq_error *err, bool json) {
    if (json)
        (void)rq_cli_print_json(json_pack("{s:s, s:b, s:s, s:s}", "file", operand, "ok", 0, "status",
                                          rq_status_text(err->status), "error", err->message));
    return rq_cli_fail(err);
}

static int report_json(const char *operand, const rq_rotation_set *set, const measurement *r1, const measurement *r2,
                       bool ok) {
    json_t *r2_value = json_null();
    if (set->r2) {
        r2_value = measurement_json(&set->r2[0], r2);
        if (r2_value) {
            (void)json_object_set_new(r2_value, "n_layers", json_integer((json_int_t)set->n_layers));
            (void)json_object_set_new(r2_value, "worst_layer", json_integer((json_int_t)r2->layer));
        }
    }
    return rq_cli_print_json(json_pack("{s:s, s:b, s:I, s:o, s:o}", "file", operand, "ok", ok, "seed",
                                       (json_int_t)set->seed, "R1", measurement_json(&set->r1, r1), "R2", r2_value));
}

static int verify(const char *operand, bool json) {
    rq_rotation_set set = {0};
    rq_error err;
    if (rq_rotation_set_read(operand, &set, &err) != RQ_OK) return report_unreadable(operand, &err, json);
    int exit_status = 0;
    const measurement r1 = measure(&set.r1, 1);
    const measurement r2 = set.r2 ? measure(set.r2, set.n_layers) : (measurement){0};
    const bool ok = r1.error <= r1.limit && r2.error <= r2.limit;
    if (r1.error < 0 || r2.error < 0) {
        (void)rq_fail(&err, RQ_ERR_NOMEM, "%s: no memory to measure the orthogonality error", operand);
        exit_status = rq_cli_fail(&err);
        goto done;
    }
    if (json) {
        exit_status = report_json(operand, &set, &r1, &r2, ok);
    } else {
        print_set(&set);
        printf("orthogonality error max |Q^T Q - I|: R1 %.3g (limit %g)", r1.error, r1.limit);
        if (set.r2) printf(", worst R2 %.3g in layer %zu (limit %g)", r2.error, r2.layer, r2.limit);
        printf("\n%s\n", ok ? "rebuilt: every digest and every matrix is right" : "NOT orthogonal");
    }
    if (!ok && exit_status == 0) {
        (void)rq_fail(&err, RQ_ERR_MISMATCH, "%s: the orthogonality error is above its limit", operand);
        exit_status = rq_cli_fail(&err);
    }
done:
    rq_rotation_set_deinit(&set);
    return exit_status;
}

/* ---- make, export ---- */

static int parse_r2(const char *text, rq_rotation_spec *spec) {
    if (strcmp(text, "hadamard") == 0)
        spec->r2 = RQ_R2_HADAMARD;
    else if (strcmp(text, "random") == 0)
        spec->r2 = RQ_R2_RANDOM;
    else if (strcmp(text, "none") == 0)
        spec->r2 = RQ_R2_NONE;
    else
        return rq_cli_usage("--r2 \"%s\" is none of hadamard, random, none", text);
    return 0;
}

static int make(const arguments *a) {
    rq_rotation_spec spec = {.seed = a->seed};
    rq_rotation_set set = {0};
    rq_error err;
    if (!a->out || a->n == 0) return rq_cli_usage("rotation make needs --n N and --out DIR");
    const int bad = parse_r2(a->r2, &spec);
    if (bad) return bad;
    if (rq_rotation_spec_parse(a->rotation, &spec, &err) != RQ_OK) return rq_cli_fail(&err);
    if (spec.r1 != RQ_SPEC_NONE && spec.r2 != RQ_R2_NONE && (a->head_dim == 0 || a->layers == 0))
        return rq_cli_usage("rotation make needs --head-dim D and --layers L for R2, or --r2 none");
    if (rq_rotation_set_make(&spec, (size_t)a->n, (size_t)a->head_dim, (size_t)a->layers, &set, &err) != RQ_OK)
        return rq_cli_fail(&err);

    int exit_status = 0;
    if (mkdir(a->out, 0777) != 0 && errno != EEXIST) {
        (void)rq_fail(&err, RQ_ERR_IO, "%s: cannot create the directory: %s", a->out, strerror(errno));
        exit_status = rq_cli_fail(&err);
    } else if (exists_in(a->out, "rotation.json", &err) || exists_in(a->out, "rotation.safetensors", &err) ||
               rq_rotation_set_write(&set, a->out, &err) != RQ_OK) {
        exit_status = rq_cli_fail(&err);
    } else {
        print_set(&set);
    }
    rq_rotation_set_deinit(&set);
    return exit_status;
}

static int export_set(const char *operand, const char *out) {
    rq_rotation_set set = {0};
    rq_error err;
    if (!out) return rq_cli_usage("rotation export needs --out R.safetensors");
    if (rq_rotation_set_read(operand, &set, &err) != RQ_OK) return rq_cli_fail(&err);
    const rq_status st = rq_rotation_set_export(&set, out, &err);
    rq_rotation_set_deinit(&set);
    return st == RQ_OK ? 0 : rq_cli_fail(&err);
}

int rq_cmd_rotation(int argc, char **argv) {
    const char *action = argc > 1 ? argv[1] : "";
    const struct option *options = read_options;
    arguments a;
    if (strcmp(action, "--help") == 0 || strcmp(action, "-h") == 0) {
        fputs(help, stdout);
        return 0;
    }
    if (strcmp(action, "make") == 0)
        options = make_options;
    else if (strcmp(action, "export") == 0)
        options = export_options;
    else if (strcmp(action, "show") != 0 && strcmp(action, "verify") != 0)
        return *action ? rq_cli_usage("rotation: \"%s\" is none of show, verify, make, export", action)
                       : rq_cli_usage("rotation: say show, verify, make or export");
    const int bad = parse_arguments(argc - 1, argv + 1, options, &a);
    if (bad) return bad;
    if (a.help) {
        fputs(help, stdout);
        return 0;
    }
    const int wanted = options == make_options ? 0 : 1;
    if (a.operand_count != wanted)
        return rq_cli_usage(wanted ? "rotation %s takes one FILE or DIR" : "rotation %s takes options only", action);
    if (options == make_options) return make(&a);
    if (options == export_options) return export_set(a.operands[0], a.out);
    return strcmp(action, "show") == 0 ? show(a.operands[0], a.json) : verify(a.operands[0], a.json);
}
