"""Made-up data in the real formats: read by the real readers, complete or not there, and worth learning from."""

import multiprocessing
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from symlab.data.augmentation import CropAndFlip
from symlab.data.cifar10_synthetic import cifar10_synthetic
from symlab.data.cifar100_synthetic import cifar100_synthetic
from symlab.data.imagenet import imagenet
from symlab.data.imagenet_synthetic import imagenet_synthetic
from symlab.data.synthetic_images import complete_folder, striped_images

SMALL = {"rows": 60, "test_rows": 20}
TREE = {"rows": 24, "test_rows": 8, "classes": 4, "pixels": 16, "size": 12, "resize": 14, "workers": 0}


def only_folder(root: Path) -> Path:
    (folder,) = root.iterdir()
    return folder


@pytest.mark.parametrize(
    ("load", "source", "classes"),
    [
        (cifar10_synthetic, torchvision.datasets.CIFAR10, 10),
        (cifar100_synthetic, torchvision.datasets.CIFAR100, 100),
    ],
)
def test_cifars_files_have_the_real_names_and_keys(load, source, classes, tmp_path):
    data = load(root=str(tmp_path), **SMALL, standardise=False)
    folder = only_folder(tmp_path) / source.base_folder
    listed = [name for name, _ in source.train_list + source.test_list]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*listed, source.meta["filename"]])
    assert (data.input_shape, data.num_classes, data.num_train, data.num_test) == ((3, 32, 32), classes, 60, 20)
    rows, labels = [], []
    for name, _ in source.train_list:
        entry = np.load(folder / name, allow_pickle=True, encoding="latin1")
        assert entry["data"].dtype == np.uint8
        rows += [row.tobytes() for row in entry["data"]]
        labels += entry["labels" if classes == 10 else "fine_labels"]
        assert len(entry["filenames"]) == len(entry["data"])
    found = (data.train_inputs * 255).round().to(torch.uint8).numpy()
    pairs = sorted(zip([row.tobytes() for row in found], data.train_targets.tolist(), strict=True))
    assert pairs == sorted(zip(rows, labels, strict=True))


def test_the_keys_are_those_of_the_real_set(tmp_path):
    data = cifar10_synthetic(root=str(tmp_path), **SMALL, num_train=7, num_test=3, augment=True, seed=2)
    assert (data.name, data.num_train, data.num_test) == ("cifar10_synthetic", 7, 3)
    assert isinstance(data.augmentation, CropAndFlip)
    whole = cifar10_synthetic(root=str(tmp_path), **SMALL, seed=2)
    assert whole.train_targets[:7].tolist() == data.train_targets.tolist()
    assert len(list(tmp_path.iterdir())) == 1, "the seed orders the rows of the same files"


def test_the_sums_are_checked(tmp_path):
    cifar10_synthetic(root=str(tmp_path), **SMALL)
    path = only_folder(tmp_path) / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        ValueError, match=r"fail their MD5 check; they were made by symlab: delete .*cifar10_synthetic-"
    ):
        cifar10_synthetic(root=str(tmp_path), **SMALL)


def mean_colour_accuracy(data, inputs, labels, classes) -> float:
    """Of the class whose mean colour over the training rows is nearest."""
    means = torch.stack([data[0][data[1] == label].mean(dim=(0, 2, 3)) for label in range(classes)])  # [K, 3]
    nearest = torch.cdist(inputs.mean(dim=(2, 3)), means).argmin(1)
    return float((nearest == labels).double().mean())


def test_the_classes_can_be_learned(tmp_path):
    data = cifar10_synthetic(root=str(tmp_path), rows=300, test_rows=100)
    train = data.train_inputs, data.train_targets
    assert mean_colour_accuracy(train, data.test_inputs, data.test_targets, 10) > 0.9
    tree = imagenet_synthetic(root=str(tmp_path), **TREE)
    images = torch.stack([tree.test.load(row, None) for row in range(8)])
    assert mean_colour_accuracy(tree.head(24), tree.finish(images, torch.float32), tree.test.labels, 4) > 0.8
    rng = np.random.default_rng(0)  # stripes tell the classes of one hue apart
    few, many = (striped_images(np.full(20, label), 100, 40, 8, rng)[..., 0].mean(axis=2) for label in (0, 90))
    assert np.abs(np.fft.rfft(few, axis=1)).mean(0)[1:].argmax() == 0
    assert np.abs(np.fft.rfft(many, axis=1)).mean(0)[1:].argmax() == 9


def test_the_tree_is_imagenets_and_read_by_the_same_code(tmp_path):
    data = imagenet_synthetic(root=str(tmp_path), **TREE)
    folder = only_folder(tmp_path)
    assert (data.name, data.num_classes, data.num_train, data.num_test) == ("imagenet_synthetic", 4, 24, 8)
    assert data.train.labels.bincount().tolist() == [6] * 4
    assert data.test.labels.bincount().tolist() == [2] * 4
    assert sorted(path.name for path in (folder / "train").iterdir()) == [f"n{label:08d}" for label in range(4)]
    assert {path.suffix for path in (folder / "val").rglob("*.*")} == {".JPEG"}
    same = imagenet(root=str(folder), size=12, resize=14, workers=0)
    assert torch.equal(same.head(5)[0], data.head(5)[0])
    assert torch.equal(same.train.load(3, 8), data.train.load(3, 8))


@pytest.mark.parametrize(("load", "keys"), [(cifar10_synthetic, SMALL), (imagenet_synthetic, TREE)])
def test_a_second_run_reads_what_is_there_and_writes_nothing(load, keys, tmp_path, monkeypatch):
    first = load(root=str(tmp_path), **keys).head(5)

    def refuse(*args: object, **keys: object) -> str:
        raise AssertionError("something is written")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert all(torch.equal(a, b) for a, b in zip(load(root=str(tmp_path), **keys).head(5), first, strict=True))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times


def labels_of(root: str, say) -> None:
    say.put(cifar10_synthetic(root=root, **SMALL).train_targets.tolist())


def test_processes_that_start_together_all_find_complete_files(tmp_path):
    context = multiprocessing.get_context("spawn")  # a forked child may hang in the threads that torch had here
    answers = context.Queue()
    processes = [context.Process(target=labels_of, args=(str(tmp_path), answers), daemon=True) for _ in range(2)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert all(labels == found[0] for labels in found)
    assert len(list(tmp_path.iterdir())) == 1  # no drafts


def test_who_moves_the_files_first_wins(tmp_path):
    def write(folder: Path) -> None:
        (folder / "file").write_text("second")
        complete_folder(tmp_path, "set", {}, lambda other: (other / "file").write_text("first") and None)

    assert (complete_folder(tmp_path, "set", {}, write) / "file").read_text() == "first"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_run_that_ended_while_writing_leaves_nothing_that_counts(tmp_path, monkeypatch):
    def stop(*args: object, **keys: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", stop)
        patch.setattr(Path, "rename", stop)
        with pytest.raises(KeyboardInterrupt):
            cifar10_synthetic(root=str(tmp_path), **SMALL)
    assert list(tmp_path.iterdir()) == []
    assert cifar10_synthetic(root=str(tmp_path), **SMALL).num_train == 60


def test_real_data_beside_them_are_left_alone(tmp_path):
    real = tmp_path / "cifar-10-batches-py"
    real.mkdir()
    (real / "data_batch_1").write_bytes(b"the real one")
    cifar10_synthetic(root=str(tmp_path), **SMALL)
    cifar10_synthetic(root=str(tmp_path), rows=61, test_rows=20)
    assert (real / "data_batch_1").read_bytes() == b"the real one"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_root_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def refuse(*args: object, **keys: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(OSError, match=r"data\.root=.*cannot be written there: .*Permission denied; set data\.root"):
        cifar10_synthetic(root=str(tmp_path / "new"), **SMALL)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"data\.root=.*file"):
        imagenet_synthetic(root=str(tmp_path / "file"), **TREE)


def test_a_relative_root_starts_at_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cifar10_synthetic(**SMALL)
    imagenet_synthetic(**TREE)
    assert sorted(path.name.partition("-")[0] for path in (tmp_path / "data" / "synthetic").iterdir()) == [
        "cifar10_synthetic",
        "imagenet_synthetic",
    ]


@pytest.mark.parametrize(
    ("load", "keys", "words"),
    [
        (cifar10_synthetic, {"rows": 4}, "rows must be at least 5, got 4"),
        (cifar10_synthetic, {"test_rows": 0}, "test_rows must be at least 1, got 0"),
        (cifar100_synthetic, {"rows": 0}, "rows must be at least 1, got 0"),
        (imagenet_synthetic, {"rows": 7}, "rows must be at least 8, got 7"),
        (imagenet_synthetic, {"test_rows": 7}, "test_rows must be at least 8, got 7"),
        (imagenet_synthetic, {"classes": 0}, "classes must be at least 1, got 0"),
        (imagenet_synthetic, {"pixels": 7}, "pixels must be at least 8, got 7"),
        (imagenet_synthetic, {"rows": 8, "test_rows": 8, "num_train": 9}, "num_train must be at most 8"),
    ],
)
def test_numbers_out_of_range(load, keys, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        load(root=str(tmp_path), **keys)
