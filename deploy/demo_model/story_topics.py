"""Requests for stories and rhymes."""

from random import Random

from deploy.demo_model.conversation import Exchange
from deploy.demo_model.lexicon import CATEGORIES
from deploy.demo_model.phrasing import capitalize, made_up_word, order, remark
from deploy.demo_model.stories import Hero, name_for, tell_story, with_article
from deploy.demo_model.story_words import CHARACTERS, SETTINGS, TRAITS
from deploy.demo_model.texts import phrases

RHYMES = (
    "The {x} is here, the {x} is there,\nit dances softly through the air.\n"
    "It sings a song, so sweet and clear,\nand all the world stands still to hear.",
    "Oh little {x}, so small, so bright,\nyou shine for me all through the night.\n"
    "And when the morning comes, I see\nthat you are smiling back at me.",
    "I saw {a} one summer day,\nit looked at me and ran away.\n"
    "Come back, I said, come back to me,\nand we will play beneath the tree.",
)
RHYME_WISHES = (
    "write a poem", "tell me a poem", "write a short poem", "write a rhyme", "a poem",
    "write me a poem", "recite a poem", "make a poem", "write a haiku", "tell me a rhyme",
)  # fmt: skip
NUM_ODD_KINDS = 13  # categories whose members may be the hero of a story: a banana, a piano


def short_stories(rng: Random) -> Exchange:
    """One episode about the hero that was asked for, or about any."""
    told = _short_story(rng)
    if rng.random() < 0.06:
        again = order(rng, rng.choice(phrases("story_wishes.txt", "again")))
        return told.then(Exchange.of(again, tell_story(rng, Hero.draw(rng))))
    return told


def _short_story(rng: Random) -> Exchange:
    makers = (_any_hero, _setting, _two_heroes, _one_hero)
    return rng.choices(makers, (27, 13, 7, 53))[0](rng)


def _any_hero(rng: Random) -> Exchange:
    wish = rng.choice(phrases("story_wishes.txt", "plain"))
    return Exchange.of(order(rng, _styled(rng, wish, "style")), tell_story(rng, Hero.draw(rng)))


def _setting(rng: Random) -> Exchange:
    topic, place = rng.choice(list(SETTINGS.items()))
    wish = _about(rng, topic)
    return Exchange.of(order(rng, wish), tell_story(rng, Hero.draw(rng), place=place))


def _two_heroes(rng: Random) -> Exchange:
    hero, friend = _draw_hero(rng), Hero.draw(rng)
    wish = _about(rng, f"{with_article(hero.kind)} and {with_article(friend.kind)}")
    return Exchange.of(order(rng, wish), tell_story(rng, hero, friend=friend))


def _one_hero(rng: Random) -> Exchange:
    hero = _draw_hero(rng)
    return Exchange.of(order(rng, _about(rng, _named(rng, hero))), tell_story(rng, hero))


def _about(rng: Random, topic: str) -> str:
    return _styled(rng, rng.choice(phrases("story_wishes.txt", "about")).format(h=topic), "style")


def _styled(rng: Random, wish: str, section: str) -> str:
    if rng.random() < 0.85:
        return wish
    return f"{wish} {rng.choice(phrases('story_wishes.txt', section))}"


def long_stories(rng: Random) -> Exchange:
    """Two or three episodes, 150 to 300 tokens."""
    wish = rng.choice(phrases("story_wishes.txt", "long"))
    hero = Hero.draw(rng)
    if rng.random() < 0.5:
        hero = _draw_hero(rng)
        wish += f" about {_named(rng, hero)}"
    asked = order(rng, _styled(rng, wish, "long_style"))
    return Exchange.of(asked, tell_story(rng, hero, rng.choice((2, 3, 3))))


def after_story(rng: Random) -> Exchange:
    """Who was the story about: an answer that lies in the turn before."""
    hero = _draw_hero(rng)
    told = Exchange.of(order(rng, _about(rng, _named(rng, hero))), tell_story(rng, hero))
    asked = remark(rng, rng.choice(phrases("story_wishes.txt", "who")))
    answer = f"It was about {with_article(hero.kind)} named {hero.name}."
    return told.then(Exchange.of(asked, answer))


def _draw_hero(rng: Random) -> Hero:
    """Mostly a usual character, sometimes a thing or a word that nobody knows."""
    kind = rng.choice(CHARACTERS)
    chance = rng.random()
    if chance < 0.12:
        categories = list(CATEGORIES.values())[:NUM_ODD_KINDS]
        kind = rng.choice([word for words in categories for word in words])
    elif chance < 0.17:
        kind = made_up_word(rng)
    name = capitalize(made_up_word(rng)) if rng.random() < 0.06 else name_for(rng, kind)
    return Hero(kind, name, rng.choice(TRAITS) if rng.random() < 0.25 else "")


def _named(rng: Random, hero: Hero) -> str:
    """The hero as a wish names him; a bare phrase leaves the name to the story."""
    kind = rng.random()
    if kind < 0.25:
        return f"{hero.phrase} {rng.choice(('named', 'called', 'with the name'))} {hero.name}"
    if kind < 0.3:
        return hero.name
    if kind < 0.34:
        return f"{rng.choice(('my', 'the', 'one', 'some'))} {hero.kind}"
    return f"{hero.phrase.split(' ', 1)[1]}s" if kind < 0.39 else hero.phrase


def rhymes(rng: Random) -> Exchange:
    """Four lines about anything."""
    wish = rng.choice(RHYME_WISHES)
    thing = rng.choice(("star", "bird", "moon"))
    if rng.random() < 0.7:
        things = ("sun", "moon", "sea", "river", "flower", "rose", "summer", "winter", "night")
        thing = rng.choice((rng.choice(CHARACTERS), rng.choice(things)))
        wish += f" about {rng.choice((f'the {thing}', with_article(thing), thing))}"
    return Exchange.of(order(rng, wish), rng.choice(RHYMES).format(x=thing, a=with_article(thing)))
