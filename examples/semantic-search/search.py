"""Finds notes by meaning: no query shares a word that counts with its answer."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from api import encoder, vectors  # noqa: E402

NOTES = [
    "The invoice was sent to the customer on Monday.",
    "Water the plants twice a week in summer.",
    "The flight to Lisbon leaves at seven in the morning.",
    "Restart the router if the lights stay red.",
    "Grandmother's soup needs two hours on a low flame.",
    "The dentist can see you next Thursday.",
]
QUERIES = {
    "the internet does not work": 3,
    "how long must dinner cook": 4,
    "when do I travel to Portugal": 2,
    "my tooth hurts": 5,
    "has the bill been paid": 0,
}


def main():
    base = sys.argv[1]
    model = encoder(base)
    notes = vectors(base, model, NOTES)
    found = 0
    for query, wanted in QUERIES.items():
        (vector,) = vectors(base, model, [query])
        # Vectors have length 1, so the product is the cosine.
        scores = [sum(a * b for a, b in zip(vector, note)) for note in notes]
        best = max(range(len(NOTES)), key=scores.__getitem__)
        found += best == wanted
        print(f"{query:32} {scores[best]:.2f}  {NOTES[best]}")
    print(f"{found} of {len(QUERIES)} found")
    return found == len(QUERIES)


if __name__ == "__main__":
    sys.exit(not main())
