from __future__ import annotations

import pytest

from haclient.session.ages import Ages

pytestmark = pytest.mark.row("PS18")


def test_nothing_that_waits_has_no_age() -> None:
    ages = Ages()
    assert ages.age(0, 5.0) == 0.0
    ages.note(7, 1.0)
    assert ages.age(0, 5.0) == 0.0


def test_an_age_counts_from_the_first_sample_that_covers_the_message() -> None:
    ages = Ages()
    for last, now in ((3, 1.0), (3, 2.0), (8, 4.0)):
        ages.note(last, now)
    assert ages.age(2, 10.0) == 9.0
    assert ages.age(4, 10.0) == 6.0
    ages.forget(9)
    assert ages.age(9, 10.0) == 0.0


def test_what_is_below_a_known_number_tells_nothing_new() -> None:
    ages = Ages()
    ages.note(8, 1.0)
    ages.note(5, 2.0)
    assert ages.age(8, 3.0) == 2.0


def test_very_many_samples_get_coarser_and_the_newest_is_kept() -> None:
    ages = Ages()
    for number in range(1, 5001):
        ages.note(number, float(number))
    assert len(ages._samples) <= 1024
    assert ages._samples[-1][0] == 5000
    for number in (1, 777, 4999, 5000):
        true_age = 6000.0 - number
        assert 0 <= true_age - ages.age(number, 6000.0) <= true_age / 10
