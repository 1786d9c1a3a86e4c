#include <stdio.h>
#include <stdlib.h>

#include "cli.h"

static const char help[] =
    "usage: rotq plan SRC [options]\n"
    "\n"
    "Shows what `rotq convert SRC` with the same options would do to every tensor: operations, stored\n"
    "format, sizes, bits per weight, and the memory it would need. Reads headers only, never weights.\n"
    "\n";

/* Also `convert --dry-run`. */
int rq_cli_show_plan(const char *src, const rq_cli_plan_options *options) {
    rq_error err;
    rq_notes notes = {0};
    rq_checkpoint *ckpt = NULL;
    rq_source source = {0};
    rq_plan plan = {0};
    int code = 0;
    rq_status st = rq_checkpoint_open(src, &ckpt, &notes, &err);
    if (st == RQ_OK) st = rq_source_init(ckpt, &source, &err);
    if (st == RQ_OK) st = rq_plan_make(&source, &options->plan, &plan, &notes, &err);
    if (!options->json || st != RQ_OK) rq_cli_print_notes(&notes);
    if (st != RQ_OK) {
        code = rq_cli_fail(&err);
        if (options->json) (void)rq_cli_print_failure_json(&err, &notes);
        goto done;
    }
    const uint64_t memory = rq_convert_memory(&plan, (unsigned)options->threads);
    if (options->json) {
        json_t *json = rq_plan_json(&plan, memory);
        if (json) json_object_set_new(json, "notes", rq_cli_notes_json(&notes));
        code = rq_cli_print_json(json);
    } else {
        char *table = rq_plan_table(&plan, memory);
        if (table) {
            fputs(table, stdout);
        } else {
            (void)rq_fail(&err, RQ_ERR_NOMEM, "no memory for the table of %zu tensors", plan.count);
            code = rq_cli_fail(&err);
        }
        free(table);
    }
done:
    rq_plan_deinit(&plan);
    rq_source_deinit(&source);
    rq_checkpoint_close(ckpt);
    rq_notes_deinit(&notes);
    return code;
}

int rq_cmd_plan(int argc, char **argv) {
    static const struct option options[] = {RQ_PLAN_LONG_OPTIONS, {0}};
    rq_cli_plan_options plan;
    rq_cli_plan_options_init(&plan);
    int index = 0;
    for (int c; (c = rq_cli_next_option("plan", argc, argv, ":qh", options, &index)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            fputs(rq_cli_plan_help, stdout);
            return 0;
        }
        if (c == '?') return 2;
        const int code = rq_cli_plan_option(&plan, c, options[index].name, optarg);
        if (code != 0) return code;
    }
    if (argc - optind != 1) return rq_cli_usage("plan takes one directory, SRC");
    const int code = rq_cli_plan_options_finish(&plan);
    return code ? code : rq_cli_show_plan(argv[optind], &plan);
}
