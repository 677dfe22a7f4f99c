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
        # float64, which rows of numbers are standardised in, is slow on a GPU.
        self.device = "cuda" if torch.cuda.is_available() and "features" not in self.config else "cpu"
        program = torch.export.load(context.artifacts["network"])
        if self.device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, self.device)
        self.network = program.module()
        if "tokenizer" in context.artifacts:
            from tokenizers import Tokenizer

            self.tokenizer = Tokenizer.from_file(context.artifacts["tokenizer"])

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        answers: list[dict[str, Any]] = []
        for begin in range(0, len(model_input), AT_ONCE):
            inputs, sizes = self.inputs(model_input[begin : begin + AT_ONCE])
            with torch.no_grad():
                rows = self.network(torch.from_numpy(inputs).to(self.device)).cpu()
            answers += map(self.answer, rows, sizes)
        return pd.DataFrame(answers)

    def inputs(self, part: pd.DataFrame) -> tuple[np.ndarray, list[Any]]:
        """The network's input for the rows of a frame, and the width and height of each image."""
        nothing = [None] * len(part)
        if self.config["inputs"] == "images":
            images = [self.image(file) for file in part["image"]]
            return np.stack([self.pixels(image) for image in images]), [image.size for image in images]
        if self.config["inputs"] == "features":
            return np.array(part[self.config["features"]], np.float64), nothing
        rows = np.zeros((len(part), self.config["length"]), dtype=np.int32)  # the tokenizer's numbers plus 1; 0 pads
        for row, encoding in zip(rows, self.tokenizer.encode_batch(list(part["text"]))):
            row[: len(encoding.ids)] = np.array(encoding.ids, dtype=np.int32) + 1
        return rows, nothing

    def answer(self, row: torch.Tensor, size: Any) -> dict[str, Any]:
        """The answer for a sample; ``size`` is an image's width and height."""
        labels = self.config["labels"]
        if self.config["answer"] == "masks":
            return self.mask(row, size)
        if self.config["answer"] == "values":
            return dict(zip(labels, row.tolist()))
        ranked = {labels[at]: row[at].item() for at in row.argsort(descending=True).tolist()}
        label, probability = next(iter(ranked.items()))
        return {"label": label, "probability": probability, "probabilities": ranked}

    def mask(self, row: torch.Tensor, size: tuple[int, int]) -> dict[str, Any]:
        """A mask of an image's centre as a PNG file of that width and height."""
        from PIL import Image

        side, file, whole = min(size), BytesIO(), Image.new("L", size, 255)
        centre = Image.fromarray(row.numpy()).resize((side, side), Image.Resampling.NEAREST)
        whole.paste(centre, ((size[0] - side) // 2, (size[1] - side) // 2))
        whole.save(file, "png")
        return {"mask": file.getvalue()}

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


mlflow.models.set_model(LoggedModel())
