"""The ``cifar-ray`` command."""
