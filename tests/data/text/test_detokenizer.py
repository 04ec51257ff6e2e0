"""The rules of MDLM's loader on sentences of their corpora."""

from typing import get_args

import pytest

from dnadiff.data.text.corpus import RULES, Detokenizer, detokenize

CASES = {
    "ptb": {
        "watching abc 's monday night football can now vote for the greatest play in N years": (
            "watching abc's monday night football can now vote for the greatest play in 1 years"
        ),
        "the <unk> company did n't say from $ N to $ N N N "
        "million": "the ? company didn't say from $1 to $1 1 1 million",
        "viewers ' opinions and \\/ or # N today": "viewers' opinions and / or #1 today",
    },
    "lm1b": {
        'restrictions on the U.S. military to " house arrest , " saying American troops cannot '
        "patrol .": (
            'restrictions on the U.S. military to "house arrest," saying American troops '
            "cannot patrol."
        ),
        "I 'm not going , he said ; really ? Yes ! At $ 5 ( five dollars ) : "
        "fine ?": "I'm not going, he said; really? Yes! At $5 (five dollars): fine?",
        "see http : / / x and 3 / 4 of [ it ] for £ 2 !": "see http://x and 3/4 of [it] for £2!",
        "he said . Then she left .": "he said. Then she left.",
    },
    "wikitext": {
        " = = Robert Boulter = = \n": " == Robert Boulter ==\n",
        "well @-@ known , 10 @,@ 000 m ( 24 in ) at 3 @.@ 5 km ; the ship 's "
        "crew": "well-known, 10,000 m (24 in) at 3.5 km; the ship's crew",
        'only becoming " lobster red " on cooking . '
        "Next": 'only becoming "lobster red" on cooking. Next',
        "{ a } [ b ] 20 ° C and N years": "{a} [b] 20°C and 1 years",
    },
    "lambada": {"  “ I look at him ” \n": '\n" I look at him "'},
    "scientific_papers": {"a @-@ b ( c ) / d": "a-b (c)/d"},
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, cases in CASES.items() for text in cases]
)
def test_sentences_of_each_corpus(name, text):
    assert detokenize(text, name) == CASES[name][text]


def test_every_detokenizer_has_a_case():
    assert set(CASES) == set(RULES) == set(get_args(Detokenizer))
