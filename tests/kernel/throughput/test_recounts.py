"""Replies counted again from their text: beside the other counts, never instead of them."""

from engcmp_assets.kernel.records import Missing
from engcmp_assets.kernel.throughput.recounts import Recount, recount_words, recounted

BY = "the server's /tokenize"


def test_equal_counts_and_the_reply_that_differs_most_are_told() -> None:
    found = recounted([Recount("a", 10, (4, 6)), Recount("b", 8, (0, 7)), Recount("c", 5, (0, 2))], BY)
    assert found == {
        "by": BY, "replies": 3, "equal": 1, "counted": 23, "of_text": 19,
        "furthest": {"request_id": "c", "counted": 5, "of_text": 2},
    }  # fmt: skip
    assert recount_words(found) == (
        f"text counted again by {BY}: 1 of 3 replies have as many tokens as were counted; 19 against 23 in all, 2 against 5 in c"
    )
    assert "furthest" not in recounted([Recount("a", 10, (4, 6))], BY)


def test_without_a_tokenizer_an_answer_or_a_reply_the_reason_is_told_and_no_number() -> None:
    assert recounted([], Missing("no such path")) == {"missing": "no such path"}
    assert recounted([Recount("a", 3, (None, 3))], BY) == {"missing": f"{BY} gave no ids for the text of a"}
    assert recounted([], BY) == {"missing": "no reply is whole"}
    assert recount_words({"missing": "no such path"}) == "text not counted again: no such path"
