"""Read images of chats and their sizes, and count the placeholder tokens that a processor makes of each.

Only sizes are needed. They come from the row or from the first bytes of the image; no image is decoded. Each rule gives
the same number as the processor of that model. Until a chat is rendered, `IMAGE` is the placeholder of an image in the
text of a message.

| rule | tokens of an image |
|---|---|
| qwen2_vl | proportional to its area: both sides rounded to whole cells, within min_pixels and max_pixels |
| llava | constant |
| llava_next | a small copy and tiles of it, on the best-fitting grid of a list, without the padding |
"""

from __future__ import annotations

import base64
import binascii
import io
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

from headrace.errors import MissingExtra, SettingsError
from headrace.packing.chats.words import ImageRule, RowRejected, shown

IMAGE = "\ufdd6"
"""Stands for an image in the text of a message."""

_PLACES = ("url", "path", "image", "image_url", "file")
_ROTATED, _ORIENTATION = frozenset((5, 6, 7, 8)), 0x0112  # EXIF values that swap the sides, and their tag
_MOST_ASPECT = 200  # the processor of qwen2_vl refuses longer ones
_TOKENS = {"qwen2_vl": "<|image_pad|>", "llava": "<image>", "llava_next": "<image>"}
_PROCESSORS = {
    **dict.fromkeys(("Qwen2VL", "Qwen2_5_VL", "Qwen3VL"), "qwen2_vl"),
    **{"LlavaNext": "llava_next", "Llava": "llava", "CLIP": "llava"},
}
_GRIDS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]

_MEDIA = frozenset(("images", "image", "audios", "videos"))
_TAG = "<image>"

Count = Callable[[int, int], int]


class Image(NamedTuple):
    """An image that a row names. reference: its path or address; None if the row holds its bytes, in `data`."""

    reference: str | None = None
    data: bytes | None = None
    width: int | None = None
    height: int | None = None

    @property
    def identity(self) -> str:
        """A key that tells images apart: the reference, or a digest of the bytes."""
        return self.reference or blake2b(self.data or b"", digest_size=16).hexdigest()


def uncounted(what: str) -> RowRejected:
    """Build the rejection of a row whose images cannot be counted."""
    return RowRejected("uncounted_media", what)


class PlacedImage(NamedTuple):
    """An image in a sequence. start: index of its first placeholder. tokens: number of placeholders.

    number: index among the images of its row. reference: None if the row holds the bytes.
    """

    sequence: int
    start: int
    tokens: int
    number: int
    reference: str | None


def image_of(value: object, beside: Mapping[str, Any]) -> Image:
    """Read an image: a path, an address, bytes, or an object with one of them. Raises `RowRejected`.

    beside: a mapping to read width and height from if the image does not hold them itself.
    """
    own: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    place: object = next((own[name] for name in _PLACES if own.get(name) is not None), None) if own else value
    if isinstance(place, Mapping):
        return image_of(place, {**beside, **own})
    data = own.get("bytes")
    if isinstance(place, str) and place.startswith("data:"):
        head, _, text = place.partition(",")
        try:
            data = base64.b64decode(text, validate=True) if head.endswith(";base64") else None
        except binascii.Error:
            data = None
        if not data:
            raise uncounted(f"an image is {shown(place)}, which is not base64")
    width, height = ((own if own.get(name) is not None else beside).get(name) for name in ("width", "height"))
    if any(not isinstance(size, int | None) or isinstance(size, bool) or (size or 1) < 1 for size in (width, height)):
        raise uncounted(f"an image has width {shown(width)} and height {shown(height)}; give numbers of pixels")
    if isinstance(data, bytes) and data:
        return Image(None, data, width, height)
    if not isinstance(place, str) or not place:
        raise uncounted(f"an image is {shown(value)}; give a path, an address or its bytes")
    return Image(place, None, width, height)


def placed_images(
    row: Mapping[str, Any], messages: list[dict[str, Any]], images: Sequence[Image | None]
) -> Sequence[Image]:
    """Return the images of a row, in order: those of its parts, with the row's column for parts and tags without one.

    Replaces the tags in messages with `IMAGE`. Raises `RowRejected`.
    """
    if _MEDIA.isdisjoint(row) and not images:
        return ()
    for name in ("audios", "videos"):
        if row.get(name):
            raise uncounted(f"column {name} holds {shown(row[name])}; audio and video are not counted")
    found = next((row[name] for name in ("images", "image") if row.get(name)), ())
    given = list(found) if isinstance(found, Sequence) and not isinstance(found, str) else [found]
    missing = sum(image is None for image in images)
    if not images:
        missing = sum(message["content"].count(_TAG) for message in messages)
        if given and missing:
            for message in messages:
                message["content"] = message["content"].replace(_TAG, IMAGE)
        elif given and row.get("images"):
            asked = next((message for message in messages if message["role"] == "user"), None)
            if asked is not None:
                asked["content"], missing = len(given) * IMAGE + asked["content"], len(given)
        else:
            return ()  # text about images, or a picture of something else
        images = [None] * missing
    if missing and missing != len(given):
        raise uncounted(f"the row has {len(given)} images for {missing} places in its messages")
    own = iter([image_of(each, row if len(given) == 1 else {}) for each in given] if missing else [])
    return [image or next(own) for image in images]


def size_of(image: Image, directory: Path | None) -> tuple[int, int]:
    """Return width and height from the row, or else from the image's header.

    directory: the base of relative paths. Raises `RowRejected`, `MissingExtra`.
    """
    if image.width and image.height:
        return image.width, image.height
    if image.data is not None:
        return _header(io.BytesIO(image.data), "the bytes of an image")
    place = image.reference or ""
    address = urlparse(place)
    if address.scheme == "file":
        place = unquote(address.path)
    elif "://" in place:
        raise uncounted(f"{shown(place)} is not on this machine; give its width and height beside it, or fetch it")
    path = (directory or Path()) / place
    if not path.is_file():
        raise uncounted(f"image {shown(str(path))} is not there; say where paths begin with image_directory")
    return _header(path, str(path))


def _header(source: io.BytesIO | Path, what: str) -> tuple[int, int]:
    """Read the displayed size of an image, which EXIF may rotate from the stored one."""
    try:
        import PIL.Image
    except ModuleNotFoundError:
        raise MissingExtra("pillow", "images") from None
    try:
        with PIL.Image.open(source) as image:
            width, height = image.size
            turned = image.getexif().get(_ORIENTATION) in _ROTATED
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        raise uncounted(f"{what} cannot be read as an image ({shown(str(error))})") from None
    return (height, width) if turned else (width, height)


@dataclass(frozen=True)
class ImageCounter:
    """A rule that counts an image's tokens. token: the placeholder. numbers: of the rule. count: by width, height."""

    rule: ImageRule
    token: str
    numbers: Mapping[str, Any]
    count: Count

    def widened(self, text: str, spans: Sequence[tuple[int, int]], counts: Sequence[int]) -> tuple[str, list[Any]]:
        """Repeat each image's placeholder once per token; also return the spans at their new positions.

        Raises `RowRejected` unless the text has exactly one placeholder for each image.
        """
        parts = text.split(self.token)
        if len(parts) != len(counts) + 1:
            raise uncounted(f"the template writes {len(parts) - 1} of {self.token} for {len(counts)} images")
        size = len(self.token)
        ends = [*accumulate(len(part) + size for part in parts[:-1])]
        shifts = [0, *accumulate((count - 1) * size for count in counts)]
        moved = [tuple(at + shifts[bisect_right(ends, at)] for at in span) for span in spans]
        return "".join(chain.from_iterable(zip(parts, (*(n * self.token for n in counts), ""), strict=True))), moved


def counter_of(word: ImageRule, values: Mapping[str, Any], config: Mapping[str, Any], where: Path) -> ImageCounter:
    """Build the counter of a rule. values: override `config`, the processor's files beside a tokenizer.

    Raises `SettingsError` for a processor or numbers that no rule knows.
    """
    rule: str = word
    if word == "processor":
        name = str(config.get("image_processor_type", config.get("processor_class", "")))
        model = name.partition("ImageProcessor")[0].partition("Processor")[0]
        rule = _PROCESSORS.get(model, "")
        if rule == "llava" and "LlavaNext" in str(config.get("processor_class")):
            rule = "llava_next"
        if not rule:
            found = f"is of {name}, whose tokens cannot be counted" if name else "has no preprocessor_config.json"
            raise SettingsError(
                f"images='processor': {where.parent} {found}; name a rule, one of {', '.join(_TOKENS)}, or give the "
                "directory of another tokenizer"
            )
    # A processor with a patch_size adds no token unless its configuration says so.
    own = {"num_additional_image_tokens": 0} if "patch_size" in config else {}
    config = {**own, **config, **values}
    try:
        numbers, count = _RULES[rule](config)
    except (TypeError, KeyError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise SettingsError(
            f"images={word!r}: {where.parent}: its processor's files, or image_values, have other values than the rule "
            f"{rule} reads ({error!r}); correct them"
        ) from None
    unknown = sorted({*values} - {*numbers} - {"image_token"})
    if unknown:
        known = ", ".join((*numbers, "image_token"))
        raise SettingsError(f"image_values: {rule} reads no {unknown[0]}; it reads {known}")
    token = config.get("image_token", _TOKENS[rule])
    token = token.get("content") if isinstance(token, Mapping) else token
    return ImageCounter(rule, str(token), numbers, count)  # type: ignore[arg-type]  # a word of the rules


def _qwen2_vl(config: Mapping[str, Any]) -> tuple[dict[str, Any], Count]:
    size = config.get("size") or {}
    numbers = {
        "patch_size": config.get("patch_size", 14),
        "merge_size": config.get("merge_size", 2),
        "min_pixels": config.get("min_pixels") or size.get("shortest_edge", 56 * 56),
        "max_pixels": config.get("max_pixels") or size.get("longest_edge", 28 * 28 * 1280),
    }
    cell = numbers["patch_size"] * numbers["merge_size"]
    least, most = numbers["min_pixels"], numbers["max_pixels"]
    if not 0 < least <= most:
        raise ValueError(f"min_pixels {least}, max_pixels {most}")

    def count(width: int, height: int) -> int:
        if max(width, height) > _MOST_ASPECT * min(width, height):
            raise uncounted(f"an image of {width} × {height} is too narrow for the processor; leave the row out")
        sides = [round(side / cell) * cell for side in (height, width)]
        if sides[0] * sides[1] > most:
            share = math.sqrt(height * width / most)
            sides = [max(cell, math.floor(side / share / cell) * cell) for side in (height, width)]
        elif sides[0] * sides[1] < least:
            share = math.sqrt(least / (height * width))
            sides = [math.ceil(side * share / cell) * cell for side in (height, width)]
        return int(sides[0] // cell * (sides[1] // cell))

    return numbers, count


def _of_vision_tower(config: Mapping[str, Any], name: str) -> tuple[dict[str, Any], int, int]:
    """Return numbers that llava and llava_next share, the patches of a square's side, and the additional tokens.

    name: of the setting of the square to which the processor resizes an image.
    """
    size: Any = config.get(name) or 336
    edge = size if isinstance(size, int) else size.get("shortest_edge")
    height, width = (int(size[side] if edge is None else edge) for side in ("height", "width"))
    strategy = config.get("vision_feature_select_strategy") or "default"
    if strategy not in ("default", "full"):
        raise ValueError(f"vision_feature_select_strategy {strategy}")
    patch, more = config.get("patch_size") or 14, config.get("num_additional_image_tokens", 1)
    numbers = {
        "patch_size": patch,
        "num_additional_image_tokens": more,
        "vision_feature_select_strategy": strategy,
        name: {"height": height, "width": width},
    }
    return numbers, height // patch, more - (strategy == "default")


def _llava(config: Mapping[str, Any]) -> tuple[dict[str, Any], Count]:
    name = "crop_size" if config.get("do_center_crop", True) else "size"
    if name == "size" and "shortest_edge" in (config.get("size") or {}):
        raise ValueError("do_center_crop is false and size is a shortest edge")
    numbers, rows, more = _of_vision_tower(config, name)
    tokens = rows * (numbers[name]["width"] // numbers["patch_size"]) + more
    return numbers, lambda width, height: tokens


def _llava_next(config: Mapping[str, Any]) -> tuple[dict[str, Any], Count]:
    name = "crop_size" if "crop_size" in config else "size"
    numbers, patches, more = _of_vision_tower(config, name)
    grids = [(int(height), int(width)) for height, width in config.get("image_grid_pinpoints") or _GRIDS]
    side = numbers[name]["height"]

    def fit(width: int, height: int, grid: tuple[int, int]) -> tuple[int, int]:
        """Return a key that prefers more of the image's pixels, then less empty grid."""
        scale = min(grid[1] / width, grid[0] / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        return -used, grid[0] * grid[1] - used

    def count(width: int, height: int) -> int:
        grid = min(grids, key=lambda each: fit(width, height, each))
        rows, columns = (patches * (edge // side) for edge in grid)
        if width / height > columns / rows:
            rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
        else:
            columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
        return int(rows * columns + rows + patches * patches + more)

    return {**numbers, "image_grid_pinpoints": [list(grid) for grid in grids]}, count


_RULES = {"qwen2_vl": _qwen2_vl, "llava": _llava, "llava_next": _llava_next}
