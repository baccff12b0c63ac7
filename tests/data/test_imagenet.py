"""The folder tree of ImageNet against torchvision's ImageFolder and transforms; trees and files that cannot work."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

from symlab.data.image_tree import read_tree
from symlab.data.image_views import ImageViews, random_box
from symlab.data.imagenet import MEAN, STD, imagenet
from symlab.data.streamed import BadImageError, StreamedDataset, StreamedSplit
from symlab.rundir import BadInput
from symlab.training.build import check_model
from symlab.training.sources import in_memory
from tests.data.image_trees import damage, picture, write_tree

SMALL = {"size": 24, "resize": 28, "workers": 0}


@pytest.fixture
def tree(tmp_path) -> Path:
    return write_tree(tmp_path / "tree", {"a": 4, "b": 3, "c": 5}, {"a": 2, "b": 2, "c": 1})


def paths(split: StreamedSplit) -> list[str]:
    assert isinstance(split.load, ImageViews)
    return [split.load.files.path(index) for index in range(len(split))]


def test_files_and_labels_are_those_of_image_folder(tree):
    (tree / "train" / "b" / "deeper").mkdir()
    picture(3).save(tree / "train" / "b" / "deeper" / "x.png")
    (tree / "train" / "b" / "notes.txt").write_text("no image")
    _, train, val = read_tree("imagenet", tree)
    for split, found in (("train", train), ("val", val)):
        expected = ImageFolder(str(tree / split))
        assert [found.path(index) for index in range(len(found))] == [path for path, _ in expected.samples]
        assert found.labels.tolist() == expected.targets


def test_evaluation_sees_what_torchvisions_transforms_give(tree):
    data = imagenet(root=str(tree), **SMALL)
    expected = transforms.Compose(
        [
            transforms.Resize(28),
            transforms.CenterCrop(24),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    for split in (data.train, data.test):
        for index, path in enumerate(paths(split)):
            image = split.load(index, None)
            assert (image.dtype, image.shape) == (torch.uint8, (3, 24, 24))
            with Image.open(path) as file:
                torch.testing.assert_close(data.finish(image[None], torch.float32)[0], expected(file.convert("RGB")))


def test_training_draws_what_torchvisions_transforms_draw(tree):
    """The same crop and flip, bit for bit, as torchvision's classes after torch.manual_seed(seed)."""
    data = imagenet(root=str(tree), **SMALL)
    expected = transforms.Compose(
        [transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    )
    flips = 0
    for index, path in enumerate(paths(data.train)):
        for seed in range(6):
            state = torch.get_rng_state()
            found = data.train.load(index, 1000 * index + seed)
            assert torch.equal(torch.get_rng_state(), state)
            with torch.random.fork_rng(devices=[]), Image.open(path) as file:
                torch.manual_seed(1000 * index + seed)
                assert torch.equal(found, expected(file.convert("RGB")))
        flips += not torch.equal(data.train.load(index, 0), data.train.load(index, 1))
    assert flips > 6


@pytest.mark.parametrize(("height", "width"), [(300, 500), (1, 1), (1, 40), (600, 3), (37, 37), (5, 8)])
def test_boxes_are_those_of_random_resized_crop(height, width):
    image = torch.zeros(3, height, width)
    for seed in range(60):
        found = random_box(height, width, torch.Generator().manual_seed(seed))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            expected = transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
        assert found == expected


def test_without_augment_training_sees_the_middle(tree):
    data = imagenet(root=str(tree), augment=False, **SMALL)
    assert all(torch.equal(data.train.load(i, 5), data.train.load(i, None)) for i in range(data.num_train))


def test_subsets_are_the_beginning_of_the_shuffled_rows(tree):
    whole, part = imagenet(root=str(tree), **SMALL), imagenet(root=str(tree), num_train=5, num_test=2, **SMALL)
    assert paths(part.train) == paths(whole.train)[:5]
    assert part.train.labels.tolist() == whole.train.labels[:5].tolist()
    assert paths(part.test) == paths(whole.test)[:2]
    assert part.num_classes == 3
    assert paths(imagenet(root=str(tree), seed=1, **SMALL).train) != paths(whole.train)
    assert len(whole.train.labels.unique()) == 3
    with pytest.raises(ValueError, match=r"num_train must be at most 12.*13"):
        imagenet(root=str(tree), num_train=13, **SMALL)


def test_head_is_the_first_rows_as_evaluation_sees_them(tree):
    data = imagenet(root=str(tree), **SMALL).to("cpu", torch.float64)
    inputs, targets = data.head(3)
    assert (inputs.dtype, list(inputs.shape)) == (torch.float64, [3, 3, 24, 24])
    assert targets.tolist() == data.train.labels[:3].tolist()
    pixels = data.train.load(1, None).double() / 255
    expected = (pixels - torch.tensor(MEAN).double()[:, None, None]) / torch.tensor(STD).double()[:, None, None]
    torch.testing.assert_close(inputs[1], expected, rtol=1e-6, atol=1e-6)
    assert len(data.head(100)[0]) == 12


@pytest.mark.parametrize(
    ("train", "val", "words"),
    [
        ("abc", "bc", ["val lacks 1 of the classes", "(a)", "train has 3 classes, val 2"]),
        ("ab", "abcd", ["train lacks 2 of the classes", "(c, d)", "train has 2 classes, val 4"]),
        ("abc", "bcd", ["val lacks 1 of the classes", "(a)"]),
        ("a", "", ["val", "holds no class folders"]),
        ("", "a", ["train", "holds no class folders"]),
    ],
)
def test_classes_of_the_splits_must_agree(train, val, words, tmp_path):
    for split, names in (("train", train), ("val", val)):
        (tmp_path / split).mkdir()
        for name in names:
            (tmp_path / split / name).mkdir()
    with pytest.raises(ValueError, match=str(tmp_path)) as caught:
        imagenet(root=str(tmp_path))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_an_empty_class_is_named_and_hidden_names_are_passed_over(tree):
    for split in ("train", "val"):
        (tree / split / ".ipynb_checkpoints").mkdir()
        picture(1).save(tree / split / ".ipynb_checkpoints" / "a_0-checkpoint.png")
        (tree / split / "a" / "._a_0.JPEG").write_bytes(b"the other fork")
        (tree / split / "a" / ".ipynb_checkpoints").mkdir()
        picture(1).save(tree / split / "a" / ".ipynb_checkpoints" / "x.png")
    data = imagenet(root=str(tree), **SMALL)
    assert (data.num_classes, data.num_train, data.num_test) == (3, 12, 5)
    for file in (tree / "val" / "c").iterdir():
        file.rename(file.with_suffix(".txt"))
    with pytest.raises(ValueError, match=r"val: no images in 1 of the class folders \(c\)"):
        imagenet(root=str(tree))


@pytest.mark.parametrize("target", [".", "..", "../.."])
def test_a_link_to_a_folder_above_it_is_refused_and_others_are_followed(target, tree, tmp_path):
    elsewhere = write_tree(tmp_path / "elsewhere", {"deep": 3}, {})
    name = sorted(path.name for path in (tree / "train").iterdir())[0]
    before = imagenet(root=tree, size=8, resize=9).num_train
    (tree / "train" / name / "more").symlink_to(elsewhere / "train" / "deep")
    assert imagenet(root=tree, size=8, resize=9).num_train == before + 3
    loop = tree / "train" / name / "loop"
    loop.symlink_to(target)
    with pytest.raises(ValueError, match=f"{loop} links to .*: remove it"):
        imagenet(root=tree, size=8, resize=9)


@pytest.mark.parametrize("missing", ["train", "val"])
def test_a_missing_folder_is_named(missing, tree):
    (tree / missing).rename(tree / "other")
    with pytest.raises(FileNotFoundError, match=r"data\.root") as caught:
        imagenet(root=str(tree))
    assert str(tree / missing) in str(caught.value)


def test_a_flat_val_folder_is_named(tree):
    (tree / "val").rename(tree / "sorted")
    (tree / "val").mkdir()
    picture(1).save(tree / "val" / "ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(ValueError, match=r"val: holds no class folders; the images must lie in .*val/<class>/\*"):
        imagenet(root=str(tree))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("truncated", "image file is truncated"),
        ("half", "Truncated File Read"),
        ("empty", r"no image format that Pillow knows \(0 bytes\)"),
        ("text", r"no image format that Pillow knows \(12 bytes\)"),
        ("header", "no image format"),
    ],
)
def test_a_damaged_file_is_named(kind, reason, tree):
    path = damage(tree / "train" / "a", kind)
    data = imagenet(root=str(tree), **SMALL)
    index = paths(data.train).index(str(path))
    for seed in (None, 3):
        with pytest.raises(BadImageError, match=rf"^{path}: not readable as an image: .*{reason}"):
            data.train.load(index, seed)


def test_a_file_that_has_gone_is_named(tree):
    data = imagenet(root=str(tree), **SMALL)
    gone = Path(paths(data.train)[4])
    gone.unlink()
    with pytest.raises(BadImageError, match=rf"{gone}: .*No such file"):
        data.train.load(4, 1)


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGBA", "P", "1", "LA", "pixel", "exif"])
def test_every_kind_of_image_has_three_channels_as_image_folder_gives_them(mode, tmp_path):
    root = write_tree(tmp_path, {"a": 1, "b": 1}, {"a": 1, "b": 1})
    suffix = "JPEG" if mode in ("L", "CMYK", "exif", "pixel") else "png"
    image, keys = picture(5), {}
    if mode == "pixel":
        image = image.resize((1, 1))
    elif mode == "exif":
        exif = Image.Exif()
        exif[0x0112] = 6  # turn by 90 degrees
        keys = {"exif": exif}
    else:
        image = image.convert(mode)
    image.save(tmp_path / "train" / "a" / f"0.{suffix}", **keys)
    data = imagenet(root=str(root), **SMALL)
    index = paths(data.train).index(str(tmp_path / "train" / "a" / f"0.{suffix}"))
    found = data.train.load(index, None)
    transform = transforms.Compose([transforms.Resize(28), transforms.CenterCrop(24), transforms.PILToTensor()])
    expected, _ = ImageFolder(str(tmp_path / "train"), transform)[0]
    assert found.shape == (3, 24, 24)
    assert torch.equal(found, expected)
    assert data.train.load(index, 3).shape == (3, 24, 24)


def test_a_read_only_tree_works_and_nothing_is_written(tree):
    before = sorted(path.relative_to(tree) for path in tree.rglob("*"))
    modes = {path: path.stat().st_mode for path in [tree, *tree.rglob("*")]}
    try:
        for path in modes:
            path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
        data = imagenet(root=str(tree), **SMALL)
        data.head(12)
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert sorted(path.relative_to(tree) for path in tree.rglob("*")) == before


def test_a_relative_root_starts_at_the_working_directory(tree, monkeypatch):
    monkeypatch.chdir(tree.parent)
    data = imagenet(root="tree", **SMALL)
    monkeypatch.chdir("/")
    data.head(2)  # the files are found from anywhere
    with pytest.raises(FileNotFoundError, match="/elsewhere/train"):
        imagenet(root="elsewhere")


def test_names_of_any_kind(tmp_path):
    root = write_tree(tmp_path / "dé p,a=1[x]", {"ü b": 2, "c#": 1}, {"ü b": 1, "c#": 1})
    strange = os.fsencode(root / "train" / "c#") + b"/\xff\xfe.png"
    picture(8).save(root / "train" / "c#" / "x.png")
    os.rename(os.fsencode(root / "train" / "c#" / "x.png"), strange)
    data = imagenet(root=str(root), **SMALL)
    assert data.num_train == 4
    assert len(data.head(4)[0]) == 4


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"resize": 20}, "resize must be at least size=24.*got 20"),
        ({"workers": -1}, "workers must be at least 0, got -1"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"num_train": 0}, "num_train must be at least 1, got 0"),
    ],
)
def test_numbers_out_of_range(keys, words, tree):
    with pytest.raises(ValueError, match=words):
        imagenet(root=str(tree), **(SMALL | keys))


class Fixed(torch.nn.Module):
    """A net whose head has its own idea of the number of classes."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.head = torch.nn.Linear(3, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(inputs.mean(dim=(2, 3)))


@pytest.mark.parametrize("outputs", [2, 1000])
def test_a_head_of_another_size_is_refused_with_both_numbers(outputs, tree):
    data = imagenet(root=str(tree), **SMALL)
    check_model(Fixed(3), data)
    with pytest.raises(BadInput, match=rf"\[2, {outputs}\].*3 classes"):
        check_model(Fixed(outputs), data)


def test_jobs_that_need_rows_in_memory_say_so(tree):
    with pytest.raises(BadInput, match=r"data=imagenet.*rows in memory.*data=cifar10"):
        in_memory(imagenet(root=str(tree), **SMALL))


def test_the_data_set_checks_itself(tree):
    data = imagenet(root=str(tree), **SMALL)
    keys = {"name": "toy", "train": data.train, "test": data.test, "input_shape": (3, 24, 24), "mean": MEAN, "std": STD}
    with pytest.raises(ValueError, match=r"labels must lie in 0\.\.1, got 0\.\.2"):
        StreamedDataset(**keys, num_classes=2)
    empty = StreamedSplit(torch.tensor([], dtype=torch.int64), data.test.load)
    with pytest.raises(ValueError, match="needs at least 1 row"):
        StreamedDataset(**(keys | {"test": empty}), num_classes=3)
    with pytest.raises(ValueError, match="mean and std must have 3 entries"):
        StreamedDataset(**(keys | {"mean": (0.5,)}), num_classes=3)
    with pytest.raises(ValueError, match="floating-point"):
        data.to("cpu", torch.int64)


def test_bfloat16_is_rounded_once():
    split = StreamedSplit(torch.tensor([0]), lambda index, seed: torch.zeros(3, 1, 1, dtype=torch.uint8))
    data = StreamedDataset("toy", split, split, 1, (3, 1, 1), MEAN, STD)
    levels = torch.arange(256, dtype=torch.uint8)[:, None, None, None].expand(256, 3, 1, 1)
    exact = (levels.double() / 255 - torch.tensor(MEAN).double()[:, None, None]) / torch.tensor(STD).double()[
        :, None, None
    ]
    assert np.mean((data.finish(levels, torch.bfloat16) == exact.to(torch.bfloat16)).numpy()) > 0.995
