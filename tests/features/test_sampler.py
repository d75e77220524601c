import torch

from arbiter.features.sampler import blocks_of, epoch_blocks


def test_every_sample_once_and_blocks_share_media(dataset):
    for size in (1, 2, 16):
        blocks = epoch_blocks(dataset, size, seed=3, epoch=2)
        assert sorted(blocks[blocks >= 0].tolist()) == list(range(len(dataset)))
        assert blocks.shape[1] <= size
        for row in blocks:
            real = row[row >= 0]
            assert len(torch.unique(dataset.media[real])) == 1
            assert (row[: len(real)] >= 0).all()


def test_blocks_of_one_media_set_are_even(dataset):
    sizes = (blocks_of(dataset, 2) >= 0).sum(dim=1).tolist()
    # Three questions per picture: dealt as 2 + 1, never as 3.
    assert sorted(sizes)[-1] == 2


def test_order_depends_on_seed_and_epoch_only(dataset):
    first = epoch_blocks(dataset, 4, seed=0, epoch=1)
    assert torch.equal(first, epoch_blocks(dataset, 4, seed=0, epoch=1))
    assert not torch.equal(first, epoch_blocks(dataset, 4, seed=0, epoch=2))
    assert not torch.equal(first, epoch_blocks(dataset, 4, seed=1, epoch=1))
