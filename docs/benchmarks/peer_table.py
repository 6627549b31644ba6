#!/usr/bin/env python3
"""Prints the table of forthwith beside llama.cpp: ten rows, two pinned threads, one machine.

    peer_table.py --rates target/release/examples/rates --smollm2 PATH --gemma PATH
                  [--rows smol-decode,1b-q4_0] [--rounds 3] [--cpus 0,1] [--python PATH]
                  [--scratch DIR] [--out RAW.json]

`rates` is built by `cargo build --release -p forthwith --example rates`. llama.cpp comes through
llama-cpp-python, with gguf and numpy: from --python, else from PyPI into a new environment in
--scratch. Each round runs forthwith, then llama.cpp, in processes of their own with the same
pinned CPUs; loading and sampling are not measured, keys and values are f16 and prompts go through
in pieces of 512 on both sides. Files with random weights (make_shape.py) are made in --scratch
and deleted after their row. The ratio is the median of the rounds' ratios; the roof is the read
bandwidth measured in the same rounds with numpy, and the share what decoding reads of it.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).parent
PIECE = 512
# Row: model, then each measurement as (name, prompt, steps, batch, ratio that must be, ratio aimed at).
ROWS = {
    "smol-prefill-512": ("smollm2", [("prefill", 512, 1, 1, 4.7, 7.0)]),
    "smol-prefill-2048": ("smollm2", [("prefill", 2048, 1, 1, 4.3, 6.9)]),
    "smol-decode": ("smollm2", [("decode", 1, 64, 1, 2.3, 2.8)]),
    "smol-depth-2048": ("smollm2", [("decode", 2048, 64, 1, 3.9, 5.5)]),
    "smol-batch-32": ("smollm2", [("decode", 1, 64, 32, 4.4, 6.6)]),
    "gemma": ("gemma", [("prefill", 512, 1, 1, 2.2, 3.4), ("decode", 1, 64, 1, 1.6, 1.9)]),
    "1b-q4_0": ("1b q4_0", [("prefill", 512, 1, 1, 1.9, 2.15), ("decode", 1, 32, 1, 1.45, 1.74)]),
    "1b-q4_k_m": ("1b q4_k_m", [("prefill", 512, 1, 1, 1.85, 2.27), ("decode", 1, 32, 1, 1.4, 1.6)]),
    "1b-q8_0": ("1b q8_0", [("prefill", 512, 1, 1, 1.6, 2.15), ("decode", 1, 32, 1, 1.15, 1.33)]),
    "8b-q4_k_m": ("8b q4_k_m", [("prefill", 512, 1, 1, 2.0, 2.5), ("decode", 1, 16, 1, 1.27, 1.43)]),
}


def peer(model_path, threads, prompt, steps, batch):
    """One measurement of llama.cpp: seconds for the prompts, and for the steps after them."""
    import llama_cpp as llama

    llama.llama_backend_init()
    parameters = llama.llama_model_default_params()
    parameters.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(model_path.encode(), parameters)
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    parameters = llama.llama_context_default_params()
    parameters.n_ctx = batch * -(-(prompt + steps + 1) // 256) * 256
    parameters.n_batch = parameters.n_ubatch = PIECE
    parameters.n_seq_max = batch
    parameters.n_threads = parameters.n_threads_batch = threads

    def step(context, pieces):
        tokens = sum(count for _, _, count in pieces)
        call, index = llama.llama_batch_init(tokens, 0, 1), 0
        call.n_tokens = tokens
        for row, position, count in pieces:
            for place in range(position, position + count):
                call.token[index] = (row * 7919 + place * 37 + 11) % vocabulary
                call.pos[index] = place
                call.n_seq_id[index] = 1
                call.seq_id[index][0] = row
                call.logits[index] = int(place == position + count - 1)
                index += 1
        code = llama.llama_decode(context, call)
        llama.llama_synchronize(context)
        llama.llama_batch_free(call)
        if code != 0:
            raise SystemExit(f"llama_decode: {code}")

    def once():
        context = llama.llama_init_from_model(model, parameters)
        if not context:
            raise SystemExit("llama.cpp gave no context")
        times = [time.perf_counter()]
        if prompt == 1:
            step(context, [(row, 0, 1) for row in range(batch)])
        else:
            for row in range(batch):
                for position in range(0, prompt, PIECE):
                    step(context, [(row, position, min(PIECE, prompt - position))])
        times.append(time.perf_counter())
        for position in range(prompt, prompt + steps):
            step(context, [(row, position, 1) for row in range(batch)])
        times.append(time.perf_counter())
        llama.llama_free(context)
        return times[1] - times[0], times[2] - times[1]

    once()
    prefill, decode = once()
    print(json.dumps({"prefill": batch * prompt / prefill, "decode": batch * steps / decode}))


def peer_apart(args, model, prompt, steps, batch):
    command = [args.python, __file__, "--peer", model, str(prompt), str(steps), str(batch)]
    command += ["--cpus", args.cpus]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def ours(args, model, prompt, steps, batch):
    command = [args.rates, model, "--threads", str(len(args.cpus.split(",")))]
    command += ["--prompt", str(prompt), "--answer", str(steps + 1), "--rows", str(batch)]
    command += ["--rounds", "1", "--step-tokens", str(PIECE)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rates = json.loads(done.stdout)["rates"][0]
    return {"prefill": rates["prefill_tokens_per_second"], "decode": rates["decode_tokens_per_second"]}


def read_rate(threads):
    """GB/s that all threads read together, in memory that numpy asks huge pages for."""
    import numpy

    parts = [numpy.ones(32 << 20, numpy.int64) for _ in range(threads)]
    rates = []
    for _ in range(5):
        workers = [threading.Thread(target=part.max) for part in parts]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        rates.append(sum(part.nbytes for part in parts) / (time.perf_counter() - began) / 1e9)
    return statistics.median(rates)


def read_bytes(model):
    """What one decode step reads of the weights: all but an embedding that is not the head."""
    from gguf import GGUFReader

    sizes = {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(model).tensors}
    untied = "output.weight" in sizes
    return sum(sizes.values()) - (sizes["token_embd.weight"] if untied else 0)


def model_path(args, name):
    """The file, and whether it was made for this row."""
    if " " not in name:
        path = getattr(args, name)
        if not path:
            raise SystemExit(f"give --{name} PATH for this row, or choose others with --rows")
        return path, False
    shape, mix = name.split()
    path = pathlib.Path(args.scratch) / f"{shape}-{mix}.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return str(path), False
    subprocess.run([args.python, str(HERE / "make_shape.py"), shape, mix, str(path)], check=True)
    return str(path), True


def measure(args, row):
    name, measurements = ROWS[row]
    path, made = model_path(args, name)
    size, lines = read_bytes(path), []
    for what, prompt, steps, batch, must, aim in measurements:
        rounds = []
        for _ in range(args.rounds):
            rounds.append({
                "read_gb_s": read_rate(len(args.cpus.split(","))),
                "forthwith": ours(args, path, prompt, steps, batch)[what],
                "llama_cpp": peer_apart(args, path, prompt, steps, batch)[what],
            })
        middle = lambda key: statistics.median(one[key] for one in rounds)
        line = {"row": row, "what": what, "prompt": prompt, "batch": batch, "must": must, "aim": aim}
        line |= {key: round(middle(key), 2) for key in rounds[0]}
        line["ratio"] = round(statistics.median(one["forthwith"] / one["llama_cpp"] for one in rounds), 2)
        if what == "decode" and batch == 1:
            share = [one["forthwith"] * size / 1e9 / one["read_gb_s"] for one in rounds]
            line["roof_share"] = round(statistics.median(share), 3)
        line["rounds"] = rounds
        lines.append(line)
        show(line)
    if made:
        pathlib.Path(path).unlink()
    return lines


def show(line):
    share = f"{line['roof_share']:.0%}" if "roof_share" in line else "-"
    print(
        f"| {line['row']} {line['what']} | {line['forthwith']:.1f} | {line['llama_cpp']:.1f} "
        f"| {line['ratio']:.2f} | {line['must']} | {line['aim']} | {share} |",
        flush=True,
    )


def environment(scratch):
    """A Python with llama-cpp-python, made once."""
    home = pathlib.Path(scratch) / "peer-environment"
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        packages = ["llama-cpp-python", "gguf", "numpy"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return str(python)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates")
    parser.add_argument("--smollm2")
    parser.add_argument("--gemma")
    parser.add_argument("--rows", default=",".join(ROWS), help="which rows, by name: " + ", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpus", default="0,1")
    parser.add_argument("--python")
    parser.add_argument("--scratch", default=tempfile.gettempdir())
    parser.add_argument("--out")
    parser.add_argument("--peer", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = [row for row in args.rows.split(",") if row not in ROWS]
    if unknown:
        parser.error(f"--rows: unknown {', '.join(unknown)}; known are {', '.join(ROWS)}")
    if args.rounds < 1:
        parser.error("--rounds: give at least 1")
    if not args.peer and not args.rates:
        parser.error("--rates: give the path of the example `rates`")
    return args


def main():
    args = arguments()
    os.sched_setaffinity(0, {int(cpu) for cpu in args.cpus.split(",")})
    if args.peer:
        return peer(args.peer[0], len(args.cpus.split(",")), *map(int, args.peer[1:]))
    args.python = args.python or environment(args.scratch)
    if pathlib.Path(args.python).absolute() != pathlib.Path(sys.executable).absolute():
        os.execv(args.python, [args.python, __file__, *sys.argv[1:], "--python", args.python])
    print("| row | forthwith | llama.cpp | ratio | must | aim | share of the roof |")
    print("|---|--:|--:|--:|--:|--:|--:|", flush=True)
    lines = [line for row in args.rows.split(",") for line in measure(args, row)]
    if args.out:
        report = {"cpus": args.cpus, "rounds": args.rounds, "lines": lines}
        pathlib.Path(args.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
