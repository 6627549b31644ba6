#!/usr/bin/env python3
"""Loads forthwith's server and llama.cpp's server in turn with load.py, on the same machine and file.

    load_side_by_side.py --forthwith target/release/forthwith --rates target/release/examples/rates
                         [--llama-server PATH] --model PATH [--threads 2] [--out FILE]
                         [--soak 600] [--rounds 2] [--turns 1] [--seconds 60]

1. Rounds of 16 and 32 streams of 200 prompt and 64 new tokens, forthwith, then llama.cpp. Before and
   after forthwith, `rates` computes the same prompts and answers without a server, in waves and in an
   even mix: what the machine allows in that minute.
2. A system prompt of 1,000 tokens shared by all requests, one after the other (forthwith).
3. A soak: 32 streams, of which a fifth hang up in the middle, for `--soak` seconds on forthwith and
   a tenth of it (at least a minute) on llama.cpp.

Each server is started fresh for each measurement and warmed with eight short requests. llama.cpp's
server gets as many slots as there are streams, and a context of 512 tokens for each. It can be built
from the source distribution of llama-cpp-python, whose folder vendor/llama.cpp is the whole of it:
`cmake -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_UI=OFF`, then
`cmake --build build --target llama-server`. `rates` is `cargo build --release -p forthwith --example
rates`. Prints what it measures as it goes and writes everything as JSON.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
import urllib.request

HERE = pathlib.Path(__file__).parent
PORT = 9471


def note(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def command_of(args, server, streams):
    if server == "forthwith":
        memory = ["--kv-memory", args.kv_memory] if args.kv_memory else []
        return [args.forthwith, "serve", "--model", args.model, "--port", str(PORT), "--threads", str(args.threads), *memory]
    limits = ["-np", str(streams), "-c", str(512 * streams)]
    return [args.llama_server, "-m", args.model, "--port", str(PORT), "-t", str(args.threads), "-tb", str(args.threads), *limits]


def until_ready(process):
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            if urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2).status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the server is not ready after a minute")


def client(pid, *more):
    command = [sys.executable, str(HERE / "load.py"), "--url", f"http://127.0.0.1:{PORT}", "--pid", str(pid), *map(str, more)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measure(args, server, streams, *more):
    process = subprocess.Popen(command_of(args, server, streams), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until_ready(process)
        client(process.pid, "--streams", 4, "--requests", 8, "--max-tokens", 16, "--seconds", 60, "--seed", 99)
        result = client(process.pid, "--streams", streams, *more)
    finally:
        process.terminate()
        process.wait()
    brief = {key: result[key] for key in ("output_tokens_per_second", "steady_tokens_per_second", "gap_p99_over_median")}
    note(f"{server} {streams} streams {' '.join(map(str, more))}: {brief} ttft {result['ttft_ms']} gap {result['gap_ms']} errors {result['errors']}")
    return result


def rates(args, rows):
    command = [args.rates, args.model, "--threads", str(args.threads), "--rows", str(rows), "--rounds", "2"]
    rate = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["rates"][0]
    note(f"rates: {rate}")
    return rate


def mean(values):
    return sum(values) / len(values)


def round_of(args, streams):
    seconds = ("--seconds", args.seconds)
    allowed, ours = [rates(args, streams)], []
    for _ in range(args.turns):
        ours.append(measure(args, "forthwith", streams, *seconds))
        allowed.append(rates(args, streams))
    theirs = measure(args, "llama.cpp", streams, *seconds) if args.llama_server else None

    def share(rate):
        return round(mean([run["steady_tokens_per_second"] for run in ours]) / mean([run[rate] for run in allowed]), 3)

    result = {
        "streams": streams,
        "share_of_even_mix": share("mixed_output_tokens_per_second"),
        "share_of_waves": share("output_tokens_per_second"),
        "ratio_to_llama_cpp": round(mean([run["output_tokens_per_second"] for run in ours]) / theirs["output_tokens_per_second"], 2) if theirs else None,
        "rates": allowed, "forthwith": ours, "llama.cpp": theirs,
    }
    note(f"{streams} streams: {result['share_of_even_mix']} of an even mix, {result['share_of_waves']} of waves, {result['ratio_to_llama_cpp']} times llama.cpp")
    return result


def machine():
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), "")
    return {"cpu": cpu, "cores": os.cpu_count(), "avx512": "avx512f" in flags, "system": platform.platform(), "load": os.getloadavg()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in ("forthwith", "rates", "model"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--llama-server", help="left out: forthwith alone")
    parser.add_argument("--kv-memory", help="of forthwith; a small cache is soon full, and fresh memory no longer part of the time")
    parser.add_argument("--turns", type=int, default=1, help="measurements of forthwith in a round, with rates around each")
    parser.add_argument("--out", default="load.json")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--soak", type=int, default=600)
    args = parser.parse_args()
    result = {"when": time.strftime("%Y-%m-%d %H:%M"), "machine": machine(), "rounds": []}

    def save():
        pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n")

    for _ in range(args.rounds):
        for streams in (16, 32):
            result["rounds"].append(round_of(args, streams))
            save()
    shared = ("--requests", 10, "--shared-system", 1000, "--prompt-tokens", 1020, "--max-tokens", 8, "--seconds", 300)
    result["shared_system"] = measure(args, "forthwith", 1, *shared)
    save()
    if args.soak:
        result["soak"] = {
            "forthwith": measure(args, "forthwith", 32, "--seconds", args.soak, "--cancel", 0.2),
            "llama.cpp": measure(args, "llama.cpp", 32, "--seconds", max(60, args.soak // 10), "--cancel", 0.2) if args.llama_server else None,
        }
    save()
    note(f"written to {args.out}")


if __name__ == "__main__":
    main()
