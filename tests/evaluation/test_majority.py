import json

from arbiter.evaluation.majority import MajorityBaseline
from arbiter.sample import Sample


def sample(question: str, answer: str, candidates=("red", "blue", "no", "yes")) -> Sample:
    return Sample(question, candidates, answer=candidates.index(answer))


TRAIN = [
    *[sample("what color?", "red")] * 2,
    *[sample("what color?", "blue")] * 3,
    *[sample("is it red?", "no")] * 4,
    Sample("what color?", ("red", "blue")),
]


def test_a_known_question_gets_its_own_answer_and_any_other_the_commonest():
    baseline = MajorityBaseline(TRAIN)
    assert baseline.predict(sample("what color?", "red")) == 1
    assert baseline.predict(sample("what shape?", "red")) == 2
    # None of its own answers is among the candidates; 'no' is the commonest that is.
    assert baseline.predict(sample("what color?", "no", ("yes", "no"))) == 1
    assert baseline.predict(sample("what color?", "a", ("a", "b"))) == 0


def test_it_goes_through_json():
    saved = json.loads(json.dumps(MajorityBaseline(TRAIN).to_dict()))
    assert saved == {"what color?": {"red": 2, "blue": 3}, "is it red?": {"no": 4}}
    again = MajorityBaseline.from_dict(saved)
    for question in ("what color?", "is it red?", "what shape?"):
        asked = sample(question, "red")
        assert again.predict(asked) == MajorityBaseline(TRAIN).predict(asked)
