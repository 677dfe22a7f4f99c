"""The training loop and what it needs: plain PyTorch, under any launcher.

Nothing here knows Ray or MLflow; torch, torchvision, torchmetrics, safetensors, pydantic, PyYAML and joblib are enough.
"""
