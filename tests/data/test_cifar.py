"""CIFAR-10 and CIFAR-100 from small pickles of the real format.

torchvision checks every file's MD5 sum, so the tests put the small files' sums in the place of the real ones.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from symlab.data.cifar10 import cifar10
from symlab.data.cifar100 import cifar100
from tests.data.image_folders import md5, write_cifar

TEN = {"data_batch_1": 12, "data_batch_2": 11, "data_batch_3": 10, "data_batch_4": 9, "data_batch_5": 8}


@pytest.fixture
def ten(tmp_path, monkeypatch) -> tuple[Path, dict]:
    source = torchvision.datasets.CIFAR10
    content = write_cifar(tmp_path, source.base_folder, TEN | {"test_batch": 10}, 10, "labels")
    install(monkeypatch, source, tmp_path, list(TEN), ["test_batch"], "label_names")
    return tmp_path, content


@pytest.fixture
def hundred(tmp_path, monkeypatch) -> tuple[Path, dict]:
    source = torchvision.datasets.CIFAR100
    content = write_cifar(tmp_path, source.base_folder, {"train": 110, "test": 100}, 100, "fine_labels")
    install(monkeypatch, source, tmp_path, ["train"], ["test"], "fine_label_names")
    return tmp_path, content


def install(monkeypatch, source, root: Path, train: list[str], test: list[str], names_key: str) -> None:
    """Write the file of class names and tell torchvision the sums of the small files."""
    import pickle

    folder = root / source.base_folder
    meta = folder / source.meta["filename"]
    meta.write_bytes(pickle.dumps({names_key: ["a", "b"]}, protocol=2))
    monkeypatch.setattr(source, "train_list", [[name, md5(folder / name)] for name in train])
    monkeypatch.setattr(source, "test_list", [[name, md5(folder / name)] for name in test])
    monkeypatch.setattr(source, "meta", source.meta | {"md5": md5(meta)})


def rows(images: np.ndarray, labels: np.ndarray) -> list:
    return sorted((image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True))


def undo(inputs: torch.Tensor, train_images: np.ndarray) -> np.ndarray:
    """Pixels of standardised images, channel by channel."""
    mean, std = (f(train_images, axis=(0, 2, 3))[None, :, None, None] for f in (np.mean, np.std))
    return (inputs.double().numpy() * std + mean).round().astype(np.uint8)


def test_cifar10_rows_are_those_of_the_batches(ten):
    root, content = ten
    data = cifar10(root=str(root))
    train_images = np.concatenate([content[name][0] for name in TEN])
    train_labels = np.concatenate([content[name][1] for name in TEN])
    assert (data.input_shape, data.num_classes) == ((3, 32, 32), 10)
    assert rows(undo(data.train_inputs, train_images), data.train_targets) == rows(train_images, train_labels)
    assert rows(undo(data.test_inputs, train_images), data.test_targets) == rows(*content["test_batch"])


def test_cifar100_has_the_fine_labels(hundred):
    root, content = hundred
    data = cifar100(root=str(root))
    assert (data.input_shape, data.num_classes) == ((3, 32, 32), 100)
    assert rows(undo(data.train_inputs, content["train"][0]), data.train_targets) == rows(*content["train"])


def test_standardised_per_channel_on_a_subset(ten):
    root, _ = ten
    data = cifar10(root=str(root), num_train=20, num_test=4)
    assert (len(data.train_inputs), len(data.test_inputs)) == (20, 4)
    values = data.train_inputs.double()
    torch.testing.assert_close(values.mean(dim=(0, 2, 3)), torch.zeros(3).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(values.std(dim=(0, 2, 3), correction=0), torch.ones(3).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("load", "base"), [(cifar10, "cifar-10-batches-py"), (cifar100, "cifar-100-python")])
def test_files_that_are_not_there(load, base, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data\.download=true") as caught:
        load(root=str(tmp_path))
    assert str(tmp_path / base) in str(caught.value)


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_damaged_folder_is_named(damage, ten):
    root, _ = ten
    path = root / "cifar-10-batches-py" / "data_batch_3"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"cifar-10-batches-py.*MD5"):
        cifar10(root=str(root))


def test_failed_download_says_so(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("host not found")

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", fail)
    with pytest.raises(OSError, match=r"download=true.*CIFAR-10.*host not found"):
        cifar10(root=str(tmp_path), download=True)
