import pytest

from arbiter.strict_json import parse_json, read_json, read_text


def test_what_json_allows_is_read():
    text = (
        '{"a": [1, -2.5e-3, true, null, "\\ud83d\\ude00 \u2028"], "b": {"a": 9223372036854775807}}'
    )
    assert parse_json(text) == {
        "a": [1, -0.0025, True, None, "\U0001f600 \u2028"],
        "b": {"a": 2**63 - 1},
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON .* at column 1"),
        ("{'a': 1}", "not JSON .* at column 2"),
        ('{"a":\n1,,}', "not JSON .* at line 2 column 3"),
        ("[1] [2]", "not JSON"),
        ("NaN", "NaN is not a JSON number"),
        ('{"a": -Infinity}', "-Infinity is not a JSON number"),
        ("1e999", "1e999 is too large"),
        ("1" * 21, "too large"),
        ("1" * 100_000, "too large"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' is given more than once"),
        ('[{"a": {"x": 1, "x": 1}}]', "the key 'x' is given more than once"),
        ("[" * 65 + "]" * 65, "nested too deeply"),
        ("[" * 1_000_000, "nested too deeply"),
        ('{"a":' * 1_000_000, "nested too deeply"),
        ('"\\ud800"', "not Unicode"),
        ('{"\\udc00": 1}', "not Unicode"),
    ],
    ids=lambda text: text[:24],
)
def test_anything_else_is_refused_in_one_line(text, said):
    with pytest.raises(ValueError, match=said) as raised:
        parse_json(text)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 200


def test_a_file_is_not_read_beyond_its_limit(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("[1, 2]")
    assert read_json(path, 6) == [1, 2]
    with pytest.raises(ValueError, match="larger than 5 bytes"):
        read_json(path, 5)
    # A file without an end is one too.
    with pytest.raises(ValueError, match="larger than 1,000 bytes"):
        read_text(type(path)("/dev/zero"), 1000)
    path.write_bytes(b'"\xff"')
    with pytest.raises(ValueError, match=r"not UTF-8 text \(byte 1\)"):
        read_json(path, 100)
