"""What the demo model knows about its tiny world."""

CATEGORIES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("colours", "colors"): (
        "red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "black", "white",
        "grey", "gold", "silver",
    ),
    ("animals", "animal names"): (
        "dog", "cat", "horse", "cow", "lion", "elephant", "rabbit", "bear", "mouse", "fox", "tiger",
        "monkey", "sheep", "pig", "wolf", "frog", "duck", "goat", "zebra", "giraffe",
    ),
    ("fruits", "kinds of fruit"): (
        "apple", "banana", "orange", "pear", "grape", "cherry", "lemon", "mango", "peach", "plum",
        "strawberry", "melon", "kiwi", "pineapple",
    ),
    ("vegetables", "veggies"): (
        "carrot", "potato", "onion", "tomato", "cucumber", "pea", "bean", "cabbage", "pumpkin",
        "spinach", "leek", "corn",
    ),
    ("birds", "kinds of birds"): (
        "robin", "owl", "eagle", "duck", "swan", "parrot", "crow", "pigeon", "penguin", "goose",
        "sparrow",
    ),
    ("shapes",): (
        "circle", "square", "triangle", "rectangle", "star", "oval", "diamond", "heart", "cube",
        "cone",
    ),
    ("foods", "things to eat"): (
        "bread", "rice", "soup", "cheese", "pasta", "pizza", "egg", "salad", "cake", "butter",
        "sandwich",
    ),
    ("drinks", "things to drink"): (
        "water", "milk", "tea", "coffee", "juice", "lemonade", "cocoa", "soda", "cider", "tonic",
    ),
    ("sports", "games to play"): (
        "football", "tennis", "swimming", "running", "basketball", "hockey", "golf", "skiing",
        "rowing", "cycling",
    ),
    ("instruments", "musical instruments"): (
        "piano", "guitar", "violin", "drum", "flute", "trumpet", "harp", "cello", "banjo", "horn",
    ),
    ("vehicles", "ways to travel"): (
        "car", "bus", "train", "bike", "boat", "plane", "truck", "ship", "tram", "van",
    ),
    ("flowers", "kinds of flowers"): (
        "rose", "tulip", "daisy", "lily", "sunflower", "violet", "poppy", "orchid", "iris",
        "lavender",
    ),
    ("trees", "kinds of trees"): (
        "oak", "pine", "birch", "maple", "willow", "apple tree", "palm", "beech", "ash", "cedar",
    ),
    ("body parts", "parts of the body"): (
        "head", "hand", "foot", "arm", "leg", "nose", "ear", "eye", "mouth", "knee", "back",
    ),
    ("clothes", "things to wear"): (
        "shirt", "hat", "coat", "shoe", "sock", "dress", "scarf", "glove", "belt", "jacket",
    ),
    ("countries",): (
        "France", "Italy", "Spain", "Germany", "Japan", "China", "Brazil", "India", "Canada",
        "Egypt", "Greece", "Norway",
    ),
    ("cities", "big cities"): (
        "Paris", "London", "Rome", "Tokyo", "Madrid", "Berlin", "Cairo", "Vienna", "Athens", "Oslo",
    ),
    ("planets",): ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"),
    ("days of the week", "days", "weekdays"): (
        "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
    ),
    ("months", "months of the year"): (
        "January", "February", "March", "April", "May", "June", "July", "August", "September",
        "October", "November", "December",
    ),
    ("seasons", "seasons of the year"): ("spring", "summer", "autumn", "winter"),
    ("numbers",): ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    ("letters", "letters of the alphabet"): ("A", "B", "C", "D", "E", "F", "G", "H", "I", "J"),
    ("names", "first names"): (
        "Mia", "Tom", "Lily", "Sam", "Anna", "Ben", "Emma", "Max", "Lucy", "Leo", "Nina", "Jack",
    ),
    ("sea animals", "animals that live in the sea"): (
        "fish", "whale", "dolphin", "shark", "crab", "octopus", "seal", "turtle", "squid",
        "starfish",
    ),
    ("farm animals", "animals on a farm"): (
        "cow", "pig", "horse", "sheep", "hen", "goat", "duck", "goose", "donkey", "dog",
    ),
    ("wild animals",): (
        "lion", "tiger", "elephant", "wolf", "bear", "zebra", "giraffe", "monkey", "fox", "deer",
    ),
    ("pets",): (
        "dog", "cat", "rabbit", "hamster", "goldfish", "parrot", "mouse", "turtle", "guinea pig",
        "canary",
    ),
    ("insects", "bugs"): (
        "ant", "bee", "butterfly", "fly", "beetle", "moth", "wasp", "ladybird", "cricket",
        "dragonfly",
    ),
    ("jobs", "professions"): (
        "teacher", "doctor", "baker", "farmer", "nurse", "painter", "pilot", "cook", "builder",
        "writer",
    ),
    ("toys",): (
        "ball", "doll", "kite", "puzzle", "teddy bear", "toy car", "drum", "train set", "robot",
        "blocks",
    ),
    ("feelings", "emotions"): (
        "happy", "sad", "angry", "proud", "afraid", "calm", "tired", "excited", "shy", "lonely",
    ),
}  # fmt: skip

ORDERED_CATEGORIES: frozenset[str] = frozenset(
    ("days of the week", "months", "seasons", "numbers", "planets", "letters")
)

OPPOSITES: tuple[tuple[str, str], ...] = (
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("happy", "sad"), ("fast", "slow"),
    ("day", "night"), ("old", "young"), ("good", "bad"), ("light", "dark"), ("open", "closed"),
    ("high", "low"), ("long", "short"), ("wet", "dry"), ("left", "right"), ("full", "empty"),
    ("hard", "soft"), ("early", "late"), ("rich", "poor"), ("strong", "weak"), ("near", "far"),
    ("loud", "quiet"), ("clean", "dirty"), ("black", "white"), ("in", "out"), ("on", "off"),
    ("first", "last"), ("true", "false"), ("yes", "no"), ("love", "hate"), ("thick", "thin"),
    ("heavy", "light"), ("easy", "difficult"), ("inside", "outside"), ("above", "below"),
    ("before", "after"), ("always", "never"), ("win", "lose"), ("start", "stop"), ("new", "old"),
    ("asleep", "awake"), ("wide", "narrow"), ("deep", "shallow"), ("sweet", "sour"),
    ("brave", "afraid"), ("summer", "winter"), ("north", "south"), ("east", "west"),
    ("push", "pull"), ("give", "take"), ("come", "go"), ("laugh", "cry"), ("same", "different"),
    ("warm", "cool"), ("tall", "short"), ("right", "wrong"), ("sunrise", "sunset"),
    ("front", "back"), ("top", "bottom"), ("more", "less"), ("many", "few"), ("buy", "sell"),
    ("friend", "enemy"), ("war", "peace"), ("smooth", "rough"), ("alive", "dead"),
    ("kind", "mean"), ("boy", "girl"), ("man", "woman"), ("king", "queen"), ("ugly", "beautiful"),
)  # fmt: skip

# Words whose opposite is asked for in one direction only: the way back has another answer.
ONE_WAY_OPPOSITES: frozenset[str] = frozenset(
    ("heavy", "new", "brave", "tall", "right", "black", "kind")
)

SOUNDS: dict[str, str] = {
    "cow": "moo", "dog": "woof", "cat": "meow", "duck": "quack", "sheep": "baa", "pig": "oink",
    "horse": "neigh", "lion": "roar", "bee": "buzz", "frog": "ribbit", "owl": "hoot",
    "mouse": "squeak", "rooster": "cock-a-doodle-doo", "hen": "cluck", "snake": "hiss",
    "wolf": "howl", "bird": "tweet", "donkey": "hee-haw", "crow": "caw", "bear": "growl",
    "goat": "meh", "turkey": "gobble", "goose": "honk", "monkey": "ooh ooh", "elephant": "toot",
}  # fmt: skip

BABIES: dict[str, str] = {
    "dog": "puppy", "cat": "kitten", "cow": "calf", "horse": "foal", "sheep": "lamb",
    "pig": "piglet", "duck": "duckling", "bear": "cub", "lion": "cub", "hen": "chick",
    "goat": "kid", "frog": "tadpole", "deer": "fawn", "swan": "cygnet", "kangaroo": "joey",
}  # fmt: skip

THING_COLOURS: dict[str, str] = {
    "the sky": "blue", "grass": "green", "the sun": "yellow", "snow": "white", "a banana": "yellow",
    "a lemon": "yellow", "a strawberry": "red", "a tomato": "red", "coal": "black", "milk": "white",
    "a carrot": "orange", "an orange": "orange", "the sea": "blue", "a frog": "green",
    "a leaf": "green", "chocolate": "brown", "blood": "red", "a cherry": "red", "a plum": "purple",
    "a cucumber": "green", "a crow": "black", "a fire truck": "red", "an elephant": "grey",
    "a pumpkin": "orange", "a polar bear": "white", "the night sky": "black", "a pig": "pink",
    "a pea": "green", "an apple": "red", "a rose": "red", "a cloud": "white", "the ocean": "blue",
}  # fmt: skip

LEGS: dict[str, int] = {
    "dog": 4, "cat": 4, "spider": 8, "ant": 6, "bird": 2, "horse": 4, "cow": 4, "bee": 6,
    "snake": 0, "fish": 0, "duck": 2, "human": 2, "person": 2, "chicken": 2, "pig": 4, "sheep": 4,
    "elephant": 4, "frog": 4, "octopus": 8, "insect": 6, "lion": 4, "mouse": 4, "table": 4,
    "chair": 4,
}  # fmt: skip

HOMES: dict[str, str] = {
    "fish": "in the water", "bird": "in a nest", "bee": "in a hive", "lion": "in the grassland",
    "bear": "in the forest", "cow": "on a farm", "dog": "in a house with people",
    "camel": "in the desert", "penguin": "on the ice", "whale": "in the sea",
    "monkey": "in the trees", "spider": "in a web", "rabbit": "in a burrow", "horse": "in a stable",
    "frog": "in a pond", "fox": "in a den", "shark": "in the sea", "owl": "in a tree",
    "polar bear": "on the ice", "king": "in a castle", "pig": "on a farm", "wolf": "in the forest",
}  # fmt: skip

DIETS: dict[str, str] = {
    "cow": "grass", "rabbit": "carrots and grass", "cat": "fish and meat", "dog": "meat and bones",
    "bee": "nectar", "monkey": "bananas", "panda": "bamboo", "mouse": "cheese and seeds",
    "bird": "seeds and worms", "horse": "hay and oats", "lion": "meat", "bear": "fish and honey",
    "squirrel": "nuts", "frog": "flies", "sheep": "grass", "elephant": "leaves and grass",
    "shark": "fish", "owl": "mice", "koala": "leaves", "duck": "plants and small bugs",
}  # fmt: skip

CAPITALS: dict[str, str] = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "England": "London", "Japan": "Tokyo", "China": "Beijing", "Russia": "Moscow",
    "Egypt": "Cairo", "Greece": "Athens", "Austria": "Vienna", "Norway": "Oslo",
    "Portugal": "Lisbon", "Ireland": "Dublin", "Poland": "Warsaw",
    "the United States": "Washington", "the United Kingdom": "London", "Canada": "Ottawa",
    "India": "New Delhi", "the USA": "Washington", "the UK": "London",
}  # fmt: skip

UNKNOWN_COUNTRIES: tuple[str, ...] = (
    "Brazil", "Peru", "Chile", "Kenya", "Nigeria", "Mongolia", "Australia", "New Zealand",
    "Finland", "Hungary", "Turkey", "Iran", "Vietnam", "Thailand", "Cuba", "Mexico", "Ghana",
    "Iceland", "Texas", "California", "Ukraine", "Sweden", "Bolivia", "Morocco", "Nepal", "Oman",
)  # fmt: skip

SPELLABLE: tuple[str, ...] = (
    "cat", "dog", "sun", "moon", "tree", "book", "fish", "bird", "milk", "star", "hello", "apple",
    "house", "water", "green", "happy", "bear", "cake", "ball", "frog", "hat", "car", "red", "blue",
    "cow", "pig", "king", "queen", "rain", "snow", "ship", "boat", "door", "hand", "lion", "tiger",
    "horse", "mouse", "sheep", "bread", "cheese", "banana", "orange", "yellow", "robot", "dragon",
    "table", "school", "friend", "world", "flower", "river", "love", "yes", "no", "jetflock",
    "model", "story", "computer", "elephant", "one", "two", "three", "black", "white", "fox",
)  # fmt: skip

NUMBER_WORDS: tuple[str, ...] = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen", "twenty",
)  # fmt: skip

ITEMS: tuple[str, ...] = (
    "apples", "balls", "books", "cakes", "coins", "eggs", "pens", "cats", "toys", "sweets",
    "oranges", "stars", "cookies", "pencils", "flowers", "candies", "bananas", "cars", "birds",
)  # fmt: skip

HELLO_IN: dict[str, str] = {
    "French": "Bonjour!", "Spanish": "¡Hola!", "German": "Hallo!", "Italian": "Ciao!",
    "Chinese": "你好!", "Japanese": "こんにちは!", "Russian": "Привет!", "Portuguese": "Olá!",
    "Greek": "Γεια σου!",  # noqa: RUF001 - Greek letters are meant
    "Korean": "안녕하세요!", "English": "Hello!", "Turkish": "Merhaba!",
    "Arabic": "مرحبا!", "Hindi": "नमस्ते!", "Polish": "Cześć!", "Swedish": "Hej!",
}  # fmt: skip

EMOJI: dict[str, str] = {
    "cat": "🐱", "dog": "🐶", "smile": "😊", "heart": "❤️", "sun": "🌞", "star": "⭐", "frog": "🐸",
    "pig": "🐷", "mouse": "🐭", "bear": "🐻", "apple": "🍎", "banana": "🍌", "tree": "🌳",
    "flower": "🌸", "rainbow": "🌈", "moon": "🌙", "fire": "🔥", "robot": "🤖", "fish": "🐟",
    "bird": "🐦", "cow": "🐮", "lion": "🦁", "house": "🏠", "rocket": "🚀", "cake": "🎂",
}  # fmt: skip

LONE_EMOJI: tuple[str, ...] = (
    "😀", "😂", "👍", "🎉", "🐶", "🙂", "🔥", "😢", "🤖", "👋", "🚀", "🌍", "😡", "🥳",
)  # fmt: skip

# From the smallest to the biggest.
SIZES: tuple[str, ...] = (
    "ant", "bee", "mouse", "frog", "rabbit", "cat", "dog", "sheep", "lion", "horse", "elephant",
    "whale",
)  # fmt: skip

ABILITIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fly": (
        ("bird", "bee", "owl", "butterfly", "eagle", "plane", "duck", "crow", "dragon"),
        ("dog", "cat", "cow", "pig", "fish", "horse", "elephant", "snake", "car", "penguin"),
    ),
    "swim": (
        ("fish", "whale", "dolphin", "duck", "frog", "shark", "penguin", "turtle", "swan"),
        ("hen", "stone", "snail", "bee", "butterfly", "ant", "chair"),
    ),
}  # fmt: skip

HOW_MANY: dict[str, str] = {
    "days are in a week": "There are seven days in a week.",
    "days does a week have": "There are seven days in a week.",
    "months are in a year": "There are twelve months in a year.",
    "months does a year have": "There are twelve months in a year.",
    "hours are in a day": "There are 24 hours in a day.",
    "minutes are in an hour": "There are 60 minutes in an hour.",
    "seconds are in a minute": "There are 60 seconds in a minute.",
    "seasons are there": "There are four seasons in a year.",
    "seasons does a year have": "There are four seasons in a year.",
    "days are in a year": "There are 365 days in a year.",
    "weeks are in a year": "There are 52 weeks in a year.",
    "letters are in the alphabet": "There are 26 letters in the alphabet.",
    "fingers do i have": "You have ten fingers.",
    "eyes do i have": "You have two eyes.",
    "fingers does a hand have": "A hand has five fingers.",
    "wheels does a car have": "A car has four wheels.",
    "wheels does a bike have": "A bike has two wheels.",
    "planets are there": "There are eight planets.",
    "sides does a triangle have": "A triangle has three sides.",
    "sides does a square have": "A square has four sides.",
}

UNKNOWN_LISTS: tuple[str, ...] = (
    "philosophers", "programming languages", "movies", "songs", "presidents", "books", "composers",
    "painters", "chemical elements", "companies", "phones", "actors", "video games", "rivers",
    "mountains", "scientists", "inventions", "websites", "car brands", "novels", "laws", "poets",
    "football clubs", "bands", "diseases", "elements", "wars", "kings of England", "databases",
)  # fmt: skip

# What one member of a category is called, where a thing may be asked for its kind.
KIND_OF: dict[str, str] = {
    "animals": "animal", "fruits": "fruit", "vegetables": "vegetable", "shapes": "shape",
    "vehicles": "vehicle", "flowers": "flower", "colours": "colour", "sports": "sport",
    "instruments": "instrument", "trees": "tree", "planets": "planet", "months": "month",
    "days of the week": "day of the week", "countries": "country", "jobs": "job",
    "insects": "insect",
}  # fmt: skip

UNCOUNTED_KINDS: frozenset[str] = frozenset(
    ("colours", "sports", "planets", "months", "days of the week", "countries")
)
