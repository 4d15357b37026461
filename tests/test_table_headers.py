"""Tables as people have them: headers by evidence, which columns are meant, and text files of one class each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.data.readers.files import DataError
from weft.data.readers.headers import judge_header
from weft.data.readers.tables import TableOptions, open_table
from weft.data.readers.texts import read_labeled, read_pairs
from weft.tasks.classification import ClassificationOptions, ClassificationTask
from weft.tasks.translation import TranslationOptions, TranslationTask

REVIEWS = [("a fine film", "5"), ("dull", "1"), ("I laughed a lot", "5"), ("never again", "1"), ("what a bore", "1")]
WORDS = [("dog", "Hund"), ("cat", "Katze"), ("house", "Haus"), ("tree", "Baum"), ("bird", "Vogel")]


@pytest.fixture
def put(tmp_path):
    def put(name, rows):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rows if isinstance(rows, str) else "".join(",".join(row) + "\n" for row in rows))
        return path

    return put


def test_a_word_above_numbers_is_a_header(put):
    found = read_labeled([put("a.csv", [("review", "stars"), *REVIEWS])])
    assert found.rows == REVIEWS and found.columns == ("review", "stars")
    assert found.notes == (
        "a.csv: its first line (review, stars) is a header: 'stars' stands above numbers (if not: data.header=no)",
    )
    assert read_labeled([put("b.csv", REVIEWS)]).rows == REVIEWS
    assert read_labeled([put("c.csv", REVIEWS)]).notes == ()  # a number in the first row: nothing was assumed


def test_a_label_that_never_comes_again_is_a_header(put):
    moods = [(text, {"5": "good", "1": "bad"}[label]) for text, label in REVIEWS]
    assert read_labeled([put("a.csv", [("comment", "verdict"), *moods])]).rows == moods
    assert read_labeled([put("b.csv", moods)]).rows == moods
    lonely = [("odd", "mixed"), *moods, ("so so", "fair")]  # one value more occurs once: the first may be data
    assert read_labeled([put("c.csv", lonely)], learn=False).rows == lonely


def test_names_above_sentences_are_a_header():
    sentences = [[f"the dog number {n} runs", f"der Hund Nummer {n} rennt"] for n in range(11)]
    assert judge_header([["english", "german"], *sentences]).is_header
    assert not judge_header(sentences).is_header
    assert not judge_header([["english", "german"], *sentences[:3]]).is_header  # too few to tell
    assert not judge_header([["a", ""], ["b", "1"], ["c", "2"]]).is_header  # a cell without a name
    assert judge_header([["", "text", "stars"], ["0", "b", "1"], ["1", "c", "2"]]).is_header  # numbered rows
    assert not judge_header([["x", "x"], *[["b c", "d"]] * 5]).is_header


@given(st.lists(st.tuples(st.sampled_from(["yes", "no"]), st.integers(0, 9)), min_size=5, max_size=30))
def test_rows_alike_have_no_header(rows):
    cells = [[word, str(number)] for word, number in rows]
    assert not judge_header(cells).is_header
    assert judge_header([["answer", "count"], *cells]).is_header


def test_where_evidence_is_silent_users_are_told_and_decide(put):
    path = put("words.csv", [("english", "german"), *WORDS])
    found = read_pairs([path])
    assert found.rows[0] == ("english", "german")
    assert found.notes == (
        "words.csv: nothing tells whether its first line (english, german) is a header, so it was read as data "
        "(--set data.header=yes if it is one)",
    )
    decided = read_pairs([path], TranslationOptions(header="yes").table_options())
    assert decided.rows == WORDS and decided.columns == ("english", "german") and decided.notes == ()
    kept = read_labeled([put("a.csv", [("review", "stars"), *REVIEWS])], TableOptions(header="no"), learn=False)
    assert kept.rows[0] == ("review", "stars") and kept.notes == ()
    assert ClassificationOptions(header=True).header == "yes"
    with pytest.raises(DataError, match=r"said to have no header .* by number, such as --set data.columns=1,2"):
        read_pairs([path], TableOptions(("english", "german"), "no"))


def test_more_columns_ask_which_two(put):
    rows = [(str(n), text, label, "2024-01-01") for n, (text, label) in enumerate(REVIEWS)]
    path = put("a.csv", [("id", "review", "stars", "day"), *rows])
    with pytest.raises(DataError) as caught:
        read_labeled([path])
    assert str(caught.value) == (
        "a.csv has 4 columns (id, review, stars, day), but text and label are two: "
        "choose, such as --set data.columns=review,stars"
    )
    assert read_labeled([path], TableOptions(("review", "stars"))).rows == REVIEWS
    assert read_labeled([path], TableOptions(("2", "3"))).rows == REVIEWS
    with pytest.raises(DataError, match=r"--set 'data.columns=my review,stars'"):
        read_labeled([put("b.csv", [("id", "my review", "stars"), *[row[:3] for row in rows]])])
    with pytest.raises(DataError, match=r"3 columns are chosen, but text and label are two"):
        read_labeled([path], TableOptions(("id", "review", "stars")))
    with pytest.raises(DataError, match=r"one column, but text and label are two: give a table that has both"):
        read_labeled([put("c.csv", "a\nb\n")])


def test_the_column_whose_values_repeat_is_the_label(put):
    turned = [(label, text) for text, label in REVIEWS]
    found = read_labeled([put("a.csv", [("stars", "review"), *turned])])
    assert found.rows == REVIEWS and found.columns == ("review", "stars")
    assert found.notes[-1] == "a.csv: column review is the text and column stars the label"


def test_a_run_knows_its_columns(put, tmp_path):
    path = put("a.csv", [("stars", "review"), *[(label, text) for text, label in REVIEWS * 3]])
    prepared = ClassificationTask.prepare([str(path)], ClassificationOptions(), 0, tmp_path)
    assert prepared.notes and prepared.task.facts()["columns"] == ["review", "stars"]
    again = ClassificationTask.restore(prepared.task.options, prepared.task.facts(), None)
    # Three columns, of which two have the names that the run was trained on.
    assert len(again.read([str(put("b.csv", "day,review,stars\nMonday,fine,5\n"))], tmp_path)) == 1
    table = open_table(put("c.csv", "stars,review\nfive,a\n"), TableOptions(trained=("review", "stars")))
    assert table.names == ("stars", "review")
    pairs = put("d.csv", [("english", "german"), *WORDS])
    learned = TranslationTask.prepare([str(pairs)], TranslationOptions(header="yes"), 0, tmp_path).task
    assert learned.facts()["columns"] == ["english", "german"]
    assert TranslationTask.restore(learned.options, learned.facts(), learned.tokenizer).columns == ("english", "german")


# --- text files by class ---


def test_a_class_per_file_and_per_folder(put, tmp_path):
    pos, neg = put("pos.txt", "good\n\n fine, really \n"), put("neg.txt", "bad\nawful\n")
    found = read_labeled([pos, neg])
    assert found.rows == [("good", "pos"), ("fine, really", "pos"), ("bad", "neg"), ("awful", "neg")]
    assert found.notes == ("a class per file (pos, neg), one text per line",)
    assert read_labeled([put("rt.pos", "a\nb\n"), put("rt.neg", "c\nd\n")]).rows[-1] == ("d", "neg")
    for name in ("pos/1", "pos/2", "neg/1", "neg/2"):
        put(f"imdb/{name}.txt", f"{name}\nline two\n")
    rows = read_labeled([tmp_path / "imdb"]).rows
    assert sorted(rows)[0] == ("neg/1\nline two", "neg") and len(rows) == 4
    put("tables/a.csv", "good,x\nbad,y\nfine,x\npoor,y\n"), put("tables/README.txt", "about")
    assert len(read_labeled([tmp_path / "tables"]).rows) == 4


def test_text_files_that_are_no_classes(put):
    pos, table = put("pos.txt", "good\nfine\n"), put("a.csv", "good,x\nbad,y\n")
    with pytest.raises(DataError, match=r"pos.txt is one text file, so one class: give a file per class"):
        read_labeled([pos])
    with pytest.raises(DataError, match=r"pos.txt is no table, but other files are"):
        read_labeled([pos, table])
    with pytest.raises(DataError, match=r"two files are named pos.txt"):
        read_labeled([pos, put("other/pos.txt", "bad\n")])
