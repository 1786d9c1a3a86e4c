#include "model/generic.h"

#include <string.h>

#include "base/base.h"

static bool contains_any(const char *name, const char *const *parts, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strstr(name, parts[i])) return true;
    return false;
}

bool rq_generic_keeps_dtype(const rq_source_tensor *tensor) {
    if (tensor->dtype != RQ_F32 && tensor->dtype != RQ_BF16 && tensor->dtype != RQ_F16) return false;
    return strstr(tensor->name, "conv") ||
           (!rq_has_suffix(tensor->name, ".weight") && !rq_has_suffix(tensor->name, ".bias"));
}

rq_generic_kind rq_generic_classify(const rq_source_tensor *tensor, const char **reason) {
    static const char *const norms[] = {"norm", "ln_"};
    static const char *const towers[] = {"visual.", "vision_", "audio_tower", "multi_modal_projector"};
    static const char *const embeddings[] = {"embed", "wte", "wpe"};
    const char *name = tensor->name;

    *reason = "not a weight";
    if (!rq_has_suffix(name, ".weight")) return RQ_GENERIC_OTHER;
    *reason = "norm";
    if (contains_any(name, norms, RQ_COUNT_OF(norms))) return RQ_GENERIC_OTHER;
    *reason = "convolution";
    if (strstr(name, "conv")) return RQ_GENERIC_OTHER;
    *reason = "not a floating type";
    if (!rq_dtype_is_float(tensor->dtype)) return RQ_GENERIC_OTHER;
    if (tensor->encoding == RQ_ENC_MLX_QUANT && tensor->rank > 2) {
        *reason = "stacked experts (rank 3)";
        return RQ_GENERIC_KEPT;
    }
    *reason = "not a matrix";
    if (tensor->rank != 2) return RQ_GENERIC_OTHER;
    if (contains_any(name, towers, RQ_COUNT_OF(towers))) {
        *reason = "vision or audio tower";
        return RQ_GENERIC_KEPT;
    }

    /* The last part in front of ".weight": routers are "gate", "router" or "shared_expert_gate", never "gate_proj". */
    char last[64] = "";
    const size_t length = strlen(name) - strlen(".weight");
    size_t start = length;
    while (start && name[start - 1] != '.') start--;
    if (length - start < sizeof last) memcpy(last, name + start, length - start);
    if (strcmp(last, "gate") == 0 || rq_has_suffix(last, "router") || rq_has_suffix(last, "_gate")) {
        *reason = "router";
        return RQ_GENERIC_KEPT;
    }
    *reason = "linear";
    return contains_any(last, embeddings, RQ_COUNT_OF(embeddings)) ? RQ_GENERIC_EMBEDDING : RQ_GENERIC_LINEAR;
}
