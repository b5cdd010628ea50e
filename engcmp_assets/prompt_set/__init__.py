"""prompt_set: the frozen token ids of every window, checked against the texts they were made from."""
