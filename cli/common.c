#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* Bytes of the printable UTF-8 character at `s`; 0 when it is a control character or malformed. */
static size_t printable(const unsigned char *s) {
    if (*s < 0x80) return *s >= 0x20 && *s != 0x7f;
    const size_t n = *s >= 0xc2 && *s < 0xe0 ? 2 : *s >= 0xe0 && *s < 0xf0 ? 3 : *s >= 0xf0 && *s < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return n == 2 && *s == 0xc2 && s[1] < 0xa0 ? 0 : n; /* U+0080 to U+009F control terminals as well */
}

void rq_cli_put_text(FILE *stream, const char *text) {
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        const size_t n = printable(s);
        if (n)
            fwrite(s, 1, n, stream);
        else
            fprintf(stream, "\\x%02x", *s);
        s += n ? n : 1;
    }
}

static void put_error(const char *message) {
    fputs("rotq: error: ", stderr);
    rq_cli_put_text(stderr, message);
    fputc('\n', stderr);
}

int rq_cli_fail(const rq_error *err) {
    put_error(err->message);
    return rq_status_exit_code(err->status);
}

int rq_cli_usage(const char *format, ...) {
    char message[RQ_ERROR_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    put_error(message);
    fputs("rotq --help and rotq COMMAND --help explain the usage.\n", stderr);
    return rq_status_exit_code(RQ_ERR_USAGE);
}

int rq_cli_next_option(const char *command, int argc, char **argv, const char *short_options,
                       const struct option *options, int *index) {
    opterr = 0;
    const int option = getopt_long(argc, argv, short_options, options, index);
    if (option == ':') {
        rq_cli_usage("%s: %s needs a value", command, argv[optind - 1]);
        return '?';
    }
    if (option != '?') return option;
    /* optopt: 0 for an unknown long option, the value of a known one that was given "=value", else a short option. */
    const struct option *known = options;
    while (known->name && known->val != optopt) known++;
    if (optopt && !known->name)
        rq_cli_usage("%s: unknown option -%c", command, optopt);
    else
        rq_cli_usage(optopt ? "%s: %s: this option takes no value" : "%s: unknown or ambiguous option %s", command,
                     argv[optind - 1]);
    return '?';
}

bool rq_cli_parse_u64(const char *text, uint64_t max, uint64_t *out) {
    if (!isdigit((unsigned char)*text)) return false;
    char *end = NULL;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || value > max) return false;
    *out = value;
    return true;
}

void rq_cli_print_notes(const rq_notes *notes) {
    for (size_t i = 0; i < notes->count; i++) {
        fprintf(stderr, "rotq: %s: ", notes->items[i].level == RQ_NOTE_WARNING ? "warning" : "note");
        rq_cli_put_text(stderr, notes->items[i].text);
        fputc('\n', stderr);
    }
    if (notes->lost) fprintf(stderr, "rotq: warning: %zu more notes found no memory\n", notes->lost);
}

json_t *rq_cli_notes_json(const rq_notes *notes) {
    json_t *list = json_array();
    for (size_t i = 0; i < notes->count; i++)
        json_array_append_new(list, json_pack("{s:s,s:s,s:s}", "level",
                                              notes->items[i].level == RQ_NOTE_WARNING ? "warning" : "info", "code",
                                              notes->items[i].code, "text", notes->items[i].text));
    return list;
}

int rq_cli_print_json(json_t *value) {
    const rq_error failed = {RQ_ERR_IO, "the result cannot be written as JSON"};
    const bool good = value && json_dumpf(value, stdout, JSON_INDENT(2)) == 0 && putchar('\n') != EOF;
    json_decref(value);
    return good || ferror(stdout) ? 0 : rq_cli_fail(&failed);
}

int rq_cli_end(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    const rq_error lost = {RQ_ERR_IO, "standard output did not take everything that was printed"};
    const int failed = rq_cli_fail(&lost);
    return code ? code : failed;
}

int rq_cli_print_failure_json(const rq_error *err, const rq_notes *notes) {
    return rq_cli_print_json(json_pack("{s:s,s:i,s:o}", "error", err->message, "exit_code",
                                       rq_status_exit_code(err->status), "notes", rq_cli_notes_json(notes)));
}

const char *rq_cli_bytes(uint64_t bytes, char *buffer, size_t size) {
    if (bytes < 1000)
        snprintf(buffer, size, "%u B", (unsigned)bytes);
    else if (bytes < 1000000)
        snprintf(buffer, size, "%.1f kB", (double)bytes / 1e3);
    else if (bytes < 1000000000)
        snprintf(buffer, size, "%.1f MB", (double)bytes / 1e6);
    else
        snprintf(buffer, size, "%.2f GB", (double)bytes / 1e9);
    return buffer;
}

const char rq_cli_plan_help[] =
    "quantization (names as in mlx_lm.convert):\n"
    "  -q, --quantize        quantize; without it the folded model is stored dense\n"
    "  --q-bits N            affine: 2, 3, 4, 5, 6 or 8 (default 4)\n"
    "  --q-group-size N      affine: 32, 64 or 128 (default 64)\n"
    "  --q-mode MODE         affine (default), mxfp4, mxfp8 or nvfp4\n"
    "  --recipe NAME|FILE    mixed precision: tq-mixed, mixed_2_6, mixed_3_4, mixed_3_6, mixed_4_6, or a\n"
    "                        JSON file of rules (docs/recipes.md); implies -q\n"
    "  --scales mlx|search   mlx (default): the bytes that stock mlx writes; search: same format, lower error\n"
    "  --strict              a module that cannot be quantized as asked is an error\n"
    "  --dtype TYPE          bfloat16 (default), float16 or float32: dense tensors, scales and biases\n"
    "rotation:\n"
    "  --rotation KIND       hadamard (default), block:B, random, none, or a rotation.json to reuse (or the\n"
    "                        directory that holds it)\n"
    "  --r2 KIND             per-head rotation of v and o: hadamard (default), random or none\n"
    "  --seed N              seed of every random choice (default 0)\n"
    "  --keep-tied           do not make an output head of its own; only for models whose final gain is one\n"
    "input:\n"
    "  --allow-unknown       pass tensors without a known role through instead of refusing them\n"
    "  --dequantize          accept a source that is already quantized by MLX\n"
    "  --tie-word-embeddings true|false   when config.json does not say and a head is stored\n"
    "running:\n"
    "  --threads N           default: the CPUs this process may use\n"
    "  --json                one JSON object on standard output\n";

void rq_cli_plan_options_init(rq_cli_plan_options *options) {
    *options = (rq_cli_plan_options){.rotation = "hadamard", .mode = RQ_AFFINE};
    rq_plan_options_init(&options->plan);
}

static const char *const run_time_reason =
    "is refused: the result would need a rotation at run time, or would not compute the same function. rotq folds "
    "gains, R1 and "
    "R2, which stock runtimes execute unchanged; R3 and R4 live between operations that no weight can absorb";

static int dtype_option(rq_plan_options *plan, const char *argument) {
    static const struct {
        const char *name;
        rq_dtype dtype;
    } names[] = {{"bfloat16", RQ_BF16}, {"float16", RQ_F16}, {"float32", RQ_F32}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(argument, names[i].name) == 0) {
            plan->dtype = names[i].dtype;
            return 0;
        }
    return rq_cli_usage("--dtype %s: expected bfloat16, float16 or float32", argument);
}

int rq_cli_plan_option(rq_cli_plan_options *o, int option, const char *name, const char *argument) {
    switch (option) {
    case 'q':
        o->plan.quantize = true;
        return 0;
    case RQ_OPT_BITS:
        o->have_bits = rq_cli_parse_u64(argument, 64, &o->bits);
        return o->have_bits ? 0 : rq_cli_usage("--q-bits %s: expected a number", argument);
    case RQ_OPT_GROUP:
        o->have_group = rq_cli_parse_u64(argument, 1 << 20, &o->group_size);
        return o->have_group ? 0 : rq_cli_usage("--q-group-size %s: expected a number", argument);
    case RQ_OPT_MODE:
        o->have_mode = rq_quant_mode_parse(argument, &o->mode);
        return o->have_mode ? 0 : rq_cli_usage("--q-mode %s: expected affine, mxfp4, mxfp8 or nvfp4", argument);
    case RQ_OPT_DTYPE:
        return dtype_option(&o->plan, argument);
    case RQ_OPT_ROTATION:
        o->rotation = argument;
        return 0;
    case RQ_OPT_R2:
        o->have_r2 = true;
        if (strcmp(argument, "hadamard") == 0)
            o->plan.rotation.r2 = RQ_R2_HADAMARD;
        else if (strcmp(argument, "random") == 0)
            o->plan.rotation.r2 = RQ_R2_RANDOM;
        else if (strcmp(argument, "none") == 0)
            o->plan.rotation.r2 = RQ_R2_NONE;
        else
            return rq_cli_usage("--r2 %s: expected hadamard, random or none", argument);
        return 0;
    case RQ_OPT_SEED:
        o->have_seed = rq_cli_parse_u64(argument, INT64_MAX, &o->seed);
        return o->have_seed ? 0 : rq_cli_usage("--seed %s: expected a number from 0 to 2^63-1", argument);
    case RQ_OPT_RECIPE:
        o->plan.recipe = argument;
        return 0;
    case RQ_OPT_SCALES:
        if (strcmp(argument, "mlx") == 0)
            o->plan.scales = RQ_SCALES_MLX;
        else if (strcmp(argument, "search") == 0)
            o->plan.scales = RQ_SCALES_SEARCH;
        else
            return rq_cli_usage("--scales %s: expected mlx or search", argument);
        return 0;
    case RQ_OPT_ALLOW_UNKNOWN:
        o->plan.allow_unknown = true;
        return 0;
    case RQ_OPT_DEQUANTIZE:
        o->plan.dequantize = true;
        return 0;
    case RQ_OPT_KEEP_TIED:
        o->plan.keep_tied = true;
        return 0;
    case RQ_OPT_TIE:
        if (strcmp(argument, "true") == 0)
            o->plan.tie = RQ_TIE_TIED;
        else if (strcmp(argument, "false") == 0)
            o->plan.tie = RQ_TIE_UNTIED;
        else
            return rq_cli_usage("--tie-word-embeddings %s: expected true or false", argument);
        return 0;
    case RQ_OPT_STRICT:
        o->plan.strict = true;
        return 0;
    case RQ_OPT_THREADS:
        if (!rq_cli_parse_u64(argument, 1024, &o->threads) || o->threads == 0)
            return rq_cli_usage("--threads %s: expected a number from 1 to 1024", argument);
        return 0;
    case RQ_OPT_JSON:
        o->json = true;
        return 0;
    case RQ_OPT_RUN_TIME: {
        fprintf(stderr, "rotq: error: --%s %s\n", name, run_time_reason);
        return rq_status_exit_code(RQ_ERR_UNSUPPORTED);
    }
    default:
        return -1;
    }
}

int rq_cli_plan_options_finish(rq_cli_plan_options *o) {
    rq_error err;
    rq_rotation_spec spec = o->plan.rotation;
    if (rq_rotation_spec_parse(o->rotation, &spec, &err) != RQ_OK) return rq_cli_fail(&err);
    if (spec.r1 == RQ_SPEC_FILE && (o->have_seed || o->have_r2))
        return rq_cli_usage("--seed and --r2 come from the file when --rotation names one");
    spec.r2 = o->plan.rotation.r2;
    spec.seed = o->seed;
    o->plan.rotation = spec;
    if (spec.r1 == RQ_SPEC_NONE) {
        if (o->have_seed) return rq_cli_usage("--seed has no effect with --rotation none");
        if (o->have_r2 && spec.r2 != RQ_R2_NONE)
            return rq_cli_usage("--r2 has no effect with --rotation none, which rotates nothing");
        if (o->plan.keep_tied)
            return rq_cli_usage("--keep-tied has no effect with --rotation none, which unties nothing");
    }
    if (!o->plan.quantize && !o->plan.recipe) {
        if (o->have_bits || o->have_group || o->have_mode)
            return rq_cli_usage("--q-bits, --q-group-size and --q-mode need -q");
        if (o->plan.scales != RQ_SCALES_MLX) return rq_cli_usage("--scales search needs -q or --recipe");
        if (o->plan.strict) return rq_cli_usage("--strict needs -q or --recipe");
    }
    if (o->have_bits && o->bits == 0) return rq_cli_usage("--q-bits 0: a format has at least 2 bits");
    if (o->have_group && o->group_size == 0) return rq_cli_usage("--q-group-size 0: a group has at least 16 weights");
    if (rq_quant_format_make(o->mode, (unsigned)o->bits, (unsigned)o->group_size, &o->plan.format, &err) != RQ_OK)
        return rq_cli_fail(&err);
    return 0;
}
