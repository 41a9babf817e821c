"""Listings of the five datasets in every form they come in, and what is said of bad ones."""

import numpy as np
import pandas as pd
import pytest
from trees import draw_image, write_lists, write_tree

from trustsets.errors import InputError
from trustsets_paper.datasets import DATASETS, ImageSet, Listing, check_class_order, load_dataset


def items(listing):
    return [(listing.path(row), int(listing.labels[row])) for row in range(len(listing))]


def assert_refused(message, *arguments, **more):
    with pytest.raises(InputError, match=message):
        load_dataset(*arguments, **more)


@pytest.mark.parametrize("dataset", [name for name in DATASETS if name != "fitzpatrick17k"])
def test_listings_are_what_was_written(dataset, tmp_path):
    tree = write_tree(dataset, tmp_path)
    found = load_dataset(dataset, tmp_path)
    assert found.classes == tuple(tree.classes)
    assert found.seed is None
    assert {part: items(listing) for part, listing in found.parts.items()} == tree.parts
    assert all(listing.missing() == [] for listing in found.parts.values())


def test_other_files_and_hidden_ones_are_no_images(tmp_path):
    tree = write_tree("imagenet", tmp_path)
    (tmp_path / "train" / tree.classes[0] / "notes.txt").write_text("x")
    (tmp_path / "train" / tree.classes[0] / "._1.jpg").write_text("x")
    (tmp_path / "train" / ".cache").mkdir()
    assert items(load_dataset("imagenet", tmp_path).parts["train"]) == tree.parts["train"]


def test_class_folders_must_agree(tmp_path):
    write_tree("imagenet", tmp_path)
    (tmp_path / "val" / "n9").mkdir()
    assert_refused(r"1 are in one alone, such as \['n9'\]", "imagenet", tmp_path)


# --- ImageNet's validation images as they come out of the archive


def kaggle_imagenet(root):
    """The layout of Kaggle's archive, with its names and lines; images are empty files."""
    images = root / "ILSVRC" / "Data" / "CLS-LOC"
    lines = ["ImageId,PredictionString"]
    for name in ("n01751748", "n01440764"):
        (images / "train" / name).mkdir(parents=True)
        (images / "train" / name / f"{name}_10026.JPEG").touch()
    for number, name in [(3, "n01751748"), (29930, "n01440764"), (17700, "n01440764")]:
        (images / "val").mkdir(exist_ok=True)
        (images / "val" / f"ILSVRC2012_val_{number:08d}.JPEG").touch()
        lines.append(f"ILSVRC2012_val_{number:08d},{name} 85 1 499 272 {name} 1 2 3 4 ")
    (root / "LOC_val_solution.csv").write_text("\n".join(lines) + "\n")
    return images


@pytest.mark.parametrize("start", [".", "ILSVRC/Data/CLS-LOC"])
def test_kaggles_archive_is_read_as_it_is(start, tmp_path):
    """Its table lies three levels above the images. The order is that of class folders."""
    kaggle_imagenet(tmp_path)
    dataset = load_dataset("imagenet", tmp_path / start)
    assert dataset.classes == ("n01440764", "n01751748")
    assert items(dataset.parts["pool"]) == [
        ("val/ILSVRC2012_val_00017700.JPEG", 0),
        ("val/ILSVRC2012_val_00029930.JPEG", 0),
        ("val/ILSVRC2012_val_00000003.JPEG", 1),
    ]
    assert dataset.parts["pool"].missing() == []


def test_flat_validation_images_need_a_whole_table(tmp_path):
    kaggle_imagenet(tmp_path)
    path = tmp_path / "LOC_val_solution.csv"
    lines = path.read_text().splitlines()
    for changed, message in [
        ([lines[0].replace("ImageId", "x"), *lines[1:]], r"\['ImageId'\] is not there"),
        (lines[:-1], "no class of the training folders for 1 images"),
    ]:
        path.write_text("\n".join(changed) + "\n")
        assert_refused(message, "imagenet", tmp_path)
    path.unlink()
    assert_refused(r"without class folders.*LOC_val_solution\.csv", "imagenet", tmp_path)


def test_long_tail_lists_are_read_with_kaggles_archive(tmp_path):
    kaggle_imagenet(tmp_path)
    parts = {
        "train": [("train/n01440764/n01440764_10026.JPEG", 0)],
        "val": [("train/n01751748/n01751748_10026.JPEG", 1)],
        "test": [("val/n01440764/ILSVRC2012_val_00029930.JPEG", 0)],
    }
    write_lists(tmp_path, "ImageNet_LT", parts)
    dataset = load_dataset("imagenet-lt", tmp_path)
    assert items(dataset.parts["test"]) == [("val/ILSVRC2012_val_00029930.JPEG", 0)]
    assert all(listing.missing() == [] for listing in dataset.parts.values())


# --- lists


@pytest.mark.parametrize("where", ["beside", "above", "folder", "named"])
def test_lists_are_found(where, tmp_path):
    images = tmp_path / "data" / "images"
    tree = write_tree("places365-lt", images)
    folder = {
        "beside": images,
        "above": images.parent,
        "folder": images / "Places_LT_v2",
        "named": tmp_path / "elsewhere",
    }[where]
    for path in list(images.glob("*.txt")):
        folder.mkdir(exist_ok=True)
        path.rename(folder / path.name)
    lists = folder if where == "named" else None
    dataset = load_dataset("places365-lt", images, lists=lists)
    assert {part: items(listing) for part, listing in dataset.parts.items()} == tree.parts


def test_bad_lists_are_named(tmp_path):
    write_tree("places365-lt", tmp_path)
    path = tmp_path / "Places_LT_val.txt"
    good = path.read_text()
    for line, message in [
        ("train/place_0/1.jpg", "line 13: must be 'path label'"),
        ("train/place_0/1.jpg -1", "line 13: must be 'path label'"),
        ("train/place_0/1.jpg x", "got 'train/place_0/1.jpg x'"),
    ]:
        path.write_text(good + line + "\n")
        assert_refused(message, "places365-lt", tmp_path)
    path.unlink()
    assert_refused(r"Places_LT_val\.txt.*classifier-balancing", "places365-lt", tmp_path)


def test_lists_without_folders_number_their_classes(tmp_path):
    parts = {part: [("a b.jpg", 0), ("c.jpg", 1)] for part in ("train", "val", "test")}
    write_lists(tmp_path, "Places_LT", parts)
    found = load_dataset("places365-lt", tmp_path)
    assert found.classes == ("0", "1")
    assert items(found.parts["train"]) == parts["train"]
    assert found.parts["val"].missing() == [0, 1]


# --- Places365 as its two archives


def test_places365_by_its_own_lists(tmp_path):
    classes = ["airfield", "apartment_building/outdoor", "zen_garden"]
    folders = [(f"{name[0]}/{name}", code) for code, name in enumerate(classes)]
    train = [(f"{folder}/{n:08d}.jpg", code) for folder, code in folders for n in (1, 2)]
    val = [(f"Places365_val_{n:08d}.jpg", n % 3) for n in range(5)]
    for path, _ in train:
        draw_image(tmp_path / "data_256_standard" / path, 1)
    for path, _ in val:
        draw_image(tmp_path / "val_256" / path, 2)
    lists = tmp_path / "filelist_places365-standard"
    assert_refused("neither form of Places365", "places365", tmp_path)
    lists.mkdir()
    for name, rows in [
        ("places365_train_standard", [(f"/{path}", label) for path, label in train]),
        ("places365_val", val),
        # The order of the lines does not matter, the numbers do.
        ("categories_places365", [(f"/{folder}", code) for folder, code in folders[::-1]]),
    ]:
        (lists / f"{name}.txt").write_text("".join(f"{path} {label}\n" for path, label in rows))
    found = load_dataset("places365", tmp_path)
    assert found.classes == tuple(classes)
    assert items(found.parts["train"]) == [(f"data_256_standard/{p}", y) for p, y in train]
    assert items(found.parts["pool"]) == [(f"val_256/{p}", y) for p, y in val]
    assert all(listing.missing() == [] for listing in found.parts.values())
    (lists / "categories_places365.txt").write_text("/a/airfield 0\n")
    assert_refused("only 1 classes", "places365", tmp_path)


def test_long_tail_lists_are_read_with_the_two_archives_of_places365(tmp_path):
    """Lines of the public lists, whose folders are those of the other archive."""
    parts = {
        "train": [("train/airfield/00004851.jpg", 0), ("train/arena-hockey/00002712.jpg", 1)],
        "val": [("train/airfield/00002049.jpg", 0)],
        "test": [("val/arena-hockey/Places365_val_00003597.jpg", 1)],
    }
    write_lists(tmp_path, "Places_LT", parts)
    files = {
        "data_256/a/airfield": ["00004851.jpg", "00002049.jpg"],
        "data_256/a/arena/hockey": ["00002712.jpg"],
        "val_256": ["Places365_val_00003597.jpg"],
    }
    for folder, names in files.items():
        (tmp_path / folder).mkdir(parents=True)
        for name in names:
            (tmp_path / folder / name).touch()
    dataset = load_dataset("places365-lt", tmp_path)
    assert dataset.classes == ("airfield", "arena-hockey")
    assert all(listing.missing() == [] for listing in dataset.parts.values())
    assert items(dataset.parts["test"]) == [("val_256/Places365_val_00003597.jpg", 1)]


# The order of class folders, which is the official one, and that of the lists of Places365-LT.
FOLDERS = ["desert-sand", "desert-vegetation", "desert_road", "field-wild", "field_road"]
LISTED = ["desert_road", "desert-sand", "desert-vegetation", "field_road", "field-wild"]


@pytest.mark.parametrize(
    ("name", "here", "there"), [("places365", FOLDERS, LISTED), ("places365-lt", LISTED, FOLDERS)]
)
def test_weights_in_the_other_order_of_places_classes_are_refused(name, here, there, tmp_path):
    classes = ("airfield", *here, "zen_garden")
    listing = Listing(tmp_path, ["a"], [0])
    dataset = ImageSet(name, classes, {"pool": listing})
    labels = np.arange(7).repeat(10)
    other = np.array([0, *(1 + there.index(item) for item in here), 6])
    check_class_order(dataset, labels, labels)
    noisy = np.where(np.arange(70) % 3 == 0, labels, 6)
    check_class_order(dataset, labels, noisy)
    with pytest.raises(InputError, match="reorder their last layer"):
        check_class_order(dataset, labels, other[labels])
    # Other datasets, and a few of the classes only, have nothing to check.
    check_class_order(ImageSet("imagenet", classes, {"pool": listing}), labels, other[labels])
    check_class_order(ImageSet(name, ("a", "b"), {"pool": listing}), labels % 2, labels % 2)


# --- Fitzpatrick 17k


def test_skin_images_may_be_named_by_their_address(tmp_path):
    """Lines of the public table; one row has no address, and its image is missing."""
    header = (
        "md5hash,fitzpatrick_scale,fitzpatrick_centaur,label,nine_partition_label,"
        "three_partition_label,qc,url,url_alphanum"
    )
    label = "drug induced pigmentary changes"
    lines = [
        f"{number:032x},3,3,{label},inflammatory,non-neoplastic,,"
        f"{'' if number == 3 else f'https://www.dermaamin.com/site/m{number}.jpg'},"
        f"httpwwwdermaamincomsitem{number}jpg.jpg"
        for number in range(10)
    ]
    (tmp_path / "fitzpatrick17k.csv").write_text("\n".join([header, *lines]) + "\n")
    assert_refused("named by its md5hash or url_alphanum.*on request", "fitzpatrick17k", tmp_path)
    for number in set(range(10)) - {3}:
        (tmp_path / f"httpwwwdermaamincomsitem{number}jpg.jpg").touch()
    dataset = load_dataset("fitzpatrick17k", tmp_path)
    missing = [listing.path(row) for listing in dataset.parts.values() for row in listing.missing()]
    assert missing == [f"{3:032x}.jpg"]


def test_skin_images_are_drawn_by_seed(tmp_path):
    """Seven of ten images of every condition train, as in the dataset's own script.

    Which images are missing does not matter.
    """
    tree = write_tree("fitzpatrick17k", tmp_path, train=10, held=10)
    known = dict(tree.parts["all"])
    splits = {seed: load_dataset("fitzpatrick17k", tmp_path, seed=seed) for seed in (0, 1)}
    for seed, found in splits.items():
        assert found.classes == tuple(tree.classes)
        assert found.seed == seed
        train, pool = found.parts["train"], found.parts["pool"]
        assert np.bincount(train.labels).tolist() == [14, 14, 14] and len(pool) == 18
        assert sorted(items(train) + items(pool)) == sorted(known.items())
        types = [tree.skin_types[path] for path, _ in items(pool)]
        assert pool.groups["skin_type"].tolist() == types
    assert items(splits[1].parts["train"]) != items(splits[0].parts["train"])
    for path, _ in tree.parts["all"][::2]:
        (tmp_path / path).unlink()
    again = load_dataset("fitzpatrick17k", tmp_path, seed=0)
    assert items(again.parts["train"]) == items(splits[0].parts["train"])
    assert sum(len(listing.missing()) for listing in again.parts.values()) == 30


def test_skin_files_may_have_other_endings(tmp_path):
    tree = write_tree("fitzpatrick17k", tmp_path)
    names = [path for path, _ in tree.parts["all"]]
    (tmp_path / names[0]).rename(tmp_path / names[0].removesuffix(".jpg"))
    (tmp_path / names[1]).rename((tmp_path / names[1]).with_suffix(".png"))
    found = load_dataset("fitzpatrick17k", tmp_path)
    paths = {path for listing in found.parts.values() for path, _ in items(listing)}
    assert {names[0].removesuffix(".jpg"), names[1].replace(".jpg", ".png")} < paths
    types = np.concatenate([listing.groups["skin_type"] for listing in found.parts.values()])
    assert set(types) == {"1", "2", "3", "4", "5", "6", "unknown"}


def test_bad_skin_tables_are_named(tmp_path):
    write_tree("fitzpatrick17k", tmp_path)
    path = tmp_path / "fitzpatrick17k.csv"
    table = pd.read_csv(path)
    for change, message in [
        (table.drop(columns="label"), r"needs the columns .*\['label'\] is not there"),
        (table.assign(fitzpatrick_scale=9), r"1 to 6, and -1 for unknown; got \['9'\]"),
        (table.assign(label=[None, *table["label"][1:]]), "rows without md5hash or label"),
        (table.assign(label=table["md5hash"]), "cannot be split by condition"),
    ]:
        change.to_csv(path, index=False)
        assert_refused(message, "fitzpatrick17k", tmp_path)
    path.unlink()
    assert_refused(r"fitzpatrick17k\.csv is neither", "fitzpatrick17k", tmp_path)


# --- bad input


def test_bad_places_are_named(tmp_path):
    assert_refused("dataset must be one of imagenet, imagenet-lt", "cifar10", tmp_path)
    assert_refused("is no folder", "imagenet", tmp_path / "none")
    assert_refused("train, val is not there", "imagenet", tmp_path)
    assert_refused("lists=.* is no folder", "imagenet", tmp_path, lists=tmp_path / "none")
    for part in ("train", "val"):
        (tmp_path / part / "n1").mkdir(parents=True)
    assert_refused("no images in its part 'train'", "imagenet", tmp_path)


def test_the_digest_sees_order_and_labels_and_not_the_place(tmp_path):
    one = load_dataset("places365", write_tree("places365", tmp_path / "a").images).parts["train"]
    two = load_dataset("places365", write_tree("places365", tmp_path / "b").images).parts["train"]
    assert one.digest() == two.digest()
    paths = [one.path(row) for row in range(len(one))]
    assert Listing(tmp_path, paths, one.labels).digest() == one.digest()
    turned = Listing(tmp_path, paths[::-1], one.labels[::-1])
    assert turned.digest() != one.digest()
