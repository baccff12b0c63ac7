"""MNIST and Fashion-MNIST from small files of the real formats, and Fashion-MNIST from Debian's package."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from symlab.data.fashion_mnist import fashion_mnist
from symlab.data.idx_files import read_idx
from symlab.data.mnist import mnist
from tests.data.image_folders import idx_bytes, write_idx_folder

PACKAGE = Path("/usr/share/datasets/fashion-mnist")
SETS = {"MNIST": mnist, "FashionMNIST": fashion_mnist}
ROWS = {"train": 30, "test": 12}


def load(folder: str, root: Path, **keys):
    """The set of torchvision's class `folder`, kept from reading Debian's package by accident."""
    package = {"package": str(root / "no-package")} if folder == "FashionMNIST" else {}
    return SETS[folder](root=str(root), **(package | keys))


def by_content(images: np.ndarray, labels: np.ndarray) -> list:
    return sorted((image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True))


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_rows_are_the_images_of_the_files(name, zipped, tmp_path):
    content = write_idx_folder(tmp_path / name / "raw", ROWS, zipped=zipped)
    data = load(name, tmp_path)
    pixels = content["train"][0].astype(float)
    assert (data.input_shape, data.num_classes) == ((1, 28, 28), 10)
    for split, inputs, targets in (
        ("train", data.train_inputs, data.train_targets),
        ("test", data.test_inputs, data.test_targets),
    ):
        raw = (inputs.double().numpy() * pixels.std() + pixels.mean()).round().astype(np.uint8)[:, 0]
        assert by_content(raw, targets.numpy()) == by_content(*content[split])


@pytest.mark.parametrize("name", SETS)
def test_same_rows_as_torchvision(name, tmp_path):
    write_idx_folder(tmp_path / name / "raw", ROWS)
    reference = getattr(torchvision.datasets, name)(tmp_path, train=False, download=False)
    data = load(name, tmp_path)
    assert sorted(data.test_targets.tolist()) == sorted(reference.targets.tolist())
    pixels = getattr(torchvision.datasets, name)(tmp_path, train=True).data.double()
    raw = (data.test_inputs.double() * pixels.std(correction=0) + pixels.mean()).round()
    assert sorted(raw.flatten(1).sum(1).tolist()) == sorted(reference.data.double().flatten(1).sum(1).tolist())


def test_standardised_with_the_training_rows_that_are_kept(tmp_path):
    write_idx_folder(tmp_path / "MNIST" / "raw", ROWS)
    data = load("MNIST", tmp_path, num_train=7)
    assert float(data.train_inputs.double().mean()) == pytest.approx(0, abs=1e-6)
    assert float(data.train_inputs.double().std(correction=0)) == pytest.approx(1, abs=1e-6)


def test_subsets_are_the_beginning_of_the_shuffled_rows(tmp_path):
    write_idx_folder(tmp_path / "MNIST" / "raw", ROWS)
    whole, part = load("MNIST", tmp_path), load("MNIST", tmp_path, num_train=9, num_test=5)
    assert torch.equal(part.train_targets, whole.train_targets[:9])
    assert torch.equal(part.test_targets, whole.test_targets[:5])
    other = load("MNIST", tmp_path, seed=1)
    assert not torch.equal(other.train_targets, whole.train_targets)
    with pytest.raises(ValueError, match=r"num_train must be at most 30.*31"):
        load("MNIST", tmp_path, num_train=31)


@pytest.mark.parametrize("name", SETS)
def test_files_that_are_not_there(name, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    assert str(tmp_path / name / "raw") in message
    assert "data.download=true" in message
    assert ("apt-get install dataset-fashion-mnist" in message) == (name == "FashionMNIST")


@pytest.mark.parametrize("name", SETS)
def test_a_missing_file_is_named(name, tmp_path):
    write_idx_folder(tmp_path / name / "raw", ROWS)
    (tmp_path / name / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=r"raw lacks t10k-labels-idx1-ubyte"):
        load(name, tmp_path)


def test_relative_root_starts_at_the_working_directory(tmp_path, monkeypatch):
    write_idx_folder(tmp_path / "here" / "MNIST" / "raw", ROWS)
    monkeypatch.chdir(tmp_path)
    assert len(mnist(root="here").train_inputs) == 30
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "elsewhere")):
        mnist(root="elsewhere")
    with pytest.raises(ValueError, match="root"):
        mnist(root="")


def test_package_is_read_in_place_when_root_has_nothing(tmp_path, caplog):
    package = tmp_path / "package"
    write_idx_folder(package, ROWS, zipped=True)
    with caplog.at_level("INFO", logger="symlab"):
        data = fashion_mnist(root=str(tmp_path / "root"), package=str(package))
    assert len(data.train_inputs) == 30
    assert str(package) in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["package"], "something was written"
    assert len(list(package.iterdir())) == 4


def test_root_comes_before_the_package(tmp_path):
    write_idx_folder(tmp_path / "package", ROWS, zipped=True)
    write_idx_folder(tmp_path / "FashionMNIST" / "raw", {"train": 20, "test": 11})
    data = fashion_mnist(root=str(tmp_path), package=str(tmp_path / "package"))
    assert (len(data.train_inputs), len(data.test_inputs)) == (20, 11)


def test_complete_files_are_not_fetched_again(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was used")

    write_idx_folder(tmp_path / "MNIST" / "raw", ROWS)
    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", refuse)
    before = sorted(os.listdir(tmp_path / "MNIST" / "raw"))
    assert len(load("MNIST", tmp_path, download=True).train_inputs) == 30
    assert sorted(os.listdir(tmp_path / "MNIST" / "raw")) == before


def test_download_lays_the_files_where_they_are_read(tmp_path, monkeypatch):
    def fetch(url, download_root, filename, md5):
        write_idx_folder(Path(download_root), ROWS)

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", fetch)
    assert len(load("FashionMNIST", tmp_path, download=True).train_inputs) == 30


def test_failed_download_says_so(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("host not found")

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", fail)
    with pytest.raises(OSError, match=r"download=true.*MNIST.*host not found"):
        load("MNIST", tmp_path, download=True)


IMAGES = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (idx_bytes(IMAGES)[:-1], ["2 x 28 x 28", "1584 bytes", "1583"]),
        (idx_bytes(IMAGES) + b"x", ["1584 bytes", "1585"]),
        (idx_bytes(IMAGES)[:10], ["truncated", "10 bytes", "16"]),
        (b"", ["magic number", "00000803"]),
        (idx_bytes(IMAGES.ravel()), ["magic number", "00000803", "00000801"]),
        (b"\x00\x00\x0d\x03" + idx_bytes(IMAGES)[4:], ["magic number", "00000d03"]),
        (idx_bytes(IMAGES[:0]), ["no rows", "0 x 28 x 28"]),
        (b"<html>not found</html>", ["magic number", "3c68746d"]),
    ],
)
def test_damaged_files_are_named(content, words, tmp_path):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="train-images-idx3-ubyte") as caught:
        read_idx(path, 3)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("damage", [lambda z: z[: len(z) // 2], lambda z: b"no gzip", lambda z: z[:20] + b"?" + z[21:]])
def test_damaged_gzip_is_named(damage, tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(gzip.compress(idx_bytes(IMAGES))))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz"):
        read_idx(path, 3)


def test_labels_out_of_range_and_unequal_counts_are_named(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    write_idx_folder(folder, ROWS)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.full(30, 17)))
    with pytest.raises(ValueError, match=r"0\.\.9.*17"):
        load("MNIST", tmp_path)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(29)))
    with pytest.raises(ValueError, match=r"30 images.*29 labels"):
        load("MNIST", tmp_path)


def test_constant_images_are_named(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    write_idx_folder(folder, ROWS)
    (folder / "train-images-idx3-ubyte").write_bytes(idx_bytes(np.full((30, 28, 28), 9)))
    with pytest.raises(ValueError, match=r"channel 0 of the 30 training images.*9"):
        load("MNIST", tmp_path)


@pytest.mark.skipif(
    not PACKAGE.is_dir(), reason=f"no {PACKAGE}; apt-get install dataset-fashion-mnist puts the real data there"
)
def test_the_real_fashion_mnist(tmp_path):
    data = fashion_mnist(root=str(tmp_path))
    assert data.train_inputs.shape == (60_000, 1, 28, 28)
    assert data.test_inputs.shape == (10_000, 1, 28, 28)
    assert data.train_targets.bincount().tolist() == [6000] * 10
    assert data.test_targets.bincount().tolist() == [1000] * 10
    # published mean and deviation of the pixels are 0.2860 and 0.3530 of 255: undo them on the darkest pixel
    assert float(data.train_inputs.min()) == pytest.approx(-0.2860 / 0.3530, abs=1e-3)
    assert list(tmp_path.iterdir()) == []
