"""Texts of a wanted number of tokens, made of words whose cost in tokens was measured."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass

from jetflock.bench.token_counter import TokenCounter

_OPENING = "Tell"  # every text begins with it, so that what stands before the words costs the same
_NUM_COPIES = 8
_NUM_AT_ONCE = 16
_MIN_WORDS = 48  # of one token: as many, and no other word is used
_WORDS = """
a about after again air all also always an and animal another answer are around as ask at away back
be bear because bed been before began below best better big bird black blue boat body book both box
boy bread bring brother brown but by call came can car cat change child city cold colour come could
country cut dance day did do dog done door down dragon draw dream each early earth eat egg end even
ever every eye face fall family far farm fast father feel feet few field find fire first fish five
flower fly food for forest found four fox friend from garden gave get girl give go gold good grass
great green ground grow had hand happy hard has hat have he head hear heart help her here high hill
him his home hope horse house how hundred ice idea if in into is it its jump just keep kind king
knew know land large last late laugh leaf learn left leg let letter life light like line little
live long look lost love made make man many map may me mean men milk mind moon more morning most
mother mountain mouse much music must my name near never new next night no north not now number of
off often old on once one only open or other our out over own page paper part people picture place
plant play point queen question quick rain ran read ready red rest right river road rock room round
run said same saw say school sea second see seed seven ship shoe short should show side silver sing
sister sit six sky sleep slow small snow so some song soon south stand star start still stone stop
story street strong sugar summer sun sweet table take talk tall tell ten than that the their them
then there these they thing think this those three time to today together told too took top town
train tree true try turn two under until up us use very voice wait walk wall want warm was watch
water way we week well went were west what wheel when where which while white who why will wind
winter wish with wolf woman wood word work world would write year yellow yes you young
"""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words that cost so many tokens each, behind a space, and what every request costs besides."""

    costs: Mapping[str, int]
    base_len: int  # tokens of a request of the opening word alone, with template and marks

    @classmethod
    async def measure(cls, counter: TokenCounter) -> Vocabulary:
        """Asks for each word once."""
        base_len = await counter.count(_OPENING)
        gate = asyncio.Semaphore(_NUM_AT_ONCE)

        async def cost_of(word: str) -> int:
            async with gate:
                num_tokens = await counter.count(_OPENING + f" {word}" * _NUM_COPIES)
            return round((num_tokens - base_len) / _NUM_COPIES)

        words = _WORDS.split()
        found = await asyncio.gather(*(cost_of(word) for word in words))
        costs = {word: max(1, cost) for word, cost in zip(words, found, strict=True)}
        single = {word: 1 for word, cost in costs.items() if cost == 1}
        return cls(single if len(single) >= _MIN_WORDS else costs, base_len)

    def request_text(self, num_tokens: int, rng: random.Random) -> str:
        """The prompt of a request of so many tokens; the shortest there is if that is too few."""
        return _OPENING + self.words(num_tokens - self.base_len, rng)

    def words(self, num_tokens: int, rng: random.Random) -> str:
        """Makes so many tokens of words, each behind a space; fewer, where the last one does not
        fit.
        """
        if num_tokens <= 0:
            return ""
        words = list(self.costs)
        if sum(self.costs.values()) == len(words):
            return " " + " ".join(rng.choices(words, k=num_tokens))
        chosen: list[str] = []
        while words:
            word = rng.choice(words)
            if self.costs[word] <= num_tokens:
                chosen.append(word)
                num_tokens -= self.costs[word]
            else:
                words = [each for each in words if self.costs[each] <= num_tokens]
        return "".join(f" {word}" for word in chosen)
