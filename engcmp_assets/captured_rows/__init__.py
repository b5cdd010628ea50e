"""captured_rows: an engine's rows on a panel, as measured, launch by launch and repeat by repeat."""
