"""The text of needle prompts, written for this project: filler sentences, names, the needle's sentence and the question."""

from __future__ import annotations

# Every sentence begins with a space, so that byte-level tokenizers cut it the same way wherever it stands.
FILLER = (
    " The ferry leaves the harbour before the fog has lifted from the water.",
    " A baker in the old quarter sells his bread from a window at dawn.",
    " Nobody remembers who planted the row of pear trees along the canal.",
    " The clock above the station runs slow in winter and fast in summer.",
    " Two students repair bicycles in the yard behind the library.",
    " Rain filled the stone basin, and the sparrows came to drink from it.",
    " The map on the wall still shows a bridge that was never built.",
    " An old sailor taught the children how to tie eleven kinds of knots.",
    " The museum keeps its smallest paintings in a drawer near the stairs.",
    " On market days the square smells of basil, fish and wet canvas.",
    " The teacher read the letter twice and folded it into her book.",
    " A narrow path leads past the mill to a field of barley.",
    " The lamp in the tower was lit by hand until the last keeper left.",
    " Snow lay on the roofs for a week, and the trams stood still.",
    " The carpenter keeps a list of every door that he has ever hung.",
    " At the edge of the forest a fox watched the road without moving.",
    " The choir practises in a cellar, because the walls are thick there.",
    " A letter from the coast takes three days, one from the hills takes five.",
    " The gardener counts the swallows each spring and writes nothing down.",
    " Somebody painted the fence green, and the neighbours argued about it.",
    " The river is shallow enough to cross where the willows stand.",
    " In the archive the oldest ledgers are tied with blue string.",
    " The train to the north stops at a platform without a name.",
    " A glass of water stood on the sill and caught the evening light.",
)
COLOURS = ("amber", "crimson", "indigo", "olive", "scarlet", "silver", "turquoise", "violet")
SENTENCE = " The access code of the {name} cabinet is {value}."
QUESTION = "\n\nWhat is the access code of the {name} cabinet? Answer with the code alone."
PADDING = (" and", " so", " the", " a", ".", "x")
