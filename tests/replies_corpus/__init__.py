"""Labelled replies, made by the code here from seeds: loops of every class, and healthy text that is easily taken for one."""
