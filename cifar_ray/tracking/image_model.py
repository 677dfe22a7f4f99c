"""A model of images for MLflow: image files in, labels with probabilities out, values by name, or masks.

MLflow keeps this file with a model and runs it to load the model ("models from code"). It needs torch, Pillow, NumPy
and MLflow, and nothing of the program that has trained the network.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import torch
from mlflow.pyfunc import PythonModel
from PIL import Image, ImageOps

AT_ONCE = 256  # images in one forward pass
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")  # others may start a program


class ImageModel(PythonModel):
    """Answer for image files with an exported network, on a GPU if there is one.

    ``predict`` takes a DataFrame whose column ``image`` has the bytes of image files, of any size. A classifier's
    answer is one with the columns ``label`` and ``probability``, and ``probabilities``: all labels with theirs,
    likeliest first. A network of masks answers with the column ``mask``: PNG files as large as the images, with the
    number of each pixel's class, and 255 beside the centre, which is what the network sees. Another network's answer
    has a column for each of its values.
    """

    def load_context(self, context: Any) -> None:
        self.config = context.model_config
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        program = torch.export.load(context.artifacts["network"])
        if self.device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, self.device)
        self.network = program.module()

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        files, labels, answers = list(model_input["image"]), self.config["labels"], []
        for begin in range(0, len(files), AT_ONCE):
            part = [self.image(file) for file in files[begin : begin + AT_ONCE]]
            images = torch.from_numpy(np.stack([self.pixels(image) for image in part]))
            with torch.no_grad():
                rows = self.network(images.to(self.device)).cpu()
            if self.config["answer"] == "values":
                answers += [dict(zip(labels, row)) for row in rows.tolist()]
                continue
            if self.config["answer"] == "masks":
                answers += [{"mask": self.mask(row.numpy(), image.size)} for row, image in zip(rows, part)]
                continue
            for row in rows:
                ranked = {labels[index]: row[index].item() for index in row.argsort(descending=True).tolist()}
                label = next(iter(ranked))
                answers.append({"label": label, "probability": ranked[label], "probabilities": ranked})
        return pd.DataFrame(answers)

    def image(self, file: bytes) -> Image.Image:
        """An image file as RGB, turned as its EXIF data say."""
        with Image.open(BytesIO(file), formats=FORMATS) as opened:
            image = ImageOps.exif_transpose(opened)
        if image.mode in ("I", "F"):
            raise ValueError("an image has 32-bit values; save it with 8 bits each")
        if image.mode.startswith("I;16"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return image.convert("RGB")

    def mask(self, numbers: np.ndarray, size: tuple[int, int]) -> bytes:
        """A mask of an image's centre as a PNG file of that width and height."""
        side, file, whole = min(size), BytesIO(), Image.new("L", size, 255)
        centre = Image.fromarray(numbers).resize((side, side), Image.Resampling.NEAREST)
        whole.paste(centre, ((size[0] - side) // 2, (size[1] - side) // 2))
        whole.save(file, "png")
        return file.getvalue()

    def pixels(self, image: Image.Image) -> np.ndarray:
        """The network's input for an image: uint8, (side, side, 3)."""
        side, native = self.config["side"], self.config["native_side"]
        if self.config["crop"]:
            return np.asarray(ImageOps.fit(image, (side, side), Image.Resampling.BILINEAR))
        image = (image.convert("L") if self.config["grey"] else image).resize((native, native)).convert("RGB")
        enlarged = np.asarray(image).repeat(side // native, axis=0).repeat(side // native, axis=1)
        border = (side - len(enlarged)) // 2
        return np.pad(enlarged, ((border, border), (border, border), (0, 0)))


mlflow.models.set_model(ImageModel())
