"""Make a small set of texts with labels, without a network: what guests say of a restaurant's food.

    python make_texts.py reviews
    cifar-ray train --dataset text:reviews --model lstm --epochs 8

from this folder. Each of 5,000 reviews is made by rules. It gives an opinion of something to eat and an independent one
of something else, in either order: "The waiter was anything but rude, but I would not call the soup good." The label
says whether the food is liked. So it takes the order of the words to tell what is liked, and what "not" belongs to: it
may turn an opinion round, stand for a whole clause ("the music was not"), or change nothing ("I did not expect ...").
Every fifth review is for the test, and no review is there twice. The same numbers make the same files.

``--baseline`` trains scikit-learn's logistic regression on word counts and prints its test accuracy: what can be told
without the order.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from random import Random

LABELS = ("bad", "good")
FOOD = ["food", "soup", "bread", "fish", "salad", "dessert", "curry", "pasta", "steak", "breakfast"]
OTHER = ["service", "music", "waiter", "room", "view", "terrace", "parking", "decoration", "staff", "website"]
ADJECTIVES = (
    ["bad", "awful", "poor", "dreadful", "disappointing", "terrible", "dull", "horrible"],
    ["good", "great", "lovely", "excellent", "wonderful", "superb", "pleasant", "delightful"],
)
ADVERBS = ["", "", "really ", "very ", "rather ", "surprisingly "]
PLAIN = [
    "the {thing} was {adverb}{own}",
    "we found the {thing} {adverb}{own}",
    "I did not expect the {thing} to be so {own}",
    "not only my sister called the {thing} {own}",
    "nothing was as {own} as the {thing}",
]
TURNED = [
    "the {thing} was not {adverb}{opposite}",
    "the {thing} was anything but {opposite}",
    "I would not call the {thing} {opposite}",
    "nobody at our table found the {thing} {opposite}",
    "I cannot say that the {thing} was not {own}",
]
JOINED = [
    "{one}, but {other}",
    "{one} and {other}",
    "although {one}, {other}",
    "{one}. {other}",
    "{one}, while {other}",
]
ELLIPTIC = [  # of two that differ; the adjective is that of the first
    "the {first} was {adverb}{own}, but the {second} was not",
    "the {second} was not {own}, but the {first} was",
    "unlike the {second}, the {first} was {adverb}{own}",
    "the {first} was {adverb}{own}, unlike the {second}",
]
OPENINGS = ["", "", "", "last night ", "honestly, ", "on our second visit ", "after all these years ", "to be fair, "]
ENDINGS = [".", ".", "!", ". We paid 40 euros.", ". It was a Tuesday.", ". My family said so, too.", ". What a day!"]


def clause(random: Random, thing: str, liked: int) -> str:
    """One opinion of a thing."""
    own, opposite = random.choice(ADJECTIVES[liked]), random.choice(ADJECTIVES[1 - liked])
    form = random.choice(random.choice([PLAIN, PLAIN, TURNED]))
    return form.format(thing=thing, own=own, opposite=opposite, adverb=random.choice(ADVERBS))


def review(random: Random, liked: int) -> str:
    """A text that likes the food, or does not."""
    opinions = [(random.choice(FOOD), liked), (random.choice(OTHER), random.randrange(2))]
    random.shuffle(opinions)
    (first, likes_first), (second, likes_second) = opinions
    if random.random() < 0.2:
        said = clause(random, random.choice(FOOD), liked)
    elif likes_first != likes_second and random.random() < 0.4:
        own, adverb = random.choice(ADJECTIVES[likes_first]), random.choice(ADVERBS)
        said = random.choice(ELLIPTIC).format(first=first, second=second, own=own, adverb=adverb)
    else:
        one, other = (clause(random, *opinion) for opinion in opinions)
        said = random.choice(JOINED).format(one=one, other=other)
    text = random.choice(OPENINGS) + said + random.choice(ENDINGS)
    return ". ".join(sentence[0].upper() + sentence[1:] for sentence in text.split(". "))


def make(folder: Path, count: int = 5000, seed: int = 0) -> None:
    """Write that many reviews to ``train.csv`` and ``test.csv`` in ``folder``."""
    random, reviews = Random(seed), dict[str, str]()
    while len(reviews) < count:
        liked = random.randrange(2)
        reviews.setdefault(review(random, liked), LABELS[liked])
    rows = [*reviews.items()]
    folder.mkdir(parents=True, exist_ok=True)
    for name, half in (("test", rows[::5]), ("train", [row for at, row in enumerate(rows) if at % 5])):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([("text", "label"), *half])


def baseline(folder: Path) -> float:
    """Test accuracy of a logistic regression on word counts."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    halves = []
    for name in ("train", "test"):
        with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            halves.append([(row["text"], row["label"]) for row in csv.DictReader(file)])
    train, test = (tuple(zip(*half)) for half in halves)
    model = make_pipeline(CountVectorizer(), LogisticRegression(max_iter=1000)).fit(*train)
    return float(model.score(*test))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=5000, help="reviews (5000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--baseline", action="store_true", help="also train a logistic regression on word counts")
    asked = parser.parse_args()
    make(asked.folder, asked.count, asked.seed)
    print(f"{asked.folder}: {asked.count:,} reviews of {len(LABELS)} classes")
    if asked.baseline:
        print(f"logistic regression on word counts: accuracy {baseline(asked.folder):.1%}")
