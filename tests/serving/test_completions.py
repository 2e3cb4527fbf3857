"""OpenAI's API of completions, with a small language model, and its client."""

import json

import numpy as np
import openai
import pytest
from fake_models import client_of, served

from keras_transformer import BeamSearch, GreedySearch
from keras_transformer_runtime.serving.loaded_model import CTranslate2Model
from keras_transformer_runtime.serving.server_options import make_server_options

pytestmark = pytest.mark.once("torch")

PATH = "/v1/completions"
PROMPTS = ["abc", "", "f", "deadbee", "ca", "fe"]
KEY = "3Kq-7"


@pytest.fixture(scope="module")
def server(language_model_folder, translator_folder):
    """Returns a client of a server with options."""
    folders = {"letters": language_model_folder, "en-de": translator_folder}
    fakes = {name: CTranslate2Model(folder, 1) for name, folder in folders.items()}

    def client(**given):
        models = {name: {"folder": folder} for name, folder in folders.items()}
        options = make_server_options(models=models, **given)
        return client_of(
            {name: served(name, options.models[name], fakes[name]) for name in fakes},
            options,
        )

    return client


@pytest.fixture(scope="module")
def client(server):
    with server() as client:
        yield client


@pytest.fixture(scope="module")
def api(client):
    """OpenAI's client."""
    url = "http://127.0.0.1/v1"
    return openai.OpenAI(api_key="none", base_url=url, http_client=client)


def complete(client, prompt, **given):
    body = {"model": "letters", "prompt": prompt, **given}
    response = client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def texts_of(found):
    return [choice["text"] for choice in found["choices"]]


def streamed(client, prompt, **given):
    """Returns the pieces and the finish reason of each choice of a stream."""
    body = {"model": "letters", "prompt": prompt, "stream": True, **given}
    response = client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    *events, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    pieces, reasons = {}, {}
    for event in events:
        for choice in json.loads(event.removeprefix("data: "))["choices"]:
            index, reason = choice["index"], choice["finish_reason"]
            assert index not in reasons
            pieces.setdefault(index, []).append(choice["text"])
            reasons |= {} if reason is None else {index: reason}
    indices = range(len(pieces))
    return [pieces[i] for i in indices], [reasons[i] for i in indices]


def test_the_texts_of_generate(client, language_model):
    expected, truncated = language_model.generate(
        PROMPTS, GreedySearch(), max_length=11, return_truncated=True
    )
    found = complete(client, PROMPTS, max_tokens=11)
    reasons = ["length" if each else "stop" for each in truncated]
    assert 0 < sum(truncated) < 6
    assert found["object"] == "text_completion" and found["model"] == "letters"
    assert found["id"].startswith("cmpl-") and found["created"] > 1.7e9
    assert found["choices"] == [
        {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
        for index, (text, reason) in enumerate(zip(expected, reasons, strict=True))
    ]
    # One character is one token; an empty prompt is the start token.
    prompt_tokens = sum(max(1, len(prompt)) for prompt in PROMPTS)
    ends = sum(not each for each in truncated)
    assert found["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": sum(map(len, expected)) + ends,
        "total_tokens": prompt_tokens + sum(map(len, expected)) + ends,
    }
    for prompt, text in zip(PROMPTS, expected, strict=True):
        assert texts_of(complete(client, prompt, max_tokens=11)) == [text]


@pytest.mark.parametrize("echo", [False, True])
def test_streams_joined_are_the_whole_texts(client, echo):
    given = {"max_tokens": 11, "echo": echo}
    whole = complete(client, PROMPTS, **given)
    pieces, reasons = streamed(client, PROMPTS, **given)
    assert ["".join(each) for each in pieces] == texts_of(whole)
    assert reasons == [choice["finish_reason"] for choice in whole["choices"]]
    alone, _ = streamed(client, "abc", **given)
    assert "".join(alone[0]) == "".join(pieces[0])


def test_echo(client, language_model):
    plain = complete(client, PROMPTS, max_tokens=7)
    echoed = complete(client, PROMPTS, max_tokens=7, echo=True)
    pairs = zip(PROMPTS, texts_of(plain), strict=True)
    assert texts_of(echoed) == ["".join(pair) for pair in pairs]
    assert echoed["usage"] == plain["usage"]


def test_texts_that_end_an_output(client):
    """One that spans several pieces, the first of two, and one that does not occur."""
    [whole] = texts_of(complete(client, "abc", max_tokens=17))
    assert len(whole) > 9
    for stop in (whole[3:6], [whole[4:6], whole[3:5]], [whole[3:6] + "x"]):
        ends = [stop] if isinstance(stop, str) else stop
        places = [place for end in ends if (place := whole.find(end)) >= 0]
        expected = whole[: min(places)] if places else whole
        found = complete(client, "abc", max_tokens=17, stop=stop)
        pieces, reasons = streamed(client, "abc", max_tokens=17, stop=stop)
        assert texts_of(found) == ["".join(pieces[0])] == [expected]
        assert reasons == [found["choices"][0]["finish_reason"]]
        if places:
            assert reasons == ["stop"]


def test_several_choices(client, language_model):
    search = BeamSearch(4, 0.0, num_hypotheses=3)
    expected = language_model.generate(PROMPTS, search, max_length=7)
    given = {"n": 3, "num_beams": 4, "length_penalty": 0, "max_tokens": 7}
    found = complete(client, PROMPTS, **given, best_of=3)
    assert texts_of(found) == [text for row in expected for text in row]
    assert [choice["index"] for choice in found["choices"]] == [*range(18)]
    pieces, _ = streamed(client, PROMPTS, **given)
    assert ["".join(each) for each in pieces] == texts_of(found)


def test_logprobs_are_those_of_score(client, language_model):
    found = complete(client, PROMPTS, max_tokens=11, logprobs=1)
    texts = texts_of(found)
    expected = language_model.score(PROMPTS, texts)
    ended = 0
    for choice, text, score in zip(
        found["choices"], texts, expected.scores, strict=True
    ):
        logprobs, has_ended = choice["logprobs"], choice["finish_reason"] == "stop"
        assert logprobs["tokens"] == [*text, *["</s>"] * has_ended]
        assert len(logprobs["token_logprobs"]) == len(logprobs["tokens"])
        if has_ended:
            np.testing.assert_allclose(
                sum(logprobs["token_logprobs"]), score, atol=1e-4
            )
        ended += has_ended
    assert 0 < ended < len(texts)


def test_sampling(client):
    greedy = complete(client, PROMPTS, max_tokens=9, temperature=0)
    assert texts_of(greedy) == texts_of(complete(client, PROMPTS, max_tokens=9))
    likeliest = complete(client, PROMPTS, max_tokens=9, temperature=0.7, top_k=1)
    assert texts_of(likeliest) == texts_of(greedy)
    given = {"temperature": 1, "top_p": 1, "n": 16, "max_tokens": 9}
    found = texts_of(complete(client, "abc", **given))
    assert len(found) == 16 and len({*found}) > 4


def test_usage_of_a_stream(client):
    whole = complete(client, PROMPTS[:3], max_tokens=5)
    body = {"model": "letters", "prompt": PROMPTS[:3], "max_tokens": 5}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    *_, event, _, _ = client.post(PATH, json=body).text.split("\n\n")
    last = json.loads(event.removeprefix("data: "))
    assert last["choices"] == [] and last["usage"] == whole["usage"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": "a"}, "'model': field required"),
        ({"model": "letters"}, "'prompt': field required"),
        ({"model": "letters", "prompt": []}, "1 to 256 texts; received 0"),
        ({"model": "letters", "prompt": [1, 2]}, "'prompt.list[str].0'"),
        ({"model": "letters", "prompt": "a" * 5001}, "at most 5000 characters"),
        ({"model": "letters", "prompt": "\ud800"}, "Unicode"),
        ({"model": "letters", "prompt": "abcdef" * 4}, "max_source_length=23 tokens"),
        ({"model": "letters", "prompt": "a", "n": 0}, "'n': input should be greater"),
        ({"model": "letters", "prompt": "a", "n": 17}, "at most 16; received 17"),
        ({"model": "letters", "prompt": ["a"] * 20, "n": 13}, "1 to 256 texts; rec"),
        ({"model": "letters", "prompt": "a", "max_tokens": 2049}, "at most 2048"),
        ({"model": "letters", "prompt": "a", "stop": [""]}, "`stop` must be"),
        ({"model": "letters", "prompt": "a", "temperature": -1}, "'temperature"),
        ({"model": "letters", "prompt": "a", "temperature": 1, "seed": 1}, "`seed`"),
        ({"model": "letters", "prompt": "a", "temperature": 1, "top_k": 99}, "vocab"),
        ({"model": "letters", "prompt": "a", "best_of": 2}, "'best_of' must be 'n'"),
        ({"model": "letters", "prompt": "a", "logit_bias": {"5": 1}}, "'logit_bias'"),
        ({"model": "letters", "prompt": "a", "suffix": "b"}, "'suffix'"),
        ({"model": "letters", "prompt": "a", "presence_penalty": 1}, "'presence_pen"),
        ({"model": "letters", "prompt": "a", "messages": []}, "no key 'messages'"),
        ({"model": "letters", "prompt": "a", "logprobs": 1, "echo": True}, "'echo'"),
        ({"model": "letters", "prompt": "a", "logprobs": 1, "stream": True}, "'stre"),
    ],
)
def test_bad_requests(client, body, message):
    response = client.post(PATH, content=json.dumps(body))
    assert response.status_code == 400
    error = response.json()["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


def test_what_the_defaults_of_other_clients_change(client):
    neutral = {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}}
    neutral |= {"suffix": "", "user": "someone", "stop": [], "best_of": 1, "n": 1}
    found = complete(client, "abc", max_tokens=7, **neutral)
    assert texts_of(found) == texts_of(complete(client, "abc", max_tokens=7))


# OpenAI's client.


def test_the_client_completes(api, client):
    found = api.completions.create(model="letters", prompt=PROMPTS, max_tokens=11)
    whole = complete(client, PROMPTS, max_tokens=11)
    assert [choice.text for choice in found.choices] == texts_of(whole)
    assert found.usage.total_tokens == whole["usage"]["total_tokens"]
    given = {"max_tokens": 5, "logprobs": 1, "extra_body": {"num_beams": 2}}
    found = api.completions.create(model="letters", prompt="abc", **given)
    expected = complete(client, "abc", max_tokens=5, logprobs=1, num_beams=2)
    assert found.choices[0].to_dict() == expected["choices"][0]


def test_the_client_streams(api, client):
    stream = api.completions.create(
        model="letters",
        prompt="abc",
        max_tokens=11,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [*stream]
    text = "".join(each.text for chunk in chunks for each in chunk.choices)
    assert [text] == texts_of(complete(client, "abc", max_tokens=11))
    assert chunks[-1].usage.completion_tokens == 11
    assert chunks[-2].choices[0].finish_reason == "length"


def test_the_client_lists_models(api):
    assert [model.id for model in api.models.list()] == ["letters", "en-de"]
    model = api.models.retrieve("letters")
    assert (model.id, model.object) == ("letters", "model")
    assert model.created > 1.7e9


def test_errors_of_the_client(api, server):
    with pytest.raises(openai.BadRequestError, match="`temperature` is for sampling"):
        api.completions.create(
            model="letters", prompt="a", temperature=1, extra_body={"num_beams": 2}
        )
    with pytest.raises(openai.BadRequestError, match="'en-de' translates texts") as e:
        api.completions.create(model="en-de", prompt="a", stream=True)
    assert e.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError, match="'none' does not exist"):
        api.completions.create(model="none", prompt="a")
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("none")
    with server(api_key=KEY) as client:
        locked = api.with_options(http_client=client)
        with pytest.raises(openai.AuthenticationError, match="Bearer KEY"):
            locked.completions.create(model="letters", prompt="a")
        open_one = locked.with_options(api_key=KEY)
        found = open_one.completions.create(model="letters", prompt="a", max_tokens=3)
        assert len(found.choices) == 1
