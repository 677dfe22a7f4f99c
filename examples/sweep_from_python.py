"""A sweep from Python: two learning rates with two seeds each, the mean accuracy of each rate, and a report.

python examples/sweep_from_python.py
"""

from cifar_ray import SweepConfig, TrainConfig, compare, report, sweep


def main() -> None:
    """Train four runs and compare the rates."""
    shared = TrainConfig(dataset="digits", model="simple_cnn", epochs=3, topology="1x1")
    result = sweep(SweepConfig(name="rates", grid={"lr": [0.01, 0.1]}, train=shared, seeds=2))
    made = report(result.name, out="rates")
    figures = made.data["figures"]
    for row in figures[figures.figure == "accuracy_percent"].itertuples():
        print(f"learning rate {row.lr}: mean accuracy {row.mean:.2f}% over {row.n} seeds")
    print(made.files[0])
    first, *_, last = result.states
    print(compare(first, last))


if __name__ == "__main__":  # Ray's workers import this file
    main()
