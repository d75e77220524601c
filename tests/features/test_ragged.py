import torch
from hypothesis import given
from hypothesis import strategies as st

from arbiter.features.ragged import Ragged, owners, pad, spans

lists = st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=8)


@given(lists, st.data())
def test_take_is_indexing_lists(values, data):
    index = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=10))
    flat, lengths = Ragged.of(values).take(torch.tensor(index))
    assert flat.tolist() == [x for i in index for x in values[i]]
    assert lengths.tolist() == [len(values[i]) for i in index]


@given(lists)
def test_pad_and_mask_give_the_lists_back(values):
    ragged = Ragged.of(values)
    padded, mask = pad(ragged.flat, ragged.offsets.diff())
    assert [row[m].tolist() for row, m in zip(padded, mask, strict=True)] == values
    assert (padded[~mask] == 0).all()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6)), min_size=1, max_size=8))
def test_spans_and_owners(pairs):
    starts, lengths = (torch.tensor(column) for column in zip(*pairs, strict=True))
    assert spans(starts, lengths).tolist() == [s + i for s, n in pairs for i in range(n)]
    assert owners(lengths).tolist() == [k for k, (_, n) in enumerate(pairs) for _ in range(n)]
