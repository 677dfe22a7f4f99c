"""Write scikit-learn's diabetes data as CSV files, and print what the mean and a linear regression reach on the test.

    python make_table.py diabetes
    cifar-ray train --dataset table:diabetes --target progression --epochs 20 --run-name first

442 patients, ten features, and how far the disease has gone a year later (25 to 346). A fixed fifth of them is the
test: 89 rows. The mean of the training rows has an R2 of -0.002 there, and linear regression 0.520.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

TARGET = "progression"
_TEST_EVERY = 5


def make(folder: Path) -> None:
    """Write ``train.csv`` and ``test.csv``."""
    table = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": TARGET})
    is_test = np.random.default_rng(0).permutation(len(table)) % _TEST_EVERY == 0
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in (("train", table[~is_test]), ("test", table[is_test])):
        rows.to_csv(folder / f"{part}.csv", index=False)
        print(f"{folder / part}.csv: {len(rows)} rows")


def baselines(folder: Path) -> None:
    """Print the figures of two models without a network."""
    halves = [np.genfromtxt(folder / f"{part}.csv", delimiter=",", skip_header=1) for part in ("train", "test")]
    (x, y), (shown, true) = ((half[:, :-1], half[:, -1]) for half in halves)
    for name, model in (("mean", DummyRegressor()), ("linear regression", LinearRegression())):
        answers = model.fit(x, y).predict(shown)
        r2, mae, mse = (figure(true, answers) for figure in (r2_score, mean_absolute_error, mean_squared_error))
        print(f"{name}: R2 {r2:.3f}, MAE {mae:.1f}, MSE {mse:.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    make(folder)
    baselines(folder)
