"""Images in chats: placeholders as processors make them, the columns that name images, and rows that are refused."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chats import encoder, small_tokenizer, trained_texts
from hypothesis import given
from hypothesis import strategies as st
from recipe_cases import packed, write_jsonl
from tokenizers import AddedToken, Tokenizer
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.dataset.open import FinishedRun, find_run
from headrace.errors import SettingsError
from headrace.packing.chats.images import counter_of
from headrace.packing.verify import verify_packed

PAD = "<|image_pad|>"
QWEN_VL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAVA = (
    "{% for m in messages %}{{ m.role.upper() }}: {% for c in m.content | selectattr('type', 'equalto', 'image') %}"
    "<image>\n{% endfor %}{% for c in m.content | selectattr('type', 'equalto', 'text') %}{{ c.text }}{% endfor %}"
    "</s>{% endfor %}{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)
# Width, height and tokens, as the processors of transformers 5.23 count them.
QWEN_COUNTS = [(160, 210, 48), (260, 10, 11), (5, 780, 25), (590, 52, 42), (450, 350, 192), (18, 53, 8), (1620, 520, 468), (520, 13, 13), (660, 750, 504)]  # fmt: skip
NEXT_COUNTS = [(60, 420, 912), (58, 220, 744), (430, 1560, 2088), (210, 34, 968), (1260, 520, 1992), (220, 32, 870), (550, 1230, 1926), (13, 780, 792), (900, 930, 2832), (260, 14, 674)]  # fmt: skip


def tokenizer_of(place: Path, template: str) -> Path:
    """The small tokenizer with tokens of vision models."""
    small_tokenizer(place, template)
    tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
    tokens = ["<|vision_start|>", "<|vision_end|>", PAD, "<image>"]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    tokenizer.save(str(place / "tokenizer.json"))
    return place


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_of(tmp_path_factory.mktemp("qwen"), QWEN_VL)


def asked(content, answer="a cat", **more) -> dict:
    return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": answer}], **more}


def picture(name: str = "a.png", width: int = 56, height: int = 84) -> dict:
    return {"type": "image", "image": name, "width": width, "height": height}


def texts_of(made, rows) -> list[str]:
    encoded = made.encode(rows)
    assert [] == encoded.rejected
    return ["".join(text for text, _ in parts) for parts in made.texts(encoded)]


@pytest.mark.parametrize(("width", "height", "tokens"), QWEN_COUNTS)
def test_qwen_counts_as_its_processor(width, height, tokens):
    assert tokens == counter_of("qwen2_vl", {"max_pixels": 401408}, {}, Path()).count(width, height)


@pytest.mark.parametrize(("width", "height", "tokens"), NEXT_COUNTS)
def test_llava_next_counts_as_its_processor(width, height, tokens):
    assert tokens == counter_of("llava_next", {}, {}, Path()).count(width, height)


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_llava_always_counts_the_same(width, height):
    assert counter_of("llava", {}, {}, Path()).count(width, height) == 576


@given(st.integers(28, 3000), st.integers(28, 3000), st.integers(1, 6))
def test_qwen_counts_whole_cells_within_its_limits(width, height, more):
    most = 28 * 28 * 200 * more
    count = counter_of("qwen2_vl", {"max_pixels": most}, {}, Path()).count

    if max(width, height) <= 100 * min(width, height):
        assert count(width, height) == count(height, width)
        assert 1 <= count(width, height) <= most // 784
        if 3136 <= (width // 28 * 28) * (height // 28 * 28) and (width + 28) * (height + 28) <= most:
            assert count(width, height) == round(width / 28) * round(height / 28)


def test_the_real_processors_count_the_same(tmp_path):
    image_of = pytest.importorskip("PIL.Image")
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    grids = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    shapes = Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=200704)
    tiles = LlavaNextImageProcessorPil(
        size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}, image_grid_pinpoints=grids
    )
    made = []
    for name, processor in (("qwen", shapes), ("next", tiles)):
        place = tokenizer_of(tmp_path / name, QWEN_VL)
        processor.save_pretrained(place)
        made.append(encoder(place, images="processor").images)
    counter = object.__new__(LlavaNextProcessor)  # it needs no tokenizer to count
    counter.image_processor, counter.patch_size, counter.num_additional_image_tokens = tiles, 14, 1

    for width, height in [(33, 70), (336, 336), (640, 480), (1000, 90), (17, 300), (1200, 1180)]:
        image = image_of.new("RGB", (width, height))
        grid = shapes(image)["image_grid_thw"]

        assert int(np.prod(grid)) // 4 == made[0].count(width, height)
        assert counter._get_number_of_features(height, width, 336, 336) - 1 == made[1].count(width, height)


def test_every_layout_gives_the_same_tokens(qwen):
    made = encoder(qwen, images="qwen2_vl")
    size = {"width": 56, "height": 84}
    parts = [{"type": "image"}, {"type": "text", "text": "what is it?"}]
    rows = [
        asked([picture(), {"type": "text", "text": "what is it?"}]),
        asked([{"type": "image_url", "image_url": {"url": "a.png", **size}}, {"type": "text", "text": "what is it?"}]),
        asked([{"type": "input_image", "image_url": "a.png", **size}, {"type": "input_text", "text": "what is it?"}]),
        asked(parts, images=[{"path": "a.png", **size}]),
        asked("<image>what is it?", images=[{"url": "a.png", **size}]),
        asked("what is it?", images=[{"path": "a.png", **size}]),
        {"image": "a.png", **size, "conversations": [{"from": "human", "value": "<image>what is it?"}, {"from": "gpt", "value": "a cat"}]},
        {"images": [{"path": "a.png", **size}], "instruction": "<image>what is it?", "output": "a cat"},
    ]  # fmt: skip
    expected = f"<|im_start|>user\n<|vision_start|>{6 * PAD}<|vision_end|>what is it?<|im_end|>\n<|im_start|>assistant\na cat<|im_end|>\n"

    assert [expected] * len(rows) == texts_of(made, rows)
    assert [("a.png", 4, 6)] * len(rows) == [
        (image.reference, image.start, image.tokens) for image in made.encode(rows).images
    ]


def test_a_template_of_parts_alone_writes_images_first(tmp_path):
    made = encoder(tokenizer_of(tmp_path, LLAVA), images="llava", image_values={"crop_size": 42, "patch_size": 14})
    rows = [asked([{"type": "text", "text": "this "}, picture()]), asked("no picture")]

    assert [f"USER: {9 * '<image>'}\nthis </s>ASSISTANT: a cat</s>", "USER: no picture</s>ASSISTANT: a cat</s>"] == (
        texts_of(made, rows)
    )


def test_placeholders_are_never_trained_and_typed_ones_are_text(qwen):
    made = encoder(qwen, images="qwen2_vl")
    row = asked(f"draw {PAD}", [{"type": "text", "text": "see "}, picture(width=28, height=28), {"type": "text", "text": "!"}])  # fmt: skip

    assert [["see <|vision_start|>", "<|vision_end|>!<|im_end|>"]] == trained_texts(made, [row])
    (image,) = made.encode([row]).images
    encoded = made.encode([row])
    placeholders = np.flatnonzero(encoded.tokens == made.image_id)
    assert list(range(image.start, image.start + image.tokens)) == placeholders.tolist()


def test_each_answer_with_reasoning_has_the_images_before_it(qwen):
    made = encoder(qwen, images="qwen2_vl", reasoning="every_user_turn")
    answers = [{"role": "assistant", "content": "one", "reasoning_content": "hm"}, {"role": "assistant", "content": "two"}]  # fmt: skip
    users = [{"role": "user", "content": [picture(name, width)]} for name, width in (("a", 56), ("b", 84))]
    row = {"messages": [users[0], answers[0], users[1], answers[1]]}
    found = made.encode([row]).images

    assert [(0, "a", 6), (1, "a", 6), (1, "b", 9)] == [(each.sequence, each.reference, each.tokens) for each in found]


@pytest.mark.parametrize(
    "row",
    [
        asked([{"type": "image", "image": "https://example.org/a.png"}]),
        asked([{"type": "image", "image": "missing.png"}]),
        asked([{"type": "image", "image": "data:image/png;base64,%%"}]),
        asked([{"type": "image"}]),
        asked([picture(width=0)]),
        asked([picture(width="56")]),
        asked([picture(width=20_000, height=28)]),
        asked("<image><image> which?", images=[{"path": "a.png", "width": 28, "height": 28}]),
        asked([{"type": "input_audio", "input_audio": {"data": "AA=="}}]),
        asked([{"type": "video", "video": "a.mp4"}]),
        asked("<audio>what?", audios=["a.wav"]),
    ],
)
def test_what_cannot_be_counted_is_refused(qwen, row):
    (rejected,) = encoder(qwen, images="qwen2_vl").encode([row]).rejected

    assert "uncounted_media" == rejected.reason


def test_images_are_refused_unless_a_rule_is_named(qwen):
    made = encoder(qwen)
    rows = [asked([picture()]), asked("<image>?", images=["a.png"]), asked("the tag <image>", image=None), asked("text", image="logo.png")]  # fmt: skip

    assert [(0, "uncounted_media"), (1, "uncounted_media")] == [(each.row, each.reason) for each in made.encode(rows).rejected]  # fmt: skip


def test_a_template_that_takes_texts_only_is_named_as_the_reason(tmp_path):
    only_texts = "{% for m in messages %}{{ m.role + ' ' + m.content }}{% endfor %}"
    (rejected,) = encoder(tokenizer_of(tmp_path, only_texts), images="qwen2_vl").encode([asked([picture()])]).rejected

    assert "template_error" == rejected.reason
    assert "the row holds images: the template may take texts only" in rejected.detail


def test_peek_writes_the_placeholders_of_an_image_once(qwen, tmp_path):
    PIL = pytest.importorskip("PIL.Image")
    PIL.new("RGB", (160, 210)).save(tmp_path / "a.png")
    row = asked([{"type": "image", "image": "a.png"}])
    command = ["peek", write_jsonl(tmp_path / "a.jsonl", [row]), "--mask", "--tokenizer", qwen, "--images", "qwen2_vl"]
    done = CliRunner(env={"NO_COLOR": "1"}).invoke(app, [*map(str, command)])

    assert f"<|vision_start|>{PAD} × 48 <|vision_end|>" in done.output


def test_a_row_with_the_stand_in_of_images_is_refused(qwen):
    for made in (encoder(qwen), encoder(qwen, images="qwen2_vl")):
        rejected = made.encode([asked("hi \ufdd6"), asked(["\ufdd6", picture()])]).rejected

        assert {"reserved_character"} | {"uncounted_media"} >= {each.reason for each in rejected}
        assert [0, 1] == [each.row for each in rejected]


def test_sizes_are_read_from_headers(qwen, tmp_path):
    image_of = pytest.importorskip("PIL.Image")
    turned = image_of.Exif()
    turned[0x0112] = 6
    for name, more in (("a.png", {}), ("b.jpg", {"exif": turned}), ("c.webp", {}), ("d.gif", {})):
        image_of.new("RGB", (100, 60)).save(tmp_path / name, **more)
    data = (tmp_path / "a.png").read_bytes()
    made = encoder(qwen, images="qwen2_vl", image_directory=tmp_path)
    (tmp_path / "broken.png").write_bytes(b"no image")
    values = ["a.png", str(tmp_path / "b.jpg"), (tmp_path / "c.webp").as_uri(), "d.gif", {"bytes": data}, "data:image/png;base64," + base64.b64encode(data).decode()]  # fmt: skip
    encoded = made.encode([asked([{"type": "image", "image": value}]) for value in [*values, "broken.png"]])

    assert [8] * len(values) == [image.tokens for image in encoded.images]
    assert [(len(values), "uncounted_media")] == [(each.row, each.reason) for each in encoded.rejected]


def test_settings_that_cannot_count_are_refused(qwen, tmp_path):
    for wrong in ({"images": "processor"}, {"images": "qwen2_vl", "image_values": {"pixels": 3}}, {"images": "qwen2_vl", "image_values": {"max_pixels": 5}}):  # fmt: skip
        with pytest.raises(SettingsError, match="image"):
            encoder(qwen, **wrong)
    with pytest.raises(SettingsError, match="no token"):
        encoder(small_tokenizer(tmp_path / "plain"), images="qwen2_vl")
    with pytest.raises(SettingsError, match="near"):
        headrace.PackedSequences(blend="x.jsonl", tokenizer=qwen, images="qwen2_vl", near=0.8)
    with pytest.raises(SettingsError, match="texts alone"):
        headrace.Preferences(blend="x.jsonl", tokenizer=qwen, images="qwen2_vl")


def chats_with_images(count: int) -> list[dict]:
    rows = []
    for number in range(count):
        messages = []
        for turn in range(1 + number % 5):
            content = [{"type": "text", "text": f"{number} {turn} look "}]
            content += [picture(f"{number}-{turn}-{each}.png", 28 * (1 + each), 56 + 28 * (number % 3)) for each in range(number % 3)]  # fmt: skip
            messages += [{"role": "user", "content": content}, {"role": "assistant", "content": f"answer {turn}"}]
        rows.append({"messages": messages})
    return rows


@pytest.fixture(scope="module")
def run(qwen, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    source = write_jsonl(folder / "chats.jsonl", chats_with_images(120))
    settings = {"tokenizer": qwen, "images": "qwen2_vl", "too_long": "turns", "pack_size": 128}
    packed(source, folder / "out", **settings, trace="always")
    return source, settings, folder / "out"


def test_bins_name_their_images_where_the_placeholders_are(qwen, run):
    made, names = encoder(qwen, images="qwen2_vl"), []
    for path in sorted((run[2] / "splits").glob("*/*.parquet")):
        for row in pq.read_table(path).to_pylist():
            ids, mask = np.array(row["input_ids"]), np.array(row["loss_mask"])
            expected = np.zeros(len(ids), bool)
            for name, start, tokens in zip(row["images"], row["image_start"], row["image_tokens"], strict=True):
                expected[start : start + tokens] = True
                sequence = np.searchsorted(row["seq_start_id"], start, "right") - 1
                assert int(name.split("-")[0]) == row["source_row"][sequence] - 1
            names += row["images"]

            assert (expected == (ids == made.image_id)).all()
            assert not mask[:-1][expected[1:]].any()
    assert {image["image"] for row in chats_with_images(120) for message in row["messages"] if message["role"] == "user" for image in message["content"] if image["type"] == "image"} == set(names)  # fmt: skip


@pytest.mark.slow
def test_verify_checks_the_images(run, tmp_path):
    packed(run[0], tmp_path / "out", **run[1], workers=2)
    assert headrace.verify(tmp_path / "out").problems == []
    path = sorted((tmp_path / "out" / "splits" / "train").iterdir())[0].resolve()
    file = pq.ParquetFile(path)
    table = file.read()
    changed = [[f"x{name}" for name in names] for names in table["images"].to_pylist()]
    table = table.set_column(table.schema.get_field_index("images"), "images", pa.array(changed, pa.list_(pa.string())))
    pq.write_table(table.replace_schema_metadata(file.schema_arrow.metadata), path, row_group_size=32)
    checks = verify_packed(FinishedRun(*find_run(tmp_path / "out")), 1)

    assert {"every sequence once"} == {check.name for check in checks if check.problem}


@pytest.mark.slow
def test_any_number_of_workers_writes_the_same_images(run, tmp_path):
    packed(run[0], tmp_path / "out", **run[1], trace="always", workers=3, num_shards=2)
    packed(run[0], tmp_path / "again", **run[1], trace="always", workers=1, num_shards=2)

    for path in sorted((tmp_path / "out" / "splits").glob("*/*.parquet")):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(tmp_path / "out")).read_bytes()


@pytest.mark.parametrize("form", ["varlen", "padded"])
@pytest.mark.parametrize("last_token", ["keep", "drop"])
def test_batches_say_where_placeholders_are(qwen, run, form, last_token):
    made = encoder(qwen, images="qwen2_vl")
    options = {"batch_size": 3, "shuffle": True, "seed": 3, "batch_format": "numpy"}
    forms = headrace.PackedBatches(form=form, last_token=last_token)
    names = []
    for batch in headrace.open(run[2]).stream("train", packed=forms, **options):
        flat = batch["input_ids"].ravel()
        expected = np.zeros(len(flat), bool)
        for start, tokens in zip(batch["image_start"], batch["image_tokens"], strict=True):
            expected[start : start + tokens] = True
        names += batch["images"]

        assert len(batch["images"]) == len(batch["image_start"])
        assert (expected == (flat == made.image_id)).all()
    assert names


def test_batches_resume_with_their_images(run):
    options = {"batch_size": 2, "shuffle": True, "seed": 3, "packed": "varlen"}
    whole = [batch["images"] for batch in headrace.open(run[2]).stream("train", **options)]
    stream = headrace.open(run[2]).stream("train", **options)
    batches = iter(stream)
    first = [next(batches)["images"] for _ in range(3)]
    again = headrace.open(run[2]).stream("train", **options)
    again.load_state_dict(stream.state_dict())

    assert whole == first + [batch["images"] for batch in again]


@pytest.mark.parametrize("too_long", ["truncate", "split", "drop"])
def test_no_image_is_cut(qwen, run, tmp_path, too_long):
    prepared = packed(run[0], tmp_path / "out", **{**run[1], "too_long": too_long, "pack_size": 64})
    made = encoder(qwen, images="qwen2_vl")

    assert headrace.verify(tmp_path / "out").problems == []
    assert prepared.manifest.facts["too_long"]["too_long_dropped"] > 0
    for path in (tmp_path / "out" / "splits").glob("*/*.parquet"):
        for row in pq.read_table(path).to_pylist():
            assert sum(row["image_tokens"]) == row["input_ids"].count(made.image_id)


def test_rows_that_differ_in_their_images_alone_are_not_duplicates(qwen, tmp_path):
    rows = [asked([picture(f"{number // 2}.png"), {"type": "text", "text": "what?"}]) for number in range(40)]
    source = write_jsonl(tmp_path / "chats.jsonl", rows)
    prepared = packed(source, tmp_path / "out", tokenizer=qwen, images="qwen2_vl", duplicates="drop")

    assert 20 == prepared.manifest.dropped["duplicate"]
    assert headrace.verify(tmp_path / "out").problems == []


def test_bytes_of_images_are_called_by_their_row(qwen, tmp_path):
    image_of = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image_of.new("RGB", (56, 56)).save(buffer, "png")
    rows = [
        {**asked(f"<image>{number}"), "images": [{"bytes": buffer.getvalue(), "path": None}]} for number in range(9)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "chats.parquet")
    packed(tmp_path / "chats.parquet", tmp_path / "out", tokenizer=qwen, images="qwen2_vl")
    names = [name for path in (tmp_path / "out" / "splits").glob("*/*.parquet") for names in pq.read_table(path)["images"].to_pylist() for name in names]  # fmt: skip

    assert sorted(f"chats/chats.parquet#{number}/0" for number in range(1, 10)) == sorted(names)


@pytest.mark.slow
def test_chats_of_text_keep_their_tokens_and_run_names(qwen, tmp_path):
    rows = [asked(f"question {number}") for number in range(60)]
    source = write_jsonl(tmp_path / "chats.jsonl", rows)
    plain = packed(source, tmp_path / "out", tokenizer=qwen)
    counted = packed(source, tmp_path / "counted", tokenizer=qwen, images="qwen2_vl")
    files = [json.loads((tmp_path / name / "blend.json").read_text()) for name in ("out", "counted")]
    columns = ["input_ids", "loss_mask", "seq_start_id"]
    tables = [
        [pq.read_table(path, columns=columns) for path in sorted((tmp_path / name / "splits").glob("*/*.parquet"))]
        for name in ("out", "counted")
    ]

    assert plain.manifest.run_id != counted.manifest.run_id
    assert len(files[0]["train"]) == len(files[1]["train"])
    assert tables[0] == tables[1]
