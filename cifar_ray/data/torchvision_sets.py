"""Data sets of torchvision that classify images and have test images apart, ``--dataset torchvision:NAME``."""

EMNIST = tuple(f"EMNIST/{split}" for split in ("balanced", "byclass", "bymerge", "digits", "letters", "mnist"))

BORDERED = ("FashionMNIST", "KMNIST", "MNIST", "QMNIST", *EMNIST)
"""Those in MNIST's format, whose 28x28 images get a border of 2 zeros to 32x32."""

UNFLIPPED = ("GTSRB", "KMNIST", "MNIST", "QMNIST", "RenderedSST2", "SVHN", "USPS", *EMNIST)
"""Those whose images do not show their class when they are mirrored."""

SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("CIFAR10", "CIFAR100", "USPS", *BORDERED), ()),
    **dict.fromkeys(("FER2013", "Food101", "GTSRB", "STL10", "SVHN", "StanfordCars"), ("train", "test")),
    **dict.fromkeys(("DTD", "Flowers102", "PCAM", "RenderedSST2"), ("train", "test", "val")),
    **dict.fromkeys(("FGVCAircraft", "OxfordIIITPet"), ("trainval", "test")),
    # Where the test images have no labels, those for validation are the test.
    **dict.fromkeys(("CLEVRClassification", "ImageNet", "Imagenette"), ("train", "val")),
    "Country211": ("train", "test", "valid"),
    "Places365": ("train-standard", "val"),
}
"""The ``split=`` for training, for the test and perhaps for validation; none where it has ``train=``."""
