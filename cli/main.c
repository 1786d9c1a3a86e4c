/* rotq: dispatch to subcommands. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

static const char help[] =
    "rotq folds orthogonal rotations and norm gains into the weights of a language model,\n"
    "quantizes it to MLX's formats and packages it for stock mlx-lm. Nothing runs at inference time.\n"
    "\n"
    "usage: rotq COMMAND ...\n"
    "\n"
    "  convert SRC DST   fold, quantize and package a checkpoint directory\n"
    "  plan SRC          show what convert would do to every tensor, without reading weights\n"
    "  check DIR         does a model directory hold what its config promises?\n"
    "  rotation ...      make, show, verify and export rotations\n"
    "\n"
    "  rotq COMMAND --help explains a command. rotq --version prints the version.\n"
    "\n"
    "example: rotq convert ./Llama-3.2-1B ./Llama-3.2-1B-rot-4bit -q\n";

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"convert", rq_cmd_convert}, {"plan", rq_cmd_plan}, {"check", rq_cmd_check}, {"rotation", rq_cmd_rotation}};

static int run(int argc, char **argv) {
    if (argc < 2) {
        fputs(help, stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        fputs(help, stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("rotq %s\n", rq_version());
        return 0;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    return rq_cli_usage("unknown command \"%s\"", argv[1]);
}

int main(int argc, char **argv) { return rq_cli_end(run(argc, argv)); }
