#include <stdio.h>

#include "cli.h"

static const char help[] =
    "usage: rotq check DIR [--json]\n"
    "\n"
    "Compares what config.json promises with what the safetensors files hold: dense weights where a\n"
    "format is declared, missing or misshapen scales, undeclared formats, the tie flag, the index, stray\n"
    "files, tensors that the family needs. Prints each finding; exits with 11 when there is one.\n";

int rq_cmd_check(int argc, char **argv) {
    static const struct option options[] = {{"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
    bool json = false;
    for (int c; (c = rq_cli_next_option("check", argc, argv, ":h", options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(help, stdout);
            return 0;
        }
        if (c == '?') return 2;
        json = true;
    }
    if (argc - optind != 1) return rq_cli_usage("check takes one directory");
    rq_error err = {0};
    rq_notes notes = {0};
    rq_status st = rq_check_directory(argv[optind], &notes, &err);
    if (st == RQ_OK) st = rq_check_complete(argv[optind], &notes, &err);
    int code = rq_status_exit_code(st);
    if (json) {
        const int printed =
            rq_cli_print_json(json_pack("{s:s,s:b,s:o,s:s}", "directory", argv[optind], "ok", st == RQ_OK, "findings",
                                        rq_cli_notes_json(&notes), "error", st == RQ_OK ? "" : err.message));
        if (printed) code = printed;
    } else {
        for (size_t i = 0; i < notes.count; i++) {
            printf("%s: ", notes.items[i].code);
            rq_cli_put_text(stdout, notes.items[i].text);
            putchar('\n');
        }
        if (st == RQ_OK)
            printf("%s: good\n", argv[optind]);
        else
            (void)rq_cli_fail(&err);
    }
    rq_notes_deinit(&notes);
    return code;
}
