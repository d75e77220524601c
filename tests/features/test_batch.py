"""Batches against the samples and the encoder themselves, one by one."""

import torch

from arbiter.features.batch import assemble
from arbiter.features.dataset import index_samples
from arbiter.features.sampler import blocks_of
from arbiter.features.store import FeatureStore
from arbiter.sample import Sample
from tests.conftest import draw_square, make_samples


def decoded(dataset, kind, stream, rows):
    return dataset.tables[kind].streams[stream].gather(torch.as_tensor(rows))[0]


def test_texts_and_answers_are_those_of_the_samples(dataset, encoder):
    batch = assemble(dataset, blocks_of(dataset, 16))
    samples = make_samples()
    seen = set()
    for b, q in batch.question_mask.nonzero().tolist():
        sample = samples[batch.sample[b, q]]
        seen.add(int(batch.sample[b, q]))
        for text, index in [
            (sample.question, batch.question[b, q]),
            *zip(sample.candidates, batch.candidates[b, q], strict=False),
        ]:
            exact = torch.from_numpy(encoder.encode_text([text])["pooled"].values[0])
            cosine = torch.cosine_similarity(batch.texts[index], exact, dim=0)
            assert cosine > 0.999
        assert batch.candidate_mask[b, q].sum() == len(sample.candidates)
        assert batch.answer[b, q] == sample.answer
        assert bool(batch.context_mask[b, q]) == bool(sample.context)
    assert seen == set(range(len(samples)))
    assert len(batch.texts) == len(torch.unique(batch.texts, dim=0))


def test_media_are_those_of_the_block(dataset, encoder):
    samples = make_samples()
    blocks = blocks_of(dataset, 16)
    batch = assemble(dataset, blocks)
    for b, first in enumerate(blocks[:, 0].tolist()):
        sample = samples[first]
        counts = {kind: int(tokens.mask[b].sum()) for kind, tokens in batch.media.items()}
        assert counts["image"] == len(sample.images)
        assert counts["patches"] == 24 * len(sample.images)
        assert counts["video"] == len(sample.video)
        for position, image in enumerate(sample.images):
            exact = encoder.encode_image([image])
            got = batch.media["image"].values[b, position]
            assert (
                torch.cosine_similarity(got, torch.from_numpy(exact["pooled"].values[0]), dim=0)
                > 0.999
            )
            part = slice(24 * position, 24 * (position + 1))
            assert (
                batch.media["patches"].positions[b, part].tolist()
                == exact["patches"].positions.tolist()
            )
        if sample.audio is not None:
            frames = torch.from_numpy(encoder.encode_audio([sample.audio])["frames"].values)
            got = batch.media["audio"].values[b][batch.media["audio"].mask[b]]
            assert torch.cosine_similarity(got, frames).min() > 0.999
        else:
            assert counts["audio"] == 0


def test_a_batch_without_media_has_none(dataset):
    text_only = [
        i for i, s in enumerate(make_samples()) if not (s.images or s.video or s.audio is not None)
    ]
    batch = assemble(dataset, torch.tensor([[i] for i in text_only]))
    assert batch.media == {}


def test_shared_media_is_stored_and_gathered_once(dataset):
    batch = assemble(dataset, torch.tensor([[0, 1, 2]]))
    assert batch.media["patches"].values.shape[:2] == (1, 24)
    assert len(dataset.tables["image"].rows) == 4


def test_long_videos_are_looked_at_evenly_and_short_ones_spread_over_time(encoder, tmp_path):
    frames = [draw_square("red", 4 * i, 8) for i in range(12)]
    samples = [
        Sample("q", ("a", "b"), video=tuple(frames)),
        Sample("q", ("a", "b"), video=tuple(frames[:2])),
    ]
    data = index_samples({"": samples}, FeatureStore(tmp_path, encoder), encoder.spec)[""]
    tokens = assemble(data, torch.tensor([[0], [1]])).media["video"]
    assert tokens.mask.sum(dim=1).tolist() == [8, 2]
    # Twelve frames in eight equal parts: the middles lie at 0.75, 2.25, 3.75, ...
    kept = [0, 2, 3, 5, 6, 8, 9, 11]
    exact = torch.from_numpy(encoder.encode_image([frames[i] for i in kept])["pooled"].values)
    assert torch.cosine_similarity(tokens.values[0], exact).min() > 0.999
    assert tokens.positions[0, :, 0].tolist() == list(range(8))
    assert tokens.positions[1, :2, 0].tolist() == [2, 6]
