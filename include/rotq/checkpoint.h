/* Reading model directories: safetensors files, shard indexes, and the logical tensors they hold.
 *
 * Three layers, each usable alone:
 *   rq_safetensors   one file: header parsed and checked (the strict rules of the official reader), data by pread
 *   rq_checkpoint    a directory: config.json, index, shards; every raw tensor once, sorted by name
 *   rq_source        the logical tensors: what a converter calls "the weight". Plain tensors are themselves; an F8_E4M3
 *                    weight swallows its `_scale_inv`; a quantized MLX module swallows `.scales` and `.biases`
 *
 * Lifetime: names and infos are borrowed from the object that returned them and die with it. Reads are thread-safe
 * (positioned; no shared cursor). Nothing is mapped: a file that shrinks under us is an error, not a signal. */
#ifndef ROTQ_CHECKPOINT_H
#define ROTQ_CHECKPOINT_H

#include "rotq/dtype.h"
#include "rotq/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

struct json_t; /* jansson */

#define RQ_MAX_RANK 8
#define RQ_SAFETENSORS_HEADER_MAX 99999999u /* mlx rejects 100,000,000 and more */

typedef struct rq_tensor_info {
    const char *name;
    rq_dtype dtype;
    unsigned rank;
    uint64_t shape[RQ_MAX_RANK];
    uint64_t offset; /* of the first byte, from the start of the file */
    uint64_t bytes;
} rq_tensor_info;

/* ---- one file ---- */
typedef struct rq_safetensors rq_safetensors;

/* Opens and validates: header length, JSON (duplicate names refused), dtypes, shapes, sizes without overflow, data
 * covered without hole or overlap, nothing after the last tensor. Errors name file, tensor, and byte where there is
 * one. */
RQ_EXPORT RQ_CHECK rq_status rq_safetensors_open(const char *path, rq_safetensors **file, rq_error *err);
RQ_EXPORT void rq_safetensors_close(rq_safetensors *file);
RQ_EXPORT size_t rq_safetensors_count(const rq_safetensors *file);
RQ_EXPORT const rq_tensor_info *rq_safetensors_at(const rq_safetensors *file, size_t i); /* in order of offset */
RQ_EXPORT const rq_tensor_info *rq_safetensors_find(const rq_safetensors *file, const char *name);
RQ_EXPORT const char *rq_safetensors_path(const rq_safetensors *file);
/* `bytes` bytes at `offset` from the start of the file, all or error (a short file is RQ_ERR_IO). Thread-safe. */
RQ_EXPORT RQ_CHECK rq_status rq_safetensors_read(const rq_safetensors *file, uint64_t offset, void *buffer,
                                                 size_t bytes, rq_error *err);
/* Tells the kernel that this range is wanted soon. Never fails. */
RQ_EXPORT void rq_safetensors_prefetch(const rq_safetensors *file, uint64_t offset, uint64_t bytes);
/* The header of a file in memory (the fuzz target): `header_bytes` of JSON, and how many data bytes follow it. On
 * success *infos [*count] is one owned block (names inside it), freed with free(); offsets are from the start of the
 * data. */
RQ_EXPORT RQ_CHECK rq_status rq_safetensors_parse_header(const char *label, const char *header, size_t header_bytes,
                                                         uint64_t data_bytes, rq_tensor_info **infos, size_t *count,
                                                         rq_error *err);

/* ---- writing a header ---- */
/* Assigns offsets (largest item size first, then name) and builds prefix + JSON + padding: `*out_bytes` bytes, a
 * multiple of 8, owned by the caller. `infos` [count] is reordered in place; offset becomes the distance from the start
 * of the file; bytes must be set. metadata: pairs key, value, ..., NULL; may be NULL. */
RQ_EXPORT RQ_CHECK rq_status rq_safetensors_build_header(rq_tensor_info *infos, size_t count,
                                                         const char *const *metadata, char **out, size_t *out_bytes,
                                                         rq_error *err);

/* ---- a directory ---- */
typedef struct rq_checkpoint rq_checkpoint;

/* Reads config.json, model.safetensors.index.json if there is one, and the headers of every shard.
 *   - indexed shards must exist (RQ_ERR_MISSING names the file and counts the tensors); every name in the index must be
 * in the file it names (RQ_ERR_MISSING names both); shard names must be plain file names ('/', "..", absolute: refused)
 *   - a tensor in two files: the indexed copy wins, the other is named in a warning ("duplicate-tensor")
 *   - a tensor in an indexed shard but not in the index is taken, with a warning ("unindexed-tensor"); an index whose
 *     total_size disagrees is a note ("index-size")
 *   - without an index: model.safetensors if it exists, else every model*.safetensors, else every *.safetensors except
 *     consolidated.safetensors; a name in two of them is RQ_ERR_FORMAT. The result does not depend on directory order.
 */
RQ_EXPORT RQ_CHECK rq_status rq_checkpoint_open(const char *directory, rq_checkpoint **ckpt, rq_notes *notes,
                                                rq_error *err);
RQ_EXPORT void rq_checkpoint_close(rq_checkpoint *ckpt);
RQ_EXPORT const char *rq_checkpoint_directory(const rq_checkpoint *ckpt);
RQ_EXPORT const struct json_t *rq_checkpoint_config(const rq_checkpoint *ckpt);
RQ_EXPORT size_t rq_checkpoint_count(const rq_checkpoint *ckpt);
RQ_EXPORT const rq_tensor_info *rq_checkpoint_at(const rq_checkpoint *ckpt, size_t i); /* sorted by name (strcmp) */
RQ_EXPORT const rq_safetensors *rq_checkpoint_file(const rq_checkpoint *ckpt, size_t i);
RQ_EXPORT bool rq_checkpoint_find(const rq_checkpoint *ckpt, const char *name, size_t *i);
/* sha256 (hex, 65 bytes with NUL) over config.json's bytes and, for every tensor by name: name, dtype and shape.
 * Identity of structure, not of values; the converter's `source_fingerprint` adds samples of the data: the first and
 * last 4 KiB of every tensor. */
RQ_EXPORT RQ_CHECK rq_status rq_checkpoint_fingerprint(const rq_checkpoint *ckpt, char hex[65], rq_error *err);

/* ---- logical tensors ---- */
typedef enum rq_encoding {
    RQ_ENC_PLAIN,     /* F16, BF16, F32 (or any dtype that is only copied) */
    RQ_ENC_F8_BLOCK,  /* F8_E4M3 codes times `weight_scale_inv` per block: delivered as F64, the exact product */
    RQ_ENC_MLX_QUANT, /* packed MLX module: delivered as the scales' dtype (BF16 for the float modes) */
    RQ_ENC_OPAQUE     /* dtypes we never compute with (integers, bool, ...): copied */
} rq_encoding;

typedef struct rq_source_tensor {
    const char *name; /* of the weight; borrowed from the checkpoint */
    rq_encoding encoding;
    rq_dtype dtype; /* of the elements delivered by rq_source_read */
    unsigned rank;
    uint64_t shape[RQ_MAX_RANK]; /* logical: [rows, cols] also for packed weights */
    rq_quant_format format;      /* RQ_ENC_MLX_QUANT */
    size_t data, scales, biases; /* indexes into the checkpoint; SIZE_MAX when unused */
    uint64_t scale_block[2];     /* RQ_ENC_F8_BLOCK: rows and columns per scale */
} rq_source_tensor;

typedef struct rq_source {
    const rq_checkpoint *ckpt; /* borrowed */
    rq_source_tensor *tensors; /* [count], sorted by name; owned */
    size_t count;
    bool is_quantized; /* some module is RQ_ENC_MLX_QUANT */
    bool is_fp8;
} rq_source;

/* Groups raw tensors into logical ones. Formats of packed modules come from config.json's `quantization` (overrides
 * included) checked against the shapes. RQ_ERR_UNSUPPORTED for foreign quantization_config (gptq, awq, ...; fp8 with
 * weight_scale_inv is fine); RQ_ERR_MISSING/RQ_ERR_SHAPE for an F8_E4M3 weight without a fitting scale, for scales
 * without weight, and for packed shapes that no format explains. */
RQ_EXPORT RQ_CHECK rq_status rq_source_init(const rq_checkpoint *ckpt, rq_source *source, rq_error *err);
RQ_EXPORT void rq_source_deinit(rq_source *source);
RQ_EXPORT const rq_source_tensor *rq_source_find(const rq_source *source, const char *name);

/* Reads the block rows [row0, row0+rows) x columns [col0, col0+cols) into dst, row r at dst + r * dst_stride bytes,
 * elements of tensor->dtype. Rank 1 counts as one row; rank > 2 as rows of the last dimension. Full-width blocks of
 * plain tensors are one read. For RQ_ENC_MLX_QUANT col0 and cols must be multiples of the group size. Thread-safe. */
RQ_EXPORT RQ_CHECK rq_status rq_source_read(const rq_source *source, const rq_source_tensor *tensor, uint64_t row0,
                                            uint64_t rows, uint64_t col0, uint64_t cols, void *dst, size_t dst_stride,
                                            rq_error *err);
/* Announces rows [row0, row0+rows) to the kernel. */
RQ_EXPORT void rq_source_prefetch(const rq_source *source, const rq_source_tensor *tensor, uint64_t row0,
                                  uint64_t rows);

/* ---- verifying a finished directory (`rq check`) ---- */
/* Compares what config.json promises with what the tensors are: config says quantized but the weight is dense; scales
 * or biases absent; scales with the wrong shape or dtype; packed weight without a config entry; index against files;
 * tie flag against lm_head; stray safetensors that loaders would pick up. Each finding is a warning note with its own
 * code. RQ_ERR_MISMATCH when there is any. */
RQ_EXPORT RQ_CHECK rq_status rq_check_directory(const char *directory, rq_notes *notes, rq_error *err);

#ifdef __cplusplus
}
#endif
#endif
