"""Whether the default of `--cpus-per-worker`, a node's CPUs shared by its workers, is the best number, in turn.

    python benchmarks/threads.py --rounds 5                             # about 15 minutes on 2 cores
    python benchmarks/threads.py --rounds 1 --steps 30 --models simple_cnn --dry    # does it work?

Each run trains some steps of real CIFAR-10 under torchrun, 64 images per worker in float32, with the default and with
each number of threads up to the node's CPUs. Images per second are those of the steady state (docs/exactness.md).
"""

from __future__ import annotations

import statistics

import record
import training

from cifar_ray.training import hardware

BATCH = 64


def main() -> None:
    """Measure every number in turn and save a row for each model and topology."""
    parser = record.parser(__doc__)
    parser.add_argument("--models", nargs="+", default=["simple_cnn", "resnet", "vit"], help="models")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each")
    parser.add_argument("--steps", type=int, default=60, help="steps of a run")
    given = parser.parse_args()
    counts = [2**power for power in range(hardware.allowed_cpus().bit_length())]
    choices = {"default": [], **{f"{count} threads": ["--cpus-per-worker", str(count)] for count in counts}}
    rows, raw = [], {}
    for model in given.models:
        for shape in ("1x1", "1x2"):
            words = ["--model", model, "--batch-size", str(BATCH), "--epochs", "1", "--precision", "fp32"]
            words += ["--steps-per-epoch", str(given.steps)]
            paces: dict[str, list[float]] = {name: [] for name in choices}
            for _ in range(given.rounds):
                for name, extra in choices.items():
                    paces[name].append(training.run([*words, *extra], shape)["images_per_s"])
            middle = {name: statistics.median(values) for name, values in paces.items()}
            best = max(middle[name] for name in choices if name != "default")
            shown = ", ".join(f"{name} {value:,.0f}" for name, value in middle.items())
            rows.append(
                record.Row(
                    f"{model}, {shape}",
                    "the best by hand",
                    f"{middle['default'] / best:.2f} of the best by hand",
                    given.rounds,
                    f"{shown} images/s",
                )
            )
            raw[f"{model} {shape}"] = paces
            print(rows[-1].what, rows[-1].measured, rows[-1].note, flush=True)
    record.save("threads", "The default number of threads against numbers set by hand", rows, raw, dry=given.dry)


if __name__ == "__main__":
    main()
