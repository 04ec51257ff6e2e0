from dnadiff.progress import duration


def test_durations_have_hours_only_if_needed():
    assert (duration(75), duration(3605)) == ("1:15", "1:00:05")
