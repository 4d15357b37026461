"""The built-in samples: the same bits for the same seed, parts that share nothing, and best scores that are right."""

from __future__ import annotations

import datetime
import itertools
import math
import re
import wave
from collections import Counter, defaultdict

import numpy as np
import pytest

from weft.data.readers.files import DataError
from weft.data.samples import BONES, JOINTS, SAMPLE_RATE, ReferenceScore, brownian_best, sample, samples, write_wavs
from weft.data.samples.classification import BAD, GOOD, MINE
from weft.data.samples.forecast import HORIZON, STEP
from weft.data.samples.images import PALETTE
from weft.data.samples.sample_definition import draw_distinct
from weft.data.samples.sequences import CONTOURS
from weft.data.samples.tagging import CREATURES, OF_CREATURES, OF_PLACES, PLACES, readings
from weft.data.samples.text import ALPHABET
from weft.data.samples.transcription import DIGITS, FORMANTS

SMALL = {"stdlib": 20_000, "markov": 20_000, "seasonal": 500, "brownian": 500, "brownian3d": 500}
NAMES = [name for names in samples().values() for name in names]


def small(name: str, seed: int = 0):
    return sample(name, seed, SMALL.get(name, 60))


def rows(part) -> list:
    """A part as a list of examples that can be compared and hashed."""
    if isinstance(part, str):
        return list(part)
    if isinstance(part, tuple) and hasattr(part[0], "spans"):
        return [(x.samples.tobytes(), x.text, x.spans) for x in part]
    if isinstance(part, tuple):
        return [(x.nodes, x.adjacency.tobytes(), x.labels) if hasattr(x, "nodes") else x for x in part]
    if hasattr(part, "pixels"):
        second = part.texts if hasattr(part, "texts") else part.labels.tolist()
        return [(x.tobytes(), y) for x, y in zip(part.pixels, second, strict=True)]
    if hasattr(part, "labels"):
        return [(x.tobytes(), int(y)) for x, y in zip(part.values, part.labels, strict=True)]
    return [row.tobytes() for row in part.values]


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_a_function_of_its_seed(name: str):
    once, again, other = small(name), small(name), small(name, seed=1)
    assert rows(once.train) == rows(again.train)
    assert rows(once.validation) == rows(again.validation)
    assert (once.best, once.shortcut) == (again.best, again.shortcut)
    assert rows(once.train) != rows(other.train)
    assert rows(once.validation) != rows(other.validation)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_and_names(name: str):
    found = small(name)
    assert found.name == name
    assert name in samples()[found.task]
    size = SMALL.get(name, 60)
    assert len(rows(found.train)) == size
    assert len(rows(found.validation)) >= size // 9
    assert found.best is None if name == "stdlib" else found.best.why


@pytest.mark.parametrize("name", [n for n in NAMES if n not in SMALL])
def test_the_parts_share_no_example(name: str):
    found = sample(name, size=300)
    inputs = [{row[0] if isinstance(row, tuple) else row.source for row in rows(p)} for p in _parts(found)]
    if name == "nodes":
        inputs = [{row[:2] for row in rows(part)} for part in _parts(found)]
    assert not inputs[0] & inputs[1]
    assert len(inputs[0]) == 300


def _parts(found):
    return found.train, found.validation


def test_stdlib_parts_share_no_document():
    found = sample("stdlib", size=200_000)
    long_lines = [{line for line in part.splitlines() if len(line) > 60} for part in _parts(found)]
    assert len(long_lines[0] & long_lines[1]) < 0.02 * len(long_lines[1])
    assert "import" in found.train


def test_a_task_names_its_default_sample():
    assert sample("translation", size=5).name == "dates"
    assert set(samples()) == {
        *("text", "translation", "classification", "tagging", "images", "captions", "forecast", "sequences"),
        "transcription",
    }


def test_every_spoken_digit_is_told_by_its_two_formants():
    """The best score is right: where it is loudest below and above 830 Hz names the digit, whatever the voice."""
    found = sample("spoken", size=100)
    centers = np.log(np.array(FORMANTS))
    for one in found.train:
        said = []
        for first, last in one.spans:
            part = one.samples[first : last + 1] * np.hanning(last + 1 - first)
            loud = np.convolve(np.abs(np.fft.rfft(part, SAMPLE_RATE)), np.hanning(121), "same")  # bins of 1 Hz
            formants = np.log([_loudest(loud, 220, 830), _loudest(loud, 900, 4000)])
            said.append(DIGITS[int(np.abs(centers - formants).max(1).argmin())])
        assert " ".join(said) == one.text
    assert found.best.metric == "cer" and found.best.lower_is_better and not found.best.beaten_by(0.0)


def _loudest(loud, low, high) -> float:
    """The mean frequency around the loudest."""
    peak = low + int(loud[low:high].argmax())
    near = np.arange(int(peak / 1.25), min(int(1.25 * peak), len(loud) - 1) + 1)
    return float((loud[near] * near).sum() / loud[near].sum())


def test_errors_name_the_remedy():
    with pytest.raises(DataError, match="no sample 'dtaes': choose one of text: stdlib markov"):
        sample("dtaes")
    with pytest.raises(DataError, match="size of 1 or more"):
        sample("dates", size=0)
    with pytest.raises(DataError, match=r"found only 3 different examples of 4: ask for a smaller size"):
        draw_distinct("tiny", 4, itertools.cycle([1, 2, 3]).__next__)
    with pytest.raises(DataError, match="shorter than"):
        sample("stdlib", size=10**9)


def test_beating_the_best_is_more_than_luck():
    loss, accuracy = ReferenceScore("loss", 1.5, "", spread=0.01), ReferenceScore("accuracy", 0.5, "", spread=0.01)
    assert loss.beaten_by(1.45) and not loss.beaten_by(1.47) and not loss.beaten_by(9.0)
    assert accuracy.beaten_by(0.55) and not accuracy.beaten_by(0.53) and not accuracy.beaten_by(0.0)
    assert not ReferenceScore("accuracy", 1.0, "").beaten_by(1.0)


def conditional_entropy(text: str, back: int) -> float:
    longer = Counter(text[i : i + back + 1] for i in range(len(text) - back))
    shorter = Counter(text[i : i + back] for i in range(len(text) - back))
    total = len(text) - back
    return -sum(n / total * math.log(n / shorter[key[:back]]) for key, n in longer.items())


@pytest.mark.parametrize("seed", [0, 1])
def test_markov_entropy_is_that_of_a_long_text(seed: int):
    found = sample("markov", seed, size=200_000)
    assert set(found.train) <= set(ALPHABET)
    assert conditional_entropy(found.train, 2) == pytest.approx(found.best.value, abs=0.01)
    assert conditional_entropy(found.train, 1) == pytest.approx(found.shortcut.value, abs=0.01)
    # A third letter back tells nothing more, but for what counting in a finite text overfits.
    assert found.best.value - conditional_entropy(found.train, 3) < 0.04
    assert found.best.value < found.shortcut.value - 0.1


def test_markov_counts_from_the_training_part_do_not_beat_the_best():
    found = sample("markov", size=150_000)
    counts = defaultdict(lambda: np.full(len(ALPHABET), 0.1))
    for i in range(2, len(found.train)):
        counts[found.train[i - 2 : i]][ALPHABET.index(found.train[i])] += 1
    text = found.validation
    costs = [
        -math.log(counts[text[i - 2 : i]][ALPHABET.index(text[i])] / counts[text[i - 2 : i]].sum())
        for i in range(2, len(text))
    ]
    assert not found.best.beaten_by(float(np.mean(costs)))
    assert float(np.mean(costs)) == pytest.approx(found.best.value, abs=4 * found.best.spread + 0.01)


def test_dates_are_right_and_unambiguous():
    found = sample("dates", size=6_000)
    targets = defaultdict(set)
    for pair in found.train + found.validation:
        date = datetime.date.fromisoformat(pair.target)
        targets[pair.source.lower()].add(pair.target)
        if year := re.search(r"\d{4}", pair.source):
            assert int(year[0]) == date.year
        for place, weekday in enumerate(("monday", "tuesday", "wednesday", "thursday", "friday")):
            assert (weekday not in pair.source.lower()) or date.weekday() == place
    assert all(len(found) == 1 for found in targets.values())
    some = " ".join(pair.source for pair in found.train[:2000]).lower()
    assert all(word in some for word in ("march", "marzo", "venerdì", "friday", "twenty-", "primo", "st of", "/"))


def test_alignments_point_at_what_determines_the_output():
    found = sample("dates", size=6_000)
    says = defaultdict(set)
    for pair in found.train:
        assert len(pair.alignment) == len(pair.target) == 10
        for place, (character, sources) in enumerate(zip(pair.target, pair.alignment, strict=True)):
            if character == "-":
                assert not sources
                continue
            first, last = min(sources), max(sources)
            assert sources == set(range(first, last + 1))
            # How many figures stand beside tells a 1 that is the day from one that begins 17, and '17 from 1799.
            before, after = re.search(r"\d*$", pair.source[:first])[0], re.match(r"\d*", pair.source[last + 1 :])[0]
            says[place, pair.source[first : last + 1].lower(), len(before), len(after)].add(character)
    assert all(len(characters) == 1 for characters in says.values())
    # And figures written out in full are copied one by one; any of the first three says the century.
    full = [(pair, year.start()) for pair in found.train if (year := re.search(r"\d{4}", pair.source))]
    for pair, first in full:
        assert pair.source[first : first + 4] == pair.target[:4]
        century = {first, first + 1, first + 2}
        assert list(pair.alignment[:4]) == [century, century, {first + 2}, {first + 3}]


def own_opinion(text: str) -> str:
    """The rule of `sentiment`: find the writer's clause, and turn its word around if it is negated."""
    clauses = re.split(r", while|;|, and", text)
    starts = tuple(frame.split("{}")[0] for frame in MINE)
    own = next(clause for clause in clauses if clause.strip().startswith(starts))
    good = any(word in GOOD for word in own.split())
    negated = re.search(r"\bnot\b|never|anything but|far from|hardly", own) is not None
    return "positive" if good != negated else "negative"


def naive_bayes(train: list[tuple[list[str], str]], test: list[tuple[list[str], str]]) -> float:
    """Accuracy of a bag of words."""
    words = sorted({word for text, _ in train for word in text})
    index = {word: i for i, word in enumerate(words)}
    labels = sorted({label for _, label in train})
    counts = np.ones((len(labels), len(words)))
    for text, label in train:
        for word in text:
            counts[labels.index(label), index[word]] += 1
    scores = np.log(counts / counts.sum(1, keepdims=True))
    guess = [labels[int(np.argmax(scores[:, [index[w] for w in text if w in index]].sum(1)))] for text, _ in test]
    return float(np.mean([g == label for g, (_, label) in zip(guess, test, strict=True)]))


def test_sentiment_needs_more_than_a_bag_of_words():
    found = sample("sentiment", size=8_000)
    assert all(own_opinion(text) == label for text, label in found.train + found.validation)
    bags = [[(text.split(), label) for text, label in part] for part in _parts(found)]
    assert naive_bayes(*bags) < found.shortcut.value + 0.04
    # The best function of a bag: how many good words, bad words and negations, by majority.
    votes = defaultdict(Counter)
    for text, label in found.train:
        votes[bag_of(text)][label] += 1
    best = sum(max(vote.values()) for vote in votes.values()) / len(found.train)
    assert best == pytest.approx(found.shortcut.value, abs=0.02)


def bag_of(text: str) -> tuple[int, int]:
    words = re.findall(r"\w+", text)
    negations = sum(words.count(word) for word in ("not", "never", "anything", "far", "hardly"))
    assert sum(word in GOOD or word in BAD for word in words) == 2
    return sum(word in GOOD for word in words), negations


def test_nodes_are_labeled_by_their_neighbors():
    found = sample("nodes", size=800)
    unlike = []
    for graph in found.train:
        assert (graph.adjacency == graph.adjacency.T).all() and not graph.adjacency.diagonal().any()
        for node, label in enumerate(graph.labels):
            around = [graph.nodes[other] for other in np.flatnonzero(graph.adjacency[node])]
            assert Counter(around).most_common(1)[0][0] == label
            unlike.append(graph.nodes[node] != label)
    assert np.mean(unlike) == pytest.approx(found.shortcut.value, abs=0.02)


def test_grammar_sentences_have_one_reading():
    found = sample("grammar", size=2000)
    table = defaultdict(Counter)
    for words, tags in found.train + found.validation:
        assert readings(words) == [tags]
    for words, tags in found.validation:
        for word, tag in zip(words, tags, strict=True):
            table[word][tag] += 1
    assert {"VERB", "NOUN"} <= set(table["watch"]) and {"AUX", "NOUN"} <= set(table["can"])
    right = sum(max(tags.values()) for tags in table.values()) / sum(sum(tags.values()) for tags in table.values())
    assert right == pytest.approx(found.shortcut.value) and right < 0.95


def test_grammar_leaves_out_what_has_two_readings():
    # "the light can ...": a lamp that is able, or a tin that is light; the rest of the sentence decides.
    assert len(readings(("the", "light", "can", "open", "the", "book", "."))) == 1
    assert len(readings(("the", "light", "can", "will", "open", "the", "book", "."))) == 1
    assert readings(("garden", "the", "the", ".")) == []


def meant(words: tuple[str, ...]) -> str:
    is_creature = words[-1] in OF_CREATURES
    assert is_creature != (words[-1] in OF_PLACES)
    creatures, places = ([word for word in words if word in kind] for kind in (CREATURES, PLACES))
    assert len(creatures) == len(places) == 1
    return creatures[0] if is_creature else places[0]


def test_pronouns_need_the_adjective_and_the_noun():
    found = sample("pronouns", size=12_000)
    parts = [[(words, tags[words.index("it")]) for words, tags in part] for part in _parts(found)]
    assert all(meant(words) == tag for part in parts for words, tag in part)
    assert all(set(tags) - {"O"} == {meant(words)} for words, tags in found.train)
    assert set(found.classes) == {"O", *CREATURES, *PLACES}
    votes, kinds = defaultdict(Counter), {**dict.fromkeys(CREATURES, "C"), **dict.fromkeys(PLACES, "P")}
    for words, tag in parts[0]:  # all but the adjective, with the nouns by their kind so that each is seen often
        votes[tuple(kinds.get(word, word) for word in words[:-1])][kinds[tag]] += 1
    best = sum(max(vote.values()) for vote in votes.values()) / len(parts[0])
    assert best == pytest.approx(found.shortcut.value, abs=0.03)
    first = Counter(words[min(words.index(noun) for noun in words if noun in kinds)] == tag for words, tag in parts[0])
    assert first[True] / first.total() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("name", "shape"), [("digits", (28, 28)), ("shapes", (32, 32, 3))])
def test_images_can_be_told_apart(name: str, shape: tuple[int, ...]):
    found = sample(name, size=600)
    assert found.train.pixels.shape[1:] == shape and found.train.pixels.dtype == np.uint8
    assert set(found.validation.labels.tolist()) == set(range(len(found.classes)))
    if name == "digits":
        train, test = (p.pixels.reshape(len(p.pixels), -1).astype(float) for p in _parts(found))
        near = ((test**2).sum(1)[:, None] - 2 * test @ train.T + (train**2).sum(1)).argmin(1)
        assert (found.train.labels[near] == found.validation.labels).mean() > 0.85
    else:
        truth = [found.classes[k] for k in found.validation.labels]
        filled = [fill_of(p) for p in found.validation.pixels]
        order = {s: np.mean([f for f, t in zip(filled, truth, strict=True) if t == s]) for s in found.classes}
        assert order["circle"] > order["square"] > order["cross"] > order["star"]
        assert order["circle"] > 0.8


def fill_of(picture: np.ndarray) -> float:
    """Area of what stands out, by the area of the circle around it."""
    y, x = np.nonzero((picture.astype(float).max(-1) > 100) | (picture.astype(float).std(-1) > 30))
    radius = np.hypot(x - (x.min() + x.max()) / 2, y - (y.min() + y.max()) / 2).max() + 0.5
    return min(len(x) / (math.pi * radius**2), 1.0)


def test_captions_say_what_is_in_the_picture():
    found = sample("scenes", size=200)
    for picture, text in zip(found.train.pixels.astype(float), found.train.texts, strict=True):
        where = {}
        for color, paint in PALETTE.items():
            y, x = np.nonzero(np.abs(picture - np.array(paint)).max(-1) < 6)
            if len(x) >= 12:
                where[color] = (x.mean(), y.mean(), len(x))
        assert set(where) == {word for word in text.split() if word in PALETTE}, text
        if "large" not in text or len(where) == 1:
            continue
        first, second = (where[word] for word in text.split() if word in PALETTE)
        gap = np.subtract(second[:2], first[:2])
        if abs(gap[0]) > abs(gap[1]):
            relation = "left of" if gap[0] > 0 else "right of"
        else:
            relation = "above" if gap[1] > 0 else "below"
        assert relation in text
        assert first[2] > second[2]
    alone = np.mean(["large" not in text for text in found.train.texts])
    assert alone == pytest.approx(0.2, abs=0.08)


def windows(values: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    both = np.lib.stride_tricks.sliding_window_view(values, context + HORIZON, axis=0)
    return both[..., :context], both[..., context:]


@pytest.mark.parametrize("name", ["brownian", "brownian3d"])
def test_the_last_value_is_the_best_forecast_of_brownian_motion(name: str):
    found = sample(name, size=40_000)
    assert found.train.values.shape[1] == (3 if name == "brownian3d" else 1)
    past, future = windows(found.train.values, 24)
    last = past[..., -1:]
    exact = brownian_best(HORIZON, len(found.train.values), found.train.values.shape[1])
    error = float(((future - last) ** 2).mean())
    assert exact.value == found.best.value == STEP**2 * (HORIZON + 1) / 2
    assert abs(error - exact.value) < 4 * exact.spread
    by_step = ((future - last) ** 2).mean((0, 1))
    assert by_step[0] == pytest.approx(STEP**2, rel=0.05) and by_step[-1] == pytest.approx(HORIZON, rel=0.2)
    trend = (last - past[..., :1]) / 23 * np.arange(1, HORIZON + 1)
    mean = past.mean(-1, keepdims=True)
    assert ((future - last - trend) ** 2).mean() > 1.2 * error
    assert ((future - mean) ** 2).mean() > 1.2 * error
    past, future = windows(found.validation.values, 1)
    assert not found.best.beaten_by(float(((future - past) ** 2).mean()))


def test_the_spread_of_the_brownian_best_is_that_of_many_series():
    random = np.random.default_rng(5)
    errors = []
    for _ in range(300):
        past, future = windows(random.normal(0, STEP, (600, 1)).cumsum(0), 1)
        errors.append(((future - past) ** 2).mean())
    assert np.std(errors) == pytest.approx(brownian_best(HORIZON, 600).spread, rel=0.2)


def test_seasonal_best_is_the_error_of_who_knows_the_waves():
    found = sample("seasonal", size=20_000)
    for part in _parts(found):
        error = float(((part.values - part.expected) ** 2).mean())
        assert error == pytest.approx(found.best.value, rel=0.05)
    assert not found.best.beaten_by(error)
    # Waves fitted on the training part come close without knowing them; the last value does not.
    time = np.arange(len(found.train.values) + len(found.validation.values))[:, None]
    turns = 2 * np.pi * time / np.array([24.0, 12.0, 168.0])
    design = np.hstack([np.sin(turns), np.cos(turns), np.ones_like(time)])
    weights = np.linalg.lstsq(design[:20_000], found.train.values, rcond=None)[0]
    fitted = float(((found.validation.values - design[20_000:] @ weights) ** 2).mean())
    assert fitted == pytest.approx(found.best.value, rel=0.05)
    past, future = windows(found.validation.values, 1)
    assert ((future - past) ** 2).mean() > 3 * found.best.value


def test_skeletons_keep_their_bones_and_show_their_motion():
    found = sample("skeletons", size=80)
    assert 15 <= len(JOINTS) <= 20 and len(BONES) == len(JOINTS) - 1
    right = []
    for values, label in zip(found.train.values, found.train.labels, strict=True):
        body = values.reshape(len(values), len(JOINTS), 3)
        bones = np.array([np.linalg.norm(body[:, a] - body[:, b], axis=-1) for a, b in BONES])
        assert (bones.std(1) < 0.03).all()
        right.append(motion_of(body) == found.classes[label])
    assert np.mean(right) == 1.0


def motion_of(body: np.ndarray) -> str:
    """A rule that no turn of the camera and no size of the body disturbs: angles at joints."""
    at = {name: body[:, i] for i, name in enumerate(JOINTS)}

    def bend(side: str, upper: str, middle: str, lower: str) -> np.ndarray:
        first, second = at[f"{side} {middle}"] - at[f"{side} {upper}"], at[f"{side} {lower}"] - at[f"{side} {middle}"]
        cosine = (first * second).sum(-1) / np.linalg.norm(first, axis=-1) / np.linalg.norm(second, axis=-1)
        return np.arccos(np.clip(cosine, -1, 1))

    left, right = bend("left", "hip", "knee", "ankle"), bend("right", "hip", "knee", "ankle")
    if max(left.max(), right.max()) < 0.35:
        return "waving"
    if np.corrcoef(left, right)[0, 1] > 0.5:
        return "jumping"
    return "running" if bend("left", "shoulder", "elbow", "wrist").mean() > 0.8 else "walking"


def test_tones_can_be_read_from_their_spectrum():
    found = sample("tones", size=120)
    right = [
        tone_of(values[:, 0]) == found.classes[label]
        for values, label in zip(found.train.values, found.train.labels, strict=True)
    ]
    assert np.mean(right) == 1.0
    assert all(np.abs(values).max() <= 1 and values.shape[1] == 1 for values in found.train.values)


def pitches(sound: np.ndarray) -> np.ndarray:
    """Strength at each quarter of a half tone from 150 to 800 Hz."""
    grid = 150 * 2 ** (np.arange(0, 29, 0.25) / 12)
    spectrum = np.abs(np.fft.rfft(sound * np.hanning(len(sound)), 32_768))
    return spectrum[np.round(grid * 32_768 / SAMPLE_RATE).astype(int)]


def tone_of(sound: np.ndarray) -> str:
    """A chord has strong pitches beside its strongest (and its octave), a melody's note has none."""
    quarters = [pitches(quarter) for quarter in np.array_split(sound, 4)]
    notes = [int(strength.argmax()) for strength in quarters]
    away = np.abs(np.arange(len(quarters[0])) - notes[0]) > 12
    away &= np.abs(np.abs(np.arange(len(quarters[0])) - notes[0]) - 48) > 12
    if quarters[0][away].max() < 0.6 * quarters[0].max():
        ranks = tuple(np.argsort(np.argsort(notes)).tolist())
        return next((name for name, order in CONTOURS.items() if order == ranks), "none")
    strength = pitches(sound)
    fit = {}
    for name, third in (("major", 16), ("minor", 12)):
        fit[name] = max(strength[root] + strength[root + third] + strength[root + 28] for root in range(80))
    return max(fit, key=fit.get)


def test_tones_are_written_as_a_folder_a_class(tmp_path):
    found = sample("tones", size=12)
    paths = write_wavs(found.train, found.classes, tmp_path)
    assert len(paths) == 12 and {path.parent.name for path in paths} == set(found.classes)
    with wave.open(str(paths[3])) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (SAMPLE_RATE, 1, 2)
        back = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32767
    assert paths[3].parent.name == found.classes[found.train.labels[3]]
    assert np.abs(back - found.train.values[3][:, 0]).max() < 1e-4
