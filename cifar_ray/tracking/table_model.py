"""A model of rows of numbers for MLflow: a column for each feature in, values by name or labels with probabilities out.

MLflow keeps this file with a model and runs it to load the model ("models from code"). It needs torch, NumPy, pandas
and MLflow, and nothing of the program that has trained the network.
"""

from __future__ import annotations

from typing import Any

import mlflow
import numpy as np
import pandas as pd
import torch
from mlflow.pyfunc import PythonModel


class TableModel(PythonModel):
    """Answer for the rows of a DataFrame that has a column for each feature, with an exported network, on the CPU.

    A regression's answer has a column for each of its values, in their own units. A classifier's has the columns
    ``label`` and ``probability``, and ``probabilities``: all labels with theirs, likeliest first.
    """

    def load_context(self, context: Any) -> None:
        self.config = context.model_config
        self.network = torch.export.load(context.artifacts["network"]).module()

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
        rows = np.array(model_input[self.config["features"]], np.float64)
        with torch.no_grad():
            answers = self.network(torch.from_numpy(rows))
        labels = self.config["labels"]
        if self.config["answer"] == "values":
            return pd.DataFrame(answers.numpy(), columns=labels)
        ranked = [
            {labels[index]: row[index].item() for index in row.argsort(descending=True).tolist()} for row in answers
        ]
        first = [next(iter(each.items())) for each in ranked]
        label, probability = zip(*first)
        return pd.DataFrame({"label": label, "probability": probability, "probabilities": ranked})


mlflow.models.set_model(TableModel())
