"""Claims that cannot overreach: what is stated, as data, held against what row files and receipts say of it.

`records` is a claim and how it is read from a file; `facts` is what the evidence says of its subject; `registry` holds a claim against the
facts by the rules of the modules `rules_*`, one small function a rule. A rule acts on fields, never on wording: a sentence that says the
same in other words, under another number, is the same claim.
"""
