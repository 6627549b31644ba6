"""A spam filter trained in a second: vectors of an encoder, and one weight for each of their numbers.

The head is logistic regression by gradient descent, which is all that a linear classifier over good
vectors needs.
"""

import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from api import encoder, vectors  # noqa: E402
from messages import JUDGE, TRAIN  # noqa: E402


def probability(weights, bias, vector):
    return 1 / (1 + math.exp(-bias - sum(w * x for w, x in zip(weights, vector))))


def train(samples, rounds=300, rate=2.0, decay=1e-3):
    weights, bias = [0.0] * len(samples[0][1]), 0.0
    for _ in range(rounds):
        slopes, slope = [0.0] * len(weights), 0.0
        for wanted, vector in samples:
            off = probability(weights, bias, vector) - wanted
            slope += off
            for at, x in enumerate(vector):
                slopes[at] += off * x
        count = len(samples)
        bias -= rate * slope / count
        weights = [w - rate * (s / count + decay * w) for w, s in zip(weights, slopes)]
    return weights, bias


def main():
    base = sys.argv[1]
    model = encoder(base)
    texts = [text for _, text in TRAIN + JUDGE]
    known = vectors(base, model, texts)
    samples = [(label == "spam", vector) for (label, _), vector in zip(TRAIN, known)]
    weights, bias = train(samples)
    right = 0
    for (label, text), vector in zip(JUDGE, known[len(TRAIN):]):
        share = probability(weights, bias, vector)
        right += (share > 0.5) == (label == "spam")
        print(f"{share:.2f} {label:4}  {text}")
    print(f"{right} of {len(JUDGE)} right")
    return right >= len(JUDGE) - 1


if __name__ == "__main__":
    sys.exit(not main())
