"""The words that stories are filled with: heroes, names, places, things."""

NAMES: tuple[str, ...] = (
    "Mia", "Tom", "Lily", "Sam", "Anna", "Ben", "Emma", "Max", "Lucy", "Leo", "Nina", "Jack",
    "Rosie", "Oscar", "Ella", "Finn", "Ruby", "Hugo", "Bella", "Toby", "Zoe", "Felix", "Clara",
    "Milo", "Daisy", "Otto", "Poppy", "Theo", "Molly", "Rex", "Ivy", "Nico", "Luna", "Kit",
    "Greta", "Pip", "Sara", "Bob", "Alice", "John", "Mary", "Peter", "Kate", "Paul", "Jane",
    "David", "Maria", "Ali", "Ken", "Wei", "Omar", "Ana", "Ravi", "Yuki", "Alex", "Chris", "Eva",
)  # fmt: skip

CHARACTERS: tuple[str, ...] = (
    "cat", "dog", "dragon", "robot", "rabbit", "fox", "bear", "mouse", "frog", "owl", "horse",
    "pony", "lion", "tiger", "elephant", "monkey", "penguin", "duck", "turtle", "squirrel", "wolf",
    "pig", "cow", "sheep", "goat", "bee", "bird", "fish", "whale", "dolphin", "unicorn", "witch",
    "wizard", "princess", "prince", "knight", "king", "queen", "pirate", "boy", "girl", "farmer",
    "baker", "giant", "fairy", "ghost", "mermaid", "monster", "kitten", "puppy", "hedgehog",
    "snail", "butterfly", "spider", "crab", "octopus", "camel", "panda", "koala", "kangaroo",
    "snowman", "teddy bear", "toy car", "little train", "cloud", "star", "tree", "teacher",
    "sailor", "painter", "gardener", "dinosaur", "deer", "hen", "parrot", "crocodile", "hamster",
    "elf", "troll", "ant", "astronaut", "child", "man", "woman", "old man", "old woman", "computer",
    "spaceship", "ninja", "zebra", "giraffe", "alien", "scientist", "doctor", "chicken", "shark",
    "lighthouse", "boat", "balloon", "moon", "wolf cub", "baby dragon", "llama", "goose", "swan",
)  # fmt: skip

TRAITS: tuple[str, ...] = (
    "brave", "kind", "clever", "shy", "curious", "happy", "lonely", "small", "big", "sleepy",
    "hungry", "funny", "gentle", "lazy", "proud", "friendly", "young", "old", "quiet", "sad",
    "little", "tiny", "lost", "magic", "cheerful",
)  # fmt: skip

SHE_NAMES: frozenset[str] = frozenset(
    ("Mia", "Lily", "Anna", "Emma", "Lucy", "Nina", "Rosie", "Ella", "Ruby", "Bella", "Zoe",
     "Clara", "Daisy", "Poppy", "Molly", "Ivy", "Luna", "Greta", "Sara", "Alice", "Mary", "Kate",
     "Jane", "Maria", "Ana", "Yuki", "Eva")
)  # fmt: skip

SHE_HEROES: frozenset[str] = frozenset(
    ("witch", "princess", "queen", "girl", "fairy", "mermaid", "woman", "old woman", "hen", "cow")
)

HE_HEROES: frozenset[str] = frozenset(
    ("wizard", "prince", "king", "boy", "man", "old man", "snowman")
)

PLACES: tuple[str, ...] = (
    "in a green forest", "by the sea", "in a small village", "on a quiet farm", "near a river",
    "in a little house", "on top of a hill", "in a big city", "at the edge of the woods",
    "in an old castle", "on a small island", "in a warm valley", "behind the mountains",
    "in a garden full of flowers", "under a tall tree",
)  # fmt: skip

THINGS: tuple[str, ...] = (
    "red ball", "golden key", "little bell", "blue hat", "warm scarf", "silver spoon", "old map",
    "wooden boat", "shiny stone", "music box", "yellow kite", "tiny lamp", "round button",
    "green umbrella", "picture book",
)  # fmt: skip

SPOTS: tuple[str, ...] = (
    "under the bed", "behind a big rock", "in the tall grass", "at the bottom of the garden",
    "next to the old well", "under a pile of leaves", "behind the door", "in a hollow tree",
)  # fmt: skip

SKILLS: tuple[str, ...] = (
    "swim", "sing", "dance", "read", "paint", "bake bread", "play the drum", "skate", "ride a bike",
    "fly a kite", "whistle", "climb trees", "tell jokes", "row a boat",
)  # fmt: skip

SIGHTS: tuple[str, ...] = (
    "the sea", "the highest mountain", "the big city", "the end of the rainbow", "the first snow",
    "the oldest tree in the world", "the king's garden", "the place where the sun goes to sleep",
)  # fmt: skip

TREATS: tuple[str, ...] = (
    "a chocolate cake", "a pot of soup", "an apple pie", "some warm bread", "a plate of cookies",
    "a big bowl of fruit salad", "a tower of pancakes",
)  # fmt: skip

# What a setting is called in a wish, and where the story then takes place.
SETTINGS: dict[str, str] = {
    "the sea": "by the sea", "the forest": "in a green forest", "a castle": "in an old castle",
    "a farm": "on a quiet farm", "an island": "on a small island",
    "a village": "in a small village", "the mountains": "behind the mountains",
    "a city": "in a big city", "a garden": "in a garden full of flowers",
    "space": "on a small star", "a school": "next to a school", "a house": "in a little house",
    "the river": "near a river", "winter": "in the land of snow", "magic": "in a magic forest",
    "friendship": "in a small village", "adventure": "at the edge of the woods",
    "love": "in a warm valley", "animals": "in a green forest", "the night": "on top of a hill",
    "summer": "by the sea", "Christmas": "in the land of snow", "an adventure": "by the sea",
    "the woods": "at the edge of the woods", "the ocean": "by the sea", "toys": "in a little house",
}  # fmt: skip
