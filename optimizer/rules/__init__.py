"""All rules of the simplifier, by family, in one explicit table."""
