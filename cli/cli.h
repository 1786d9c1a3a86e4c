/* What the subcommands share: messages, number parsing, conversion options, notes. The CLI parses, calls the library
 * and prints; it contains no maths. */
#ifndef RQ_CLI_H
#define RQ_CLI_H

#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "rotq/rotq.h"

int rq_cmd_convert(int argc, char **argv);
int rq_cmd_plan(int argc, char **argv);
int rq_cmd_check(int argc, char **argv);
int rq_cmd_rotation(int argc, char **argv);

/* Prints text that may hold names from files: control characters and bytes that are not UTF-8 appear as \xNN, so that a
 * tensor's name cannot drive the terminal. */
void rq_cli_put_text(FILE *stream, const char *text);
/* Prints "rotq: error: ..." to stderr and returns the exit code of the status. */
int rq_cli_fail(const rq_error *err);
/* Prints a message about wrong usage and the hint to --help; returns 2. */
int rq_cli_usage(const char *format, ...) RQ_PRINTF(1, 2);
/* getopt_long with messages of our own; `short_options` begins with ':'. On an unknown option or a missing value it
 * prints the usage error of `command` and returns '?'. */
int rq_cli_next_option(const char *command, int argc, char **argv, const char *short_options,
                       const struct option *options, int *index);
/* Decimal digits only, at most `max`. */
bool rq_cli_parse_u64(const char *text, uint64_t max, uint64_t *out);

/* Notes as lines on stderr ("rotq: warning: ..."), and as a JSON list. */
void rq_cli_print_notes(const rq_notes *notes);
json_t *rq_cli_notes_json(const rq_notes *notes);
/* What --json prints when a command fails: {"error": sentence, "exit_code": n, "notes": [...]}. */
int rq_cli_print_failure_json(const rq_error *err, const rq_notes *notes);
/* Prints and releases a JSON value on stdout; returns 0, or an exit code when there is none to print. A stdout that
 * does not take it is noticed by rq_cli_end. */
int rq_cli_print_json(json_t *value);
/* The last call of every run: what was printed must have arrived. Returns the exit code of the program, whose command
 * ended with `code`. */
int rq_cli_end(int code);
/* "1.23 GB" and the like, decimal units, into a buffer of at least 16 bytes. */
const char *rq_cli_bytes(uint64_t bytes, char *buffer, size_t size);

/* Options that convert and plan share. */
enum {
    RQ_OPT_BITS = 256,
    RQ_OPT_GROUP,
    RQ_OPT_MODE,
    RQ_OPT_DTYPE,
    RQ_OPT_ROTATION,
    RQ_OPT_R2,
    RQ_OPT_SEED,
    RQ_OPT_RECIPE,
    RQ_OPT_SCALES,
    RQ_OPT_ALLOW_UNKNOWN,
    RQ_OPT_DEQUANTIZE,
    RQ_OPT_KEEP_TIED,
    RQ_OPT_TIE,
    RQ_OPT_STRICT,
    RQ_OPT_THREADS,
    RQ_OPT_JSON,
    RQ_OPT_RUN_TIME, /* --r3, --r4, --no-gain-fold: known, and refused with the reason */
    RQ_OPT_COMMAND   /* first free value for a command's own options */
};
#define RQ_PLAN_LONG_OPTIONS                                                                                        \
    {"quantize", no_argument, NULL, 'q'}, {"q-bits", required_argument, NULL, RQ_OPT_BITS},                         \
        {"q-group-size", required_argument, NULL, RQ_OPT_GROUP}, {"q-mode", required_argument, NULL, RQ_OPT_MODE},  \
        {"dtype", required_argument, NULL, RQ_OPT_DTYPE}, {"rotation", required_argument, NULL, RQ_OPT_ROTATION},   \
        {"r2", required_argument, NULL, RQ_OPT_R2}, {"seed", required_argument, NULL, RQ_OPT_SEED},                 \
        {"recipe", required_argument, NULL, RQ_OPT_RECIPE}, {"scales", required_argument, NULL, RQ_OPT_SCALES},     \
        {"allow-unknown", no_argument, NULL, RQ_OPT_ALLOW_UNKNOWN},                                                 \
        {"dequantize", no_argument, NULL, RQ_OPT_DEQUANTIZE}, {"keep-tied", no_argument, NULL, RQ_OPT_KEEP_TIED},   \
        {"tie-word-embeddings", required_argument, NULL, RQ_OPT_TIE}, {"strict", no_argument, NULL, RQ_OPT_STRICT}, \
        {"threads", required_argument, NULL, RQ_OPT_THREADS}, {"json", no_argument, NULL, RQ_OPT_JSON},             \
        {"r3", no_argument, NULL, RQ_OPT_RUN_TIME}, {"r4", no_argument, NULL, RQ_OPT_RUN_TIME},                     \
        {"no-gain-fold", no_argument, NULL, RQ_OPT_RUN_TIME}, {                                                     \
        "help", no_argument, NULL, 'h'                                                                              \
    }

/* What the shared options collect before they make a plan. */
typedef struct rq_cli_plan_options {
    rq_plan_options plan;
    const char *rotation;
    uint64_t bits, group_size, seed, threads;
    rq_quant_mode mode;
    bool have_bits, have_group, have_mode, have_seed, have_r2, json;
} rq_cli_plan_options;

void rq_cli_plan_options_init(rq_cli_plan_options *options);
/* Takes one option; 0 when it was a shared one, -1 when it is unknown here, else an exit code (message printed). `name`
 * is the long option's name for messages. */
int rq_cli_plan_option(rq_cli_plan_options *options, int option, const char *name, const char *argument);
/* Combines them into options->plan. 0 or an exit code. */
int rq_cli_plan_options_finish(rq_cli_plan_options *options);
/* Prints the plan of SRC (`rotq plan`, `convert --dry-run`). Returns an exit code. */
int rq_cli_show_plan(const char *src, const rq_cli_plan_options *options);
/* The help text of the shared options. */
extern const char rq_cli_plan_help[];

#endif
