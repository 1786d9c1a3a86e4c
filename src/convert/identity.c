#include "convert/identity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/fold_scalar.h"

enum { sample_bytes = 4096 };

rq_status rq_source_fingerprint(const rq_source *source, char hex[65], rq_error *err) {
    const size_t count = rq_checkpoint_count(source->ckpt);
    const size_t per_tensor = 64 + 2 * sample_bytes;
    char *chain = malloc(64 + count * 64 + 1), *sample = malloc(per_tensor);
    if (!chain || !sample) {
        free(chain);
        free(sample);
        (void)rq_fail(err, RQ_ERR_NOMEM, "no memory for a fingerprint");
        return RQ_ERR_NOMEM;
    }
    rq_status st = rq_checkpoint_fingerprint(source->ckpt, hex, err);
    if (st == RQ_OK) memcpy(chain, hex, 64);
    for (size_t i = 0; st == RQ_OK && i < count; i++) {
        const rq_tensor_info *t = rq_checkpoint_at(source->ckpt, i);
        const rq_safetensors *file = rq_checkpoint_file(source->ckpt, i);
        const size_t n = (size_t)rq_min_u64(t->bytes, sample_bytes);
        st = rq_safetensors_read(file, t->offset, sample, n, err);
        if (st == RQ_OK) st = rq_safetensors_read(file, t->offset + t->bytes - n, sample + n, n, err);
        char digest[65];
        rq_sha256_hex(sample, 2 * n, digest);
        memcpy(chain + 64 + i * 64, digest, 64);
    }
    if (st == RQ_OK) rq_sha256_hex(chain, 64 + count * 64, hex);
    free(chain);
    free(sample);
    return st;
}

rq_status rq_compare_dropped_head(const rq_plan *plan, const rq_source *source, rq_notes *notes, rq_error *err) {
    if (!plan->dropped_head) return RQ_OK;
    const rq_source_tensor *head = rq_source_find(source, plan->dropped_head), *embedding = NULL;
    for (size_t i = 0; i < plan->count && !embedding; i++)
        if (strcmp(plan->tensors[i].role, "embedding") == 0) embedding = plan->tensors[i].source;
    if (!head || !embedding) return RQ_OK;
    if (head->rank != 2 || embedding->rank != 2 || head->shape[0] != embedding->shape[0] ||
        head->shape[1] != embedding->shape[1]) {
        rq_note_add(notes, RQ_NOTE_WARNING, "stored-head",
                    "%s is stored with another shape than the embedding; embeddings are tied, so it is not used",
                    head->name);
        return RQ_OK;
    }
    const size_t cols = (size_t)head->shape[1], width = cols * sizeof(double);
    char *a = malloc(width), *b = malloc(width);
    if (!a || !b) {
        free(a);
        free(b);
        (void)rq_fail(err, RQ_ERR_NOMEM, "no memory to compare %s", head->name);
        return RQ_ERR_NOMEM;
    }
    rq_status st = RQ_OK;
    double worst = 0;
    for (uint64_t r = 0; st == RQ_OK && r < head->shape[0]; r++) {
        st = rq_source_read(source, head, r, 1, 0, cols, a, cols * rq_dtype_bytes(head->dtype), err);
        if (st == RQ_OK)
            st = rq_source_read(source, embedding, r, 1, 0, cols, b, cols * rq_dtype_bytes(embedding->dtype), err);
        for (size_t c = 0; st == RQ_OK && c < cols; c++) {
            const double d = fabs(rq_element(a, head->dtype, c) - rq_element(b, embedding->dtype, c));
            if (isnan(d)) worst = INFINITY; /* a NaN counts as a difference, and stays one */
            if (d > worst) worst = d;
        }
    }
    if (st == RQ_OK && worst == 0)
        rq_note_add(notes, RQ_NOTE_INFO, "stored-head", "%s is stored but equals the tied embedding", head->name);
    else if (st == RQ_OK)
        rq_note_add(
            notes, RQ_NOTE_WARNING, "stored-head",
            "%s is stored and differs from the embedding by up to %.3g, but tie_word_embeddings is true: as in stock "
            "mlx-lm, the embedding is the head; set the flag to false in config.json if the stored head is meant",
            head->name, worst);
    free(a);
    free(b);
    return st;
}

rq_status rq_check_neutral_gain(const rq_plan *plan, const rq_source *source, rq_error *err) {
    if (!plan->requires_neutral_final_gain) return RQ_OK;
    const rq_source_tensor *norm = rq_source_find(source, plan->final_norm);
    if (!norm || norm->rank != 1) return rq_fail(err, RQ_ERR_MISSING, "%s: no such norm", plan->final_norm);
    const size_t n = (size_t)norm->shape[0];
    void *raw = malloc(n * sizeof(double) + 1);
    if (!raw) {
        (void)rq_fail(err, RQ_ERR_NOMEM, "no memory to read %s", plan->final_norm);
        return RQ_ERR_NOMEM;
    }
    rq_status st = rq_source_read(source, norm, 0, 1, 0, n, raw, n * rq_dtype_bytes(norm->dtype), err);
    for (size_t i = 0; st == RQ_OK && i < n; i++)
        if (rq_element(raw, norm->dtype, i) != 1.0)
            st = rq_fail(
                err, RQ_ERR_UNSUPPORTED,
                "--keep-tied: %s is not all ones (element %zu is %g), so folding it into the head would damage the "
                "shared embedding; leave --keep-tied out",
                plan->final_norm, i, rq_element(raw, norm->dtype, i));
    free(raw);
    return st;
}
