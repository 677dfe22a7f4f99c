"""``python -m cifar_ray.cli`` is the ``cifar-ray`` command."""

from cifar_ray.cli.main import program

program()
