"""The Graph of a traced function, the rules that lower it to instructions, and the walker that runs it."""
