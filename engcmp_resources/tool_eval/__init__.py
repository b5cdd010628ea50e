"""The public tool-calling suite tool-eval-bench, where the user has it installed: runs it in a folder of its own, reads its result files.

Its scenarios and graders stay there: nothing of them is copied. Versions 2.8.0 and 3.0.0 are known; another may grade differently.
"""
