#!/usr/bin/env python3
"""Writes a GGUF file with random weights in a well-known shape: only its speed means something.

    make_shape.py {1b|8b} {q4_0|q4_k_m|q8_0} OUT.gguf

Shapes of Llama-3.2-1B (tied head) and Llama-3.1-8B. Codes are uniform, block scales one constant
with which weights have mean 0 and a deviation near 0.02. No tokenizer. Needs numpy and gguf.
"""

import argparse

import numpy as np
from gguf import GGMLQuantizationType as Format
from gguf import GGUFWriter

DEVIATION = 0.02
VOCABULARY = 128256
SHAPES = {
    "1b": {"layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "head": 64, "inner": 8192, "tied": True},
    "8b": {"layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "head": 128, "inner": 14336, "tied": False},
}
# Format of the matrices, of the head, and the file type in the metadata.
MIXES = {
    "q4_0": (Format.Q4_0, Format.Q6_K, 2),
    "q4_k_m": (Format.Q4_K, Format.Q6_K, 15),
    "q8_0": (Format.Q8_0, Format.Q8_0, 7),
}
BLOCKS = {Format.Q4_0: (32, 18), Format.Q8_0: (32, 34), Format.Q4_K: (256, 144), Format.Q6_K: (256, 210)}


def half(value):
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def matrix(random, kind, rows, columns):
    """Random blocks. The divisors are the deviations of uniform codes."""
    elements, size = BLOCKS[kind]
    blocks = random.integers(0, 256, (rows * columns // elements, size), np.uint8)
    if kind == Format.Q4_0:
        blocks[:, :2] = half(DEVIATION / 4.61)
    elif kind == Format.Q8_0:
        blocks[:, :2] = half(DEVIATION / 73.9)
    elif kind == Format.Q4_K:
        scale = DEVIATION / (32 * 4.61)
        blocks[:, 0:2], blocks[:, 2:4] = half(scale), half(7.5 * scale)
        # Every sub-block's scale and minimum are 32: the last four have their top bits elsewhere.
        blocks[:, 4:12], blocks[:, 12:16] = 32 | 2 << 6, 0
    else:
        blocks[:, 192:208], blocks[:, 208:210] = 16, half(DEVIATION / (16 * 18.5))
    return blocks.reshape(rows, -1)


def describe(writer, shape, file_type):
    writer.add_context_length(131072)
    writer.add_embedding_length(shape["width"])
    writer.add_block_count(shape["layers"])
    writer.add_feed_forward_length(shape["inner"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_key_length(shape["head"])
    writer.add_value_length(shape["head"])
    writer.add_rope_dimension_count(shape["head"])
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(file_type)
    writer.add_quantization_version(2)
    writer.add_tokenizer_model("none")


def finer(layer, layers):
    """Whether a K mix stores this layer's values and down projection in Q6_K."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2


def write(name, mix, path):
    shape, (kind, head_kind, file_type) = SHAPES[name], MIXES[mix]
    random, writer = np.random.default_rng(1), GGUFWriter(path, "llama")
    describe(writer, shape, file_type)
    width, inner, layers = shape["width"], shape["inner"], shape["layers"]
    queries, keys = shape["heads"] * shape["head"], shape["kv_heads"] * shape["head"]

    def add(tensor, rows, columns, stored):
        writer.add_tensor(tensor, matrix(random, stored, rows, columns), raw_dtype=stored)

    def norm(tensor):
        writer.add_tensor(tensor, np.ones(width, np.float32))

    add("token_embd.weight", VOCABULARY, width, head_kind if shape["tied"] else kind)
    for layer in range(layers):
        prefix = f"blk.{layer}."
        better = Format.Q6_K if kind == Format.Q4_K and finer(layer, layers) else kind
        norm(prefix + "attn_norm.weight")
        norm(prefix + "ffn_norm.weight")
        add(prefix + "attn_q.weight", queries, width, kind)
        add(prefix + "attn_k.weight", keys, width, kind)
        add(prefix + "attn_v.weight", keys, width, better)
        add(prefix + "attn_output.weight", width, queries, kind)
        add(prefix + "ffn_gate.weight", inner, width, kind)
        add(prefix + "ffn_up.weight", inner, width, kind)
        add(prefix + "ffn_down.weight", width, inner, better)
    norm("output_norm.weight")
    if not shape["tied"]:
        add("output.weight", VOCABULARY, width, head_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("mix", choices=MIXES)
    parser.add_argument("out")
    args = parser.parse_args()
    write(args.shape, args.mix, args.out)


if __name__ == "__main__":
    main()
