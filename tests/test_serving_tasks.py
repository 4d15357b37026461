"""A path for every task, and embeddings: small runs of each kind behind one server, whose documented examples run."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import openai
import pytest
from PIL import Image

import weft
from runs_on_disk import write_run
from servers import started
from weft.data.readers.sounds import write_sound
from weft.data.tokenizers.tokenizer import train_tokenizer
from weft.models.encoder import EncoderSpec, TokensSpec
from weft.models.part_specs import AttentionSpec

QUICK = {"training.batch": 64, "training.guard": False, "training.threads": 1}
WORDS = [("a fine day", "good"), ("what a joy", "good"), ("so sad", "bad"), ("a dull rain", "bad")] * 5
TAGS = "the DET\ndog NOUN\nruns VERB\n\na DET\ncat NOUN\nsits VERB\n\n" * 6


def picture(shade):
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 255 - shade)).save(file, "PNG")
    return file.getvalue()


def make_data(home):
    """Files for each task, and the changes that make its run small."""
    random = np.random.default_rng(0)
    (home / "labels.csv").write_text("text,label\n" + "\n".join(map(",".join, WORDS)))
    (home / "tags.conll").write_text(TAGS)
    shades = random.integers(0, 255, (12, 8, 8, 3), dtype=np.uint8)
    np.savez(home / "images.npz", x=shades, y=np.arange(12) % 2)
    (home / "photos").mkdir()
    for number in range(8):
        (home / "photos" / f"{number}.png").write_bytes(picture(30 * number))
    rows = [{"image": f"photos/{n}.png", "text": "red" if n > 3 else "blue"} for n in range(8)]
    (home / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    series = "\n".join(f"{n},{np.sin(n / 3):.4f},{n % 5}" for n in range(120))
    (home / "series.csv").write_text("time,wave,saw\n" + series)
    np.savez(home / "moves.npz", x=random.normal(size=(12, 10, 3)).astype(np.float32), y=np.arange(12) % 2)
    (home / "sounds").mkdir()
    for number in range(6):
        write_sound(home / "sounds" / f"{number}.wav", random.normal(size=2000).astype(np.float32) / 9, 8000)
    table = "\n".join(f"{n}.wav\t{'yes' if n % 2 else 'no'}" for n in range(6))
    (home / "sounds" / "texts.tsv").write_text("file\ttext\n" + table)
    heads = {"width": 16, "layers": 1}
    return {
        "classification": ("labels.csv", {**heads, "ngrams": None}),
        "tagging": ("tags.conll", heads),
        "images": ("images.npz", heads),
        "captions": ("captions.jsonl", {**heads, "mixer.heads": 2, "stem": (8,), "data.size": 8, "patch": 2}),
        "forecast": ("series.csv", {**heads, "data.horizon": 4, "data.context": 16, "data.patch": 4}),
        "sequences": ("moves.npz", heads),
        "transcription": ("sounds", heads),
    }


def embedding_run(path):
    tokenizer = train_tokenizer("words", ["the cat sat on a mat and a dog ran"], 60)
    spec = EncoderSpec(
        width=24, layers=1, length=16, input=TokensSpec(vocabulary=tokenizer.vocabulary), mixer=AttentionSpec(heads=2)
    )
    facts = {"pool": "mean", "normalize": True, "length": 16}
    return write_run(path, spec, "embedding", tokenizer, facts)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("tasks")
    found = {"embedding": embedding_run(home / "embedding")}
    for task, (data, changes) in make_data(home).items():
        weft.train(task, home / data, home / "runs" / task, steps=1, set={**QUICK, **changes})
        found[task] = home / "runs" / task
    return found


@pytest.fixture(scope="module")
def server(folders):
    with started(*map(str, folders.values()), "sample:dates-run") as running:
        yield running


def answers(server, path, **body):
    answer = server.post(f"/v1/tasks/{path}", body)
    assert answer.status_code == 200, answer.json()
    return answer.json()["answers"]


def test_every_documented_example_runs(server):
    paths = server.get("/openapi.json").json()["paths"]
    tasks = {"translate", "classify", "tag", "image", "caption", "forecast", "sequence", "transcribe"}
    assert {f"/v1/tasks/{task}" for task in tasks} | {"/v1/embeddings"} <= set(paths)
    for path, methods in paths.items():
        if "post" in methods:
            example = methods["post"]["requestBody"]["content"]["application/json"]["example"]
            answer = server.post(path, example)
            assert answer.status_code == 200, (path, answer.json())


def test_answers_are_those_of_the_run_and_do_not_depend_on_their_company(server, folders):
    texts = ["a fine day", "so sad", "rain"]
    run = weft.load(folders["classification"])
    found = answers(server, "classify", input=texts, probabilities=True)
    for text, one in zip(texts, found, strict=True):
        alone = run.answer([text])[0]
        assert one["output"] == alone.output and one["probabilities"] == alone.more["probabilities"]
        assert answers(server, "classify", input=text, probabilities=True)[0] == {**one, "index": 0}
    assert [one["index"] for one in found] == [0, 1, 2] and "probabilities" not in answers(
        server, "classify", input="x"
    )[0]


def test_translations_come_with_what_is_asked_for(server):
    one = answers(server, "translate", input="the 3rd of May 1987", alignment=True, confidence=True, probabilities=2)[0]
    assert one["output"] == "1987-05-03" and len(one["alignment"]) == len(one["tokens"])
    assert len(one["alignment"][0]) == len(one["source_tokens"]) and len(one["probabilities"]) == 2
    assert len(answers(server, "translate", input=["1 May 1987", "2 May 1987"], n=2, temperature=1.0, seed=3)) == 4


def test_images_captions_and_series_are_the_runs_own_answers(server, folders, tmp_path):
    file = tmp_path / "one.png"
    file.write_bytes(picture(200))
    encoded = base64.b64encode(file.read_bytes()).decode()
    for given in (encoded, f"data:image/png;base64,{encoded}"):
        one = answers(server, "image", input=given, probabilities=True)[0]
        assert one["probabilities"] == weft.load(folders["images"]).answer([file])[0].more["probabilities"]
        assert answers(server, "caption", input=given)[0]["output"] == weft.load(folders["captions"]).predict(file)
    history = [[float(np.sin(n / 3)), float(n % 5)] for n in range(16)]
    one = answers(server, "forecast", input=history, bands=True)[0]
    assert one["output"] == weft.load(folders["forecast"]).answer([history])[0].output
    assert set(one["output"]) == set(one["low"]) == {"wave", "saw"} and len(one["output"]["saw"]) == 4
    assert len(answers(server, "forecast", input=[history, history])) == 2
    tagged = answers(server, "tag", input=[["the", "cat"], "a dog"], probabilities=True)
    assert [one["tokens"] for one in tagged] == [["the", "cat"], ["a", "dog"]]
    assert len(answers(server, "sequence", input=[[[0.1, 0.2, 0.3]] * 4] * 2)) == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("image", {"input": "not base64!"}),
        ("image", {"input": base64.b64encode(b"no picture").decode()}),
        (
            "image",
            {"input": base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n").decode()},
        ),
        ("image", {"input": "/etc/passwd"}),
        ("image", {"input": "http://127.0.0.1/x.png"}),
        ("image", {"input": ["../../etc/passwd.png"]}),
        ("image", {"input": []}),
        ("caption", {"input": 5}),
        ("forecast", {"input": [1.0, 2.0]}),
        ("forecast", {"input": [[1.0], [2.0, 3.0]]}),
        ("forecast", {"input": "series.csv"}),
        ("forecast", {"input": "sample:brownian"}),
        ("sequence", {"input": [[1.0, 2.0]]}),
        ("sequence", {"input": "/etc/passwd"}),
        ("transcribe", {"input": base64.b64encode(b"RIFFxxxx").decode()}),
        ("classify", {"input": {"nodes": ["a"], "edges": []}}),
        ("classify", {"input": [["a"]]}),
        ("tag", {"input": [[]]}),
        ("translate", {"input": "x" * 3000}),
        ("translate", {"input": ["x"] * 300}),
    ],
)
def test_inputs_are_refused_in_a_sentence_without_paths(server, path, body):
    answer = server.post(f"/v1/tasks/{path}", body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "input", error
    assert "/tmp" not in error["message"] and "Traceback" not in error["message"]


def test_small_files_of_very_many_pixels_are_refused(server):
    file = io.BytesIO()
    Image.new("1", (9000, 9000)).save(file, "PNG")
    answer = server.post("/v1/tasks/image", {"input": base64.b64encode(file.getvalue()).decode()})
    assert answer.status_code == 400 and "pixels" in answer.json()["error"]["message"]


def test_more_new_tokens_than_the_model_gives_are_refused(server):
    answer = server.post("/v1/tasks/caption", {"input": base64.b64encode(picture(9)).decode(), "max_tokens": 1 << 20})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "too_many_tokens"


def test_a_run_of_another_task_is_refused(server):
    answer = server.post("/v1/tasks/classify", {"model": "tagging", "input": "a"})
    assert answer.json()["error"]["code"] == "wrong_task" and answer.json()["error"]["param"] == "model"
    # What a client calls this server says nothing of the path.
    host = {"host": "localhost:/v1/tasks/tag?"}
    answer = server.post("/v1/tasks/classify", {"model": "tagging", "input": "a"}, headers=host)
    assert answer.status_code in (400, 403)
    assert server.post("/v1/completions", {"model": "tagging", "prompt": "a"}).json()["error"]["code"] == "wrong_task"


def test_embeddings_by_the_client_which_asks_for_base64(server, folders):
    run = weft.load(folders["embedding"])
    texts = ["the cat", "a dog ran on a mat"]
    expected = [run.embed([text])[0].tolist() for text in texts]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        found = client.embeddings.create(model="embedding", input=texts)
        assert [one.embedding for one in found.data] == expected and found.usage.total_tokens == 8
        plain = client.embeddings.create(model="embedding", input=texts[1], encoding_format="float", dimensions=24)
        assert plain.data[0].embedding == expected[1]
        ids = [run.tokenizer.encode(text) for text in texts]
        assert client.embeddings.create(model="embedding", input=ids).data[1].embedding == expected[1]
        assert client.embeddings.create(model="embedding", input=ids[0]).data[0].embedding == expected[0]
        for wrong in (
            {"dimensions": 5},
            {"input": [9999]},
            {"input": "cat " * 99},
            {"input": ""},
            {"model": "tagging"},
        ):
            with pytest.raises(openai.BadRequestError):
                client.embeddings.create(**{"model": "embedding", "input": "a", **wrong})
