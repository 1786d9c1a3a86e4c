#include "convert/package.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/base.h"
#include "model/json_text.h"
#include "model/plan_build.h"

#define TEMPLATES "additional_chat_templates" /* the one side file that is a directory */

/* Names that a directory may also have (LICENSES, a package x.py) without being a damaged side file. */
static bool is_loose_match(const char *name) {
    static const char *const patterns[] = {"*.py", "LICENSE*", "NOTICE*"};
    for (size_t i = 0; i < RQ_COUNT_OF(patterns); i++)
        if (rq_glob_match(patterns[i], name)) return true;
    return false;
}

bool rq_package_is_side_file(const char *name) {
    static const char *const patterns[] = {
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "tokenizer.model",
        "tokenizer.model.v*",
        "tekken.json",
        "sentencepiece.bpe.model",
        "spiece.model",
        "vocab.txt",
        "*.tiktoken",
        "chat_template.jinja",
        "chat_template.json",
        "generation_config.json",
        "preprocessor_config.json",
        "processor_config.json",
        "video_preprocessor_config.json",
        TEMPLATES,
    };
    for (size_t i = 0; i < RQ_COUNT_OF(patterns); i++)
        if (rq_glob_match(patterns[i], name)) return true;
    return is_loose_match(name);
}

const char *rq_package_base_model(const json_t *source_config) {
    const char *name = json_string_value(json_object_get(source_config, "_name_or_path"));
    if (!name || !isalnum((unsigned char)*name)) return NULL;
    size_t slashes = 0;
    for (const char *p = name; *p; p++) {
        if (!isalnum((unsigned char)*p) && !strchr("-_./", *p)) return NULL;
        slashes += *p == '/';
    }
    return slashes == 1 && strlen(name) < 200 && !rq_has_suffix(name, "/") ? name : NULL;
}

static rq_status write_text(const char *directory, const char *name, const char *text, rq_error *err) {
    char *path = text ? rq_path_join(directory, name) : NULL;
    if (!path) return rq_fail(err, RQ_ERR_NOMEM, "%s: out of memory", name);
    const rq_status st = rq_write_file(path, text, strlen(text), err);
    free(path);
    return st;
}

/* A link counts as what it leads to, as in model caches. One that leads nowhere is an interrupted download, and a model
 * without its tokenizer must not look complete. */
static rq_status copy_regular(const char *from, const char *to, rq_error *err) {
    struct stat info;
    if (stat(from, &info) != 0)
        return rq_fail(err, errno == ENOENT ? RQ_ERR_MISSING : RQ_ERR_IO, "%s: cannot be copied: %s", from,
                       errno == ENOENT ? "it is a link to a file that does not exist" : strerror(errno));
    if (!S_ISREG(info.st_mode)) return rq_fail(err, RQ_ERR_IO, "%s: cannot be copied: it is not a regular file", from);
    return rq_copy_file(from, to, err);
}

static rq_status copy_matching(const char *from, const char *to, bool (*wanted)(const char *name), rq_error *err);

static bool is_template(const char *name) { return rq_has_suffix(name, ".jinja"); }

static rq_status copy_templates(const char *from, const char *to, rq_error *err) {
    if (mkdir(to, 0777) != 0) return rq_fail(err, RQ_ERR_IO, "%s: cannot create: %s", to, strerror(errno));
    return copy_matching(from, to, is_template, err);
}

static rq_status copy_one(const char *from_dir, const char *to_dir, const char *name, rq_error *err) {
    char *from = rq_path_join(from_dir, name), *to = rq_path_join(to_dir, name);
    rq_status st = RQ_OK;
    if (!from || !to)
        st = rq_fail(err, RQ_ERR_NOMEM, "%s: out of memory", name);
    else if (strcmp(name, TEMPLATES) == 0)
        st = copy_templates(from, to, err);
    else if (!(is_loose_match(name) && rq_is_directory(from)))
        st = copy_regular(from, to, err);
    free(from);
    free(to);
    return st;
}

static rq_status copy_matching(const char *from, const char *to, bool (*wanted)(const char *name), rq_error *err) {
    rq_status st = RQ_OK;
    DIR *dir = opendir(from);
    if (!dir) return rq_fail(err, RQ_ERR_IO, "%s: cannot list: %s", from, strerror(errno));
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry) {
            if (errno) st = rq_fail(err, RQ_ERR_IO, "%s: cannot list: %s", from, strerror(errno));
            break;
        }
        if (!wanted(entry->d_name)) continue;
        st = copy_one(from, to, entry->d_name, err);
        if (st) break;
    }
    closedir(dir);
    return st;
}

rq_status rq_package_write(const rq_package_facts *facts, const json_t *source_config, const char *source_dir,
                           const char *out_dir, rq_error *err) {
    json_t *config = NULL;
    char *text = NULL;
    rq_status st = rq_output_config_make(facts->plan, source_config, &config, err);
    if (st) goto done;
    text = rq_json_pretty_sorted(config);
    if ((st = write_text(out_dir, "config.json", text, err))) goto done;
    free(text);
    text = rq_package_metadata(facts);
    if ((st = write_text(out_dir, "optiq_metadata.json", text, err))) goto done;
    free(text);
    text = rq_package_model_card(facts);
    if ((st = write_text(out_dir, "README.md", text, err))) goto done;
    st = copy_matching(source_dir, out_dir, rq_package_is_side_file, err);
done:
    free(text);
    json_decref(config);
    return st;
}

rq_status rq_package_files(const rq_plan *plan, const rq_source *source, const rq_convert_options *options,
                           const rq_rotation_set *rotations, const char *fingerprint, const char *out_dir,
                           rq_error *err) {
    const json_t *config = rq_checkpoint_config(source->ckpt);
    const rq_package_facts facts = {
        .plan = plan,
        .rotations = rotations,
        .precision = options->fold_precision,
        .fingerprint = fingerprint,
        .base_model = rq_package_base_model(config),
    };
    return rq_package_write(&facts, config, rq_checkpoint_directory(source->ckpt), out_dir, err);
}
