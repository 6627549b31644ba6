"""A spam filter without training: a chat model is asked how likely it is to answer with each label.

A small model leans to one of the labels whatever the text is. Its score for an empty text tells how
much; dividing by it takes the lean away (Zhao et al. 2021, arXiv:2102.09690).
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from api import models, post  # noqa: E402
from messages import JUDGE  # noqa: E402

LABELS = ["spam", "normal"]
ASK = ("Is this message unwanted advertising or fraud (spam), or a normal message between people "
       "(normal)? Answer with one word.")


def main():
    base = sys.argv[1]
    model = next(name for name in models(base) if "smollm2" in name.lower())
    texts = ["N/A", *(text for _, text in JUDGE)]
    body = {"model": model, "input": texts, "labels": LABELS, "instruction": ASK,
            "label_score": "mean"}
    data = post(base, "/v1/classify", body)["data"]
    lean = data[0]["probs"]
    right = 0
    for (label, text), entry in zip(JUDGE, data[1:]):
        odds = [share / usual for share, usual in zip(entry["probs"], lean)]
        share = odds[0] / sum(odds)
        right += (share > 0.5) == (label == "spam")
        print(f"{share:.2f} {label:4}  {text}")
    print(f"{right} of {len(JUDGE)} right, without training")
    return right > len(JUDGE) // 2


if __name__ == "__main__":
    sys.exit(not main())
