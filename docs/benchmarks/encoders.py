#!/usr/bin/env python3
"""Vectors of texts of mixed lengths: forthwith beside sentence-transformers, ONNX Runtime and OpenVINO.

    encoders.py FORTHWITH MODEL_FOLDER [ROUNDS]

All run on the same two pinned threads, one after the other, in turns; weights and arithmetic are
single floats everywhere. The others get what suits them: texts sorted by length, batches of 32,
padded to the longest of a batch. forthwith gets one HTTP request with all texts, over loopback.
Prints medians as JSON and the largest difference between anybody's vectors and torch's.
"""

import json
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import time
import urllib.request

CPUS = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, CPUS)
os.environ.update(OMP_NUM_THREADS="2", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
os.environ["KMP_BLOCKTIME"] = "0"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModel, AutoTokenizer  # noqa: E402

torch.set_num_threads(2)
WORDS = ("the server streams tokens while a queue of requests waits for memory and each answer costs time "
         "that somebody pays because nothing is free in a machine with two cores").split()
BATCH = 32


def texts():
    """512 texts of 3 to 190 words, most of them short, as sentences are."""
    chance = random.Random(5)
    lengths = [int(3 + 187 * chance.random() ** 3) for _ in range(512)]
    return [" ".join(chance.choice(WORDS) for _ in range(length)) for length in lengths]


class Forthwith:
    def __init__(self, binary, folder, *more):
        self.child = subprocess.Popen(
            [binary, "serve", "--model", folder, "--port", "0", "--threads", "2", *more],
            stderr=subprocess.PIPE, text=True)
        for line in self.child.stderr:
            if line.startswith("ready on "):
                self.base = line.split()[-1]
                break

    def __call__(self, batch):
        body = json.dumps({"input": batch, "encoding_format": "float"}).encode()
        request = urllib.request.Request(self.base + "/v1/embeddings", body,
                                         {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return np.array([entry["embedding"] for entry in json.load(answer)["data"]])


class Padded:
    """Batches of texts of like length, as sentence-transformers makes them."""

    def __init__(self, folder):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def __call__(self, batch):
        order = sorted(range(len(batch)), key=lambda at: -len(batch[at]))
        out = [None] * len(batch)
        for first in range(0, len(order), BATCH):
            places = order[first:first + BATCH]
            inputs = self.tokenizer([batch[at] for at in places], padding=True, truncation=True,
                                    max_length=256, return_tensors="np")
            rows = self.run({name: inputs[name].astype(np.int64) for name in
                             ("input_ids", "attention_mask", "token_type_ids")})
            mask = inputs["attention_mask"][:, :, None]
            vectors = (rows * mask).sum(1) / mask.sum(1)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            for at, vector in zip(places, vectors):
                out[at] = vector
        return np.array(out)


class Onnx(Padded):
    def __init__(self, folder):
        super().__init__(folder)
        import onnxruntime
        path = "/tmp/minilm.onnx"
        export(folder, path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        self.session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])

    def run(self, inputs):
        return self.session.run(None, inputs)[0]


class OpenVino(Padded):
    def __init__(self, folder):
        super().__init__(folder)
        import openvino
        path = "/tmp/minilm.onnx"
        export(folder, path)
        core = openvino.Core()
        self.model = core.compile_model(path, "CPU", {
            "INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"})

    def run(self, inputs):
        return self.model(inputs)[0]


class Rows(torch.nn.Module):
    def __init__(self, folder):
        super().__init__()
        self.model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.model(input_ids=input_ids, attention_mask=attention_mask,
                          token_type_ids=token_type_ids).last_hidden_state


def export(folder, path):
    if os.path.exists(path):
        return
    ids = torch.ones((2, 9), dtype=torch.long)
    axes = {name: {0: "batch", 1: "length"} for name in
            ("input_ids", "attention_mask", "token_type_ids")}
    torch.onnx.export(Rows(folder), (ids, ids, 0 * ids), path, input_names=list(axes),
                      output_names=["rows"], dynamic_axes=axes, dynamo=False, opset_version=17)


def sentence_transformers(folder):
    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer(folder, device="cpu")
    return lambda batch: model.encode(batch, batch_size=BATCH, show_progress_bar=False)


def main():
    binary, folder = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    batch = texts()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = sum(min(len(ids), 256) for ids in tokenizer(batch)["input_ids"])
    sides = {}
    for name, make in [("sentence-transformers", lambda: sentence_transformers(folder)),
                       ("onnxruntime", lambda: Onnx(folder)), ("openvino", lambda: OpenVino(folder)),
                       ("forthwith", lambda: Forthwith(binary, folder)),
                       ("forthwith q8_0", lambda: Forthwith(binary, folder, "--quantize", "q8_0"))]:
        try:
            sides[name] = make()
        except Exception as error:
            print(f"{name}: left out: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
    vectors = {name: side(batch) for name, side in sides.items()}
    times = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            began = time.perf_counter()
            side(batch)
            times[name].append(time.perf_counter() - began)
    want = np.asarray(vectors["sentence-transformers"], dtype=np.float64)
    report = {"machine": platform.processor() or platform.machine(), "cpus": CPUS, "texts": len(batch),
              "tokens": tokens, "rounds": rounds, "sides": {}}
    for name, seconds in times.items():
        median = statistics.median(seconds)
        cosine = (np.asarray(vectors[name], dtype=np.float64) * want).sum(1).min()
        report["sides"][name] = {
            "seconds": [round(value, 3) for value in seconds], "texts_s": round(len(batch) / median, 1),
            "tokens_s": round(tokens / median), "least_cosine": round(float(cosine), 7)}
    best = max(side["tokens_s"] for name, side in report["sides"].items() if "forthwith" not in name)
    for name, side in report["sides"].items():
        side["to_best_peer"] = round(side["tokens_s"] / best, 2)
    print(json.dumps(report, indent=1))
    for side in sides.values():
        if isinstance(side, Forthwith):
            side.child.terminate()


if __name__ == "__main__":
    main()
