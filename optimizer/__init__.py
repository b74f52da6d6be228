"""The optimizer: licensed rules, passes and plans; every pass is a function Module -> Module."""
