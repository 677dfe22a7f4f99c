"""A run's model for MLflow: images, texts or rows of numbers in; labels with probabilities, values or masks out.

MLflow keeps this file with a model and runs it to load the model ("models from code"). It needs torch, NumPy, pandas,
MLflow, and Pillow for images or tokenizers for texts, and nothing of the program that has trained the network.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import torch
from mlflow.pyfunc import PythonModel

AT_ONCE = 256  # samples in one forward pass
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")  # others may start a program


class LoggedModel(PythonModel):
    """Answer with an exported network, on a GPU if there is one; rows of numbers on the CPU.

    ``predict`` takes a DataFrame: with the column ``image``, the bytes of image files of any size; with the column
    ``text``, texts; or with a column for each feature. A classifier's answer is one with the columns ``label`` and
    ``probability``, and ``probabilities``: all labels with theirs, likeliest first. A network of masks answers with
    the column ``mask``: PNG files as large as the images, with the number of each pixel's class, and 255 beside the
    centre, which is what the network sees. Another network's answer has a column for each of its values.
    """

    def load_context(self, context: Any) -> None:
        self.config = context.model_config
        self.device = "cuda" if torch.cuda.is_available() and self.config["inputs"] != "features" else "cpu"
        program = torch.export.load(context.artifacts["network"])
        if self.device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, self.device)
        self.network = program.module()
        if self.config["inputs"] == "tokens":
            from tokenizers import Tokenizer

            self.tokenizer = Tokenizer.from_file(context.artifacts["tokenizer"])

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        answers: list[dict[str, Any]] = []
        for begin in range(0, len(model_input), AT_ONCE):
            answers += self.answers(model_input[begin : begin + AT_ONCE])
        return pd.DataFrame(answers)

    def answers(self, part: pd.DataFrame) -> list[dict[str, Any]]:
        """The answer for each row, by column."""
        images: list[Any] = []
        if self.config["inputs"] == "images":
            images = [self.image(file) for file in part["image"]]
            inputs = np.stack([self.pixels(image) for image in images])
        elif self.config["inputs"] == "tokens":
            inputs = self.tokens(list(part["text"]))
        else:
            inputs = np.array(part[self.config["features"]], np.float64)
        with torch.no_grad():
            rows = self.network(torch.from_numpy(inputs).to(self.device)).cpu()
        labels = self.config["labels"]
        if self.config["answer"] == "values":
            return [dict(zip(labels, row)) for row in rows.tolist()]
        if self.config["answer"] == "masks":
            return [{"mask": self.mask(row.numpy(), image.size)} for row, image in zip(rows, images)]
        ranked = [{labels[at]: row[at].item() for at in row.argsort(descending=True).tolist()} for row in rows]
        likeliest = [next(iter(each.items())) for each in ranked]
        return [
            {"label": label, "probability": probability, "probabilities": each}
            for (label, probability), each in zip(likeliest, ranked)
        ]

    def image(self, file: bytes) -> Any:
        """An image file as RGB, turned as its EXIF data say."""
        from PIL import Image, ImageOps

        with Image.open(BytesIO(file), formats=FORMATS) as opened:
            image = ImageOps.exif_transpose(opened)
        if image.mode in ("I", "F"):
            raise ValueError("an image has 32-bit values; save it with 8 bits each")
        if image.mode.startswith("I;16"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return image.convert("RGB")

    def mask(self, numbers: np.ndarray, size: tuple[int, int]) -> bytes:
        """A mask of an image's centre as a PNG file of that width and height."""
        from PIL import Image

        side, file, whole = min(size), BytesIO(), Image.new("L", size, 255)
        centre = Image.fromarray(numbers).resize((side, side), Image.Resampling.NEAREST)
        whole.paste(centre, ((size[0] - side) // 2, (size[1] - side) // 2))
        whole.save(file, "png")
        return file.getvalue()

    def pixels(self, image: Any) -> np.ndarray:
        """The network's input for an image: uint8, (side, side, 3)."""
        from PIL import Image, ImageOps

        side, native = self.config["side"], self.config["native_side"]
        if self.config["crop"]:
            return np.asarray(ImageOps.fit(image, (side, side), Image.Resampling.BILINEAR))
        image = (image.convert("L") if self.config["grey"] else image).resize((native, native)).convert("RGB")
        enlarged = np.asarray(image).repeat(side // native, axis=0).repeat(side // native, axis=1)
        border = (side - len(enlarged)) // 2
        return np.pad(enlarged, ((border, border), (border, border), (0, 0)))

    def tokens(self, texts: list[str]) -> np.ndarray:
        """The network's input for texts: int32, (N, length), the tokenizer's numbers plus 1, with 0 as padding."""
        rows = np.zeros((len(texts), self.config["length"]), dtype=np.int32)
        for row, encoding in zip(rows, self.tokenizer.encode_batch(texts)):
            row[: len(encoding.ids)] = np.array(encoding.ids, dtype=np.int32) + 1
        return rows


mlflow.models.set_model(LoggedModel())
