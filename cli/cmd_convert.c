#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static const char help[] = "usage: rotq convert SRC DST [options]\n"
                           "\n"
                           "Reads the checkpoint directory SRC (config.json and safetensors) and writes DST: rotated, "
                           "quantized with -q, with\n"
                           "tokenizer, metadata and model card, ready for stock mlx-lm. DST appears when everything is "
                           "written, or not at all.\n"
                           "\n"
                           "  rotq convert ./SmolLM2 ./SmolLM2-rot                  rotated, bf16: for a parity check\n"
                           "  rotq convert ./SmolLM2 ./SmolLM2-4bit -q              rotated, 4 bits, groups of 64\n"
                           "  rotq convert ./SmolLM2 ./SmolLM2-mx -q --q-mode mxfp4 --rotation block:32\n"
                           "  rotq convert ./SmolLM2 ./SmolLM2-plain -q --rotation none\n"
                           "\n";
static const char more_help[] =
    "  --fold-precision P    fp64 (default) or fp32: arithmetic of the fold\n"
    "  --allow-nonfinite     convert weights that hold NaN or infinity instead of refusing them\n"
    "  --force               replace DST when it is a model directory (or empty)\n"
    "  --sync                wait until everything is on the disk before DST appears\n"
    "  --dry-run             print the plan and stop (as rotq plan)\n"
    "  --quiet               no progress, no summary; warnings and errors remain\n";

enum { OPT_PRECISION = RQ_OPT_COMMAND, OPT_NONFINITE, OPT_FORCE, OPT_SYNC, OPT_DRY_RUN, OPT_QUIET };

static atomic_int interrupted;

static void on_signal(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

static bool should_stop(void *context) {
    (void)context;
    return interrupted != 0;
}

/* The first signal asks the run to stop and clean up; a second one ends the program at once. A signal that the parent
 * had ignored (nohup) stays ignored. */
static void stop_on(int signal_number) {
    struct sigaction action;
    if (sigaction(signal_number, NULL, &action) != 0 || action.sa_handler == SIG_IGN) return;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = (int)SA_RESETHAND;
    sigaction(signal_number, &action, NULL);
}

static void on_progress(void *context, const rq_progress *p) {
    (void)context;
    const double done = p->bytes_total ? (double)p->bytes_done / (double)p->bytes_total : 1.0;
    const double rate = p->seconds > 0 ? (double)p->bytes_done / p->seconds : 0;
    const double eta = rate > 0 ? (double)(p->bytes_total - p->bytes_done) / rate : 0;
    char name[61];
    snprintf(name, sizeof name, "%s", p->tensor);
    fprintf(stderr, "\r\033[K%5.1f %%  %.2f GB/s  ETA %.0f s  ", 100 * done, rate / 1e9, eta);
    rq_cli_put_text(stderr, name);
}

static void print_summary(const char *dst, const rq_convert_result *r) {
    char a[16], b[16], c[16];
    printf("%s: %s -> %s, %.3f bits per weight, %.2f s (%.2f GB/s), %.2f CPU s, peak %s, %u threads, %s\n", dst,
           rq_cli_bytes(r->source_bytes, a, sizeof a), rq_cli_bytes(r->output_bytes, b, sizeof b), r->bits_per_weight,
           r->seconds, (double)r->source_bytes / r->seconds / 1e9, r->cpu_seconds,
           rq_cli_bytes(r->peak_memory_bytes, c, sizeof c), r->threads, r->kernel);
}

static int print_result_json(const char *dst, const rq_convert_result *r, const rq_notes *notes) {
    return rq_cli_print_json(json_pack("{s:s,s:I,s:I,s:f,s:f,s:f,s:I,s:i,s:s,s:o}", "output", dst, "source_bytes",
                                       (json_int_t)r->source_bytes, "output_bytes", (json_int_t)r->output_bytes,
                                       "bits_per_weight", r->bits_per_weight, "seconds", r->seconds, "cpu_seconds",
                                       r->cpu_seconds, "peak_memory_bytes", (json_int_t)r->peak_memory_bytes, "threads",
                                       (int)r->threads, "kernel", r->kernel, "notes", rq_cli_notes_json(notes)));
}

static int run(const char *src, const char *dst, rq_convert_options *options, bool json, bool quiet) {
    stop_on(SIGINT);
    stop_on(SIGTERM);
    stop_on(SIGHUP);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit becomes a write error */
    options->should_stop = should_stop;
    const bool progress = !quiet && isatty(STDERR_FILENO);
    if (progress) options->progress = on_progress;

    rq_error err = {0};
    rq_notes notes = {0};
    rq_convert_result result = {0};
    const rq_status st = rq_convert(src, dst, options, &result, &notes, &err);
    if (progress) fputs("\r\033[K", stderr);
    if (!json || st != RQ_OK) rq_cli_print_notes(&notes);
    int code = 0;
    if (st != RQ_OK) {
        code = rq_cli_fail(&err);
        if (json) (void)rq_cli_print_failure_json(&err, &notes);
    } else if (json)
        code = print_result_json(dst, &result, &notes);
    else if (!quiet)
        print_summary(dst, &result);
    rq_notes_deinit(&notes);
    return code;
}

int rq_cmd_convert(int argc, char **argv) {
    static const struct option options[] = {RQ_PLAN_LONG_OPTIONS,
                                            {"fold-precision", required_argument, NULL, OPT_PRECISION},
                                            {"allow-nonfinite", no_argument, NULL, OPT_NONFINITE},
                                            {"force", no_argument, NULL, OPT_FORCE},
                                            {"sync", no_argument, NULL, OPT_SYNC},
                                            {"dry-run", no_argument, NULL, OPT_DRY_RUN},
                                            {"quiet", no_argument, NULL, OPT_QUIET},
                                            {0}};
    rq_cli_plan_options plan;
    rq_convert_options convert;
    rq_cli_plan_options_init(&plan);
    rq_convert_options_init(&convert);
    bool dry_run = false, quiet = false, have_precision = false;
    int index = 0;
    for (int c; (c = rq_cli_next_option("convert", argc, argv, ":qh", options, &index)) != -1;) {
        switch (c) {
        case 'h':
            fputs(help, stdout);
            fputs(rq_cli_plan_help, stdout);
            fputs(more_help, stdout);
            return 0;
        case '?':
            return 2;
        case OPT_PRECISION:
            if (strcmp(optarg, "fp64") != 0 && strcmp(optarg, "fp32") != 0)
                return rq_cli_usage("--fold-precision %s: expected fp64 or fp32", optarg);
            have_precision = true;
            convert.fold_precision = strcmp(optarg, "fp32") == 0 ? RQ_FOLD_F32 : RQ_FOLD_F64;
            break;
        case OPT_NONFINITE:
            convert.allow_nonfinite = true;
            break;
        case OPT_FORCE:
            convert.force = true;
            break;
        case OPT_SYNC:
            convert.sync = true;
            break;
        case OPT_DRY_RUN:
            dry_run = true;
            break;
        case OPT_QUIET:
            quiet = true;
            break;
        default: {
            const int code = rq_cli_plan_option(&plan, c, options[index].name, optarg);
            if (code != 0) return code;
        }
        }
    }
    if (argc - optind != 2 && !(dry_run && argc - optind == 1))
        return rq_cli_usage("convert takes two directories, SRC and DST");
    const int code = rq_cli_plan_options_finish(&plan);
    if (code != 0) return code;
    if (have_precision && plan.plan.rotation.r1 == RQ_SPEC_NONE)
        return rq_cli_usage("--fold-precision has no effect with --rotation none, which folds nothing");
    if (dry_run) return rq_cli_show_plan(argv[optind], &plan);
    convert.plan = plan.plan;
    convert.threads = (unsigned)plan.threads;
    return run(argv[optind], argv[optind + 1], &convert, plan.json, quiet);
}
