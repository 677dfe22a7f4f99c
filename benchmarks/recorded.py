"""Twenty short trainings over models, strategies and kinds of data: do they still give the same bits?

    python benchmarks/recorded.py before.json              # in the old checkout: weights, data digests and figures
    python benchmarks/recorded.py --against before.json    # in the new one; exit status 1 if anything differs

Both on one machine, since bits depend on the processor. Each training is a few steps under torchrun; with
CIFAR_RAY_DATA_DIR, those of CIFAR-10 and MNIST are among them. The flags are those of this checkout: where a change
renames flags, it renames them here too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Name -> workers, and the flags.
TRAININGS = {
    "simple_cnn ddp": (2, "--dataset digits --model simple_cnn"),
    "resnet gather_scatter": (2, "--dataset digits --model resnet --strategy gather_scatter"),
    "resnet reproducible": (2, "--dataset digits --model resnet --strategy reproducible --seed 3"),
    "vit all_reduce": (2, "--dataset digits --model vit --model-options.depth 2 --strategy all_reduce"),
    "vit gpipe": (2, "--dataset digits --model vit --strategy gpipe --strategy-options.micro-batches 2"),
    "mlp send_recv": (2, "--dataset table:{data}/rows --target progression --model mlp --strategy send_recv"),
    "simple_cnn local_sgd": (
        2,
        "--dataset digits --model simple_cnn --strategy local_sgd --strategy-options.sync-every 2",
    ),
    "resnet fsdp": (2, "--dataset digits --model resnet --strategy fsdp"),
    "resnet one_f_one_b": (2, "--dataset digits --model resnet --strategy one_f_one_b"),
    "simple_cnn model_parallel": (2, "--dataset digits --model simple_cnn --strategy model_parallel"),
    "simple_cnn bf16 hook": (2, "--dataset digits --model simple_cnn --strategy-options.comm-hook bf16"),
    "own images": (
        1,
        "--dataset folder:{data}/images --image-size 24 --test-share 0.2 --val-share 0.2 --model resnet --batch-size 32",
    ),
    "masks unet": (1, "--dataset masks:{data}/masks --image-size 32 --model unet --augment crop_flip"),
    "texts textcnn": (2, "--dataset text:{data}/texts --model textcnn"),
    "texts lstm": (1, "--dataset text:{data}/texts --model lstm --val-share 0.1"),
    "texts transformer": (1, "--dataset text:{data}/texts --model text_transformer"),
    "torchvision": (1, "--dataset digits --model torchvision:squeezenet1_1 --lr 0.01 --weight-decay 0"),
    "accumulated": (2, "--dataset digits --model simple_cnn --accumulate 2 --ema 0.9 --clip-norm 1"),
    "mnist resnet": (1, "--dataset mnist --model resnet --augment randaugment --test-images 64"),
    "cifar10 vgg11": (1, "--dataset cifar10 --model vgg11 --test-images 64 --augment mixup --global-batch-size 32"),
}
SHORT = "--epochs 1 --steps-per-epoch 3 --precision fp32 --device cpu"


def make_data(folder: Path) -> None:
    """Small images, masks, texts and rows, the same on every machine."""
    examples = ROOT / "examples"
    for script, name in (
        ("text/make_texts.py", "texts"),
        ("regression/make_table.py", "rows"),
        ("segmentation/make_masks.py", "masks"),
    ):
        subprocess.run([sys.executable, str(examples / script), str(folder / name)], check=True, capture_output=True)
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(0)
    for name in ("one", "two"):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(100):
            image = Image.fromarray(pixels.integers(0, 256, (30, 28, 3), dtype=np.uint8))
            image.save(folder / "images" / name / f"{number}.png")


def train(workers: int, flags: str, data: Path, folder: Path) -> dict[str, str]:
    """The digests and figures of one training; why it failed, if it did."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
    words = f"{flags} {SHORT}".replace("{data}", str(data)).split()
    command = [*torchrun, "-m", "cifar_ray.training", *words, "--storage", str(folder), "--run-name", "recorded"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    saved = re.findall(r"^checkpoint (.*) sha256 (\w+)$", done.stdout, re.MULTILINE)
    if done.returncode or not saved:
        errors = [line for line in done.stderr.splitlines() if "rror: " in line]
        return {"failed": errors[0] if errors else done.stderr.strip()[-400:]}
    manifest = (Path(saved[-1][0]) / "manifest.json").read_text()
    digests = re.findall(r'"digest": ("\w+"|null)', manifest)  # the last is that of the data that were read
    result = re.search(r"^result: (.*)$", done.stdout, re.MULTILINE)
    figures = [text for text in result[1].split(", ") if text.startswith(("test/", "val/"))] if result else []
    return {
        "weights": saved[-1][1],
        "data": digests[-1] if digests else "",
        "result": ", ".join(figures),
    }


def main() -> int:
    """Record, or compare with what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="where to write what came out")
    parser.add_argument("--against", type=Path, help="file of another checkout to compare with")
    parser.add_argument("--only", help="part of the names of the trainings")
    options = parser.parse_args()
    found, differing = {}, 0
    before = json.loads(options.against.read_text()) if options.against else {}
    with tempfile.TemporaryDirectory() as scratch:
        make_data(Path(scratch))
        for number, (name, (workers, flags)) in enumerate(TRAININGS.items()):
            if options.only and options.only not in name:
                continue
            found[name] = train(workers, flags, Path(scratch), Path(scratch) / str(number))
            is_same = not before or before.get(name) == found[name]
            differing += not is_same
            print(
                f"{name:26} {found[name]}" if is_same else f"{name:26} DIFFERS\n  {before.get(name)}\n  {found[name]}",
                flush=True,
            )
    if options.file:
        options.file.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
