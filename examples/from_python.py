"""Two runs that differ in one thing, from Python: the same 64 images per step on one worker and on two.

python examples/from_python.py
"""

from dataclasses import replace

from cifar_ray import TrainConfig, train


def main() -> None:
    """Train twice and compare."""
    one = TrainConfig(dataset="digits", model="simple_cnn", epochs=5, global_batch_size=64, topology="1x1")
    results = {topology: train(replace(one, topology=topology)) for topology in ("1x1", "1x2")}
    for topology, result in results.items():
        accuracy, speed = result.metrics["test/accuracy"], result.times["images_per_s"]
        print(f"{topology}: accuracy {accuracy:.2%}, {speed:,.0f} images/s, MLflow run {result.run_id}")


if __name__ == "__main__":  # Ray's workers import this file
    main()
