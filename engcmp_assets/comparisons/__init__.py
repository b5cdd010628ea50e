"""The comparisons room: candidate minus baseline with its uncertainty, sensitivities, floors and verdict."""
