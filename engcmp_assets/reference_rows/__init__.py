"""reference_rows: the teacher's rows, from a float32 pass over the dequantized weights."""
