"""A sweep from Python: two learning rates with two seeds each, and the mean accuracy of each rate.

python examples/sweep_from_python.py
"""

from statistics import mean

import mlflow

from cifar_ray import SweepConfig, TrainConfig, sweep


def main() -> None:
    """Train four runs and compare the rates."""
    shared = TrainConfig(dataset="digits", model="simple_cnn", epochs=3, topology="1x1")
    result = sweep(SweepConfig(name="rates", grid={"lr": [0.01, 0.1]}, train=shared, seeds=2))
    client = mlflow.MlflowClient(result.tracking_uri)
    experiment = client.get_run(result.run_id).info.experiment_id
    runs = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{result.run_id}'")
    for rate in ("0.01", "0.1"):
        accuracies = [run.data.metrics["test/accuracy"] for run in runs if run.data.params["lr"] == rate]
        print(f"learning rate {rate}: mean accuracy {mean(accuracies):.2%} over {len(accuracies)} seeds")


if __name__ == "__main__":  # Ray's workers import this file
    main()
