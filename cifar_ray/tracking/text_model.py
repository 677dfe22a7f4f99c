"""A model of texts for MLflow: texts in, labels with probabilities out.

MLflow keeps this file with a model and runs it to load the model ("models from code"). It needs torch, tokenizers,
NumPy and MLflow, and nothing of the program that has trained the network.
"""

from __future__ import annotations

from typing import Any

import mlflow
import numpy as np
import pandas as pd
import torch
from mlflow.pyfunc import PythonModel
from tokenizers import Tokenizer

AT_ONCE = 256  # texts in one forward pass


class TextModel(PythonModel):
    """Answer for texts with an exported network, on a GPU if there is one.

    ``predict`` takes a DataFrame whose column ``text`` has the texts. A classifier's answer is one with the columns
    ``label`` and ``probability``, and ``probabilities``: all labels with theirs, likeliest first. Another network's
    answer has a column for each of its values.
    """

    def load_context(self, context: Any) -> None:
        self.config = context.model_config
        self.tokenizer = Tokenizer.from_file(context.artifacts["tokenizer"])
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        program = torch.export.load(context.artifacts["network"])
        if self.device != "cpu":
            from torch.export.passes import move_to_device_pass

            program = move_to_device_pass(program, self.device)
        self.network = program.module()

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        texts, labels, answers = list(model_input["text"]), self.config["labels"], []
        for begin in range(0, len(texts), AT_ONCE):
            tokens = torch.from_numpy(self.tokens(texts[begin : begin + AT_ONCE]))
            with torch.no_grad():
                rows = self.network(tokens.to(self.device)).cpu()
            if self.config["answer"] == "values":
                answers += [dict(zip(labels, row)) for row in rows.tolist()]
                continue
            for row in rows:
                ranked = {labels[index]: row[index].item() for index in row.argsort(descending=True).tolist()}
                label = next(iter(ranked))
                answers.append({"label": label, "probability": ranked[label], "probabilities": ranked})
        return pd.DataFrame(answers)

    def tokens(self, texts: list[str]) -> np.ndarray:
        """The network's input for texts: int32, (N, length), the tokenizer's numbers plus 1, with 0 as padding."""
        rows = np.zeros((len(texts), self.config["length"]), dtype=np.int32)
        for row, encoding in zip(rows, self.tokenizer.encode_batch(texts)):
            row[: len(encoding.ids)] = np.array(encoding.ids, dtype=np.int32) + 1
        return rows


mlflow.models.set_model(TextModel())
