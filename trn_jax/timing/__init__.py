"""Time: from a traced function to a Program, from a Program and a chip to seconds."""
