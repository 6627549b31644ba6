"""What it costs to hold answers to a form: pauses between tokens with and without one, interleaved.

Arguments: the address of a server (`http://127.0.0.1:8080/v1`), a model, rounds, and a file for the raw numbers.
"""

import json
import statistics
import sys
import time
import urllib.request

TOKENS = 128
FORMS = {
    "none": {"ignore_eos": True},
    "schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
            "type": "array", "minItems": 60, "items": {
                "type": "object", "additionalProperties": False, "required": ["sku", "count", "note"],
                "properties": {
                    "sku": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"},
                    "count": {"type": "integer", "minimum": 0, "maximum": 999},
                    "note": {"type": "string", "minLength": 4, "maxLength": 40},
                },
            },
        }}},
    },
    "free text in JSON": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {
            "type": "object", "additionalProperties": False, "required": ["text"],
            "properties": {"text": {"type": "string", "minLength": 2000}},
        }}},
    },
    "expression": {"regex": "([a-z]{1,12}[ ,.]){400,500}"},
    "grammar": {"grammar": 'root ::= ("-" " " [a-zA-Z ]{1,40} "\\n"){60,80}'},
}


def pauses(base, model, seed, form):
    body = {
        "model": model, "stream": True, "max_tokens": TOKENS, "seed": seed, "temperature": 0.8,
        "messages": [{"role": "user", "content": "Write a list of things in a harbour."}], **form,
    }
    request = urllib.request.Request(
        f"{base}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    times = []
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
    # The first parts bring the role and come after the prompt.
    return [b - a for a, b in zip(times[3:], times[4:-1])]


def main():
    base, model, rounds, path = sys.argv[1:5]
    for form in FORMS.values():
        pauses(base, model, 0, form)
    raw = {name: [] for name in FORMS}
    for seed in range(int(rounds)):
        for name, form in FORMS.items():
            raw[name].append(1e3 * statistics.median(pauses(base, model, seed, form)))
    plain = raw["none"]
    for name, medians in raw.items():
        ratios = sorted(ours / theirs for ours, theirs in zip(medians, plain))
        print(f"{name:20} {statistics.median(medians):.3f} ms a token, "
              f"{statistics.median(ratios):.3f} of plain ({ratios[0]:.3f} to {ratios[-1]:.3f})")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"tokens": TOKENS, "median_pause_ms": raw}, file, indent=1)


main()
