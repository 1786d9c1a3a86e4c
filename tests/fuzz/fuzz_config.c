/* config.json and model.safetensors.index.json. The same bytes go to both parsers, and what the config says about
 * quantization is asked in every way the library asks it. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tensor/json_util.h"
#include "tensor/mlx_module.h"
#include "tensor/shard_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition) {
    if (!condition) abort();
}

static void ask_config(const json_t *config) {
    const char *module = NULL;
    json_t *value = NULL;
    rq_quant_format format;
    rq_error err;
    json_t *quantization = (json_t *)rq_mlx_quantization(config);
    const char *foreign = rq_foreign_quantization(config);
    must(!foreign || !quantization);
    if (!quantization) return;
    if (rq_mlx_read_format(quantization, "quantization", &format, &err) != RQ_OK) must(err.status == RQ_ERR_FORMAT);
    json_object_foreach(quantization, module, value) {
        rq_mlx_origin origin = RQ_MLX_SILENT;
        const rq_status st = rq_mlx_override(quantization, module, &origin, &format, &err);
        must(st == RQ_OK || st == RQ_ERR_FORMAT);
        must(st != RQ_OK || origin != RQ_MLX_SILENT);
        if (st == RQ_OK && origin != RQ_MLX_DENSE)
            must(format.bits >= 2 && format.bits <= 8 && format.group_size >= 16);
    }
}

static void ask_index(const rq_shard_index *index) {
    for (size_t i = 0; i < index->count; i++) {
        must(index->entries[i].shard < index->n_shards);
        must(i == 0 || strcmp(index->entries[i - 1].tensor, index->entries[i].tensor) < 0);
    }
    for (size_t i = 0; i < index->n_shards; i++) {
        must(!strchr(index->shards[i], '/') && strcmp(index->shards[i], "..") != 0);
        must(i == 0 || strcmp(index->shards[i - 1], index->shards[i]) < 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *config = NULL;
    rq_shard_index index;
    rq_error err;
    const char *text = (const char *)data;
    if (rq_json_parse("config.json", text, size, &config, &err) == RQ_OK) {
        ask_config(config);
        json_decref(config);
    } else {
        must(err.status == RQ_ERR_FORMAT && err.message[0]);
    }
    if (rq_shard_index_parse("index.json", text, size, &index, &err) == RQ_OK) {
        ask_index(&index);
        rq_shard_index_deinit(&index);
    }
    return 0;
}
